"""Peers that do it wrong: the protocol's own error or an end of the connection, and never more memory than allowed."""

from __future__ import annotations

import asyncio
import contextlib
import random
from pathlib import Path

import pytest
from tests.support.amqp_stage import AmqpStage, data_message, on_stage

from pairbus.amqp.client import ClientConnection
from pairbus.amqp.codec import encode
from pairbus.amqp.engine import EngineLimits
from pairbus.amqp.outcomes import LinkLostError
from pairbus.amqp.sasl import AMQP_HEADER, SaslExchange
from pairbus.amqp.types import Char, Described, Symbol, UInt, ULong

GREETING = SaslExchange(server=False).start() + AMQP_HEADER


def frame(code: int, *fields: object, channel: int = 0) -> bytes:
    body = encode(Described(ULong(code), list(fields)))
    return (len(body) + 8).to_bytes(4, "big") + b"\x02\x00" + channel.to_bytes(2, "big") + body


OPEN = frame(0x10, "hostile", "localhost")
BAD_FILTER = {Symbol("filter"): Char("\ud800")}
BEGIN = frame(0x11, None, UInt(0), UInt(1000), UInt(1000))


async def heard(stage: AmqpStage, said: bytes) -> bytes:
    """Everything the server says to a peer that says this, until the server ends the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", stage.port)
    writer.write(said)
    try:
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("said", "condition"),
    [
        (b"\x7f\xff\xff\xff\x02\x00\x00\x00", b"amqp:connection:framing-error"),
        (b"\x00\x00\x00\x04\x02\x00\x00\x00", b"amqp:connection:framing-error"),
        (frame(0x14, UInt(0), UInt(0), b"tag", UInt(0)), b"amqp:"),
        (frame(0x12, None, UInt(0), False), b"amqp:"),
        (b"\x00\x00\x00\x0c\x02\x00\x00\x00\xff\xff\xff\xff", b"amqp:"),
        (b"\x00\x00\x00\x0c\x02\x00\x00\x00\x00\x53\x12\xc0", b"amqp:"),
        (
            frame(0x12, "link", UInt(0), True, None, None, Described(ULong(0x28), ["orders", *[None] * 6, BAD_FILTER]))
            + frame(0x18),
            b"amqp:decode-error",
        ),
    ],
    ids=[
        "huge frame",
        "tiny frame",
        "transfer without a link",
        "link without a name",
        "no performative",
        "cut performative",
        "half a surrogate pair",
    ],
)
def test_malformed_frames_close_the_connection_with_an_error(tmp_path: Path, said: bytes, condition: bytes) -> None:
    async def play(stage: AmqpStage) -> None:
        answer = await heard(stage, GREETING + OPEN + BEGIN + said)
        assert condition in answer
        connection = await stage.connect()
        await (await connection.open_sender("orders")).send(data_message(b"still there"))

    on_stage(tmp_path, play)


def test_malformed_frames_leave_no_traceback(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def play(stage: AmqpStage) -> None:
        source = Described(ULong(0x28), ["orders", *[None] * 6, BAD_FILTER])
        attach = frame(0x12, "link", UInt(0), True, None, None, source)
        assert b"amqp:decode-error" in await heard(stage, GREETING + OPEN + BEGIN + attach + frame(0x18))

    on_stage(tmp_path, play)
    assert not caplog.records


@pytest.mark.parametrize("credit", [2**31, 2**32 - 1])
def test_as_much_credit_as_the_protocol_allows(tmp_path: Path, credit: int) -> None:
    async def play(stage: AmqpStage) -> None:
        connection = await stage.connect()
        await (await connection.open_sender("orders")).send(data_message(b"one"))
        receiver = await connection.open_receiver("orders", credit=0)
        assert connection.protocol._socket is not None
        handle = 3  # after two links to $cbs and the sender
        flow = frame(0x13, UInt(0), UInt(1000), UInt(2), UInt(1000), UInt(handle), UInt(0), UInt(credit))
        connection.protocol._socket.write(flow)
        assert len(await receiver.receive(1)) == 1
        connection.abort()

    on_stage(tmp_path, play)


def test_noise_never_harms_the_server(tmp_path: Path) -> None:
    async def play(stage: AmqpStage) -> None:
        chance = random.Random(20_260_101)
        beginnings = [b"", GREETING[:8], GREETING, GREETING + OPEN, GREETING + OPEN + BEGIN]
        for _ in range(60):
            reader, writer = await asyncio.open_connection("127.0.0.1", stage.port)
            writer.write(chance.choice(beginnings) + chance.randbytes(chance.randint(1, 200)))
            writer.write_eof()
            with contextlib.suppress(ConnectionError):
                await reader.read()
            writer.close()
        connection = await stage.connect()
        await (await connection.open_sender("orders")).send(data_message(b"still there"))

    on_stage(tmp_path, play)


@pytest.mark.parametrize("said", [b"", b"AMQ", GREETING[:8], GREETING], ids=["silence", "cut", "header", "no open"])
def test_a_connection_that_does_not_open_in_time_is_cut(tmp_path: Path, said: bytes) -> None:
    async def play(stage: AmqpStage) -> None:
        await heard(stage, said)

    on_stage(tmp_path, play, EngineLimits(open_timeout=0.05))


def test_a_silent_peer_is_cut_after_the_idle_timeout(tmp_path: Path) -> None:
    async def play(stage: AmqpStage) -> None:
        assert b"amqp:resource-limit-exceeded" in await heard(stage, GREETING + OPEN)

    on_stage(tmp_path, play, EngineLimits(idle_timeout=0.2))


def test_a_peer_that_sends_heartbeats_stays(tmp_path: Path) -> None:
    async def play(stage: AmqpStage) -> None:
        idle = await ClientConnection.open("127.0.0.1", stage.port)
        # A silent one that is younger is cut first.
        await heard(stage, GREETING + OPEN)
        assert not idle.engine.lost
        await idle.put_token(stage.token(), "sb://localhost/")

    on_stage(tmp_path, play, EngineLimits(idle_timeout=2.0))


def test_links_are_limited(tmp_path: Path) -> None:
    async def play(stage: AmqpStage) -> None:
        connection = await stage.connect()
        await connection.open_sender("orders")
        with pytest.raises(LinkLostError) as refused:
            await connection.open_sender("orders")
        assert refused.value.condition == "amqp:resource-limit-exceeded"

    on_stage(tmp_path, play, EngineLimits(max_links=3))


def test_a_client_that_never_reads_gets_no_more_than_fits_its_buffers(tmp_path: Path) -> None:
    async def play(stage: AmqpStage) -> None:
        connection, deaf = await stage.connect(), await stage.connect()
        sender = await connection.open_sender("orders")
        count = 150
        body = data_message(b"x" * 200_000)
        await asyncio.gather(*[sender.send(body) for _ in range(count)])
        deaf.protocol.hold_reading()
        link = deaf.engine.new_link(deaf.engine.new_session(), "deaf", sender=False)
        link.open(source="orders", target="deaf")
        link.grant(1_000_000)
        peek = {"from-sequence-number": 0, "message-count": 1}
        for _ in range(50):
            assert (await connection.manage("orders", "peek-message", peek)).is_good
        receiver = await connection.open_receiver("orders", credit=1_000)
        got = 0
        while got < count // 2:
            got += len(await receiver.receive(1_000))
        deaf.abort()

    on_stage(tmp_path, play)


def test_a_client_that_asks_and_takes_no_replies_is_cut(tmp_path: Path) -> None:
    async def play(stage: AmqpStage) -> None:
        connection = await stage.connect()
        sender = await connection.open_sender("orders")
        await asyncio.gather(*[sender.send(data_message(b"x" * 200_000)) for _ in range(5)])
        await connection.open_receiver("orders/$management", credit=0, target="replies")
        asking = await connection.open_sender("orders/$management")
        peek = encode({"from-sequence-number": 0, "message-count": 10})
        request = b"\x00\x53\x74" + encode({"operation": "com.microsoft:peek-message"}) + b"\x00\x53\x77" + peek
        while not connection.engine.lost:
            asking.send(request).add_done_callback(lambda future: future.exception())
            await asyncio.sleep(0)
        assert (await connection.lost).condition == "amqp:resource-limit-exceeded"

    on_stage(tmp_path, play)


def test_a_message_that_is_cut_off_is_not_stored(tmp_path: Path) -> None:
    async def play(stage: AmqpStage) -> None:
        cut, connection = await stage.connect(), await stage.connect()
        sender = await cut.open_sender("orders")
        future = sender.send(data_message(b"x" * 250_000))
        written = b""
        while chunk := cut.engine.data_to_send():
            written += chunk
        assert len(written) > 250_000
        cut.protocol._write(written[:100_000])
        peek = {"from-sequence-number": 0, "message-count": 1}
        assert (await connection.manage("orders", "peek-message", peek)).status == 204
        cut.abort()
        with pytest.raises(LinkLostError):
            await future
        assert stage.broker.counts("orders").active == 0

    on_stage(tmp_path, play)


def test_a_peer_that_never_detaches_refused_links_is_closed(tmp_path: Path) -> None:
    async def play(stage: AmqpStage) -> None:
        source = Described(ULong(0x28), ["orders"])
        target = Described(ULong(0x29), ["here"])
        attaches = [frame(0x12, f"link-{n}", UInt(n), True, None, None, source, target) for n in range(20)]
        answer = await heard(stage, GREETING + OPEN + BEGIN + b"".join(attaches))
        refused, _, closed = answer.rpartition(b"\x00\x53\x18")
        assert b"amqp:resource-limit-exceeded" in refused
        assert b"amqp:resource-limit-exceeded" in closed

    on_stage(tmp_path, play, EngineLimits(max_links=4))


def test_without_a_token_no_transaction_is_declared(tmp_path: Path) -> None:
    async def play(stage: AmqpStage) -> None:
        coordinator = Described(ULong(0x30), [])
        attach = frame(0x12, "transactions", UInt(0), False, None, None, Described(ULong(0x28), ["here"]), coordinator)
        assert b"amqp:unauthorized-access" in await heard(stage, GREETING + OPEN + BEGIN + attach + frame(0x18))

    on_stage(tmp_path, play)
