"""What the sync shell needs from its world. `_aio/runtime.py` offers the same names for tasks.

These two files are written by hand; the rest of `_sync` is generated from `_aio`.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from azure.servicebus.exceptions import OperationTimeoutError, ServiceBusError

from pairbus.pairing.sdk import break_connection

T = TypeVar("T")

now = time.monotonic

_GRACE_SECONDS = 1.0
_CLOSING_PAUSE_SECONDS = 0.05
_MOST_AT_ONCE = 16

Mutex = threading.Lock


class Turn:
    """One user at a time; a waiter gives up at its deadline or when it is no longer wanted."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition()
        self._waiting = 0

    def take(self, deadline: float, wanted: Callable[[], bool]) -> bool:
        """True when it is our turn; False if the deadline passed or it is no longer wanted."""
        if self._lock.acquire(blocking=False):
            return True
        with self._changed:
            self._waiting += 1
            try:
                # A turn given back before this line is seen by acquire; after it, by the notification.
                while not self._lock.acquire(blocking=False):
                    remaining = deadline - now()
                    if remaining <= 0 or not wanted():
                        return False
                    self._changed.wait(remaining)
                return True
            finally:
                self._waiting -= 1

    def give_back(self) -> None:
        self._lock.release()
        if self._waiting:
            with self._changed:
                self._changed.notify()

    def nudge(self) -> None:
        """Let every waiter look again whether it is still wanted."""
        if self._waiting:
            with self._changed:
                self._changed.notify_all()


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


class Job:
    """A thread of ours, until it ends. The one who starts it also gives it a way to be asked to end."""

    def __init__(self, name: str, body: Callable[[], None]) -> None:
        self._thread = threading.Thread(target=body, name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Wait until it has ended; whoever stops a job has told it to end before."""
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


class Guard:
    """Bounds calls into the SDK that it does not bound itself.

    While the SDK opens a connection it reads the server's first answer without a timeout. A watchman thread
    looks once a second and breaks the connection of a call that is overdue; when the guard is closed, of every
    call, again and again (the SDK may try anew), until none is left.
    """

    def __init__(self) -> None:
        self._calls: dict[int, tuple[Any, float]] = {}
        self._overdue: set[int] = set()
        self._tickets = itertools.count()
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._watchman: threading.Thread | None = None

    def run(self, sender: Any, seconds: float, call: Callable[[], T]) -> T:
        """The call's result; OperationTimeoutError if it is not there in time."""
        if self._watchman is None:
            self._start()
        ticket = next(self._tickets)
        self._calls[ticket] = (sender, now() + seconds + _GRACE_SECONDS)
        try:
            # Looked at after the call is registered: either this sees the closing, or the watchman the call.
            if self._closing.is_set():
                raise ValueError("The paired client has been closed.")
            return call()
        except (ServiceBusError, OSError) as error:
            if ticket in self._overdue:
                raise OperationTimeoutError(message=f"No answer within {seconds:g} seconds.") from error
            raise
        finally:
            del self._calls[ticket]
            self._overdue.discard(ticket)

    def close(self) -> None:
        """Break every call that is still under way and refuse new ones; the watchman ends with the last."""
        self._closing.set()

    def _start(self) -> None:
        with self._lock:
            if self._watchman is None:
                self._watchman = threading.Thread(target=self._watch, name="pairbus-watchman", daemon=True)
                self._watchman.start()

    def _watch(self) -> None:
        while self._calls or not self._closing.is_set():
            closing = self._closing.is_set()
            for ticket, (sender, deadline) in list(self._calls.items()):
                if closing or now() >= deadline:
                    self._overdue.add(ticket)
                    break_connection(sender)
            if closing:
                time.sleep(_CLOSING_PAUSE_SECONDS)
            else:
                self._closing.wait(_GRACE_SECONDS)


CANCELLED: tuple[type[BaseException], ...] = ()
"""Threads are not cancelled."""
