"""An interrupt is heard between two steps."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager

import pytest

from pairbus.demo import story
from pairbus.demo.story import deferred_interrupts, enter


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


def test_a_step_that_fails_because_of_an_interrupt_is_interrupted() -> None:
    """A server that is just starting hears Ctrl-C as well, and ends."""
    with pytest.raises(KeyboardInterrupt), deferred_interrupts():
        signal.raise_signal(signal.SIGINT)
        raise RuntimeError("The server 'contoso' did not start.")


def test_without_an_interrupt_nothing_is_different() -> None:
    with ExitStack() as stack:
        assert enter(stack, open_value(7)) == 7
    with pytest.raises(RuntimeError), deferred_interrupts():
        raise RuntimeError


@contextmanager
def open_value(value: int) -> Iterator[int]:
    yield value


def test_who_asks_three_times_means_at_once() -> None:
    before = signal.getsignal(signal.SIGINT)
    reached = []
    with pytest.raises(KeyboardInterrupt), deferred_interrupts():
        for _ in range(5):
            signal.raise_signal(signal.SIGINT)
            reached.append(1)
    assert len(reached) == 2
    assert signal.getsignal(signal.SIGINT) is before


def test_spark_that_never_starts_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(story, "SPARK_SECONDS", 0.01)
    with pytest.raises(story.SparkLateError, match=r"Spark did not start within 0\.01 s: check that"):
        story._started(Future())
    session: Future[str] = Future()
    session.set_result("the session")
    assert story._started(session) == "the session"
