"""The view that rules have of a message, and the changes that actions make to it.

- System properties are those that expressions name after `sys.`. Names are case-insensitive. Each has one canonical
  name; names of current SDKs that differ from it (`Subject` for `Label`) are aliases. Actions may write what senders
  may set. A property that is not set reads as None.
- Application properties are looked up by their names in lower case, because expressions may use any case. If two names
  of a message differ only in case, the first one counts; removing removes both.
- An action changes one subscription's copy of a message. Its changes are kept apart from the sender's values, so that
  `with_action_applied` rewrites only the sections that changed.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Any

from pairbus.amqp.message import (
    HEADER,
    HEADER_FIELDS,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    PROPERTY_FIELDS,
    TTL,
    Facts,
    Sections,
    edited_map,
    list_fields,
    list_section,
    with_application_properties,
)
from pairbus.amqp.types import Symbol, Timestamp, UInt


class PropertyKind(Enum):
    """The type of a system property, in the words of an error message."""

    TEXT = "text"
    INTEGER = "an integer"
    BOOLEAN = "a boolean"
    TIME = "a point in time"
    DURATION = "a duration of zero or more"


@dataclass(frozen=True, slots=True)
class SystemProperty:
    """`max_length` limits the text that an action may write; None if the service states no limit."""

    name: str
    kind: PropertyKind
    writable: bool
    max_length: int | None = None


SYSTEM_PROPERTIES: dict[str, SystemProperty] = {
    known.name: known
    for known in (
        SystemProperty("ContentType", PropertyKind.TEXT, True),
        SystemProperty("CorrelationId", PropertyKind.TEXT, True),
        SystemProperty("DeadLetterSource", PropertyKind.TEXT, False),
        SystemProperty("DeliveryCount", PropertyKind.INTEGER, False),
        SystemProperty("EnqueuedSequenceNumber", PropertyKind.INTEGER, False),
        SystemProperty("EnqueuedTimeUtc", PropertyKind.TIME, False),
        SystemProperty("ExpiresAtUtc", PropertyKind.TIME, False),
        SystemProperty("ForcePersistence", PropertyKind.BOOLEAN, True),
        SystemProperty("Label", PropertyKind.TEXT, True),
        SystemProperty("LockToken", PropertyKind.TEXT, False),
        SystemProperty("LockedUntilUtc", PropertyKind.TIME, False),
        SystemProperty("MessageId", PropertyKind.TEXT, True, 128),
        SystemProperty("PartitionKey", PropertyKind.TEXT, True, 128),
        SystemProperty("ReplyTo", PropertyKind.TEXT, True),
        SystemProperty("ReplyToSessionId", PropertyKind.TEXT, True, 128),
        SystemProperty("ScheduledEnqueueTimeUtc", PropertyKind.TIME, True),
        SystemProperty("SequenceNumber", PropertyKind.INTEGER, False),
        SystemProperty("SessionId", PropertyKind.TEXT, True, 128),
        SystemProperty("Size", PropertyKind.INTEGER, False),
        SystemProperty("TimeToLive", PropertyKind.DURATION, True),
        SystemProperty("To", PropertyKind.TEXT, True),
        SystemProperty("TransactionId", PropertyKind.TEXT, False),
        SystemProperty("ViaPartitionKey", PropertyKind.TEXT, True, 128),
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
    """The system property with this name or alias, or None."""
    return _BY_FOLDED_NAME.get(name.lower())


class MessageProperties:
    """The properties of one message as rules read them, or one action's copy of them (`copy`), which it changes.

    `folded` is the name of an application property in lower case, `name` the name as an action writes it.
    `application` is called when an application property is first needed: a filter on system properties should not pay
    for decoding the others.
    """

    __slots__ = ("_application", "_folded", "_system", "removed", "system_updates", "updates")

    def __init__(self, system: Mapping[str, object], application: Callable[[], Mapping[Any, object]] = dict) -> None:
        self._system = system
        self._application = application
        self._folded: dict[str, tuple[str, object]] | None = None
        self.system_updates: dict[str, object] = {}
        """System properties that an action set, by canonical name; None for those it removed."""
        self.updates: dict[str, object] = {}
        """Application properties that an action set, by their names in the message."""
        self.removed: set[str] = set()
        """Application properties that an action removed, by their names in the message."""

    @classmethod
    def of_facts(
        cls, facts: Facts, *, size: int, enqueued_ms: int, sequence_number: int | None = None
    ) -> "MessageProperties":
        """The view of a message that was just sent: not delivered, not locked."""
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
        """An equal view with changes of its own."""
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
            if isinstance(name, str):  # AMQP allows other keys, but expressions cannot name them
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


def with_action_applied(raw: bytes, changed: MessageProperties) -> bytes:
    """The bytes of a message after a rule's action."""
    if changed.updates or changed.removed:
        raw = with_application_properties(raw, changed.updates, changed.removed)
    header: dict[int, Any] = {}
    properties: dict[int, Any] = {}
    annotations: dict[str, Any] = {}
    for name, value in changed.system_updates.items():
        if name in _PROPERTY_FIELDS:
            properties[_PROPERTY_FIELDS[name]] = value
        elif name in _ANNOTATIONS:
            annotations[_ANNOTATIONS[name]] = value
        elif name == "TimeToLive":
            milliseconds = int(value / timedelta(milliseconds=1)) if isinstance(value, timedelta) else None
            header[TTL] = None if milliseconds is None else UInt(min(milliseconds, 0xFFFFFFFF))
    if not (header or properties or annotations):
        return raw
    sections = Sections.split(raw)
    return sections._replace(
        header=_with_fields(HEADER, sections.header, header),
        properties=_with_fields(PROPERTIES, sections.properties, properties),
        message_annotations=_with_annotations(sections.message_annotations, annotations),
    ).join()


def _with_fields(code: int, section: bytes, updates: Mapping[int, Any]) -> bytes:
    if not updates:
        return section
    values = list_fields(section, HEADER_FIELDS if code == HEADER else PROPERTY_FIELDS)
    for position, value in updates.items():
        values[position] = value
    return list_section(code, values)


def _with_annotations(section: bytes, updates: Mapping[str, Any]) -> bytes:
    if not updates:
        return section
    added = [
        (Symbol(name), Timestamp(int(value)) if name.endswith("time") else value)
        for name, value in updates.items()
        if value is not None
    ]
    return edited_map(MESSAGE_ANNOTATIONS, section, remove=updates.keys(), add=added)
