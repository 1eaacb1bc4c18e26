"""Turns and limits of time, for threads and for tasks."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from typing import Any

import pytest
from azure.servicebus.exceptions import OperationTimeoutError

from pairbus.pairing._aio import entity as aio_entity
from pairbus.pairing._aio import runtime as aio
from pairbus.pairing._sync import entity as sync_entity
from pairbus.pairing._sync import runtime as sync
from pairbus.pairing.queues import had_no_fair_chance
from pairbus.pairing.sdk import TurnTimeoutError
from pairbus.testing import wait_until

FOREVER = time.monotonic() + 3600


def always() -> bool:
    return True


def test_tasks_take_turns_in_the_order_they_came() -> None:
    async def live() -> list[str]:
        turn, order = aio.Turn(), []

        async def greedy() -> None:
            for _ in range(3):
                assert await turn.take(FOREVER, always)
                order.append("greedy")
                await asyncio.sleep(0)
                turn.give_back()

        async def patient() -> None:
            assert await turn.take(FOREVER, always)
            order.append("patient")
            turn.give_back()

        await asyncio.gather(greedy(), patient())
        return order

    assert asyncio.run(live()) == ["greedy", "patient", "greedy", "greedy"]


def test_a_cancelled_waiter_passes_the_turn_on() -> None:
    async def live() -> None:
        turn = aio.Turn()
        assert turn.take_now()
        first, second = (asyncio.ensure_future(turn.take(FOREVER, always)) for _ in range(2))
        await asyncio.sleep(0)
        turn.give_back()  # to the first, who has not run yet
        first.cancel()
        assert await second
        assert turn.waiting == 0
        turn.give_back()
        assert turn.take_now()

    asyncio.run(live())


def test_a_waiter_gives_up_at_its_deadline_or_when_it_is_not_wanted() -> None:
    async def live() -> None:
        turn = aio.Turn()
        assert turn.take_now()
        assert not await turn.take(aio.now() + 0.01, always)
        wanted = [True]
        waiting = asyncio.ensure_future(turn.take(FOREVER, lambda: wanted[0]))
        await asyncio.sleep(0)
        turn.nudge()
        await asyncio.sleep(0)
        assert not waiting.done()
        wanted[0] = False
        turn.nudge()
        assert not await waiting
        turn.give_back()
        assert turn.take_now()

    asyncio.run(live())


def test_threads_take_turns_in_the_order_they_came() -> None:
    turn, order = sync.Turn(), list[int]()
    assert turn.take_now()
    threads = []
    for index in range(5):

        def take(index: int = index) -> None:
            assert turn.take(FOREVER, always)
            order.append(index)
            turn.give_back()

        threads.append(threading.Thread(target=take))
        threads[-1].start()
        wait_until(lambda: turn.waiting == len(threads), 30, "a waiter")
    assert not turn.take_now()
    turn.give_back()
    for thread in threads:
        thread.join()
    assert order == [0, 1, 2, 3, 4]
    assert turn.take_now()


def test_a_thread_gives_up_at_its_deadline_or_when_it_is_not_wanted() -> None:
    turn = sync.Turn()
    assert turn.take_now()
    assert not turn.take(sync.now() + 0.01, always)
    wanted, answers = [True], list[bool]()
    thread = threading.Thread(target=lambda: answers.append(turn.take(FOREVER, lambda: wanted[0])))
    thread.start()
    wait_until(lambda: turn.waiting == 1, 30, "a waiter")
    wanted[0] = False
    turn.nudge()
    thread.join()
    assert answers == [False]
    assert turn.waiting == 0
    turn.give_back()
    assert turn.take_now()


class Sender:
    """The SDK's aio sender, as far as a link knows it."""

    def __init__(self) -> None:
        self.closed = False

    async def close(self) -> None:
        self.closed = True


def test_a_call_without_an_answer_ends_and_its_sender_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aio, "grace", lambda _: 0.0)

    async def live() -> None:
        made: list[Sender] = []

        def make() -> Any:
            made.append(Sender())
            return made[-1]

        async def silent(sender: Any, seconds: float) -> None:
            await asyncio.get_running_loop().create_future()

        async def quick(sender: Any, seconds: float) -> Any:
            return sender

        link = aio_entity.SharedSender(make, aio.Guard())
        assert await link.use(FOREVER, quick) is made[0]
        with pytest.raises(OperationTimeoutError, match="No answer"):
            await link.use(aio.now() + 0.01, silent)
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        assert await link.use(FOREVER, quick) is made[1]
        for _ in range(20):
            caller = asyncio.ensure_future(link.use(FOREVER, silent))
            await asyncio.sleep(0)
            caller.cancel()
            with pytest.raises(asyncio.CancelledError):
                await caller
            await asyncio.sleep(0.001)
        assert sum(not sender.closed for sender in made) <= 1, "cancelled calls must not pile up senders"
        await link.close()
        assert all(sender.closed for sender in made)

    asyncio.run(live())


def test_a_callers_own_cancellation_is_not_taken_for_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aio, "grace", lambda _: 0.0)

    async def live() -> None:
        link = aio_entity.SharedSender(lambda: Sender(), aio.Guard())  # type: ignore[arg-type, return-value]

        async def silent(sender: Any, seconds: float) -> None:
            await asyncio.get_running_loop().create_future()

        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await link.use(FOREVER, silent)
        await link.close()

    asyncio.run(live())


def test_closing_the_guard_ends_every_call_and_refuses_new_ones() -> None:
    async def live() -> None:
        guard = aio.Guard()
        links = [aio_entity.SharedSender(lambda: Sender(), guard) for _ in range(3)]  # type: ignore[arg-type, return-value]

        async def silent(sender: Any, seconds: float) -> None:
            await asyncio.get_running_loop().create_future()

        calls = [asyncio.ensure_future(link.use(FOREVER, silent)) for link in links]
        await asyncio.sleep(0)
        guard.close()
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(outcome, OperationTimeoutError)
        with pytest.raises(ValueError, match="closed"):
            await links[0].use(FOREVER, silent)

    asyncio.run(live())


def test_a_call_that_swallows_its_cancellation_is_cancelled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the SDK does when the cancellation reaches it inside one of its attempts."""
    monkeypatch.setattr(aio, "_CANCEL_AGAIN_SECONDS", 0.01)

    async def live() -> None:
        guard = aio.Guard()
        link = aio_entity.SharedSender(lambda: Sender(), guard)  # type: ignore[arg-type, return-value]
        swallowed = 0

        async def stubborn(sender: Any, seconds: float) -> None:
            nonlocal swallowed
            while True:
                try:
                    await asyncio.get_running_loop().create_future()
                except asyncio.CancelledError:
                    swallowed += 1
                    if swallowed == 3:
                        raise

        call = asyncio.ensure_future(link.use(FOREVER, stubborn))
        await asyncio.sleep(0)
        guard.close()
        with pytest.raises(OperationTimeoutError):
            await call
        assert swallowed == 3
        await link.close()

    asyncio.run(live())


def test_an_interrupt_from_the_keyboard_replaces_the_sender() -> None:
    class Blocking:
        closed = False

        def close(self) -> None:
            self.closed = True

    made: list[Blocking] = []

    def make() -> Any:
        made.append(Blocking())
        return made[-1]

    def interrupted(sender: Any, seconds: float) -> None:
        signal.raise_signal(signal.SIGINT)

    guard = sync.Guard()
    link = sync_entity.SharedSender(make, guard)
    with pytest.raises(KeyboardInterrupt):
        link.use(FOREVER, interrupted)
    used: list[Any] = []
    link.use(FOREVER, lambda sender, seconds: used.append(sender))
    assert used == made[1:]
    link.close()
    guard.close()
    assert [sender.closed for sender in made] == [True, True]


def test_what_is_done_once_is_carried_through_when_its_caller_gives_up() -> None:
    async def live() -> None:
        once, done = aio.Once(), list[str]()
        go = asyncio.Event()

        async def body() -> None:
            await go.wait()
            done.append("done")

        first = asyncio.ensure_future(once.do(body))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        second = asyncio.ensure_future(once.do(body))
        await asyncio.sleep(0)
        assert not second.done()
        go.set()
        await second
        await once.do(body)
        assert done == ["done"]

    asyncio.run(live())


def test_a_blocking_call_is_not_left_behind_when_its_caller_is_cancelled() -> None:
    async def live() -> None:
        may_end, ended = threading.Event(), threading.Event()

        def store() -> None:
            may_end.wait(60)
            ended.set()

        caller = asyncio.ensure_future(aio.in_thread(store))
        await asyncio.sleep(0)
        caller.cancel()
        await asyncio.sleep(0)
        assert not caller.done()
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert ended.is_set()

    asyncio.run(live())


def test_closing_twice_from_two_threads_waits_for_the_first() -> None:
    once, order = sync.Once(), list[str]()
    begun, may_end = threading.Event(), threading.Event()

    def body() -> None:
        begun.set()
        may_end.wait(60)
        order.append("body")

    def second() -> None:
        once.do(body)
        order.append("second")

    first = threading.Thread(target=once.do, args=(body,))
    first.start()
    begun.wait(60)
    other = threading.Thread(target=second)
    other.start()
    job = sync.Job("one of ours", lambda: once.do(body))
    job.finish()  # its own end may be what the closing waits for
    may_end.set()
    first.join()
    other.join()
    assert order == ["body", "second"]


def test_an_interrupted_thread_passes_its_turn_on() -> None:
    """Ctrl-C while a thread waits for its turn: the turn must not go to somebody who is gone."""
    turn = sync.Turn()
    assert turn.take_now()

    class Interrupted(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            raise KeyboardInterrupt

    class LateInterrupt(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            turn.give_back()  # to this very waiter
            raise KeyboardInterrupt

    for event in (Interrupted, LateInterrupt):
        with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(threading, "Event", event)
            turn.take(FOREVER, always)
        assert turn.waiting == 0
    assert turn.take_now()


def test_a_caller_whose_turn_did_not_come_says_nothing_about_the_queue() -> None:
    assert had_no_fair_chance(TurnTimeoutError(), 60)
    assert not had_no_fair_chance(OperationTimeoutError(message="No answer"), 60)
