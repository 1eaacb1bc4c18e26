"""Writing: rows become messages, batches are filled to the link's limit, and a repeated task repeats its message ids.

Rules:
- A message counts as sent when the namespace has accepted it. A task succeeds when all of its messages count.
- Passing errors (a broken connection, a busy service) are retried for `retryTimeout` seconds. A message whose answer
  was lost is sent again with the same id, so duplicate detection can drop it.
- A refused batch is sent again message by message, and the error names the row that the namespace refuses.
- Messages of a failed write stay sent: there is no rollback.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pairbus.amqp.message import BATCH_ENTRY_BYTES, BATCH_FORMAT, join_batch
from pairbus.amqp.session import AmqpSession
from pairbus.pipeline.servicebus.options import WriteOptions
from pairbus.pipeline.servicebus.rows import OutgoingMessage, check_columns, encode_rows
from pairbus.pipeline.servicebus.wire import Wire, WireError, wire_for

MAX_TRANSFERS_IN_FLIGHT = 16
_ENVELOPE_BYTES = 512
"""The overhead of a batch: it repeats the id, session and partition key of its first message."""


@dataclass
class TaskCommit(WriterCommitMessage):
    """The number of messages that a task sent."""

    count: int


class WriteError(RuntimeError):
    """A row could not be sent."""


class BatchWriter(DataSourceArrowWriter):
    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        _check(options, schema)
        self._options = options
        # Made once, on the driver: every attempt of a task derives the same message ids from it.
        self._name = uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        task = TaskContext.get()
        partition = task.partitionId() if task is not None else 0
        return send_rows(iterator, self._options, f"{self._name}-{partition}")


class StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        _check(options, schema)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        task = TaskContext.get()
        if task is None:
            raise RuntimeError("A streaming write must run in a Spark task.")
        query = task.getLocalProperty("sql.streaming.queryId")
        batch = task.getLocalProperty("streaming.sql.batchId")
        return send_rows(iterator, self._options, f"{query}-{batch}-{task.partitionId()}")

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Nothing to do: the messages are already sent."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Nothing to do: sent messages stay sent, and the repeated batch has the same ids."""


def _check(options: WriteOptions, schema: StructType) -> None:
    check_columns({field.name: field.dataType.simpleString() for field in schema.fields}, options.destination)


def send_rows(batches: Iterator[pa.RecordBatch], options: WriteOptions, prefix: str) -> TaskCommit:
    """Send all rows of a task and wait for the namespace's answers."""
    outbox = Outbox(wire_for(options.access), options.retry_seconds)
    row_count = 0
    for batch in batches:
        for message in encode_rows(batch, row_count, prefix, options.destination):
            outbox.add(message)
        row_count += batch.num_rows
    outbox.finish()
    return TaskCommit(row_count)


class Outbox:
    """Fills transfers, each for one destination and up to the link's limit, and keeps several in flight."""

    def __init__(self, wire: Wire, retry_seconds: float) -> None:
        self._wire = wire
        self._retry_seconds = retry_seconds
        self._filling: dict[str, list[OutgoingMessage]] = {}
        self._sizes: dict[str, int] = {}
        self._limits: dict[str, int] = {}
        self._in_flight: deque[Future[None]] = deque()

    def add(self, message: OutgoingMessage) -> None:
        entity = message.entity
        if entity not in self._limits:
            self._limits[entity] = self._wire.call(self._batch_limit(message)) - _ENVELOPE_BYTES
            self._filling[entity], self._sizes[entity] = [], 0
        size = len(message.raw) + BATCH_ENTRY_BYTES
        if self._sizes[entity] + size > self._limits[entity]:
            self._send(entity)
        self._filling[entity].append(message)
        self._sizes[entity] += size

    def finish(self) -> None:
        """Send the remaining messages and wait for every answer."""
        for entity in list(self._filling):
            self._send(entity)
        while self._in_flight:
            self._in_flight.popleft().result()

    def _send(self, entity: str) -> None:
        batch, self._filling[entity], self._sizes[entity] = self._filling[entity], [], 0
        if not batch:
            return
        while len(self._in_flight) >= MAX_TRANSFERS_IN_FLIGHT:
            self._in_flight.popleft().result()
        self._in_flight.append(self._wire.start(self._deliver(entity, batch)))

    # --- on the wire's loop -------------------------------------------------------------------------------

    async def _batch_limit(self, message: OutgoingMessage) -> int:
        async def open_link(session: AmqpSession) -> int:
            return (await session.sender(message.entity)).max_batch_size

        try:
            return await self._wire.retry(message.entity, open_link, self._retry_seconds)
        except WireError as error:
            raise _write_error(message, error) from error

    async def _deliver(self, entity: str, batch: Sequence[OutgoingMessage]) -> None:
        try:
            await self._transfer(entity, [message.raw for message in batch])
        except WireError as error:
            if len(batch) == 1 or not error.is_refusal:
                raise _write_error(batch[0], error) from error
            for message in batch:
                await self._deliver(entity, [message])

    async def _transfer(self, entity: str, raws: list[bytes]) -> None:
        async def send(session: AmqpSession) -> None:
            sender = await session.sender(entity)
            await sender.room()
            if len(raws) == 1:
                await sender.send(raws[0])
            else:
                await sender.send(join_batch(raws), message_format=BATCH_FORMAT)

        await self._wire.retry(entity, send, self._retry_seconds)


def _write_error(message: OutgoingMessage, error: WireError) -> WriteError:
    return WriteError(
        f"Row {message.row} of its partition (message id {message.message_id!r}, to {message.entity!r}) could not be "
        f"sent: {error}"
    )
