"""What a restart must find on disk, and what it must not."""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

import pytest
from tests.support.broker_stage import Inbox, opened, raw, send, settle

from pairbus.amqp.message import read_facts
from pairbus.embedded.broker import Broker, ReceiveMode, Receiver
from pairbus.embedded.entities.descriptions import QueueDescription, SubscriptionDescription, TopicDescription
from pairbus.embedded.entities.message import AbandonMessage, CompleteMessage
from pairbus.embedded.errors import BrokerError, MessageLockLostError
from pairbus.embedded.store import PayloadCache

Act = Callable[[Broker], Awaitable[None]]


def play(folder: Path, *acts: Act) -> None:
    """Each act has a broker of its own, on the folder the one before left."""

    async def main() -> None:
        for act in acts:
            async with opened(folder) as (broker, _):
                await act(broker)

    asyncio.run(main())


def rows(folder: Path, table: str) -> int:
    with closing(sqlite3.connect(folder / "namespace.db")) as other:
        return int(other.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


def test_a_commit_is_synced_to_the_disk(tmp_path: Path) -> None:
    async def act(broker: Broker) -> None:
        writer = broker._store._writer
        assert writer.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert writer.execute("PRAGMA synchronous").fetchone() == (2,)

    play(tmp_path, act)


def test_duplicates_of_before_the_restart_are_known(tmp_path: Path) -> None:
    async def before(broker: Broker) -> None:
        await broker.create(QueueDescription("q", requires_duplicate_detection=True))
        await send(broker, "q", raw("one"))

    async def after(broker: Broker) -> None:
        await send(broker, "q", raw("one"), raw("two"))
        assert Inbox(broker, "q").ids == ["one", "two"]

    play(tmp_path, before, after)


def test_nothing_of_a_deleted_queue_is_left_for_the_restart(tmp_path: Path) -> None:
    async def before(broker: Broker) -> None:
        await broker.create(QueueDescription("q", requires_duplicate_detection=True, requires_session=True))
        await send(broker, "q", raw("one", session_id="s"))
        await broker.delete("q")

    async def after(broker: Broker) -> None:
        await broker.create(QueueDescription("q", requires_duplicate_detection=True))
        await send(broker, "q", raw("one"))
        assert Inbox(broker, "q").ids == ["one"]
        await broker.delete("q")

    play(tmp_path, before, after)
    assert [rows(tmp_path, table) for table in ("entity", "entry", "payload", "seen", "sequence", "session")] == [0] * 6


def test_a_lock_of_before_the_restart_fits_no_message_after_it(tmp_path: Path) -> None:
    tokens: list[bytes] = []

    async def before(broker: Broker) -> None:
        await broker.create(QueueDescription("q"))
        await send(broker, "q", raw("one"))
        tokens.append(Inbox(broker, "q").got[0].lock_token)

    async def after(broker: Broker) -> None:
        (delivery,) = Inbox(broker, "q").got
        with pytest.raises(MessageLockLostError):
            broker.renew_locks("q", tokens)
        broker.renew_locks("q", [delivery.lock_token])

    play(tmp_path, before, after)


def test_deliveries_are_counted_across_the_restart(tmp_path: Path) -> None:
    async def before(broker: Broker) -> None:
        await broker.create(QueueDescription("q", max_delivery_count=2))
        await send(broker, "q", raw("one"))
        await settle(broker, "q", Inbox(broker, "q", credit=1).got[0], AbandonMessage())

    async def after(broker: Broker) -> None:
        await settle(broker, "q", Inbox(broker, "q", credit=1).got[0], AbandonMessage())
        assert broker.counts("q").dead_letter == 1

    play(tmp_path, before, after)


def test_completed_messages_leave_no_bytes_on_disk(tmp_path: Path) -> None:
    async def act(broker: Broker) -> None:
        await broker.create(TopicDescription("t"))
        for name in ("a", "b", "c"):
            await broker.create(SubscriptionDescription("t", name))
        await send(broker, "t", raw("one"))
        for name, left in (("a", 1), ("b", 1), ("c", 0)):
            path = f"t/Subscriptions/{name}"
            await settle(broker, path, Inbox(broker, path).got[0], CompleteMessage())
            assert rows(tmp_path, "payload") == left
        assert rows(tmp_path, "entry") == 0

    play(tmp_path, act)


def test_a_closed_session_is_free_at_once_with_what_it_held(tmp_path: Path) -> None:
    async def act(broker: Broker) -> None:
        await broker.create(QueueDescription("q", requires_session=True))
        await send(broker, "q", raw("one", session_id="s"))
        for _ in range(2):
            got: list[object] = []
            accepted: list[Receiver | BrokerError] = []
            broker.accept_session(
                "q",
                "s",
                ReceiveMode.PEEK_LOCK,
                lambda delivery, got=got: got.append(read_facts(delivery.raw).message_id),  # type: ignore[misc]
                lambda _: None,
                accepted.append,
                timeout_ms=0,
            )
            (receiver,) = accepted
            assert isinstance(receiver, Receiver), receiver
            receiver.set_credit(1)
            assert got == ["one"]
            receiver.close()

    play(tmp_path, act)


def test_the_shelf_keeps_the_youngest_payloads_and_every_one_not_yet_on_disk() -> None:
    fetched: list[int] = []

    def fetch(payload_id: int) -> bytes:
        fetched.append(payload_id)
        return b"from the disk"

    cache = PayloadCache(fetch, cache_bytes=20)
    for number in range(5):
        cache.put(number, bytes(8))
    assert [cache.get(number) for number in range(5)] == [bytes(8)] * 5
    cache.mark_written(range(4))
    for number in range(5):
        cache.get(number)
    assert fetched == [0, 1]
    cache.discard([2, 3])
    cache.put(5, bytes(20))
    cache.mark_written([5])
    assert cache.get(5) == bytes(20)
