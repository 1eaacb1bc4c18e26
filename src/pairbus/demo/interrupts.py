"""Ctrl-C between two steps, not inside one: who is half started cannot be stopped in order."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import FrameType
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def deferred_interrupts() -> Iterator[None]:
    """A KeyboardInterrupt that comes meanwhile is raised at the end. For the main thread, and for short steps."""
    heard = False

    def hear(number: int, frame: FrameType | None) -> None:
        nonlocal heard
        heard = True

    before = signal.signal(signal.SIGINT, hear)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if heard:
        raise KeyboardInterrupt


def enter(stack: ExitStack, manager: AbstractContextManager[T]) -> T:
    """As `stack.enter_context`, and an interrupt finds the manager either not entered or on the stack."""
    with deferred_interrupts():
        return stack.enter_context(manager)
