"""PURE. Messages decoded in full, and application properties as Spark's variants.

Application properties keep their types on the way to a variant and back:

| AMQP | variant | AMQP again |
|---|---|---|
| null, boolean | null, boolean | the same |
| byte, short, int, long | integers of 1, 2, 4 and 8 bytes | the same |
| ubyte, ushort, uint | integers of 2, 4 and 8 bytes | short, int, long |
| ulong | 8 bytes, above 2^63-1 a decimal | long, ulong |
| float, double | float, double | the same |
| decimal32, decimal64, decimal128 | decimal; binary when a variant has no such value | decimal128 |
| timestamp | timestamp | the same |
| uuid | uuid | the same |
| string, symbol, char | string | string |
| binary | binary | the same |

Any other value (a list, a map, a described value) is not a valid application property for the service. It becomes a
binary: its AMQP encoding.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any
from uuid import UUID

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
from pairbus.amqp.types import (
    AmqpDecodeError,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Float,
    Int,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
    decode_decimal,
    encode_decimal,
)

ACTIVE = STATES[0]

_NO_NUMBER = "the message has no sequence number: it was not peeked or received"


@dataclass(slots=True)
class Message:
    """A decoded message. Ids are text, whatever their AMQP type."""

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
    """Decode a message."""
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
        raise AmqpDecodeError(_NO_NUMBER)
    message.body = data[0] if len(data) == 1 else b"".join(data)
    return message


def _read_properties(message: Message, values: list[Any]) -> None:
    values = [*values, *[None] * (13 - len(values))]
    message.message_id = id_text(values[0])
    message.to = _optional_text(values[2])
    message.subject = _optional_text(values[3])
    message.reply_to = _optional_text(values[4])
    message.correlation_id = id_text(values[5])
    message.content_type = _optional_text(values[6])
    message.session_id = _optional_text(values[10])
    message.reply_to_session_id = _optional_text(values[12])


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
            message.partition_key = _optional_text(value)


def _optional_text(value: Any) -> str | None:
    return None if value is None else str(value)


# --- application properties as variants ---------------------------------------------------------------------

METADATA = b"\x01\x00\x00"
"""The metadata of a variant without an object: version 1, no field names."""

_SHORT_STRING = 63
_NULL, _TRUE, _FALSE = 0, 1, 2
_INT1, _INT2, _INT4, _INT8 = 3, 4, 5, 6
_DOUBLE = 7
_DECIMAL4, _DECIMAL8, _DECIMAL16 = 8, 9, 10
_DATE = 11
_TIMESTAMP, _TIMESTAMP_NTZ = 12, 13
_FLOAT = 14
_BINARY, _LONG_STRING = 15, 16
_UUID = 20
_DIGITS = 38
_DAY_MS = 86_400_000


def _typed(kind: int, content: bytes = b"") -> bytes:
    return bytes((kind << 2,)) + content


def _number(kind: int, code: str) -> Callable[[Any], bytes]:
    pack = struct.Struct("<" + code).pack
    return lambda value: _typed(kind, pack(value))


def _string(value: str) -> bytes:
    raw = value.encode()
    if len(raw) <= _SHORT_STRING:
        return bytes((len(raw) << 2 | 1,)) + raw
    return _typed(_LONG_STRING, struct.pack("<I", len(raw)) + raw)


def _binary(value: bytes) -> bytes:
    return _typed(_BINARY, struct.pack("<I", len(value)) + value)


def _ulong(value: int) -> bytes:
    if value < 1 << 63:
        return _typed(_INT8, struct.pack("<q", value))
    return _typed(_DECIMAL16, b"\x00" + value.to_bytes(16, "little", signed=True))


def _decimal(value: Decimal32 | Decimal64 | Decimal128) -> bytes:
    number = decode_decimal(value)
    if not isinstance(number, Decimal):
        return _binary(bytes(value))
    sign, digits, exponent = number.as_tuple()
    scale = -int(exponent)
    if scale < 0:
        digits, scale = (*digits, *[0] * -scale), 0
    unscaled = int("".join(map(str, digits)))
    if scale > _DIGITS or unscaled >= 10**_DIGITS:
        return _binary(bytes(value))
    unscaled = -unscaled if sign else unscaled
    for kind, size, limit in ((_DECIMAL4, 4, 9), (_DECIMAL8, 8, 18)):
        if abs(unscaled) < 10**limit and scale <= limit:
            return _typed(kind, bytes((scale,)) + unscaled.to_bytes(size, "little", signed=True))
    return _typed(_DECIMAL16, bytes((scale,)) + unscaled.to_bytes(16, "little", signed=True))


_ENCODERS: dict[type, Callable[[Any], bytes]] = {
    type(None): lambda _: _typed(_NULL),
    bool: lambda value: _typed(_TRUE if value else _FALSE),
    Byte: _number(_INT1, "b"),
    Short: _number(_INT2, "h"),
    Int: _number(_INT4, "i"),
    int: _number(_INT8, "q"),
    UByte: _number(_INT2, "h"),
    UShort: _number(_INT4, "i"),
    UInt: _number(_INT8, "q"),
    ULong: _ulong,
    Float: _number(_FLOAT, "f"),
    float: _number(_DOUBLE, "d"),
    Decimal32: _decimal,
    Decimal64: _decimal,
    Decimal128: _decimal,
    Timestamp: lambda value: _typed(_TIMESTAMP, struct.pack("<q", value * 1000)),
    UUID: lambda value: _typed(_UUID, value.bytes),
    str: _string,
    Symbol: _string,
    Char: _string,
    bytes: _binary,
}


def to_variant(value: Any) -> bytes:
    """Return the variant's value bytes. Its metadata is always `METADATA`."""
    encoder = _ENCODERS.get(type(value))
    return _binary(encode(value)) if encoder is None else encoder(value)


class VariantError(ValueError):
    """A variant that cannot be an application property."""


def from_variant(value: bytes) -> Any:
    """Return the AMQP value of a variant. Raises `VariantError` for an object, an array or a value beyond AMQP."""
    try:
        kind, basic = value[0] >> 2, value[0] & 3
        if basic == 1:
            return str(value[1 : 1 + kind], "utf-8")
        if basic == 0 and kind in _DECODERS:
            return _DECODERS[kind](value)
    except (IndexError, struct.error, UnicodeDecodeError) as error:
        raise VariantError(f"The variant {value[:20].hex()} is truncated or malformed ({error}).") from None
    label = {2: "an object", 3: "an array"}.get(basic, f"of type {kind}")
    raise VariantError(
        f"A variant that is {label} cannot be an application property. Write its text (to_json) or its fields."
    )


def _unpacked(code: str, kind: Callable[[Any], Any]) -> Callable[[bytes], Any]:
    unpack = struct.Struct("<" + code).unpack_from
    return lambda value: kind(unpack(value, 1)[0])


def _sized(value: bytes) -> bytes:
    size = struct.unpack_from("<I", value, 1)[0]
    if len(value) < 5 + size:
        raise IndexError(f"{size} bytes announced, {len(value) - 5} found")
    return value[5 : 5 + size]


def _from_decimal(size: int) -> Callable[[bytes], Any]:
    def from_bytes(value: bytes) -> Any:
        scale, unscaled = value[1], int.from_bytes(value[2 : 2 + size], "little", signed=True)
        if not scale and 1 << 63 <= unscaled < 1 << 64:
            return ULong(unscaled)
        try:
            return encode_decimal(Decimal(unscaled).scaleb(-scale))
        except ValueError as error:
            raise VariantError(f"{error}: an application property has at most 34 digits.") from None

    return from_bytes


_DECODERS: dict[int, Callable[[bytes], Any]] = {
    _NULL: lambda _: None,
    _TRUE: lambda _: True,
    _FALSE: lambda _: False,
    _INT1: _unpacked("b", Byte),
    _INT2: _unpacked("h", Short),
    _INT4: _unpacked("i", Int),
    _INT8: _unpacked("q", int),
    _DOUBLE: _unpacked("d", float),
    _FLOAT: _unpacked("f", Float),
    _DECIMAL4: _from_decimal(4),
    _DECIMAL8: _from_decimal(8),
    _DECIMAL16: _from_decimal(16),
    _DATE: _unpacked("i", lambda days: Timestamp(days * _DAY_MS)),
    _TIMESTAMP: _unpacked("q", lambda micros: Timestamp(micros // 1000)),
    _TIMESTAMP_NTZ: _unpacked("q", lambda micros: Timestamp(micros // 1000)),
    _BINARY: _sized,
    _LONG_STRING: lambda value: str(_sized(value), "utf-8"),
    _UUID: lambda value: UUID(bytes=value[1:17]),
}
