"""PURE. The states of an entity, as a table of transitions and the machine that follows it.

Theory of operation
===================
An entity (a queue or topic of the primary, as one paired client sees it) is HEALTHY, SUSPECT or FAILED_OVER. Only an
`Event` changes its state. `TRANSITIONS` holds exactly one row for every state, event and condition: the row names the
next state and the action for the shell. Tests check that the table is complete.

Time is an event too. `EntityMachine.next_deadline` says when the shell must call back with `DEADLINE`: at the end of
the failover interval of a suspect entity, and at each ping of a failed-over one. A deadline that has passed is applied
before the event at hand, so it makes no difference whether a timer or a send wakes up first.

Each recovery begins a new *era*. A send that began in an earlier era and fails now (it hung while the entity failed
over and recovered) says nothing about the entity: it is `SEND_FAILED_LATE`. The result of a ping from an earlier era is
dropped.

Conditions (`When`) depend on the options and on the number of pings delivered in a row, nothing else:

- AT_ONCE: `failover_interval` is 0. PATIENT: it is not.
- ENOUGH: this was ping number `recovery_pings` delivered in a row. NOT_ENOUGH: it was not.

The fate of a message whose send failed is an `Action`: DIVERT it to the backlog, or RAISE its error. RAISE becomes
DIVERT when `divert_during_interval` is set.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

NO_ERA = -1
"""The era of a send that never reached the entity: it timed out while it waited for earlier sends."""


class EntityState(Enum):
    """HEALTHY and SUSPECT entities get their sends at the primary, FAILED_OVER ones in the backlog."""

    HEALTHY = "healthy"
    SUSPECT = "suspect"
    FAILED_OVER = "failed over"


class EventKind(Enum):
    SEND_SUCCEEDED = "a send succeeded"
    SEND_FAILED = "a send failed with an error that counts"
    SEND_FAILED_LATE = "a send of an earlier era failed with an error that counts"
    DEADLINE = "the deadline passed"
    PING_SUCCEEDED = "a ping was delivered"
    PING_FAILED = "a ping failed"
    MARK_HEALTHY = "mark_healthy was called"
    FAIL_OVER = "fail_over was called"


class When(Enum):
    ALWAYS = ""
    AT_ONCE = "failover_interval = 0"
    PATIENT = "failover_interval > 0"
    ENOUGH = "recovery_pings delivered in a row"
    NOT_ENOUGH = "more pings needed"


class Action(Enum):
    SEND_PING = "send a ping"
    DIVERT = "send this message to the backlog"
    RAISE = "raise the error to the caller"


@dataclass(frozen=True, slots=True)
class TransitionRow:
    state: EntityState
    event: EventKind
    when: When
    to: EntityState
    action: Action | None = None


_H, _S, _F = EntityState.HEALTHY, EntityState.SUSPECT, EntityState.FAILED_OVER
_E, _W, _A = EventKind, When, Action
_Row = TransitionRow

TRANSITIONS: tuple[TransitionRow, ...] = (
    # A healthy entity.
    _Row(_H, _E.SEND_SUCCEEDED, _W.ALWAYS, _H),
    _Row(_H, _E.SEND_FAILED, _W.PATIENT, _S, _A.RAISE),
    _Row(_H, _E.SEND_FAILED, _W.AT_ONCE, _F, _A.DIVERT),
    _Row(_H, _E.SEND_FAILED_LATE, _W.PATIENT, _H, _A.RAISE),
    _Row(_H, _E.SEND_FAILED_LATE, _W.AT_ONCE, _H, _A.DIVERT),
    _Row(_H, _E.MARK_HEALTHY, _W.ALWAYS, _H),
    _Row(_H, _E.FAIL_OVER, _W.ALWAYS, _F),
    # A suspect entity: one success clears it; when its interval ends, it fails over.
    _Row(_S, _E.SEND_SUCCEEDED, _W.ALWAYS, _H),
    _Row(_S, _E.SEND_FAILED, _W.ALWAYS, _S, _A.RAISE),
    _Row(_S, _E.SEND_FAILED_LATE, _W.ALWAYS, _S, _A.RAISE),
    _Row(_S, _E.DEADLINE, _W.ALWAYS, _F),
    _Row(_S, _E.MARK_HEALTHY, _W.ALWAYS, _H),
    _Row(_S, _E.FAIL_OVER, _W.ALWAYS, _F),
    # A failed-over entity. Sends that were in flight when it failed over end here: a failed one is diverted, and a
    # late success changes nothing, because only pings bring an entity back.
    _Row(_F, _E.SEND_SUCCEEDED, _W.ALWAYS, _F),
    _Row(_F, _E.SEND_FAILED, _W.ALWAYS, _F, _A.DIVERT),
    _Row(_F, _E.SEND_FAILED_LATE, _W.ALWAYS, _F, _A.DIVERT),
    _Row(_F, _E.DEADLINE, _W.ALWAYS, _F, _A.SEND_PING),
    _Row(_F, _E.PING_SUCCEEDED, _W.ENOUGH, _H),
    _Row(_F, _E.PING_SUCCEEDED, _W.NOT_ENOUGH, _F),
    _Row(_F, _E.PING_FAILED, _W.ALWAYS, _F),
    _Row(_F, _E.MARK_HEALTHY, _W.ALWAYS, _H),
    _Row(_F, _E.FAIL_OVER, _W.ALWAYS, _F),
)

_ROWS: dict[tuple[EntityState, EventKind], tuple[TransitionRow, ...]] = {}
for _row in TRANSITIONS:
    _ROWS[_row.state, _row.event] = (*_ROWS.get((_row.state, _row.event), ()), _row)


@dataclass(frozen=True, slots=True)
class FailoverRules:
    """The options that decide about failover; durations in seconds."""

    failover_interval: float
    ping_interval: float
    recovery_pings: int = 1
    divert_during_interval: bool = False


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to an entity. `era` is the entity's era when the send or ping began."""

    kind: EventKind
    cause: str = ""
    era: int | None = None


@dataclass(frozen=True, slots=True)
class Transition:
    before: EntityState
    after: EntityState
    event: EventKind
    cause: str


@dataclass(frozen=True, slots=True)
class Decision:
    """The action that follows from one event, and its transitions: two if a deadline was due as well."""

    action: Action | None = None
    transitions: tuple[Transition, ...] = ()

    @property
    def divert(self) -> bool:
        return self.action is Action.DIVERT


_NOTHING = Decision()


@dataclass(slots=True)
class EntityMachine:
    """The state of one entity. Only `handle` changes it.

    `now` is seconds on any clock that never runs backwards; nothing here reads a clock. `route_to_primary` is a plain
    attribute, so that a healthy send pays for one read and nothing else.
    """

    rules: FailoverRules
    state: EntityState = EntityState.HEALTHY
    route_to_primary: bool = True
    era: int = 0
    pings_in_a_row: int = 0
    cause: str = ""
    _deadline: float | None = field(default=None)
    _ping_in_flight: bool = field(default=False)

    @property
    def next_deadline(self) -> float | None:
        """When the shell must call `handle` with DEADLINE; None while there is nothing to wait for."""
        return None if self._ping_in_flight else self._deadline

    def handle(self, event: Event, now: float) -> Decision:
        """Apply an event that happened at `now`."""
        if event.kind is EventKind.DEADLINE:
            return self._pass_deadline(now)
        due = self._pass_deadline(now) if self.state is EntityState.SUSPECT else _NOTHING
        if event.kind is EventKind.SEND_FAILED and event.era not in (None, self.era):
            event = Event(EventKind.SEND_FAILED_LATE, event.cause, event.era)
        decision = self._apply(event, now)
        # The deadline of a suspect entity has no action of its own.
        return decision if due is _NOTHING else Decision(decision.action, due.transitions + decision.transitions)

    def _pass_deadline(self, now: float) -> Decision:
        deadline = self.next_deadline
        if deadline is None or now < deadline:
            return _NOTHING
        return self._apply(Event(EventKind.DEADLINE, self.cause, self.era), now)

    def _apply(self, event: Event, now: float) -> Decision:
        if event.kind in (EventKind.PING_SUCCEEDED, EventKind.PING_FAILED):
            if self.state is not EntityState.FAILED_OVER or event.era != self.era or not self._ping_in_flight:
                return _NOTHING
            self._ping_in_flight = False
            self.pings_in_a_row = self.pings_in_a_row + 1 if event.kind is EventKind.PING_SUCCEEDED else 0
        row = next(row for row in _ROWS[self.state, event.kind] if self._holds(row.when))
        action = row.action
        if action is Action.RAISE and self.rules.divert_during_interval:
            action = Action.DIVERT
        if action is Action.SEND_PING:
            self._ping_in_flight = True
            self._deadline = now + self.rules.ping_interval
        before, self.state = self.state, row.to
        if before is row.to:
            return Decision(action)
        self._enter(row.to, event.cause, now)
        return Decision(action, (Transition(before, row.to, event.kind, event.cause),))

    def _holds(self, when: When) -> bool:
        match when:
            case When.AT_ONCE:
                return self.rules.failover_interval == 0
            case When.PATIENT:
                return self.rules.failover_interval > 0
            case When.ENOUGH:
                return self.pings_in_a_row >= self.rules.recovery_pings
            case When.NOT_ENOUGH:
                return self.pings_in_a_row < self.rules.recovery_pings
            case _:
                return True

    def _enter(self, state: EntityState, cause: str, now: float) -> None:
        self.cause = cause
        self.pings_in_a_row = 0
        self._ping_in_flight = False
        self.route_to_primary = state is not EntityState.FAILED_OVER
        if state is EntityState.HEALTHY:
            self.era += 1
            self._deadline = None
        elif state is EntityState.SUSPECT:
            self._deadline = now + self.rules.failover_interval
        else:
            self._deadline = now + self.rules.ping_interval
