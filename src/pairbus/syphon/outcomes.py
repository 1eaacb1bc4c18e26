"""What became of messages, counted and recorded."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from pairbus import envelope
from pairbus.amqp.message import Stamps, message_key
from pairbus.amqp.types import AmqpDecodeError
from pairbus.errors import EnvelopeError
from pairbus.ledger import CompletedOperation, LedgerWriter, Operation, Outcome, Role, Route, error_name, outcome_of
from pairbus.pairing import observers
from pairbus.syphon.deliveries import DeadLetter, Delivery, Item, Peeked
from pairbus.syphon.durable_records import DurableRecords
from pairbus.syphon.send_errors import SendError

if TYPE_CHECKING:
    from pairbus.syphon.publishing import PublishedSyphon

_PART = envelope.PART.encode()
_INCOMPLETE = ("PartMissing", "PartUnusable")
"""Reasons of parts that make up no message: nobody was told that it was accepted, or the sender sent it again."""

Fate = Literal["restored", "dead-lettered", "expired"]


@dataclass(frozen=True, slots=True)
class Carried:
    """What became of one message of a backlog queue. `settled`: the backlog queue confirmed it."""

    queue: str
    sequence_number: int
    message_id: str | None
    destination: str
    fate: Fate
    cause: str
    size: int
    at_us: int
    settled: bool


OnCarried = Callable[[Sequence[Carried]], None]


@dataclass(slots=True)
class Counts:
    """What one pump has done since it began."""

    receives: int = 0
    empty_receives: int = 0
    received: int = 0
    sends: int = 0
    failed_sends: int = 0
    restored: int = 0
    restored_bytes: int = 0
    completed: int = 0
    released: int = 0
    dead_lettered: int = 0
    expired: int = 0
    renewed: int = 0
    locks_lost: int = 0
    peeks: int = 0
    probes: int = 0
    failures: int = 0


@dataclass(slots=True)
class Logbook:
    """Notes what one pump does: counts, the ledger, and whoever wants to know what became of each message."""

    queue: str
    primary: str
    secondary: str
    ledger: LedgerWriter | None = None
    on_carried: OnCarried | None = None
    counts: Counts = field(default_factory=Counts)
    durable: DurableRecords | None = None
    """Shared by all pumps of a syphon that has a ledger."""
    published: PublishedSyphon | None = None

    @property
    def _wants_ids(self) -> bool:
        return self.ledger is not None or self.on_carried is not None or self.published is not None

    def look_at(self, deliveries: Sequence[Delivery]) -> None:
        """Before the planner may drop their contents: note what the records will need."""
        if self._wants_ids:
            for one in deliveries:
                one.message_id = _message_id(one.raw)
                one.size = len(one.raw)

    def received(self, deliveries: Sequence[Delivery], seconds: float) -> None:
        """To be called when the planner has read where they want to go."""
        self.counts.receives += 1
        self.counts.received += len(deliveries)
        if not deliveries:
            self.counts.empty_receives += 1
            self._record(Operation.RECEIVE, [None], outcome=Outcome.EMPTY, seconds=seconds)
        else:
            self._record_each(Operation.RECEIVE, deliveries, seconds)

    def peeked(self, found: Sequence[Peeked], seconds: float) -> None:
        """One look into the queue, whatever it showed."""
        self.counts.peeks += 1
        if found:
            self._record_each(Operation.PEEK, found, seconds)
        else:
            self._record(Operation.PEEK, [None], outcome=Outcome.EMPTY, seconds=seconds)

    def sent(self, destination: str, items: Sequence[Item], error: SendError | None, seconds: float) -> None:
        self.counts.sends += 1
        if error is not None:
            self.counts.failed_sends += 1
        else:
            self.counts.restored += len(items)
            self.counts.restored_bytes += sum(item.size for item in items)
        if observers.is_tracing():
            parents = [envelope.read(item.raw).trace_parent for item in items]
            failure = None if error is None else type(error).__name__
            observers.restored_send(destination, len(items), parents, seconds, failure)
        if self.ledger is None and self.published is None:
            return
        self._observe(
            CompletedOperation(
                Operation.RESTORE,
                self.primary,
                destination,
                [_id_of(item) for item in items],
                [item.size for item in items],
                outcome=outcome_of(error, in_doubt=error is not None and error.in_doubt),
                error=error_name(error),
                latency_us=round(seconds * 1e6),
                route=Route.SYPHON,
                source=self.queue,
                role=Role.SYPHON,
            )
        )

    async def on_disk(self) -> None:
        """Until what was recorded is in the ledger's file: to be waited for before a message is let go."""
        if self.durable is not None:
            await self.durable.wait()

    def completed(self, deliveries: Sequence[Delivery], items: Sequence[Item], lost: Sequence[Delivery]) -> None:
        self.counts.completed += len(deliveries) - len(lost)
        self.counts.locks_lost += len(lost)
        if not self._wants_ids:
            return
        gone = {one.sequence_number for one in lost}
        at_us = time.time_ns() // 1000
        carried = [
            Carried(
                self.queue,
                item.sequence_number,
                _id_of(item),
                item.destination,
                "restored",
                "",
                item.size,
                at_us,
                all(one.sequence_number not in gone for one in item.deliveries),
            )
            for item in items
        ]
        if carried:
            ids = [one.message_id for one in carried if one.settled]
            self._record(Operation.COMPLETE, ids, destination=carried[0].destination)
        if self.on_carried is not None and carried:
            self.on_carried(carried)

    def buried(self, letters: Sequence[DeadLetter], lost: Sequence[Delivery]) -> None:
        gone = {one.sequence_number for one in lost}
        self.counts.locks_lost += len(lost)
        carried = []
        for letter in letters:
            delivery = letter.delivery
            settled = delivery.sequence_number not in gone
            if settled:
                self.counts.dead_lettered += 1
                self.counts.expired += letter.expired
            operation = Operation.EXPIRE if letter.expired else Operation.DEAD_LETTER
            if settled:
                ids = [None if letter.reason in _INCOMPLETE else delivery.message_id]
                self._record(operation, ids, destination=delivery.destination, cause=letter.reason)
            carried.append(
                Carried(
                    self.queue,
                    delivery.sequence_number,
                    delivery.message_id,
                    delivery.destination,
                    "expired" if letter.expired else "dead-lettered",
                    letter.reason,
                    delivery.size,
                    time.time_ns() // 1000,
                    settled,
                )
            )
        if self.on_carried is not None:
            self.on_carried(carried)

    def released(self, deliveries: Sequence[Delivery], lost: Sequence[Delivery]) -> None:
        gone = {one.sequence_number for one in lost}
        released = [one for one in deliveries if one.sequence_number not in gone]
        self.counts.released += len(released)
        self._record_each(Operation.ABANDON, released)

    def _record_each(self, operation: Operation, messages: Sequence[Delivery | Peeked], seconds: float = 0.0) -> None:
        """For each destination by itself: that is a part of a message's name."""
        if self.ledger is None and self.published is None:
            return
        by_destination: dict[str, list[Delivery | Peeked]] = {}
        for one in messages:
            by_destination.setdefault(one.destination or "", []).append(one)
        for destination, those in by_destination.items():
            ids, sizes = [one.message_id for one in those], [one.size for one in those]
            self._record(operation, ids, sizes, destination=destination, seconds=seconds)

    def _record(
        self,
        operation: Operation,
        ids: Sequence[str | None],
        sizes: Sequence[int] | None = None,
        *,
        destination: str = "",
        outcome: Outcome = Outcome.OK,
        seconds: float = 0.0,
        cause: str | None = None,
    ) -> None:
        self._observe(
            CompletedOperation(
                operation,
                self.secondary,
                self.queue,
                ids,
                sizes,
                outcome=outcome,
                latency_us=round(seconds * 1e6),
                route=Route.SYPHON,
                destination=destination or None,
                cause=cause,
                role=Role.SYPHON,
            )
        )

    def _observe(self, completed: CompletedOperation) -> None:
        if self.published is not None:
            self.published.count(completed)
        if self.ledger is not None:
            self.ledger.record(completed)


def _message_id(raw: bytes) -> str | None:
    """The message's id as text. A message in parts is told by its first one: it has the id inside, the others none."""
    try:
        part = _part(raw)
        if part is None:
            return message_key(raw)
        return message_key(part.content) if part.number == 1 else None
    except (AmqpDecodeError, IndexError):
        return None


def _part(raw: bytes) -> envelope.Part | None:
    if _PART not in raw:  # it stands in every part, and in hardly any other message: only those are read for it
        return None
    try:
        return envelope.read(raw).part
    except EnvelopeError:
        return None


def _id_of(item: Item) -> str | None:
    """The id of the message that goes home: for a joined one it stands in what the parts carried."""
    return item.deliveries[0].message_id if item.part_of is None else _message_id(item.raw)


def peeked(stamps: Stamps, raw: bytes) -> Peeked:
    """What a peeked message says of itself, if it can be read."""
    try:
        message = envelope.read(raw)
    except (EnvelopeError, AmqpDecodeError):
        return Peeked(stamps.sequence_number, None, None, stamps.enqueued_ms, _message_id(raw), len(raw))
    part_of = message.part.of if message.part is not None else None
    return Peeked(stamps.sequence_number, message.destination, part_of, stamps.enqueued_ms, _message_id(raw), len(raw))
