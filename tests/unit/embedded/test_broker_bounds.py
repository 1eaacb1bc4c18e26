"""What a namespace keeps in memory is bounded by what it holds, not by what has passed through it."""

from collections.abc import Sized
from functools import partial
from pathlib import Path

import pytest
from tests.support.broker_stage import Inbox, answered, raw, run, send

from pairbus.embedded.broker import Broker, ReceiveMode, Receiver
from pairbus.embedded.entities.descriptions import QueueDescription
from pairbus.embedded.entities.message import CompleteMessage, ReleaseMessage
from pairbus.embedded.entities.queue import COMPACTION_FLOOR, MessageQueue
from pairbus.embedded.errors import BrokerError, NotAllowedError
from pairbus.testing import ManualClock

MANY = 10 * COMPACTION_FLOOR
MODE = ReceiveMode.PEEK_LOCK


def kept(queue: MessageQueue) -> int:
    """The longest of a queue's lists."""
    lists: tuple[Sized, ...] = (
        queue._order,
        queue._ready,
        queue._lock_ends,
        queue._expiries,
        queue._schedule,
        queue._session_ends,
    )
    return max(map(len, lists))


def many(**message: object) -> list[bytes]:
    return [raw(str(number), **message) for number in range(MANY)]  # type: ignore[arg-type]


def test_completed_messages_leave_nothing_behind(tmp_path: Path) -> None:
    async def test(broker: Broker, clock: ManualClock) -> None:
        await broker.create(QueueDescription("q", default_message_time_to_live_ms=3_600_000))
        inbox = Inbox(broker, "q", credit=MANY)
        await send(broker, "q", *many())
        tokens = [delivery.lock_token for delivery in inbox.got]
        await answered(lambda done: broker.settle("q", tokens, CompleteMessage(), done))
        assert kept(broker.namespace.registry.queue("q").main) <= COMPACTION_FLOOR

    run(test, tmp_path)


def test_expired_messages_that_nobody_received_leave_nothing_behind(tmp_path: Path) -> None:
    async def test(broker: Broker, clock: ManualClock) -> None:
        await broker.create(QueueDescription("q", default_message_time_to_live_ms=1_000))
        await broker.create(QueueDescription("sessions", requires_session=True, default_message_time_to_live_ms=1_000))
        await send(broker, "q", *many())
        await send(broker, "sessions", *many(session_id="s"))
        clock.advance(0.5)
        await send(broker, "sessions", raw("young", session_id="s"))
        clock.advance(0.6)
        assert kept(broker.namespace.registry.queue("q").main) <= COMPACTION_FLOOR
        assert len(broker.namespace.registry.queue("sessions").main.sessions["s"].ready) <= COMPACTION_FLOOR

    run(test, tmp_path)


def test_cancelled_schedules_leave_nothing_behind(tmp_path: Path) -> None:
    async def test(broker: Broker, clock: ManualClock) -> None:
        await broker.create(QueueDescription("q"))
        raws = many(at_ms=clock.now_ms() + 1_000_000)
        numbers = await answered(lambda done: broker.schedule("q", raws, done))
        await answered(lambda done: broker.cancel_scheduled("q", numbers, done))
        assert kept(broker.namespace.registry.queue("q").main) <= COMPACTION_FLOOR

    run(test, tmp_path)


def test_renewing_a_lock_again_and_again_keeps_one_end_of_it(tmp_path: Path) -> None:
    async def test(broker: Broker, clock: ManualClock) -> None:
        await broker.create(QueueDescription("q", lock_duration_ms=60_000))
        await send(broker, "q", raw("one"))
        token = Inbox(broker, "q").got[0].lock_token
        for _ in range(MANY):
            clock.advance(0.01)
            broker.renew_locks("q", [token])
        queue = broker.namespace.registry.queue("q").main
        assert kept(queue) <= COMPACTION_FLOOR
        clock.advance(59)
        assert queue.locked(token, clock.now_ms()).delivery_count == 0

    run(test, tmp_path)


def test_a_sessions_lock_is_renewed_as_a_whole_and_keeps_one_end(tmp_path: Path) -> None:
    async def test(broker: Broker, clock: ManualClock) -> None:
        await broker.create(QueueDescription("q", requires_session=True, lock_duration_ms=60_000))
        await send(broker, "q", raw("one", session_id="s"))
        inbox: list[bytes] = []
        lost: list[BrokerError] = []
        accepted: list[Receiver | BrokerError] = []
        broker.accept_session(
            "q", "s", MODE, lambda delivery: inbox.append(delivery.lock_token), lost.append, accepted.append, 0
        )
        (receiver,) = accepted
        assert isinstance(receiver, Receiver)
        receiver.set_credit(1)
        with pytest.raises(NotAllowedError, match="Renew the session's"):
            broker.renew_locks("q", inbox)
        for _ in range(MANY):
            clock.advance(0.01)
            broker.renew_session("q", "s")
        assert kept(broker.namespace.registry.queue("q").main) <= COMPACTION_FLOOR
        clock.advance(59)
        assert not lost and receiver.is_open
        clock.advance(2)
        assert not receiver.is_open

    run(test, tmp_path)


def test_deadlines_that_come_and_go_do_not_pile_up(tmp_path: Path) -> None:
    async def test(broker: Broker, clock: ManualClock) -> None:
        await broker.create(
            QueueDescription("q", default_message_time_to_live_ms=14 * 86_400_000, lock_duration_ms=5_000)
        )
        await send(broker, "q", raw("one"))
        inbox = Inbox(broker, "q", credit=0)
        for _ in range(4 * COMPACTION_FLOOR):
            inbox.receiver.set_credit(1)
            token = inbox.got[-1].lock_token
            inbox.receiver.drain()
            await answered(partial(broker.settle, "q", [token], ReleaseMessage()))
            clock.advance(6)
        assert len(broker.namespace._deadlines) <= COMPACTION_FLOOR

    run(test, tmp_path)


def test_free_sessions_are_given_in_the_order_they_came(tmp_path: Path) -> None:
    async def test(broker: Broker, clock: ManualClock) -> None:
        await broker.create(QueueDescription("q", requires_session=True))
        await send(broker, "q", *[raw(str(number), session_id=f"s{number}") for number in range(MANY)])
        accepted: list[str | None] = []

        def accept(result: Receiver | BrokerError) -> None:
            assert isinstance(result, Receiver)
            accepted.append(result.session_id)

        for _ in range(MANY):
            broker.accept_session("q", None, MODE, lambda _: None, lambda _: None, accept, 0)
        assert accepted == [f"s{number}" for number in range(MANY)]

    run(test, tmp_path)
