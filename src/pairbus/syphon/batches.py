"""PURE. Many encoded messages as one transfer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pairbus.amqp.codec import encode
from pairbus.amqp.sections import read_facts
from pairbus.amqp.types import Symbol

_GROUP_ID = 10


def batch_of(raws: Sequence[bytes]) -> bytes:
    """The body of a batch transfer: a data section for each message.

    The envelope carries the first message's id, session and partition key, as the SDK's batches do: partitioned
    entities place the whole batch by them.
    """
    first = read_facts(raws[0])
    parts: list[bytes] = []
    if first.partition_key is not None:
        parts.append(b"\x00\x53\x72" + encode({Symbol("x-opt-partition-key"): first.partition_key}))
    if first.message_id is not None or first.session_id is not None:
        properties: list[Any] = [first.message_id]
        if first.session_id is not None:
            properties += [None] * (_GROUP_ID - 1) + [first.session_id]
        parts.append(b"\x00\x53\x73" + encode(properties))
    for raw in raws:
        size = len(raw)
        if size < 256:
            parts.append(b"\x00\x53\x75\xa0" + bytes((size,)))
        else:
            parts.append(b"\x00\x53\x75\xb0" + size.to_bytes(4))
        parts.append(raw)
    return b"".join(parts)
