"""What the aio shell needs from its world. `_sync/runtime.py` offers the same names for threads.

These two files are written by hand; the rest of `_sync` is generated from `_aio`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from azure.servicebus.exceptions import OperationTimeoutError

T = TypeVar("T")

now = time.monotonic

_GRACE_SECONDS = 1.0


class Mutex(contextlib.AbstractContextManager[None]):
    """Nothing to guard: one loop, and no await inside."""

    def __exit__(self, *_: object) -> None:
        return None


class Turn:
    """One user at a time; a waiter gives up at its deadline or when it is no longer wanted."""

    def __init__(self) -> None:
        self._taken = False
        self._waiters: list[asyncio.Future[None]] = []

    async def take(self, deadline: float, wanted: Callable[[], bool]) -> bool:
        """True when it is our turn; False if the deadline passed or it is no longer wanted."""
        while self._taken:
            if not wanted() or now() >= deadline:
                return False
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await asyncio.wait_for(waiter, deadline - now())
            except TimeoutError:
                pass
            except asyncio.CancelledError:
                if waiter.done():
                    self._wake_one()  # the turn offered to us goes to the next
                raise
            finally:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
        self._taken = True
        return True

    def give_back(self) -> None:
        self._taken = False
        self._wake_one()

    def nudge(self) -> None:
        """Let every waiter look again whether it is still wanted."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _wake_one(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
                return


class Wake:
    """A flag that ends a wait early and is lowered by the one who waited."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        self._event.set()

    async def wait(self, seconds: float | None) -> bool:
        """True if the flag was raised, False if the time passed."""
        try:
            await asyncio.wait_for(self._event.wait(), seconds)
        except TimeoutError:
            return False
        self._event.clear()
        return True


class Job:
    """A task of ours, until it ends."""

    def __init__(self, name: str, body: Callable[[], Awaitable[None]]) -> None:
        self._task = asyncio.ensure_future(_run(body))
        self._task.set_name(name)

    async def stop(self) -> None:
        """End it now and wait until it has ended."""
        if self._task is asyncio.current_task():
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    @property
    def running(self) -> bool:
        return not self._task.done()


async def _run(body: Callable[[], Awaitable[None]]) -> None:
    await body()


async def all_of(calls: Sequence[Callable[[], Awaitable[T]]]) -> list[T | BaseException]:
    """Make all calls at once; their results or errors, in order."""
    return await asyncio.gather(*(call() for call in calls), return_exceptions=True)


async def in_thread(call: Callable[[], T]) -> T:
    """Make a call that blocks (the disk) without holding up the loop."""
    return await asyncio.to_thread(call)


class Guard:
    """Bounds calls into the SDK that it does not bound itself; closing it ends every call under way."""

    def __init__(self) -> None:
        self._limits: set[asyncio.Timeout] = set()
        self._closed = False

    async def run(self, sender: Any, seconds: float, call: Callable[[], Awaitable[T]]) -> T:
        """The call's result; OperationTimeoutError if it is not there in time."""
        if self._closed:
            raise ValueError("The paired client has been closed.")
        limit = asyncio.timeout(seconds + _GRACE_SECONDS)
        try:
            async with limit:
                self._limits.add(limit)
                try:
                    return await call()
                finally:
                    self._limits.discard(limit)
        except TimeoutError as error:
            if limit.expired():
                raise OperationTimeoutError(message=f"No answer within {seconds:g} seconds.") from error
            raise

    def close(self) -> None:
        self._closed = True
        if self._limits:
            now_on_loop = asyncio.get_running_loop().time()
            for limit in self._limits:
                if not limit.expired():
                    limit.reschedule(now_on_loop)


CANCELLED: tuple[type[BaseException], ...] = (asyncio.CancelledError,)
"""What a call raises when its caller gave up; the SDK's connection may then be in the middle of a frame."""
