"""A message as the namespace keeps it: its place in a queue, its lock, its payload, and how it can be settled.

A message's bytes (its AMQP sections) are stored once, as a numbered payload. A `QueueEntry` is one message in one
queue; the subscriptions of a topic hold entries that share a payload, which is deleted with its last entry.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Protocol

from pairbus.amqp.message import Facts, SectionOrderError, in_standard_order, read_facts

PING_CONTENT_TYPE = "application/vnd.ms-servicebus-ping"
# An empty data section takes five bytes, a null value four.
EMPTY_BODY_BYTES = 5


class State(IntEnum):
    """The message states that clients see (as numbers, in `x-opt-message-state`)."""

    ACTIVE = 0
    DEFERRED = 1
    SCHEDULED = 2


@dataclass(slots=True, eq=False)
class QueueEntry:
    """One message in one queue. `lock_token` is set while a receiver holds its lock."""

    sequence_number: int
    payload_id: int
    size: int
    state: State
    enqueued_ms: int
    expires_ms: int
    delivery_count: int = 0
    session_id: str | None = None
    scheduled_ms: int | None = None
    origin: str | None = None
    """The entity a dead-lettered message came from, unless it owns the dead-letter queue."""
    lock_token: bytes | None = field(default=None, init=False)
    locked_until_ms: int = field(default=0, init=False)

    def __repr__(self) -> str:
        locked = f", locked until {self.locked_until_ms}" if self.lock_token else ""
        return f"<QueueEntry {self.sequence_number} {self.state.name.lower()}, {self.size} bytes{locked}>"


@dataclass(frozen=True, slots=True)
class IncomingMessage:
    """A message that is being sent: its bytes and the few facts that the namespace acts on."""

    raw: bytes
    facts: Facts

    @classmethod
    def from_raw(cls, raw: bytes) -> "IncomingMessage":
        """Raises AmqpDecodeError for a message that could not be delivered, filtered or dead-lettered later."""
        try:
            facts = read_facts(raw)
        except SectionOrderError:
            raw = in_standard_order(raw)
            facts = read_facts(raw)
        _ = facts.application_properties
        return cls(raw, facts)

    @property
    def size(self) -> int:
        return len(self.raw)

    @property
    def is_ping(self) -> bool:
        """A ping has an empty body. A real message that happens to have the content type must not get lost."""
        return self.facts.content_type == PING_CONTENT_TYPE and self.facts.body_size <= EMPTY_BODY_BYTES


@dataclass(frozen=True, slots=True)
class CompleteMessage:
    """The message was processed and is deleted."""


@dataclass(frozen=True, slots=True)
class ReleaseMessage:
    """The message returns to the queue and does not count as delivered: the client only had it in a buffer."""


@dataclass(frozen=True, slots=True)
class AbandonMessage:
    """The message returns to the queue, and the delivery counts."""

    properties: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeferMessage:
    """The message is set aside and can only be received by its sequence number."""

    properties: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeadLetterMessage:
    """The message moves to the dead-letter queue, with the client's reason."""

    reason: str | None = None
    description: str | None = None
    properties: Mapping[str, Any] = field(default_factory=dict)


Settlement = CompleteMessage | ReleaseMessage | AbandonMessage | DeferMessage | DeadLetterMessage


@dataclass(slots=True, eq=False)
class Changes:
    """The rows that the store must write or delete, by table.

    The order between tables is lost. That is safe because a payload or an entry is never written again after it was
    dropped.
    """

    entities: list[tuple[int, str, str, str, int, int, int] | int] = field(default_factory=list)
    """Rows, and ids of deleted entities, in order: a name may be deleted and created again."""
    payloads: list[tuple[int, bytes]] = field(default_factory=list)
    entries: list[tuple[int, int, int, int, int, int, int, int, str | None, int | None, str | None]] = field(
        default_factory=list
    )
    sequences: dict[int, int] = field(default_factory=dict)
    sessions: dict[tuple[int, str], tuple[bytes | None, int]] = field(default_factory=dict)
    seen: list[tuple[int, str, int]] = field(default_factory=list)
    settings: dict[str, str] = field(default_factory=dict)
    entry_drops: list[tuple[int, int]] = field(default_factory=list)
    payload_drops: list[int] = field(default_factory=list)
    seen_drops: list[tuple[int, int]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return any(bool(getattr(self, kind)) for kind in self.__slots__)

    def put_entry(self, queue_id: int, entry: QueueEntry) -> None:
        self.entries.append(
            (
                queue_id,
                entry.sequence_number,
                entry.payload_id,
                entry.size,
                entry.state.value,
                entry.enqueued_ms,
                entry.expires_ms,
                entry.delivery_count,
                entry.session_id,
                entry.scheduled_ms,
                entry.origin,
            )
        )


class PayloadStorage(Protocol):
    """Where payloads are read from."""

    def put(self, payload_id: int, raw: bytes) -> None: ...

    def get(self, payload_id: int) -> bytes: ...


class Payloads:
    def __init__(self, changes: Callable[[], Changes], cache: PayloadStorage) -> None:
        self._changes = changes
        self._cache = cache
        self._next_id = 1
        # Entries per payload, only for payloads with more than one.
        self._shares: dict[int, int] = {}

    def load_shares(self, shares: dict[int, int], next_id: int) -> None:
        self._shares = dict(shares)
        self._next_id = next_id

    def add(self, raw: bytes) -> int:
        payload_id = self._next_id
        self._next_id += 1
        self._changes().payloads.append((payload_id, raw))
        self._cache.put(payload_id, raw)
        return payload_id

    def read(self, payload_id: int) -> bytes:
        return self._cache.get(payload_id)

    def share(self, payload_id: int) -> None:
        self._shares[payload_id] = self._shares.get(payload_id, 1) + 1

    def drop(self, payload_id: int) -> bool:
        """Remove one entry's share. True if it was the last one and the payload is gone."""
        shares = self._shares.get(payload_id)
        if shares is None:
            self._changes().payload_drops.append(payload_id)
            return True
        if shares > 2:
            self._shares[payload_id] = shares - 1
        else:
            del self._shares[payload_id]
        return False
