"""Carries one backlog queue home: the shell around the planner.

The pump reports events to the planner and carries out its actions. Everything that takes time runs as a task that
reports back; the loop in `_carry` sleeps until an event occurs or a deadline is reached. The pump itself decides only
how to reconnect when the backlog queue is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pairbus.amqp.conditions import TIMEOUT
from pairbus.syphon.deliveries import Delivery, Peeked
from pairbus.syphon.outcomes import Logbook
from pairbus.syphon.planner import (
    PEEK_LIMIT,
    Action,
    Backoff,
    Bury,
    Complete,
    Peek,
    Planner,
    Probe,
    PumpRules,
    RateLimit,
    Release,
    RetryPause,
    Seek,
    SendBatch,
)
from pairbus.syphon.transport import BacklogReceiver, ReceiverLostError, SendError, SendFailure, Transport

log = logging.getLogger(__name__)

LONG_RECEIVE_SECONDS = 15 * 60.0
ONCE_RECEIVE_SECONDS = 0.5
RENEW_CHECK_SECONDS = 1.0
SEEK_BEFORE, SEEK_AFTER = 500, 1000
"""How far from a part its siblings are sought at first: a sender sends them one after the other."""
_DEAD_LETTERED = ""

Side = Literal["primary", "secondary"]
REFUSALS_FOR_GOOD = 3
"""After this many refusals in a row the next attempt is not expected to succeed."""


class Refusals:
    """The entities of both namespaces that refuse our credential now. Each outage is logged once.

    An outage begins with the first entity that refuses and ends when all of them accept our credential again.
    `on_refused` is called after each refusal.
    """

    def __init__(self, primary: str = "", secondary: str = "", on_refused: Callable[[], None] = lambda: None) -> None:
        self._hosts: dict[Side, str] = {"primary": primary, "secondary": secondary}
        self._on_refused = on_refused
        self._refusing: dict[Side, set[str]] = {"primary": set(), "secondary": set()}

    def refused(self, side: Side, entity: str, cause: str) -> None:
        if not self._refusing[side]:
            log.warning(
                "the %s refuses our credential: check its connection string and the rights of its key",
                side,
                extra={"namespace": self._hosts[side], "entity": entity, "cause": cause},
            )
        self._refusing[side].add(entity)
        self._on_refused()

    def accepted(self, side: Side, entity: str) -> None:
        self._refusing[side].discard(entity)


@dataclass(frozen=True, slots=True)
class PumpOptions:
    """The options that all pumps of a syphon share. Times are seconds."""

    rules: PumpRules
    retry_interval: float = 1.0
    send_timeout: float = 60.0
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    draw: Callable[[], float] = random.random
    refusals: Refusals = field(default_factory=Refusals)


class Pump:
    """Carries one backlog queue home until it is stopped, or, with `run(once=True)`, until the queue is empty.

    `message_limit`: stop after this many messages, dead-lettered ones included.
    """

    def __init__(
        self,
        queue: str,
        transport: Transport,
        options: PumpOptions,
        logbook: Logbook,
        rate: RateLimit | None = None,
        message_limit: int | None = None,
    ) -> None:
        self.queue = queue
        self.logbook = logbook
        self.is_missing = False
        self.refusals = 0
        """How many times in a row the secondary refused our credential."""
        self.is_drained = False
        self._errors: dict[str, str] = {}
        """The current errors by destination, or by this queue; the latest is the last."""
        self._transport = transport
        self._options = options
        self.planner = Planner(options.rules, rate or RateLimit(None))
        self._ran = False
        self._message_limit = message_limit
        self._backoff = Backoff(options.retry_interval, max(options.retry_interval, 60.0))
        self._pause: RetryPause | None = None
        self._receiver: BacklogReceiver | None = None
        self._failure: ReceiverLostError | None = None
        self._wake = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._receiving: asyncio.Task[None] | None = None
        self._is_quiet = True
        self._is_stopped = False
        self._is_paused = False
        self._once = False
        self._renew_at = 0.0

    def __repr__(self) -> str:
        return f"<Pump {self.queue} {self.state} in_hand={self.planner.in_hand} held={self.planner.held}>"

    @property
    def last_error(self) -> str | None:
        """The latest error that is not over."""
        return next(reversed(list(self._errors.values())), None)  # other threads read this

    def failed(self, error: str) -> None:
        """Report an error of the pump itself; it is over when the pump reaches its backlog queue again."""
        self._set_error(self.queue, error)

    def _set_error(self, source: str, error: str) -> None:
        self._errors.pop(source, None)
        self._errors[source] = error

    @property
    def state(self) -> str:
        if self._receiver is None:
            if self.is_missing:
                return "missing"
            return "drained" if self.is_drained else "stopped" if self._is_stopped else "connecting"
        if self._is_paused or self._is_stopped:
            return "paused" if not self._is_stopped else "stopping"
        if self.planner.primary_pause is not None:
            return "waiting for the primary"
        return "carrying" if self.planner.in_hand else "waiting"

    # --- control ----------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Finish the messages in hand and end."""
        self._is_stopped = True
        self.planner.is_stopping = True
        self._wake.set()

    def wake(self) -> None:
        """Look again at what may be done now."""
        self._wake.set()

    def pause(self) -> None:
        self._is_paused = True
        self.planner.is_stopping = True
        self._wake.set()

    def resume(self) -> None:
        self._is_paused = False
        self.planner.is_stopping = self._is_stopped
        self._wake.set()

    async def run(self, *, once: bool = False) -> None:
        """Run until stopped; with `once`, until the queue is empty.

        A pump that failed may run again. It starts with empty hands: its sends at the time of the failure are in doubt.
        """
        if self._ran:
            self.planner = self.planner.restarted()
        self._once, self._ran = once, True
        try:
            while not self._finished():
                try:
                    self._receiver = await self._transport.open_receiver(self.queue)
                    self._connected()
                    await self._carry(self._receiver)
                except ReceiverLostError as error:
                    await self._lost(error)
        finally:
            await self._end()

    def _finished(self) -> bool:
        if self._is_stopped or self.is_drained:
            return not self.planner.is_flowing or self._receiver is None
        return False

    def _connected(self) -> None:
        self.is_missing, self.refusals, self._pause, self._failure = False, 0, None, None
        self._errors.pop(self.queue, None)
        self._options.refusals.accepted("secondary", self.queue)

    async def _lost(self, error: ReceiverLostError) -> None:
        """The backlog queue is unreachable: pause, with backoff. Each kind of loss is logged once."""
        self.logbook.counts.failures += 1
        self._set_error(self.queue, str(error))
        was_known = self._pause is not None and self.is_missing == error.missing
        self.is_missing = error.missing
        self.refusals = self.refusals + 1 if error.unauthorized else 0
        if error.unauthorized:
            self._options.refusals.refused("secondary", self.queue, str(error))
        self._stop_receiving()
        self.planner.lost_receiver()
        await self._close_receiver()
        if error.missing and self._once:
            self.is_drained = True
            return
        if self._is_stopped:
            return
        if error.missing and not was_known:
            log.warning(
                "the backlog queue does not exist: choose existing ones with --queues, or pair the namespaces once",
                extra={"queue": self.queue},
            )
        elif not error.missing:
            # A refused credential is logged once for all queues.
            level = logging.DEBUG if was_known or error.unauthorized else logging.WARNING
            log.log(level, "the backlog queue is lost", extra={"queue": self.queue, "cause": str(error)})
        now = asyncio.get_running_loop().time()
        self._pause = RetryPause.after(self._pause, self._backoff, now, self._options.draw(), str(error))
        while not self._is_stopped and (seconds := self._pause.until - asyncio.get_running_loop().time()) > 0:
            await self._sleep(seconds)

    async def _end(self) -> None:
        self._stop_receiving()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._close_receiver()

    async def _close_receiver(self) -> None:
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            await receiver.close()

    # --- the loop -----------------------------------------------------------------------------------------

    async def _carry(self, receiver: BacklogReceiver) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if self._failure is not None:
                raise self._failure
            now = loop.time()
            for action in self.planner.due(now, self._options.now_ms(), self._options.draw()):
                self._spawn(self._carry_out(action, receiver))
            if now >= self._renew_at:
                self._renew(receiver, now)
            if (self._is_stopped or self.is_drained) and self.planner.is_idle and not self._tasks and self._is_quiet:
                return
            self._feed(receiver, now)
            await self._sleep(self._until_next(now))

    def _until_next(self, now: float) -> float | None:
        deadline = self.planner.next_deadline(now)
        if self.planner.locks:
            deadline = self._renew_at if deadline is None else min(deadline, self._renew_at)
        return None if deadline is None else max(0.0, deadline - now)

    async def _sleep(self, seconds: float | None) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), seconds)
        self._wake.clear()

    def _feed(self, receiver: BacklogReceiver, now: float) -> None:
        """Receive if there is room; withdraw credit if no message may arrive."""
        if self.planner.is_silent(now) or self.is_drained:
            if self._is_quiet:
                return
            if self._receiving is not None:
                self._receiving.cancel()  # its end wakes the loop
            else:
                self._is_quiet = True
                self._receiving = self._spawn(self._silence(receiver))
            return
        limit = self.planner.free_slots(now)
        if limit and self._receiving is None:
            self._is_quiet = False
            wait = ONCE_RECEIVE_SECONDS if self._once else LONG_RECEIVE_SECONDS
            self._receiving = self._spawn(self._receive(receiver, limit, wait))

    def _stop_receiving(self) -> None:
        if self._receiving is not None:
            self._receiving.cancel()
            self._receiving = None

    async def _carry_out(self, action: Action, receiver: BacklogReceiver) -> None:
        match action:
            case SendBatch():
                await self._send(action)
            case Complete():
                await self._complete(action, receiver)
            case Release():
                lost = await receiver.release(action.deliveries)
                self.logbook.released(action.deliveries, lost)
            case Bury():
                await self._bury(action, receiver)
            case Peek():
                self.planner.peeked(action.gap, await self._look(receiver, action.gap[0], PEEK_LIMIT))
            case Seek():
                await self._seek(action, receiver)
            case Probe():
                self.logbook.counts.probes += 1
                answers = await self._transport.reachable()
                self.planner.probed(answers, asyncio.get_running_loop().time(), self._options.draw())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task is self._receiving:
            self._receiving = None
        if not task.cancelled() and (error := task.exception()) is not None:
            if not isinstance(error, ReceiverLostError):
                log.error("a pump failed", extra={"queue": self.queue}, exc_info=error)
                error = ReceiverLostError(f"{type(error).__name__}: {error}")
            self._failure = self._failure or error
        self._wake.set()

    # --- tasks ------------------------------------------------------------------------------------------------

    async def _receive(self, receiver: BacklogReceiver, limit: int, wait: float) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        deliveries = await receiver.receive(limit, wait)
        self._take(deliveries, loop.time() - began)
        if not deliveries and self._once and self.planner.is_idle:
            # Other receivers may hold messages: the queue is empty only if peeking shows nothing.
            self.is_drained = not await self._look(receiver, 0, 1)

    async def _silence(self, receiver: BacklogReceiver) -> None:
        deliveries = await receiver.quiet()
        if deliveries:
            self._take(deliveries, 0.0)

    def _take(self, deliveries: Sequence[Delivery], seconds: float) -> None:
        self.planner.arrived(deliveries, asyncio.get_running_loop().time())
        self.logbook.received(deliveries, seconds)

    async def _send(self, send: SendBatch) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        error: SendError | None = None
        try:
            async with asyncio.timeout(self._options.send_timeout):
                await self._transport.send(send.destination, send.raws)
        except TimeoutError:
            text = f"no answer within {self._options.send_timeout:g} s"
            error = SendError(SendFailure.UNREACHABLE, TIMEOUT, text, in_doubt=True)
        except SendError as refused:
            error = refused
        except Exception as bug:  # the outermost frame of a send: its lane must learn that it ended
            log.exception("a send failed unexpectedly", extra={"queue": self.queue})
            error = SendError(SendFailure.UNAVAILABLE, f"client:{type(bug).__name__}", str(bug), in_doubt=True)
        now = loop.time()
        self._update_errors(send.destination, error)
        self.logbook.sent(send.destination, send.items, error, now - began)
        self.planner.sent(send, error, now, self._options.draw())
        if error is None:
            self._options.refusals.accepted("primary", send.destination)
        elif error.token_refused:
            self._options.refusals.refused("primary", send.destination, str(error))
        self._check_limit()

    def _update_errors(self, destination: str, error: SendError | None) -> None:
        """A destination's error is over when it takes a message; a dead letter's error, when any destination does."""
        if error is None:
            self._errors.pop(destination, None)
            self._errors.pop(_DEAD_LETTERED, None)
        elif error.failure in (SendFailure.MISSING, SendFailure.REFUSED):
            self._errors.pop(destination, None)
            self._set_error(_DEAD_LETTERED, f"{destination}: {error}")
        else:
            self._set_error(destination, f"{destination}: {error}")

    async def _complete(self, action: Complete, receiver: BacklogReceiver) -> None:
        await self.logbook.on_disk()
        complete = receiver.complete if action.part_of is None else receiver.complete_together
        lost = await complete(action.deliveries)
        if not lost:
            self.planner.completed(action)
        self.logbook.completed(action.deliveries, action.carried, lost)

    async def _bury(self, action: Bury, receiver: BacklogReceiver) -> None:
        lost = await receiver.dead_letter(action.letters)
        self.logbook.buried(action.letters, lost)
        first = action.letters[0]
        details = {"count": len(action.letters), "reason": first.reason, "cause": first.description}
        log.warning("dead-lettered", extra={"queue": self.queue, **details})
        self._check_limit()

    async def _look(self, receiver: BacklogReceiver, from_number: int, count: int) -> list[Peeked]:
        loop = asyncio.get_running_loop()
        began = loop.time()
        peeked = await receiver.peek(from_number, count)
        self.logbook.peeked(peeked, loop.time() - began)
        return peeked

    async def _seek(self, action: Seek, receiver: BacklogReceiver) -> None:
        siblings: list[Peeked] = []
        is_near = action.until_ms is None
        begin = max(0, action.around - SEEK_BEFORE) if is_near else 0
        while not is_near or begin < action.around + SEEK_AFTER:
            more = await self._look(receiver, begin, PEEK_LIMIT)
            siblings += [message for message in more if message.part_of == action.part_of]
            if not more or (action.until_ms is not None and more[-1].enqueued_ms > action.until_ms):
                break
            begin = more[-1].sequence_number + 1
        loop = asyncio.get_running_loop()
        self.planner.sought(action, siblings, loop.time(), self._options.draw())

    def _renew(self, receiver: BacklogReceiver, now: float) -> None:
        self._renew_at = now + RENEW_CHECK_SECONDS
        deliveries = self.planner.to_renew(now)
        if deliveries:
            # Not again while this request is in flight.
            self.planner.renewed(deliveries, now + 10 * RENEW_CHECK_SECONDS)
            self._spawn(self._renewed(receiver, deliveries))

    async def _renewed(self, receiver: BacklogReceiver, deliveries: list[Delivery]) -> None:
        again_at, lost = await receiver.renew(deliveries)
        self.logbook.counts.renewed += len(deliveries) - len(lost)
        self.planner.renewed(deliveries, again_at)
        if lost:
            self.planner.lost_locks(lost)

    def _check_limit(self) -> None:
        counts = self.logbook.counts
        if self._message_limit is not None and counts.restored + counts.dead_lettered >= self._message_limit:
            self.stop()
