"""The type system of AMQP 1.0 (part 1 of the standard): bytes to values and back.

Rules
- Exact types survive a round trip: ``decode(encode(v))`` is ``v`` with the same Python type. A type that
  Python has no word for is a small subclass (``UInt``, ``Symbol``, ``Timestamp`` ...), so that values compare
  and print naturally.
- A plain ``int`` is written as an AMQP long, a plain ``float`` as a double, ``str`` as string, ``bytes`` as
  binary. A ``Long`` comes back as the plain ``int`` it stands for, a tuple as a list.
- Encodings are not preserved, types are: a number is written in its shortest form.
- Input is never trusted: whatever is malformed, nested deeper than ``MAX_DEPTH`` or counts more than
  ``MAX_COUNT`` items raises ``AmqpDecodeError`` and nothing else.
"""

from __future__ import annotations

from pairbus.amqp.decoding import decode, skip
from pairbus.amqp.encoding import encode, encode_into
from pairbus.amqp.values import (
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

__all__ = [
    "MAX_COUNT",
    "MAX_DEPTH",
    "AmqpDecodeError",
    "AmqpEncodeError",
    "Array",
    "Byte",
    "Char",
    "Decimal32",
    "Decimal64",
    "Decimal128",
    "Described",
    "Float",
    "Int",
    "Long",
    "Short",
    "Symbol",
    "Timestamp",
    "UByte",
    "UInt",
    "ULong",
    "UShort",
    "decode",
    "encode",
    "encode_into",
    "skip",
]
