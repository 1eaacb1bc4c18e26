"""Requests and replies, as `$cbs` and `$management` exchange them: messages with application properties and a value."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pairbus.amqp.codec import decode, encode
from pairbus.amqp.message import Sections, read_facts
from pairbus.amqp.types import AmqpDecodeError, Described, Int, Symbol


@dataclass(frozen=True, slots=True)
class Request:
    message_id: Any
    reply_to: str | None
    properties: dict[str, Any] = field(default_factory=dict)
    body: Any = None

    @classmethod
    def read(cls, raw: bytes) -> Request:
        """AmqpDecodeError if this is not a request."""
        facts = read_facts(raw)
        properties = {_text(key): value for key, value in facts.application_properties.items()}
        return cls(facts.message_id, facts.reply_to, properties, body_value(raw))

    def text(self, name: str) -> str:
        value = self.properties.get(name)
        return _text(value) if value is not None else ""


def body_value(raw: bytes) -> Any:
    """The value in the body of a message, whatever kind of body it is; keys of a map as plain text."""
    body = Sections.split(raw).body
    if not body:
        return None
    section, end = decode(body)
    if not isinstance(section, Described) or end != len(body):
        raise AmqpDecodeError("a request must have a body of one section")
    value = section.value
    if isinstance(value, dict):
        return {_text(key): item for key, item in value.items()}
    return value


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def encode_reply(correlation_id: Any, properties: dict[str, Any], body: Any) -> bytes:
    return b"".join(
        (
            b"\x00\x53\x73",
            encode([None, None, None, None, None, correlation_id]),
            b"\x00\x53\x74",
            encode(properties),
            b"\x00\x53\x77",
            encode(body),
        )
    )


def management_reply(
    request: Request, status: int, description: str, body: dict[str, Any] | None, condition: str | None
) -> bytes:
    properties: dict[str, Any] = {"statusCode": Int(status), "statusDescription": description}
    if condition is not None:
        properties["errorCondition"] = Symbol(condition)
    return encode_reply(request.message_id, properties, body if body is not None else {})


def cbs_reply(request: Request, status: int, description: str) -> bytes:
    return encode_reply(request.message_id, {"status-code": Int(status), "status-description": description}, None)
