"""Batch reading: a snapshot that consumes, locks and counts nothing.

The driver finds each entity's first and last sequence number and cuts the range into slices; each task peeks its slice.
Messages that arrive after planning, or leave before they are peeked, are not part of the result.

Some of a query's filters are applied here, and Spark applies the rest. A comparison of `sequence_number` narrows the
range, `entity` skips entities, and `enqueued_time` and `state` are tested before a row is built.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)
from pyspark.sql.types import StructType

from pairbus.amqp.message import Stamps, read_stamps
from pairbus.pipeline.servicebus.messages import read
from pairbus.pipeline.servicebus.options import ReadOptions
from pairbus.pipeline.servicebus.rows import RowBuilder
from pairbus.pipeline.servicebus.wire import MAX_PEEK, Wire, wire_for

MAX_PARTITIONS_PER_ENTITY = 1_000
_MAX_NUMBER = (1 << 63) - 1
_NEVER_NULL = ("sequence_number", "enqueued_time", "state", "entity")
_COMPARISONS: dict[type[Filter], Callable[[Any, Any], bool]] = {
    EqualTo: lambda value, operand: value == operand,
    EqualNullSafe: lambda value, operand: value == operand,
    GreaterThan: lambda value, operand: value > operand,
    GreaterThanOrEqual: lambda value, operand: value >= operand,
    LessThan: lambda value, operand: value < operand,
    LessThanOrEqual: lambda value, operand: value <= operand,
    In: lambda value, operand: value in operand,
}


@dataclass
class Slice(InputPartition):
    """The messages of an entity in a range of sequence numbers, both ends included."""

    entity: str
    first: int
    last: int


class BatchReader(DataSourceReader):
    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._filter = MessageFilter()

    def partitions(self) -> list[InputPartition]:
        wire = wire_for(self._options.access)
        partitions: list[InputPartition] = []
        low, high = self._filter.bounds()
        for entity in wire.call(wire.resolve(self._options.entities)):
            if not self._filter.accepts_entity(entity):
                continue
            ends = find_ends(wire, entity)
            if ends is None:
                continue
            first, last = max(ends[0], low), min(ends[1], high)
            if first <= last:
                size = self._options.messages_per_partition
                ranges = slices(first, last, size, MAX_PARTITIONS_PER_ENTITY)
                partitions += [Slice(entity, *each) for each in ranges]
        return partitions

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Slice):  # Spark's placeholder when there are no partitions
            return
        wire = wire_for(self._options.access)
        rows = RowBuilder(self._schema, partition.entity, wire.host)
        for raws in peek_range(wire, partition.entity, partition.first, partition.last):
            messages = [read(raw) for raw in raws if not self._filter.tests or self._filter.accepts(read_stamps(raw))]
            if messages:
                yield rows.build(messages)


class FilteringBatchReader(BatchReader):
    """For Spark sessions that push filters down to Python data sources."""

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802 - Spark's name
        self._filter, rest = split_filters(filters)
        yield from rest


# --- ranges of sequence numbers -------------------------------------------------------------------------------


def find_ends(wire: Wire, entity: str) -> tuple[int, int] | None:
    """Return an entity's smallest and largest sequence number, or None if it is empty."""

    async def next_number(number: int) -> int | None:
        raws = await wire.peek(entity, number, 1)
        return read_stamps(raws[0]).sequence_number if raws else None

    return wire.call(first_and_last(next_number))


async def first_and_last(next_number: Callable[[int], Awaitable[int | None]]) -> tuple[int, int] | None:
    """Return the smallest and the largest number of an entity, or None if it is empty.

    `next_number` finds the smallest number at or above its argument. It is called about 2·log2(largest - smallest)
    times: with steps that double until nothing is left, then by bisection.
    """
    first = await next_number(0)
    if first is None:
        return None
    last, step = first, 1
    above = _MAX_NUMBER + 1
    while last + step < above:
        number = await next_number(last + step)
        if number is None:
            above = last + step
        else:
            last, step = number, step * 2
    while above - last > 1:
        middle = last + (above - last) // 2
        number = await next_number(middle)
        if number is None:
            above = middle
        else:
            last = number
    return first, last


def slices(first: int, last: int, size: int, most: int) -> list[tuple[int, int]]:
    """Cut a range into equal slices of about `size` numbers, at most `most` of them."""
    span = last - first + 1
    count = min(most, -(-span // size))
    edges = [first + span * i // count for i in range(count + 1)]
    return [(edges[i], edges[i + 1] - 1) for i in range(count)]


def peek_range(wire: Wire, entity: str, first: int, last: int) -> Iterator[list[bytes]]:
    """Peek a range in order and in chunks. The next chunk is requested while the caller uses the current one."""
    request = wire.start(wire.peek(entity, first, min(MAX_PEEK, last - first + 1)))
    while True:
        raws = request.result()
        if not raws:
            return
        number = read_stamps(raws[-1]).sequence_number
        if number >= last:
            yield [raw for raw in raws if read_stamps(raw).sequence_number <= last]
            return
        request = wire.start(wire.peek(entity, number + 1, min(MAX_PEEK, last - number)))
        yield raws


# --- filters --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ColumnTest:
    """`column operator operand`, or its negation. Times are microseconds since the epoch."""

    column: str
    operator: type[Filter]
    operand: Any
    negated: bool = False

    def __call__(self, value: Any) -> bool:
        return _COMPARISONS[self.operator](value, self.operand) is not self.negated


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """Tests that a message must pass. Without tests, all messages do."""

    tests: tuple[ColumnTest, ...] = ()

    def accepts_entity(self, path: str) -> bool:
        return all(test(path) for test in self.tests if test.column == "entity")

    def accepts(self, message: Stamps) -> bool:
        values = {
            "sequence_number": message.sequence_number,
            "enqueued_time": message.enqueued_ms * 1000,
            "state": message.state,
        }
        return all(test(values[test.column]) for test in self.tests if test.column in values)

    def bounds(self) -> tuple[int, int]:
        """Return the smallest and the largest sequence number that can pass."""
        low, high = 0, _MAX_NUMBER
        for test in self.tests:
            if test.column != "sequence_number" or test.negated:
                continue
            operand = test.operand
            if test.operator in (EqualTo, EqualNullSafe):
                low, high = max(low, operand), min(high, operand)
            elif test.operator is In:
                low, high = max(low, min(operand)), min(high, max(operand))
            elif test.operator in (GreaterThan, GreaterThanOrEqual):
                low = max(low, operand + (test.operator is GreaterThan))
            else:
                high = min(high, operand - (test.operator is LessThan))
        return low, high


def split_filters(filters: Sequence[Filter]) -> tuple[MessageFilter, Iterable[Filter]]:
    """Return the tests that are applied here, and the filters left to Spark."""
    tests: list[ColumnTest] = []
    rest: list[Filter] = []
    for each in filters:
        if isinstance(each, IsNotNull) and each.attribute[0] in _NEVER_NULL and len(each.attribute) == 1:
            continue
        test = _column_test(each)
        if test is None:
            rest.append(each)
        else:
            tests.append(test)
    return MessageFilter(tuple(tests)), rest


def _column_test(condition: Filter) -> ColumnTest | None:
    negated = isinstance(condition, Not)
    inner = condition.child if isinstance(condition, Not) else condition
    if type(inner) not in _COMPARISONS:
        return None
    attribute: tuple[str, ...] = inner.attribute  # type: ignore[attr-defined]
    value: Any = inner.value  # type: ignore[attr-defined]
    if len(attribute) != 1 or attribute[0] not in _NEVER_NULL:
        return None
    operands = [_operand(attribute[0], each) for each in (value if isinstance(inner, In) else [value])]
    if not operands or any(operand is None for operand in operands):
        return None
    return ColumnTest(attribute[0], type(inner), tuple(operands) if isinstance(inner, In) else operands[0], negated)


def _operand(column: str, value: Any) -> Any:
    """Convert a filter's value for comparison. None means that Spark has to apply the filter."""
    if column == "sequence_number":
        return value if isinstance(value, int) and not isinstance(value, bool) else None
    if column == "enqueued_time":
        if not isinstance(value, datetime):
            return None
        aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        since = aware - datetime(1970, 1, 1, tzinfo=UTC)
        return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    return value if isinstance(value, str) else None
