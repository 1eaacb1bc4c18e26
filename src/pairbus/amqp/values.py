"""What AMQP 1.0 values look like in Python: small subclasses for the types Python has no word for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

MAX_DEPTH = 32
MAX_COUNT = 100_000


class AmqpDecodeError(ValueError):
    """The bytes are not valid AMQP 1.0, or go beyond the limits of this codec."""


class AmqpEncodeError(ValueError):
    """The value has no AMQP 1.0 encoding: unknown type, or out of the type's range."""


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
    """Written like a plain ``int``; decoding gives a plain ``int`` back."""

    __slots__ = ()


class Timestamp(int):
    """Milliseconds since the Unix epoch, UTC."""

    __slots__ = ()


class Float(float):
    """A 32 bit number: the value is rounded to that precision on the wire."""

    __slots__ = ()


class Char(str):
    __slots__ = ()


class Symbol(str):
    __slots__ = ()


class Decimal32(bytes):
    """Four raw bytes of an IEEE 754-2008 decimal32; carried, never computed with."""


class Decimal64(bytes):
    """Eight raw bytes of an IEEE 754-2008 decimal64; carried, never computed with."""


class Decimal128(bytes):
    """Sixteen raw bytes of an IEEE 754-2008 decimal128; carried, never computed with."""


@dataclass(frozen=True, slots=True)
class Described:
    """A value with a descriptor (a ``ULong`` or ``Symbol``) that gives it a meaning."""

    descriptor: Any
    value: Any


@dataclass(frozen=True, slots=True)
class Array:
    """Items of one type. ``code`` is the type's widest format code (0x98 for UUIDs, 0x83 for timestamps)."""

    code: int
    items: list[Any] = field(default_factory=list)
    descriptor: Any = None
