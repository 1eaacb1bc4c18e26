"""The server's end of AMQP over a WebSocket: `GET /$servicebus/websocket` with the subprotocol `AMQPWSB10` opens it.

A browser sends the origin of the page that opens a socket. An origin other than this host is refused, so that no web
site can reach the local namespace of its visitor. So is an origin by a name that does not belong to this machine, but
was made to resolve to it (DNS rebinding). SDKs send no origin, or this host as the origin.
"""

import asyncio
from collections.abc import Callable

from aiohttp import web

from pairbus.amqp.websocket import MAX_FRAME_BYTES, PATH, SUB_PROTOCOL, carry
from pairbus.loopback import names_this_machine


async def carry_amqp(request: web.BaseRequest, amqp: Callable[[], asyncio.Protocol]) -> web.StreamResponse:
    """Answer an upgrade request. Returns when the socket is closed."""
    socket = web.WebSocketResponse(protocols=(SUB_PROTOCOL,), max_msg_size=MAX_FRAME_BYTES, compress=False)
    if not socket.can_prepare(request).ok:
        return web.Response(status=400, text=f"{PATH} expects a WebSocket upgrade with the subprotocol {SUB_PROTOCOL}.")
    origin, host = request.headers.get("Origin"), request.headers.get("Host", "").lower()
    if origin is not None and not (origin.partition("://")[2].lower() == host and _is_here(host)):
        return web.Response(status=403, text="A page of another origin must not open this socket. Use an SDK.")
    await socket.prepare(request)
    await carry(socket, amqp())
    return socket


def _is_here(host: str) -> bool:
    """Whether the host is one that the server's certificate names."""
    return names_this_machine(host) or host.partition(":")[0].endswith(".servicebus.localhost")
