"""Waiting for a condition instead of sleeping."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

FIRST_PAUSE_SECONDS = 0.002
LONGEST_PAUSE_SECONDS = 0.05


def wait_until(condition: Callable[[], T], timeout: float = 120.0, what: str | None = None) -> T:
    """Return the first true result of `condition`, or raise a TimeoutError that names `what`.

    The condition gets one more chance after the deadline, so that a machine that stalls does not fail a test.
    """
    deadline = time.monotonic() + timeout
    pause = FIRST_PAUSE_SECONDS
    while True:
        last_chance = time.monotonic() >= deadline
        result = condition()
        if result:
            return result
        if last_chance:
            name = what or getattr(condition, "__qualname__", repr(condition))
            raise TimeoutError(f"Waited {timeout:g} s for {name}; the last result was {result!r}.")
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


def wait_for(look: Callable[[], T | None], what: str) -> T:
    """`wait_until` for a result that is not None."""
    result = wait_until(look, what=what)
    assert result is not None
    return result
