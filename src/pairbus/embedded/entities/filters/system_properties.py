"""The properties of a message that the service owns, as expressions name them after `sys.`.

Names are case-insensitive; each is known under one canonical name, and the names of today's SDKs that differ from
it (`Subject` for `Label`) are aliases. What an action may write is what a sender may set.
"""

from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """What a system property holds when it is set."""

    TEXT = "text"
    INTEGER = "an integer"
    BOOLEAN = "a boolean"
    TIME = "a point in time"
    DURATION = "a duration of zero or more"


@dataclass(frozen=True, slots=True)
class SystemProperty:
    """`longest` bounds the text an action may write; None where the service names no bound."""

    name: str
    kind: Kind
    writable: bool
    longest: int | None = None


SYSTEM_PROPERTIES: dict[str, SystemProperty] = {
    known.name: known
    for known in (
        SystemProperty("ContentType", Kind.TEXT, True),
        SystemProperty("CorrelationId", Kind.TEXT, True),
        SystemProperty("DeadLetterSource", Kind.TEXT, False),
        SystemProperty("DeliveryCount", Kind.INTEGER, False),
        SystemProperty("EnqueuedSequenceNumber", Kind.INTEGER, False),
        SystemProperty("EnqueuedTimeUtc", Kind.TIME, False),
        SystemProperty("ExpiresAtUtc", Kind.TIME, False),
        SystemProperty("ForcePersistence", Kind.BOOLEAN, True),
        SystemProperty("Label", Kind.TEXT, True),
        SystemProperty("LockToken", Kind.TEXT, False),
        SystemProperty("LockedUntilUtc", Kind.TIME, False),
        SystemProperty("MessageId", Kind.TEXT, True, 128),
        SystemProperty("PartitionKey", Kind.TEXT, True, 128),
        SystemProperty("ReplyTo", Kind.TEXT, True),
        SystemProperty("ReplyToSessionId", Kind.TEXT, True, 128),
        SystemProperty("ScheduledEnqueueTimeUtc", Kind.TIME, True),
        SystemProperty("SequenceNumber", Kind.INTEGER, False),
        SystemProperty("SessionId", Kind.TEXT, True, 128),
        SystemProperty("Size", Kind.INTEGER, False),
        SystemProperty("TimeToLive", Kind.DURATION, True),
        SystemProperty("To", Kind.TEXT, True),
        SystemProperty("TransactionId", Kind.TEXT, False),
        SystemProperty("ViaPartitionKey", Kind.TEXT, True, 128),
    )
}

_ALIASES = {
    "subject": "Label",
    "scheduledenqueuetime": "ScheduledEnqueueTimeUtc",
    "transactionpartitionkey": "ViaPartitionKey",
}
_BY_FOLDED_NAME = {
    **{name.lower(): known for name, known in SYSTEM_PROPERTIES.items()},
    **{alias: SYSTEM_PROPERTIES[name] for alias, name in _ALIASES.items()},
}


def find_system_property(name: str) -> SystemProperty | None:
    """The property of this name or alias in any case; None when the service has none."""
    return _BY_FOLDED_NAME.get(name.lower())
