"""AMQP's bytes pass through a web socket both ways, in order, however they are cut."""

import asyncio
from collections.abc import Awaitable, Callable

import aiohttp
import pytest
from aiohttp import web
from azure.servicebus import ServiceBusClient, ServiceBusMessage, TransportType

from pairbus.amqp.websocket import HIGH_WATER_BYTES, PATH, SUB_PROTOCOL
from pairbus.embedded.websocket import carry_amqp
from pairbus.testing import EmbeddedNamespace


class Echo(asyncio.Protocol):
    """Writes back what it reads and notes what a transport tells a protocol."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        assert self.transport is not None
        if data == b"close":
            self.transport.close()
        else:
            self.transport.write(data)

    def pause_writing(self) -> None:
        self.told.append("pause")

    def resume_writing(self) -> None:
        self.told.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.told.append("lost")


def with_server(scenario: Callable[[aiohttp.ClientSession, str, list[Echo]], Awaitable[None]]) -> None:
    async def run() -> None:
        echoes: list[Echo] = []

        def make() -> Echo:
            echoes.append(Echo())
            return echoes[-1]

        async def answer(request: web.BaseRequest) -> web.StreamResponse:
            return await carry_amqp(request, make)

        server = web.ServerRunner(web.Server(answer))
        await server.setup()
        site = web.TCPSite(server, "127.0.0.1", 0)
        await site.start()
        host, port = server.addresses[0][:2]
        try:
            async with aiohttp.ClientSession() as session:
                await scenario(session, f"http://{host}:{port}{PATH}", echoes)
        finally:
            await server.cleanup()

    asyncio.run(asyncio.wait_for(run(), 30))


def test_bytes_come_back_in_order() -> None:
    async def scenario(session: aiohttp.ClientSession, url: str, echoes: list[Echo]) -> None:
        async with session.ws_connect(url, protocols=[SUB_PROTOCOL]) as socket:
            assert socket.protocol == SUB_PROTOCOL
            for number in range(200):
                await socket.send_bytes(b"%04d" % number)
            received = b""
            while len(received) < 800:
                received += await socket.receive_bytes()
            assert received == b"".join(b"%04d" % number for number in range(200))

    with_server(scenario)


def test_a_close_by_the_protocol_ends_the_socket_after_what_was_written() -> None:
    async def scenario(session: aiohttp.ClientSession, url: str, echoes: list[Echo]) -> None:
        async with session.ws_connect(url, protocols=[SUB_PROTOCOL]) as socket:
            await socket.send_bytes(b"last words")
            await socket.send_bytes(b"close")
            assert await socket.receive_bytes() == b"last words"
            assert (await socket.receive()).type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED)

    with_server(scenario)


def test_the_protocol_is_told_when_the_client_leaves_and_when_it_reads_too_slowly() -> None:
    async def scenario(session: aiohttp.ClientSession, url: str, echoes: list[Echo]) -> None:
        async with session.ws_connect(url, protocols=[SUB_PROTOCOL]) as socket:
            await socket.send_bytes(b"x" * (HIGH_WATER_BYTES + 1))
            assert await socket.receive_bytes() == b"x" * (HIGH_WATER_BYTES + 1)
        while "lost" not in echoes[0].told:
            await asyncio.sleep(0.01)
        assert echoes[0].told == ["pause", "resume", "lost"]

    with_server(scenario)


@pytest.mark.parametrize("headers", [{}, {"Upgrade": "something-else", "Connection": "Upgrade"}])
def test_a_plain_request_is_refused_in_one_sentence(headers: dict[str, str]) -> None:
    async def scenario(session: aiohttp.ClientSession, url: str, echoes: list[Echo]) -> None:
        async with session.get(url, headers=headers) as response:
            assert response.status == 400
            assert SUB_PROTOCOL in await response.text()
        assert not echoes

    with_server(scenario)


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://{host}", 101),
        ("https://{host}", 101),
        ("http://attacker.example", 403),
        ("http://localhost", 403),
        ("http://{host}.attacker.example", 403),
        ("null", 403),
        ("", 403),
    ],
)
def test_a_page_of_another_origin_opens_no_socket(origin: str, status: int) -> None:
    async def scenario(session: aiohttp.ClientSession, url: str, echoes: list[Echo]) -> None:
        sent = origin.format(host=url.split("/")[2])
        try:
            async with session.ws_connect(url, protocols=[SUB_PROTOCOL], origin=sent):
                answered = 101
        except aiohttp.WSServerHandshakeError as refused:
            answered = refused.status
        assert answered == status
        assert len(echoes) == (status == 101)

    with_server(scenario)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:5672", 101),
        ("[::1]:5672", 101),
        ("Contoso.servicebus.localhost", 101),
        ("contoso.servicebus.localhost:5672", 101),
        ("attacker.example:5672", 403),
        ("localhost.attacker.example", 403),
        ("servicebus.localhost.attacker.example:5672", 403),
        ("", 403),
    ],
)
def test_a_page_whose_name_was_made_to_resolve_to_this_machine_opens_no_socket(host: str, status: int) -> None:
    async def scenario(session: aiohttp.ClientSession, url: str, echoes: list[Echo]) -> None:
        try:
            async with session.ws_connect(
                url, protocols=[SUB_PROTOCOL], origin=f"http://{host}", headers={"Host": host}
            ):
                answered = 101
        except aiohttp.WSServerHandshakeError as refused:
            answered = refused.status
        assert answered == status
        assert len(echoes) == (status == 101)

    with_server(scenario)


def test_the_sdk_sends_this_host_as_its_origin() -> None:
    with EmbeddedNamespace("contoso") as namespace:
        with namespace.admin() as admin:
            admin.create_queue("orders")
        client = ServiceBusClient.from_connection_string(
            namespace.connection_string,
            transport_type=TransportType.AmqpOverWebsocket,
            custom_endpoint_address=f"https://localhost:{namespace.port}",
            connection_verify=str(namespace.ca_file),
            retry_total=0,
        )
        with client, client.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage("through a web socket"), timeout=20)
