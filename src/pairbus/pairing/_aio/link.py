"""One SDK sender, used by one caller at a time and never without a limit of time."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Awaitable, Callable
from typing import TypeVar

from azure.servicebus.aio import ServiceBusSender
from azure.servicebus.exceptions import OperationTimeoutError

from pairbus.pairing import sdk
from pairbus.pairing._aio import runtime

_log = logging.getLogger("pairbus.pairing")

T = TypeVar("T")


class NotWantedError(Exception):
    """While the caller waited for its turn, the reason to use this link went away."""


class TurnTimeoutError(OperationTimeoutError):
    """The caller's time was over before its turn came: the server was not asked, so this tells nothing about it."""

    def __init__(self) -> None:
        super().__init__(message="Timed out waiting for earlier sends of this sender.")


def always() -> bool:
    return True


class Link:
    """An SDK sender and the turn to use it.

    The SDK's sender is not made for concurrent use: callers take turns, in the order they came. A sender whose call
    was cancelled may be in the middle of a frame, so it is replaced and the old one is closed.
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
        """The SDK's sender; made when first asked for, opened when first used."""
        sender = self._sender
        if sender is not None:
            return sender
        with self._mutex:
            if self._sender is None:
                self._sender = self._make()
            return self._sender

    @property
    def waiting(self) -> int:
        """How many callers wait for their turn."""
        return self._turn.waiting

    async def use(
        self,
        deadline: float,
        call: Callable[[ServiceBusSender, float], Awaitable[T]],
        wanted: Callable[[], bool] = always,
    ) -> T:
        """Make the call when it is our turn; it is given the SDK's sender and the seconds that are left."""
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
        """Open the SDK's link if it is not open; raises what the SDK raises."""

        async def opened(sender: ServiceBusSender, seconds: float) -> None:
            await sdk.open_link(sender, seconds)

        await self.use(deadline, opened, wanted)

    def nudge(self) -> None:
        """Let those who wait for their turn look again whether they still want it."""
        self._turn.nudge()

    async def close(self) -> None:
        """Close the SDK's sender after the call that is under way; calls that wait for their turn are refused."""
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
        """Let the next call have a new sender, and close the old one beside."""
        self._sender = None
        self._closings = [closing for closing in self._closings if closing.running]
        self._closings.append(runtime.Job("pairbus-closing", functools.partial(_close, sender)))


async def _close(sender: ServiceBusSender) -> None:
    try:
        await sender.close()
    except Exception:  # it is of no further use, whatever its end is like
        _log.debug("Closing a sender whose call was cancelled failed.", exc_info=True)


def _no_answer(seconds: float) -> OperationTimeoutError:
    return OperationTimeoutError(message=f"No answer within {seconds:g} seconds.")
