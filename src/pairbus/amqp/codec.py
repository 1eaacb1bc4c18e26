"""AMQP 1.0 values to bytes and back (OASIS AMQP 1.0, part 1, 1.2 type encodings).

- The exact type survives a round trip: `decode(encode(v))` is `v` with the same Python type. A `Long` comes back as a
  plain `int`, a tuple as a list. The encoding does not survive: values are written in their shortest form.
- Input is never trusted. Malformed bytes, values nested deeper than `MAX_DEPTH` and more than `MAX_COUNT` items raise
  `AmqpDecodeError` and nothing else.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any
from uuid import UUID

from pairbus.amqp.types import (
    MAX_COUNT,
    MAX_DEPTH,
    AmqpDecodeError,
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

# --- decoding --------------------------------------------------------------------------------

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


# --- encoding --------------------------------------------------------------------------------

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
