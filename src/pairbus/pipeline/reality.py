"""A look into the queues: what really waits in the backlogs, to compare with what the ledger believes.

Peeked through the `servicebus` data source: nothing is consumed, locked or counted as delivered. Look first, then read
the ledger: what has left the queues by the time of the look is in the ledger's files by then.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t

from pairbus import envelope
from pairbus.amqp.message import message_key
from pairbus.amqp.types import AmqpDecodeError
from pairbus.ledger.files import closed_files, open_files
from pairbus.ledger.records import BACKLOG_SEGMENT, Role, Route, hashed_id, is_backlog_queue
from pairbus.pipeline.audit import Look
from pairbus.pipeline.servicebus import ServiceBusDataSource
from pairbus.pipeline.servicebus.entities import resolve
from pairbus.pipeline.servicebus.options import read_options
from pairbus.pipeline.servicebus.wire import wire_for
from pairbus.pipeline.store import TablesError


def look_into_backlogs(
    spark: SparkSession, primary_names: Collection[str], access: Mapping[str, str], *, id_salt: bytes | None = None
) -> Look:
    """Every message in the backlog queues of these primaries and in their dead-letter queues, for `audit.confirm`.

    `access` holds the data source's options for the secondary: `connectionStringEnv` (the name of an environment
    variable) or `connectionString`, and `connectionVerify` where it is needed. Queues beyond those in use are looked
    into as well: nothing may be stranded there. With the salt of the ledger's ids they are found there as well.
    Refuses a primary that has no backlog queue: all that waits would seem lost.
    """
    at = datetime.now(UTC)
    spark.dataSource.register(ServiceBusDataSource)
    for name in primary_names:
        _check_backlog(name, access)
    pattern = f"(?:{'|'.join(re.escape(name) for name in primary_names)}){BACKLOG_SEGMENT}[0-9]+"
    reader = spark.read.format("servicebus").options(**access).option("queuePattern", pattern)
    waiting = seen_messages(reader.load(), "backlog")
    seen = waiting.unionByName(seen_messages(reader.option("subQueue", "deadLetter").load(), "dead-letter"))
    if id_salt is not None:
        salt = id_salt
        hashed = f.udf(lambda one: None if one is None else hashed_id(one, salt), t.StringType(), useArrow=False)
        seen = seen.unionByName(seen.withColumn("message_id", hashed("message_id")))
    # Now, not when somebody asks for it: it must be older than what is read after it.
    found = seen.localCheckpoint(eager=True)
    return Look(found, frozenset(name.lower() for name in primary_names), at, salted=id_salt is not None)


def _check_backlog(primary_name: str, access: Mapping[str, str]) -> None:
    pattern = f"{re.escape(primary_name)}{BACKLOG_SEGMENT}[0-9]+"
    options = read_options({**access, "queuePattern": pattern}, "batch")
    wire = wire_for(options.access)
    if not wire.call(resolve(wire, options.entities)):
        raise TablesError(
            f"{wire.host} has no backlog queues of '{primary_name}': give the primary's name as it stands in their "
            "paths, such as contoso, and the connection string of its secondary."
        )


class _Line(msgspec.Struct):
    role: str = ""
    message_id: str | None = None
    entity: str = ""
    source: str | None = None
    route: str | None = None


def unread_ids(ledger: Path, read: Collection[str]) -> frozenset[str]:
    """The messages of which something is told in files that are not `read`: being written, or published since.

    Only what concerns backlogs and spools: the rest is of no interest to a look.
    """
    decoder = msgspec.json.Decoder(_Line)
    found: set[str] = set()
    for path in [*open_files(ledger), *closed_files(ledger)]:
        if path.name in read:
            continue
        for raw in _lines(path):
            try:
                line = decoder.decode(raw)
            except msgspec.DecodeError:  # torn, or being written
                continue
            # A namespace's own records prove nothing about backlogs, and have the look itself.
            if line.role == Role.NAMESPACE or not line.message_id:
                continue
            if line.source or line.route == Route.SPOOL or is_backlog_queue(line.entity):
                found.add(line.message_id)
    return frozenset(found)


def _lines(path: Path) -> Iterator[bytes]:
    try:
        file = path.open("rb")
    except FileNotFoundError:  # published in this moment
        file = path.with_name(path.name.removesuffix(".open")).open("rb")
    with file:
        yield from file


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
    try:
        return message_key(bytes(start or b""))
    except (AmqpDecodeError, IndexError):
        return None
