"""Hostile and broken clients against a server in a child process: it answers in the protocol's own way, goes on serving
everyone else, and its memory stays bounded.

Memory is the child's resident set, compared with what it was after a warm-up. The bounds are generous: they tell a
leak of everything a client sends from the buffers a connection may have.
"""

from __future__ import annotations

import asyncio
import random
import select
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import psutil
import pytest
from tests.support.raw import BATCH_FORMAT, open_raw, raw_batch, raw_message, say_no_more

from pairbus.amqp.codec import encode
from pairbus.amqp.message import read_facts
from pairbus.amqp.outcomes import AmqpClientError, RefusedError
from pairbus.amqp.sasl import AMQP_HEADER, SASL_HEADER
from pairbus.amqp.types import Described, UInt, ULong
from pairbus.testing import EmbeddedNamespace

SEED = 20_240_229
CONVERSATIONS = 250
QUEUE = "orders"
MEBIBYTE = 1 << 20
TIMEOUT_SECONDS = 20.0


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedNamespace]:
    with EmbeddedNamespace("contoso", process=True) as namespace:
        with namespace.admin() as admin:
            for name in (QUEUE, "unread"):
                admin.create_queue(name)
        asyncio.run(_works(namespace))
        yield namespace


@pytest.fixture(autouse=True)
def _still_serves(server: EmbeddedNamespace) -> Iterator[None]:
    """Whatever a test did, the same process serves a well-behaved client afterwards."""
    before = server.pid
    yield
    asyncio.run(_works(server))
    assert server.pid == before and psutil.pid_exists(before)


async def _works(server: EmbeddedNamespace) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        connection = await open_raw(server.connection_string)
        sender = await connection.open_sender(QUEUE)
        await asyncio.gather(*(sender.send(raw_message(f"{number}", b"x" * 1000)) for number in range(50)))
        receiver = await connection.open_receiver(QUEUE)
        left = 50
        while left:
            messages = await receiver.receive(left)
            assert await receiver.settle(messages) == [None] * len(messages)
            left -= len(messages)
        await connection.close()


class Memory:
    """How much the server grew since this was made."""

    def __init__(self, server: EmbeddedNamespace) -> None:
        self._process = psutil.Process(server.pid)
        self._before = self._process.memory_info().rss

    def growth(self) -> float:
        """In MiB."""
        return float(self._process.memory_info().rss - self._before) / MEBIBYTE


def _frame(code: int, fields: list[object], payload: bytes = b"", channel: int = 0) -> bytes:
    body = encode(Described(ULong(code), fields)) + payload
    return struct.pack(">IBBH", len(body) + 8, 2, 0, channel) + body


OPEN = _frame(0x10, ["hostile", "host", UInt(65_536)])
BEGIN = _frame(0x11, [None, UInt(0), UInt(2**31 - 1), UInt(2**31 - 1)])


def _attach(name: str, handle: int, address: str) -> bytes:
    target = Described(ULong(0x29), [address])
    source = Described(ULong(0x28), [name])
    return _frame(0x12, [name, UInt(handle), False, None, None, source, target, None, None, UInt(0)])


def _converse(server: EmbeddedNamespace, said: bytes) -> bytes:
    """Everything the server answers to these bytes before it ends the connection."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=TIMEOUT_SECONDS) as connection:
        heard = b""
        with suppress(ConnectionError):
            connection.sendall(said)
            say_no_more(connection)
            while more := connection.recv(65_536):
                heard += more
        return heard


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        (b"AMQP\x00\x09\x09\x09", b"AMQP"),
        (b"A" * 100, b"AMQP"),
        (AMQP_HEADER + b"\xff" * 64, b"amqp:"),
        (AMQP_HEADER + struct.pack(">IBBH", 4, 2, 0, 0), b"amqp:"),
        (AMQP_HEADER + struct.pack(">IBBH", 16, 0, 0, 0) + b"\0" * 8, b"amqp:"),
        (AMQP_HEADER + OPEN + struct.pack(">IBBH", 2**31, 2, 0, 0) + b"x" * 1000, b"amqp:"),
        (AMQP_HEADER + OPEN + BEGIN + _frame(0x14, [UInt(77), UInt(0), b"tag", UInt(0)], b"payload"), b"amqp:"),
        (AMQP_HEADER + OPEN + _frame(0x11, [None, UInt(0), UInt(9), UInt(9)], channel=60_000), b"amqp:"),
        (AMQP_HEADER + OPEN + BEGIN + _attach("a", 2**32 - 1, QUEUE), b"amqp:"),
        (AMQP_HEADER + OPEN + BEGIN + _attach("a", 0, "x" * 20_000), b"amqp:"),
        (AMQP_HEADER + OPEN + BEGIN + _frame(0x77, [1, 2, 3]), b"amqp:"),
        (SASL_HEADER + b"\0\0\0\x10\x02\x01\0\0" + b"\xff" * 8, SASL_HEADER),
    ],
    ids=[
        "unknown version",
        "no header",
        "noise",
        "frame below its header",
        "offset below its header",
        "frame of two gigabytes",
        "transfer without a link",
        "channel out of range",
        "handle out of range",
        "endless name",
        "unknown performative",
        "noise in SASL",
    ],
)
def test_what_is_not_amqp_is_answered_in_amqp(server: EmbeddedNamespace, said: bytes, answer: bytes) -> None:
    assert answer in _converse(server, said)


def test_mutated_conversations_do_no_harm(server: EmbeddedNamespace) -> None:
    """A good conversation with bytes changed, cut out, doubled and cut off, a few hundred times."""
    chance = random.Random(SEED)
    message = raw_message("m", b"body", properties={"key": "value", "n": 7})
    good = b"".join(
        (
            AMQP_HEADER,
            OPEN,
            BEGIN,
            _attach("a", 0, "$cbs"),
            _frame(0x14, [UInt(0), UInt(0), b"t1", UInt(0)], message),
            _frame(0x12, ["b", UInt(1), True, None, None, Described(ULong(0x28), [QUEUE]), None]),
            _frame(0x13, [UInt(0), UInt(100), UInt(0), UInt(100), UInt(1), UInt(0), UInt(100)]),
            _frame(0x15, [True, UInt(0), UInt(0), True, Described(ULong(0x24), [])]),
            _frame(0x16, [UInt(0), True]),
            _frame(0x17, []),
            _frame(0x18, []),
        )
    )
    memory = Memory(server)
    for _ in range(CONVERSATIONS):
        said = bytearray(good)
        for _ in range(chance.randint(1, 6)):
            at = chance.randrange(8, len(said))
            match chance.randrange(4):
                case 0:
                    said[at] = chance.randrange(256)
                case 1:
                    del said[at : at + chance.randint(1, 20)]
                case 2:
                    said[at:at] = said[at : at + chance.randint(1, 40)]
                case _:
                    said[at:at] = chance.randbytes(chance.randint(1, 8))
            if len(said) < 32:
                break
        _converse(server, bytes(said))
    assert memory.growth() < 30


def test_connections_that_say_nothing_or_half_a_word(server: EmbeddedNamespace) -> None:
    memory = Memory(server)
    with ExitStack() as stack:
        for number in range(300):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=10))
            connection.sendall((b"", b"AM", AMQP_HEADER, AMQP_HEADER + OPEN[:-3], b"GET / HT", b"\x16\x03")[number % 6])
        asyncio.run(_works(server))
        assert memory.growth() < 40


def test_a_client_that_never_reads_is_not_served_without_end(server: EmbeddedNamespace) -> None:
    """It asks for 40 MB and for thousands of replies, and reads none of it."""

    async def run() -> None:
        filler = await open_raw(server.connection_string)
        sender = await filler.open_sender("unread")
        await asyncio.gather(*(sender.send(raw_message(f"{n}", b"x" * 200_000)) for n in range(200)))
        await filler.close()
        memory = Memory(server)
        deaf = await open_raw(server.connection_string)
        await deaf.open_receiver("unread", credit=10_000)
        asker = await deaf.open_sender("unread/$management")
        deaf.protocol.hold_reading()
        request = (
            b"\x00\x53\x73"
            + encode(["id", None, None, None, "nowhere"])
            + b"\x00\x53\x74"
            + encode({"operation": "com.microsoft:peek-message"})
            + b"\x00\x53\x77"
            + encode({"from-sequence-number": 1, "message-count": 100})
        )
        answers = [asker.send(request) for _ in range(90)]
        await _works(server)
        await _works(server)
        assert memory.growth() < 60
        deaf.abort()
        await asyncio.wait(answers)
        for answer in answers:
            answer.exception()

    asyncio.run(run())


def test_thousands_of_links_on_one_connection(server: EmbeddedNamespace) -> None:
    async def run() -> None:
        memory = Memory(server)
        connection = await open_raw(server.connection_string)
        opened = await asyncio.gather(
            *(connection.open_sender(QUEUE, timeout=TIMEOUT_SECONDS) for _ in range(4000)), return_exceptions=True
        )
        refused = [one for one in opened if isinstance(one, BaseException)]
        assert len(refused) >= 1000, "links have a limit"
        assert all(isinstance(one, AmqpClientError) for one in refused), refused[:3]
        assert memory.growth() < 80
        connection.abort()

    asyncio.run(run())


def test_messages_that_never_end_are_not_collected_without_end(server: EmbeddedNamespace) -> None:
    """Two hundred links, a message begun on each, megabytes of it, without ever proving who one is."""
    memory = Memory(server)
    links = range(200)
    heard = bytearray()
    with socket.create_connection(("127.0.0.1", server.port), timeout=TIMEOUT_SECONDS) as connection:
        connection.sendall(AMQP_HEADER + OPEN + BEGIN + b"".join(_attach(f"l{n}", n, "$cbs") for n in links))
        while b"l199" not in heard:
            heard += connection.recv(1 << 20)
        with suppress(ConnectionError):
            for number in links:
                start = [UInt(number), UInt(number), b"%d" % number, UInt(0), False, True]
                for _ in range(15):
                    connection.sendall(_frame(0x14, start, b"x" * 60_000))
                    if select.select([connection], [], [], 0)[0]:
                        heard += connection.recv(1 << 20)
                if b"amqp:resource-limit-exceeded" in heard:
                    break
        # The server may have hung up in the middle of a send: what it said before is still there to be read.
        with suppress(ConnectionError):
            while b"amqp:resource-limit-exceeded" not in heard and (more := connection.recv(1 << 20)):
                heard += more
    assert b"amqp:resource-limit-exceeded" in heard
    assert memory.growth() < 80


def test_oversized_messages_and_batches_are_refused_and_the_link_goes_on(server: EmbeddedNamespace) -> None:
    async def run() -> None:
        memory = Memory(server)
        connection = await open_raw(server.connection_string)
        sender = await connection.open_sender(QUEUE)
        tiny = raw_message("t")
        nested = b"\x00\x53\x77" + b"\xc0\x7f\x01" * 30_000
        many = {f"property-{number}": number for number in range(8000)}
        for raw, message_format, condition in (
            (raw_message("x", b"x" * 20_000_000), 0, "amqp:link:message-size-exceeded"),
            (raw_batch([tiny] * 30_000), BATCH_FORMAT, "amqp:link:message-size-exceeded"),
            (raw_batch([raw_message("y", b"y" * 262_144)]), BATCH_FORMAT, "amqp:link:message-size-exceeded"),
            (raw_message("m", properties=many), 0, "amqp:link:message-size-exceeded"),
            (b"\x00\x53\x75\xa0\xff", BATCH_FORMAT, "com.microsoft:argument-error"),
            (b"not a message at all", 0, "com.microsoft:argument-error"),
            (raw_message("i" * 129), 0, "com.microsoft:argument-error"),
        ):
            assert await _refusal(sender.send(raw, message_format=message_format)) == condition
        await _outcome(sender.send(nested))
        await sender.send(raw_message("fine"))
        receiver = await connection.open_receiver(QUEUE, receive_and_delete=True)
        while True:
            (message,) = await receiver.receive(1)
            receiver.let_go(message)
            if read_facts(message.raw).message_id == "fine":
                break
        assert memory.growth() < 60
        await connection.close()

    asyncio.run(run())


def test_names_and_maps_without_end(server: EmbeddedNamespace) -> None:
    async def run() -> None:
        memory = Memory(server)
        connection = await open_raw(server.connection_string)
        for address in ("x" * 261, "a/" * 5000, "\0", "//", f"{QUEUE}/Subscriptions/" + "s" * 51):
            with pytest.raises(AmqpClientError):
                await connection.open_sender(address, timeout=TIMEOUT_SECONDS)
        for entries in (5_000, 20_000):
            large = {f"key-{number}": [number] * 5 for number in range(entries)}
            with suppress(RefusedError):
                assert not (await connection.manage(QUEUE, "peek-message", large)).is_good
        body = {"lock-tokens": list(range(60_000)), "disposition-status": "completed"}
        assert not (await connection.manage(QUEUE, "update-disposition", body)).is_good
        deep: object = None
        for _ in range(200):
            deep = [deep]
        with suppress(AmqpClientError, TimeoutError):
            assert not (await connection.manage(QUEUE, "peek-message", {"deep": deep}, seconds=2)).is_good
        assert memory.growth() < 60
        connection.abort()

    asyncio.run(run())


async def _refusal(answer: asyncio.Future[None]) -> str:
    with pytest.raises(RefusedError) as refused:
        await answer
    return refused.value.condition


async def _outcome(answer: asyncio.Future[None]) -> None:
    """Taken or refused: either is fine, no answer is not."""
    with suppress(RefusedError):
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await answer
