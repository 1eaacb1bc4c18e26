"""Input made to break the broker from within: one client's trouble stays that client's own."""

import asyncio
import shutil
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from tests.support.broker_stage import Inbox, answered, raw, run, send, settle

from pairbus.amqp.codec import encode
from pairbus.amqp.types import Char, Symbol, ULong
from pairbus.embedded.broker import Broker, MessageDelivery, ReceiveMode
from pairbus.embedded.entities.descriptions import (
    CorrelationFilter,
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from pairbus.embedded.entities.message import AbandonMessage, CompleteMessage, DeadLetterMessage
from pairbus.embedded.errors import (
    BrokerError,
    InvalidError,
    MessageLockLostError,
    NotAllowedError,
    StoreFailedError,
)
from pairbus.embedded.store import Store
from pairbus.testing import ManualClock

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
        await broker.create(QueueDescription("q"))
        inbox = Inbox(broker, "q")
        with pytest.raises(InvalidError, match="malformed"):
            await send(broker, "q", bad)
        await send(broker, "q", raw("good"))
        assert inbox.ids == ["good"]

    run(test, tmp_path)


def test_a_schedule_beyond_the_last_year_is_refused(tmp_path: Path) -> None:
    async def test(broker: Broker, clock: ManualClock) -> None:
        await broker.create(QueueDescription("q"))
        late = b"\x00\x53\x72" + encode({Symbol("x-opt-scheduled-enqueue-time"): ULong(2**64 - 1)}) + raw("late")
        with pytest.raises(InvalidError, match="year 9999"):
            await send(broker, "q", late)
        await send(broker, "q", raw("good"))
        assert Inbox(broker, "q").ids == ["good"]

    run(test, tmp_path)


@pytest.mark.parametrize("ttl", [ULong(2**64 - 1), ULong(2**32), -1])
def test_a_time_to_live_that_is_not_a_uint_is_refused(tmp_path: Path, ttl: int) -> None:
    async def test(broker: Broker, clock: ManualClock) -> None:
        await broker.create(TopicDescription("t"))
        await broker.create(SubscriptionDescription("t", "s"))
        for at_ms in (None, clock.now_ms() + 1_000):
            with pytest.raises(InvalidError, match="The time to live is"):
                await send(broker, "t", b"\x00\x53\x70" + encode([None, None, ttl]) + raw("bad", at_ms=at_ms))
        await send(broker, "t", raw("good"))
        clock.advance(2)
        assert Inbox(broker, "t/Subscriptions/s").ids == ["good"]

    run(test, tmp_path)


def test_a_receiver_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("this link is broken")

    async def test(broker: Broker, clock: ManualClock) -> None:
        for name in ("broken", "sound"):
            await broker.create(QueueDescription(name))
            await send(broker, name, raw(name))
        broken, sound = Inbox(broker, "broken", credit=0), Inbox(broker, "sound", credit=0)
        broken.receiver.deliver = fail
        broken.receiver.set_credit(1)
        sound.receiver.set_credit(1)
        assert sound.ids == ["sound"]

    run(test, tmp_path)


def test_a_row_that_can_never_be_stored_is_reported_and_refused_and_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(broker: Broker, clock: ManualClock) -> None:
        await broker.create(QueueDescription("q"))
        broker.namespace.registry._changes().settings["a\ud800"] = "half a character"
        with pytest.raises(StoreFailedError, match="surrogates"):
            await send(broker, "q", raw("neighbour"))
        assert broker.is_committing
        assert "cannot be stored" in caplog.text
        broker.namespace.registry._changes().settings["b"] = "\ud800"
        with pytest.raises(StoreFailedError, match="surrogates"):
            await broker.create(QueueDescription("another"))
        await send(broker, "q", raw("good"))
        await send(broker, "another", raw("good"))

    run(test, tmp_path)

    async def restarted(broker: Broker, clock: ManualClock) -> None:
        assert Inbox(broker, "q").ids == ["neighbour", "good"]
        assert Inbox(broker, "another").ids == ["good"]

    run(restarted, tmp_path)


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1])
def test_a_number_that_sqlite_cannot_store_is_refused_too(tmp_path: Path, number: int) -> None:
    async def test(broker: Broker, clock: ManualClock) -> None:
        await broker.create(QueueDescription("q"))
        broker.namespace.registry._changes().sequences[number] = 1
        with pytest.raises(StoreFailedError):
            await send(broker, "q", raw("neighbour"))
        await send(broker, "q", raw("good"))

    run(test, tmp_path)


def test_half_a_surrogate_pair_is_refused_where_it_arrives(tmp_path: Path) -> None:
    async def test(broker: Broker, clock: ManualClock) -> None:
        await broker.create(TopicDescription("t"))
        await broker.create(SubscriptionDescription("t", "s"))
        session = encode([None] * 10 + [Char("a")]).replace(b"\x73\x00\x00\x00a", b"\x73\x00\x00\xd8\x00")
        with pytest.raises(InvalidError, match="not a character"):
            await send(broker, "t", b"\x00\x53\x73" + session + b"\x00\x53\x75\xa0\x00")
        with pytest.raises(InvalidError, match="surrogate"):
            await broker.create_rule("t/Subscriptions/s", RuleDescription("r", CorrelationFilter(label="\ud800")))
        with pytest.raises(InvalidError, match="surrogate"):
            await broker.create(QueueDescription("q", user_metadata="\ud800"))
        await send(broker, "t", raw("good"))

    run(test, tmp_path)


def test_an_effect_that_asks_for_another_does_not_overtake_those_that_wait(tmp_path: Path) -> None:
    async def test(broker: Broker, clock: ManualClock) -> None:
        await broker.create(QueueDescription("q"))
        inbox = Inbox(broker, "q", credit=2)

        def deliver(delivery: MessageDelivery) -> None:
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
        await broker.create(QueueDescription("q"))
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
        await broker.create(QueueDescription("q", lock_duration_ms=5_000))
        Inbox(broker, "q")
        broker.send("q", [raw("one")], lambda _: None)
        await broker.close()
        clock.advance(10)
        await asyncio.sleep(0)
        assert broker.namespace.registry.queue("q").main.active == 1
        assert not broker.namespace.has_changes

    asyncio.run(main())


def test_a_queue_that_was_in_use_when_the_namespace_was_killed_is_not_idle(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        killed = Broker(Store(tmp_path), clock)
        await killed.create(QueueDescription("q", auto_delete_on_idle_ms=300_000))
        clock.advance(299)
        await send(killed, "q", raw("one"))
        clock.advance(299)
        copied = tmp_path / "after"
        copied.mkdir()
        for file in tmp_path.glob("namespace.db*"):
            shutil.copy(file, copied)
        restarted = Broker(Store(copied), clock)
        clock.advance(299)
        assert Inbox(restarted, "q", credit=1).ids == ["one"]
        await restarted.close()
        await killed.close()

    asyncio.run(main())


def test_a_queue_that_is_told_to_go_when_idle_begins_to_count_then(tmp_path: Path) -> None:
    async def test(broker: Broker, clock: ManualClock) -> None:
        await broker.create(QueueDescription("q"))
        clock.advance(3_600)
        await broker.update(QueueDescription("q", auto_delete_on_idle_ms=300_000))
        await asyncio.sleep(0)
        clock.advance(299)
        assert [queue.name for queue in broker.list_queues()] == ["q"]
        clock.advance(2)
        assert not broker.list_queues()

    run(test, tmp_path)


def test_a_lock_token_given_twice_settles_once(tmp_path: Path) -> None:
    async def test(broker: Broker, clock: ManualClock) -> None:
        await broker.create(QueueDescription("q"))
        await send(broker, "q", raw("one"), raw("two"))
        token = Inbox(broker, "q", credit=1).got[0].lock_token
        await answered(lambda done: broker.settle("q", [token, token], CompleteMessage(), done))
        assert broker.counts("q").active == 1

    run(test, tmp_path)


def test_a_transaction_settles_a_message_once_or_happens_not_at_all(tmp_path: Path) -> None:
    async def test(broker: Broker, clock: ManualClock) -> None:
        for name in ("in", "out"):
            await broker.create(QueueDescription(name))
        await send(broker, "in", raw("one"))
        held = Inbox(broker, "in").got[0]
        txn = broker.begin_transaction()
        await send(broker, "out", raw("answer"), txn=txn)
        await settle(broker, "in", held, CompleteMessage(), txn)
        with pytest.raises(MessageLockLostError, match="in this transaction"):
            await settle(broker, "in", held, CompleteMessage(), txn)
        await answered(lambda done: broker.discharge(txn, False, done))
        assert (broker.counts("in").active, broker.counts("out").active) == (0, 1)

    run(test, tmp_path)


def test_a_transaction_takes_no_outcome_that_could_not_be_applied(tmp_path: Path) -> None:
    async def test(broker: Broker, clock: ManualClock) -> None:
        await broker.create(QueueDescription("q"))
        await send(broker, "q", raw("one"))
        await settle(broker, "q", Inbox(broker, "q").got[0], DeadLetterMessage())
        dead = Inbox(broker, "q/$DeadLetterQueue").got[0]
        txn = broker.begin_transaction()
        with pytest.raises(NotAllowedError):
            await settle(broker, "q/$DeadLetterQueue", dead, DeadLetterMessage(), txn)

    run(test, tmp_path)


def test_a_topic_whose_subscriptions_forward_to_it_does_not_multiply_a_message(tmp_path: Path) -> None:
    async def test(broker: Broker, clock: ManualClock) -> None:
        await broker.create(TopicDescription("t"))
        for number in range(3):
            await broker.create(SubscriptionDescription("t", f"s{number}", forward_to="t"))
        await send(broker, "t", raw("one"))
        for number in range(3):
            assert broker.counts(f"t/Subscriptions/s{number}").transfer_dead_letter == 1

    run(test, tmp_path)


def test_a_message_held_when_its_queue_is_told_to_forward_goes_on_when_given_back(tmp_path: Path) -> None:
    async def test(broker: Broker, clock: ManualClock) -> None:
        await broker.create(QueueDescription("there"))
        await broker.create(QueueDescription("here", lock_duration_ms=5_000))
        await send(broker, "here", raw("settled"), raw("forgotten"))
        inbox = Inbox(broker, "here")
        inbox.receiver.close()
        await broker.update(QueueDescription("here", lock_duration_ms=5_000, forward_to="there"))
        await settle(broker, "here", inbox.got[0], AbandonMessage())
        assert broker.counts("there").active == 1
        clock.advance(6)
        assert (broker.counts("here").active, broker.counts("there").active) == (0, 2)

    run(test, tmp_path)


def test_duplicates_are_found_where_messages_are_forwarded_to(tmp_path: Path) -> None:
    async def test(broker: Broker, clock: ManualClock) -> None:
        await broker.create(QueueDescription("there", requires_duplicate_detection=True))
        await broker.create(QueueDescription("here", forward_to="there"))
        await send(broker, "here", raw("one"), raw("one"))
        assert broker.counts("there").active == 1

    run(test, tmp_path)


@pytest.mark.parametrize("mode", list(ReceiveMode))
def test_a_message_taken_for_a_link_that_closes_before_it_leaves_is_not_lost(tmp_path: Path, mode: ReceiveMode) -> None:
    async def test(broker: Broker, clock: ManualClock) -> None:
        await broker.create(QueueDescription("q"))
        closing_link = Inbox(broker, "q", mode)
        broker.send("q", [raw("one")], lambda _: None)
        closing_link.receiver.close()
        other = Inbox(broker, "q")
        async with asyncio.timeout(10):
            while not other.got:
                await asyncio.sleep(0)
        assert (closing_link.ids, other.ids) == ([], ["one"])
        assert broker.counts("q").message_count == 1

    run(test, tmp_path)


def test_a_session_whose_state_is_cleared_is_forgotten_on_disk_too(tmp_path: Path) -> None:
    async def test(broker: Broker, clock: ManualClock) -> None:
        await broker.create(QueueDescription("q", requires_session=True))
        broker.accept_session(
            "q", "s", ReceiveMode.PEEK_LOCK, lambda _: None, lambda _: None, lambda _: None, timeout_ms=0
        )
        with closing(sqlite3.connect(tmp_path / "namespace.db")) as other:
            for state, rows in ((b"here", 1), (None, 0)):
                await answered(partial(broker.set_session_state, "q", "s", state))
                assert other.execute("SELECT count(*) FROM session").fetchone() == (rows,)

    run(test, tmp_path)
