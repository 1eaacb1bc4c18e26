"""What became of messages: counted, recorded in the ledger, published, and reported to a callback.

A record must be on disk before its message leaves the backlog (`DurableRecords`). Otherwise a crash right after the
completion leaves a message that is gone from the backlog without a record of where it went.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from pairbus.envelope import BacklogMessage
from pairbus.ledger import CompletedOperation, LedgerWriter, Operation, Outcome, Role, Route, error_name, outcome_of
from pairbus.pairing import observers
from pairbus.syphon.deliveries import DeadLetter, Delivery, Item, Peeked
from pairbus.syphon.transport import SendError

if TYPE_CHECKING:
    from pairbus.syphon.control import PublishedSyphon

FLUSH_SECONDS = 2.0
FLUSH_PAUSE_SECONDS = 30.0
_INCOMPLETE = ("PartMissing", "PartUnusable")
"""Reasons for parts of incomplete messages, which were never reported as accepted or were sent again as a whole."""

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
    """What one pump has done since it started."""

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


class DurableRecords:
    """Waits until the records of one ledger are on disk, for all pumps of one event loop.

    Flushes are shared: callers that arrive during a flush wait together for the next one. A failing disk does not
    block: a wait ends after `FLUSH_SECONDS`, and the next one comes `FLUSH_PAUSE_SECONDS` later. The
    ledger counts the records it lost.
    """

    def __init__(self, ledger: LedgerWriter) -> None:
        self._ledger = ledger
        self._running: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None
        self._resume_at = 0.0
        self.flushes = 0

    async def wait(self) -> None:
        """Return when everything recorded before this call is in the file."""
        if asyncio.get_running_loop().time() < self._resume_at:
            return
        if self._next is None:
            self._next = asyncio.ensure_future(self._flush(self._running))
        await asyncio.shield(self._next)

    async def _flush(self, previous: asyncio.Task[None] | None) -> None:
        if previous is not None:
            await asyncio.wait([previous])
        self._running, self._next = self._next, None  # records from here on may miss this flush
        self.flushes += 1
        if not await asyncio.to_thread(self._ledger.flush, FLUSH_SECONDS):
            self._resume_at = asyncio.get_running_loop().time() + FLUSH_PAUSE_SECONDS


@dataclass(slots=True)
class Logbook:
    """Records what one pump does."""

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
    def _records(self) -> bool:
        return self.ledger is not None or self.published is not None

    def received(self, deliveries: Sequence[Delivery], seconds: float) -> None:
        self.counts.receives += 1
        self.counts.received += len(deliveries)
        self.counts.empty_receives += not deliveries
        self._record_each(Operation.RECEIVE, [delivery.message for delivery in deliveries], seconds)

    def peeked(self, peeked: Sequence[Peeked], seconds: float) -> None:
        self.counts.peeks += 1
        self._record_each(Operation.PEEK, peeked, seconds)

    def sent(self, destination: str, items: Sequence[Item], error: SendError | None, seconds: float) -> None:
        sizes = [item.message.size for item in items]
        self.counts.sends += 1
        if error is not None:
            self.counts.failed_sends += 1
        else:
            self.counts.restored += len(items)
            self.counts.restored_bytes += sum(sizes)
        if observers.is_tracing():
            parents = [item.message.trace_parent for item in items]
            observers.restored_send(destination, len(items), parents, seconds, error_name(error))
        ids = [item.message.message_id for item in items]
        self.record(
            Operation.RESTORE,
            ids,
            sizes,
            namespace=self.primary,
            entity=destination,
            source=self.queue,
            error=error,
            seconds=seconds,
        )

    async def on_disk(self) -> None:
        """Return when all records are in the ledger's file."""
        if self.durable is not None:
            await self.durable.wait()

    def completed(self, deliveries: Sequence[Delivery], items: Sequence[Item], lost: Sequence[Delivery]) -> None:
        self.counts.completed += len(deliveries) - len(lost)
        self.counts.locks_lost += len(lost)
        if not items or not (self._records or self.on_carried is not None):
            return
        lost_numbers = {delivery.sequence_number for delivery in lost}
        settled = [all(delivery.sequence_number not in lost_numbers for delivery in item.deliveries) for item in items]
        if self._records:
            ids = [item.message.message_id for item, is_settled in zip(items, settled, strict=True) if is_settled]
            self.record(Operation.COMPLETE, ids, destination=items[0].destination)
        if self.on_carried is not None:
            self.on_carried(
                [
                    self._carried(item.message, item.sequence_number, item.destination, "restored", "", is_settled)
                    for item, is_settled in zip(items, settled, strict=True)
                ]
            )

    def buried(self, letters: Sequence[DeadLetter], lost: Sequence[Delivery]) -> None:
        lost_numbers = {delivery.sequence_number for delivery in lost}
        self.counts.locks_lost += len(lost)
        carried = []
        for letter in letters:
            message, number = letter.delivery.message, letter.delivery.sequence_number
            settled = number not in lost_numbers
            if settled:
                self.counts.dead_lettered += 1
                self.counts.expired += letter.expired
                operation = Operation.EXPIRE if letter.expired else Operation.DEAD_LETTER
                ids = [None if letter.reason in _INCOMPLETE else message.message_id]
                self.record(operation, ids, destination=message.destination or None, cause=letter.reason)
            fate: Fate = "expired" if letter.expired else "dead-lettered"
            carried.append(self._carried(message, number, message.destination, fate, letter.reason, settled))
        if self.on_carried is not None:
            self.on_carried(carried)

    def _carried(
        self, message: BacklogMessage, number: int, destination: str, fate: Fate, cause: str, settled: bool
    ) -> Carried:
        at_us = time.time_ns() // 1000
        return Carried(self.queue, number, message.message_id, destination, fate, cause, message.size, at_us, settled)

    def released(self, deliveries: Sequence[Delivery], lost: Sequence[Delivery]) -> None:
        lost_numbers = {delivery.sequence_number for delivery in lost}
        released = [delivery.message for delivery in deliveries if delivery.sequence_number not in lost_numbers]
        self.counts.released += len(released)
        if released:
            self._record_each(Operation.ABANDON, released)

    def _record_each(
        self, operation: Operation, messages: Sequence[BacklogMessage | Peeked], seconds: float = 0.0
    ) -> None:
        """One record per destination, which is part of a message's identity. No messages: that nothing was found."""
        if not self._records:
            return
        if not messages:
            self.record(operation, [None], outcome=Outcome.EMPTY, seconds=seconds)
        by_destination: dict[str, list[BacklogMessage | Peeked]] = {}
        for message in messages:
            by_destination.setdefault(message.destination or "", []).append(message)
        for destination, group in by_destination.items():
            ids, sizes = [message.message_id for message in group], [message.size for message in group]
            self.record(operation, ids, sizes, destination=destination or None, seconds=seconds)

    def record(
        self,
        operation: Operation,
        ids: Sequence[str | None],
        sizes: Sequence[int] | None = None,
        *,
        namespace: str | None = None,
        entity: str | None = None,
        outcome: Outcome | None = None,
        error: SendError | None = None,
        seconds: float = 0.0,
        **details: Any,
    ) -> None:
        """Record an operation, which is one on the backlog queue unless `namespace` and `entity` say otherwise."""
        if not self._records:
            return
        completed = CompletedOperation(
            operation,
            namespace or self.secondary,
            entity or self.queue,
            ids,
            sizes,
            outcome=outcome or outcome_of(error, in_doubt=error is not None and error.in_doubt),
            error=error_name(error),
            latency_us=round(seconds * 1e6),
            route=Route.SYPHON,
            role=Role.SYPHON,
            **details,
        )
        if self.published is not None:
            self.published.count(completed)
        if self.ledger is not None:
            self.ledger.record(completed)
