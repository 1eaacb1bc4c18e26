"""PURE. The values of AMQP 1.0 in Python (OASIS AMQP 1.0, part 1, 1.6 primitive type definitions).

- A type that Python lacks is a small subclass (`UInt`, `Symbol`, `Timestamp` ...): values compare and print naturally.
- A plain `int` is an AMQP long, a plain `float` a double, `str` a string, `bytes` binary.
- `codec` turns values into bytes and back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

MAX_DEPTH = 32
MAX_COUNT = 100_000


class AmqpDecodeError(ValueError):
    """The bytes are not valid AMQP 1.0, or exceed the limits of this codec."""


class AmqpEncodeError(ValueError):
    """The value has no AMQP 1.0 encoding: its type is unknown, or it is out of range."""


class UByte(int):
    __slots__ = ()


class UShort(int):
    __slots__ = ()


class UInt(int):
    __slots__ = ()


class ULong(int):
    __slots__ = ()


class Byte(int):
    __slots__ = ()


class Short(int):
    __slots__ = ()


class Int(int):
    __slots__ = ()


class Long(int):
    """Encoded like a plain ``int``, and decoded to one."""

    __slots__ = ()


class Timestamp(int):
    """Milliseconds since the Unix epoch, UTC."""

    __slots__ = ()


class Float(float):
    """A 32-bit float. The value is rounded to that precision on the wire."""

    __slots__ = ()


class Char(str):
    __slots__ = ()


class Symbol(str):
    __slots__ = ()


class Decimal32(bytes):
    """The four bytes of an IEEE 754-2008 decimal32."""


class Decimal64(bytes):
    """The eight bytes of an IEEE 754-2008 decimal64."""


class Decimal128(bytes):
    """The sixteen bytes of an IEEE 754-2008 decimal128."""


@dataclass(frozen=True, slots=True)
class Described:
    """A value whose descriptor (a ``ULong`` or ``Symbol``) says what it means (1.2)."""

    descriptor: Any
    value: Any


@dataclass(frozen=True, slots=True)
class Array:
    """Items of one type. ``code`` is the type's widest format code (0x98 for UUIDs, 0x83 for timestamps)."""

    code: int
    items: list[Any] = field(default_factory=list)
    descriptor: Any = None


# --- decimal numbers (1.6.13 to 1.6.15) -----------------------------------------------------------------------
# IEEE 754-2008 in its binary integer form, most significant byte first. The codec carries them as bytes.

_EXPONENT_BITS = {4: 8, 8: 10, 16: 14}
_DIGITS = {4: 7, 8: 16, 16: 34}
_BIAS = {4: 101, 8: 398, 16: 6176}
_LARGEST_EXPONENT = 6111


def decode_decimal(raw: Decimal32 | Decimal64 | Decimal128) -> Decimal | float:
    """The number; a float for an infinity or NaN."""
    size = len(raw)
    width = size * 8
    bits = int.from_bytes(raw, "big")
    negative = bits >> (width - 1)
    special = (bits >> (width - 6)) & 0b11111
    if special == 0b11111:
        return float("nan")
    if special == 0b11110:
        return float("-inf") if negative else float("inf")
    exponent_bits = _EXPONENT_BITS[size]
    if special >> 3 == 0b11:
        # The coefficient is large: its three leading bits (100) are implied, and the exponent moves right.
        shift = width - 3 - exponent_bits
        coefficient = (0b100 << shift) | (bits & ((1 << shift) - 1))
    else:
        shift = width - 1 - exponent_bits
        coefficient = bits & ((1 << shift) - 1)
    exponent = (bits >> shift) & ((1 << exponent_bits) - 1)
    if coefficient >= 10 ** _DIGITS[size]:
        coefficient = 0  # not canonical: read as zero, as the standard says
    return Decimal((negative, tuple(map(int, str(coefficient))), exponent - _BIAS[size]))


def encode_decimal(value: Decimal) -> Decimal128:
    """Encode a finite number of at most 34 digits as decimal128. Raises ValueError for any other."""
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int) or len(digits) > 34 or not -6176 <= exponent <= _LARGEST_EXPONENT:
        raise ValueError(f"{value} does not fit into a decimal128")
    coefficient = int("".join(map(str, digits)))
    bits = (sign << 127) | ((exponent + 6176) << 113) | coefficient
    return Decimal128(bits.to_bytes(16, "big"))
