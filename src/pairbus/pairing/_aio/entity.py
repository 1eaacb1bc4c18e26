"""The SDK's senders and the entities they send to.

`SharedSender` is one SDK sender for many callers. `WatchedEntity` is one entity of the primary: its state, its failover
timer and its pings. A healthy entity has no task. When it leaves that state, one task starts, waits for the end of the
failover interval, then sends the pings, and ends when the entity is healthy again.
"""

from __future__ import annotations

import functools
import logging
import math
import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from azure.core.exceptions import AzureError
from azure.servicebus.aio import ServiceBusSender
from azure.servicebus.exceptions import OperationTimeoutError

from pairbus.failover.classification import Verdict, verdict
from pairbus.failover.states import Action, Decision, EntityState, Event, EventKind, FailoverRules
from pairbus.ledger import Operation, Route, error_name
from pairbus.pairing import sdk
from pairbus.pairing._aio import runtime
from pairbus.pairing.observers import Observers
from pairbus.pairing.surface import EntityRecord

_log = logging.getLogger("pairbus.pairing")

_SHORTEST_PING_TIMEOUT = 10.0
_PAUSE_AFTER_FAILURE_SECONDS = 1.0

IDLE_SECONDS = 60.0
"""A link without a successful call for this long counts as idle. The service allows 10 minutes, routers less."""

T = TypeVar("T")


def always() -> bool:
    return True


class SharedSender:
    """An SDK sender whose callers take turns, each with a time limit.

    The SDK's sender does not allow concurrent use. A sender whose call was cancelled may have written half a frame, so
    it is replaced and closed. The service detaches idle links, and routers forget idle connections: a call that fails
    on a link that was idle is made once more, on a fresh one.
    """

    def __init__(self, make: Callable[[], ServiceBusSender], guard: runtime.Guard) -> None:
        self._make = make
        self._limit = guard.limit()
        self._turn = runtime.Turn()
        self._mutex = threading.Lock()
        self._sender: ServiceBusSender | None = None
        self._used_at = math.inf
        self._closings: list[runtime.Job] = []
        self._closed = False

    @property
    def sender(self) -> ServiceBusSender:
        """The SDK's sender: created on first access, opened on first use."""
        sender = self._sender
        if sender is not None:
            return sender
        with self._mutex:
            if self._sender is None:
                self._sender = runtime.watched(self._make())
            return self._sender

    @property
    def waiting(self) -> int:
        """The number of callers that wait for their turn."""
        return self._turn.waiting

    async def use(
        self,
        deadline: float,
        call: Callable[[ServiceBusSender, float], Awaitable[T]],
        wanted: Callable[[], bool] = always,
        on_retry: Callable[[BaseException], None] | None = None,
    ) -> T:
        """Make the call when it is our turn, with the SDK's sender and the remaining seconds.

        `on_retry` gets the error of a call on an idle link before the call is made again.
        """
        turn, limit = self._turn, self._limit
        if not turn.take_now():
            await self._wait_for_turn(deadline, wanted)
        try:
            while True:
                if self._closed:
                    raise ValueError("The sender has been closed.")
                sender = self._sender or self.sender
                started = runtime.now()
                seconds = deadline - started
                if seconds <= 0:
                    raise sdk.TurnTimeoutError
                was_idle = started - self._used_at >= IDLE_SECONDS
                if was_idle:
                    seconds /= 2  # the rest is for a fresh link
                limit.begin(sender, started, seconds)
                failure: Exception
                try:
                    result = await call(sender, seconds)
                except runtime.CANCELLED as error:
                    self._replace(sender)
                    if not limit.ended_the_call():
                        raise
                    failure = _no_answer(seconds, error)
                except (AzureError, OSError) as error:
                    failure = _no_answer(seconds, error) if limit.ended_the_call() else error
                else:
                    self._used_at = started
                    return result
                finally:
                    limit.end()
                if not was_idle or verdict(sdk.describe(failure)) is not Verdict.COUNTS:
                    raise failure
                _log.info("A link failed after it was idle (%s); trying a fresh one.", type(failure).__name__)
                if on_retry is not None:
                    on_retry(failure)
                self._used_at = math.inf
                if self._sender is sender:
                    self._replace(sender)
        finally:
            turn.give_back()

    async def send(
        self,
        message: Callable[[ServiceBusSender], Any],
        deadline: float,
        on_retry: Callable[[BaseException], None] | None = None,
    ) -> None:
        """Send the message that is made for the SDK's sender."""

        async def sent(sender: ServiceBusSender, seconds: float) -> None:
            await sender.send_messages(message(sender), timeout=seconds)

        await self.use(deadline, sent, on_retry=on_retry)

    async def open(self, deadline: float, wanted: Callable[[], bool] = always) -> None:
        """Open the SDK's link if it is not open; raises the SDK's errors."""

        async def opened(sender: ServiceBusSender, seconds: float) -> None:
            await sdk.open_link(sender, seconds)

        await self.use(deadline, opened, wanted)

    def nudge(self) -> None:
        """Make the waiting callers check whether they still want their turn."""
        self._turn.nudge()

    async def close(self) -> None:
        """Close the SDK's sender after the call in flight; waiting calls are refused."""
        self._closed = True
        await self._turn.take(math.inf, always)
        try:
            sender, self._sender = self._sender, None
            if sender is not None:
                await sender.close()
            while self._closings:
                await self._closings.pop().finish()
        finally:
            self._turn.give_back()

    async def _wait_for_turn(self, deadline: float, wanted: Callable[[], bool]) -> None:
        if not await self._turn.take(deadline, wanted):
            raise sdk.TurnTimeoutError if wanted() else sdk.NotWantedError
        if not wanted():
            self._turn.give_back()
            raise sdk.NotWantedError

    def _replace(self, sender: ServiceBusSender) -> None:
        """Drop the sender, so that the next call makes a new one, and close it in the background."""
        self._sender = None
        self._closings = [closing for closing in self._closings if closing.running]
        self._closings.append(runtime.Job("pairbus-closing", functools.partial(_close, sender)))


async def _close(sender: ServiceBusSender) -> None:
    try:
        await sender.close()
    except Exception:  # the sender is discarded either way
        _log.debug("Closing a sender whose call was cancelled failed.", exc_info=True)


def _no_answer(seconds: float, cause: BaseException) -> OperationTimeoutError:
    error = OperationTimeoutError(message=f"No answer within {seconds:g} seconds.")
    error.__cause__ = cause
    return error


class WatchedEntity(EntityRecord):
    """The state of one entity of the primary, and the task that watches it while it is not healthy."""

    def __init__(
        self,
        name: str,
        rules: FailoverRules,
        *,
        make_sender: Callable[[], ServiceBusSender],
        guard: runtime.Guard,
        observers: Observers,
        send_timeout: float,
    ) -> None:
        super().__init__(name, rules, observers)
        self._make_sender = make_sender
        self._guard = guard
        self._ping_timeout = min(send_timeout, max(rules.ping_interval, _SHORTEST_PING_TIMEOUT))
        self._wake = runtime.Wake()
        self._watch: runtime.Job | None = None

    def _start_watching(self) -> None:
        if self._watch is None:
            self._watch = runtime.Job(f"pairbus-watch-{self.name}", self._watch_until_healthy)

    def handle(self, event: Event) -> Decision:
        """Apply an event, start the watching task if it is needed, and report the transitions."""
        return self.apply(event, runtime.now())

    async def close(self) -> None:
        with self._mutex:
            self._closed = True
            watch = self._watch
        self._wake.set()
        if watch is not None:
            await watch.stop()

    async def _watch_until_healthy(self) -> None:
        while True:
            with self._mutex:
                if self._closed or self.machine.state is EntityState.HEALTHY:
                    self._watch = None
                    return
            try:
                await self._watch_once()
            except Exception:  # the outermost loop: without it the entity would never be pinged again
                _log.exception("Watching %s failed; retrying.", self.name)
                await self._wake.wait(_PAUSE_AFTER_FAILURE_SECONDS)

    async def _watch_once(self) -> None:
        """Wait for the next deadline, or pass the one that is due."""
        with self._mutex:
            deadline = self.machine.next_deadline
        if deadline is not None:
            remaining = deadline - runtime.now()
            if remaining > 0:
                await self._wake.wait(remaining)
                return
        if self.handle(Event(EventKind.DEADLINE)).action is Action.SEND_PING:
            await self._ping(self.machine.era)

    async def _ping(self, era: int) -> None:
        sender = SharedSender(self._make_sender, self._guard)
        message = sdk.ping()
        started = runtime.now()
        try:
            failure: Exception | None = None
            try:
                await sender.send(lambda _: message, started + self._ping_timeout)
            except Exception as error:  # any error means that this ping was not delivered
                failure = error
            if self._closed:
                return
            try:
                self._observers.pinged(
                    self._observers.completed(
                        Operation.PING,
                        self.name,
                        runtime.now() - started,
                        failure,
                        message_ids=[message.message_id],
                        route=Route.PRIMARY,
                        episode=self.episode,
                    )
                )
            finally:  # the state must learn the result of the ping even if recording it failed
                kind = EventKind.PING_SUCCEEDED if failure is None else EventKind.PING_FAILED
                self.handle(Event(kind, error_name(failure) or "ping", era))
        finally:
            try:
                await sender.close()
            except Exception:  # the connection of this ping is discarded either way
                _log.debug("Closing the connection of a ping to %s failed.", self.name, exc_info=True)
