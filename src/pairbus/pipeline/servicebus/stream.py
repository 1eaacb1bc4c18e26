"""Streaming: peek messages that a checkpoint can repeat, and remove them once they are committed.

Spark calls these methods, batch by batch:

    latestOffset   look ahead and choose the messages of the next batch by number   (driver)
    commit         remove the messages of the previous batch, now committed         (driver)
    partitions     one task for each part of the batch                              (driver)
    read           peek exactly these messages                                      (executors)

Rules:
- Looking ahead notes only numbers and sizes. The limits of a batch are exact, except that a batch always takes one
  message: a message larger than the limit would stop the stream forever.
- Scheduled and deferred messages are not part of a stream: a scheduled message gets a new number when it becomes
  active, and a deferred one belongs to the receiver that deferred it.
- A task that does not find all of its messages fails the query and names them: another consumer took them, or they
  expired. With `failOnDataLoss=false` it logs a warning.
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

from pairbus.amqp.message import read_stamps
from pairbus.pipeline.servicebus.batch import find_ends, peek_range
from pairbus.pipeline.servicebus.messages import ACTIVE, read
from pairbus.pipeline.servicebus.offsets import Offset, Position, Runs
from pairbus.pipeline.servicebus.options import ReadOptions
from pairbus.pipeline.servicebus.removal import remove
from pairbus.pipeline.servicebus.rows import RowBuilder
from pairbus.pipeline.servicebus.wire import MAX_PEEK, Wire, WireError, wire_for

log = logging.getLogger(__name__)

IDLE_SECONDS = 1.0
"""Spark polls an idle stream every few milliseconds; the namespace is asked this often."""
PATTERN_SECONDS = 5.0
"""How often a pattern of queue names is resolved again."""
LOCK_SECONDS = 75.0
"""How long an availableNow run waits for messages that others hold: a lock's usual minute, and a margin."""
LOW_SECONDS = 30.0
"""How often an idle stream looks for messages below its position."""
PARTITIONED_FROM = 1 << 48
"""A partitioned entity has the partition in the upper 16 bits of its sequence numbers."""
MAX_RUNS = 2_000
"""A batch has at most this many runs of numbers, so its text in the checkpoint stays small in spite of gaps."""
_UNLIMITED = 1 << 62


@dataclass
class StreamPart(InputPartition):
    """The messages that one task reads, by number."""

    entity: str
    runs: Runs


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The driver's instance lives as long as the query. Executors get copies for `read`."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._targets: dict[str, int] | None = None
        self._committed: dict[str, Any] | None = None
        self._left: dict[str, Runs] = {}
        self._has_adopted = False
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
        """Limit this run to the messages that exist now."""
        wire = wire_for(self._options.access)
        self._targets = {}
        for entity in self._entities(wire):
            ends = find_ends(wire, entity)
            self._targets[entity] = ends[1] if ends is not None else 0

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        if time.monotonic() < self._idle_until:
            return start
        wire = wire_for(self._options.access)
        before = Offset.from_json(start)
        self._adopt(before)
        positions: dict[str, Position] = {}
        names = self._entities(wire)
        self._turn += 1
        order = [names[(i + self._turn) % len(names)] for i in range(len(names))]
        budget = self._budget(limit)
        for index, entity in enumerate(order):
            position = before.entities.get(entity, Position())
            if entity not in before.entities:
                self._looked.pop(entity, None)  # a recreated entity numbers its messages from the start
            try:
                positions[entity] = self._advance(wire, entity, position, budget, len(order) - index)
            except WireError as error:
                if not error.is_missing or (self._options.fail_on_data_loss and self._options.entities.pattern is None):
                    raise
                self._warn_once(f"{entity!r} no longer exists and is skipped")
        for entity in before.entities.keys() - positions.keys():
            self._warn_once(f"{entity!r} no longer exists and is skipped")
        if not any(position.parts for position in (*before.entities.values(), *positions.values())):
            positions = self._remove_left_over(positions)
        after = Offset(positions).to_json()
        if after == start:
            self._idle_until = time.monotonic() + IDLE_SECONDS
        return after

    def _adopt(self, offset: Offset) -> None:
        """Take over, once, the messages that the checkpoint still has to remove."""
        if not self._has_adopted:
            self._has_adopted = True
            self._left = {entity: position.left for entity, position in offset.entities.items() if position.left.pairs}

    def _remove_left_over(self, positions: dict[str, Position]) -> dict[str, Position]:
        """Without new messages, retry the removal of held ones. An availableNow run waits for their locks to expire."""
        deadline = time.monotonic() + (LOCK_SECONDS if self._targets is not None else 0.0)
        while self._left:
            held = [entity for entity in self._left if entity in positions]
            self._remove(Offset({entity: replace(positions[entity], parts=()) for entity in held}))
            if time.monotonic() >= deadline or not any(entity in positions for entity in self._left):
                break
            time.sleep(IDLE_SECONDS)
        return {
            entity: replace(position, left=self._left.get(entity, Runs())) for entity, position in positions.items()
        }

    def _budget(self, limit: ReadLimit) -> Budget:
        if isinstance(limit, ReadAllAvailable):
            return Budget(_UNLIMITED, _UNLIMITED)
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.max_messages
        return Budget(min(rows, self._options.max_messages), self._options.max_bytes)

    def _entities(self, wire: Wire) -> tuple[str, ...]:
        if self._targets:
            return tuple(self._targets)
        now = time.monotonic()
        if now >= self._names_until:
            self._names = wire.call(wire.resolve(self._options.entities))
            self._names_until = now + PATTERN_SECONDS
        return self._names

    def _advance(self, wire: Wire, entity: str, position: Position, budget: Budget, entities_left: int) -> Position:
        """Choose one entity's messages for the next batch. Without any, the position has no parts."""
        first = max(position.next, self._looked.get(entity, 0))
        last = self._targets.get(entity, 0) if self._targets is not None else None
        ahead = wire.call(look_ahead(wire, entity, first, last, budget.share(entities_left)))
        budget.spend(len(ahead.runs), ahead.size_bytes)
        missing = position.missing + self._unreported.pop(entity, 0)
        left = self._left.get(entity, Runs())
        self._looked[entity] = ahead.next
        if not ahead.runs.pairs:
            if not position.parts:
                self._check_low_numbers(wire, entity, position)
            return replace(position, parts=(), left=left, missing=missing)
        if ahead.runs.last >= PARTITIONED_FROM:
            raise RuntimeError(
                f"{entity!r} is a partitioned entity (sequence number {ahead.runs.last}). Its numbers are not in order "
                "of arrival, so it cannot be streamed. Read it in batches, or forward it to an entity without "
                "partitions."
            )
        return Position(
            ahead.runs.last + 1,
            max(ahead.until_ms, position.until_ms),
            tuple(ahead.runs.split(self._options.messages_per_partition)),
            left,
            missing,
        )

    def _check_low_numbers(self, wire: Wire, entity: str, position: Position) -> None:
        """Now and then, while a stream is idle, look for active messages below its position.

        Old ones were read, but a process that found them held died before a checkpoint recorded that: they are
        removed. Younger ones were not there when the stream passed their number: it would never read them.
        """
        now = time.monotonic()
        if not position.next or now < self._low_checks.get(entity, 0.0):
            return
        self._low_checks[entity] = now + LOW_SECONDS
        old, young = wire.call(find_low_numbers(wire, entity, position.next, position.until_ms))
        if old.pairs:
            self._left[entity] = self._left.get(entity, Runs()).union([old])
        if not young.pairs:
            return
        text = (
            f"{entity!r} holds active messages numbered {young.short()}, below the stream's position {position.next}: "
            "the entity was deleted and created again. The stream does not read them. To read them, start it with a "
            "new checkpoint."
        )
        if self._options.fail_on_data_loss:
            raise RuntimeError(f"{text} To continue without them, set failOnDataLoss=false.")
        self._warn_once(text)

    def commit(self, end: dict[str, Any]) -> None:
        self._remove(self._note_commit(end))

    def _note_commit(self, end: dict[str, Any]) -> Offset:
        self._committed = end
        offset = Offset.from_json(end)
        self._adopt(offset)
        return offset

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        if start != self._committed:
            # A restart: the previous batch is committed, but the earlier process may have died while removing it.
            self._remove(self._note_commit(start), may_repeat=True)
        return [
            StreamPart(entity, runs)
            for entity, position in Offset.from_json(end).entities.items()
            for runs in position.parts
        ]

    def _remove(self, offset: Offset, *, may_repeat: bool = False) -> None:
        """Remove a batch and the left-over messages. Messages that are gone count, unless we may have removed them."""
        wire = wire_for(self._options.access)
        for entity, position in offset.entities.items():
            runs = position.runs.union([self._left.pop(entity, Runs())])
            if not runs.pairs:
                continue
            try:
                removed = wire.call(remove(wire, entity, runs, position.until_ms))
            except WireError as error:
                if not error.is_missing:
                    raise
                log.warning("%r no longer exists; %s messages that were read went with it", entity, len(runs))
                continue
            if removed.held.pairs:
                self._left[entity] = removed.held
                self._warn_once(f"{entity!r}: another receiver holds messages that were read; they are removed later")
            if removed.gone.pairs and not may_repeat:
                self._unreported[entity] = self._unreported.get(entity, 0) + len(removed.gone)
                self._idle_until = 0.0
                log.warning(
                    "%r: %s messages that were read were gone before they were removed: another consumer took them, "
                    "or they expired (numbers %s)",
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
        numbers: set[int] = set()
        try:
            for raws in peek_range(wire, partition.entity, runs.first, runs.last):
                decoded = (read(raw) for raw in raws)
                messages = [each for each in decoded if each.state == ACTIVE and each.sequence_number in runs]
                numbers.update(message.sequence_number for message in messages)
                if messages:
                    yield rows.build(messages)
        except WireError as error:
            if not error.is_missing:
                raise
        if len(numbers) < len(runs):
            self._report_lost(partition, wire, runs.without(numbers))

    def _report_lost(self, partition: StreamPart, wire: Wire, lost: Runs) -> None:
        text = (
            f"{len(lost)} of {len(partition.runs)} messages of {partition.entity!r} in {wire.host} are gone "
            f"(numbers {lost.short()}): another consumer took them, or they expired."
        )
        if self._options.fail_on_data_loss:
            raise RuntimeError(
                f"{text} Make this stream the only consumer, or set failOnDataLoss=false to continue without them."
            )
        log.warning(text)


# --- looking ahead --------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Budget:
    """The messages and bytes that a batch may still take."""

    messages: int
    size_bytes: int

    def share(self, entities_left: int) -> Budget:
        """Return a fair share for the next of the remaining entities."""
        return Budget(-(-self.messages // entities_left), -(-self.size_bytes // entities_left))

    def spend(self, messages: int, size_bytes: int) -> None:
        self.messages = max(0, self.messages - messages)
        self.size_bytes = max(0, self.size_bytes - size_bytes)


@dataclass(frozen=True, slots=True)
class LookAhead:
    """Active messages ahead. `next` is the number where the next look may begin."""

    runs: Runs
    size_bytes: int
    until_ms: int
    next: int


async def look_ahead(wire: Wire, entity: str, first: int, last: int | None, budget: Budget) -> LookAhead:
    """Find active messages from number `first` to `last`, as many as the budget allows."""
    pairs: list[list[int]] = []
    count = size_bytes = until_ms = 0
    number = first

    def result() -> LookAhead:
        return LookAhead(Runs(tuple((low, high) for low, high in pairs)), size_bytes, until_ms, number)

    while budget.messages > count:
        raws = await wire.peek(entity, number, min(MAX_PEEK, budget.messages - count))
        for raw in raws:
            message = read_stamps(raw)
            if last is not None and message.sequence_number > last:
                return result()
            if message.state == ACTIVE:
                starts_run = not pairs or pairs[-1][1] + 1 != message.sequence_number
                is_over = size_bytes + len(raw) > budget.size_bytes or (starts_run and len(pairs) >= MAX_RUNS)
                if count and is_over:
                    return result()
                if starts_run:
                    pairs.append([message.sequence_number, message.sequence_number])
                else:
                    pairs[-1][1] = message.sequence_number
                count += 1
                size_bytes += len(raw)
                until_ms = max(until_ms, message.enqueued_ms)
            number = message.sequence_number + 1
        if not raws:
            break
    return result()


async def find_low_numbers(wire: Wire, entity: str, below: int, until_ms: int) -> tuple[Runs, Runs]:
    """Find active messages below a number at the entity's head: those enqueued by `until_ms`, and younger ones."""
    head = [read_stamps(raw) for raw in await wire.peek(entity, 0, MAX_PEEK)]
    low = [message for message in head if message.state == ACTIVE and message.sequence_number < below]
    old = Runs.of(message.sequence_number for message in low if message.enqueued_ms <= until_ms)
    return old, Runs.of(message.sequence_number for message in low if message.enqueued_ms > until_ms)
