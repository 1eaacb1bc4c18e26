"""Turns, jobs and time limits for threads. `_aio/runtime.py` has the same names for tasks.

Both files are written by hand; the rest of `_sync` is generated from `_aio`.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from weakref import WeakSet

from azure.servicebus import ServiceBusSender

from pairbus.pairing.sdk import break_connection, grace, watch_handshakes

T = TypeVar("T")

now = time.monotonic

_SHORTEST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 1.0
_MOST_AT_ONCE = 16


class Turn:
    """One user at a time, first come, first served. Waiters give up at their deadline or when no longer wanted."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken = False
        self._waiters: deque[_Waiter] = deque()

    @property
    def waiting(self) -> int:
        """The number of waiters."""
        return len(self._waiters)

    def take_now(self) -> bool:
        """Take the turn if it is free; whether it was."""
        with self._lock:
            if self._taken:
                return False
            self._taken = True
            return True

    def take(self, deadline: float, wanted: Callable[[], bool]) -> bool:
        """Wait for the turn; False if the deadline passed or it is no longer wanted."""
        with self._lock:
            if not self._taken:
                self._taken = True
                return True
            waiter = _Waiter(wanted)
            self._waiters.append(waiter)
        try:
            waiter.woken.wait(min(deadline - now(), threading.TIMEOUT_MAX))
        except BaseException:  # Ctrl-C: nobody would give the turn of this waiter back
            with self._lock:
                if not waiter.has_turn:
                    self._waiters.remove(waiter)
            if waiter.has_turn:
                self.give_back()
            raise
        with self._lock:
            if not waiter.has_turn:
                self._waiters.remove(waiter)
            return waiter.has_turn

    def give_back(self) -> None:
        """Hand the turn to the longest waiter. Nobody who comes later gets it first."""
        with self._lock:
            if self._waiters:
                waiter = self._waiters.popleft()
                waiter.has_turn = True
                waiter.woken.set()
            else:
                self._taken = False

    def nudge(self) -> None:
        """Make every waiter check whether it still wants the turn."""
        with self._lock:
            for waiter in self._waiters:
                if not waiter.wanted():
                    waiter.woken.set()


class _Waiter:
    """Waits for the turn; woken when it has the turn or no longer wants it."""

    def __init__(self, wanted: Callable[[], bool]) -> None:
        self.wanted = wanted
        self.woken = threading.Event()
        self.has_turn = False


class Wake:
    """A flag that ends a wait early; the waiter clears it."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        self._event.set()

    def wait(self, seconds: float | None) -> bool:
        """True if the flag was set, False if the time passed."""
        raised = self._event.wait(seconds)
        if raised:
            self._event.clear()
        return raised


class _JobThread(threading.Thread):
    """The thread of a job."""


class Job:
    """A background thread. Its owner needs a way of its own to tell it to end."""

    def __init__(self, name: str, body: Callable[[], None]) -> None:
        self._thread = _JobThread(target=body, name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Wait until it has ended; its owner has told it to end before."""
        self.finish()

    def finish(self) -> None:
        """Wait until it ends by itself."""
        if self._thread is not threading.current_thread():
            self._thread.join()

    @property
    def running(self) -> bool:
        return self._thread.is_alive()


def all_of(calls: Sequence[Callable[[], T]]) -> list[T | BaseException]:
    """Make all calls at once; returns their results or errors, in order."""
    if not calls:
        return []

    def outcome(call: Callable[[], T]) -> T | BaseException:
        try:
            return call()
        except Exception as error:  # handed to the caller, as asyncio.gather does
            return error

    with ThreadPoolExecutor(min(len(calls), _MOST_AT_ONCE), thread_name_prefix="pairbus-pairing") as pool:
        return list(pool.map(outcome, calls))


def in_thread(call: Callable[[], T]) -> T:
    """Make a call that blocks (the disk): here the caller waits anyway."""
    return call()


class Once:
    """Does something once and to its end; every caller waits for that end.

    A `Job` does not wait: that end may be waiting for the job.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begun = False
        self._done = threading.Event()

    def do(self, body: Callable[[], None]) -> None:
        with self._lock:
            first, self._begun = not self._begun, True
        if first:
            try:
                body()
            finally:
                self._done.set()
        elif not isinstance(threading.current_thread(), _JobThread):
            self._done.wait()


def watched(sender: T) -> T:
    """The sender, prepared for its limit: its connection can be broken at any time."""
    if isinstance(sender, ServiceBusSender):
        watch_handshakes(sender)
    return sender


class Guard:
    """Limits the time of calls into the SDK, which has no timeout for some.

    While the SDK opens a connection it reads the server's first answer without a timeout. A thread checks at least once
    a second and breaks the connections of overdue calls. When the guard is closed, it breaks the connections of all
    calls, repeatedly (the SDK may retry), until none is left.
    """

    def __init__(self) -> None:
        self._limits: WeakSet[Limit] = WeakSet()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._watcher: threading.Thread | None = None
        self.closed = False

    def limit(self) -> Limit:
        """The time limit for the calls of one sender."""
        limit = Limit(self)
        with self._lock:
            self._limits.add(limit)
        return limit

    def watch(self) -> None:
        """Start the watching thread."""
        with self._lock:
            if self._watcher is None:
                self._watcher = threading.Thread(target=self._watch, name="pairbus-watchman", daemon=True)
                self._watcher.start()

    @property
    def watching(self) -> bool:
        return self._watcher is not None

    def close(self) -> None:
        """Break every call in flight and refuse new ones; the watching thread ends with the last."""
        self.closed = True
        self._wake.set()

    def look(self) -> None:
        """Make the watching thread look at once, because a call began that may end before its next look."""
        self._wake.set()

    def _watch(self) -> None:
        while True:
            closing = self.closed
            with self._lock:
                limits = list(self._limits)
            ends = [end for limit in limits if (end := limit.check(closing)) is not None]
            if not closing:
                soonest = min(ends, default=math.inf) - now()
                self._wake.wait(min(max(soonest, _SHORTEST_PAUSE_SECONDS), _LONGEST_PAUSE_SECONDS))
                self._wake.clear()
            elif ends:
                time.sleep(_SHORTEST_PAUSE_SECONDS)
            else:
                return


class Limit:
    """The time limit for the calls of one sender, one call at a time."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._call: tuple[Any, float] | None = None
        self._broken: tuple[Any, float] | None = None

    def begin(self, sender: Any, started: float, seconds: float) -> None:
        """A call begins; its connection is broken after `seconds` and a grace period."""
        self._call = (sender, started + seconds + grace(seconds))
        # Checked after the call is registered: either this sees the closing, or the watcher sees the call.
        if self._guard.closed:
            self._call = None
            raise ValueError("The paired client has been closed.")
        if not self._guard.watching:
            self._guard.watch()
        elif seconds < _LONGEST_PAUSE_SECONDS:
            self._guard.look()

    def ended_the_call(self) -> bool:
        """Whether the limit broke the connection of the call."""
        return self._call is not None and self._broken is self._call

    def end(self) -> None:
        """The call has ended, in whatever way."""
        self._call = None

    def check(self, closing: bool) -> float | None:
        """Break the connection of the call in flight if it is overdue; when it ends, or None if there is no call."""
        call = self._call
        if call is None:
            return None
        sender, ends = call
        if closing or now() >= ends:
            self._broken = call
            break_connection(sender)
        return ends


CANCELLED: tuple[type[BaseException], ...] = (KeyboardInterrupt,)
"""Errors of a call whose caller gave up. The SDK may have written half a frame on its connection."""
