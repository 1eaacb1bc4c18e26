"""Transactions through the coordinator link, as other languages' SDKs use them: declared, filled, discharged."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.support.amqp_stage import AmqpStage, data_message, on_stage

from pairbus.amqp.client import ClientConnection, ReceiverLink, SenderLink
from pairbus.amqp.codec import encode
from pairbus.amqp.engine import ConnectionLost, ConnectionOpened, DeliveryUpdated, Event
from pairbus.amqp.links import Link
from pairbus.amqp.outcomes import Accepted, Declared, Rejected, State, Transactional
from pairbus.amqp.types import Described, ULong


class Coordinator:
    """A client's end of a link to the coordinator, which answers with states that plain senders never get."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._answers: asyncio.Queue[State | None] = asyncio.Queue()
        self._owner = connection.protocol.owner
        connection.protocol.owner = self
        self._count = 0

    def handle(self, event: Event) -> None:
        if not isinstance(event, ConnectionOpened | ConnectionLost) and event.link.context is self:
            if isinstance(event, DeliveryUpdated):
                self._answers.put_nowait(event.delivery.state)
                event.delivery.settle()
        else:
            self._owner.handle(event)

    def writing_paused(self, paused: bool) -> None:
        self._owner.writing_paused(paused)

    def open(self) -> None:
        engine = self._connection.engine
        self.link = engine.new_link(engine.new_session(), "coordinator", sender=True)
        self.link.context = self
        self.link.open(source="txn", target=None, coordinator=True)

    async def ask(self, link: Link, raw: bytes, state: State | None = None) -> State | None:
        self._count += 1
        link.context = self
        link.send(b"%d" % self._count, raw, state=state)
        return await self._answers.get()

    async def declare(self) -> bytes:
        answer = await self.ask(self.link, b"\x00\x53\x77" + encode(Described(ULong(0x31), [None])))
        assert isinstance(answer, Declared)
        return answer.txn

    async def discharge(self, txn: bytes, *, fail: bool) -> State | None:
        return await self.ask(self.link, b"\x00\x53\x77" + encode(Described(ULong(0x32), [txn, fail])))


async def begun(stage: AmqpStage) -> tuple[ClientConnection, Coordinator, SenderLink]:
    connection = await stage.connect()
    coordinator = Coordinator(connection)
    coordinator.open()
    return connection, coordinator, await connection.open_sender("orders")


@pytest.mark.parametrize("fail", [False, True])
def test_sends_count_when_the_transaction_does(tmp_path: Path, fail: bool) -> None:
    async def play(stage: AmqpStage) -> None:
        _, coordinator, sender = await begun(stage)
        txn = await coordinator.declare()
        answer = await coordinator.ask(sender.link, data_message(b"x"), Transactional(txn))
        assert answer == Transactional(txn, Accepted())
        assert stage.broker.counts("orders").active == 0
        assert await coordinator.discharge(txn, fail=fail) == Accepted()
        assert stage.broker.counts("orders").active == (0 if fail else 1)

    on_stage(tmp_path, play)


@pytest.mark.parametrize("fail", [False, True])
def test_settlements_count_when_the_transaction_does(tmp_path: Path, fail: bool) -> None:
    async def play(stage: AmqpStage) -> None:
        connection, coordinator, sender = await begun(stage)
        await sender.send(data_message(b"x"))
        receiver: ReceiverLink = await connection.open_receiver("orders")
        (message,) = await receiver.receive(1)
        txn = await coordinator.declare()
        assert await receiver.settle([message], Transactional(txn, Accepted())) == [None]
        assert len(stage.broker.peek("orders", 0, 10, None)) == 1
        assert await coordinator.discharge(txn, fail=fail) == Accepted()
        assert len(stage.broker.peek("orders", 0, 10, None)) == (1 if fail else 0)

    on_stage(tmp_path, play)


def test_a_lost_connection_rolls_back(tmp_path: Path) -> None:
    async def play(stage: AmqpStage) -> None:
        connection, coordinator, sender = await begun(stage)
        txn = await coordinator.declare()
        await coordinator.ask(sender.link, data_message(b"x"), Transactional(txn))
        connection.abort()
        other, second, _ = await begun(stage)
        while True:
            answer = await second.discharge(txn, fail=False)
            if answer == Accepted():
                pytest.fail("a transaction outlived its connection")
            assert isinstance(answer, Rejected)
            assert answer.error is not None
            assert answer.error.condition == "amqp:transaction:unknown-id"
            break
        assert stage.broker.counts("orders").active == 0
        await other.close()

    on_stage(tmp_path, play)


def test_what_is_no_command_is_refused(tmp_path: Path) -> None:
    async def play(stage: AmqpStage) -> None:
        _, coordinator, sender = await begun(stage)
        for raw in (data_message(b"hello"), b"noise", b"\x00\x53\x77" + encode(Described(ULong(0x32), [5]))):
            answer = await coordinator.ask(coordinator.link, raw)
            assert isinstance(answer, Rejected)
        unknown = await coordinator.ask(sender.link, data_message(b"x"), Transactional(b"no such transaction"))
        assert isinstance(unknown, Rejected)
        assert unknown.error is not None
        assert unknown.error.condition == "amqp:transaction:unknown-id"

    on_stage(tmp_path, play)
