"""PURE. A message as a peek or a receive brings it: what its sections say, decoded once.

`glance` finds only what decides whether a message is wanted: its number, time and state. `read` takes all of it
apart.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from pairbus.amqp.sections import (
    APPLICATION_PROPERTIES,
    DATA,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    SEQUENCE,
    VALUE,
    Sections,
)
from pairbus.amqp.types import AmqpDecodeError, decode, encode, skip

STATES = ("active", "deferred", "scheduled")
ACTIVE = STATES[0]

_NUMBER = b"\xa3\x15x-opt-sequence-number"
_ENQUEUED = b"\xa3\x13x-opt-enqueued-time"
_STATE = b"\xa3\x13x-opt-message-state"


@dataclass(frozen=True, slots=True)
class Glance:
    sequence_number: int
    enqueued_ms: int
    state: str = ACTIVE


@dataclass(slots=True)
class Message:
    """One message, ready to become a row. Ids are text whatever they were."""

    sequence_number: int
    enqueued_ms: int
    state: str = ACTIVE
    delivery_count: int = 0
    ttl_ms: int | None = None
    scheduled_ms: int | None = None
    partition_key: str | None = None
    message_id: str | None = None
    correlation_id: str | None = None
    session_id: str | None = None
    content_type: str | None = None
    subject: str | None = None
    to: str | None = None
    reply_to: str | None = None
    reply_to_session_id: str | None = None
    application_properties: dict[Any, Any] = field(default_factory=dict)
    body: bytes = b""
    body_type: str = "data"


def glance(raw: bytes) -> Glance:
    """The number, time and state in a message's annotations; AmqpDecodeError if there is no number."""
    annotations = _annotations(raw)
    number = _after(annotations, _NUMBER)
    if number is None:
        raise AmqpDecodeError("the message has no sequence number: it was not peeked or received")
    return Glance(number, _after(annotations, _ENQUEUED) or 0, STATES[_after(annotations, _STATE) or 0])


def _annotations(raw: bytes) -> bytes:
    pos = 0
    while raw[pos : pos + 2] == b"\x00\x53" and raw[pos + 2] < MESSAGE_ANNOTATIONS:
        pos = skip(raw, pos + 3)
    if raw[pos : pos + 3] == b"\x00\x53\x72":
        return raw[pos + 3 : skip(raw, pos + 3)]
    # Somebody wrote the sections' names in full.
    return Sections.split(raw).message_annotations


def _after(annotations: bytes, key: bytes) -> int | None:
    at = annotations.find(key)
    if at < 0:
        return None
    value = decode(annotations, at + len(key))[0]
    return int(value) if isinstance(value, int) else None


def read(raw: bytes) -> Message:
    """Everything a row needs."""
    seen = glance(raw)
    message = Message(seen.sequence_number, seen.enqueued_ms, seen.state)
    data: list[bytes] = []
    pos, end = 0, len(raw)
    while pos < end:
        section, pos = decode(raw, pos)
        code, value = int(section.descriptor), section.value
        if code == DATA:
            data.append(value)
        elif code == PROPERTIES:
            _read_properties(message, value)
        elif code == APPLICATION_PROPERTIES:
            message.application_properties = value or {}
        elif code == MESSAGE_ANNOTATIONS:
            _read_annotations(message, value)
        elif code == HEADER:
            fields = [*value, None, None, None, None, None]
            message.ttl_ms = None if fields[2] is None else int(fields[2])
            message.delivery_count = int(fields[4] or 0)
        elif code == VALUE:
            message.body_type = "value"
            data.append(value.encode() if type(value) is str else value if type(value) is bytes else encode(value))
        elif code == SEQUENCE:
            message.body_type = "sequence"
            data.append(encode(value))
    message.body = data[0] if len(data) == 1 else b"".join(data)
    return message


def _read_properties(message: Message, values: list[Any]) -> None:
    values = [*values, *[None] * (13 - len(values))]
    message.message_id = _id(values[0])
    message.to = _text(values[2])
    message.subject = _text(values[3])
    message.reply_to = _text(values[4])
    message.correlation_id = _id(values[5])
    message.content_type = _text(values[6])
    message.session_id = _text(values[10])
    message.reply_to_session_id = _text(values[12])


def _read_annotations(message: Message, values: dict[Any, Any] | None) -> None:
    for key, value in (values or {}).items():
        if key == "x-opt-scheduled-enqueue-time" and isinstance(value, int):
            message.scheduled_ms = int(value)
        elif key == "x-opt-partition-key":
            message.partition_key = _text(value)


def _id(value: str | UUID | int | bytes | None) -> str | None:
    if value is None or type(value) is str:
        return value
    return value.hex() if isinstance(value, bytes) else str(value)


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
