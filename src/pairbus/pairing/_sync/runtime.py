"""What the sync shell needs from its world. `_aio/runtime.py` offers the same names for tasks.

These two files are written by hand; the rest of `_sync` is generated from `_aio`.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from weakref import WeakSet

from azure.servicebus.exceptions import ServiceBusError

from pairbus.pairing.sdk import break_connection

T = TypeVar("T")

now = time.monotonic

_GRACE_SECONDS = 1.0
_CLOSING_PAUSE_SECONDS = 0.05
_MOST_AT_ONCE = 16

Mutex = threading.Lock


class Turn:
    """One user at a time, in the order they came; a waiter gives up at its deadline or when it is no longer wanted."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken = False
        self._waiters: deque[_Waiter] = deque()

    @property
    def waiting(self) -> int:
        """How many wait for their turn."""
        return len(self._waiters)

    def take_now(self) -> bool:
        """True if the turn was free and is ours now."""
        with self._lock:
            if self._taken:
                return False
            self._taken = True
            return True

    def take(self, deadline: float, wanted: Callable[[], bool]) -> bool:
        """True when it is our turn; False if the deadline passed or it is no longer wanted."""
        with self._lock:
            if not self._taken:
                self._taken = True
                return True
            waiter = _Waiter(wanted)
            self._waiters.append(waiter)
        waiter.woken.wait(min(deadline - now(), threading.TIMEOUT_MAX))
        with self._lock:
            if not waiter.has_turn:
                self._waiters.remove(waiter)
            return waiter.has_turn

    def give_back(self) -> None:
        """Hand the turn to the one who has waited longest; nobody who comes later gets it before."""
        with self._lock:
            if self._waiters:
                waiter = self._waiters.popleft()
                waiter.has_turn = True
                waiter.woken.set()
            else:
                self._taken = False

    def nudge(self) -> None:
        """Let every waiter look again whether it is still wanted."""
        with self._lock:
            for waiter in self._waiters:
                if not waiter.wanted():
                    waiter.woken.set()


class _Waiter:
    """One who waits for the turn: woken because it is theirs, or because they need not wait any longer."""

    def __init__(self, wanted: Callable[[], bool]) -> None:
        self.wanted = wanted
        self.woken = threading.Event()
        self.has_turn = False


class Wake:
    """A flag that ends a wait early and is lowered by the one who waited."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        self._event.set()

    def wait(self, seconds: float | None) -> bool:
        """True if the flag was raised, False if the time passed."""
        raised = self._event.wait(seconds)
        if raised:
            self._event.clear()
        return raised


class _JobThread(threading.Thread):
    """A thread that a job runs in."""


class Job:
    """A thread of ours, until it ends. The one who starts it also gives it a way to be asked to end."""

    def __init__(self, name: str, body: Callable[[], None]) -> None:
        self._thread = _JobThread(target=body, name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Wait until it has ended; whoever stops a job has told it to end before."""
        self.finish()

    def finish(self) -> None:
        """Wait until it has ended by itself."""
        if self._thread is not threading.current_thread():
            self._thread.join()

    @property
    def running(self) -> bool:
        return self._thread.is_alive()


def all_of(calls: Sequence[Callable[[], T]]) -> list[T | BaseException]:
    """Make all calls at once; their results or errors, in order."""
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
    """Make a call that blocks (the disk): here, the caller waits for it anyway."""
    return call()


class Once:
    """Something that is done once and to its end; all who ask wait for that end.

    Except for a job of ours: its own end may be what is being waited for.
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


class Guard:
    """Bounds calls into the SDK that it does not bound itself.

    While the SDK opens a connection it reads the server's first answer without a timeout. A watchman thread
    looks once a second and breaks the connection of a call that is overdue; when the guard is closed, of every
    call, again and again (the SDK may try anew), until none is left.
    """

    def __init__(self) -> None:
        self._limits: WeakSet[Limit] = WeakSet()
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._watchman: threading.Thread | None = None
        self.closed = False

    def limit(self) -> Limit:
        """A limit for the calls of one link."""
        limit = Limit(self)
        with self._lock:
            self._limits.add(limit)
        return limit

    def watch(self) -> None:
        """Begin to look after the calls."""
        with self._lock:
            if self._watchman is None:
                self._watchman = threading.Thread(target=self._watch, name="pairbus-watchman", daemon=True)
                self._watchman.start()

    @property
    def watching(self) -> bool:
        return self._watchman is not None

    def close(self) -> None:
        """Break every call that is still under way and refuse new ones; the watchman ends with the last."""
        self.closed = True
        self._closing.set()

    def _watch(self) -> None:
        while True:
            closing = self._closing.is_set()
            with self._lock:
                limits = list(self._limits)
            under_way = [limit.look(closing) for limit in limits]
            if not closing:
                self._closing.wait(_GRACE_SECONDS)
            elif any(under_way):
                time.sleep(_CLOSING_PAUSE_SECONDS)
            else:
                return


class Limit:
    """The limit of time for the calls of one link, one call at a time."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._call: tuple[Any, float] | None = None
        self._broken: tuple[Any, float] | None = None

    def begin(self, sender: Any, seconds: float) -> None:
        """A call begins that may take `seconds`; beyond them, and some grace, its connection is broken."""
        self._call = (sender, now() + seconds + _GRACE_SECONDS)
        # Looked at after the call is registered: either this sees the closing, or the watchman the call.
        if self._guard.closed:
            self._call = None
            raise ValueError("The paired client has been closed.")
        if not self._guard.watching:
            self._guard.watch()

    def ended_the_call(self) -> bool:
        """Whether the connection of the call was broken because its time was over."""
        return self._call is not None and self._broken is self._call

    def end(self) -> None:
        """The call has ended, whatever its end was like."""
        self._call = None

    def look(self, closing: bool) -> bool:
        """Break the connection of the call under way if it is overdue; whether there is a call at all."""
        call = self._call
        if call is None:
            return False
        sender, ends = call
        if closing or now() >= ends:
            self._broken = call
            break_connection(sender)
        return True


CANCELLED: tuple[type[BaseException], ...] = (KeyboardInterrupt,)
"""What a call raises when its caller gave up; the SDK's connection may then be in the middle of a frame."""

ENDED_BY_LIMIT: tuple[type[BaseException], ...] = (ServiceBusError, OSError)
"""What a call raises when its limit ended it."""
