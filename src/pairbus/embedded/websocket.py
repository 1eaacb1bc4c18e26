"""AMQP over a WebSocket, which SDKs use where only HTTPS gets through.

`GET /$servicebus/websocket` with the subprotocol `AMQPWSB10` opens the socket. Its binary frames carry the bytes of an
AMQP connection, split anywhere. The AMQP protocol object sees an ordinary transport.

A browser sends the origin of the page that opens a socket. An origin other than this host is refused, so that no web
site can reach the local namespace of its visitor. SDKs send no origin, or this host as the origin.

Limits: a frame has at most `MAX_FRAME_BYTES`. Above `HIGH_WATER_BYTES` of unsent bytes, or the protocol's own limit,
the protocol is asked to pause writing, as with TCP.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from aiohttp import WSMsgType, web

PATH = "/$servicebus/websocket"
SUB_PROTOCOL = "AMQPWSB10"
MAX_FRAME_BYTES = 4 * 1024 * 1024
HIGH_WATER_BYTES = 256 * 1024


async def carry_amqp(request: web.BaseRequest, amqp: Callable[[], asyncio.Protocol]) -> web.StreamResponse:
    """Answer an upgrade request. Returns when the socket is closed."""
    socket = web.WebSocketResponse(protocols=(SUB_PROTOCOL,), max_msg_size=MAX_FRAME_BYTES, compress=False)
    if not socket.can_prepare(request).ok:
        return web.Response(status=400, text=f"{PATH} expects a WebSocket upgrade with the subprotocol {SUB_PROTOCOL}.")
    origin = request.headers.get("Origin")
    if origin is not None and origin.partition("://")[2].lower() != request.headers.get("Host", "").lower():
        return web.Response(status=403, text="A page of another origin must not open this socket. Use an SDK.")
    await socket.prepare(request)
    protocol = amqp()
    transport = WebSocketTransport(socket, protocol, request.transport)
    sending = asyncio.create_task(transport.send_all())
    protocol.connection_made(transport)
    try:
        await _receive_all(socket, transport)
    finally:
        transport.end()
        with contextlib.suppress(ConnectionError):
            await sending
        transport.get_protocol().connection_lost(None)
        await socket.close()
    return socket


async def _receive_all(socket: web.WebSocketResponse, transport: "WebSocketTransport") -> None:
    while True:
        await transport.may_read.wait()
        frame = await socket.receive()
        if frame.type is not WSMsgType.BINARY:
            # A close, an error, or a text frame, which AMQP does not use.
            return
        protocol = transport.get_protocol()
        assert isinstance(protocol, asyncio.Protocol)
        protocol.data_received(frame.data)


class WebSocketTransport(asyncio.Transport):
    """A WebSocket as a transport for an asyncio protocol."""

    def __init__(
        self, socket: web.WebSocketResponse, protocol: asyncio.BaseProtocol, below: asyncio.Transport | None
    ) -> None:
        super().__init__()
        self._socket = socket
        self._protocol = protocol
        self._below = below
        self._unsent = bytearray()
        self._wake = asyncio.Event()
        self._closing = False
        self._paused = False
        self._high_water, self._low_water = HIGH_WATER_BYTES, HIGH_WATER_BYTES // 4
        self.may_read = asyncio.Event()
        self.may_read.set()

    async def send_all(self) -> None:
        """Send what is written, until the transport is closed and everything is sent."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._unsent:
                frame, self._unsent = bytes(self._unsent), bytearray()
                await self._socket.send_bytes(frame)
                self._resume_if_drained()
            if self._closing:
                # This unblocks the reader, which then ends the connection.
                await self._socket.close()
                return

    def end(self) -> None:
        """The socket is closed or must close: nothing more is written."""
        self._closing = True
        self._wake.set()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing:
            return
        self._unsent += data
        self._wake.set()
        if len(self._unsent) > self._high_water and not self._paused:
            self._paused = True
            self._protocol.pause_writing()

    def close(self) -> None:
        self.end()
        self.may_read.set()

    def abort(self) -> None:
        self._unsent.clear()
        self.close()

    def is_closing(self) -> bool:
        return self._closing

    def can_write_eof(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return len(self._unsent)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high_water = HIGH_WATER_BYTES if high is None else high
        self._low_water = self._high_water // 4 if low is None else low

    def pause_reading(self) -> None:
        self.may_read.clear()

    def resume_reading(self) -> None:
        self.may_read.set()

    def is_reading(self) -> bool:
        return self.may_read.is_set()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default if self._below is None else self._below.get_extra_info(name, default)

    def _resume_if_drained(self) -> None:
        if self._paused and len(self._unsent) <= self._low_water:
            self._paused = False
            self._protocol.resume_writing()
