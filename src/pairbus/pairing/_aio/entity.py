"""The SDK's senders and the entities they send to.

`SharedSender` is one SDK sender for many callers. `WatchedEntity` is one entity of the primary: its state, its failover
timer and its pings. A healthy entity has no task. When it leaves that state, one task starts, waits for the end of the
failover interval, then sends the pings, and ends when the entity is healthy again.
"""

from __future__ import annotations

import functools
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar
from weakref import WeakSet

from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusSender
from azure.servicebus.exceptions import OperationTimeoutError

from pairbus.failover import Action, Decision, EntityMachine, EntityState, Event, EventKind, FailoverRules, Transition
from pairbus.ledger import CompletedOperation, Operation, Route, error_name, outcome_of
from pairbus.pairing import sdk
from pairbus.pairing._aio import runtime
from pairbus.pairing.observers import Observers, new_episode

_log = logging.getLogger("pairbus.pairing")

_SHORTEST_PING_TIMEOUT = 10.0
_PAUSE_AFTER_FAILURE_SECONDS = 1.0

T = TypeVar("T")


class NotWantedError(Exception):
    """The entity failed over while the caller waited for its turn."""


class TurnTimeoutError(OperationTimeoutError):
    """The caller's time ran out before its turn came. The server was not called, so this says nothing about it."""

    def __init__(self) -> None:
        super().__init__(message="Timed out waiting for earlier sends of this sender.")


def always() -> bool:
    return True


class SharedSender:
    """An SDK sender whose callers take turns, each with a time limit.

    The SDK's sender does not allow concurrent use. A sender whose call was cancelled may have written half a frame, so
    it is replaced and closed.
    """

    def __init__(self, make: Callable[[], ServiceBusSender], guard: runtime.Guard) -> None:
        self._make = make
        self._limit = guard.limit()
        self._turn = runtime.Turn()
        self._mutex = runtime.Mutex()
        self._sender: ServiceBusSender | None = None
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
                self._sender = self._make()
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
    ) -> T:
        """Make the call when it is our turn, with the SDK's sender and the remaining seconds."""
        turn, limit = self._turn, self._limit
        if not turn.take_now():
            await self._wait_for_turn(deadline, wanted)
        try:
            if self._closed:
                raise ValueError("The sender has been closed.")
            sender = self._sender or self.sender
            seconds = deadline - runtime.now()
            if seconds <= 0:
                raise TurnTimeoutError
            limit.begin(sender, seconds)
            try:
                return await call(sender, seconds)
            except runtime.CANCELLED as error:
                self._replace(sender)
                if limit.ended_the_call():
                    raise _no_answer(seconds) from error
                raise
            except runtime.ENDED_BY_LIMIT as error:
                if limit.ended_the_call():
                    raise _no_answer(seconds) from error
                raise
            finally:
                limit.end()
        finally:
            turn.give_back()

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
            raise TurnTimeoutError if wanted() else NotWantedError
        if not wanted():
            self._turn.give_back()
            raise NotWantedError

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


def _no_answer(seconds: float) -> OperationTimeoutError:
    return OperationTimeoutError(message=f"No answer within {seconds:g} seconds.")


class WatchedEntity:
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
        self.name = name
        self.machine = EntityMachine(rules)
        self.episode: str | None = None
        self.message_limit_bytes = 0
        self.batch_limit_bytes = 0
        self._make_sender = make_sender
        self._guard = guard
        self._observers = observers
        self._ping_timeout = min(send_timeout, max(rules.ping_interval, _SHORTEST_PING_TIMEOUT))
        self._senders: WeakSet[SharedSender] = WeakSet()
        self._mutex = runtime.Mutex()
        self._wake = runtime.Wake()
        self._watch: runtime.Job | None = None
        self._unreported: deque[tuple[Transition, str]] = deque()
        self._reporting = False
        self._closed = False

    def __repr__(self) -> str:
        return f"<WatchedEntity {self.name} {self.machine.state.value}>"

    def takes_sends(self) -> bool:
        """Whether sends go to the primary now."""
        return self.machine.route_to_primary

    def learn_limits(self, sender: ServiceBusSender) -> None:
        """Keep the size limits that the service announced when a link of this entity was opened."""
        self.message_limit_bytes = sdk.message_limit(sender) or self.message_limit_bytes
        self.batch_limit_bytes = sdk.batch_limit(sender) or self.batch_limit_bytes

    def adopt(self, sender: SharedSender) -> None:
        """Nudge the callers that wait for this sender when the entity changes its state."""
        with self._mutex:
            self._senders.add(sender)

    def handle(self, event: Event) -> Decision:
        """Apply an event, start the watching task if it is needed, and report the transitions."""
        senders: list[SharedSender] = []
        with self._mutex:
            decision = self.machine.handle(event, runtime.now())
            if decision.transitions:
                senders = list(self._senders)
            for transition in decision.transitions:
                if self.episode is None:
                    self.episode = new_episode()
                self._unreported.append((transition, self.episode))
                if transition.after is EntityState.HEALTHY:
                    self.episode = None
            if self.machine.state is not EntityState.HEALTHY and self._watch is None and not self._closed:
                self._watch = runtime.Job(f"pairbus-watch-{self.name}", self._watch_until_healthy)
        if decision.transitions:
            self._wake.set()
            for sender in senders:
                sender.nudge()
            self._report()
        return decision

    async def close(self) -> None:
        with self._mutex:
            self._closed = True
            watch = self._watch
        self._wake.set()
        if watch is not None:
            await watch.stop()

    def _report(self) -> None:
        """Report transitions in the order they happened, whichever task or thread caused them."""
        while True:
            with self._mutex:
                if self._reporting or not self._unreported:
                    return
                transition, episode = self._unreported.popleft()
                self._reporting = True
            try:
                self._observers.transition(self.name, transition, episode)
            finally:
                self._reporting = False

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
            failure = await _send_ping(sender, message, started + self._ping_timeout)
            if self._closed:
                return
            try:
                self._observers.pinged(
                    CompletedOperation(
                        Operation.PING,
                        self._observers.primary,
                        self.name,
                        [message.message_id],
                        outcome=outcome_of(failure),
                        error=error_name(failure),
                        latency_us=int((runtime.now() - started) * 1_000_000),
                        route=Route.PRIMARY,
                        episode=self.episode,
                    )
                )
            finally:  # the state must learn the result of the ping even if recording it failed
                if failure is None:
                    self.handle(Event(EventKind.PING_SUCCEEDED, "ping", era))
                else:
                    self.handle(Event(EventKind.PING_FAILED, type(failure).__name__, era))
        finally:
            try:
                await sender.close()
            except Exception:  # the connection of this ping is discarded either way
                _log.debug("Closing the connection of a ping to %s failed.", self.name, exc_info=True)


async def _send_ping(sender: SharedSender, message: ServiceBusMessage, deadline: float) -> Exception | None:
    async def send(sdk_sender: ServiceBusSender, seconds: float) -> None:
        await sdk_sender.send_messages(message, timeout=seconds)

    try:
        await sender.use(deadline, send)
    except Exception as error:  # any error means that this ping was not delivered
        return error
    return None
