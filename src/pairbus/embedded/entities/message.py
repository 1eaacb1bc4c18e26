"""A message as the namespace keeps it: where it stands, who holds it, and what may become of it.

The bytes of a message (its AMQP sections) are kept once, as a payload with a number; an `Entry` is one message's place
in one queue. A topic's subscriptions hold entries that point to the same payload.

The bytes of messages, each kept once. Subscriptions of a topic share a payload; it goes with its last entry.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Protocol

from pairbus.amqp.message import Facts, SectionOrderError, in_standard_order, read_facts

PING_CONTENT_TYPE = "application/vnd.ms-servicebus-ping"
# An empty data section is five bytes long, a null value four.
EMPTY_BODY_BYTES = 5


class State(IntEnum):
    """The states a client can see (`x-opt-message-state` carries the number)."""

    ACTIVE = 0
    DEFERRED = 1
    SCHEDULED = 2


class Entry:
    """One message in one queue. `lock_token` is set while a receiver holds it."""

    __slots__ = (
        "delivery_count",
        "enqueued_ms",
        "expires_ms",
        "lock_token",
        "locked_until_ms",
        "origin",
        "payload_id",
        "scheduled_ms",
        "sequence_number",
        "session_id",
        "size",
        "state",
    )

    def __init__(
        self,
        sequence_number: int,
        payload_id: int,
        size: int,
        state: State,
        enqueued_ms: int,
        expires_ms: int,
        *,
        delivery_count: int = 0,
        session_id: str | None = None,
        scheduled_ms: int | None = None,
        origin: str | None = None,
    ) -> None:
        self.sequence_number = sequence_number
        self.payload_id = payload_id
        self.size = size
        self.state = state
        self.enqueued_ms = enqueued_ms
        self.expires_ms = expires_ms
        self.delivery_count = delivery_count
        self.session_id = session_id
        self.scheduled_ms = scheduled_ms
        # The entity a dead-lettered message came from, when that is not the owner of the dead-letter queue.
        self.origin = origin
        self.lock_token: bytes | None = None
        self.locked_until_ms = 0

    def __repr__(self) -> str:
        locked = f", locked until {self.locked_until_ms}" if self.lock_token else ""
        return f"<Entry {self.sequence_number} {self.state.name.lower()}, {self.size} bytes{locked}>"


@dataclass(frozen=True, slots=True)
class Incoming:
    """A message on its way in: its bytes and the few facts the namespace acts on."""

    raw: bytes
    facts: Facts
    message_id: str | None
    session_id: str | None
    ttl_ms: int | None
    scheduled_ms: int | None

    @classmethod
    def from_raw(cls, raw: bytes) -> "Incoming":
        """AmqpDecodeError for a message that could not be delivered, filtered or dead-lettered later on."""
        try:
            facts = read_facts(raw)
        except SectionOrderError:
            raw = in_standard_order(raw)
            facts = read_facts(raw)
        _ = facts.application_properties
        return cls(raw, facts, facts.message_key, facts.session_id, facts.ttl_ms, facts.scheduled_ms)

    @property
    def size(self) -> int:
        return len(self.raw)

    @property
    def is_ping(self) -> bool:
        """Only an empty body makes a ping: a real message that happens to carry the content type is not swallowed."""
        return self.facts.content_type == PING_CONTENT_TYPE and self.facts.body_size <= EMPTY_BODY_BYTES


@dataclass(frozen=True, slots=True)
class Complete:
    """Done with: the message goes away."""


@dataclass(frozen=True, slots=True)
class Release:
    """Back to the queue as if it had never been delivered: the client had it in a buffer and nobody saw it."""


@dataclass(frozen=True, slots=True)
class Abandon:
    """Back to the queue, one delivery older."""

    properties: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Defer:
    """Set aside: from now on only its sequence number reaches it."""

    properties: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """To the dead-letter sub-queue, with what the client says about it."""

    reason: str | None = None
    description: str | None = None
    properties: Mapping[str, Any] = field(default_factory=dict)


Outcome = Complete | Release | Abandon | Defer | DeadLetter


class Changes:
    """What a decision changed and the store must write: rows by kind, in the order they came.

    Within one transaction rows are written in the order of the fields below. That is safe because a payload or an
    entry is never written again after it was dropped.
    """

    __slots__ = (
        "entities",
        "entries",
        "entry_drops",
        "payload_drops",
        "payloads",
        "seen",
        "seen_drops",
        "sequences",
        "sessions",
        "settings",
    )

    def __init__(self) -> None:
        # A row, or the id of an entity that is gone: in order, because a name may be dropped and taken again.
        self.entities: list[tuple[int, str, str, str, int, int, int] | int] = []
        self.payloads: list[tuple[int, bytes]] = []
        self.entries: list[tuple[int, int, int, int, int, int, int, int, str | None, int | None, str | None]] = []
        self.sequences: dict[int, int] = {}
        self.sessions: dict[tuple[int, str], tuple[bytes | None, int]] = {}
        self.seen: list[tuple[int, str, int]] = []
        self.settings: dict[str, str] = {}
        self.entry_drops: list[tuple[int, int]] = []
        self.payload_drops: list[int] = []
        self.seen_drops: list[tuple[int, int]] = []

    def __bool__(self) -> bool:
        return any(bool(getattr(self, kind)) for kind in self.__slots__)

    def put_entry(self, queue_id: int, entry: Entry) -> None:
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


def parse_all(raws: Sequence[bytes]) -> list[Incoming]:
    return [Incoming.from_raw(raw) for raw in raws]


class Shelf(Protocol):
    """Where payloads lie at hand."""

    def put(self, payload_id: int, raw: bytes) -> None: ...

    def get(self, payload_id: int) -> bytes: ...


class Payloads:
    def __init__(self, changes: Callable[[], Changes], shelf: Shelf) -> None:
        self._changes = changes
        self._shelf = shelf
        self._next_id = 1
        # Only payloads with more than one entry stand here.
        self._shares: dict[int, int] = {}

    def load_shares(self, shares: dict[int, int], next_id: int) -> None:
        self._shares = dict(shares)
        self._next_id = next_id

    def add(self, raw: bytes) -> int:
        payload_id = self._next_id
        self._next_id += 1
        self._changes().payloads.append((payload_id, raw))
        self._shelf.put(payload_id, raw)
        return payload_id

    def read(self, payload_id: int) -> bytes:
        return self._shelf.get(payload_id)

    def share(self, payload_id: int) -> None:
        self._shares[payload_id] = self._shares.get(payload_id, 1) + 1

    def drop(self, payload_id: int) -> bool:
        """One entry less points here; True when it was the last."""
        shares = self._shares.get(payload_id)
        if shares is None:
            self._changes().payload_drops.append(payload_id)
            return True
        if shares > 2:
            self._shares[payload_id] = shares - 1
        else:
            del self._shares[payload_id]
        return False
