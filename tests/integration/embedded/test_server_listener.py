"""The listener alone: which protocol gets a connection, and what bounds it."""

import asyncio
import contextlib
import os
import resource
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from pairbus.embedded.admission import Admission
from pairbus.embedded.listener import Listener, bind
from pairbus.embedded.security import ServerCertificate, ensure_certificate

AMQP_HEADER = b"AMQP\x00\x01\x00\x00"
REQUEST = b"GET / HTTP/1.1\r\n\r\n"


class Naming(asyncio.Protocol):
    """Answers what it is, followed by what it was sent."""

    def __init__(self, name: bytes) -> None:
        self._name = name
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        self._transport.write(self._name + b":" + data)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> ServerCertificate:
    return ensure_certificate(tmp_path_factory.mktemp("certificate"))


def listen(
    certificate: ServerCertificate,
    work: Callable[[Listener], Awaitable[None]],
    *,
    admission: Admission | None = None,
    first_byte_timeout_s: float = 30.0,
) -> None:
    async def main() -> None:
        listener = Listener(
            amqp=lambda: Naming(b"amqp"),
            http=lambda: Naming(b"http"),
            tls=certificate.context(),
            admission=admission or Admission(20, unproven_s=60),
            first_byte_timeout_s=first_byte_timeout_s,
        )
        listener.start(bind("127.0.0.1", 0))
        try:
            async with asyncio.timeout(30):
                await work(listener)
        finally:
            await listener.close()
            assert listener.connection_count == 0

    asyncio.run(main())


async def connect(
    listener: Listener, tls: ssl.SSLContext | None = None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(
        "127.0.0.1", listener.port, ssl=tls, server_hostname=None if tls is None else "localhost"
    )


async def say(listener: Listener, greeting: bytes, tls: ssl.SSLContext | None = None) -> bytes:
    reader, writer = await connect(listener, tls)
    writer.write(greeting)
    answer = await reader.readexactly(5 + len(greeting))
    writer.close()
    return answer


@pytest.mark.parametrize("inside_tls", [False, True])
@pytest.mark.parametrize(("greeting", "name"), [(AMQP_HEADER, b"amqp"), (REQUEST, b"http"), (b"x", b"http")])
def test_the_first_byte_chooses_the_protocol_which_then_sees_every_byte(
    certificate: ServerCertificate, greeting: bytes, name: bytes, inside_tls: bool
) -> None:
    trusted = ssl.create_default_context(cafile=certificate.ca_file)

    async def work(listener: Listener) -> None:
        assert await say(listener, greeting, trusted if inside_tls else None) == name + b":" + greeting

    listen(certificate, work)


def test_a_silent_connection_is_closed(certificate: ServerCertificate) -> None:
    trusted = ssl.create_default_context(cafile=certificate.ca_file)

    async def work(listener: Listener) -> None:
        for tls in (None, trusted):
            reader, writer = await connect(listener, tls)
            assert await reader.read() == b""
            writer.close()

    listen(certificate, work, first_byte_timeout_s=0.05)


def test_a_connection_that_leaves_at_once_frees_its_place(certificate: ServerCertificate) -> None:
    async def work(listener: Listener) -> None:
        for _ in range(30):
            reader, writer = await connect(listener)
            writer.close()
            # Closed by us or, when two overlap, by the limit: either way the place must come free.
            await reader.read()
            while listener.connection_count:
                await asyncio.sleep(0)
        assert await say(listener, REQUEST) == b"http:" + REQUEST

    listen(certificate, work, admission=Admission(1, unproven_s=60))


def test_beyond_the_limit_the_oldest_unproven_connection_is_closed_in_any_state(certificate: ServerCertificate) -> None:
    """Silent, in a TLS handshake, and in a conversation."""
    admission = Admission(2, unproven_s=60)

    async def work(listener: Listener) -> None:
        for said, answered in ((b"", b""), (b"\x16\x03\x01", b""), (AMQP_HEADER, b"amqp:" + AMQP_HEADER)):
            reader, writer = await connect(listener)
            writer.write(said)
            assert await reader.readexactly(len(answered)) == answered
            assert await say(listener, REQUEST) == b"http:" + REQUEST
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
            writer.close()

    listen(certificate, work, admission=admission)


def test_without_a_free_descriptor_a_new_connection_takes_the_place_of_an_unproven_one(
    certificate: ServerCertificate,
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    async def work(listener: Listener) -> None:
        stranger, held = await connect(listener)
        while not listener.connection_count:
            await asyncio.sleep(0)
        with socket.socket() as client:
            client.setblocking(False)
            lowest_free = os.dup(client.fileno())
            os.close(lowest_free)
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
            loop = asyncio.get_running_loop()
            async with asyncio.timeout(9):
                await loop.sock_connect(client, ("127.0.0.1", listener.port))
                await loop.sock_sendall(client, REQUEST)
                assert (await loop.sock_recv(client, 5)) == b"http:"
                assert await stranger.read() == b""
        held.close()

    try:
        listen(certificate, work)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_proven_connections_stay_and_may_fill_all_places(certificate: ServerCertificate) -> None:
    admission = Admission(2, unproven_s=0.05)

    async def work(listener: Listener) -> None:
        proven: list[asyncio.Transport] = []
        streams = []
        for count in (1, 2):
            reader, writer = await connect(listener)
            streams.append(writer)
            writer.write(AMQP_HEADER)
            assert await reader.readexactly(5) == b"amqp:"
            (transport,) = [transport for transport in listener.transports() if transport not in proven]
            admission.set_proven(transport, True)
            proven.append(transport)
            assert listener.connection_count == count
        refused, _ = await connect(listener)
        assert await refused.read() == b""
        assert not any(transport.is_closing() for transport in proven)
        admission.set_proven(proven[0], False)
        while not proven[0].is_closing():
            await asyncio.sleep(0.01)
        assert not proven[1].is_closing()
        for stream in streams:
            stream.close()

    listen(certificate, work, admission=admission)


def test_closing_ends_connections_in_every_state(certificate: ServerCertificate) -> None:
    ended: list[bytes] = []

    async def work(listener: Listener) -> None:
        silent, _w1 = await connect(listener)
        speaking, writer = await connect(listener)
        writer.write(REQUEST)
        assert await speaking.readexactly(5) == b"http:"
        shaking, handshake = await connect(listener)
        handshake.write(b"\x16\x03\x01")
        while listener.connection_count < 3:
            await asyncio.sleep(0)
        await listener.close()
        for reader in (silent, speaking, shaking):
            try:
                ended.append(await reader.read())
            except ConnectionError:
                ended.append(b"")

    listen(certificate, work)
    assert len(ended) == 3


def test_a_certificate_is_made_once_and_again_when_a_half_is_missing(tmp_path: Path) -> None:
    first = ensure_certificate(tmp_path)
    public = first.ca_file.read_bytes()
    assert ensure_certificate(tmp_path).ca_file.read_bytes() == public
    first.server_file.unlink()
    assert ensure_certificate(tmp_path).ca_file.read_bytes() != public
    first.context()


def test_the_certificate_stands_for_this_machine_only(certificate: ServerCertificate) -> None:
    trusted = ssl.create_default_context(cafile=certificate.ca_file)

    async def work(listener: Listener) -> None:
        for host in ("localhost", "127.0.0.1", "::1", "contoso.servicebus.localhost"):
            _, writer = await asyncio.open_connection("127.0.0.1", listener.port, ssl=trusted, server_hostname=host)
            writer.close()
        with pytest.raises(ssl.SSLCertVerificationError):
            await asyncio.open_connection("127.0.0.1", listener.port, ssl=trusted, server_hostname="example.com")

    listen(certificate, work)
