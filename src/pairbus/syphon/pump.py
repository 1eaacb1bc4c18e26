"""One backlog queue being carried home: the shell around the planner.

The pump tells the planner what happened and does what the planner says. Everything that takes time runs as a task and
reports back; the loop in `_carry` sleeps until something happened or falls due. No decision is made here, except how
to come back when the backlog queue itself is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pairbus.syphon.actions import Action, Bury, Complete, Peek, Probe, Release, Seek, Send
from pairbus.syphon.deliveries import Delivery, Peeked
from pairbus.syphon.outcomes import Logbook
from pairbus.syphon.pauses import Growth, Pause, RateLimit
from pairbus.syphon.planner import Planner
from pairbus.syphon.refusals import Refusals, Side
from pairbus.syphon.rules import PEEK_AT_MOST, PumpRules
from pairbus.syphon.send_errors import SendError, SendFailure
from pairbus.syphon.transport import LONG_RECEIVE_SECONDS, BacklogReceiver, ReceiverLostError, Transport

log = logging.getLogger(__name__)

BUSY_RECEIVE_SECONDS = 0.2
"""How long a transport that cannot settle while it receives may wait when there is something to settle."""
ONCE_RECEIVE_SECONDS = 0.5
RENEW_CHECK_SECONDS = 1.0
_DEAD_LETTERED = ""
SEEK_BEFORE, SEEK_AFTER = 500, 1000
"""How far from a part its siblings are looked for at first: a sender sends them one after the other."""


@dataclass(frozen=True, slots=True)
class PumpOptions:
    """What all pumps of a syphon have in common. Times are seconds."""

    rules: PumpRules
    retry_interval: float = 1.0
    send_timeout: float = 60.0
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    draw: Callable[[], float] = random.random
    refusals: Refusals | None = None
    """Told when a namespace accepts our credential or does not."""
    on_refused: Callable[[], None] | None = None
    """Told after that, when it did not."""


class Pump:
    """Carries one backlog queue home until it is stopped, or, with `run(once=True)`, until the queue is empty.

    `share`: stop taking messages when so many were carried (dead-lettered ones included).
    """

    def __init__(
        self,
        queue: str,
        transport: Transport,
        options: PumpOptions,
        logbook: Logbook,
        rate: RateLimit | None = None,
        share: int | None = None,
    ) -> None:
        self.queue = queue
        self.logbook = logbook
        self.missing = False
        self.refusals = 0
        """How often in a row the secondary did not accept our credential."""
        self.drained = False
        self._errors: dict[str, str] = {}
        """What is wrong now, by the destination, or this queue, that it is wrong with; the latest is the last."""
        self._transport = transport
        self._options = options
        rules = replace(options.rules, held_messages=min(options.rules.held_messages, transport.held_messages))
        self.planner = Planner(rules, rate or RateLimit(None))
        self._ran = False
        self._share = share
        self._growth = Growth(options.retry_interval, max(options.retry_interval, 60.0))
        self._pause: Pause | None = None
        self._receiver: BacklogReceiver | None = None
        self._failure: ReceiverLostError | None = None
        self._wake = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._receiving: asyncio.Task[None] | None = None
        self._quiet = True
        self._stopped = False
        self._paused = False
        self._once = False
        self._renew_at = 0.0

    def __repr__(self) -> str:
        return f"<Pump {self.queue} {self.state} in_hand={self.planner.in_hand} held={self.planner.held}>"

    @property
    def last_error(self) -> str | None:
        """The latest of the errors that are not over."""
        return next(reversed(list(self._errors.values())), None)

    def failed(self, error: str) -> None:
        """This pump itself is out of order; until it has its backlog queue again."""
        self._note(self.queue, error)

    def _note(self, source: str, error: str) -> None:
        self._errors.pop(source, None)
        self._errors[source] = error

    @property
    def state(self) -> str:
        if self._receiver is None:
            if self.missing:
                return "missing"
            return "drained" if self.drained else "stopped" if self._stopped else "connecting"
        if self._paused or self._stopped:
            return "paused" if not self._stopped else "stopping"
        if self.planner.primary_pause is not None:
            return "waiting for the primary"
        return "carrying" if self.planner.in_hand else "waiting"

    # --- told from outside --------------------------------------------------------------------------------

    def stop(self) -> None:
        """Finish what is at hand and end."""
        self._stopped = True
        self.planner.stop()
        self._wake.set()

    def pause(self) -> None:
        self._paused = True
        self.planner.stop()
        self._wake.set()

    def resume(self) -> None:
        self._paused = False
        if not self._stopped:
            self.planner.go_on()
        self._wake.set()

    async def run(self, *, once: bool = False) -> None:
        """Until stopped; with `once`, or a share, until there is nothing more to do.

        A pump that failed may run again. It begins with empty hands: what it was sending when it failed is in doubt.
        """
        if self._ran:
            self.planner = self.planner.fresh()
        self._once, self._ran = once, True
        try:
            while not self._finished():
                try:
                    self._receiver = await self._transport.open_receiver(self.queue)
                    self._found()
                    await self._carry(self._receiver)
                except ReceiverLostError as error:
                    await self._lost(error)
        finally:
            await self._end()

    def _finished(self) -> bool:
        if self._stopped or self.drained:
            return not self.planner.flowing or self._receiver is None
        return False

    def _found(self) -> None:
        self.missing, self.refusals, self._pause, self._failure = False, 0, None, None
        self._errors.pop(self.queue, None)
        self._accepted("secondary", self.queue)

    async def _lost(self, error: ReceiverLostError) -> None:
        """The backlog queue is out of reach: leave it alone for a growing pause. Each kind of loss is said once."""
        self.logbook.counts.failures += 1
        self._note(self.queue, str(error))
        known = self._pause is not None and self.missing == error.missing
        self.missing = error.missing
        self.refusals = self.refusals + 1 if error.unauthorized else 0
        if error.unauthorized:
            self._refused("secondary", self.queue, str(error))
        self._stop_receiving()
        self.planner.lost_receiver()
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            await receiver.close()
        if error.missing and self._once:
            self.drained = True
            return
        if self._stopped:
            return
        if error.missing and not known:
            log.warning(
                "the backlog queue is missing: name those that exist with --queues, or pair the namespaces once",
                extra={"queue": self.queue},
            )
        elif not error.missing:
            # That the secondary does not let us in is said once for all queues.
            level = logging.DEBUG if known or error.unauthorized else logging.WARNING
            log.log(level, "the backlog queue is lost", extra={"queue": self.queue, "cause": str(error)})
        now = asyncio.get_running_loop().time()
        self._pause = Pause.after(self._pause, self._growth, now, self._options.draw(), str(error))
        while not self._stopped and (seconds := self._pause.until - asyncio.get_running_loop().time()) > 0:
            await self._sleep(seconds)

    def _accepted(self, side: Side, entity: str) -> None:
        if self._options.refusals is not None:
            self._options.refusals.accepted(side, entity)

    def _refused(self, side: Side, entity: str, cause: str) -> None:
        if self._options.refusals is not None:
            self._options.refusals.refused(side, entity, cause)
        if self._options.on_refused is not None:
            self._options.on_refused()

    async def _end(self) -> None:
        self._stop_receiving()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
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
                self._start(action, receiver)
            if now >= self._renew_at:
                self._renew(receiver, now)
            if (self._stopped or self.drained) and self.planner.idle and not self._tasks and self._quiet:
                return
            self._feed(receiver, now)
            await self._sleep(self._until_next(now))

    def _until_next(self, now: float) -> float | None:
        times = [self.planner.next_deadline(now)]
        if self.planner.holding:
            times.append(self._renew_at)
        due = [moment for moment in times if moment is not None]
        return max(0.0, min(due) - now) if due else None

    async def _sleep(self, seconds: float | None) -> None:
        if seconds is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), seconds)
        else:
            await self._wake.wait()
        self._wake.clear()

    def _feed(self, receiver: BacklogReceiver, now: float) -> None:
        """Receive if there is room, ask for silence if nothing must come in."""
        if self.planner.silent(now) or self.drained:
            if self._quiet:
                return
            if self._receiving is not None:
                self._receiving.cancel()  # its end wakes us
            else:
                self._quiet = True
                self._receiving = self._spawn(self._hush(receiver))
            return
        limit = self.planner.appetite(now)
        if limit and self._receiving is None:
            self._quiet = False
            busy = not self._transport.overlapping and (self.planner.holding or len(self._tasks))
            wait = ONCE_RECEIVE_SECONDS if self._once else LONG_RECEIVE_SECONDS
            self._receiving = self._spawn(self._receive(receiver, limit, BUSY_RECEIVE_SECONDS if busy else wait))

    def _stop_receiving(self) -> None:
        if self._receiving is not None:
            self._receiving.cancel()
            self._receiving = None

    def _start(self, action: Action, receiver: BacklogReceiver) -> None:
        match action:
            case Send():
                self._spawn(self._send(action))
            case Complete():
                self._spawn(self._complete(action, receiver))
            case Release():
                self._spawn(self._release(action, receiver))
            case Bury():
                self._spawn(self._bury(action, receiver))
            case Peek():
                self._spawn(self._peek(action, receiver))
            case Seek():
                self._spawn(self._seek(action, receiver))
            case Probe():
                self._spawn(self._probe())

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

    # --- what takes time ----------------------------------------------------------------------------------

    async def _receive(self, receiver: BacklogReceiver, limit: int, wait: float) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        deliveries = await receiver.receive(limit, wait)
        self._take(deliveries, loop.time() - began)
        if not deliveries and self._once and wait != BUSY_RECEIVE_SECONDS and self.planner.idle:
            # Others may hold what is left: the queue is empty only when peeking shows nothing.
            self.drained = not await self._look(receiver, 0, 1)

    async def _hush(self, receiver: BacklogReceiver) -> None:
        deliveries = await receiver.quiet()
        if deliveries:
            self._take(deliveries, 0.0)

    def _take(self, deliveries: Sequence[Delivery], seconds: float) -> None:
        self.logbook.look_at(deliveries)
        self.planner.arrived(deliveries, asyncio.get_running_loop().time())
        self.logbook.received(deliveries, seconds)

    async def _send(self, send: Send) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        error: SendError | None = None
        try:
            async with asyncio.timeout(self._options.send_timeout):
                await self._transport.send(send.destination, send.raws)
        except TimeoutError:
            text = f"no answer within {self._options.send_timeout:g} s"
            error = SendError(SendFailure.UNREACHABLE, "com.microsoft:timeout", text, in_doubt=True)
        except SendError as refused:
            error = refused
        except Exception as bug:  # the outermost frame of a send: its lane must hear of any end
            log.exception("a send failed in a way nobody thought of", extra={"queue": self.queue})
            error = SendError(SendFailure.UNAVAILABLE, f"client:{type(bug).__name__}", str(bug), in_doubt=True)
        now = loop.time()
        self._note_send(send.destination, error)
        self.logbook.sent(send.destination, send.items, error, now - began)
        self.planner.sent(send, error, now, self._options.draw())
        if error is None:
            self._accepted("primary", send.destination)
        elif error.token_refused:
            self._refused("primary", send.destination, str(error))
        self._note_share()

    def _note_send(self, destination: str, error: SendError | None) -> None:
        """An error is over when its destination takes a message; that of a dead letter, when any does."""
        if error is None:
            self._errors.pop(destination, None)
            self._errors.pop(_DEAD_LETTERED, None)
        elif error.failure in (SendFailure.MISSING, SendFailure.REFUSED):
            self._errors.pop(destination, None)
            self._note(_DEAD_LETTERED, f"{destination}: {error}")
        else:
            self._note(destination, f"{destination}: {error}")

    async def _complete(self, action: Complete, receiver: BacklogReceiver) -> None:
        await self.logbook.on_disk()
        complete = receiver.complete if action.part_of is None else receiver.complete_together
        lost = await complete(action.deliveries)
        if not lost:
            self.planner.completed(action)
        self.logbook.completed(action.deliveries, action.carried, lost)

    async def _release(self, action: Release, receiver: BacklogReceiver) -> None:
        lost = await receiver.release(action.deliveries)
        self.logbook.released(action.deliveries, lost)

    async def _bury(self, action: Bury, receiver: BacklogReceiver) -> None:
        lost = await receiver.dead_letter(action.letters)
        self.logbook.buried(action.letters, lost)
        first = action.letters[0]
        log.warning(
            "dead-lettered",
            extra={
                "queue": self.queue,
                "count": len(action.letters),
                "reason": first.reason,
                "cause": first.description,
            },
        )
        self._note_share()

    async def _peek(self, action: Peek, receiver: BacklogReceiver) -> None:
        self.planner.peeked(action.gap, await self._look(receiver, action.gap[0], PEEK_AT_MOST))

    async def _look(self, receiver: BacklogReceiver, from_number: int, count: int) -> list[Peeked]:
        loop = asyncio.get_running_loop()
        began = loop.time()
        found = await receiver.peek(from_number, count)
        self.logbook.peeked(found, loop.time() - began)
        return found

    async def _seek(self, action: Seek, receiver: BacklogReceiver) -> None:
        found: list[Peeked] = []
        near = action.until_ms is None
        begin = max(0, action.around - SEEK_BEFORE) if near else 0
        while not near or begin < action.around + SEEK_AFTER:
            more = await self._look(receiver, begin, PEEK_AT_MOST)
            found += [one for one in more if one.part_of == action.part_of]
            if not more or (action.until_ms is not None and more[-1].enqueued_ms > action.until_ms):
                break
            begin = more[-1].sequence_number + 1
        loop = asyncio.get_running_loop()
        self.planner.sought(action, found, loop.time(), self._options.draw())

    async def _probe(self) -> None:
        self.logbook.counts.probes += 1
        answers = await self._transport.reachable()
        self.planner.probed(answers, asyncio.get_running_loop().time(), self._options.draw())

    def _renew(self, receiver: BacklogReceiver, now: float) -> None:
        self._renew_at = now + RENEW_CHECK_SECONDS
        deliveries = self.planner.to_renew(now)
        if deliveries:
            self.planner.renewed(deliveries, now + 10 * RENEW_CHECK_SECONDS)  # not again while this is under way
            self._spawn(self._renewed(receiver, deliveries))

    async def _renewed(self, receiver: BacklogReceiver, deliveries: list[Delivery]) -> None:
        again_at, lost = await receiver.renew(deliveries)
        self.logbook.counts.renewed += len(deliveries) - len(lost)
        self.planner.renewed(deliveries, again_at)
        if lost:
            self.planner.lost_locks(lost)

    def _note_share(self) -> None:
        counts = self.logbook.counts
        if self._share is not None and counts.restored + counts.dead_lettered >= self._share:
            self.stop()
