"""The broker's promises around its disk and its receivers, with a clock the test owns."""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.broker_stage import Inbox, answered, raw, run, send, settle

from pairbus.amqp.codec import encode
from pairbus.amqp.message import read_facts
from pairbus.amqp.types import Symbol
from pairbus.embedded.broker import Broker, MessageDelivery, ReceiveMode, Receiver
from pairbus.embedded.entities.descriptions import (
    SEND,
    AuthorizationRule,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from pairbus.embedded.entities.message import AbandonMessage, CompleteMessage
from pairbus.embedded.errors import (
    BrokerError,
    EntityDisabledError,
    EntityExistsError,
    EntityNotFoundError,
    MessageLockLostError,
    MessageTooLargeError,
    NotAllowedError,
    QuotaExceededError,
    StoreFailedError,
    TimeoutExpiredError,
    TransactionUnknownError,
)
from pairbus.embedded.store import SchemaError, Store
from pairbus.testing import ManualClock


def ping() -> bytes:
    properties = b"\x00\x53\x73" + encode(
        ["p", None, None, None, None, None, Symbol("application/vnd.ms-servicebus-ping")]
    )
    return properties + b"\x00\x53\x75" + encode(b"")


def test_an_acknowledged_message_is_on_disk(tmp_path: Path) -> None:
    async def test(broker: Broker, clock: ManualClock) -> None:
        await broker.create(QueueDescription("q"))
        await send(broker, "q", raw("one"))
        with closing(sqlite3.connect(tmp_path / "namespace.db")) as other:
            assert other.execute("SELECT count(*) FROM entry").fetchone() == (1,)

    run(test, tmp_path)


def test_what_an_acknowledgement_leads_to_does_not_overtake_those_that_wait(tmp_path: Path) -> None:
    async def test(broker: Broker, clock: ManualClock) -> None:
        await broker.create(QueueDescription("q"))
        happened: list[str] = []
        last = asyncio.Event()

        def follow() -> None:
            happened.append("what follows from the first")
            last.set()

        def first_done(_: BrokerError | None) -> None:
            happened.append("first")
            broker._commits.after(follow)

        broker.send("q", [raw("one")], first_done)
        broker.send("q", [raw("two")], lambda _: happened.append("second"))
        await last.wait()
        assert happened == ["first", "second", "what follows from the first"]

    run(test, tmp_path)


def test_nothing_is_acknowledged_while_the_disk_refuses_and_all_of_it_once_it_works(tmp_path: Path) -> None:
    async def test(broker: Broker, clock: ManualClock) -> None:
        await broker.create(QueueDescription("q"))
        with closing(sqlite3.connect(tmp_path / "namespace.db", isolation_level=None, timeout=0)) as other:
            broker._store._writer.execute("PRAGMA busy_timeout = 0")
            other.execute("BEGIN IMMEDIATE")
            answers: list[BrokerError | None] = []
            broker.send("q", [raw("one")], answers.append)
            while not broker._commits.failing:
                await asyncio.sleep(0)
            assert answers == []
            with pytest.raises(StoreFailedError):
                await send(broker, "q", raw("two"))
            other.execute("ROLLBACK")
        while not answers:
            await asyncio.sleep(0.01)
        assert answers == [None]
        await send(broker, "q", raw("three"))
        assert Inbox(broker, "q").ids == ["one", "three"]

    run(test, tmp_path)


def test_a_newer_database_is_refused_with_a_sentence(tmp_path: Path) -> None:
    Store(tmp_path).close()
    with closing(sqlite3.connect(tmp_path / "namespace.db")) as database:
        database.execute("PRAGMA user_version = 99")
    with pytest.raises(
        SchemaError, match=r"schema version 99, but this program knows versions up to \d+\. Use the newer"
    ):
        Store(tmp_path)


def test_locks_end_and_the_message_comes_again_one_delivery_older(tmp_path: Path) -> None:
    async def test(broker: Broker, clock: ManualClock) -> None:
        await broker.create(QueueDescription("q", lock_duration_ms=5_000, max_delivery_count=2))
        await send(broker, "q", raw("one"))
        inbox = Inbox(broker, "q")
        assert len(inbox.got) == 1
        clock.advance(5)
        await finish_operation(broker)
        assert len(inbox.got) == 2
        assert inbox.got[0].lock_token != inbox.got[1].lock_token
        with pytest.raises(MessageLockLostError):
            await settle(broker, "q", inbox.got[0], CompleteMessage())
        clock.advance(5)
        await finish_operation(broker)
        assert len(inbox.got) == 2, "two deliveries were allowed"
        dead = Inbox(broker, "q/$DeadLetterQueue")
        assert read_facts(dead.got[0].raw).application_properties["DeadLetterReason"] == "MaxDeliveryCountExceeded"

    run(test, tmp_path)


async def finish_operation(broker: Broker) -> None:
    await broker._commits.drain()


def test_a_closed_receiver_keeps_its_locks_but_gets_nothing_more(tmp_path: Path) -> None:
    async def test(broker: Broker, clock: ManualClock) -> None:
        await broker.create(QueueDescription("q"))
        await send(broker, "q", raw("one"))
        first = Inbox(broker, "q")
        first.receiver.close()
        second = Inbox(broker, "q")
        assert second.got == []
        await settle(broker, "q", first.got[0], CompleteMessage())
        await send(broker, "q", raw("two"))
        assert (first.ids, second.ids) == (["one"], ["two"])

    run(test, tmp_path)


def test_receivers_take_turns(tmp_path: Path) -> None:
    async def test(broker: Broker, clock: ManualClock) -> None:
        await broker.create(QueueDescription("q"))
        inboxes = [Inbox(broker, "q", credit=10) for _ in range(3)]
        await send(broker, "q", *[raw(str(number)) for number in range(30)])
        assert [len(inbox.got) for inbox in inboxes] == [10, 10, 10]

    run(test, tmp_path)


def test_credit_is_never_exceeded(tmp_path: Path) -> None:
    async def test(broker: Broker, clock: ManualClock) -> None:
        await broker.create(QueueDescription("q"))
        await send(broker, "q", *[raw(str(number)) for number in range(10)])
        inbox = Inbox(broker, "q", credit=3)
        assert len(inbox.got) == 3
        inbox.receiver.set_credit(2)
        assert len(inbox.got) == 5
        inbox.receiver.drain()
        await send(broker, "q", raw("more"))
        assert len(inbox.got) == 5

    run(test, tmp_path)


def test_pings_are_counted_and_never_kept(tmp_path: Path) -> None:
    async def test(broker: Broker, clock: ManualClock) -> None:
        await broker.create(QueueDescription("q", requires_session=True))
        await send(broker, "q", ping())
        assert broker.counts("q").message_count == 0
        assert broker.namespace.registry.queue("q").pings == 1

    run(test, tmp_path)


def test_a_batch_is_taken_whole_or_not_at_all(tmp_path: Path) -> None:
    async def test(broker: Broker, clock: ManualClock) -> None:
        await broker.create(QueueDescription("q"))
        with pytest.raises(MessageTooLargeError, match="at most 262144"):
            await send(broker, "q", raw("small"), raw("large", body=b"x" * 262_144))
        assert broker.counts("q").message_count == 0

    run(test, tmp_path)


@pytest.mark.parametrize(
    ("status", "sends", "receives"),
    [("Disabled", False, False), ("SendDisabled", False, True), ("ReceiveDisabled", True, False)],
)
def test_status_is_obeyed(tmp_path: Path, status: str, sends: bool, receives: bool) -> None:
    async def attempt(action: Callable[[], Awaitable[object]]) -> bool:
        try:
            await action()
        except EntityDisabledError:
            return False
        return True

    async def test(broker: Broker, clock: ManualClock) -> None:
        await broker.create(QueueDescription("q", status=status))

        async def receive() -> Inbox:
            return Inbox(broker, "q")

        assert await attempt(lambda: send(broker, "q", raw())) is sends
        assert await attempt(receive) is receives

    run(test, tmp_path)


def test_a_full_queue_refuses_and_takes_again_when_there_is_room(tmp_path: Path) -> None:
    async def test(broker: Broker, clock: ManualClock) -> None:
        await broker.create(QueueDescription("q"))
        big = raw(body=b"x" * 200_000)
        full = 1024 * 1024 * 1024 // len(big)
        queue = broker.namespace.registry.queue("q").main
        queue.size_bytes += full * len(big)
        with pytest.raises(QuotaExceededError, match="maximum entity size"):
            await send(broker, "q", big)
        queue.size_bytes -= len(big)
        await send(broker, "q", big)

    run(test, tmp_path)


def test_scheduled_messages_appear_at_their_time_with_a_new_number(tmp_path: Path) -> None:
    async def test(broker: Broker, clock: ManualClock) -> None:
        await broker.create(QueueDescription("q"))
        at_ms = clock.now_ms() + 60_000
        numbers = await answered(
            lambda done: broker.schedule("q", [raw("a", at_ms=at_ms), raw("b", at_ms=at_ms)], done)
        )
        inbox = Inbox(broker, "q")
        await answered(lambda done: broker.cancel_scheduled("q", numbers[1:], done))
        clock.advance(59.999)
        await finish_operation(broker)
        assert inbox.got == []
        clock.advance(0.001)
        await finish_operation(broker)
        assert inbox.ids == ["a"]
        assert inbox.got[0].sequence_number > max(numbers)

    run(test, tmp_path)


def test_a_transaction_happens_whole_or_not_at_all(tmp_path: Path) -> None:
    async def test(broker: Broker, clock: ManualClock) -> None:
        await broker.create(QueueDescription("in", lock_duration_ms=5_000))
        await broker.create(QueueDescription("out"))
        await send(broker, "in", raw("one"))
        inbox = Inbox(broker, "in")
        txn = broker.begin_transaction()
        await send(broker, "out", raw("answer"), txn=txn)
        await settle(broker, "in", inbox.got[0], CompleteMessage(), txn)
        assert broker.counts("out").active == 0
        clock.advance(5)
        with pytest.raises(MessageLockLostError):
            await answered(lambda done: broker.discharge(txn, False, done))
        assert broker.counts("out").active == 0, "the send must not happen without the complete"
        await finish_operation(broker)
        txn = broker.begin_transaction()
        await send(broker, "out", raw("answer"), txn=txn)
        await settle(broker, "in", inbox.got[1], CompleteMessage(), txn)
        await answered(lambda done: broker.discharge(txn, False, done))
        assert (broker.counts("in").message_count, broker.counts("out").active) == (0, 1)
        with pytest.raises(TransactionUnknownError):
            await answered(lambda done: broker.discharge(txn, False, done))

    run(test, tmp_path)


def test_a_transaction_settles_a_message_once(tmp_path: Path) -> None:
    async def test(broker: Broker, clock: ManualClock) -> None:
        await broker.create(QueueDescription("in"))
        await send(broker, "in", raw("one"))
        inbox = Inbox(broker, "in")
        txn = broker.begin_transaction()
        await settle(broker, "in", inbox.got[0], CompleteMessage(), txn)
        with pytest.raises(MessageLockLostError, match="already been settled in this transaction"):
            await settle(broker, "in", inbox.got[0], CompleteMessage(), txn)
        await answered(lambda done: broker.discharge(txn, False, done))
        assert broker.counts("in").message_count == 0

    run(test, tmp_path)


def test_waiting_for_a_session_ends_with_one_or_with_a_timeout(tmp_path: Path) -> None:
    async def test(broker: Broker, clock: ManualClock) -> None:
        await broker.create(QueueDescription("q", requires_session=True))
        accepted: list[Receiver | BrokerError] = []
        got: list[MessageDelivery] = []
        for _ in range(2):
            broker.accept_session(
                "q", None, ReceiveMode.PEEK_LOCK, got.append, accepted.append, accepted.append, 10_000
            )
        await send(broker, "q", raw("one", session_id="red"))
        (receiver,) = accepted
        assert isinstance(receiver, Receiver)
        assert receiver.session_id == "red"
        clock.advance(10)
        assert isinstance(accepted[1], TimeoutExpiredError)
        receiver.set_credit(5)
        assert len(got) == 1
        await settle(broker, "q", got[0], AbandonMessage())
        await finish_operation(broker)
        assert len(got) == 2

    run(test, tmp_path)


def test_deleting_an_entity_closes_its_receivers(tmp_path: Path) -> None:
    async def test(broker: Broker, clock: ManualClock) -> None:
        await broker.create(TopicDescription("t"))
        await broker.create(SubscriptionDescription("t", "s"))
        inbox = Inbox(broker, "t/Subscriptions/s")
        await broker.delete("t")
        assert [type(error) for error in inbox.errors] == [EntityNotFoundError]
        with pytest.raises(EntityNotFoundError):
            await send(broker, "t", raw())

    run(test, tmp_path)


def test_a_name_can_be_dropped_and_taken_again_in_one_breath(tmp_path: Path) -> None:
    async def test(broker: Broker, clock: ManualClock) -> None:
        await broker.create(QueueDescription("q"))
        await send(broker, "q", raw())
        await asyncio.gather(broker.delete("q"), broker.create(QueueDescription("Q", max_delivery_count=3)))
        with pytest.raises(EntityExistsError):
            await broker.create(QueueDescription("q"))

    run(test, tmp_path)

    async def again(broker: Broker, clock: ManualClock) -> None:
        current = broker.get("q")
        assert isinstance(current, QueueDescription) and current.max_delivery_count == 3
        assert broker.counts("q").message_count == 0

    run(again, tmp_path)


def test_an_idle_queue_is_deleted_unless_somebody_receives_from_it(tmp_path: Path) -> None:
    async def test(broker: Broker, clock: ManualClock) -> None:
        for name in ("idle", "busy"):
            await broker.create(QueueDescription(name, auto_delete_on_idle_ms=300_000))
        inbox = Inbox(broker, "busy")
        clock.advance(301)
        assert [d.name for d in broker.list_queues()] == ["busy"]
        inbox.receiver.close()
        clock.advance(302)
        assert broker.list_queues() == []

    run(test, tmp_path)


def test_forwarding_ends_after_four_hops_in_the_transfer_dead_letter_queue(tmp_path: Path) -> None:
    async def test(broker: Broker, clock: ManualClock) -> None:
        await broker.create(QueueDescription("f6"))
        for number in range(5, 0, -1):
            await broker.create(QueueDescription(f"f{number}", forward_to=f"f{number + 1}"))
        await send(broker, "f3", raw("near"))
        await send(broker, "f1", raw("far"))
        assert Inbox(broker, "f6").ids == ["near"]
        stranded = Inbox(broker, "f5/$Transfer/$DeadLetterQueue")
        assert stranded.ids == ["far"]
        with pytest.raises(NotAllowedError, match="forwards its messages"):
            Inbox(broker, "f1")

    run(test, tmp_path)


def test_dead_letters_can_be_forwarded_and_say_where_they_came_from(tmp_path: Path) -> None:
    async def test(broker: Broker, clock: ManualClock) -> None:
        await broker.create(QueueDescription("graves"))
        await broker.create(QueueDescription("q", max_delivery_count=1, forward_dead_lettered_messages_to="graves"))
        await send(broker, "q", raw("one"))
        await settle(broker, "q", Inbox(broker, "q").got[0], AbandonMessage())
        grave = Inbox(broker, "graves")
        assert grave.ids == ["one"]
        assert b"x-opt-deadletter-source" in grave.got[0].raw

    run(test, tmp_path)


def test_the_files_of_a_store_are_private(tmp_path: Path) -> None:
    async def test(broker: Broker, clock: ManualClock) -> None:
        await broker.create(QueueDescription("q"))
        modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
        assert modes == dict.fromkeys(("namespace.db", "namespace.db-shm", "namespace.db-wal"), 0o600)

    run(test, tmp_path)


def test_listeners_hear_of_changed_authorization_rules_only(tmp_path: Path) -> None:
    key = AuthorizationRule("sender", frozenset({SEND}), "primary", "secondary")

    async def test(broker: Broker, clock: ManualClock) -> None:
        heard: list[int] = []
        broker.rules_listeners.add(lambda: heard.append(len(broker.rules_by_path())))
        queue = await broker.create(QueueDescription("Q"))
        await broker.update(replace(queue, max_delivery_count=3))
        assert heard == []
        await broker.update(replace(queue, authorization_rules=(key,)))
        await broker.update(replace(queue, authorization_rules=(key,), max_delivery_count=4))
        assert broker.rules_by_path() == {"q": (key,)}
        await broker.update(replace(queue, authorization_rules=(replace(key, primary_key="other"),)))
        await broker.update(queue)
        assert heard == [1, 1, 0]
        await broker.create(TopicDescription("t", authorization_rules=(key,)))
        assert broker.rules_by_path() == {"t": (key,)}

    run(test, tmp_path)

    async def again(broker: Broker, clock: ManualClock) -> None:
        assert broker.rules_by_path() == {"t": (key,)}
        await broker.delete("t")
        assert broker.rules_by_path() == {}

    run(again, tmp_path)
