"""Actions: `SET` and `REMOVE` statements, executed in order on one copy of a message.

- A statement sees the changes of the statements before it. If one fails, the copy is discarded.
- `SET` keeps the type of an existing property if the new value fits it (an int stays an int).
- An unknown value sets null. A system property accepts only its own type, and text up to the service's length.
"""

import struct
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from pairbus.amqp.types import (
    Byte,
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
    encode_decimal,
)
from pairbus.embedded.entities.filters.compiling import Assignment
from pairbus.embedded.entities.filters.values import MAX_TEXT_LENGTH, EvaluationError, plain
from pairbus.embedded.entities.filters.views import MessageProperties, PropertyKind, SystemProperty

Act = Callable[[MessageProperties], None]

_INTEGER_RANGES: dict[type, tuple[int, int]] = {
    UByte: (0, 2**8 - 1),
    UShort: (0, 2**16 - 1),
    UInt: (0, 2**32 - 1),
    ULong: (0, 2**64 - 1),
    Byte: (-(2**7), 2**7 - 1),
    Short: (-(2**15), 2**15 - 1),
    Int: (-(2**31), 2**31 - 1),
}


def compile_assignment(assignment: Assignment) -> Act:
    target, name, folded = assignment.target, assignment.target.name, assignment.target.name.lower()
    system = target.system
    if assignment.expression is None:
        if system is None:
            return lambda view: view.remove_application_property(name)
        return lambda view: view.set_system_property(name, None)
    evaluate = assignment.expression.evaluate
    if system is None:
        return lambda view: view.set_application_property(
            name, stored(evaluate(view), view.application_property(folded))
        )

    def set_system(view: MessageProperties) -> None:
        value = plain(evaluate(view))
        view.set_system_property(name, None if value is None else _checked(system, value))

    return set_system


def _checked(system: SystemProperty, value: object) -> object:
    match system.kind, value:
        case PropertyKind.TEXT, str(text):
            return _checked_text(system, text)
        case PropertyKind.TEXT, UUID():
            return str(value)
        case PropertyKind.BOOLEAN, bool():
            return value
        case PropertyKind.TIME, Timestamp():
            return value
        case PropertyKind.DURATION, timedelta() as duration if duration >= timedelta():
            return duration
    raise EvaluationError(f"sys.{system.name} can only be set to {system.kind.value}.")


def _checked_text(system: SystemProperty, text: str) -> str:
    max_length = system.max_length or MAX_TEXT_LENGTH
    if len(text) > max_length:
        raise EvaluationError(f"sys.{system.name} would have {len(text)} characters. At most {max_length} are allowed.")
    return text


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
