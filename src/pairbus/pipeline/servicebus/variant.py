"""PURE. Values of application properties as Spark's variants, and back, with their types.

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

Anything else (a list, a map, a described value) is no application property for the service; it becomes the binary of
its AMQP encoding.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any
from uuid import UUID

from pairbus.amqp.codec import encode
from pairbus.amqp.types import (
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

METADATA = b"\x01\x00\x00"
"""The metadata of a variant that holds no object: version 1, no field names."""

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


def _with(kind: int, content: bytes = b"") -> bytes:
    return bytes((kind << 2,)) + content


def _number(kind: int, code: str) -> Callable[[Any], bytes]:
    pack = struct.Struct("<" + code).pack
    return lambda value: _with(kind, pack(value))


def _text(value: str) -> bytes:
    raw = value.encode()
    if len(raw) <= _SHORT_STRING:
        return bytes((len(raw) << 2 | 1,)) + raw
    return _with(_LONG_STRING, struct.pack("<I", len(raw)) + raw)


def _binary(value: bytes) -> bytes:
    return _with(_BINARY, struct.pack("<I", len(value)) + value)


def _ulong(value: int) -> bytes:
    if value < 1 << 63:
        return _with(_INT8, struct.pack("<q", value))
    return _with(_DECIMAL16, b"\x00" + value.to_bytes(16, "little", signed=True))


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
            return _with(kind, bytes((scale,)) + unscaled.to_bytes(size, "little", signed=True))
    return _with(_DECIMAL16, bytes((scale,)) + unscaled.to_bytes(16, "little", signed=True))


_ENCODERS: dict[type, Callable[[Any], bytes]] = {
    type(None): lambda _: _with(_NULL),
    bool: lambda value: _with(_TRUE if value else _FALSE),
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
    Timestamp: lambda value: _with(_TIMESTAMP, struct.pack("<q", value * 1000)),
    UUID: lambda value: _with(_UUID, value.bytes),
    str: _text,
    Symbol: _text,
    Char: _text,
    bytes: _binary,
}


def to_variant(value: Any) -> bytes:
    """The variant's value bytes; its metadata are always `METADATA`."""
    encoder = _ENCODERS.get(type(value))
    return _binary(encode(value)) if encoder is None else encoder(value)


class VariantError(ValueError):
    """A variant that cannot be an application property."""


def from_variant(value: bytes) -> Any:
    """The AMQP value of a variant; `VariantError` for an object, an array, or what does not fit AMQP."""
    try:
        kind, basic = value[0] >> 2, value[0] & 3
        if basic == 1:
            return str(value[1 : 1 + kind], "utf-8")
        if basic == 0 and kind in _DECODERS:
            return _DECODERS[kind](value)
    except (IndexError, struct.error, UnicodeDecodeError) as error:
        raise VariantError(f"The variant {value[:20].hex()} is cut short or malformed ({error}).") from None
    what = {2: "an object", 3: "an array"}.get(basic, f"of type {kind}")
    raise VariantError(
        f"A variant that is {what} cannot be an application property; write its text (to_json) or its fields."
    )


def _unpacked(code: str, kind: Callable[[Any], Any]) -> Callable[[bytes], Any]:
    unpack = struct.Struct("<" + code).unpack_from
    return lambda value: kind(unpack(value, 1)[0])


def _sized(value: bytes) -> bytes:
    size = struct.unpack_from("<I", value, 1)[0]
    if len(value) < 5 + size:
        raise IndexError(f"{size} bytes announced, {len(value) - 5} there")
    return value[5 : 5 + size]


def _from_decimal(size: int) -> Callable[[bytes], Any]:
    def decode(value: bytes) -> Any:
        scale, unscaled = value[1], int.from_bytes(value[2 : 2 + size], "little", signed=True)
        if not scale and 1 << 63 <= unscaled < 1 << 64:
            return ULong(unscaled)
        try:
            return encode_decimal(Decimal(unscaled).scaleb(-scale))
        except ValueError as error:
            raise VariantError(f"{error}: an application property has 34 digits at most.") from None

    return decode


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
