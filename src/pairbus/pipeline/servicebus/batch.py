"""Batch reading: a look at what is there. Nothing is consumed, locked, or counted as delivered.

The driver finds each entity's first and last sequence number and cuts the numbers between them into slices; each task
peeks its slice. What arrives after planning is not part of the result; what leaves meanwhile is not either.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from pairbus.amqp.message import read_stamps
from pairbus.pipeline.servicebus.columns import RowBuilder
from pairbus.pipeline.servicebus.entities import resolve
from pairbus.pipeline.servicebus.filters import Wanted, take_over
from pairbus.pipeline.servicebus.messages import read
from pairbus.pipeline.servicebus.options import ReadOptions
from pairbus.pipeline.servicebus.ranges import first_and_last, slices
from pairbus.pipeline.servicebus.wire import PEEK_AT_MOST, Wire, wire_for

MOST_PARTITIONS_OF_AN_ENTITY = 1_000


@dataclass
class Slice(InputPartition):
    """The messages of an entity from one sequence number to another, both included."""

    entity: str
    first: int
    last: int


class BatchReader(DataSourceReader):
    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._wanted = Wanted()

    def partitions(self) -> list[InputPartition]:
        wire = wire_for(self._options.access)
        found: list[InputPartition] = []
        low, high = self._wanted.bounds()
        for entity in wire.call(resolve(wire, self._options.entities)):
            if not self._wanted.entity(entity):
                continue
            edges = wire.call(first_and_last(lambda number, entity=entity: next_number(wire, entity, number)))  # type: ignore[misc]
            if edges is None:
                continue
            first, last = max(edges[0], low), min(edges[1], high)
            if first <= last:
                size = self._options.messages_per_partition
                found += [Slice(entity, *each) for each in slices(first, last, size, MOST_PARTITIONS_OF_AN_ENTITY)]
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Slice):  # what Spark makes of no partitions at all
            return
        wire = wire_for(self._options.access)
        rows = RowBuilder(self._schema, partition.entity, wire.host)
        wanted = self._wanted
        for raws in peeked(wire, partition.entity, partition.first, partition.last):
            messages = [read(raw) for raw in raws if not wanted.tests or wanted.message(read_stamps(raw))]
            if messages:
                yield rows.build(messages)


class FilteringBatchReader(BatchReader):
    """For Spark sessions in which filters of Python data sources are pushed down."""

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802 - Spark's name
        self._wanted, rest = take_over(filters)
        yield from rest


async def next_number(wire: Wire, entity: str, number: int) -> int | None:
    found = await wire.peek(entity, number, 1)
    return read_stamps(found[0]).sequence_number if found else None


def peeked(wire: Wire, entity: str, first: int, last: int) -> Iterator[list[bytes]]:
    """The messages of a range in their order, some at a time; the next ones are under way while these are used."""
    coming = wire.begin(wire.peek(entity, first, min(PEEK_AT_MOST, last - first + 1)))
    while True:
        raws = coming.result()
        if not raws:
            return
        number = read_stamps(raws[-1]).sequence_number
        if number >= last:
            yield [raw for raw in raws if read_stamps(raw).sequence_number <= last]
            return
        coming = wire.begin(wire.peek(entity, number + 1, min(PEEK_AT_MOST, last - number)))
        yield raws
