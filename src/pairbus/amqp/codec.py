"""PURE. AMQP 1.0 values to bytes and back (OASIS AMQP 1.0, part 1, 1.2 type encodings).

- The exact type survives a round trip: `decode(encode(v))` is `v` with the same Python type. A `Long` comes back as a
  plain `int`, a tuple as a list. The encoding does not survive: values are written in their shortest form.
- Input is never trusted. Malformed bytes raise `AmqpDecodeError` and nothing else, and so do values nested deeper than
  `MAX_DEPTH` and lists, maps and arrays with more than `MAX_COUNT` items or more items than bytes, even where an item
  takes no bytes (an array of nulls). So memory and time are proportional to the size of the input.
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

_NUMBERS: dict[int, tuple[type, str]] = {
    0x50: (UByte, ">B"),
    0x51: (Byte, ">b"),
    0x60: (UShort, ">H"),
    0x61: (Short, ">h"),
    0x70: (UInt, ">I"),
    0x71: (Int, ">i"),
    0x72: (Float, ">f"),
    0x80: (ULong, ">Q"),
    0x81: (int, ">q"),
    0x82: (float, ">d"),
    0x83: (Timestamp, ">q"),
}
"""The numbers of fixed width by their format codes: the Python type, and the layout of the bytes."""
_DECIMALS: dict[int, tuple[type[bytes], int]] = {0x74: (Decimal32, 4), 0x84: (Decimal64, 8), 0x94: (Decimal128, 16)}

# --- decoding --------------------------------------------------------------------------------

_u32 = struct.Struct(">I").unpack_from

_Decoder = Callable[[bytes, int, int], tuple[Any, int]]


def decode(buf: bytes | bytearray | memoryview, offset: int = 0) -> tuple[Any, int]:
    """Decode the value at ``offset``. Returns it and the offset after it."""
    if type(buf) is not bytes:
        buf = bytes(buf)
    try:
        return _DECODERS[buf[offset]](buf, offset + 1, 0)
    except (struct.error, IndexError):
        raise AmqpDecodeError(f"the value at byte {offset} is cut short") from None
    except UnicodeDecodeError as error:
        raise AmqpDecodeError(f"the value at byte {offset} is not valid text: {error.reason}") from None


def skip(buf: bytes, offset: int) -> int:
    """The offset after the value at ``offset``. Only the size is read, not the value."""
    try:
        code = buf[offset]
        depth = 0
        while code == 0:
            # A described value begins with its descriptor, which may itself be a described value.
            depth += 1
            if depth > MAX_DEPTH:
                raise _too_deep()
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
        raise _too_deep() from None
    if end > len(buf):
        raise AmqpDecodeError(f"the value at byte {offset} is cut short")
    return end


# The width of a value by the upper half of its format code (1.2): fixed, or preceded by a size of one (-1) or four (-4)
# bytes; -9 is not a format code.
_WIDTHS = (-9, -9, -9, -9, 0, 1, 2, 4, 8, 16, -1, -4, -1, -4, -1, -4)


def _bad_code(buf: bytes, pos: int, depth: int) -> tuple[Any, int]:
    raise AmqpDecodeError(f"0x{buf[pos - 1]:02x} at byte {pos - 1} is not a format code of AMQP 1.0")


def _too_deep() -> AmqpDecodeError:
    return AmqpDecodeError(f"values are nested deeper than {MAX_DEPTH}")


def _d_described(buf: bytes, pos: int, depth: int) -> tuple[Any, int]:
    if depth >= MAX_DEPTH:
        raise _too_deep()
    descriptor, pos = _DECODERS[buf[pos]](buf, pos + 1, depth + 1)
    value, pos = _DECODERS[buf[pos]](buf, pos + 1, depth + 1)
    return Described(descriptor, value), pos


def _constant(value: Any) -> _Decoder:
    return lambda buf, pos, depth: (value, pos)


def _d_list0(buf: bytes, pos: int, depth: int) -> tuple[Any, int]:
    return [], pos


def _d_bool(buf: bytes, pos: int, depth: int) -> tuple[Any, int]:
    value = buf[pos]
    if value > 1:
        raise AmqpDecodeError(f"0x{value:02x} at byte {pos} is not a boolean")
    return value == 1, pos + 1


def _octet(kind: type[int]) -> _Decoder:
    return lambda buf, pos, depth: (kind(buf[pos]), pos + 1)


def _number(kind: type, layout: str) -> _Decoder:
    unpack, width = struct.Struct(layout).unpack_from, struct.calcsize(layout)
    if kind in (int, float):
        return lambda buf, pos, depth: (unpack(buf, pos)[0], pos + width)
    return lambda buf, pos, depth: (kind(unpack(buf, pos)[0]), pos + width)


def _raw(kind: Callable[[bytes], Any], width: int) -> _Decoder:
    def decoder(buf: bytes, pos: int, depth: int) -> tuple[Any, int]:
        end = pos + width
        if end > len(buf):
            raise IndexError
        return kind(buf[pos:end]), end

    return decoder


def _d_char(buf: bytes, pos: int, depth: int) -> tuple[Any, int]:
    point = _u32(buf, pos)[0]
    if point > 0x10FFFF or 0xD800 <= point <= 0xDFFF:
        raise AmqpDecodeError(f"0x{point:08x} at byte {pos} is not a character")
    return Char(chr(point)), pos + 4


def _sized8(make: Callable[[bytes], Any]) -> _Decoder:
    """Bytes or text after a size of one byte (1.2.2)."""

    def decoder(buf: bytes, pos: int, depth: int) -> tuple[Any, int]:
        end = pos + 1 + buf[pos]
        if end > len(buf):
            raise IndexError
        return make(buf[pos + 1 : end]), end

    return decoder


def _sized32(make: Callable[[bytes], Any]) -> _Decoder:
    """Bytes or text after a size of four bytes."""

    def decoder(buf: bytes, pos: int, depth: int) -> tuple[Any, int]:
        end = pos + 4 + _u32(buf, pos)[0]
        if end > len(buf):
            raise IndexError
        return make(buf[pos + 4 : end]), end

    return decoder


def _symbol(raw: bytes) -> Symbol:
    return Symbol(raw, "ascii")


def _short(read: Callable[[bytes, int, int, int, int], tuple[Any, int]]) -> _Decoder:
    """A list, map or array with one byte each for size and count (1.2.3)."""
    return lambda buf, pos, depth: read(buf, pos + 2, buf[pos + 1], pos + 1 + buf[pos], depth)


def _wide(read: Callable[[bytes, int, int, int, int], tuple[Any, int]]) -> _Decoder:
    """A list, map or array with four bytes each for size and count."""
    return lambda buf, pos, depth: read(buf, pos + 8, _u32(buf, pos + 4)[0], pos + 4 + _u32(buf, pos)[0], depth)


def _check_compound(buf: bytes, pos: int, count: int, end: int, depth: int) -> None:
    if end > len(buf):
        raise IndexError
    if depth >= MAX_DEPTH:
        raise _too_deep()
    if count > MAX_COUNT:
        raise AmqpDecodeError(f"a list, map or array has {count} items, the limit is {MAX_COUNT}")
    if count > end - pos:
        raise AmqpDecodeError(f"a list, map or array claims {count} items in {max(end - pos, 0)} bytes")


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


def _pairs(buf: bytes, pos: int, count: int, end: int, depth: int) -> tuple[dict[Any, Any], int]:
    items, end = _items(buf, pos, count, end, depth)
    if count % 2:
        raise AmqpDecodeError(f"the map that ends at byte {end} has a key without a value")
    keys = items[::2]
    try:
        if count > _MAX_COLLISIONS and len(keys) - len(set(map(hash, keys))) > _MAX_COLLISIONS:
            raise AmqpDecodeError(f"the map that ends at byte {end} has keys with the same hash")
        pairs = dict(zip(keys, items[1::2], strict=True))
    except TypeError:
        raise AmqpDecodeError(f"the map that ends at byte {end} has a key that is a list or a map") from None
    if len(pairs) * 2 != count:
        raise AmqpDecodeError(f"the map that ends at byte {end} has a duplicate key")
    return pairs, end


def _elements(buf: bytes, pos: int, count: int, end: int, depth: int) -> tuple[Array, int]:
    _check_compound(buf, pos, count, end, depth)
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


# Python's hashes of UUIDs and described values are predictable. Keys made to collide would take quadratic time.
_MAX_COLLISIONS = 64

_DECODERS: list[_Decoder] = [_bad_code] * 256
for _code, _decoder in {
    0x00: _d_described,
    0x40: _constant(None),
    0x41: _constant(True),
    0x42: _constant(False),
    0x43: _constant(UInt(0)),
    0x44: _constant(ULong(0)),
    0x45: _d_list0,
    0x52: _octet(UInt),
    0x53: _octet(ULong),
    0x54: _number(Int, ">b"),
    0x55: _number(int, ">b"),
    0x56: _d_bool,
    0x73: _d_char,
    0x98: _raw(lambda raw: UUID(bytes=raw), 16),
    0xA0: _sized8(bytes),
    0xA1: _sized8(bytes.decode),
    0xA3: _sized8(_symbol),
    0xB0: _sized32(bytes),
    0xB1: _sized32(bytes.decode),
    0xB3: _sized32(_symbol),
    0xC0: _short(_items),
    0xC1: _short(_pairs),
    0xD0: _wide(_items),
    0xD1: _wide(_pairs),
    0xE0: _short(_elements),
    0xF0: _wide(_elements),
    **{code: _number(kind, layout) for code, (kind, layout) in _NUMBERS.items()},
    **{code: _raw(kind, width) for code, (kind, width) in _DECIMALS.items()},
}.items():
    _DECODERS[_code] = _decoder

# The widest format code of the same type. Arrays are written with it.
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

_p32 = struct.Struct(">I").pack

_Encoder = Callable[[bytearray, Any], None]


def encode(value: Any) -> bytes:
    """Encode a value. Raises AmqpEncodeError if it has no AMQP encoding."""
    out = bytearray()
    encode_into(out, value)
    return bytes(out)


def encode_into(out: bytearray, value: Any) -> None:
    """Append the encoding of a value to ``out``."""
    encoder = _ENCODERS.get(type(value))
    if encoder is None:
        raise AmqpEncodeError(
            f"{type(value).__name__} has no AMQP encoding. Use bool, int, float, str, bytes, UUID, list, dict or"
            " a type of pairbus.amqp.types."
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


def _fixed(code: int) -> _Encoder:
    """An encoder for a type with a single fixed-width encoding."""
    prefix, pack = bytes((code,)), _FIXED[code]

    def encoder(out: bytearray, value: Any) -> None:
        out += prefix + pack(value)

    return encoder


def _exactly(size: int) -> Callable[[bytes], bytes]:
    def check(value: bytes) -> bytes:
        if len(value) != size:
            raise OverflowError
        return value

    return check


def _unsigned(zero: int, small: int, wide: int) -> _Encoder:
    prefix, pack = bytes((wide,)), _FIXED[wide]

    def encoder(out: bytearray, value: int) -> None:
        if value == 0:
            out.append(zero)
        elif 0 < value <= 255:
            out.append(small)
            out.append(value)
        else:
            out += prefix + pack(value)

    return encoder


def _signed(small: int, wide: int) -> _Encoder:
    prefix, pack, pack_small = bytes((wide,)), _FIXED[wide], _FIXED[0x51]

    def encoder(out: bytearray, value: int) -> None:
        if -128 <= value <= 127:
            out.append(small)
            out += pack_small(value)
        else:
            out += prefix + pack(value)

    return encoder


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


def _text(short_code: int, encoding: str) -> _Encoder:
    def encoder(out: bytearray, value: str) -> None:
        raw = value.encode(encoding)
        size = len(raw)
        if size <= 255:
            out.append(short_code)
            out.append(size)
        else:
            out.append(short_code + 0x10)
            out += _p32(size)
        out += raw

    return encoder


def _e_list(out: bytearray, value: list[Any]) -> None:
    if value:
        _e_items(out, value)
    else:
        out.append(0x45)


def _e_items(out: bytearray, value: list[Any]) -> None:
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
    """Append an array item: the value in the format of the array, without a format code (1.2.4)."""
    pack = _FIXED.get(code)
    if pack is not None:
        out += pack(value)
        return
    encoder = _ITEM_ENCODERS.get(code)
    if encoder is None:
        raise AmqpEncodeError(f"0x{code:02x} is not a format code for array items")
    whole = bytearray()
    encoder(whole, value)
    # Without the format code, and always in the long form that the array announces.
    if not whole[0] & 0x10:
        sizes = 1 if code in (0xB0, 0xB1, 0xB3) else 2
        grown = 3 * (sizes - 1)
        whole[1 : 1 + sizes] = b"".join(map(_p32, (whole[1] + grown, *whole[2 : 1 + sizes])))
    out += whole[1:]


def _pack_char(value: str) -> bytes:
    if len(value) != 1:
        raise OverflowError
    return _p32(ord(value))


_FIXED: dict[int, Callable[[Any], bytes]] = {
    0x40: lambda value: b"",
    0x56: lambda value: b"\x01" if value else b"\x00",
    0x73: _pack_char,
    0x98: lambda value: value.bytes,
    **{code: struct.Struct(layout).pack for code, (_, layout) in _NUMBERS.items()},
    **{code: _exactly(width) for code, (_, width) in _DECIMALS.items()},
}
"""The bytes of a value of fixed width, without its format code."""


_ENCODERS: dict[type, _Encoder] = {
    type(None): _e_null,
    bool: _e_bool,
    Char: _fixed(0x73),
    UUID: _fixed(0x98),
    **{kind: _fixed(code) for code, (kind, _) in (_NUMBERS | _DECIMALS).items()},
    # These are written in their shortest form.
    UInt: _unsigned(0x43, 0x52, 0x70),
    ULong: _unsigned(0x44, 0x53, 0x80),
    Int: _signed(0x54, 0x71),
    Long: _signed(0x55, 0x81),
    int: _signed(0x55, 0x81),
    bytes: _e_binary,
    bytearray: _e_binary,
    memoryview: _e_memoryview,
    str: _text(0xA1, "utf-8"),
    Symbol: _text(0xA3, "ascii"),
    list: _e_list,
    tuple: _e_list,
    dict: _e_map,
    Described: _e_described,
    Array: _e_array,
}

_ITEM_ENCODERS: dict[int, _Encoder] = {
    0xB0: _e_binary,
    0xB1: _ENCODERS[str],
    0xB3: _ENCODERS[Symbol],
    0xD0: _e_items,
    0xD1: _e_map,
    0xF0: _e_array,
}
