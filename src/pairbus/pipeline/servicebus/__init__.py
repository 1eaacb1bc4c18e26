"""The Spark connector for Service Bus: the data source behind `spark.read.format("servicebus")`.

| | batch | streaming |
|---|---|---|
| read | peeks and consumes nothing | peeks what a checkpoint can repeat, and removes it once it is committed |
| write | sends | sends; a repeated batch repeats its message ids |

Spark calls `batch`, `stream` and `writer`. Reading goes from `wire` (AMQP) through `messages` (decoding) to `rows`;
writing goes from `rows` to `wire`.
"""

from __future__ import annotations

import sys

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from pairbus.pipeline.servicebus.options import check_names, read_options, write_options

__all__ = ["ServiceBusDataSource"]

_PUSHDOWN_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"


class ServiceBusDataSource(DataSource):
    """Queues, topics, subscriptions and dead-letter queues of a namespace as tables and streams of messages."""

    @classmethod
    def name(cls) -> str:
        return "servicebus"

    def schema(self) -> StructType:
        from pairbus.pipeline.servicebus.rows import SCHEMA

        # Spark asks for the schema at load(), on the driver. A stream's reader is made later, where errors are hidden.
        check_names(self.options)
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        from pairbus.pipeline.servicebus import batch
        from pairbus.pipeline.servicebus.rows import check_schema

        # Spark refuses a reader that takes filters unless spark.sql.python.filterPushdown.enabled is true. It asks for
        # the filters in a worker of its own, so only that worker gets such a reader.
        kind = batch.FilteringBatchReader if _PUSHDOWN_WORKER in sys.modules else batch.BatchReader
        return kind(read_options(self.options, "batch"), check_schema(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        from pairbus.pipeline.servicebus.rows import check_schema
        from pairbus.pipeline.servicebus.stream import StreamReader

        return StreamReader(read_options(self.options, "stream"), check_schema(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from pairbus.pipeline.servicebus.writer import BatchWriter

        if overwrite:
            raise ValueError("Messages cannot be overwritten. Use mode('append').")
        return BatchWriter(write_options(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        from pairbus.pipeline.servicebus.writer import StreamWriter

        if overwrite:
            raise ValueError("Messages cannot be overwritten. Use outputMode('append').")
        return StreamWriter(write_options(self.options), schema)
