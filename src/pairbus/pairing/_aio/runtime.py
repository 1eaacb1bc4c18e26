"""Turns, jobs and time limits for tasks. `_sync/runtime.py` has the same names for threads.

Both files are written by hand; the rest of `_sync` is generated from `_aio`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar
from weakref import WeakSet

from pairbus.pairing.sdk import grace, unfinished_session

T = TypeVar("T")

now = time.monotonic

_CANCEL_AGAIN_SECONDS = 1.0
_LONGEST_TIMER_SECONDS = 60.0


class Turn:
    """One user at a time, first come, first served. Waiters give up at their deadline or when no longer wanted."""

    def __init__(self) -> None:
        self._taken = False
        self._waiters: deque[tuple[asyncio.Future[bool], Callable[[], bool]]] = deque()

    @property
    def waiting(self) -> int:
        """The number of waiters."""
        return len(self._waiters)

    def take_now(self) -> bool:
        """Take the turn if it is free; whether it was."""
        if self._taken:
            return False
        self._taken = True
        return True

    async def take(self, deadline: float, wanted: Callable[[], bool]) -> bool:
        """Wait for the turn; False if the deadline passed or it is no longer wanted."""
        if self.take_now():
            return True
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[bool] = loop.create_future()
        place = (waiter, wanted)
        self._waiters.append(place)
        timer = loop.call_at(deadline, _answer, waiter, False)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.result():
                self.give_back()  # we got the turn; pass it on
            raise
        finally:
            timer.cancel()
            with contextlib.suppress(ValueError):
                self._waiters.remove(place)

    def give_back(self) -> None:
        """Hand the turn to the longest waiter. Nobody who comes later gets it first."""
        while self._waiters:
            waiter, _ = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(True)
                return
        self._taken = False

    def nudge(self) -> None:
        """Make every waiter check whether it still wants the turn."""
        for waiter, wanted in self._waiters:
            if not wanted():
                _answer(waiter, False)


def _answer(waiter: asyncio.Future[bool], answer: bool) -> None:
    if not waiter.done():
        waiter.set_result(answer)


class Wake:
    """A flag that ends a wait early; the waiter clears it."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        self._event.set()

    async def wait(self, seconds: float | None) -> bool:
        """True if the flag was set, False if the time passed."""
        try:
            await asyncio.wait_for(self._event.wait(), seconds)
        except TimeoutError:
            return False
        self._event.clear()
        return True


class Job:
    """A background task."""

    def __init__(self, name: str, body: Callable[[], Awaitable[None]]) -> None:
        self._task = asyncio.ensure_future(_run(body))
        self._task.set_name(name)

    async def stop(self) -> None:
        """Cancel it and wait until it has ended."""
        if self._task is asyncio.current_task():
            return
        self._task.cancel()
        await self.finish()

    async def finish(self) -> None:
        """Wait until it ends by itself."""
        await asyncio.gather(self._task, return_exceptions=True)

    @property
    def running(self) -> bool:
        return not self._task.done()


async def _run(body: Callable[[], Awaitable[None]]) -> None:
    await body()


async def all_of(calls: Sequence[Callable[[], Awaitable[T]]]) -> list[T | BaseException]:
    """Make all calls at once; returns their results or errors, in order."""
    return await asyncio.gather(*(call() for call in calls), return_exceptions=True)


async def in_thread(call: Callable[[], T]) -> T:
    """Make a call that blocks (the disk) in a thread, to keep the loop running.

    A thread cannot be cancelled: a cancelled caller gets its CancelledError after the call has ended.
    """
    work = asyncio.ensure_future(asyncio.to_thread(call))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait({work})
        raise


class Once:
    """Does something once and to its end, even if its caller is cancelled; every caller waits for that end."""

    def __init__(self) -> None:
        self._task: asyncio.Future[None] | None = None

    async def do(self, body: Callable[[], Awaitable[None]]) -> None:
        if self._task is None:
            self._task = asyncio.ensure_future(_run(body))
        await asyncio.shield(self._task)


def watched(sender: T) -> T:
    """The sender, prepared for its limit: cancelling a call needs no preparation."""
    return sender


class Guard:
    """Limits the time of calls into the SDK, which has no timeout for some. Closing it ends every call in flight."""

    def __init__(self) -> None:
        self._limits: WeakSet[Limit] = WeakSet()
        self.closed = False

    def limit(self) -> Limit:
        """The time limit for the calls of one sender."""
        limit = Limit(self)
        self._limits.add(limit)
        return limit

    def close(self) -> None:
        self.closed = True
        for limit in list(self._limits):
            limit.expire()


class Limit:
    """The time limit for the calls of one sender, one call at a time.

    One timer serves many calls: when it fires, it checks the call in flight and is set again if that call still has
    time. So a call that ends in time pays for no timer. An overdue call is cancelled repeatedly until it ends: the SDK
    may treat a cancellation as one more error to retry.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._task: asyncio.Task[Any] | None = None
        self._cancelled_before = 0
        self._cancelled_by_us = 0
        self._ends = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._sender: Any = None
        self._session: Any = None
        self._closing: asyncio.Future[None] | None = None

    def begin(self, sender: Any, started: float, seconds: float) -> None:
        """A call begins; it is cancelled after `seconds` and a grace period."""
        if self._guard.closed:
            raise ValueError("The paired client has been closed.")
        task = asyncio.current_task()
        assert task is not None
        self._task, self._cancelled_before = task, task.cancelling()
        self._sender = sender
        self._ends = started + seconds + grace(seconds)
        timer = self._timer
        if timer is None:
            self._set_timer(self._ends)
        elif timer.when() > self._ends:
            timer.cancel()
            self._set_timer(self._ends)

    def ended_the_call(self) -> bool:
        """Whether the limit cancelled the call, and its caller did not."""
        task, times = self._task, self._cancelled_by_us
        if not times or task is None:
            return False
        self._cancelled_by_us = 0
        return [task.uncancel() for _ in range(times)][-1] <= self._cancelled_before

    def end(self) -> None:
        """The call has ended, in whatever way."""
        if self._cancelled_by_us:
            self.ended_the_call()
        if self._session is not None:
            self._closing = asyncio.ensure_future(self._session.close())
            self._session = None
        self._task = None

    def expire(self) -> None:
        """End the call in flight, if there is one."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is not None:
            self._session = unfinished_session(self._sender) or self._session
            self._cancelled_by_us += 1
            self._task.cancel()
            self._ends = now()
            self._set_timer(self._ends + _CANCEL_AGAIN_SECONDS)

    def _set_timer(self, when: float) -> None:
        self._timer = asyncio.get_running_loop().call_at(min(when, now() + _LONGEST_TIMER_SECONDS), self._check)

    def _check(self) -> None:
        self._timer = None
        if self._task is not None:
            if now() < self._ends:
                self._set_timer(self._ends)
            else:
                self.expire()


CANCELLED: tuple[type[BaseException], ...] = (asyncio.CancelledError,)
"""Errors of a call whose caller gave up. The SDK may have written half a frame on its connection."""
