"""AMQP over a WebSocket, for networks that let only HTTPS through: `connect` for clients, `carry` for both ends.

Binary frames carry the bytes of an AMQP connection, split anywhere. The AMQP protocol sees an ordinary transport.

Limits: a frame has at most `MAX_FRAME_BYTES`. Above `HIGH_WATER_BYTES` of unsent bytes, or the protocol's own limit,
the protocol is asked to pause writing, as with TCP.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from dataclasses import dataclass, field
from typing import Any

from aiohttp import ClientError, ClientSession, ClientWebSocketResponse, WSMsgType, web

PATH = "/$servicebus/websocket"
SUB_PROTOCOL = "AMQPWSB10"
MAX_FRAME_BYTES = 4 * 1024 * 1024
HIGH_WATER_BYTES = 256 * 1024

_carrying: set[asyncio.Task[None]] = set()


@dataclass(frozen=True, slots=True)
class WebSocketRoute:
    """The address of a WebSocket, and the URL of the HTTP proxy on the way to it, which may contain a password."""

    url: str
    proxy: str | None = field(default=None, repr=False)


async def connect(route: WebSocketRoute, tls: ssl.SSLContext | None, protocol: asyncio.Protocol) -> None:
    """Open a WebSocket and connect the protocol to it. Raises OSError."""
    session = ClientSession()
    try:
        opened = await session.ws_connect(
            route.url,
            protocols=(SUB_PROTOCOL,),
            proxy=route.proxy,
            ssl=tls or True,
            max_msg_size=MAX_FRAME_BYTES,
        )
    except BaseException as error:
        await session.close()
        if isinstance(error, ClientError):
            raise ConnectionError(f"Cannot open a web socket to {route.url}: {error}") from error
        raise

    async def run() -> None:
        async with session:
            await carry(opened, protocol)

    task = asyncio.create_task(run())
    _carrying.add(task)  # the loop itself keeps only a weak reference
    task.add_done_callback(_carrying.discard)


async def carry(opened: ClientWebSocketResponse | web.WebSocketResponse, protocol: asyncio.Protocol) -> None:
    """Carry the protocol's bytes over an open WebSocket. Returns when the socket is closed."""
    transport = WebSocketTransport(opened, protocol)
    sending = asyncio.create_task(transport.send_all())
    protocol.connection_made(transport)
    try:
        while True:
            await transport.may_read.wait()
            frame = await opened.receive()
            if frame.type is not WSMsgType.BINARY:
                break  # a close, an error, or a text frame, which AMQP does not use
            transport.get_protocol().data_received(frame.data)
    finally:
        transport.end()
        with contextlib.suppress(ConnectionError):
            await sending
        transport.get_protocol().connection_lost(None)
        await opened.close()


class WebSocketTransport(asyncio.Transport):
    """A WebSocket as a transport for an asyncio protocol."""

    def __init__(self, opened: ClientWebSocketResponse | web.WebSocketResponse, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._socket = opened
        self._protocol = protocol
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
        below = self.get_extra_info("socket")
        if below is not None:
            with contextlib.suppress(OSError):
                below.shutdown(socket.SHUT_RDWR)  # a peer that does not answer would not answer a close frame either
        self.close()

    def is_closing(self) -> bool:
        return self._closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high_water = HIGH_WATER_BYTES if high is None else high
        self._low_water = self._high_water // 4 if low is None else low

    def pause_reading(self) -> None:
        self.may_read.clear()

    def resume_reading(self) -> None:
        self.may_read.set()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert isinstance(protocol, asyncio.Protocol)
        self._protocol = protocol

    def get_protocol(self) -> asyncio.Protocol:
        return self._protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        try:
            return self._socket.get_extra_info(name, default)
        except AttributeError:  # asyncio's TLS transport, once it is closed
            return default

    def _resume_if_drained(self) -> None:
        if self._paused and len(self._unsent) <= self._low_water:
            self._paused = False
            self._protocol.resume_writing()
