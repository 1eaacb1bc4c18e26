"""Removing what a stream has read and committed.

Rules:
- Only these very messages are completed: by sequence number, and not younger than the stream's last look. Whatever
  else the namespace hands over is released, uncounted.
- No more messages are asked for than are to be removed.
- What is not there any more was taken by somebody else: it is counted, and the stream goes on, for it has the
  message. What somebody else holds is left for the next removal.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass

from pairbus.amqp.client import AmqpClientError, ClientConnection, LinkLostError, Received, ReceiverLink
from pairbus.amqp.message import read_stamps
from pairbus.amqp.outcomes import AmqpError, Released
from pairbus.pipeline.servicebus.messages import ACTIVE, read
from pairbus.pipeline.servicebus.ranges import Runs
from pairbus.pipeline.servicebus.wire import PEEK_AT_MOST, Wire, WireError

WINDOW = 1_000
QUIET_SECONDS = 0.5
PATIENCE_SECONDS = 2.0
SETTLE_SECONDS = 60.0
"""How long a namespace may take to confirm; then the link is given up, and what it was about is in doubt."""
CLOSE_SECONDS = 10.0
ATTEMPTS = 5
DRAIN_LOOKS = 100


@dataclass(frozen=True, slots=True)
class Removed:
    """What became of messages to be removed: completed by us, gone before, or held by somebody."""

    count: int
    gone: Runs
    held: Runs


async def remove(wire: Wire, entity: str, runs: Runs, until_ms: int) -> Removed:
    """Complete the messages of these numbers. Raises WireError when the entity cannot be used."""
    work = _Removal(wire, entity, runs, until_ms)
    for attempt in range(ATTEMPTS):
        try:
            await work.run()
        except (AmqpClientError, OSError, TimeoutError) as error:
            work.in_doubt()
            if isinstance(error, AmqpClientError) and error.condition == "amqp:not-found":
                raise WireError(error.condition, f"{entity!r} does not exist in {wire.host}: {error}") from error
            if attempt + 1 == ATTEMPTS:
                raise WireError(
                    "amqp:connection:forced", f"Messages of {entity!r} in {wire.host} could not be removed: {error}"
                ) from error
            await asyncio.sleep(0.2 * 2**attempt)
        else:
            break
    left = await work.left() if len(work.done) < len(runs) else set()
    absent = {number for number in runs if number not in work.done and number not in left}
    return Removed(len(work.done) + len(absent & work.doubtful), Runs.of(absent - work.doubtful), Runs.of(left))


class _Removal:
    def __init__(self, wire: Wire, entity: str, runs: Runs, until_ms: int) -> None:
        self._wire = wire
        self._entity = entity
        self._runs = runs
        self._until_ms = until_ms
        self.done: set[int] = set()
        self.doubtful: set[int] = set()
        self._settling: dict[int, set[int]] = {}

    async def run(self) -> None:
        connection = await self._wire.connection(self._entity)
        try:
            receiver = await connection.open_receiver(self._entity, credit=0)
        except LinkLostError as error:
            if error.condition != "amqp:not-allowed":
                raise
            await self._by_session(connection)
            return
        await self._through(receiver, len(self._runs) - len(self.done))

    async def _by_session(self, connection: ClientConnection) -> None:
        """The entity requires sessions: each is accepted for as long as its messages take."""
        sessions: dict[str, int] = {}
        async for raw in self._there():
            session = read(raw).session_id
            if session is not None:
                sessions[session] = sessions.get(session, 0) + 1
        for session, count in sessions.items():
            try:
                receiver = await connection.open_receiver(self._entity, credit=0, session=session)
            except LinkLostError as error:
                if error.condition != "com.microsoft:session-cannot-be-locked":
                    raise
                continue  # somebody works on this session: next time
            await self._through(receiver, count)

    async def _through(self, receiver: ReceiverLink, count: int) -> None:
        """Complete `count` messages through this link, and close it: an open one would go on taking messages."""
        try:
            await self._take(receiver, count)
        finally:
            with contextlib.suppress(AmqpClientError, OSError, TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await receiver.close()

    async def _take(self, receiver: ReceiverLink, count: int) -> None:
        strangers: list[Received] = []
        settled: list[asyncio.Task[None]] = []
        asked = got_ours = 0
        loop = asyncio.get_running_loop()
        progress = loop.time()
        try:
            while got_ours < count:
                wanted = min(WINDOW, count - got_ours) + len(strangers) - asked
                if wanted > 0 and wanted * 2 >= min(WINDOW, count - got_ours):
                    receiver.grant(wanted)
                    asked += wanted
                try:
                    async with asyncio.timeout(QUIET_SECONDS):
                        batch = await receiver.receive(WINDOW)
                except TimeoutError:
                    if loop.time() - progress > PATIENCE_SECONDS or not await self.left():
                        break
                    continue
                asked -= len(batch)
                ours: dict[int, Received] = {}
                beyond = False
                for one in batch:
                    seen = read_stamps(one.raw)
                    if seen.sequence_number in self._runs and seen.enqueued_ms <= self._until_ms:
                        ours[seen.sequence_number] = one
                    else:
                        strangers.append(one)
                        beyond = beyond or seen.sequence_number > self._runs.last
                got_ours += len(ours)
                if ours:
                    progress = loop.time()
                    settled = [task for task in settled if not task.done() or task.result() is not None]
                    settled.append(loop.create_task(self._settle(receiver, ours)))
                if beyond:
                    break  # messages come in order: what is missing of ours cannot be had now
            await asyncio.gather(*settled)
        finally:
            for task in settled:
                task.cancel()
        if asked:
            strangers += await _unasked(receiver)
        if strangers:
            async with asyncio.timeout(SETTLE_SECONDS):
                await receiver.settle(strangers, Released())

    async def _settle(self, receiver: ReceiverLink, messages: dict[int, Received]) -> None:
        numbers = set(messages)
        key = min(numbers)
        self._settling[key] = numbers
        async with asyncio.timeout(SETTLE_SECONDS):
            reasons: Iterable[AmqpError | None] = await receiver.settle(list(messages.values()))
        del self._settling[key]
        self.done.update(number for number, reason in zip(messages, reasons, strict=True) if reason is None)

    def in_doubt(self) -> None:
        """The link broke: what was being settled may be gone by our own hand."""
        for numbers in self._settling.values():
            self.doubtful |= numbers
        self._settling.clear()

    async def left(self) -> set[int]:
        """The numbers that are still there to be removed."""
        return {read_stamps(raw).sequence_number async for raw in self._there()}

    async def _there(self) -> AsyncIterator[bytes]:
        number = self._runs.first
        while number <= self._runs.last:
            raws = await self._wire.peek(self._entity, number, min(PEEK_AT_MOST, self._runs.last - number + 1))
            if not raws:
                return
            for raw in raws:
                seen = read_stamps(raw)
                wanted = seen.sequence_number in self._runs and seen.sequence_number not in self.done
                if wanted and seen.state == ACTIVE and seen.enqueued_ms <= self._until_ms:
                    yield raw
            number = read_stamps(raws[-1]).sequence_number + 1


async def _unasked(receiver: ReceiverLink) -> list[Received]:
    """Take back the credit that is left; what was on its way."""
    receiver.link.drain(0)
    found: list[Received] = []
    for _ in range(DRAIN_LOOKS):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0 if receiver.link.credit <= 0 else QUIET_SECONDS / 10):
                found += await receiver.receive(WINDOW)
                continue
        if receiver.link.credit <= 0:
            break
    return found
