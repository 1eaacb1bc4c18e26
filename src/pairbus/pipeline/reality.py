"""A look into the queues: what really waits in the backlogs, to compare with what the ledger believes.

Peeked through the `servicebus` data source: nothing is consumed, locked or counted as delivered.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t

from pairbus import envelope
from pairbus.amqp.decoding import decode, skip
from pairbus.amqp.types import AmqpDecodeError
from pairbus.ledger.records import BACKLOG_SEGMENT
from pairbus.pipeline.servicebus import ServiceBusDataSource

_PROPERTIES = 0x73


def look_into_backlogs(spark: SparkSession, primary_name: str, access: Mapping[str, str]) -> DataFrame:
    """Every message in the backlog queues of a primary and in their dead-letter queues, for `audit.confirm`.

    `access` holds the data source's options for the secondary: `connectionStringEnv` (the name of an environment
    variable) or `connectionString`, and `connectionVerify` where it is needed. Queues beyond those in use are looked
    into as well: nothing may be stranded there.
    """
    spark.dataSource.register(ServiceBusDataSource)
    pattern = f"{re.escape(primary_name)}{BACKLOG_SEGMENT}[0-9]+"
    reader = spark.read.format("servicebus").options(**access).option("queuePattern", pattern)
    waiting = seen_messages(reader.load(), "backlog")
    return waiting.unionByName(seen_messages(reader.option("subQueue", "deadLetter").load(), "dead-letter"))


def seen_messages(peeked: DataFrame, place: str) -> DataFrame:
    """Peeked backlog messages as primary, target and message id; a message in parts is seen in its first part."""
    properties = f.col("application_properties")
    path = f.try_variant_get(properties[envelope.PATH], "$", "string")
    part = f.try_variant_get(properties[envelope.PART], "$", "int")
    inside = f.udf(message_id_inside, t.StringType(), useArrow=False)
    return peeked.where(part.isNull() | (part == 1)).select(
        f.lower(f.substring_index("entity", BACKLOG_SEGMENT, 1)).alias("primary"),
        f.lower(path).alias("target"),
        f.when(part.isNull(), f.col("message_id")).otherwise(inside("body")).alias("message_id"),
        f.lit(place).alias("place"),
    )


def message_id_inside(start: bytes | None) -> str | None:
    """The id of a message of which only the start of its encoding is there; None if it cannot be found."""
    raw, pos = bytes(start or b""), 0
    try:
        while raw[pos : pos + 2] == b"\x00\x53":
            if raw[pos + 2] == _PROPERTIES:
                fields = decode(raw, pos + 3)[0]
                return str(fields[0]) if fields and fields[0] is not None else None
            pos = skip(raw, pos + 3)
    except (AmqpDecodeError, IndexError):
        return None
    return None
