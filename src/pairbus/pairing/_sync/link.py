# Generated from ../_aio/link.py by scripts/generate_sync.py: change that file, not this one.
"""One SDK sender, used by one caller at a time and never without a limit of time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from azure.servicebus import ServiceBusSender
from azure.servicebus.exceptions import OperationTimeoutError

from pairbus.pairing import sdk
from pairbus.pairing._sync import runtime

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

    def use(
        self,
        deadline: float,
        call: Callable[[ServiceBusSender, float], T],
        wanted: Callable[[], bool] = always,
    ) -> T:
        """Make the call when it is our turn; it is given the SDK's sender and the seconds that are left."""
        if not self._turn.take(deadline, wanted):
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
                return self._guard.run(sender, seconds, lambda: call(sender, seconds))
            except runtime.CANCELLED:
                self._sender = None
                self._discarded.append(sender)
                raise
        finally:
            self._turn.give_back()

    def open(self, deadline: float, wanted: Callable[[], bool] = always) -> None:
        """Open the SDK's link if it is not open; raises what the SDK raises."""

        def opened(sender: ServiceBusSender, seconds: float) -> None:
            sdk.open_link(sender, seconds)

        self.use(deadline, opened, wanted)

    def nudge(self) -> None:
        """Let those who wait for their turn look again whether they still want it."""
        self._turn.nudge()

    def close(self) -> None:
        self._closed = True
        sender, self._sender = self._sender, None
        for one in (*self._discarded, *([sender] if sender is not None else [])):
            one.close()
        self._discarded.clear()
