"""What becomes of a session's messages when its holder goes: by closing, or by losing the lock."""

import asyncio
from pathlib import Path

import pytest
from tests.support.broker_stage import answered, raw, run, send, settle

from pairbus.amqp.codec import decode
from pairbus.amqp.message import Sections
from pairbus.embedded.broker import Broker, MessageDelivery, ReceiveMode, Receiver
from pairbus.embedded.entities.descriptions import QueueDescription
from pairbus.embedded.entities.message import CompleteMessage
from pairbus.embedded.errors import BrokerError, SessionLockLostError
from pairbus.embedded.receivers import LOST_SESSION_NOTICE_MS
from pairbus.testing.clock import ManualClock

LOCK_S = 5


class Holder:
    """Accepts a session and keeps what it gets."""

    def __init__(self) -> None:
        self.got: list[MessageDelivery] = []
        self.errors: list[BrokerError] = []
        self.receiver: Receiver | None = None

    async def accept(self, broker: Broker, session_id: str) -> Receiver:
        receiver: Receiver = await answered(
            lambda accepted: broker.accept_session(
                "q", session_id, ReceiveMode.PEEK_LOCK, self.got.append, self.errors.append, accepted, 1_000
            )
        )
        receiver.set_credit(10)
        return receiver

    async def has(self, count: int) -> list[MessageDelivery]:
        async with asyncio.timeout(10):
            while len(self.got) < count:
                await asyncio.sleep(0)
        return self.got


def delivery_count(delivery: MessageDelivery) -> int:
    count: int = decode(Sections.split(delivery.raw).header)[0].value[4]
    return count


async def make_queue(broker: Broker) -> None:
    await broker.create(QueueDescription("q", requires_session=True, lock_duration_ms=LOCK_S * 1_000))


@pytest.mark.parametrize("session_id", ["red", ""])
def test_closing_gives_messages_back_uncounted(tmp_path: Path, session_id: str) -> None:
    async def test(broker: Broker, clock: ManualClock) -> None:
        await make_queue(broker)
        await send(broker, "q", raw("one", session_id=session_id))
        first = Holder()
        receiver = await first.accept(broker, session_id)
        assert delivery_count((await first.has(1))[0]) == 0
        receiver.close()
        second = Holder()
        await second.accept(broker, session_id)
        (delivery,) = await second.has(1)
        assert delivery_count(delivery) == 0
        await settle(broker, "q", delivery, CompleteMessage())
        assert broker.counts("q").message_count == 0
        assert broker.list_sessions("q", None, 0, 10) == []

    run(test, tmp_path)


def test_a_lost_lock_counts_and_frees_the_session_before_the_holder_is_told(tmp_path: Path) -> None:
    async def test(broker: Broker, clock: ManualClock) -> None:
        await make_queue(broker)
        await send(broker, "q", raw("one", session_id="red"))
        loser = Holder()
        await loser.accept(broker, "red")
        await loser.has(1)
        clock.advance(LOCK_S)
        winner = Holder()
        await winner.accept(broker, "red")
        assert delivery_count((await winner.has(1))[0]) == 1
        assert loser.errors == []
        clock.advance(LOST_SESSION_NOTICE_MS / 1_000)
        assert [type(error) for error in loser.errors] == [SessionLockLostError]

    run(test, tmp_path)
