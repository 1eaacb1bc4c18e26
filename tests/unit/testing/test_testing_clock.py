"""`ManualClock` and `wait_until`: what tests wait with must itself be right."""

from __future__ import annotations

import asyncio
import itertools
import threading

import pytest

from pairbus.testing.clock import START_MS, ManualClock
from pairbus.testing.waiting import wait_until


def test_time_stands_still_until_it_is_advanced() -> None:
    clock = ManualClock()
    assert clock.now_ms() == START_MS
    clock.advance(1.5)
    assert clock.now_ms() == START_MS + 1500


def test_alarms_ring_in_order_at_their_own_time() -> None:
    clock = ManualClock(now_ms=0)
    rung: list[tuple[str, int]] = []
    clock.call_at(300, lambda: rung.append(("late", clock.now_ms())))
    clock.call_at(100, lambda: rung.append(("early", clock.now_ms())))
    clock.call_at(100, lambda: rung.append(("early, second", clock.now_ms())))
    clock.call_at(301, lambda: rung.append(("not yet", clock.now_ms())))
    clock.advance(0.3)
    assert rung == [("early", 100), ("early, second", 100), ("late", 300)]


def test_an_alarm_set_by_an_alarm_rings_in_the_same_advance() -> None:
    clock = ManualClock(now_ms=0)
    rung: list[int] = []

    def again() -> None:
        rung.append(clock.now_ms())
        clock.call_at(clock.now_ms() + 40, again)

    clock.call_at(40, again)
    clock.advance(0.1)
    assert rung == [40, 80]


def test_a_cancelled_alarm_stays_silent() -> None:
    clock = ManualClock(now_ms=0)
    rung: list[str] = []
    alarm = clock.call_at(10, lambda: rung.append("cancelled"))
    clock.call_at(5, alarm.cancel)
    clock.advance(1)
    assert rung == []


def test_an_overdue_alarm_rings_without_turning_time_back() -> None:
    clock = ManualClock(now_ms=1000)
    rung: list[int] = []
    clock.call_at(10, lambda: rung.append(clock.now_ms()))
    clock.advance(0)
    assert rung == [1000]


def test_time_cannot_go_back() -> None:
    with pytest.raises(ValueError, match=r"advance\(-1\)"):
        ManualClock().advance(-1)


def test_an_alarm_of_a_loop_rings_on_that_loop_when_another_thread_advances() -> None:
    clock = ManualClock(now_ms=0)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    rung: list[int] = []

    async def set_alarm() -> None:
        clock.call_at(1000, lambda: rung.append(threading.get_ident()))

    try:
        asyncio.run_coroutine_threadsafe(set_alarm(), loop).result(10)
        clock.advance(1)
        assert rung == [thread.ident]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


def test_wait_until_gives_the_first_true_answer() -> None:
    answers = itertools.count(-3)
    assert wait_until(lambda: next(answers)) == -3
    assert wait_until(lambda: max(0, next(answers))) == 1


def test_wait_until_says_what_it_waited_for() -> None:
    with pytest.raises(TimeoutError, match=r"Waited 0 s for the queue to drain; the last result was \[\]"):
        wait_until(list, timeout=0, what="the queue to drain")
