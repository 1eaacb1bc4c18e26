"""A backlog and a primary in memory, with just enough of two namespaces for a pump.

Time is the event loop's, so it can be virtual. Locks expire, destinations fail on request, and receivers can be cut
off. Every call is counted.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from pairbus import envelope
from pairbus.syphon.deliveries import DeadLetter, Delivery, Peeked
from pairbus.syphon.transport import ReceiverLostError, SendError, SendFailure


@dataclass(slots=True)
class _Stored:
    number: int
    raw: bytes
    enqueued_ms: int
    owner: object | None = None
    locked_until: float = 0.0

    def inspected(self) -> envelope.BacklogMessage:
        message = envelope.inspect(self.raw)
        return replace(message, sequence_number=self.number, enqueued_ms=message.enqueued_ms or self.enqueued_ms)


@dataclass
class MemoryQueue:
    """A backlog queue: messages in order of their sequence numbers, locks, and a dead-letter queue."""

    lock_seconds: float = 60.0
    messages: dict[int, _Stored] = field(default_factory=dict)
    dead: list[tuple[int, str, str]] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    _last: int = 0
    _next_ms: int = 1

    def put(self, *raws: bytes) -> list[int]:
        numbers = []
        for raw in raws:
            self._last += 1
            self.messages[self._last] = _Stored(self._last, raw, self._next_ms)
            self._next_ms += 1
            numbers.append(self._last)
        self.changed.set()
        return numbers

    def make_again(self) -> None:
        """Delete and create the queue again: numbers start from 1."""
        self.messages.clear()
        self._last = 0

    def available(self, now: float) -> list[_Stored]:
        return [one for one in self.messages.values() if one.owner is None or one.locked_until <= now]


class MemoryTransport:
    """Both namespaces. `behave` decides about each send: None accepts it, an error fails it, seconds delay it."""

    def __init__(self, *, lock_seconds: float = 60.0, send_seconds: float = 0.01) -> None:
        self.queues: dict[str, MemoryQueue] = {}
        self.taken: dict[str, list[bytes]] = {}
        self.calls: Counter[str] = Counter()
        self.answers = True
        self.refusal: ReceiverLostError | None = None
        self.behave: Callable[[str, Sequence[bytes]], Exception | float | None] = lambda destination, raws: None
        self.send_seconds = send_seconds
        self._lock_seconds = lock_seconds

    def queue(self, name: str) -> MemoryQueue:
        if name not in self.queues:
            self.queues[name] = MemoryQueue(self._lock_seconds)
        return self.queues[name]

    async def open_receiver(self, queue: str) -> MemoryReceiver:
        self.calls["open"] += 1
        await asyncio.sleep(0)
        if self.refusal is not None:
            raise self.refusal
        return MemoryReceiver(self, self.queue(queue))

    async def send(self, destination: str, raws: Sequence[bytes]) -> None:
        self.calls["send"] += 1
        answer = self.behave(destination, raws)
        if isinstance(answer, float):
            await asyncio.sleep(answer)
            answer = None
        elif self.send_seconds:
            await asyncio.sleep(self.send_seconds)
        if not self.answers:
            raise SendError(SendFailure.UNREACHABLE, "amqp:connection:forced", "connection refused")
        if answer is not None:
            raise answer
        self.taken.setdefault(destination, []).extend(raws)

    async def reachable(self) -> bool:
        self.calls["probe"] += 1
        await asyncio.sleep(0)
        return self.answers

    async def close(self) -> None:
        return None


class MemoryReceiver:
    def __init__(self, transport: MemoryTransport, queue: MemoryQueue) -> None:
        self._transport = transport
        self._queue = queue
        self.cut = False

    async def receive(self, limit: int, wait: float) -> list[Delivery]:
        self._transport.calls["receive"] += 1
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait
        while True:
            self._check()
            now = loop.time()
            found = self._queue.available(now)[:limit]
            if found or now >= deadline:
                return [self._lock(one, now) for one in found]
            self._queue.changed.clear()
            ends = [one.locked_until for one in self._queue.messages.values()]
            seconds = min([deadline, *ends]) - now
            try:
                await asyncio.wait_for(self._queue.changed.wait(), max(seconds, 0.0))
            except TimeoutError:
                continue

    def _lock(self, stored: _Stored, now: float) -> Delivery:
        lock = object()
        stored.owner, stored.locked_until = lock, now + self._queue.lock_seconds
        return Delivery(stored.inspected(), lock, now + self._queue.lock_seconds / 2)

    async def quiet(self) -> list[Delivery]:
        return []

    async def complete(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        return self._settle("complete", deliveries, lambda number: self._queue.messages.pop(number))

    async def complete_together(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        if self._settle("complete together", deliveries, lambda number: None):
            return list(deliveries)
        return await self.complete(deliveries)

    async def release(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        def unlock(number: int) -> None:
            self._queue.messages[number].owner = None

        lost = self._settle("release", deliveries, unlock)
        self._queue.changed.set()
        return lost

    async def dead_letter(self, letters: Sequence[DeadLetter]) -> list[Delivery]:
        lost = []
        for letter in letters:

            def bury(number: int, letter: DeadLetter = letter) -> None:
                del self._queue.messages[number]
                self._queue.dead.append((number, letter.reason, letter.description))

            lost += self._settle("dead-letter", [letter.delivery], bury)
        return lost

    def _settle(self, what: str, deliveries: Sequence[Delivery], act: Callable[[int], object]) -> list[Delivery]:
        self._check()
        now = asyncio.get_running_loop().time()
        lost = []
        for delivery in deliveries:
            self._transport.calls[what] += 1
            stored = self._queue.messages.get(delivery.sequence_number)
            if stored is None or stored.owner is not delivery.handle or stored.locked_until <= now:
                lost.append(delivery)
            else:
                act(delivery.sequence_number)
        return lost

    async def renew(self, deliveries: Sequence[Delivery]) -> tuple[float, list[Delivery]]:
        now = asyncio.get_running_loop().time()

        def extend(number: int) -> None:
            self._queue.messages[number].locked_until = now + self._queue.lock_seconds

        lost = self._settle("renew", deliveries, extend)
        return now + self._queue.lock_seconds / 2, lost

    async def peek(self, from_number: int, count: int) -> list[Peeked]:
        self._transport.calls["peek"] += 1
        await asyncio.sleep(0)
        self._check()
        found = [one for number, one in self._queue.messages.items() if number >= from_number][:count]
        return [Peeked.of(one.inspected()) for one in found]

    async def close(self) -> None:
        return None

    def _check(self) -> None:
        if self.cut:
            raise ReceiverLostError("the receiver was cut")
