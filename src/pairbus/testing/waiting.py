"""Waiting for a condition instead of for a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

FIRST_PAUSE_SECONDS = 0.002
LONGEST_PAUSE_SECONDS = 0.05


def wait_until(condition: Callable[[], T], timeout: float = 120.0, what: str | None = None) -> T:
    """The first true answer of `condition`; a TimeoutError that says what was waited for if none comes.

    The condition is asked once more after the deadline: a machine that stalls does not fail a test by itself.
    """
    deadline = time.monotonic() + timeout
    pause = FIRST_PAUSE_SECONDS
    while True:
        last_chance = time.monotonic() >= deadline
        answer = condition()
        if answer:
            return answer
        if last_chance:
            name = what or getattr(condition, "__qualname__", repr(condition))
            raise TimeoutError(f"Waited {timeout:g} s for {name}; the last answer was {answer!r}.")
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


def wait_for(look: Callable[[], T | None], what: str) -> T:
    """The first answer of `look` that is something; as `wait_until`, and known not to be None."""
    found = wait_until(look, what=what)
    assert found is not None
    return found
