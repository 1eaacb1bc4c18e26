"""What rules see of a message, and what actions change of it.

- System properties go by their canonical names (`SYSTEM_PROPERTIES`); one that is not set reads as None.
- Application properties go by their names in lower case, because expressions name them in any case. When a message
  has two that differ only in case, the first one counts; removing takes both.
- An action works on a copy: its changes belong to one subscription's copy of the message. They are kept apart from
  what the sender wrote, so that the owner of the bytes can rewrite just that.
"""

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Protocol

from pairbus.amqp.sections import Facts
from pairbus.amqp.types import Timestamp


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
