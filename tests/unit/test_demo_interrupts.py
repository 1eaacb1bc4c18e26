"""An interrupt is heard between two steps."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from pairbus.demo.interrupts import enter


def test_an_interrupt_inside_a_step_is_raised_after_it_and_what_it_began_is_undone() -> None:
    told: list[str] = []

    @contextmanager
    def step() -> Iterator[None]:
        signal.raise_signal(signal.SIGINT)
        told.append("done")
        yield
        told.append("not reached")

    @contextmanager
    def watched() -> Iterator[None]:
        try:
            yield
        finally:
            told.append("undone")

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), ExitStack() as stack:
        enter(stack, watched())
        enter(stack, step())
    assert told == ["done", "undone"]
    assert signal.getsignal(signal.SIGINT) is before


def test_without_an_interrupt_nothing_is_different() -> None:
    with ExitStack() as stack:
        assert enter(stack, open_value(7)) == 7


@contextmanager
def open_value(value: int) -> Iterator[int]:
    yield value
