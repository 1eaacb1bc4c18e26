"""Values in expressions: their types, comparisons, arithmetic and LIKE.

- A value is None (unknown), a boolean, a number (integer, double, decimal), text, bytes, a UUID, a time or a duration.
  `plain` converts every AMQP type to one of these; maps, lists and unknown described types are errors. `stored` is the
  way back.
- Types do not mix: comparing text with a number is an `EvaluationError`. Among numbers the wider type wins, as in C#:
  if one side is a double, both become doubles.
- Numbers, text, times and durations are ordered. Text is ordered by code points, with its case.
- Integers have 64 bits, divide towards zero and never wrap: overflow is an error. Doubles follow IEEE 754.
- Text + any printable value is text. Time + duration is a time; time - time is a duration.
- Callers handle unknown operands: no function here is called with None, except `plain` and `same`.
"""

import math
import operator
import re
import struct
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal
from functools import lru_cache, partial
from typing import Any
from uuid import UUID

from pairbus.amqp.types import (
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
    decode_decimal,
    encode_decimal,
)

MAX_TEXT_LENGTH = 32_767
"""The limit of one property. Without it an action that appends a property to itself could double it for ever."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_EARLIEST_MS = -62_135_596_800_000
_LATEST_MS = 253_402_300_799_999
_TICKS_AT_EPOCH = 621_355_968_000_000_000
_DECIMALS = Context(prec=34, Emin=-6143, Emax=6144, clamp=1, traps=[])
"""The range of a decimal128. A result outside it becomes an infinity or NaN and raises nothing."""


class EvaluationError(Exception):
    """A rule cannot be evaluated on a message. The subscription dead-letters the message or skips it."""


def _time_of(value: datetime) -> Timestamp:
    aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    return Timestamp((aware - _EPOCH) // _MILLISECOND)


def _described(value: Described) -> object:
    """Convert the described types of .NET clients. Their times and durations count ticks of 100 ns."""
    match value:
        case Described("com.microsoft:timespan", int(ticks)):
            return timedelta(microseconds=ticks // 10)
        case Described("com.microsoft:datetime-offset", int(ticks)):
            return Timestamp((ticks - _TICKS_AT_EPOCH) // 10_000)
        case Described("com.microsoft:uri", str(text)):
            return str(text)
    raise EvaluationError(f"A value described as {value.descriptor!r} cannot be used in an expression.")


_PLAIN: dict[type, Callable[[Any], object]] = {
    **dict.fromkeys(
        (type(None), bool, int, float, str, bytes, Decimal, UUID, Timestamp, timedelta), lambda value: value
    ),
    **dict.fromkeys((UByte, UShort, UInt, ULong, Byte, Short, Int, Long), int),
    **dict.fromkeys((Char, Symbol), str),
    **dict.fromkeys((Decimal32, Decimal64, Decimal128), decode_decimal),
    Float: float,
    datetime: _time_of,
    Described: _described,
}


def plain(value: object) -> Any:
    convert = _PLAIN.get(type(value))
    if convert is None:
        raise EvaluationError(f"A {type(value).__name__.lower()} cannot be used in an expression.")
    return convert(value)


_INTEGER_RANGES: dict[type, tuple[int, int]] = {
    UByte: (0, 2**8 - 1),
    UShort: (0, 2**16 - 1),
    UInt: (0, 2**32 - 1),
    ULong: (0, 2**64 - 1),
    Byte: (-(2**7), 2**7 - 1),
    Short: (-(2**15), 2**15 - 1),
    Int: (-(2**31), 2**31 - 1),
}


def stored(value: Any, existing: object) -> object:
    """The value as the message stores it: in the existing property's number type if it fits, or in its own."""
    match value:
        case timedelta():
            return Described(Symbol("com.microsoft:timespan"), value // timedelta(microseconds=1) * 10)
        case Decimal():
            return encode_decimal(value)
    if type(value) is int:
        return _stored_integer(value, type(existing))
    if type(value) is float and type(existing) is Float and _fits_single(value):
        return Float(value)
    return value


def _stored_integer(value: int, kind: type) -> object:
    lowest, highest = _INTEGER_RANGES.get(kind, (1, 0))
    if lowest <= value <= highest:
        return kind(value)
    if kind is float and int(float(value)) == value:
        return float(value)
    if kind is Float and _fits_single(float(value)) and int(float(value)) == value:
        return Float(value)
    return value if value < 2**63 else ULong(value)


def _fits_single(value: float) -> bool:
    try:
        return bool(struct.unpack(">f", struct.pack(">f", value))[0] == value)
    except OverflowError:
        return False


_TYPE_WORDS = {
    bool: "a boolean",
    int: "an integer",
    float: "a double",
    Decimal: "a decimal",
    str: "text",
    bytes: "bytes",
    UUID: "a UUID",
    Timestamp: "a point in time",
    timedelta: "a duration",
}
_NUMBERS = frozenset((int, float, Decimal))
_ORDERED = frozenset((int, float, Decimal, str, Timestamp, timedelta))


def undefined(symbol: str, left: object, right: object) -> EvaluationError:
    """The error for an operator that is not defined for the types of two plain values."""
    return EvaluationError(
        f"The operator {symbol} is not defined for {_TYPE_WORDS[type(left)]} and {_TYPE_WORDS[type(right)]}."
    )


def _aligned_numbers(left: Any, right: Any) -> tuple[Any, Any]:
    if type(left) is float or type(right) is float:
        return float(left), float(right)
    return left, right


def equal(left: Any, right: Any) -> bool:
    """Whether two plain values are equal."""
    kind, other = type(left), type(right)
    if kind is other:
        return bool(left == right)
    if kind in _NUMBERS and other in _NUMBERS:
        left, right = _aligned_numbers(left, right)
        return bool(left == right)
    raise undefined("=", left, right)


def same(left: object, right: object) -> bool:
    """Equality for correlation filters, which never raises: values of different types are different."""
    try:
        left, right = plain(left), plain(right)
        return left is not None and right is not None and equal(left, right)
    except EvaluationError:
        return False


_ORDERINGS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def ordering(symbol: str) -> Callable[[Any, Any], bool]:
    """The comparison of plain values with this operator."""
    compare = _ORDERINGS[symbol]

    def test(left: Any, right: Any) -> bool:
        kind, other = type(left), type(right)
        if kind is not other:
            if kind not in _NUMBERS or other not in _NUMBERS:
                raise undefined(symbol, left, right)
            left, right = _aligned_numbers(left, right)
        elif kind not in _ORDERED:
            raise undefined(symbol, left, right)
        return compare(left, right)

    return test


def add(left: Any, right: Any) -> Any:
    kind, other = type(left), type(right)
    if kind in _NUMBERS and other in _NUMBERS:
        return _compute("+", operator.add, left, right)
    if kind is str or other is str:
        return _joined(left, right)
    if (kind, other) == (Timestamp, timedelta):
        return _moved(left, right)
    if (kind, other) == (timedelta, Timestamp):
        return _moved(right, left)
    if (kind, other) == (timedelta, timedelta):
        return _span(left, right, 1)
    raise undefined("+", left, right)


def subtract(left: Any, right: Any) -> Any:
    kind, other = type(left), type(right)
    if kind in _NUMBERS and other in _NUMBERS:
        return _compute("-", operator.sub, left, right)
    if (kind, other) == (Timestamp, Timestamp):
        return _apart(left, right)
    if other is timedelta and kind in (Timestamp, timedelta):
        return add(left, negate(right))
    raise undefined("-", left, right)


def negate(value: Any) -> Any:
    if type(value) is timedelta:
        return _span(timedelta(), value, -1)
    _check_signable("-", value)
    if type(value) is Decimal:
        return value.copy_negate()
    return _within_64_bits(-value) if type(value) is int else -value


def affirm(value: Any) -> Any:
    if type(value) is not timedelta:
        _check_signable("+", value)
    return value


def _check_signable(symbol: str, value: Any) -> None:
    if type(value) not in _NUMBERS:
        raise EvaluationError(f"The sign {symbol} is not defined for {_TYPE_WORDS[type(value)]}.")


def _compute(symbol: str, compute: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    kind, other = type(left), type(right)
    if kind is int and other is int:
        return _within_64_bits(compute(left, right))
    if kind not in _NUMBERS or other not in _NUMBERS:
        raise undefined(symbol, left, right)
    if kind is float or other is float:
        return compute(float(left), float(right))
    return _decimal(symbol, Decimal(left), Decimal(right))


def _within_64_bits(value: int) -> int:
    """Check the range of signed and unsigned longs together: a property may be either."""
    if not -(2**63) <= value < 2**64:
        raise EvaluationError(f"The result {value} does not fit into 64 bits.")
    return value


def _quotient(left: Any, right: Any) -> Any:
    if type(left) is float:
        if right != 0.0:
            return left / right
        if left == 0.0 or math.isnan(left):
            return math.nan
        return math.copysign(math.inf, left) * math.copysign(1.0, right)
    quotient = abs(left) // _nonzero(abs(right))
    return quotient if (left < 0) == (right < 0) else -quotient


def _remainder(left: Any, right: Any) -> Any:
    if type(left) is float:
        return math.nan if right == 0.0 or math.isinf(left) else math.fmod(left, right)
    rest = abs(left) % _nonzero(abs(right))
    return -rest if left < 0 else rest


def _nonzero(divisor: int) -> int:
    if divisor == 0:
        raise EvaluationError("Cannot divide a number by the integer zero.")
    return divisor


def _decimal(symbol: str, left: Decimal, right: Decimal) -> Decimal:
    compute = {
        "+": _DECIMALS.add,
        "-": _DECIMALS.subtract,
        "*": _DECIMALS.multiply,
        "/": _DECIMALS.divide,
        "%": _DECIMALS.remainder,
    }[symbol]
    result = compute(left, right)
    if not result.is_finite():
        raise EvaluationError(f"The decimal operation {left} {symbol} {right} has no finite result.")
    return result


def _moved(time: Timestamp, by: timedelta) -> Timestamp:
    moved = int(time) + by // _MILLISECOND
    if not _EARLIEST_MS <= moved <= _LATEST_MS:
        raise EvaluationError("The resulting time is outside the years 1 to 9999.")
    return Timestamp(moved)


def _apart(left: Timestamp, right: Timestamp) -> timedelta:
    try:
        return (int(left) - int(right)) * _MILLISECOND
    except OverflowError:
        raise EvaluationError("The two times are too far apart for a duration.") from None


def _span(left: timedelta, right: timedelta, direction: int) -> timedelta:
    try:
        return left + right * direction
    except OverflowError:
        raise EvaluationError("The result is too long for a duration.") from None


def _joined(left: Any, right: Any) -> str:
    text = _printed(left, right, left) + _printed(left, right, right)
    if len(text) > MAX_TEXT_LENGTH:
        raise EvaluationError(f"The joined text has {len(text)} characters. At most {MAX_TEXT_LENGTH} are allowed.")
    return text


def _printed(left: Any, right: Any, value: Any) -> str:
    match value:
        case str():
            return value
        case bool() | UUID():
            return str(value)
        case float():
            return _printed_double(value)
        case Decimal():
            return format(value, "f")
        case int() if type(value) is int:
            return str(value)
        case _:
            raise undefined("+", left, right)


def _printed_double(value: float) -> str:
    """The shortest text that reads back as the same double, in the format of .NET."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    scale = len(digits) + int(exponent) - 1
    if value != 0 and (scale >= 15 or scale < -4):
        head, tail = str(digits[0]), "".join(map(str, digits[1:]))
        mantissa = f"{head}.{tail}" if tail else head
        return f"{'-' if sign else ''}{mantissa}E{scale:+03d}"
    return format(Decimal(repr(value)).normalize(), "f")


MAX_PATTERN_LENGTH = 1_024


ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "+": add,
    "-": subtract,
    "*": partial(_compute, "*", operator.mul),
    "/": partial(_compute, "/", _quotient),
    "%": partial(_compute, "%", _remainder),
}


# -- LIKE


class PatternError(ValueError):
    """A LIKE pattern is invalid; the text says why."""


@lru_cache(maxsize=256)
def compile_pattern(pattern: str, escape: str | None = None) -> Callable[[str], bool]:
    """A test for texts: `%` matches any characters, `_` exactly one, all others themselves, also after `escape`.

    The pattern is split at `%` into pieces of fixed length. The first and last piece must be at the ends of the text;
    the others are searched from left to right, each at its first position after the previous one. No later position
    could help, so the regular expression may not backtrack: each piece is an atomic group. Matching is linear in the
    text for every pattern.
    """
    if len(pattern) > MAX_PATTERN_LENGTH:
        raise PatternError(f"the pattern has {len(pattern)} characters, and at most {MAX_PATTERN_LENGTH} are allowed")
    if escape is not None and len(escape) != 1:
        raise PatternError(f"the escape must be one character, this one has {len(escape)}")
    first, *others = _cut(pattern, escape)
    expression = "".join(first)
    if others:
        *middle, last = others
        expression += "".join(f"(?>.*?{''.join(piece)})" for piece in middle if piece)
        expression += f"(?=.{{{len(last)}}})(?>.*)(?<={''.join(last)})"
    match = re.compile(expression, re.DOTALL).fullmatch
    return lambda text: match(text) is not None


def _cut(pattern: str, escape: str | None) -> list[list[str]]:
    """The pieces between `%`, each a list of regular expressions for one character."""
    pieces: list[list[str]] = [[]]
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            escaped = next(characters, None)
            if escaped is None:
                raise PatternError("the pattern ends with the escape character")
            pieces[-1].append(re.escape(escaped))
        elif character == "%":
            pieces.append([])
        else:
            pieces[-1].append("." if character == "_" else re.escape(character))
    return pieces
