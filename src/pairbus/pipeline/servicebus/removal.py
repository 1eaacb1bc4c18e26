"""Removing the messages that a stream has read and committed.

Rules:
- Only these messages are completed: they have the right number, and are not younger than the stream's last look. Any
  other message that the namespace delivers is released, without counting a delivery.
- The credit never exceeds the number of messages to remove.
- Messages that are gone were taken by another consumer: they are counted, and the stream goes on, because it has read
  them. Messages that another receiver holds are left for the next removal.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass

from pairbus.amqp.client import Received, ReceiverLink
from pairbus.amqp.conditions import CONNECTION_FORCED, NOT_ALLOWED, NOT_FOUND, SESSION_LOCKED
from pairbus.amqp.message import read_stamps
from pairbus.amqp.outcomes import AmqpClientError, AmqpError, LinkLostError, Released
from pairbus.pipeline.servicebus.messages import ACTIVE, read
from pairbus.pipeline.servicebus.offsets import Runs
from pairbus.pipeline.servicebus.wire import MAX_PEEK, Wire, WireError

WINDOW = 1_000
QUIET_SECONDS = 0.5
PATIENCE_SECONDS = 2.0
SETTLE_SECONDS = 60.0
"""A namespace must confirm a settlement in this time. After that the link is dropped, and the messages are in doubt."""
CLOSE_SECONDS = 10.0
ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class Removed:
    """The result of a removal: messages completed by us, gone before, or held by another receiver."""

    count: int
    gone: Runs
    held: Runs


async def remove(wire: Wire, entity: str, runs: Runs, until_ms: int) -> Removed:
    """Complete the messages with these numbers. Raises WireError if the entity cannot be used."""
    removal = _Removal(wire, entity, runs, until_ms)
    for attempt in range(ATTEMPTS):
        try:
            await removal.run()
        except (AmqpClientError, OSError, TimeoutError) as error:
            removal.note_link_lost()
            if isinstance(error, AmqpClientError) and error.condition == NOT_FOUND:
                raise WireError(error.condition, f"{entity!r} does not exist in {wire.host}: {error}") from error
            if attempt + 1 == ATTEMPTS:
                raise WireError(
                    CONNECTION_FORCED, f"Cannot remove messages of {entity!r} in {wire.host}: {error}"
                ) from error
            await asyncio.sleep(0.2 * 2**attempt)
        else:
            break
    left = await removal.left() if len(removal.done) < len(runs) else set()
    absent = {number for number in runs if number not in removal.done and number not in left}
    ours = absent & removal.in_doubt
    return Removed(len(removal.done) + len(ours), Runs.of(absent - ours), Runs.of(left))


class _Removal:
    def __init__(self, wire: Wire, entity: str, runs: Runs, until_ms: int) -> None:
        self._wire = wire
        self._entity = entity
        self._runs = runs
        self._until_ms = until_ms
        self.done: set[int] = set()
        self.in_doubt: set[int] = set()
        self._settling: dict[int, set[int]] = {}

    async def run(self) -> None:
        try:
            receiver = await self._wire.session.open_receiver(self._entity)
        except LinkLostError as error:
            if error.condition != NOT_ALLOWED:
                raise
            await self._run_by_session()
            return
        await self._complete_through(receiver, len(self._runs) - len(self.done))

    async def _run_by_session(self) -> None:
        """The entity requires sessions: accept each session with messages to remove."""
        counts: dict[str, int] = {}
        async for raw in self._remaining():
            session_id = read(raw).session_id
            if session_id is not None:
                counts[session_id] = counts.get(session_id, 0) + 1
        for session_id, count in counts.items():
            try:
                receiver = await self._wire.session.open_receiver(self._entity, session_id=session_id)
            except LinkLostError as error:
                if error.condition != SESSION_LOCKED:
                    raise
                continue  # another receiver has this session: leave it for the next removal
            await self._complete_through(receiver, count)

    async def _complete_through(self, receiver: ReceiverLink, count: int) -> None:
        """Complete `count` messages through this link, then close it: an open link would keep taking messages."""
        try:
            await self._complete(receiver, count)
        finally:
            with contextlib.suppress(AmqpClientError, OSError, TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await receiver.close()

    async def _complete(self, receiver: ReceiverLink, count: int) -> None:
        others: list[Received] = []
        settlements: list[asyncio.Task[None]] = []
        requested = received_count = 0
        loop = asyncio.get_running_loop()
        progress_at = loop.time()
        try:
            while received_count < count:
                window = min(WINDOW, count - received_count)
                wanted = window + len(others) - requested
                if wanted > 0 and wanted * 2 >= window:
                    receiver.grant(wanted)
                    requested += wanted
                try:
                    async with asyncio.timeout(QUIET_SECONDS):
                        batch = await receiver.receive(WINDOW)
                except TimeoutError:
                    if loop.time() - progress_at > PATIENCE_SECONDS or not await self.left():
                        break
                    continue
                requested -= len(batch)
                ours: dict[int, Received] = {}
                is_past_the_last = False
                for message in batch:
                    stamp = read_stamps(message.raw)
                    if stamp.sequence_number in self._runs and stamp.enqueued_ms <= self._until_ms:
                        ours[stamp.sequence_number] = message
                    else:
                        others.append(message)
                        is_past_the_last = is_past_the_last or stamp.sequence_number > self._runs.last
                received_count += len(ours)
                if ours:
                    progress_at = loop.time()
                    settlements = [task for task in settlements if not task.done() or task.result() is not None]
                    settlements.append(loop.create_task(self._settle(receiver, ours)))
                if is_past_the_last:
                    break  # messages arrive in order: the missing ones cannot be received now
            await asyncio.gather(*settlements)
        finally:
            for task in settlements:
                task.cancel()
        if requested:
            others += await receiver.drain()
        if others:
            async with asyncio.timeout(SETTLE_SECONDS):
                await receiver.settle(others, Released())

    async def _settle(self, receiver: ReceiverLink, messages: dict[int, Received]) -> None:
        numbers = set(messages)
        key = min(numbers)
        self._settling[key] = numbers
        async with asyncio.timeout(SETTLE_SECONDS):
            reasons: Iterable[AmqpError | None] = await receiver.settle(list(messages.values()))
        del self._settling[key]
        self.done.update(number for number, reason in zip(messages, reasons, strict=True) if reason is None)

    def note_link_lost(self) -> None:
        """Put the messages that were being settled in doubt: we may have completed them."""
        for numbers in self._settling.values():
            self.in_doubt |= numbers
        self._settling.clear()

    async def left(self) -> set[int]:
        """Return the numbers that are still there to be removed."""
        return {read_stamps(raw).sequence_number async for raw in self._remaining()}

    async def _remaining(self) -> AsyncIterator[bytes]:
        number = self._runs.first
        while number <= self._runs.last:
            raws = await self._wire.peek(self._entity, number, min(MAX_PEEK, self._runs.last - number + 1))
            if not raws:
                return
            for raw in raws:
                stamp = read_stamps(raw)
                is_open = stamp.sequence_number in self._runs and stamp.sequence_number not in self.done
                if is_open and stamp.state == ACTIVE and stamp.enqueued_ms <= self._until_ms:
                    yield raw
            number = read_stamps(raws[-1]).sequence_number + 1
