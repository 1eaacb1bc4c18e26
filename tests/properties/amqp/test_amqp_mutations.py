"""Conversations with mistakes: frames changed, lost, repeated or out of order never harm the server.

The conversation is written out by hand, frame by frame, so that it does not depend on the engine under test.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.amqp_stage import AmqpStage, amqp_stage, batch, data_message

from pairbus.amqp.codec import encode
from pairbus.amqp.message import BATCH_FORMAT
from pairbus.amqp.sasl import AMQP_HEADER, SaslExchange
from pairbus.amqp.types import Described, Symbol, UByte, UInt, ULong
from pairbus.embedded.entities.descriptions import QueueDescription

SECONDS = 60.0


def frame(code: int, *fields: Any, payload: bytes = b"") -> bytes:
    body = encode(Described(ULong(code), list(fields))) + payload
    return (len(body) + 8).to_bytes(4, "big") + b"\x02\x00\x00\x00" + body


def attach(
    name: str, handle: int, *, sends_to: str | Described | None = None, receives_from: str | None = None
) -> bytes:
    source = Described(ULong(0x28), [receives_from or name])
    target = sends_to if isinstance(sends_to, Described) else Described(ULong(0x29), [sends_to or name])
    receives = receives_from is not None
    return frame(0x12, name, UInt(handle), receives, UByte(0), UByte(1), source, target, None, None, UInt(0))


def transfer(handle: int, number: int, payload: bytes, *, message_format: int = 0, more: bool = False) -> bytes:
    tag = number.to_bytes(4, "big")
    return frame(0x14, UInt(handle), UInt(number), tag, UInt(message_format), False, more, payload=payload)


def flow(handle: int, credit: int, *, drain: bool = False) -> bytes:
    window = UInt(1_000)
    return frame(0x13, UInt(0), window, UInt(0), window, UInt(handle), UInt(0), UInt(credit), None, drain)


def request(properties: dict[str, Any], body: Any) -> bytes:
    return b"\x00\x53\x73" + encode(["id"]) + b"\x00\x53\x74" + encode(properties) + b"\x00\x53\x77" + encode(body)


OPENING = (
    SaslExchange(server=False).start()
    + AMQP_HEADER
    + frame(0x10, "mistaken", "localhost")
    + frame(0x11, None, UInt(0), UInt(1_000), UInt(1_000))
)
BEGUN = b"\x00\x53\x11"


def conversation(token: str) -> list[bytes]:
    put_token = {"operation": "put-token", "type": "servicebus.windows.net:sastoken", "name": "sb://localhost/"}
    long_message = data_message(b"x" * 1_000)
    return [
        attach("cbs-out", 0, sends_to="$cbs"),
        attach("cbs-in", 1, receives_from="$cbs"),
        flow(1, 10),
        transfer(0, 0, request(put_token, token)),
        attach("send", 2, sends_to="orders"),
        transfer(2, 1, data_message(b"one")),
        transfer(2, 2, batch([data_message(b"two"), data_message(b"three")]), message_format=BATCH_FORMAT),
        transfer(2, 3, long_message[:400], more=True),
        transfer(2, 3, long_message[400:]),
        attach("manage-out", 3, sends_to="orders/$management"),
        attach("manage-in", 4, receives_from="orders/$management"),
        flow(4, 10),
        transfer(
            3, 4, request({"operation": "com.microsoft:peek-message"}, {"from-sequence-number": 0, "message-count": 2})
        ),
        attach("coordinator", 5, sends_to=Described(ULong(0x30), [])),
        transfer(5, 5, b"\x00\x53\x77" + encode(Described(ULong(0x31), [None]))),
        attach("receive", 6, receives_from="orders"),
        flow(6, 2),
        frame(0x15, True, UInt(2), UInt(3), False, Described(ULong(0x24), [])),
        frame(
            0x15,
            True,
            UInt(3),
            None,
            True,
            Described(ULong(0x25), [Described(ULong(0x1D), [Symbol("x"), "why", {Symbol("a"): 1}])]),
        ),
        flow(6, 0, drain=True),
        frame(0x16, UInt(6), True),
        frame(0x17),
        frame(0x18),
    ]


@st.composite
def mistakes(draw: st.DrawFn) -> list[tuple[str, int, int, int]]:
    kinds = st.sampled_from(["change", "drop", "repeat", "swap", "cut"])
    numbers = st.integers(0, 10_000)
    return draw(st.lists(st.tuples(kinds, numbers, numbers, st.integers(0, 255)), min_size=1, max_size=5))


def with_mistakes(frames: list[bytes], made: list[tuple[str, int, int, int]]) -> bytes:
    result = list(frames)
    for kind, first, second, value in made:
        if not result:
            break
        at, other = first % len(result), second % len(result)
        one = result[at] or b"\x00"
        if kind == "change":
            position = second % len(one)
            result[at] = one[:position] + bytes([value]) + one[position + 1 :]
        elif kind == "drop":
            del result[at]
        elif kind == "repeat":
            result.insert(other, one)
        elif kind == "swap":
            result[at], result[other] = result[other], result[at]
        else:
            result[at] = one[: second % len(one)]
    return b"".join(result)


async def said(stage: AmqpStage, data: bytes) -> bytes:
    """What the server answers until it ends the connection, which it must do after the peer's last byte."""
    reader, writer = await asyncio.open_connection("127.0.0.1", stage.port)
    try:
        # A peer may send nothing on a session before it knows the other side's window.
        writer.write(OPENING)
        await reader.readuntil(BEGUN)
        writer.write(data)
        writer.write_eof()
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


def test_without_mistakes_everything_is_done(tmp_path_factory: pytest.TempPathFactory) -> None:
    async def run() -> None:
        async with asyncio.timeout(SECONDS), amqp_stage(tmp_path_factory.mktemp("stage")) as stage:
            await stage.broker.create(QueueDescription("orders"))
            answer = await said(stage, b"".join(conversation(stage.token())))
            assert b"amqp:" not in answer.replace(b"amqp:accepted", b"")
            while stage.broker.counts("orders").message_count < 4:
                await asyncio.sleep(0)

    asyncio.run(run())


@settings(max_examples=25, deadline=None, print_blob=True)
@given(st.lists(mistakes(), min_size=1, max_size=8))
def test_mistakes_end_in_an_answer_and_not_in_harm(
    tmp_path_factory: pytest.TempPathFactory, conversations: list[list[tuple[str, int, int, int]]]
) -> None:
    async def run() -> None:
        async with asyncio.timeout(SECONDS), amqp_stage(tmp_path_factory.mktemp("stage")) as stage:
            await stage.broker.create(QueueDescription("orders"))
            frames = conversation(stage.token())
            await asyncio.gather(*[said(stage, with_mistakes(frames, made)) for made in conversations])
            healthy = await stage.connect()
            sender = await healthy.open_sender("orders")
            await sender.send(data_message(b"still there"))
            await healthy.close()

    asyncio.run(run())
