"""The sending applications of a drill: which messages were accepted, and how long each send took.

A message is accepted when its send has returned, not before. A message whose send raised is refused: its application
knows, and would send it again. It may have arrived all the same; then it is neither lost nor a duplicate.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from pairbus.drill.scenario import MAX_MESSAGES, DrillEntity, SendAction, StartAction
from pairbus.errors import PairbusError

SESSIONS = ("s0", "s1", "s2", "s3")
STOP_SECONDS = 300.0


@dataclass(slots=True)
class SentMessages:
    """The results of the sends to one entity."""

    begun: int = 0
    accepted: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    refused: int = 0


def drill_message(entity: DrillEntity, number: int, size: int) -> ServiceBusMessage:
    session = SESSIONS[number % len(SESSIONS)] if entity.sessions else None
    return ServiceBusMessage(b"." * size, message_id=f"{entity.name}-{number}", session_id=session)


class Senders:
    """All senders of a drill, on one paired client. The messages of each entity are numbered from 1."""

    def __init__(
        self,
        paired: Any,
        paths: dict[str, str],
        make_message: Callable[[DrillEntity, int, int], ServiceBusMessage] = drill_message,
    ) -> None:
        self._paired = paired
        self._paths = paths
        self._make_message = make_message
        self.sent: dict[str, SentMessages] = defaultdict(SentMessages)
        self.errors: Counter[str] = Counter()
        self._background: dict[asyncio.Task[None], str] = {}
        self._stops: dict[str, asyncio.Event] = {}

    async def send(self, entity: DrillEntity, action: SendAction) -> None:
        """Send `action.count` messages with `action.senders` senders; return when every send has been answered."""
        turns = iter(range(action.count))
        try:
            async with asyncio.TaskGroup() as group:
                for place in range(action.senders):
                    group.create_task(self._run(entity, action, place, turns, asyncio.Event()))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from errors

    def start(self, entity: DrillEntity, action: StartAction) -> None:
        """Start senders that send until `stop`."""
        stop = self._stops.setdefault(entity.name, asyncio.Event())
        for place in range(action.senders):
            task = asyncio.ensure_future(self._run(entity, action, place, itertools.count(), stop))
            self._background[task] = entity.name

    async def stop(self, entity: str | None = None) -> None:
        """Stop the background senders after their current send; raise the first error of one of them."""
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

    def begun(self, entity: str | None) -> int:
        """How many messages were given to a sender, answered or not."""
        return sum(sent.begun for sent in self._of(entity))

    def accepted(self, entity: str | None) -> int:
        return sum(len(sent.accepted) for sent in self._of(entity))

    def refused(self, entity: str | None) -> int:
        return sum(sent.refused for sent in self._of(entity))

    def latency(self, share: float, entity: str | None) -> float:
        """A percentile of the seconds that accepted sends took; not a number if there were none."""
        return percentile(sorted(itertools.chain.from_iterable(sent.seconds for sent in self._of(entity))), share)

    def _of(self, entity: str | None) -> list[SentMessages]:
        return list(self.sent.values()) if entity is None else [self.sent[entity]]

    async def _run(
        self,
        entity: DrillEntity,
        action: SendAction | StartAction,
        place: int,
        turns: Iterator[int],
        stop: asyncio.Event,
    ) -> None:
        """One sender. With a rate it sends at regular intervals, and does not catch up after a delay."""
        period = action.senders / action.rate if action.rate else 0.0
        open_sender = self._paired.get_topic_sender if entity.topic else self._paired.get_queue_sender
        loop = asyncio.get_running_loop()
        due = loop.time() + period * place / action.senders
        async with open_sender(self._paths[entity.name]) as sender:
            for _ in turns:
                if period:
                    await _sleep_until(due, stop)
                    due = max(due + period, loop.time())
                if stop.is_set():
                    return
                await self._send_message(sender, entity, action.size)

    async def _send_message(self, sender: Any, entity: DrillEntity, size: int) -> None:
        if self.begun(None) >= MAX_MESSAGES:
            raise RuntimeError(f"The drill has sent {MAX_MESSAGES:,} messages, which is the limit: use a lower rate.")
        sent = self.sent[entity.name]
        sent.begun += 1
        message = self._make_message(entity, sent.begun, size)
        began = time.monotonic()
        try:
            await sender.send_messages(message)
        except (ServiceBusError, PairbusError) as error:
            sent.refused += 1
            self.errors[type(error).__name__] += 1
            return
        sent.seconds.append(time.monotonic() - began)
        sent.accepted.append(str(message.message_id))


def percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that is at least as large as `share` of all values; not a number if there are none."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.nan


async def _sleep_until(due: float, stop: asyncio.Event) -> None:
    """Sleep until a time of the loop, or until `stop` is set."""
    left = due - asyncio.get_running_loop().time()
    if left > 0:
        try:
            async with asyncio.timeout(left):
                await stop.wait()
        except TimeoutError:
            return
