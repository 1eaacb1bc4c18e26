"""AMQP without the SDK: connections that open in milliseconds, messages as bytes, entities filled in bulk.

For tests and benchmarks that need more speed, or less politeness, than the SDK offers.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pairbus.amqp.client import ClientConnection
from pairbus.amqp.codec import encode
from pairbus.amqp.message import BATCH_FORMAT
from pairbus.embedded.security import sign
from pairbus.testing.namespace import EmbeddedNamespace

__all__ = ["BATCH_FORMAT", "flood", "open_raw", "raw_batch", "raw_message", "say_no_more"]

HOST = "127.0.0.1"
TOKEN_SECONDS = 3600
FLOOD_BATCH = 200
FLOOD_IN_FLIGHT = 50


async def open_raw(connection_string: str, *entities: str) -> ClientConnection:
    """Connect to an embedded namespace with tokens for these entities, or for the whole namespace if none is named."""
    parts = dict(part.partition("=")[::2] for part in connection_string.split(";") if part)
    port = int(parts["Endpoint"].rstrip("/").rpartition(":")[2])
    connection = await ClientConnection.open(HOST, port)
    for entity in entities or ("",):
        audience = f"amqp://{HOST}:{port}/{entity}"
        token = sign(audience, parts["SharedAccessKeyName"], parts["SharedAccessKey"], int(time.time()) + TOKEN_SECONDS)
        await connection.put_token(token, audience)
    return connection


def raw_message(
    message_id: str | None = None,
    body: bytes = b"",
    *,
    session_id: str | None = None,
    properties: Mapping[str, Any] | None = None,
) -> bytes:
    """An encoded message with a data body."""
    fields = [message_id] if session_id is None else [message_id, *[None] * 9, session_id]
    described = b"\x00\x53\x73" + encode(fields)
    applied = b"\x00\x53\x74" + encode(dict(properties)) if properties else b""
    return described + applied + b"\x00\x53\x75" + encode(body)


def raw_batch(raws: Iterable[bytes]) -> bytes:
    """Many messages in one transfer; send it with `message_format=BATCH_FORMAT`."""
    return b"".join(b"\x00\x53\x75" + encode(raw) for raw in raws)


def say_no_more(connection: socket.socket) -> None:
    """Half-close the connection, which the server may have closed already."""
    try:
        connection.shutdown(socket.SHUT_WR)
    except OSError as error:
        if error.errno != errno.ENOTCONN:
            raise


def flood(
    namespace: EmbeddedNamespace,
    entity: str,
    count: int,
    *,
    size: int = 100,
    make: Callable[[int], bytes] | None = None,
) -> None:
    """Send `count` messages: `make(number)`, or ids `m0`, `m1`, ... with bodies of `size` bytes."""
    body = b"x" * size
    encoded = make or (lambda number: raw_message(f"m{number}", body))
    asyncio.run(_flood(namespace.connection_string, entity, count, encoded))


async def _flood(connection_string: str, entity: str, count: int, make: Callable[[int], bytes]) -> None:
    connection = await open_raw(connection_string, entity)
    sender = await connection.open_sender(entity)
    answers: list[asyncio.Future[None]] = []
    for first in range(0, count, FLOOD_BATCH):
        await sender.room()
        raw = raw_batch(make(number) for number in range(first, min(count, first + FLOOD_BATCH)))
        answers.append(sender.send(raw, message_format=BATCH_FORMAT))
        if len(answers) >= FLOOD_IN_FLIGHT:
            await answers.pop(0)
    for answer in answers:
        await answer
    await connection.close()
