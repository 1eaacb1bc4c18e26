"""Streaming: peek what a checkpoint can repeat, remove it once it is committed.

What Spark calls, batch by batch:

    latestOffset   look ahead, choose the messages of the next batch by number      (driver)
    commit         remove the messages of the batch before, which is now committed  (driver)
    partitions     one task for each part of the batch                              (driver)
    read           peek exactly these messages                                      (executors)

Rules:
- Scheduled and deferred messages are not part of a stream: a scheduled one gets a new number when it becomes active,
  a deferred one belongs to whoever deferred it.
- A task that does not find all of its messages fails the query, naming them (`failOnDataLoss=false`: warns): somebody
  else consumes from the entity, or the messages expired.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from pairbus.pipeline.servicebus.batch import next_number, peeked
from pairbus.pipeline.servicebus.columns import RowBuilder
from pairbus.pipeline.servicebus.entities import resolve
from pairbus.pipeline.servicebus.looking import Budget, look, low_numbers
from pairbus.pipeline.servicebus.messages import ACTIVE, read
from pairbus.pipeline.servicebus.offsets import Offset, Position
from pairbus.pipeline.servicebus.options import ReadOptions
from pairbus.pipeline.servicebus.ranges import Runs, first_and_last
from pairbus.pipeline.servicebus.removal import remove
from pairbus.pipeline.servicebus.wire import Wire, WireError, wire_for

log = logging.getLogger(__name__)

IDLE_SECONDS = 1.0
"""Spark asks an idle stream for news every few milliseconds; the namespace is asked this often."""
PATTERN_SECONDS = 5.0
"""How long the names that a pattern stands for are taken for known."""
LOCK_SECONDS = 75.0
"""How long a run that ends with what is there waits for messages that others hold: a lock's usual minute, and some."""
LOW_SECONDS = 30.0
"""How often an idle stream looks for messages below its position."""
PARTITIONED_FROM = 1 << 48
"""A partitioned entity writes the partition into the upper 16 bits of its sequence numbers."""


@dataclass
class StreamPart(InputPartition):
    """The messages that one task reads, by their numbers."""

    entity: str
    runs: Runs


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The driver's instance lives as long as the query; executors get copies for `read`."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._targets: dict[str, int] | None = None
        self._committed: dict[str, Any] | None = None
        self._left: dict[str, Runs] | None = None
        self._unreported: dict[str, int] = {}
        self._looked: dict[str, int] = {}
        self._names: tuple[str, ...] = ()
        self._names_until = 0.0
        self._idle_until = 0.0
        self._turn = 0
        self._warned: set[str] = set()
        self._low_checks: dict[str, float] = {}

    # --- the driver ---------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names
        return Offset().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._options.max_messages)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """What is there now is all there is, for this run."""
        wire = wire_for(self._options.access)
        self._targets = {}
        for entity in self._entities(wire):
            edges = wire.call(first_and_last(lambda number, entity=entity: next_number(wire, entity, number)))  # type: ignore[misc]
            self._targets[entity] = edges[1] if edges is not None else 0

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        if time.monotonic() < self._idle_until:
            return start
        wire = wire_for(self._options.access)
        before = Offset.from_json(start)
        self._adopt(before)
        found: dict[str, Position] = {}
        names = self._entities(wire)
        self._turn += 1
        order = [names[(i + self._turn) % len(names)] for i in range(len(names))]
        budget = self._budget(limit)
        for index, entity in enumerate(order):
            position = before.entities.get(entity, Position())
            if entity not in before.entities:
                self._looked.pop(entity, None)  # perhaps made anew: its numbers begin again
            try:
                found[entity] = self._advance(wire, entity, position, budget, len(order) - index)
            except WireError as error:
                if not error.is_missing or (self._options.fail_on_data_loss and self._options.entities.pattern is None):
                    raise
                self._warn_once(f"{entity!r} is not there any more and is left out")
        for entity in before.entities:
            if entity not in found:
                self._warn_once(f"{entity!r} is not there any more and is left out")
        if not any(position.parts for position in (*before.entities.values(), *found.values())):
            found = self._remove_the_rest(found)
        after = Offset(found).to_json()
        if after == start:
            self._idle_until = time.monotonic() + IDLE_SECONDS
        return after

    def _adopt(self, offset: Offset) -> None:
        """What the checkpoint knows to be left becomes ours to remove, once."""
        if self._left is None:
            self._left = {entity: one.left for entity, one in offset.entities.items() if one.left.pairs}

    def _remove_the_rest(self, found: dict[str, Position]) -> dict[str, Position]:
        """Nothing new: try again what others held. A run that ends with what is there waits for their locks to end."""
        deadline = time.monotonic() + (LOCK_SECONDS if self._targets is not None else 0.0)
        while self._left:
            self._remove(Offset({entity: replace(found[entity], parts=()) for entity in self._left if entity in found}))
            if time.monotonic() >= deadline or not any(entity in found for entity in self._left):
                break
            time.sleep(IDLE_SECONDS)
        left = self._left or {}
        return {entity: replace(one, left=left.get(entity, Runs())) for entity, one in found.items()}

    def _budget(self, limit: ReadLimit) -> Budget:
        if isinstance(limit, ReadAllAvailable):
            return Budget.unlimited()
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.max_messages
        return Budget(min(rows, self._options.max_messages), self._options.max_bytes)

    def _entities(self, wire: Wire) -> tuple[str, ...]:
        if self._targets:
            return tuple(self._targets)
        now = time.monotonic()
        if now >= self._names_until:
            self._names = wire.call(resolve(wire, self._options.entities))
            self._names_until = now + PATTERN_SECONDS
        return self._names

    def _advance(self, wire: Wire, entity: str, position: Position, budget: Budget, entities_left: int) -> Position:
        """The next batch's messages of one entity; a position without parts when there are none."""
        first = max(position.next, self._looked.get(entity, 0))
        last = self._targets.get(entity, 0) if self._targets is not None else None
        seen = wire.call(look(wire, entity, first, last, budget.share(entities_left)))
        budget.spend(len(seen.runs), seen.size)
        missing = position.missing + self._unreported.pop(entity, 0)
        left = (self._left or {}).get(entity, Runs())
        self._looked[entity] = seen.looked
        if not seen.runs.pairs:
            if not position.parts:
                self._check_low_numbers(wire, entity, position)
            return replace(position, parts=(), left=left, missing=missing)
        if seen.runs.last >= PARTITIONED_FROM:
            raise RuntimeError(
                f"{entity!r} is a partitioned entity (sequence number {seen.runs.last}): its numbers are not in order "
                "of arrival, so it cannot be streamed. Read it in batches, or forward it to one without partitions."
            )
        return Position(
            seen.runs.last + 1,
            max(seen.until_ms, position.until_ms),
            tuple(seen.runs.split(self._options.messages_per_partition)),
            left,
            missing,
        )

    def _check_low_numbers(self, wire: Wire, entity: str, position: Position) -> None:
        """Active messages below the position, asked for now and then while nothing new comes.

        Old ones were read: whoever was to remove them found them held, and died before a checkpoint said so. Younger
        ones were not there when their number was passed: nobody would ever read them.
        """
        now = time.monotonic()
        if not position.next or now < self._low_checks.get(entity, 0.0):
            return
        self._low_checks[entity] = now + LOW_SECONDS
        old, strange = wire.call(low_numbers(wire, entity, position.next, position.until_ms))
        if old.pairs:
            left = self._left if self._left is not None else {}
            left[entity] = left.get(entity, Runs()).union([old])
            self._left = left
        if not strange.pairs:
            return
        text = (
            f"{entity!r} holds active messages numbered {strange.short()}, below the stream's position "
            f"{position.next}: the entity was deleted and made anew. The stream will not read them; start it with a "
            "new checkpoint to do so."
        )
        if self._options.fail_on_data_loss:
            raise RuntimeError(f"{text} Set failOnDataLoss=false to go on without them.")
        self._warn_once(text)

    def commit(self, end: dict[str, Any]) -> None:
        offset = self._commit(end)
        self._remove(offset)

    def _commit(self, end: dict[str, Any]) -> Offset:
        self._committed = end
        offset = Offset.from_json(end)
        self._adopt(offset)
        return offset

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        if start != self._committed:
            # A restart: the batch before is committed, but whoever should have removed it may have died, or half-way.
            self._remove(self._commit(start), perhaps_again=True)
        return [
            StreamPart(entity, runs)
            for entity, position in Offset.from_json(end).entities.items()
            for runs in position.parts
        ]

    def _remove(self, offset: Offset, *, perhaps_again: bool = False) -> None:
        """Remove the batch, and what was left of others. What is gone is counted, unless we may have done it."""
        wire = wire_for(self._options.access)
        left = self._left if self._left is not None else {}
        for entity, position in offset.entities.items():
            runs = position.runs.union([left.pop(entity, Runs())])
            if not runs.pairs:
                continue
            try:
                removed = wire.call(remove(wire, entity, runs, position.until_ms))
            except WireError as error:
                if not error.is_missing:
                    raise
                log.warning("%r is gone, and with it %s messages that were read", entity, len(runs))
                continue
            if removed.held.pairs:
                left[entity] = removed.held
                self._warn_once(f"{entity!r}: messages that were read are held by another receiver and stay for now")
            if removed.gone.pairs and not perhaps_again:
                self._unreported[entity] = self._unreported.get(entity, 0) + len(removed.gone)
                self._idle_until = 0.0
                log.warning(
                    "%r: %s messages that were read had gone before they were removed: somebody else consumes from "
                    "it, or they expired (numbers %s)",
                    entity,
                    len(removed.gone),
                    removed.gone.short(),
                )

    def stop(self) -> None:
        return None

    def _warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            log.warning(text)

    # --- executors ----------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, StreamPart)
        wire, runs = wire_for(self._options.access), partition.runs
        rows = RowBuilder(self._schema, partition.entity, wire.host)
        seen: set[int] = set()
        try:
            for raws in peeked(wire, partition.entity, runs.first, runs.last):
                messages = [one for one in map(read, raws) if one.state == ACTIVE and one.sequence_number in runs]
                seen.update(one.sequence_number for one in messages)
                if messages:
                    yield rows.build(messages)
        except WireError as error:
            if not error.is_missing:
                raise
        if len(seen) < len(runs):
            self._lost(partition, wire, runs.without(seen))

    def _lost(self, partition: StreamPart, wire: Wire, lost: Runs) -> None:
        text = (
            f"{len(lost)} of {len(partition.runs)} messages of {partition.entity!r} in {wire.host} are not there any "
            f"more (numbers {lost.short()}): somebody else consumes from it, or they expired."
        )
        if self._options.fail_on_data_loss:
            raise RuntimeError(
                f"{text} Let this stream be its only consumer, or set failOnDataLoss=false to go on without them."
            )
        log.warning(text)
