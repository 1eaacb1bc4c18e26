"""Writing: rows become messages, batches are filled to the link's limit, and a repeated task repeats its message ids.

Rules:
- A message counts as sent when the namespace has taken it. A task succeeds when all of its messages count.
- What may pass (a broken connection, a busy service) is tried again, for `retryTimeout` seconds at most; a message
  whose answer was lost is sent again under the same id, for duplicate detection to remove.
- A batch that is refused is sent message by message, and the error names the row that the namespace refuses.
- A failed write has sent some messages, and they stay sent: there is no taking back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pairbus.pipeline.servicebus.options import WriteOptions
from pairbus.pipeline.servicebus.outbox import Outbox
from pairbus.pipeline.servicebus.sending import check_columns, messages
from pairbus.pipeline.servicebus.wire import wire_for


@dataclass
class Sent(WriterCommitMessage):
    """How many messages a task sent."""

    messages: int


class BatchWriter(DataSourceArrowWriter):
    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        _check(options, schema)
        self._options = options
        # Made once on the driver: every attempt of a task derives the same message ids from it.
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
            raise RuntimeError("A streaming write runs inside a Spark task.")
        query = task.getLocalProperty("sql.streaming.queryId")
        batch = task.getLocalProperty("streaming.sql.batchId")
        return send_rows(iterator, self._options, f"{query}-{batch}-{task.partitionId()}")

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """The messages are there already."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """What was sent stays sent; the batch will be repeated with the same ids."""


def _check(options: WriteOptions, schema: StructType) -> None:
    check_columns({one.name: one.dataType.simpleString() for one in schema.fields}, options.destination)


def send_rows(batches: Iterator[pa.RecordBatch], options: WriteOptions, prefix: str) -> Sent:
    """Send all rows of a task and wait for the namespace's answers."""
    outbox = Outbox(wire_for(options.access), options.retry_seconds)
    rows = 0
    for batch in batches:
        for message in messages(batch, rows, prefix, options.destination):
            outbox.add(message)
        rows += batch.num_rows
    outbox.finish()
    return Sent(rows)
