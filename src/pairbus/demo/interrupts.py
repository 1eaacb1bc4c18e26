"""Ctrl-C between two steps, not inside one: who is half started cannot be stopped in order."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import FrameType
from typing import TypeVar

T = TypeVar("T")
AT_ONCE = 3


@contextmanager
def deferred_interrupts() -> Iterator[None]:
    """A KeyboardInterrupt that comes meanwhile is raised at the end. For the main thread, and for short steps.

    Whoever asks a third time means at once, whatever is left behind. Ctrl-C reaches the processes that were started,
    too: a step that fails after it fails because of it.
    """
    heard = 0

    def hear(number: int, frame: FrameType | None) -> None:
        nonlocal heard
        heard += 1
        if heard >= AT_ONCE:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, hear)
    try:
        yield
    except Exception as error:
        if heard:
            raise KeyboardInterrupt from error
        raise
    finally:
        signal.signal(signal.SIGINT, before)
    if heard:
        raise KeyboardInterrupt


def enter(stack: ExitStack, manager: AbstractContextManager[T]) -> T:
    """As `stack.enter_context`, and an interrupt finds the manager either not entered or on the stack."""
    with deferred_interrupts():
        return stack.enter_context(manager)
