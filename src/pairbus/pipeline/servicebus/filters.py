"""Filters that are worth knowing before a message is fetched or taken apart.

Of a query's conditions these are taken over: comparisons of `sequence_number` (they narrow the range that is peeked),
of `enqueued_time` and `state` (tested on the annotations, before a row is built), and of `entity` (others are not
asked). Spark tests all others itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from pairbus.amqp.message import Stamps

_NEVER_NULL = ("sequence_number", "enqueued_time", "state", "entity")
_HIGHEST = (1 << 63) - 1
_COMPARISONS: dict[type[Filter], Callable[[Any, Any], bool]] = {
    EqualTo: lambda have, want: have == want,
    EqualNullSafe: lambda have, want: have == want,
    GreaterThan: lambda have, want: have > want,
    GreaterThanOrEqual: lambda have, want: have >= want,
    LessThan: lambda have, want: have < want,
    LessThanOrEqual: lambda have, want: have <= want,
    In: lambda have, want: have in want,
}


@dataclass(frozen=True, slots=True)
class Test:
    """`column operator value`, or its negation. Times are microseconds since the epoch."""

    column: str
    operator: type[Filter]
    value: Any
    negated: bool = False

    def __call__(self, have: Any) -> bool:
        return _COMPARISONS[self.operator](have, self.value) is not self.negated


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a query wants to see of the messages; all of it when nothing was said."""

    tests: tuple[Test, ...] = ()

    def entity(self, path: str) -> bool:
        return all(test(path) for test in self.tests if test.column == "entity")

    def message(self, seen: Stamps) -> bool:
        for test in self.tests:
            if test.column == "sequence_number":
                have: Any = seen.sequence_number
            elif test.column == "enqueued_time":
                have = seen.enqueued_ms * 1000
            elif test.column == "state":
                have = seen.state
            else:
                continue
            if not test(have):
                return False
        return True

    def bounds(self) -> tuple[int, int]:
        """The smallest and the largest sequence number that could be wanted."""
        low, high = 0, _HIGHEST
        for test in self.tests:
            if test.column != "sequence_number" or test.negated:
                continue
            value = test.value
            if test.operator in (EqualTo, EqualNullSafe):
                low, high = max(low, value), min(high, value)
            elif test.operator is In:
                low, high = max(low, min(value)), min(high, max(value))
            elif test.operator in (GreaterThan, GreaterThanOrEqual):
                low = max(low, value + (test.operator is GreaterThan))
            else:
                high = min(high, value - (test.operator is LessThan))
        return low, high


def take_over(filters: Sequence[Filter]) -> tuple[Wanted, Iterable[Filter]]:
    """What is tested here, and what is left for Spark."""
    tests: list[Test] = []
    rest: list[Filter] = []
    for one in filters:
        if isinstance(one, IsNotNull) and one.attribute[0] in _NEVER_NULL and len(one.attribute) == 1:
            continue
        test = _test(one)
        if test is None:
            rest.append(one)
        else:
            tests.append(test)
    return Wanted(tuple(tests)), rest


def _test(one: Filter) -> Test | None:
    negated = isinstance(one, Not)
    inner = one.child if isinstance(one, Not) else one
    if type(inner) not in _COMPARISONS:
        return None
    attribute: tuple[str, ...] = inner.attribute  # type: ignore[attr-defined]
    value: Any = inner.value  # type: ignore[attr-defined]
    if len(attribute) != 1 or attribute[0] not in _NEVER_NULL:
        return None
    values = list(value) if isinstance(inner, In) else [value]
    converted = [_value(attribute[0], each) for each in values]
    if not converted or any(each is None for each in converted):
        return None
    return Test(attribute[0], type(inner), tuple(converted) if isinstance(inner, In) else converted[0], negated)


def _value(column: str, value: Any) -> Any:
    """The value to compare with; None when it is of no use here."""
    if column == "sequence_number":
        return value if isinstance(value, int) and not isinstance(value, bool) else None
    if column == "enqueued_time":
        if not isinstance(value, datetime):
            return None
        aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        since = aware - datetime(1970, 1, 1, tzinfo=UTC)
        return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    return value if isinstance(value, str) else None
