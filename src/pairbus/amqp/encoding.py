"""Values to bytes, in the shortest form of their type. One function per type, found by the value's class."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any
from uuid import UUID

from pairbus.amqp.values import (
    AmqpEncodeError,
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Float,
    Int,
    Long,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)

_p16 = struct.Struct(">H").pack
_p32 = struct.Struct(">I").pack
_p64 = struct.Struct(">Q").pack
_pi8 = struct.Struct(">b").pack
_pi16 = struct.Struct(">h").pack
_pi32 = struct.Struct(">i").pack
_pi64 = struct.Struct(">q").pack
_pf32 = struct.Struct(">f").pack
_pf64 = struct.Struct(">d").pack

_Encoder = Callable[[bytearray, Any], None]


def encode(value: Any) -> bytes:
    """The value's encoding, or ``AmqpEncodeError`` if AMQP has none for it."""
    out = bytearray()
    encode_into(out, value)
    return bytes(out)


def encode_into(out: bytearray, value: Any) -> None:
    """Append the value's encoding to ``out``."""
    encoder = _ENCODERS.get(type(value))
    if encoder is None:
        raise AmqpEncodeError(
            f"{type(value).__name__} has no AMQP type; use bool, int, float, str, bytes, UUID, list, dict or"
            " a type of pairbus.amqp.types"
        )
    try:
        encoder(out, value)
    except (struct.error, OverflowError):
        raise AmqpEncodeError(f"{value!r} is out of the range of {type(value).__name__}") from None
    except UnicodeEncodeError:
        raise AmqpEncodeError(f"{value!r} cannot be written as {type(value).__name__}") from None


def _e_null(out: bytearray, value: None) -> None:
    out.append(0x40)


def _e_bool(out: bytearray, value: bool) -> None:
    out.append(0x41 if value else 0x42)


def _e_ubyte(out: bytearray, value: int) -> None:
    if not 0 <= value <= 255:
        raise OverflowError
    out.append(0x50)
    out.append(value)


def _e_byte(out: bytearray, value: int) -> None:
    out += b"\x51" + _pi8(value)


def _e_ushort(out: bytearray, value: int) -> None:
    out += b"\x60" + _p16(value)


def _e_short(out: bytearray, value: int) -> None:
    out += b"\x61" + _pi16(value)


def _e_uint(out: bytearray, value: int) -> None:
    if value == 0:
        out.append(0x43)
    elif 0 < value <= 255:
        out.append(0x52)
        out.append(value)
    else:
        out += b"\x70" + _p32(value)


def _e_ulong(out: bytearray, value: int) -> None:
    if value == 0:
        out.append(0x44)
    elif 0 < value <= 255:
        out.append(0x53)
        out.append(value)
    else:
        out += b"\x80" + _p64(value)


def _e_int(out: bytearray, value: int) -> None:
    if -128 <= value <= 127:
        out += b"\x54" + _pi8(value)
    else:
        out += b"\x71" + _pi32(value)


def _e_long(out: bytearray, value: int) -> None:
    if -128 <= value <= 127:
        out += b"\x55" + _pi8(value)
    else:
        out += b"\x81" + _pi64(value)


def _e_float(out: bytearray, value: float) -> None:
    out += b"\x72" + _pf32(value)


def _e_double(out: bytearray, value: float) -> None:
    out += b"\x82" + _pf64(value)


def _e_char(out: bytearray, value: str) -> None:
    if len(value) != 1:
        raise OverflowError
    out += b"\x73" + _p32(ord(value))


def _e_timestamp(out: bytearray, value: int) -> None:
    out += b"\x83" + _pi64(value)


def _e_decimal32(out: bytearray, value: bytes) -> None:
    out += b"\x74" + _exactly(value, 4)


def _e_decimal64(out: bytearray, value: bytes) -> None:
    out += b"\x84" + _exactly(value, 8)


def _e_decimal128(out: bytearray, value: bytes) -> None:
    out += b"\x94" + _exactly(value, 16)


def _exactly(value: bytes, size: int) -> bytes:
    if len(value) != size:
        raise OverflowError
    return value


def _e_uuid(out: bytearray, value: UUID) -> None:
    out += b"\x98" + value.bytes


def _e_binary(out: bytearray, value: bytes | bytearray | memoryview) -> None:
    size = len(value)
    if size <= 255:
        out.append(0xA0)
        out.append(size)
    else:
        out += b"\xb0" + _p32(size)
    out += value


def _e_memoryview(out: bytearray, value: memoryview) -> None:
    _e_binary(out, bytes(value))


def _e_str(out: bytearray, value: str) -> None:
    raw = value.encode()
    size = len(raw)
    if size <= 255:
        out.append(0xA1)
        out.append(size)
    else:
        out += b"\xb1" + _p32(size)
    out += raw


def _e_symbol(out: bytearray, value: str) -> None:
    raw = value.encode("ascii")
    size = len(raw)
    if size <= 255:
        out.append(0xA3)
        out.append(size)
    else:
        out += b"\xb3" + _p32(size)
    out += raw


def _e_list(out: bytearray, value: list[Any]) -> None:
    if not value:
        out.append(0x45)
        return
    content = bytearray()
    for item in value:
        encode_into(content, item)
    _compound(out, 0xC0, len(value), content)


def _e_map(out: bytearray, value: dict[Any, Any]) -> None:
    content = bytearray()
    for key, item in value.items():
        encode_into(content, key)
        encode_into(content, item)
    _compound(out, 0xC1, len(value) * 2, content)


def _compound(out: bytearray, short_code: int, count: int, content: bytearray) -> None:
    size = len(content)
    if size < 255 and count <= 255:
        out.append(short_code)
        out.append(size + 1)
        out.append(count)
    else:
        out.append(short_code + 0x10)
        out += _p32(size + 4)
        out += _p32(count)
    out += content


def _e_described(out: bytearray, value: Described) -> None:
    out.append(0)
    encode_into(out, value.descriptor)
    encode_into(out, value.value)


def _e_array(out: bytearray, value: Array) -> None:
    content = bytearray()
    if value.descriptor is not None:
        content.append(0)
        encode_into(content, value.descriptor)
    content.append(value.code)
    for item in value.items:
        _element(content, value.code, item)
    _compound(out, 0xE0, len(value.items), content)


def _element(out: bytearray, code: int, value: Any) -> None:
    """One array item: the value in the array's own format, without a format code."""
    if code == 0x40:
        return
    if code == 0x56:
        out.append(1 if value else 0)
        return
    pack = _FIXED.get(code)
    if pack is not None:
        out += pack(value)
        return
    if code in (0xB0, 0xB1, 0xB3):
        raw = value if code == 0xB0 else value.encode("utf-8" if code == 0xB1 else "ascii")
        out += _p32(len(raw))
        out += raw
        return
    one = bytearray()
    if code == 0xD0:
        for item in value:
            encode_into(one, item)
        out += _p32(len(one) + 4) + _p32(len(value))
    elif code == 0xD1:
        for key, item in value.items():
            encode_into(one, key)
            encode_into(one, item)
        out += _p32(len(one) + 4) + _p32(len(value) * 2)
    elif code == 0xF0:
        whole = bytearray()
        _e_array(whole, value)
        # Without the format code, and never in the short form: the outer array promises the long one.
        if whole[0] == 0xF0:
            one = whole[1:]
        else:
            out += _p32(whole[1] + 3) + _p32(whole[2])
            one = whole[3:]
    else:
        raise AmqpEncodeError(f"0x{code:02x} is not a format code that arrays are written with")
    out += one


_FIXED: dict[int, Callable[[Any], bytes]] = {
    0x50: lambda v: bytes((v,)),
    0x51: _pi8,
    0x60: _p16,
    0x61: _pi16,
    0x70: _p32,
    0x71: _pi32,
    0x72: _pf32,
    0x73: lambda v: _p32(ord(v)),
    0x74: lambda v: _exactly(v, 4),
    0x80: _p64,
    0x81: _pi64,
    0x82: _pf64,
    0x83: _pi64,
    0x84: lambda v: _exactly(v, 8),
    0x94: lambda v: _exactly(v, 16),
    0x98: lambda v: v.bytes,
}

_ENCODERS: dict[type, _Encoder] = {
    type(None): _e_null,
    bool: _e_bool,
    UByte: _e_ubyte,
    Byte: _e_byte,
    UShort: _e_ushort,
    Short: _e_short,
    UInt: _e_uint,
    ULong: _e_ulong,
    Int: _e_int,
    Long: _e_long,
    int: _e_long,
    Float: _e_float,
    float: _e_double,
    Char: _e_char,
    Timestamp: _e_timestamp,
    Decimal32: _e_decimal32,
    Decimal64: _e_decimal64,
    Decimal128: _e_decimal128,
    UUID: _e_uuid,
    bytes: _e_binary,
    bytearray: _e_binary,
    memoryview: _e_memoryview,
    str: _e_str,
    Symbol: _e_symbol,
    list: _e_list,
    tuple: _e_list,
    dict: _e_map,
    Described: _e_described,
    Array: _e_array,
}
