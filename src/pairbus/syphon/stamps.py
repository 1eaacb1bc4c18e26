"""PURE. What the backlog's broker stamped on a message: its number, and until when it is locked."""

from __future__ import annotations

from pairbus.amqp.decoding import decode, skip
from pairbus.amqp.values import AmqpDecodeError

_HEADER, _MESSAGE_ANNOTATIONS = 0x70, 0x72


def stamps_of(raw: bytes) -> tuple[int, int | None]:
    """Sequence number, and end of the lock in milliseconds since the epoch if there is one."""
    pos = 0
    while pos + 3 < len(raw) and raw[pos] == 0 and raw[pos + 1] == 0x53:
        code = raw[pos + 2]
        if code == _MESSAGE_ANNOTATIONS:
            found, _ = decode(raw, pos + 3)
            return int(found["x-opt-sequence-number"]), found.get("x-opt-locked-until")
        if not _HEADER <= code < _MESSAGE_ANNOTATIONS:
            break
        pos = skip(raw, pos + 3)
    raise AmqpDecodeError("a message from a queue has no sequence number")
