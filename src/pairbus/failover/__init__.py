"""PURE. Decides when an entity is failed over and when it is back. Start with `states`."""

from pairbus.failover.classification import BUSY_PAUSE_SECONDS, ErrorDescription, Verdict, verdict
from pairbus.failover.rotation import Rotation
from pairbus.failover.states import (
    NO_ERA,
    TRANSITIONS,
    Action,
    Decision,
    EntityMachine,
    EntityState,
    Event,
    EventKind,
    FailoverRules,
    Transition,
)

__all__ = [
    "BUSY_PAUSE_SECONDS",
    "NO_ERA",
    "TRANSITIONS",
    "Action",
    "Decision",
    "EntityMachine",
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
