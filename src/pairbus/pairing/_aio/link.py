"""One SDK sender, used by one caller at a time and never without a limit of time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from azure.servicebus.aio import ServiceBusSender
from azure.servicebus.exceptions import OperationTimeoutError

from pairbus.pairing import sdk
from pairbus.pairing._aio import runtime

T = TypeVar("T")


class NotWantedError(Exception):
    """While the caller waited for its turn, the reason to use this link went away."""


def always() -> bool:
    return True


class Link:
    """An SDK sender and the turn to use it.

    The SDK's sender is not made for concurrent use: callers take turns. A sender whose call was cancelled
    may be in the middle of a frame, so it is replaced and the old one is closed.
    """

    def __init__(self, make: Callable[[], ServiceBusSender], guard: runtime.Guard) -> None:
        self._make = make
        self._guard = guard
        self._turn = runtime.Turn()
        self._mutex = runtime.Mutex()
        self._sender: ServiceBusSender | None = None
        self._discarded: list[ServiceBusSender] = []
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

    async def use(
        self,
        deadline: float,
        call: Callable[[ServiceBusSender, float], Awaitable[T]],
        wanted: Callable[[], bool] = always,
    ) -> T:
        """Make the call when it is our turn; it is given the SDK's sender and the seconds that are left."""
        if not await self._turn.take(deadline, wanted):
            if wanted():
                raise OperationTimeoutError(message="Timed out waiting for earlier sends of this sender.")
            raise NotWantedError
        try:
            if self._closed:
                raise ValueError("The sender has been closed.")
            if not wanted():
                raise NotWantedError
            sender = self.sender
            seconds = deadline - runtime.now()
            if seconds <= 0:
                raise OperationTimeoutError(message="No time was left for the send.")
            try:
                return await self._guard.run(sender, seconds, lambda: call(sender, seconds))
            except runtime.CANCELLED:
                self._sender = None
                self._discarded.append(sender)
                raise
        finally:
            self._turn.give_back()

    async def open(self, deadline: float, wanted: Callable[[], bool] = always) -> None:
        """Open the SDK's link if it is not open; raises what the SDK raises."""

        async def opened(sender: ServiceBusSender, seconds: float) -> None:
            await sdk.open_link(sender, seconds)

        await self.use(deadline, opened, wanted)

    def nudge(self) -> None:
        """Let those who wait for their turn look again whether they still want it."""
        self._turn.nudge()

    async def close(self) -> None:
        self._closed = True
        sender, self._sender = self._sender, None
        for one in (*self._discarded, *([sender] if sender is not None else [])):
            await one.close()
        self._discarded.clear()
