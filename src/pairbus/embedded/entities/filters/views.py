"""What rules see of a message, and what actions change of it.

- System properties go by their canonical names (`SYSTEM_PROPERTIES`); one that is not set reads as None.
- Application properties go by their names in lower case, because expressions name them in any case. When a message
  has two that differ only in case, the first one counts; removing takes both.
- An action works on a copy: its changes belong to one subscription's copy of the message. They are kept apart from
  what the sender wrote, so that the owner of the bytes can rewrite just that.

The properties of a message that the service owns, as expressions name them after `sys.`.

Names are case-insensitive; each is known under one canonical name, and the names of today's SDKs that differ from
it (`Subject` for `Label`) are aliases. What an action may write is what a sender may set.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Any, Protocol

from pairbus.amqp.codec import decode, encode
from pairbus.amqp.message import Facts, Sections, with_application_properties
from pairbus.amqp.types import Symbol, Timestamp, UInt


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


class MessageView(Protocol):
    """What a filter reads. `folded` is an application property's name in lower case."""

    def system_property(self, name: str, /) -> object: ...

    def application_property(self, folded: str, /) -> object: ...

    def has_application_property(self, folded: str, /) -> bool: ...


class MutableMessageView(MessageView, Protocol):
    """What an action reads and writes. Names of application properties come in the case the action wrote."""

    def set_system_property(self, name: str, value: object, /) -> None: ...

    def set_application_property(self, name: str, value: object, /) -> None: ...

    def remove_application_property(self, name: str, /) -> None: ...


class MessageProperties:
    """The properties of one message: the view of the filters, and of one action's copy (`copy`).

    `application` is called at the first look at an application property and never before: a filter on system
    properties must not pay for decoding the others.
    """

    __slots__ = ("_application", "_folded", "_system", "removed", "system_updates", "updates")

    def __init__(self, system: Mapping[str, object], application: Callable[[], Mapping[Any, object]] = dict) -> None:
        self._system = system
        self._application = application
        self._folded: dict[str, tuple[str, object]] | None = None
        self.system_updates: dict[str, object] = {}
        """System properties an action set, by canonical name; None for one it removed."""
        self.updates: dict[str, object] = {}
        """Application properties an action set, under the names they have in the message."""
        self.removed: set[str] = set()
        """Application properties an action removed, under the names they had in the message."""

    @classmethod
    def of_facts(
        cls, facts: Facts, *, size: int, enqueued_ms: int, sequence_number: int | None = None
    ) -> "MessageProperties":
        """The view of a message that has just come in: not delivered, not locked."""
        system: dict[str, object] = {
            "ContentType": facts.content_type,
            "CorrelationId": facts.correlation_key,
            "DeliveryCount": 0,
            "EnqueuedTimeUtc": Timestamp(enqueued_ms),
            "ExpiresAtUtc": None if facts.ttl_ms is None else Timestamp(enqueued_ms + facts.ttl_ms),
            "ForcePersistence": False,
            "Label": facts.subject,
            "MessageId": facts.message_key,
            "PartitionKey": facts.partition_key,
            "ReplyTo": facts.reply_to,
            "ReplyToSessionId": facts.reply_to_session_id,
            "ScheduledEnqueueTimeUtc": None if facts.scheduled_ms is None else Timestamp(facts.scheduled_ms),
            "SequenceNumber": sequence_number,
            "SessionId": facts.session_id,
            "Size": size,
            "TimeToLive": None if facts.ttl_ms is None else timedelta(milliseconds=facts.ttl_ms),
            "To": facts.to,
        }
        return cls(system, lambda: facts.application_properties)

    def copy(self) -> "MessageProperties":
        """An equal view whose changes leave this one alone."""
        twin = MessageProperties(self._system, self._application)
        twin._folded = None if self._folded is None else self._folded.copy()
        twin.system_updates = self.system_updates.copy()
        twin.updates = self.updates.copy()
        twin.removed = self.removed.copy()
        return twin

    def system_property(self, name: str, /) -> object:
        if self.system_updates and name in self.system_updates:
            return self.system_updates[name]
        return self._system.get(name)

    def application_property(self, folded: str, /) -> object:
        held = (self._folded if self._folded is not None else self._fold()).get(folded)
        return None if held is None else held[1]

    def has_application_property(self, folded: str, /) -> bool:
        return folded in (self._folded if self._folded is not None else self._fold())

    def set_system_property(self, name: str, value: object, /) -> None:
        self.system_updates[name] = value

    def set_application_property(self, name: str, value: object, /) -> None:
        folded = self._folded if self._folded is not None else self._fold()
        held = folded.get(name.lower())
        written = name if held is None else held[0]
        folded[name.lower()] = (written, value)
        self.updates[written] = value
        self.removed.discard(written)

    def remove_application_property(self, name: str, /) -> None:
        folded = name.lower()
        held = (self._folded if self._folded is not None else self._fold()).pop(folded, None)
        if held is not None:
            self.updates.pop(held[0], None)
            self.removed.add(held[0])
            self.removed.update(
                twin for twin in self._application() if isinstance(twin, str) and twin.lower() == folded
            )

    def _fold(self) -> dict[str, tuple[str, object]]:
        folded: dict[str, tuple[str, object]] = {}
        for name, value in self._application().items():
            if isinstance(name, str):  # the wire can carry other keys, but nobody can ask for them
                folded.setdefault(name.lower(), (name, value))
        self._folded = folded
        return folded


# Positions in the properties section (AMQP 1.0, 3.2.4) by the names that rules use.
_PROPERTY_FIELDS = {
    "MessageId": 0,
    "To": 2,
    "Label": 3,
    "ReplyTo": 4,
    "CorrelationId": 5,
    "ContentType": 6,
    "SessionId": 10,
    "ReplyToSessionId": 12,
}
_ANNOTATIONS = {
    "PartitionKey": "x-opt-partition-key",
    "ViaPartitionKey": "x-opt-via-partition-key",
    "ScheduledEnqueueTimeUtc": "x-opt-scheduled-enqueue-time",
}
_TIME_TO_LIVE_FIELD = 2


def with_action_applied(raw: bytes, changed: MessageProperties) -> bytes:
    """The copy of a message that a rule's action asked for."""
    if changed.updates or changed.removed:
        raw = with_application_properties(raw, changed.updates, changed.removed)
    fields: dict[int, Any] = {}
    annotations: dict[str, Any] = {}
    for name, value in changed.system_updates.items():
        if name in _PROPERTY_FIELDS:
            fields[_PROPERTY_FIELDS[name]] = value
        elif name in _ANNOTATIONS:
            annotations[_ANNOTATIONS[name]] = value
        elif name == "TimeToLive":
            raw = _with_time_to_live(raw, value)
    if fields:
        raw = _with_property_fields(raw, fields)
    if annotations:
        raw = _with_annotations(raw, annotations)
    return raw


def _with_property_fields(raw: bytes, fields: Mapping[int, Any]) -> bytes:
    parts = Sections.split(raw)
    values = _list_of(parts.properties)
    values += [None] * (max(fields) + 1 - len(values))
    for position, value in fields.items():
        values[position] = value
    return parts._replace(properties=b"\x00\x53\x73" + encode(values)).join()


def _with_time_to_live(raw: bytes, value: object) -> bytes:
    parts = Sections.split(raw)
    values = _list_of(parts.header)
    values += [None] * (_TIME_TO_LIVE_FIELD + 1 - len(values))
    milliseconds = int(value / timedelta(milliseconds=1)) if isinstance(value, timedelta) else None
    values[_TIME_TO_LIVE_FIELD] = None if milliseconds is None else UInt(min(milliseconds, 0xFFFFFFFF))
    return parts._replace(header=b"\x00\x53\x70" + encode(values)).join()


def _with_annotations(raw: bytes, updates: Mapping[str, Any]) -> bytes:
    parts = Sections.split(raw)
    annotations: dict[Any, Any] = {}
    if parts.message_annotations:
        annotations = decode(parts.message_annotations, 0)[0].value or {}
    for name, value in updates.items():
        if value is None:
            annotations.pop(Symbol(name), None)
        else:
            annotations[Symbol(name)] = Timestamp(int(value)) if name.endswith("time") else value
    return parts._replace(message_annotations=b"\x00\x53\x72" + encode(annotations)).join()


def _list_of(section: bytes) -> list[Any]:
    return list(decode(section, 0)[0].value) if section else []
