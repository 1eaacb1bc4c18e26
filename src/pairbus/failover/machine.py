"""One entity's state, driven by events and the time they happened at.

Rules
- `handle(event, now)` is the only way a state changes; it returns what the shell has to do, in order.
- `now` is seconds on any clock that never runs backwards. Nothing here reads a clock.
- A deadline that has passed is applied before the event is looked at.
- `route_to_primary` is a plain attribute so that a healthy send pays one read and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pairbus.failover.table import TRANSITIONS, Action, EntityState, EventKind, Row, When

NO_ERA = -1
"""The era of a send that never reached the entity, because it waited for others of ours until its time was over."""


@dataclass(frozen=True, slots=True)
class FailoverRules:
    """The options that steer an entity, in seconds."""

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
    """A change of state: what was, what is, and why."""

    before: EntityState
    after: EntityState
    event: EventKind
    cause: str
    at: float


@dataclass(frozen=True, slots=True)
class Decision:
    """What follows from one event.

    The actions, and the transitions it brought about (two if a deadline was due).
    """

    actions: tuple[Action, ...] = ()
    transitions: tuple[Transition, ...] = ()

    @property
    def divert(self) -> bool:
        return Action.DIVERT in self.actions


_ROWS: dict[tuple[EntityState, EventKind], tuple[Row, ...]] = {}
for _row in TRANSITIONS:
    _ROWS[_row.state, _row.event] = (*_ROWS.get((_row.state, _row.event), ()), _row)

_NOTHING = Decision()


@dataclass(slots=True)
class Entity:
    """The state machine of one entity."""

    rules: FailoverRules
    state: EntityState = EntityState.HEALTHY
    route_to_primary: bool = True
    era: int = 0
    pings_in_a_row: int = 0
    since: float = 0.0
    cause: str = ""
    _deadline: float | None = field(default=None)
    _ping_in_flight: bool = field(default=False)

    @property
    def next_deadline(self) -> float | None:
        """When the shell must call `handle` with DEADLINE; None while there is nothing to wait for."""
        return None if self._ping_in_flight else self._deadline

    def handle(self, event: Event, now: float) -> Decision:
        """Apply what happened at `now`; the result says what to do and what changed."""
        if event.kind is EventKind.DEADLINE:
            return self._pass_deadline(now)
        due = _NOTHING
        if self.state is EntityState.SUSPECT:
            due = self._pass_deadline(now)
        return _join(due, self._apply(self._timely(event), now))

    def _pass_deadline(self, now: float) -> Decision:
        deadline = self.next_deadline
        if deadline is None or now < deadline:
            return _NOTHING
        cause = self.cause
        return self._apply(Event(EventKind.DEADLINE, cause, self.era), now)

    def _timely(self, event: Event) -> Event:
        """Mark what began in an earlier era as late."""
        if event.era is None or event.era == self.era:
            return event
        if event.kind is EventKind.SEND_FAILED:
            return Event(EventKind.SEND_FAILED_LATE, event.cause, event.era)
        return event

    def _apply(self, event: Event, now: float) -> Decision:
        if event.kind in (EventKind.PING_SUCCEEDED, EventKind.PING_FAILED):
            if self.state is not EntityState.FAILED_OVER or event.era != self.era or not self._ping_in_flight:
                return _NOTHING
            self._ping_in_flight = False
            self.pings_in_a_row = self.pings_in_a_row + 1 if event.kind is EventKind.PING_SUCCEEDED else 0
        row = self._row(event.kind)
        actions = row.actions
        if self.rules.divert_during_interval and Action.RAISE in actions:
            actions = tuple(Action.DIVERT if action is Action.RAISE else action for action in actions)
        before, self.state = self.state, row.to
        if Action.SEND_PING in actions:
            self._ping_in_flight = True
            self._deadline = now + self.rules.ping_interval
        if before is row.to:
            return Decision(actions)
        self._enter(row.to, event, now)
        return Decision(actions, (Transition(before, row.to, event.kind, event.cause, now),))

    def _row(self, kind: EventKind) -> Row:
        rows = _ROWS[self.state, kind]
        return next(row for row in rows if self._holds(row.when))

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

    def _enter(self, state: EntityState, event: Event, now: float) -> None:
        self.since = now
        self.cause = event.cause
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


def _join(first: Decision, second: Decision) -> Decision:
    if first is _NOTHING:
        return second
    return Decision(first.actions + second.actions, first.transitions + second.transitions)
