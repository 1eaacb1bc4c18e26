"""`servicebus` as a Spark data source: what `spark.read.format("servicebus")` finds.

| | batch | streaming |
|---|---|---|
| read | peeks: nothing is consumed | peeks what a checkpoint can repeat, and removes it once it is committed |
| write | sends | sends; a repeated batch repeats its message ids |
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

PUSHDOWN_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"


class ServiceBusDataSource(DataSource):
    """Queues, topics, subscriptions and dead-letter queues of a namespace as tables and streams of messages."""

    @classmethod
    def name(cls) -> str:
        return "servicebus"

    def schema(self) -> StructType:
        from pairbus.pipeline.servicebus.columns import SCHEMA

        # Spark asks for it at load(), on the driver; a stream's reader is made later, where nobody reads along.
        check_names(self.options)
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        from pairbus.pipeline.servicebus import batch

        # Spark refuses a reader that takes filters unless spark.sql.python.filterPushdown.enabled is true, and asks
        # for the filters in a worker of its own: only there is one offered.
        kind = batch.FilteringBatchReader if PUSHDOWN_WORKER in sys.modules else batch.BatchReader
        return kind(read_options(self.options, "batch"), _checked(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        from pairbus.pipeline.servicebus.stream import StreamReader

        return StreamReader(read_options(self.options, "stream"), _checked(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from pairbus.pipeline.servicebus.writer import BatchWriter

        if overwrite:
            raise ValueError("Messages cannot be overwritten: use mode('append').")
        return BatchWriter(write_options(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        from pairbus.pipeline.servicebus.writer import StreamWriter

        if overwrite:
            raise ValueError("Messages cannot be overwritten: use outputMode('append').")
        return StreamWriter(write_options(self.options), schema)


def _checked(schema: StructType) -> StructType:
    from pairbus.pipeline.servicebus.columns import chosen

    chosen(schema)
    return schema
