"""Input made to break the broker from within: one client's trouble stays that client's own."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from pairbus.amqp.types import Symbol, ULong, encode
from pairbus.embedded.broker import Broker, Delivery
from pairbus.embedded.entities.descriptions import QueueDescription
from pairbus.embedded.errors import BrokerError, InvalidError
from pairbus.embedded.store import Store
from pairbus.testing import ManualClock
from pairbus.testing.broker_stage import Inbox, raw, run, send

# Its size is right, so that it can be skipped; what is inside cannot be read.
UNREADABLE_MAP = b"\xc1\x03\x04\xff\xff"
PROPERTIES_AT = b"\x00\x53\x74"
BODY_AT = b"\x00\x53\x75"


def with_application_properties(section: bytes) -> bytes:
    described, body = raw("bad").split(BODY_AT)
    return described + PROPERTIES_AT + section + BODY_AT + body


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(b"\x00\x53\x71" + UNREADABLE_MAP + raw("bad"), id="delivery annotations"),
        pytest.param(b"\x00\x53\x72" + UNREADABLE_MAP + raw("bad"), id="message annotations"),
        pytest.param(b"\x00\x53\x72" + encode(["no map"]) + raw("bad"), id="annotations that are no map"),
        pytest.param(with_application_properties(UNREADABLE_MAP), id="application properties"),
        pytest.param(b"\x00\x53\x70" + encode([None] * 6) + raw("bad"), id="a header of six fields"),
    ],
)
def test_a_message_that_could_not_be_rewritten_later_is_refused_at_the_door(tmp_path: Path, bad: bytes) -> None:
    async def test(broker: Broker, clock: ManualClock) -> None:
        await broker.create_queue(QueueDescription("q"))
        inbox = Inbox(broker, "q")
        with pytest.raises(InvalidError, match="not well formed"):
            await send(broker, "q", bad)
        await send(broker, "q", raw("good"))
        assert inbox.ids == ["good"]

    run(test, tmp_path)


def test_a_schedule_beyond_the_last_year_is_refused(tmp_path: Path) -> None:
    async def test(broker: Broker, clock: ManualClock) -> None:
        await broker.create_queue(QueueDescription("q"))
        late = b"\x00\x53\x72" + encode({Symbol("x-opt-scheduled-enqueue-time"): ULong(2**64 - 1)}) + raw("late")
        with pytest.raises(InvalidError, match="year 9999"):
            await send(broker, "q", late)
        await send(broker, "q", raw("good"))
        assert Inbox(broker, "q").ids == ["good"]

    run(test, tmp_path)


def test_a_receiver_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("this link is broken")

    async def test(broker: Broker, clock: ManualClock) -> None:
        for name in ("broken", "sound"):
            await broker.create_queue(QueueDescription(name))
            await send(broker, name, raw(name))
        broken, sound = Inbox(broker, "broken", credit=0), Inbox(broker, "sound", credit=0)
        broken.receiver.deliver = fail
        broken.receiver.set_credit(1)
        sound.receiver.set_credit(1)
        assert sound.ids == ["sound"]

    run(test, tmp_path)


def test_what_the_disk_cannot_even_take_in_is_reported_and_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(broker: Broker, clock: ManualClock) -> None:
        creating = asyncio.create_task(broker.create_queue(QueueDescription("q", user_metadata="\ud800")))
        async with asyncio.timeout(10):
            while not broker._commits.failing:
                await asyncio.sleep(0)
        creating.cancel()
        assert "cannot write" in caplog.text

    run(test, tmp_path)


def test_an_effect_that_asks_for_another_does_not_overtake_those_that_wait(tmp_path: Path) -> None:
    async def test(broker: Broker, clock: ManualClock) -> None:
        await broker.create_queue(QueueDescription("q"))
        inbox = Inbox(broker, "q", credit=2)

        def deliver(delivery: Delivery) -> None:
            inbox.got.append(delivery)
            inbox.receiver.set_credit(1)

        inbox.receiver.deliver = deliver
        await send(broker, "q", *[raw(str(number)) for number in range(5)])
        async with asyncio.timeout(10):
            while len(inbox.got) < 5:
                await asyncio.sleep(0)
        assert inbox.ids == ["0", "1", "2", "3", "4"]

    run(test, tmp_path)


def test_closing_does_not_wait_for_a_disk_that_refuses(tmp_path: Path) -> None:
    async def main() -> None:
        store = Store(tmp_path)
        broker = Broker(store, ManualClock())
        await broker.create_queue(QueueDescription("q"))
        with closing(sqlite3.connect(tmp_path / "namespace.db", isolation_level=None, timeout=0)) as other:
            store._writer.execute("PRAGMA busy_timeout = 0")
            other.execute("BEGIN IMMEDIATE")
            answers: list[BrokerError | None] = []
            broker.send("q", [raw("one")], answers.append)
            async with asyncio.timeout(10):
                await broker.close()
            assert answers == []

    asyncio.run(main())


def test_a_closed_broker_wakes_no_more(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        broker = Broker(Store(tmp_path), clock)
        await broker.create_queue(QueueDescription("q", lock_duration_ms=5_000))
        Inbox(broker, "q")
        broker.send("q", [raw("one")], lambda _: None)
        await broker.close()
        clock.advance(10)
        await asyncio.sleep(0)
        assert broker.namespace.registry.queue("q").main.active == 1
        assert not broker.namespace.has_changes

    asyncio.run(main())
