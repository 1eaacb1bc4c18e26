"""PURE. A peeked or received message, decoded in full. `pairbus.amqp.message.read_stamps` reads only its number,
time and state.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pairbus.amqp.codec import decode, encode
from pairbus.amqp.message import (
    APPLICATION_PROPERTIES,
    DATA,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    SECTION_CODES,
    SEQUENCE,
    STATES,
    VALUE,
    id_text,
)
from pairbus.amqp.types import AmqpDecodeError

ACTIVE = STATES[0]


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


def read(raw: bytes) -> Message:
    """Everything a row needs."""
    message = Message(-1, 0)
    data: list[bytes] = []
    pos, end = 0, len(raw)
    while pos < end:
        if raw[pos : pos + 2] == b"\x00\x53":
            code = raw[pos + 2]
            value, pos = decode(raw, pos + 3)
        else:
            section, pos = decode(raw, pos)
            code, value = SECTION_CODES.get(section.descriptor, section.descriptor), section.value
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
    if message.sequence_number < 0:
        raise AmqpDecodeError("the message has no sequence number: it was not peeked or received")
    message.body = data[0] if len(data) == 1 else b"".join(data)
    return message


def _read_properties(message: Message, values: list[Any]) -> None:
    values = [*values, *[None] * (13 - len(values))]
    message.message_id = id_text(values[0])
    message.to = _text(values[2])
    message.subject = _text(values[3])
    message.reply_to = _text(values[4])
    message.correlation_id = id_text(values[5])
    message.content_type = _text(values[6])
    message.session_id = _text(values[10])
    message.reply_to_session_id = _text(values[12])


def _read_annotations(message: Message, values: dict[Any, Any] | None) -> None:
    for key, value in (values or {}).items():
        if key == "x-opt-sequence-number":
            message.sequence_number = int(value)
        elif key == "x-opt-enqueued-time":
            message.enqueued_ms = int(value)
        elif key == "x-opt-message-state":
            message.state = STATES[int(value)]
        elif key == "x-opt-scheduled-enqueue-time" and isinstance(value, int):
            message.scheduled_ms = int(value)
        elif key == "x-opt-partition-key":
            message.partition_key = _text(value)


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
