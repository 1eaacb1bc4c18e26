"""Entity states and their transitions, as data.

Theory of operation
===================
An entity (a queue or topic of the primary, as one paired client sees it) is HEALTHY, SUSPECT or
FAILED_OVER. Nothing but an `Event` changes that, and each event is looked up in `TRANSITIONS`: the row
whose state and event match and whose condition holds says the next state and what there is to do. There is
exactly one such row for every state, event and condition; the tests hold this.

Time is an event too. `machine.Entity.next_deadline` says when the shell must come back with `DEADLINE`: at
the end of the failover interval of a suspect entity, and at each ping of one that is failed over. An event
that arrives after a deadline finds the deadline already applied: whether a timer or a send wakes up first
makes no difference.

Sends belong to an *era*, which begins with each recovery. A failure from an earlier era (a send that hung
while the entity failed over and recovered) tells nothing about the entity now: it is `SEND_FAILED_LATE`. So
is a ping's result that arrives when its era is over: `machine.Entity` drops it.

Conditions (`When`) are about the options and the number of pings delivered in a row, nothing else:

- AT_ONCE: `failover_interval` is 0. PATIENT: it is not.
- ENOUGH: with this ping `recovery_pings` pings in a row were delivered. NOT_ENOUGH: they were not.

What happens to the message whose send failed is an `Action` like any other: DIVERT it to the backlog, or
RAISE its error. RAISE becomes DIVERT when `divert_during_interval` is set.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class EntityState(Enum):
    """Where an entity's sends go.

    To the primary while HEALTHY or SUSPECT, to the backlog while FAILED_OVER.
    """

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
    START_TIMER = "start the failover timer"
    STOP_TIMER = "stop the failover timer"
    START_PINGS = "start the ping task"
    STOP_PINGS = "stop the ping task"
    SEND_PING = "send a ping"
    DIVERT = "send this message to the backlog"
    RAISE = "raise the error to the caller"


@dataclass(frozen=True, slots=True)
class Row:
    state: EntityState
    event: EventKind
    when: When
    to: EntityState
    actions: tuple[Action, ...] = ()


_H, _S, _F = EntityState.HEALTHY, EntityState.SUSPECT, EntityState.FAILED_OVER
_E, _W, _A = EventKind, When, Action

TRANSITIONS: tuple[Row, ...] = (
    # A healthy entity.
    Row(_H, _E.SEND_SUCCEEDED, _W.ALWAYS, _H),
    Row(_H, _E.SEND_FAILED, _W.PATIENT, _S, (_A.START_TIMER, _A.RAISE)),
    Row(_H, _E.SEND_FAILED, _W.AT_ONCE, _F, (_A.START_PINGS, _A.DIVERT)),
    Row(_H, _E.SEND_FAILED_LATE, _W.PATIENT, _H, (_A.RAISE,)),
    Row(_H, _E.SEND_FAILED_LATE, _W.AT_ONCE, _H, (_A.DIVERT,)),
    Row(_H, _E.MARK_HEALTHY, _W.ALWAYS, _H),
    Row(_H, _E.FAIL_OVER, _W.ALWAYS, _F, (_A.START_PINGS,)),
    # A suspect entity: one success clears it, the timer condemns it.
    Row(_S, _E.SEND_SUCCEEDED, _W.ALWAYS, _H, (_A.STOP_TIMER,)),
    Row(_S, _E.SEND_FAILED, _W.ALWAYS, _S, (_A.RAISE,)),
    Row(_S, _E.SEND_FAILED_LATE, _W.ALWAYS, _S, (_A.RAISE,)),
    Row(_S, _E.DEADLINE, _W.ALWAYS, _F, (_A.STOP_TIMER, _A.START_PINGS)),
    Row(_S, _E.MARK_HEALTHY, _W.ALWAYS, _H, (_A.STOP_TIMER,)),
    Row(_S, _E.FAIL_OVER, _W.ALWAYS, _F, (_A.STOP_TIMER, _A.START_PINGS)),
    # A failed-over entity. Sends that were under way when it failed over still end here: a failed one is
    # diverted, a late success proves nothing, because only pings bring an entity back.
    Row(_F, _E.SEND_SUCCEEDED, _W.ALWAYS, _F),
    Row(_F, _E.SEND_FAILED, _W.ALWAYS, _F, (_A.DIVERT,)),
    Row(_F, _E.SEND_FAILED_LATE, _W.ALWAYS, _F, (_A.DIVERT,)),
    Row(_F, _E.DEADLINE, _W.ALWAYS, _F, (_A.SEND_PING,)),
    Row(_F, _E.PING_SUCCEEDED, _W.ENOUGH, _H, (_A.STOP_PINGS,)),
    Row(_F, _E.PING_SUCCEEDED, _W.NOT_ENOUGH, _F),
    Row(_F, _E.PING_FAILED, _W.ALWAYS, _F),
    Row(_F, _E.MARK_HEALTHY, _W.ALWAYS, _H, (_A.STOP_PINGS,)),
    Row(_F, _E.FAIL_OVER, _W.ALWAYS, _F),
)
