"""One watching task per entity that is not healthy, whatever happens: the real one, in virtual time."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from azure.servicebus.exceptions import ServiceBusConnectionError
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.virtual_time import run_in_virtual_time

from pairbus.failover.states import EntityState, Event, EventKind, FailoverRules
from pairbus.ledger import CompletedOperation
from pairbus.pairing._aio import runtime
from pairbus.pairing._aio.entity import SharedSender, WatchedEntity
from pairbus.pairing._sync import entity as sync_entity
from pairbus.pairing._sync import runtime as sync_runtime
from pairbus.pairing.observers import Observers

PING_SECONDS = 10.0


class Primary:
    """The SDK's sender for pings, as far as a ping needs it; up or down."""

    def __init__(self) -> None:
        self.is_up = False
        self.pings: list[float] = []
        self.sessions: set[str | None] = {None}
        self.under_way = 0

    async def send_messages(self, message: Any, *, timeout: float) -> None:
        assert message.content_type == "application/vnd.ms-servicebus-ping"
        assert b"".join(message.body) == b""
        assert message.time_to_live == timedelta(seconds=1)
        assert message.session_id not in self.sessions
        self.sessions.add(message.session_id)
        self.under_way += 1
        assert self.under_way == 1, "two pings of one entity at once"
        try:
            await asyncio.sleep(0.5)
            self.pings.append(asyncio.get_running_loop().time())
            if not self.is_up:
                raise ServiceBusConnectionError(message="down")
        finally:
            self.under_way -= 1

    async def close(self) -> None:
        await asyncio.sleep(0)


@contextmanager
def virtual_clock() -> Iterator[None]:
    real = runtime.now
    runtime.now = lambda: asyncio.get_running_loop().time()
    try:
        yield
    finally:
        runtime.now = real


def watched(primary: Any, *, interval: float = 0.0, pings: int = 1, ledger: Any = None) -> WatchedEntity:
    return WatchedEntity(
        "orders",
        FailoverRules(interval, PING_SECONDS, pings),
        make_sender=lambda: primary,
        guard=runtime.Guard(),
        observers=Observers("contoso", "standby", ledger),
        send_timeout=5.0,
    )


def watching_tasks() -> int:
    return sum(task.get_name() == "pairbus-watch-orders" for task in asyncio.all_tasks())


FAILED = Event(EventKind.SEND_FAILED, "down", 0)
steps = st.lists(
    st.sampled_from(["fail", "late", "succeed", "fail over", "mark", "adopt", "up", "down", "wait", "wait long"]),
    max_size=40,
)


@settings(max_examples=60, deadline=None, print_blob=True)
@given(steps, st.sampled_from([0.0, 30.0]), st.integers(1, 3))
def test_an_entity_that_is_not_healthy_has_exactly_one_watching_task(
    taken: list[str], interval: float, pings: int
) -> None:
    async def live() -> None:
        primary = Primary()
        entity = watched(primary, interval=interval, pings=pings)
        links: list[SharedSender] = []
        for step in taken:
            match step:
                case "fail":
                    entity.handle(Event(EventKind.SEND_FAILED, "down", entity.machine.era))
                case "late":
                    entity.handle(Event(EventKind.SEND_FAILED, "down", entity.machine.era - 1))
                case "succeed":
                    entity.handle(Event(EventKind.SEND_SUCCEEDED, era=entity.machine.era))
                case "fail over":
                    entity.handle(Event(EventKind.FAIL_OVER))
                case "mark":
                    entity.handle(Event(EventKind.MARK_HEALTHY))
                case "adopt":
                    links.append(SharedSender(lambda: primary, runtime.Guard()))  # type: ignore[arg-type, return-value]
                    entity.adopt(links[-1])
                case "up" | "down":
                    primary.is_up = step == "up"
                case "wait":
                    await asyncio.sleep(1)
                case "wait long":
                    await asyncio.sleep(45)
            if entity.machine.state is EntityState.HEALTHY:
                # A task that was told to end may need a moment; there is never a second one.
                assert watching_tasks() <= 1
            else:
                assert watching_tasks() == 1
        primary.is_up = True
        await asyncio.sleep(interval + PING_SECONDS * (pings + 2))
        assert entity.machine.state is EntityState.HEALTHY
        assert watching_tasks() == 0
        await entity.close()

    with virtual_clock():
        run_in_virtual_time(live())


def test_pings_come_one_interval_apart_and_the_one_that_heals_is_the_last() -> None:
    async def live() -> list[float]:
        primary = Primary()
        entity = watched(primary, pings=2)
        entity.handle(FAILED)
        await asyncio.sleep(2.5 * PING_SECONDS)
        primary.is_up = True
        await asyncio.sleep(10 * PING_SECONDS)
        await entity.close()
        return primary.pings

    with virtual_clock():
        times = run_in_virtual_time(live())
    assert [round(time - 0.5, 3) for time in times] == [10.0, 20.0, 30.0, 40.0]


def test_a_ledger_that_fails_does_not_end_the_pings() -> None:
    class Full:
        def record(self, _: CompletedOperation) -> None:
            raise OSError(28, "No space left on device")

    async def live() -> EntityState:
        primary = Primary()
        entity = watched(primary, interval=5.0, ledger=Full())
        with pytest.raises(OSError, match="No space"):
            entity.handle(FAILED)
        await asyncio.sleep(3 * PING_SECONDS)
        primary.is_up = True
        await asyncio.sleep(3 * PING_SECONDS)
        state = entity.machine.state
        await entity.close()
        return state

    with virtual_clock():
        assert run_in_virtual_time(live()) is EntityState.HEALTHY


def test_senders_may_come_while_a_state_changes() -> None:
    """Threads that get senders and a thread that brings about transitions look at the same links."""
    guard = sync_runtime.Guard()
    entity = sync_entity.WatchedEntity(
        "orders",
        FailoverRules(1800.0, 1800.0),
        make_sender=lambda: pytest.fail("nobody pings"),
        guard=guard,
        observers=Observers("contoso", "standby", None),
        send_timeout=5.0,
    )
    staying = [sync_entity.SharedSender(lambda: pytest.fail("nobody sends"), guard) for _ in range(500)]
    for link in staying:
        entity.adopt(link)
    stop = threading.Event()

    def come_and_go() -> None:
        while not stop.is_set():
            links = [sync_entity.SharedSender(lambda: pytest.fail("nobody sends"), guard) for _ in range(50)]
            for link in links:
                entity.adopt(link)

    threads = [threading.Thread(target=come_and_go) for _ in range(3)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for _ in range(150):
            entity.handle(Event(EventKind.FAIL_OVER))
            entity.handle(Event(EventKind.MARK_HEALTHY))
    finally:
        stop.set()
        sys.setswitchinterval(before)
        for thread in threads:
            thread.join()
        entity.close()
        guard.close()
    assert entity.machine.state is EntityState.HEALTHY
