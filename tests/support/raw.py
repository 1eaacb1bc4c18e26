"""AMQP without an SDK between: connections that are open in milliseconds, messages as bytes.

For tests and benchmarks that need more speed, or less politeness, than the SDK has.
"""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Iterable, Mapping
from typing import Any

from pairbus.amqp.client import ClientConnection
from pairbus.amqp.codec import encode
from pairbus.amqp.message import BATCH_FORMAT
from pairbus.embedded.security import sign

__all__ = ["BATCH_FORMAT", "open_raw", "raw_batch", "raw_message", "say_no_more"]

HOST = "127.0.0.1"
TOKEN_SECONDS = 3600


async def open_raw(connection_string: str, *entities: str) -> ClientConnection:
    """A connection to an embedded namespace with tokens for these entities; for all of them if none is named."""
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
    """One transfer of many messages, to be sent with `message_format=BATCH_FORMAT`."""
    return b"".join(b"\x00\x53\x75" + encode(raw) for raw in raws)


def say_no_more(connection: socket.socket) -> None:
    """Half-close; the server may have hung up already."""
    try:
        connection.shutdown(socket.SHUT_WR)
    except OSError as error:
        if error.errno != errno.ENOTCONN:
            raise
