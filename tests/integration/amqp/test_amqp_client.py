"""The client side: windows, waiting, and what happens to those who wait when a link or connection ends."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest
from tests.support.amqp_stage import AmqpStage, data_message, on_stage

from pairbus.amqp.client import ClientConnection
from pairbus.amqp.engine import Engine
from pairbus.amqp.outcomes import AmqpError, LinkLostError, RefusedError
from pairbus.embedded.faults import Fault

SECONDS = 20.0


def test_a_sender_keeps_to_its_window(tmp_path: Path) -> None:
    async def play(stage: AmqpStage) -> None:
        connection = await stage.connect()
        sender = await connection.open_sender("orders", window=3)
        stage.faults.set(Fault("hang", entity="orders"))
        for _ in range(3):
            await sender.room()
            sender.send(data_message(b"x")).add_done_callback(lambda future: future.exception())
        waiting = asyncio.ensure_future(sender.room())
        await connection.put_token(stage.token(), "sb://localhost/")
        assert not waiting.done()
        assert sender.in_flight == 3
        stage.faults.clear()
        await waiting
        await sender.send(data_message(b"x"))

    on_stage(tmp_path, play)


def test_the_limits_of_the_link_are_known(tmp_path: Path) -> None:
    async def play(stage: AmqpStage) -> None:
        sender = await (await stage.connect()).open_sender("orders")
        assert (sender.max_message_size, sender.max_batch_size) == (262_144, 262_144)

    on_stage(tmp_path, play)


def test_everything_under_way_fails_when_the_connection_ends(tmp_path: Path) -> None:
    async def play(stage: AmqpStage) -> None:
        connection = await stage.connect()
        sender = await connection.open_sender("orders", window=1)
        receiver = await connection.open_receiver("orders")
        await sender.send(data_message(b"x"))
        (message,) = await receiver.receive(1)
        stage.faults.set(Fault("hang", entity="orders"))
        sent, settled = sender.send(data_message(b"x")), receiver.settle([message])
        under_way: list[Awaitable[object]] = [
            sent,
            settled,
            asyncio.ensure_future(sender.room()),
            asyncio.ensure_future(receiver.receive(1)),
            asyncio.ensure_future(connection.manage("orders", "peek-message", {})),
        ]
        await connection.put_token(stage.token(), "sb://localhost/")
        connection.abort()
        for waiting in under_way:
            with pytest.raises(LinkLostError):
                await waiting
        for late in (sender.send(data_message(b"x")), receiver.settle([message])):
            with pytest.raises(LinkLostError):
                await late
        with pytest.raises(LinkLostError):
            await connection.open_sender("orders")

    on_stage(tmp_path, play)


def test_a_receive_that_is_cancelled_loses_nothing(tmp_path: Path) -> None:
    async def play(stage: AmqpStage) -> None:
        connection = await stage.connect()
        receiver = await connection.open_receiver("orders")
        for _ in range(20):
            waiting = asyncio.ensure_future(receiver.receive(10))
            await connection.put_token(stage.token(), "sb://localhost/")
            waiting.cancel()
        sender = await connection.open_sender("orders")
        await sender.send(data_message(b"x"))
        assert len(await receiver.receive(10)) == 1

    on_stage(tmp_path, play)


def test_one_refusal_does_not_hide_the_others(tmp_path: Path) -> None:
    async def play(stage: AmqpStage) -> None:
        connection = await stage.connect()
        sender = await connection.open_sender("orders")
        answers = await asyncio.gather(
            sender.send(data_message(b"x")),
            sender.send(b"noise"),
            sender.send(data_message(b"x")),
            return_exceptions=True,
        )
        assert [isinstance(answer, RefusedError) for answer in answers] == [False, True, False]

    on_stage(tmp_path, play)


def test_a_server_that_is_not_there_is_an_os_error() -> None:
    async def run() -> None:
        server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        with pytest.raises(OSError, match=str(port)):
            await ClientConnection.open("127.0.0.1", port)

    asyncio.run(run())


@pytest.mark.parametrize("said", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b""])
def test_a_server_that_speaks_something_else_is_an_error(said: bytes) -> None:
    async def run() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(said)
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with asyncio.timeout(SECONDS), server:
            with pytest.raises(LinkLostError):
                await ClientConnection.open("127.0.0.1", server.sockets[0].getsockname()[1])

    asyncio.run(run())


def test_errors_say_what_they_are() -> None:
    error = LinkLostError(AmqpError("amqp:not-found", "There is no such queue."))
    assert error.condition == "amqp:not-found"
    assert str(error) == "amqp:not-found: There is no such queue."


@pytest.mark.parametrize("answer", ["refused", "silence", "no TLS", "hangs up"])
def test_a_failed_attempt_to_connect_frees_its_engine(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    engines: list[Engine] = []

    def make_engine(**options: Any) -> Engine:
        engines.append(Engine(**options))
        return engines[-1]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if answer == "silence":
            await reader.read()
        elif answer == "no TLS":
            writer.write(b"this is not TLS")
        writer.close()

    async def play() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        if answer == "refused":
            server.close()
        tls = ssl.create_default_context() if answer in ("no TLS", "silence") else None
        with pytest.raises((OSError, TimeoutError, LinkLostError)):
            await ClientConnection.open("127.0.0.1", port, tls=tls, timeout=0.3)
        server.close()
        for _ in range(10):
            await asyncio.sleep(0)

    monkeypatch.setattr("pairbus.amqp.client.Engine", make_engine)
    asyncio.run(play())
    (engine,) = engines
    assert engine.lost
    assert not hasattr(engine, "_transport")
