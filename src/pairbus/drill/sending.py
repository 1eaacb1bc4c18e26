"""The sending applications of a drill, and what they know: which messages were accepted, and how long it took.

A message counts as accepted when its send has returned, not before. One whose send raised is refused: its application
knows, and would send it again. It may have arrived all the same; then it is nobody's loss and nobody's duplicate.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from pairbus.drill.result import percentile
from pairbus.drill.scenario import MOST_MESSAGES, Entity, Send
from pairbus.errors import PairbusError

SESSIONS = ("s0", "s1", "s2", "s3")
STOP_SECONDS = 300.0


class TooManyMessagesError(RuntimeError):
    def __init__(self) -> None:
        super().__init__(f"More than {MOST_MESSAGES} messages were sent: send more slowly, or for a shorter time.")


@dataclass(slots=True)
class Sent:
    """What the senders of one entity know."""

    accepted: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    refused: int = 0


class Senders:
    """All senders of a drill, on one paired client."""

    def __init__(self, paired: Any, paths: dict[str, str]) -> None:
        self._paired = paired
        self._paths = paths
        self.sent: dict[str, Sent] = defaultdict(Sent)
        self.errors: Counter[str] = Counter()
        self._numbers = itertools.count(1)
        self._background: dict[asyncio.Task[None], str] = {}
        self._stops: dict[str, asyncio.Event] = {}

    async def send(self, entity: Entity, send: Send) -> None:
        """So many messages, by so many senders; returns when each was answered."""
        turns = iter(range(send.count or 0))
        try:
            async with asyncio.TaskGroup() as group:
                for place in range(send.senders):
                    group.create_task(self._run(entity, send, place, turns, asyncio.Event()))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from errors

    def start(self, entity: Entity, send: Send) -> None:
        """Senders that go on until `stop`."""
        stop = self._stops.setdefault(entity.name, asyncio.Event())
        for place in range(send.senders):
            task = asyncio.ensure_future(self._run(entity, send, place, itertools.count(), stop))
            self._background[task] = entity.name

    async def stop(self, entity: str | None = None) -> None:
        """Ends the senders in the background after the send they are at; raises what went wrong in them."""
        for name, stop in self._stops.items():
            if entity in (None, name):
                stop.set()
        ending = [task for task, name in self._background.items() if entity in (None, name)]
        if not ending:
            return
        _, stuck = await asyncio.wait(ending, timeout=STOP_SECONDS)
        for task in stuck:
            task.cancel()
        for task in ending:
            del self._background[task]
        for name in [name for name in self._stops if entity in (None, name)]:
            del self._stops[name]
        for outcome in await asyncio.gather(*ending, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome

    def count(self, what: str, entity: str | None) -> int:
        chosen = self.sent.values() if entity is None else [self.sent[entity]]
        return sum(len(one.accepted) if what == "accepted" else one.refused for one in chosen)

    def latency(self, share: float, entity: str | None) -> float:
        chosen = self.sent.values() if entity is None else [self.sent[entity]]
        return percentile(sorted(itertools.chain.from_iterable(one.seconds for one in chosen)), share)

    async def _run(self, entity: Entity, send: Send, place: int, turns: Iterator[int], stop: asyncio.Event) -> None:
        """One sender. With a rate, its sends are spread evenly from its beginning on; a late one is not made up for."""
        period = send.senders / send.rate if send.rate else 0.0
        path = self._paths[entity.name]
        make = self._paired.get_topic_sender if entity.topic else self._paired.get_queue_sender
        loop = asyncio.get_running_loop()
        due = loop.time() + period * place / send.senders
        async with make(path) as sender:
            for _ in turns:
                if period:
                    await _until(due, stop)
                    due = max(due + period, loop.time())
                if stop.is_set():
                    return
                await self._send_one(sender, entity, send)

    async def _send_one(self, sender: Any, entity: Entity, send: Send) -> None:
        number = next(self._numbers)
        if number > MOST_MESSAGES:
            raise TooManyMessagesError
        message_id = f"{entity.name}-{number}"
        session = SESSIONS[number % len(SESSIONS)] if entity.sessions else None
        message = ServiceBusMessage(b"." * send.size, message_id=message_id, session_id=session)
        sent = self.sent[entity.name]
        began = time.monotonic()
        try:
            await sender.send_messages(message)
        except (ServiceBusError, PairbusError) as error:
            sent.refused += 1
            self.errors[type(error).__name__] += 1
            return
        sent.seconds.append(time.monotonic() - began)
        sent.accepted.append(message_id)


async def _until(due: float, stop: asyncio.Event) -> None:
    """Waits for a time of the loop, or for the stop, whichever is first."""
    left = due - asyncio.get_running_loop().time()
    if left > 0:
        try:
            async with asyncio.timeout(left):
                await stop.wait()
        except TimeoutError:
            return
