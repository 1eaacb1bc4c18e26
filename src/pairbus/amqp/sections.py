"""An encoded AMQP 1.0 message as its sections: split, look, edit, join, without decoding what need not be.

Rules
- A message is kept and carried as the bytes it came in. The body is never decoded here, and an edit rewrites
  only the section it concerns: every other byte travels unchanged.
- Sections come in the standard's order (header, delivery annotations, message annotations, properties,
  application properties, body, footer), each at most once, except for a body of several data or sequence
  sections. Anything else raises ``AmqpDecodeError``; what is only out of order can be sorted on arrival.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any
from uuid import UUID

from pairbus.amqp.codec import decode, encode, encode_into, skip
from pairbus.amqp.types import AmqpDecodeError, Symbol, UInt, ULong

HEADER = 0x70
DELIVERY_ANNOTATIONS = 0x71
MESSAGE_ANNOTATIONS = 0x72
PROPERTIES = 0x73
APPLICATION_PROPERTIES = 0x74
DATA = 0x75
SEQUENCE = 0x76
VALUE = 0x77
FOOTER = 0x78

BATCH_FORMAT = 0x80013700
"""The message format of a transfer whose data sections are encoded messages themselves."""

_NAMES = {
    "amqp:header:list": HEADER,
    "amqp:delivery-annotations:map": DELIVERY_ANNOTATIONS,
    "amqp:message-annotations:map": MESSAGE_ANNOTATIONS,
    "amqp:properties:list": PROPERTIES,
    "amqp:application-properties:map": APPLICATION_PROPERTIES,
    "amqp:data:binary": DATA,
    "amqp:amqp-sequence:list": SEQUENCE,
    "amqp:amqp-value:*": VALUE,
    "amqp:footer:map": FOOTER,
}


_LOCK_ANNOTATION = b"\x00\x53\x71\xc1\x24\x02\xa3\x10x-opt-lock-token\x98"
"""Delivery annotations of one pair, up to the bytes of the token."""

_NO_DELIVERY_ANNOTATIONS = b"\x00\x53\x71\xc1\x01\x00"
"""An empty map, which is what the service sends with messages that nobody holds."""

_ID_TYPES = frozenset((str, UUID, ULong, bytes, type(None)))


def _section_at(raw: bytes, pos: int) -> tuple[int, int]:
    """The code of the section that starts at ``pos``, and where its value starts."""
    try:
        if raw[pos] != 0:
            raise AmqpDecodeError(f"byte {pos} of the message does not start a section")
        if raw[pos + 1] == 0x53:
            code, value_at = raw[pos + 2], pos + 3
        else:
            descriptor, value_at = decode(raw, pos + 1)
            if type(descriptor) is Symbol:
                code = _NAMES.get(descriptor, 0)
            else:
                code = int(descriptor) if type(descriptor) is ULong else 0
    except IndexError:
        raise AmqpDecodeError(f"the section at byte {pos} of the message is cut short") from None
    if not HEADER <= code <= FOOTER:
        raise AmqpDecodeError(f"byte {pos} of the message does not start a known section")
    return code, value_at


class SectionOrderError(AmqpDecodeError):
    """The sections are not in the standard's order; ``in_standard_order`` may put them right."""


def _check_order(previous: int, code: int, pos: int) -> None:
    if code > previous:
        if code != FOOTER and previous >= DATA:
            raise AmqpDecodeError(f"the body changes its kind at byte {pos}")
    elif code != previous or code not in (DATA, SEQUENCE):
        raise SectionOrderError(f"the section at byte {pos} is out of order or there twice")


def in_standard_order(raw: bytes) -> bytes:
    """The message with its sections sorted. A sender may err: the Python SDK writes delivery annotations last."""
    parts: dict[int, bytes] = {}
    pos, previous, end = 0, 0, len(raw)
    while pos < end:
        code, value_at = _section_at(raw, pos)
        after = skip(raw, value_at)
        if code == previous and code in (DATA, SEQUENCE):
            parts[code] += raw[pos:after]
        elif code in parts:
            raise AmqpDecodeError(f"the section at byte {pos} is there twice")
        else:
            parts[code] = raw[pos:after]
        previous, pos = code, after
    return b"".join(parts[code] for code in sorted(parts))


def split_sections(raw: bytes) -> list[bytes]:
    """The fields of ``Sections`` as a plain list, for those who look at a great many messages."""
    parts = [b""] * 7
    pos, previous, body_at, end = 0, 0, -1, len(raw)
    body_end = 0
    while pos < end:
        code, value_at = _section_at(raw, pos)
        _check_order(previous, code, pos)
        after = skip(raw, value_at)
        if DATA <= code <= VALUE:
            if body_at < 0:
                body_at = pos
            body_end = after
        else:
            parts[code - HEADER if code < DATA else 6] = raw[pos:after]
        previous, pos = code, after
    if body_at >= 0:
        parts[5] = raw[body_at:body_end]
    return parts


@dataclass(frozen=True, slots=True)
class Sections:
    """The raw bytes of each section, descriptor included; ``b""`` for a section that is not there."""

    header: bytes = b""
    delivery_annotations: bytes = b""
    message_annotations: bytes = b""
    properties: bytes = b""
    application_properties: bytes = b""
    body: bytes = b""
    footer: bytes = b""

    @classmethod
    def split(cls, raw: bytes) -> Sections:
        return cls(*split_sections(raw))

    def join(self) -> bytes:
        return b"".join(
            (
                self.header,
                self.delivery_annotations,
                self.message_annotations,
                self.properties,
                self.application_properties,
                self.body,
                self.footer,
            )
        )


def split_batch(raw: bytes) -> list[bytes]:
    """The encoded messages in a transfer of ``BATCH_FORMAT``: each data section holds one."""
    messages: list[bytes] = []
    pos, previous, end = 0, 0, len(raw)
    while pos < end:
        code, value_at = _section_at(raw, pos)
        _check_order(previous, code, pos)
        if code == DATA:
            value, pos = decode(raw, value_at)
            if type(value) is not bytes:
                raise AmqpDecodeError(f"the data section at byte {value_at} of the batch is not binary")
            messages.append(value)
        elif code in (SEQUENCE, VALUE):
            raise AmqpDecodeError("a batch holds a body that is not made of data sections")
        else:
            pos = skip(raw, value_at)
        previous = code
    return messages


@dataclass(slots=True)
class Facts:
    """What a broker needs to know of a message; ``application_properties`` are decoded when asked for.

    ``body_size`` is the size of the body's sections as encoded.
    """

    message_id: str | UUID | ULong | bytes | None = None
    correlation_id: str | UUID | ULong | bytes | None = None
    session_id: str | None = None
    content_type: str | None = None
    subject: str | None = None
    to: str | None = None
    reply_to: str | None = None
    reply_to_session_id: str | None = None
    user_id: bytes | None = None
    ttl_ms: int | None = None
    scheduled_ms: int | None = None
    partition_key: str | None = None
    body_size: int = 0
    application_properties_size: int = 0
    _raw_application_properties: bytes = b""
    _application_properties: dict[str, Any] | None = field(default=None, compare=False, repr=False)

    @property
    def message_key(self) -> str | None:
        """The message id as text, whatever its type: what duplicate detection compares."""
        return id_text(self.message_id)

    @property
    def correlation_key(self) -> str | None:
        return id_text(self.correlation_id)

    @property
    def application_properties(self) -> dict[str, Any]:
        found = self._application_properties
        if found is None:
            found = _map_of(self._raw_application_properties)
            self._application_properties = found
        return found


def id_text(value: str | UUID | int | bytes | None) -> str | None:
    """An id as text, whatever its type: one text for one id, wherever it is met."""
    if value is None or type(value) is str:
        return value
    return value.hex() if isinstance(value, bytes) else str(value)


def _map_of(section: bytes) -> dict[Any, Any]:
    if not section:
        return {}
    value, _ = decode(section, _section_at(section, 0)[1])
    if value is None:
        return {}
    if type(value) is not dict:
        raise AmqpDecodeError("annotations and application properties must be a map")
    return value


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def read_facts(raw: bytes) -> Facts:
    """Look at a message once, by section. The body and the application properties are only measured."""
    facts = Facts()
    pos, previous, end = 0, 0, len(raw)
    while pos < end:
        if end - pos > 3 and raw[pos] == 0 and raw[pos + 1] == 0x53 and 0x70 <= raw[pos + 2] <= 0x78:
            code, value_at = raw[pos + 2], pos + 3
        else:
            code, value_at = _section_at(raw, pos)
        if code <= previous or previous >= DATA:
            _check_order(previous, code, pos)
        if code == HEADER:
            values, after = decode(raw, value_at)
            if type(values) is not list or len(values) > 5:
                raise AmqpDecodeError("the header must be a list of at most five fields")
            if len(values) > 2 and isinstance(values[2], int):
                facts.ttl_ms = int(values[2])
        elif code == PROPERTIES:
            values, after = decode(raw, value_at)
            if type(values) is not list:
                raise AmqpDecodeError("the properties must be a list")
            _read_properties(facts, values)
        elif code <= MESSAGE_ANNOTATIONS:
            # Whoever carries the message on adds to its annotations, so they must be readable.
            after = skip(raw, value_at)
            annotations = _map_of(raw[pos:after])
            if code == MESSAGE_ANNOTATIONS:
                _read_annotations(facts, annotations)
        else:
            after = skip(raw, value_at)
            if code == APPLICATION_PROPERTIES:
                facts._raw_application_properties = raw[pos:after]
                facts.application_properties_size = after - pos
            elif DATA <= code <= VALUE:
                facts.body_size += after - pos
        previous, pos = code, after
    return facts


def _read_properties(facts: Facts, values: list[Any]) -> None:
    count = len(values)
    if count < 13:
        values = values + [None] * (13 - count)
    message_id, correlation_id = values[0], values[5]
    if type(message_id) not in _ID_TYPES or type(correlation_id) not in _ID_TYPES:
        raise AmqpDecodeError("a message id or correlation id must be a string, uuid, ulong or binary")
    facts.message_id = message_id
    facts.correlation_id = correlation_id
    facts.user_id = values[1] if type(values[1]) is bytes else None
    facts.to = _text(values[2])
    facts.subject = _text(values[3])
    facts.reply_to = _text(values[4])
    facts.content_type = _text(values[6])
    facts.session_id = _text(values[10])
    facts.reply_to_session_id = _text(values[12])


def _read_annotations(facts: Facts, found: Mapping[Any, Any]) -> None:
    annotations = {_name(key): value for key, value in found.items()}
    scheduled = annotations.get("x-opt-scheduled-enqueue-time")
    if isinstance(scheduled, int):
        facts.scheduled_ms = int(scheduled)
    facts.partition_key = _text(annotations.get("x-opt-partition-key"))


def with_message_id(raw: bytes, message_id: str) -> bytes:
    """The message with this message id; all else unchanged."""
    parts = Sections.split(raw)
    others = decode(parts.properties)[0].value[1:] if parts.properties else []
    properties = b"\x00\x53\x73" + encode([message_id, *others])
    return replace(parts, properties=properties).join()


def with_application_properties(raw: bytes, updates: Mapping[str, Any], remove: Collection[str] = ()) -> bytes:
    """The message with these application properties set and those removed; all else unchanged."""
    parts = Sections.split(raw)
    properties = _map_of(parts.application_properties)
    for name in remove:
        properties.pop(name, None)
    properties.update(updates)
    section = b"\x00\x53\x74" + encode(properties) if properties else b""
    return b"".join(
        (
            parts.header,
            parts.delivery_annotations,
            parts.message_annotations,
            parts.properties,
            section,
            parts.body,
            parts.footer,
        )
    )


def for_delivery(
    raw: bytes, *, delivery_count: int, annotations: Mapping[str, Any], lock_token: bytes | None = None
) -> bytes:
    """The message as a receiver gets it: its delivery count in the header, ``annotations`` merged into the message
    annotations (None removes one), and the lock token, which is the delivery tag, among the delivery annotations.
    """
    header = hop = kept = b""
    pos, previous, end = 0, 0, len(raw)
    while pos < end:
        code, value_at = _section_at(raw, pos)
        if code > MESSAGE_ANNOTATIONS:
            break
        _check_order(previous, code, pos)
        after = skip(raw, value_at)
        if code == HEADER:
            header = raw[value_at:after]
        elif code == DELIVERY_ANNOTATIONS:
            hop = raw[value_at:after]
        else:
            kept = raw[value_at:after]
        previous, pos = code, after
    return b"".join(
        (
            _header(header, delivery_count),
            _delivery_annotations(hop, lock_token),
            _annotations(MESSAGE_ANNOTATIONS, kept, annotations),
            raw[pos:],
        )
    )


def _delivery_annotations(old: bytes, lock_token: bytes | None) -> bytes:
    # A lock token is a UUID in the byte order of .NET; on the wire UUIDs are in network order.
    token = UUID(bytes_le=lock_token) if lock_token else None
    if old:
        return _annotations(DELIVERY_ANNOTATIONS, old, {"x-opt-lock-token": token})
    return _LOCK_ANNOTATION + token.bytes if token else _NO_DELIVERY_ANNOTATIONS


@lru_cache(maxsize=1024)
def _header(old: bytes, delivery_count: int) -> bytes:
    """A header section with this delivery count. Senders repeat few headers: the cache makes this free."""
    values = decode(old)[0] if old else []
    if type(values) is not list or len(values) > 5:
        raise AmqpDecodeError("the header must be a list of at most five fields")
    values = values + [None] * (5 - len(values))
    values[4] = UInt(delivery_count)
    return b"\x00\x53\x70" + encode(values)


@lru_cache(maxsize=1024)
def _symbol(name: str) -> bytes:
    return encode(Symbol(name))


def _annotations(section: int, old: bytes, updates: Mapping[str, Any]) -> bytes:
    content = bytearray()
    count = 0
    if old and old != b"\x40":
        count = _copy_other_pairs(content, old, updates)
    for name, value in updates.items():
        if value is not None:
            content += _symbol(name)
            encode_into(content, value)
            count += 2
    size = len(content)
    if not count:
        return b""
    if size < 255 and count < 256:
        return bytes((0, 0x53, section, 0xC1, size + 1, count)) + content
    return bytes((0, 0x53, section, 0xD1)) + (size + 4).to_bytes(4, "big") + count.to_bytes(4, "big") + content


def _name(key: Any) -> str:
    """A key as text: some clients write annotations with binary keys."""
    return key.decode("ascii", "replace") if isinstance(key, bytes) else str(key)


def _copy_other_pairs(content: bytearray, old: bytes, updates: Mapping[str, Any]) -> int:
    """Append the pairs of a map whose keys are not updated, byte for byte; how many values that were."""
    if old[0] == 0xC1 and len(old) > 2:
        count, pos = old[2], 3
    elif old[0] == 0xD1 and len(old) > 8:
        count, pos = int.from_bytes(old[5:9], "big"), 9
    else:
        raise AmqpDecodeError("annotations must be a map")
    kept = 0
    for _ in range(count // 2):
        value_at = skip(old, pos)
        after = skip(old, value_at)
        if _name(decode(old, pos)[0]) not in updates:
            content += old[pos:after]
            kept += 2
        pos = after
    return kept
