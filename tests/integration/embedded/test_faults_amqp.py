"""What each fault does to clients over AMQP, and that nothing waits for ever once it is over."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.support.amqp_stage import AmqpStage, data_message, on_stage

from pairbus.amqp.client import ClientConnection
from pairbus.amqp.outcomes import AmqpClientError, LinkLostError, RefusedError
from pairbus.embedded.faults import Fault

PEEK = {"from-sequence-number": 0, "message-count": 1}


async def other_entities_work(stage: AmqpStage) -> None:
    connection = await stage.connect()
    await (await connection.open_sender("orders-too")).send(data_message(b"x"))
    await connection.close()


async def answers_so_far(connection: ClientConnection) -> None:
    """Wait until the server has read all that was sent before on this connection, whatever it made of it."""
    await connection.manage("orders-too", "peek-message", PEEK)


def test_refusing_an_entity_cuts_its_connections_and_refuses_its_links(tmp_path: Path) -> None:
    async def play(stage: AmqpStage) -> None:
        connection = await stage.connect()
        await connection.open_sender("orders")
        stage.faults.set(Fault("refuse", entity="orders"))
        await connection.lost
        again = await stage.connect()
        with pytest.raises(LinkLostError):
            await again.open_sender("orders")
        await other_entities_work(stage)
        stage.faults.clear()
        await again.open_sender("orders")

    on_stage(tmp_path, play)


def test_refusing_the_namespace_cuts_and_refuses_connections(tmp_path: Path) -> None:
    async def play(stage: AmqpStage) -> None:
        connection = await stage.connect()
        stage.faults.set(Fault("refuse"))
        await connection.lost
        with pytest.raises((OSError, AmqpClientError)):
            await stage.connect()
        stage.faults.clear()
        await stage.connect()

    on_stage(tmp_path, play)


def test_drop_cuts_the_connection_before_storing(tmp_path: Path) -> None:
    async def play(stage: AmqpStage) -> None:
        connection = await stage.connect()
        sender = await connection.open_sender("orders")
        stage.faults.set(Fault("drop", entity="orders"))
        with pytest.raises(LinkLostError):
            await sender.send(data_message(b"x"))
        assert stage.broker.counts("orders").active == 0
        await other_entities_work(stage)

    on_stage(tmp_path, play)


def test_hang_answers_nothing_until_it_is_over(tmp_path: Path) -> None:
    async def play(stage: AmqpStage) -> None:
        connection = await stage.connect()
        sender = await connection.open_sender("orders")
        await sender.send(data_message(b"before"))
        receiver = await connection.open_receiver("orders", credit=1)
        (message,) = await receiver.receive(1)
        stage.faults.set(Fault("hang", entity="orders"))
        sent = sender.send(data_message(b"x"))
        settled = receiver.settle([message])
        asked = asyncio.create_task(connection.manage("orders", "peek-message", PEEK))
        await answers_so_far(connection)
        await answers_so_far(connection)
        assert not sent.done()
        assert not settled.done()
        assert not asked.done()
        await other_entities_work(stage)
        stage.faults.clear("orders")
        with pytest.raises(RefusedError) as late:
            await sent
        assert late.value.condition == "com.microsoft:timeout"
        (reason,) = await settled
        assert reason is not None
        assert (await asked).condition == "com.microsoft:timeout"
        await sender.send(data_message(b"after"))
        assert len(stage.broker.peek("orders", 0, 10, None)) == 2

    on_stage(tmp_path, play)


def test_a_hanging_entity_delivers_again_when_it_is_over(tmp_path: Path) -> None:
    async def play(stage: AmqpStage) -> None:
        connection = await stage.connect()
        await (await connection.open_sender("orders")).send(data_message(b"x"))
        stage.faults.set(Fault("hang", entity="orders"))
        receiver = await connection.open_receiver("orders")
        await answers_so_far(connection)
        assert stage.broker.counts("orders").active == 1
        stage.faults.clear()
        assert len(await receiver.receive(1)) == 1

    on_stage(tmp_path, play)


def test_error_answers_with_its_condition_everywhere(tmp_path: Path) -> None:
    async def play(stage: AmqpStage) -> None:
        connection = await stage.connect()
        sender = await connection.open_sender("orders")
        await sender.send(data_message(b"x"))
        receiver = await connection.open_receiver("orders")
        (message,) = await receiver.receive(1)
        await connection.manage("orders", "peek-message", PEEK)
        stage.faults.set(Fault("error", entity="orders", condition="com.microsoft:entity-disabled"))
        with pytest.raises(RefusedError) as refused:
            await sender.send(data_message(b"x"))
        assert refused.value.condition == "com.microsoft:entity-disabled"
        (reason,) = await receiver.settle([message])
        assert reason is not None
        assert reason.condition == "com.microsoft:entity-disabled"
        with pytest.raises(LinkLostError) as attach:
            await connection.open_sender("orders")
        assert attach.value.condition == "com.microsoft:entity-disabled"
        reply = await connection.manage("orders", "peek-message", PEEK)
        assert reply.condition == "com.microsoft:entity-disabled"
        await other_entities_work(stage)

    on_stage(tmp_path, play)


def test_throttle_refuses_what_is_above_the_rate(tmp_path: Path) -> None:
    async def play(stage: AmqpStage) -> None:
        connection = await stage.connect()
        sender = await connection.open_sender("orders")
        stage.faults.set(Fault("throttle", entity="orders", rate=5.0))
        answers = await asyncio.gather(*[sender.send(data_message(b"x")) for _ in range(20)], return_exceptions=True)
        refused = [answer for answer in answers if answer is not None]
        assert len(refused) == 15
        assert {answer.condition for answer in refused if isinstance(answer, RefusedError)} == {
            "com.microsoft:server-busy"
        }

    on_stage(tmp_path, play)


def test_slow_answers_later_and_in_order(tmp_path: Path) -> None:
    async def play(stage: AmqpStage) -> None:
        connection = await stage.connect()
        sender = await connection.open_sender("orders")
        stage.faults.set(Fault("slow", entity="orders", delay_ms=50))
        waiting = [sender.send(data_message(b"x", message_id=str(number))) for number in range(5)]
        await answers_so_far(connection)
        assert stage.broker.counts("orders").active == 0
        await asyncio.gather(*waiting)
        assert stage.broker.counts("orders").active == 5

    on_stage(tmp_path, play)


def test_accept_then_fail_stores_and_says_nothing(tmp_path: Path) -> None:
    async def play(stage: AmqpStage) -> None:
        connection = await stage.connect()
        sender = await connection.open_sender("orders")
        stage.faults.set(Fault("accept-then-fail", entity="orders"))
        sent = sender.send(data_message(b"x"))
        while not stage.broker.counts("orders").active:
            await answers_so_far(connection)
        await answers_so_far(connection)
        assert not sent.done()
        stage.faults.clear()
        await sent

    on_stage(tmp_path, play)
