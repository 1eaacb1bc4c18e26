"""Bytes to values. Input is never trusted; one function per format code, found through a table of 256."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any
from uuid import UUID

from pairbus.amqp.values import (
    MAX_COUNT,
    MAX_DEPTH,
    AmqpDecodeError,
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Float,
    Int,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)

_u16 = struct.Struct(">H").unpack_from
_u32 = struct.Struct(">I").unpack_from
_u64 = struct.Struct(">Q").unpack_from
_i8 = struct.Struct(">b").unpack_from
_i16 = struct.Struct(">h").unpack_from
_i32 = struct.Struct(">i").unpack_from
_i64 = struct.Struct(">q").unpack_from
_f32 = struct.Struct(">f").unpack_from
_f64 = struct.Struct(">d").unpack_from

_Decoder = Callable[[bytes, int, int], tuple[Any, int]]


def decode(buf: bytes | bytearray | memoryview, offset: int = 0) -> tuple[Any, int]:
    """The value that starts at ``offset`` and the offset just after it."""
    if type(buf) is not bytes:
        buf = bytes(buf)
    try:
        return _DECODERS[buf[offset]](buf, offset + 1, 0)
    except (struct.error, IndexError):
        raise AmqpDecodeError(f"the value at byte {offset} is cut short") from None
    except UnicodeDecodeError as error:
        raise AmqpDecodeError(f"the value at byte {offset} holds bytes that are not text: {error.reason}") from None


def skip(buf: bytes, offset: int) -> int:
    """The offset just after the value at ``offset``, by its size alone: the value itself is not looked at."""
    try:
        code = buf[offset]
        depth = 0
        while code == 0:
            # A described value: the descriptor first, which may be anything but is hardly ever nested.
            depth += 1
            if depth > MAX_DEPTH:
                raise AmqpDecodeError(f"values are nested deeper than {MAX_DEPTH}")
            offset = skip(buf, offset + 1)
            code = buf[offset]
        width = _WIDTHS[code >> 4]
        if width >= 0:
            end = offset + 1 + width
        elif width == -1:
            end = offset + 2 + buf[offset + 1]
        elif width == -4:
            end = offset + 5 + int(_u32(buf, offset + 1)[0])
        else:
            raise AmqpDecodeError(f"0x{code:02x} at byte {offset} is not a format code of AMQP 1.0")
    except (struct.error, IndexError):
        raise AmqpDecodeError(f"the value at byte {offset} is cut short") from None
    except RecursionError:
        raise AmqpDecodeError(f"values are nested deeper than {MAX_DEPTH}") from None
    if end > len(buf):
        raise AmqpDecodeError(f"the value at byte {offset} is cut short")
    return end


# Bytes that follow a format code, by its upper half: fixed, or a length of one (-1) or four (-4) bytes.
_WIDTHS = (-9, -9, -9, -9, 0, 1, 2, 4, 8, 16, -1, -4, -1, -4, -1, -4)


def _bad_code(buf: bytes, pos: int, depth: int) -> tuple[Any, int]:
    raise AmqpDecodeError(f"0x{buf[pos - 1]:02x} at byte {pos - 1} is not a format code of AMQP 1.0")


def _d_described(buf: bytes, pos: int, depth: int) -> tuple[Any, int]:
    if depth >= MAX_DEPTH:
        raise AmqpDecodeError(f"values are nested deeper than {MAX_DEPTH}")
    descriptor, pos = _DECODERS[buf[pos]](buf, pos + 1, depth + 1)
    value, pos = _DECODERS[buf[pos]](buf, pos + 1, depth + 1)
    return Described(descriptor, value), pos


def _d_null(buf: bytes, pos: int, depth: int) -> tuple[Any, int]:
    return None, pos


def _d_true(buf: bytes, pos: int, depth: int) -> tuple[Any, int]:
    return True, pos


def _d_false(buf: bytes, pos: int, depth: int) -> tuple[Any, int]:
    return False, pos


def _d_bool(buf: bytes, pos: int, depth: int) -> tuple[Any, int]:
    value = buf[pos]
    if value > 1:
        raise AmqpDecodeError(f"0x{value:02x} at byte {pos} is not a boolean")
    return value == 1, pos + 1


def _d_uint0(buf: bytes, pos: int, depth: int) -> tuple[Any, int]:
    return UInt(0), pos


def _d_ulong0(buf: bytes, pos: int, depth: int) -> tuple[Any, int]:
    return ULong(0), pos


def _d_list0(buf: bytes, pos: int, depth: int) -> tuple[Any, int]:
    return [], pos


def _d_ubyte(buf: bytes, pos: int, depth: int) -> tuple[Any, int]:
    return UByte(buf[pos]), pos + 1


def _d_byte(buf: bytes, pos: int, depth: int) -> tuple[Any, int]:
    return Byte(_i8(buf, pos)[0]), pos + 1


def _d_smalluint(buf: bytes, pos: int, depth: int) -> tuple[Any, int]:
    return UInt(buf[pos]), pos + 1


def _d_smallulong(buf: bytes, pos: int, depth: int) -> tuple[Any, int]:
    return ULong(buf[pos]), pos + 1


def _d_smallint(buf: bytes, pos: int, depth: int) -> tuple[Any, int]:
    return Int(_i8(buf, pos)[0]), pos + 1


def _d_smalllong(buf: bytes, pos: int, depth: int) -> tuple[Any, int]:
    return _i8(buf, pos)[0], pos + 1


def _d_ushort(buf: bytes, pos: int, depth: int) -> tuple[Any, int]:
    return UShort(_u16(buf, pos)[0]), pos + 2


def _d_short(buf: bytes, pos: int, depth: int) -> tuple[Any, int]:
    return Short(_i16(buf, pos)[0]), pos + 2


def _d_uint(buf: bytes, pos: int, depth: int) -> tuple[Any, int]:
    return UInt(_u32(buf, pos)[0]), pos + 4


def _d_int(buf: bytes, pos: int, depth: int) -> tuple[Any, int]:
    return Int(_i32(buf, pos)[0]), pos + 4


def _d_float(buf: bytes, pos: int, depth: int) -> tuple[Any, int]:
    return Float(_f32(buf, pos)[0]), pos + 4


def _d_char(buf: bytes, pos: int, depth: int) -> tuple[Any, int]:
    point = _u32(buf, pos)[0]
    if point > 0x10FFFF:
        raise AmqpDecodeError(f"0x{point:08x} at byte {pos} is not a character")
    return Char(chr(point)), pos + 4


def _d_decimal32(buf: bytes, pos: int, depth: int) -> tuple[Any, int]:
    return Decimal32(_take(buf, pos, 4)), pos + 4


def _d_ulong(buf: bytes, pos: int, depth: int) -> tuple[Any, int]:
    return ULong(_u64(buf, pos)[0]), pos + 8


def _d_long(buf: bytes, pos: int, depth: int) -> tuple[Any, int]:
    return _i64(buf, pos)[0], pos + 8


def _d_double(buf: bytes, pos: int, depth: int) -> tuple[Any, int]:
    return _f64(buf, pos)[0], pos + 8


def _d_timestamp(buf: bytes, pos: int, depth: int) -> tuple[Any, int]:
    return Timestamp(_i64(buf, pos)[0]), pos + 8


def _d_decimal64(buf: bytes, pos: int, depth: int) -> tuple[Any, int]:
    return Decimal64(_take(buf, pos, 8)), pos + 8


def _d_decimal128(buf: bytes, pos: int, depth: int) -> tuple[Any, int]:
    return Decimal128(_take(buf, pos, 16)), pos + 16


def _d_uuid(buf: bytes, pos: int, depth: int) -> tuple[Any, int]:
    return UUID(bytes=_take(buf, pos, 16)), pos + 16


def _take(buf: bytes, pos: int, size: int) -> bytes:
    end = pos + size
    if end > len(buf):
        raise AmqpDecodeError(f"the value at byte {pos} is cut short")
    return buf[pos:end]


def _d_bin8(buf: bytes, pos: int, depth: int) -> tuple[Any, int]:
    end = pos + 1 + buf[pos]
    if end > len(buf):
        raise IndexError
    return buf[pos + 1 : end], end


def _d_bin32(buf: bytes, pos: int, depth: int) -> tuple[Any, int]:
    end = pos + 4 + _u32(buf, pos)[0]
    if end > len(buf):
        raise IndexError
    return buf[pos + 4 : end], end


def _d_str8(buf: bytes, pos: int, depth: int) -> tuple[Any, int]:
    end = pos + 1 + buf[pos]
    if end > len(buf):
        raise IndexError
    return str(buf[pos + 1 : end], "utf-8"), end


def _d_str32(buf: bytes, pos: int, depth: int) -> tuple[Any, int]:
    end = pos + 4 + _u32(buf, pos)[0]
    if end > len(buf):
        raise IndexError
    return str(buf[pos + 4 : end], "utf-8"), end


def _d_sym8(buf: bytes, pos: int, depth: int) -> tuple[Any, int]:
    end = pos + 1 + buf[pos]
    if end > len(buf):
        raise IndexError
    return Symbol(buf[pos + 1 : end], "ascii"), end


def _d_sym32(buf: bytes, pos: int, depth: int) -> tuple[Any, int]:
    end = pos + 4 + _u32(buf, pos)[0]
    if end > len(buf):
        raise IndexError
    return Symbol(buf[pos + 4 : end], "ascii"), end


def _d_list8(buf: bytes, pos: int, depth: int) -> tuple[Any, int]:
    return _items(buf, pos + 2, buf[pos + 1], pos + 1 + buf[pos], depth)


def _d_list32(buf: bytes, pos: int, depth: int) -> tuple[Any, int]:
    return _items(buf, pos + 8, _u32(buf, pos + 4)[0], pos + 4 + _u32(buf, pos)[0], depth)


def _items(buf: bytes, pos: int, count: int, end: int, depth: int) -> tuple[list[Any], int]:
    _check_compound(buf, pos, count, end, depth)
    items: list[Any] = []
    add = items.append
    depth += 1
    for _ in range(count):
        value, pos = _DECODERS[buf[pos]](buf, pos + 1, depth)
        add(value)
    if pos != end:
        raise AmqpDecodeError(f"the list that ends at byte {end} is {abs(end - pos)} bytes off its own size")
    return items, end


def _d_map8(buf: bytes, pos: int, depth: int) -> tuple[Any, int]:
    return _pairs(buf, pos + 2, buf[pos + 1], pos + 1 + buf[pos], depth)


def _d_map32(buf: bytes, pos: int, depth: int) -> tuple[Any, int]:
    return _pairs(buf, pos + 8, _u32(buf, pos + 4)[0], pos + 4 + _u32(buf, pos)[0], depth)


def _pairs(buf: bytes, pos: int, count: int, end: int, depth: int) -> tuple[dict[Any, Any], int]:
    items, end = _items(buf, pos, count, end, depth)
    if count % 2:
        raise AmqpDecodeError(f"the map that ends at byte {end} has a key without a value")
    try:
        pairs = dict(zip(items[::2], items[1::2], strict=True))
    except TypeError:
        raise AmqpDecodeError(f"the map that ends at byte {end} has a list or map as a key") from None
    if len(pairs) * 2 != count:
        raise AmqpDecodeError(f"the map that ends at byte {end} has a key twice")
    return pairs, end


def _d_array8(buf: bytes, pos: int, depth: int) -> tuple[Any, int]:
    return _elements(buf, pos + 2, buf[pos + 1], pos + 1 + buf[pos], depth)


def _d_array32(buf: bytes, pos: int, depth: int) -> tuple[Any, int]:
    return _elements(buf, pos + 8, _u32(buf, pos + 4)[0], pos + 4 + _u32(buf, pos)[0], depth)


def _elements(buf: bytes, pos: int, count: int, end: int, depth: int) -> tuple[Array, int]:
    if count > MAX_COUNT:
        raise AmqpDecodeError(f"an array of {count} items is more than the limit of {MAX_COUNT}")
    if depth >= MAX_DEPTH:
        raise AmqpDecodeError(f"values are nested deeper than {MAX_DEPTH}")
    if end > len(buf):
        raise IndexError
    depth += 1
    descriptor = None
    code = buf[pos]
    pos += 1
    if code == 0:
        descriptor, pos = _DECODERS[buf[pos]](buf, pos + 1, depth)
        code = buf[pos]
        pos += 1
    if code not in _WIDEST:
        raise AmqpDecodeError(f"0x{code:02x} at byte {pos - 1} is not a format code of AMQP 1.0")
    decoder = _DECODERS[code]
    items: list[Any] = []
    for _ in range(count):
        value, pos = decoder(buf, pos, depth)
        items.append(value)
    if pos != end:
        raise AmqpDecodeError(f"the array that ends at byte {end} is {abs(end - pos)} bytes off its own size")
    return Array(_WIDEST[code], items, descriptor), end


def _check_compound(buf: bytes, pos: int, count: int, end: int, depth: int) -> None:
    if end > len(buf):
        raise IndexError
    if depth >= MAX_DEPTH:
        raise AmqpDecodeError(f"values are nested deeper than {MAX_DEPTH}")
    if count > MAX_COUNT:
        raise AmqpDecodeError(f"a list or map of {count} items is more than the limit of {MAX_COUNT}")
    if count > end - pos:
        raise AmqpDecodeError(f"a list or map claims {count} items in {max(end - pos, 0)} bytes")


_DECODERS: list[_Decoder] = [_bad_code] * 256
for _code, _one in {
    0x00: _d_described,
    0x40: _d_null,
    0x41: _d_true,
    0x42: _d_false,
    0x43: _d_uint0,
    0x44: _d_ulong0,
    0x45: _d_list0,
    0x50: _d_ubyte,
    0x51: _d_byte,
    0x52: _d_smalluint,
    0x53: _d_smallulong,
    0x54: _d_smallint,
    0x55: _d_smalllong,
    0x56: _d_bool,
    0x60: _d_ushort,
    0x61: _d_short,
    0x70: _d_uint,
    0x71: _d_int,
    0x72: _d_float,
    0x73: _d_char,
    0x74: _d_decimal32,
    0x80: _d_ulong,
    0x81: _d_long,
    0x82: _d_double,
    0x83: _d_timestamp,
    0x84: _d_decimal64,
    0x94: _d_decimal128,
    0x98: _d_uuid,
    0xA0: _d_bin8,
    0xA1: _d_str8,
    0xA3: _d_sym8,
    0xB0: _d_bin32,
    0xB1: _d_str32,
    0xB3: _d_sym32,
    0xC0: _d_list8,
    0xC1: _d_map8,
    0xD0: _d_list32,
    0xD1: _d_map32,
    0xE0: _d_array8,
    0xF0: _d_array32,
}.items():
    _DECODERS[_code] = _one

# The widest format code of each code's type: what arrays are written with.
_WIDEST = {code: code for code in range(256) if _DECODERS[code] is not _bad_code and code != 0} | {
    0x41: 0x56,
    0x42: 0x56,
    0x43: 0x70,
    0x44: 0x80,
    0x45: 0xD0,
    0x52: 0x70,
    0x53: 0x80,
    0x54: 0x71,
    0x55: 0x81,
    0xA0: 0xB0,
    0xA1: 0xB1,
    0xA3: 0xB3,
    0xC0: 0xD0,
    0xC1: 0xD1,
    0xE0: 0xF0,
}
