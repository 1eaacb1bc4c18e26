"""PURE. What a pump needs to know of a message without reading all of it: its number, its lock, its id."""

from __future__ import annotations

from typing import NamedTuple

from pairbus.amqp.codec import decode, skip
from pairbus.amqp.sections import id_text
from pairbus.amqp.types import AmqpDecodeError

_HEADER, _MESSAGE_ANNOTATIONS, _PROPERTIES = 0x70, 0x72, 0x73
_LIST8, _LIST32 = 0xC0, 0xD0


class Stamps(NamedTuple):
    """What the queue stamped on a message. Times are milliseconds since the epoch."""

    number: int
    enqueued_ms: int
    locked_until_ms: int | None


def stamps_of(raw: bytes) -> Stamps:
    """Raises `AmqpDecodeError` for what no queue has stamped."""
    pos = 0
    while pos + 3 < len(raw) and raw[pos] == 0 and raw[pos + 1] == 0x53:
        code = raw[pos + 2]
        if code == _MESSAGE_ANNOTATIONS:
            found, _ = decode(raw, pos + 3)
            return Stamps(
                int(found["x-opt-sequence-number"]),
                int(found.get("x-opt-enqueued-time") or 0),
                found.get("x-opt-locked-until"),
            )
        if not _HEADER <= code < _MESSAGE_ANNOTATIONS:
            break
        pos = skip(raw, pos + 3)
    raise AmqpDecodeError("a message from a queue has no sequence number")


def message_key_of(raw: bytes) -> str | None:
    """The message's id as text, whatever its type; nothing behind it is looked at."""
    pos = 0
    while pos + 3 < len(raw) and raw[pos] == 0 and raw[pos + 1] == 0x53:
        code = raw[pos + 2]
        if code == _PROPERTIES:
            kind = raw[pos + 3]
            if kind not in (_LIST8, _LIST32) or raw[pos + 3 + (2 if kind == _LIST8 else 8)] == 0:
                return None
            found, _ = decode(raw, pos + 3 + (3 if kind == _LIST8 else 9))
            return id_text(found)
        if not _HEADER <= code < _PROPERTIES:
            return None
        pos = skip(raw, pos + 3)
    return None
