"""Values in expressions: what kinds there are, how they compare and what arithmetic makes of them.

- A value is None (unknown), a boolean, a number (integer, double, decimal), text, bytes, a UUID, a point in time or a
  duration. `plain` brings every AMQP type to one of these; maps, lists and unknown described types are no values.
- Kinds do not mix: text is never equal or unequal to a number, asking is a `EvaluationError`. Within numbers the
  wider kind wins, as in C#: with a double on one side both are doubles.
- Numbers, text, times and durations have an order; text is ordered by code points and case counts.
- Integers have 64 bits, divide towards zero and never wrap: what does not fit is an error. Doubles follow IEEE 754.
- Text + anything printable is text. A time and a duration make a time, two times differ by a duration.
- Unknown operands are the callers' business: nothing here is called with None.

LIKE: `%` stands for any run of characters, `_` for exactly one, all else for itself (case counts).

A pattern is cut at its `%` into pieces of fixed length. The first and the last piece sit at the ends of the text, the
others are looked for from left to right, each at its first place after the previous one: no later place could help, so
nothing is ever tried twice. A piece without `_` is found by `str.find`; one with `_` by a bit mask per character
(bit i: the piece takes this character at i), one step per character of the text. There is no pattern that makes
matching more than linear in the text.
"""

import math
import operator
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal
from functools import lru_cache
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
)

LONGEST_TEXT = 32_767
"""What one property may hold: without a bound, actions that append a property to itself would double it."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_EARLIEST_MS = -62_135_596_800_000
_LATEST_MS = 253_402_300_799_999
_TICKS_AT_EPOCH = 621_355_968_000_000_000
_DECIMALS = Context(prec=34, Emin=-6143, Emax=6144, clamp=1, traps=[])
"""Exactly what a decimal128 can hold; what has no such result becomes an infinity or no number, never a trap."""


class EvaluationError(Exception):
    """A rule met a message it cannot be evaluated on. The subscription decides: dead-letter or leave out."""


def _time_of(value: datetime) -> Timestamp:
    aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    return Timestamp((aware - _EPOCH) // _MILLISECOND)


def _described(value: Described) -> object:
    """The described types .NET clients use for what AMQP has no type for; times count 100 ns ticks."""
    match value:
        case Described("com.microsoft:timespan", int(ticks)):
            return timedelta(microseconds=ticks // 10)
        case Described("com.microsoft:datetime-offset", int(ticks)):
            return Timestamp((ticks - _TICKS_AT_EPOCH) // 10_000)
        case Described("com.microsoft:uri", str(text)):
            return str(text)
    raise EvaluationError(f"A value described as {value.descriptor!r} has no place in an expression.")


def _itself(value: Any) -> object:
    return value


_PLAIN: dict[type, Callable[[Any], object]] = {
    **dict.fromkeys((type(None), bool, int, float, str, bytes, Decimal, UUID, Timestamp, timedelta), _itself),
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
        raise EvaluationError(f"A {type(value).__name__.lower()} has no place in an expression.")
    return convert(value)


_KIND_WORDS = {
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
    """The error for an operator between two plain values whose kinds it does not join."""
    return EvaluationError(
        f"The operator {symbol} is not defined for {_KIND_WORDS[type(left)]} and {_KIND_WORDS[type(right)]}."
    )


def _aligned_numbers(left: Any, right: Any) -> tuple[Any, Any]:
    if type(left) is float or type(right) is float:
        return float(left), float(right)
    return left, right


def equal(left: Any, right: Any) -> bool:
    """Whether two plain values are the same."""
    kind, other = type(left), type(right)
    if kind is other:
        return bool(left == right)
    if kind in _NUMBERS and other in _NUMBERS:
        left, right = _aligned_numbers(left, right)
        return bool(left == right)
    raise undefined("=", left, right)


def same(left: object, right: object) -> bool:
    """Equality that never fails, for correlation filters: values of different kinds are different, and a value
    that no expression could hold equals nothing.
    """
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
    """The comparison of plain values that `symbol` stands for."""
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
    if other is timedelta and kind in (Timestamp, timedelta):
        return _moved(left, right) if kind is Timestamp else _span(left, right, 1)
    if kind is timedelta and other is Timestamp:
        return _moved(right, left)
    raise undefined("+", left, right)


def subtract(left: Any, right: Any) -> Any:
    kind, other = type(left), type(right)
    if kind in _NUMBERS and other in _NUMBERS:
        return _compute("-", operator.sub, left, right)
    if kind is Timestamp and other is Timestamp:
        return _apart(left, right)
    if kind is Timestamp and other is timedelta:
        return _moved(left, _span(timedelta(), right, -1))
    if kind is timedelta and other is timedelta:
        return _span(left, right, -1)
    raise undefined("-", left, right)


def multiply(left: Any, right: Any) -> Any:
    return _compute("*", operator.mul, left, right)


def divide(left: Any, right: Any) -> Any:
    return _compute("/", _quotient, left, right)


def remainder(left: Any, right: Any) -> Any:
    return _compute("%", _remainder, left, right)


ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "+": add,
    "-": subtract,
    "*": multiply,
    "/": divide,
    "%": remainder,
}


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
        raise EvaluationError(f"The sign {symbol} is not defined for {_KIND_WORDS[type(value)]}.")


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
    """Signed or unsigned: a property may be an unsigned long."""
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
        raise EvaluationError("A number cannot be divided by the integer zero.")
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
        raise EvaluationError(f"The decimal {left} {symbol} {right} has no finite result.")
    return result


def _moved(time: Timestamp, by: timedelta) -> Timestamp:
    moved = int(time) + by // _MILLISECOND
    if not _EARLIEST_MS <= moved <= _LATEST_MS:
        raise EvaluationError("The result is a time outside of the years 1 to 9999.")
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
    if len(text) > LONGEST_TEXT:
        raise EvaluationError(f"The joined text has {len(text)} characters: at most {LONGEST_TEXT} fit.")
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
    """The shortest text that reads back as the same double, as .NET prints it."""
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


LONGEST_PATTERN = 1_024


class PatternError(ValueError):
    """The pattern means nothing; the text says why."""


class _Piece:
    """A run of characters, some of them `_` (None here)."""

    __slots__ = ("_any", "_masks", "_text", "length")

    def __init__(self, characters: list[str | None]) -> None:
        self.length = len(characters)
        self._text: str | None = None
        self._masks: dict[str, int] = {}
        self._any = 0
        literal = [character for character in characters if character is not None]
        if len(literal) == self.length:
            self._text = "".join(literal)
            return
        for index, character in enumerate(characters):
            if character is None:
                self._any |= 1 << index
        for character in set(literal):
            own = sum(1 << index for index, held in enumerate(characters) if held == character)
            self._masks[character] = own | self._any

    def is_at(self, text: str, start: int) -> bool:
        if self._text is not None:
            return text.startswith(self._text, start)
        return start + self.length <= len(text) and self.find(text, start, start + self.length) == start

    def find(self, text: str, start: int, end: int) -> int:
        """The first place of the piece in text[start:end], or -1."""
        if self._text is not None:
            return text.find(self._text, start, end)
        reached, last = 0, 1 << (self.length - 1)
        masks, wild = self._masks, self._any
        for index in range(start, end):
            reached = ((reached << 1) | 1) & masks.get(text[index], wild)
            if reached & last:
                return index - self.length + 1
        return -1


@lru_cache(maxsize=256)
def compile_pattern(pattern: str, escape: str | None = None) -> Callable[[str], bool]:
    """A test for texts. `escape` before any character makes it stand for itself."""
    if len(pattern) > LONGEST_PATTERN:
        raise PatternError(f"a pattern may have {LONGEST_PATTERN} characters, this one has {len(pattern)}")
    if escape is not None and len(escape) != 1:
        raise PatternError(f"the escape must be one character, this one has {len(escape)}")
    pieces = [_Piece(characters) for characters in _cut(pattern, escape)]
    if len(pieces) == 1:
        only = pieces[0]
        return lambda text: len(text) == only.length and only.is_at(text, 0)
    first, *middle, last = pieces
    fixed = first.length + last.length
    middle = [piece for piece in middle if piece.length]

    def test(text: str) -> bool:
        end = len(text) - last.length
        if len(text) < fixed or not first.is_at(text, 0) or not last.is_at(text, end):
            return False
        start = first.length
        for piece in middle:
            found = piece.find(text, start, end)
            if found < 0:
                return False
            start = found + piece.length
        return True

    return test


def _cut(pattern: str, escape: str | None) -> list[list[str | None]]:
    pieces: list[list[str | None]] = [[]]
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            escaped = next(characters, None)
            if escaped is None:
                raise PatternError("the pattern ends with the escape character and nothing after it")
            pieces[-1].append(escaped)
        elif character == "%":
            pieces.append([])
        elif character == "_":
            pieces[-1].append(None)
        else:
            pieces[-1].append(character)
    return pieces
