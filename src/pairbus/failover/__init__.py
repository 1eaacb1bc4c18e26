"""When an entity is failed over and when it is back: decisions only, no clock, no IO. Start with `table`."""

from pairbus.failover.classification import BUSY_PAUSE_SECONDS, ErrorDescription, Verdict, verdict
from pairbus.failover.machine import NO_ERA, Decision, Entity, Event, FailoverRules, Transition
from pairbus.failover.rotation import Rotation
from pairbus.failover.table import TRANSITIONS, Action, EntityState, EventKind

__all__ = [
    "BUSY_PAUSE_SECONDS",
    "NO_ERA",
    "TRANSITIONS",
    "Action",
    "Decision",
    "Entity",
    "EntityState",
    "ErrorDescription",
    "Event",
    "EventKind",
    "FailoverRules",
    "Rotation",
    "Transition",
    "Verdict",
    "verdict",
]
