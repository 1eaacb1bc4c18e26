"""The most important answer: what became of every accepted message. Functions of frames, and a look into the queues.

A message is identified by (`primary`, `target`, `message_id`), or by `k1` and `k2`, a hash of the three that is cheaper
to carry. Each silver record is a piece of evidence about one copy of it. Evidence is counted, never ordered, so late
and out-of-order files change nothing. `pairbus.ledger.records` says what proves what. Then, in copies:

    accepted    = reported to the application as accepted; a message that was in a backlog or spool without a record of
                  its client (it was killed, or keeps no ledger) was accepted once
    received    = settled by receivers; of a topic by those of the subscription that received most: each has a copy
    home        = taken by the primary: sent directly, or restored from a backlog
    delivered   = home, or with `require_receipts` settled by receivers, but not more than was accepted
    buried      = dead-lettered or expired and not resubmitted, but not more than was accepted and not delivered
    outstanding = accepted - delivered - buried
    lost        = outstanding, as far as more copies left the backlog than were restored
    waiting     = the rest of outstanding
    duplicates  = copies beyond the accepted ones

`look_into_backlogs` peeks the messages that really wait, through the `servicebus` data source: nothing is consumed,
locked or counted as delivered. Look first, then read the ledger: what has left the queues by the time of the look is in
the ledger's files by then. `confirm` compares "waiting" with the look: a message that is not there is lost, unless
somebody may have carried it home without having recorded it yet.

A copy that the primary's duplicate detection merged (the same id accepted twice, taken twice, received once) is
delivered: that is the meaning of equal ids.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as f
from pyspark.sql import types as t

from pairbus import envelope
from pairbus.amqp.message import message_key
from pairbus.amqp.types import AmqpDecodeError
from pairbus.ledger.files import MOST_LINE_BYTES, closed_files, open_files
from pairbus.ledger.records import BACKLOG_SEGMENT, Operation, Role, Route, hashed_id, is_backlog_queue
from pairbus.ledger.writer import host_label
from pairbus.pipeline.queries import query
from pairbus.pipeline.schemas import AUDIT, MESSAGES
from pairbus.pipeline.servicebus import ServiceBusDataSource
from pairbus.pipeline.servicebus.options import read_options
from pairbus.pipeline.servicebus.wire import wire_for
from pairbus.pipeline.silver import utc_day
from pairbus.pipeline.store import TablesError

KEY = ("primary", "target", "message_id")
EVIDENCE = tuple(column.name for column in MESSAGES.columns if column.type == "integer")
"""The counts of `messages`."""


def about_messages(silver: DataFrame) -> DataFrame:
    """The records about messages, with the hash of the key (`k1`) and whether the record is `plain`.

    The records of a message that simply goes to the primary and is received are plain. Most are, and they are of no
    interest unless the same message has other records. A message received from a subscription is its topic's message;
    the column `subscription` separates the copies and is empty elsewhere.
    """
    return query("about_messages", {"silver": silver}).select("*", hashes()[0])


def evidence(records: DataFrame) -> DataFrame:
    """What each record of `about_messages` proves, as marks to be summed."""
    return query("evidence", {"records": records})


def hashes() -> list[Column]:
    """Two independent 64-bit hashes of a message's key: with 128 bits, no two messages collide."""
    return [f.xxhash64(*KEY).alias("k1"), f.xxhash64(f.lit("pairbus"), *KEY).alias("k2")]


def weigh(evidence: DataFrame) -> DataFrame:
    """Sum the evidence to one row for each message, as in `messages`. The sums may be weighed again.

    Receipts of a topic's subscriptions have their own rows, on the day of the message's row.

    Sums, and a hash in place of the episode, have a fixed width, so Spark aggregates them in a hash table. With a text
    among them it would sort all records, twice.
    """
    # Tables from before a kind of evidence was added have null there.
    sums = [f.coalesce(f.sum(name), f.lit(0)).cast("int").alias(name) for name in EVIDENCE]
    weighed = evidence.groupBy(*KEY, "subscription").agg(
        f.max(f.when(f.col("episode").isNotNull(), f.xxhash64("episode"))).alias("episode_hash"),
        f.min("first_at").alias("first_at"),
        f.max("last_at").alias("last_at"),
        f.min("diverted_at").alias("diverted_at"),
        f.min("home_at").alias("home_at"),
        *sums,
    )
    of_hash = f.xxhash64("episode").alias("episode_hash")
    named = evidence.where("episode is not null").groupBy(of_hash).agg(f.max("episode").alias("episode"))
    whole = weighed.join(f.broadcast(named), "episode_hash", "left")
    day = utc_day(f.coalesce("diverted_at", "first_at"))
    own_day = f.min(f.when(f.col("subscription") == "", day)).over(Window.partitionBy("k1", "k2"))
    return whole.select("*", *hashes()).withColumn("day", f.coalesce(own_day, day)).select(*MESSAGES.names)


def judge(messages: DataFrame, *, require_receipts: bool = False) -> DataFrame:
    """One verdict for each message, according to the ledger alone.

    In every row, `accepted` = `delivered` + `dead_lettered` + `expired` + `waiting` + `lost`.
    """
    judged = query("judge", {"messages": messages}, require_receipts=require_receipts)
    return judged.withColumn("verdict", _verdict()).select(*AUDIT.names)


@dataclass(frozen=True, slots=True)
class Look:
    """The messages in backlog queues at one moment. Look before you read the ledger.

    `seen` has the columns of `KEY` and `place` ("backlog" or "dead-letter"), one row for each copy.
    """

    seen: DataFrame
    primaries: frozenset[str]
    """The primaries whose backlog queues were looked into, in lower case."""
    at: datetime
    """When the look began."""
    salted: bool = False
    """Whether `seen` also has each id as its salted hash."""
    unread: frozenset[str] = frozenset()
    """Ids of messages with records that are not judged yet: what became of these messages is unknown."""


def confirm(audited: DataFrame, look: Look, *, sure: bool = True) -> DataFrame:
    """Compare the waiting messages with a look into the queues; adds the columns `unchecked` and `unsure`.

    A message in a dead-letter queue without a record of that is dead-lettered. A message in neither queue is lost,
    unless somebody may have carried it home and not recorded it yet (not `sure`): then it stays waiting and counts as
    `unsure`. Not compared, and counted as `unchecked`, are messages in a spool, of a primary that was not looked into,
    with records younger than the look, or known only by a hash of their id.
    """
    is_salt_right = look.salted and not audited.where("hashed > 0").join(look.seen, list(KEY), "left_semi").isEmpty()
    unread = audited.sparkSession.createDataFrame([(each,) for each in look.unread], "message_id string")
    compared = audited.withColumn("is_looked_into", f.col("primary").isin(*look.primaries))
    frames = {"audited": compared, "seen": look.seen, "unread": f.broadcast(unread)}
    checked = query("confirm", frames, began_us=_began_us(look), is_salt_right=is_salt_right, sure=sure)
    verdict = f.when((f.col("lost") == 0) & (f.col("unsure") > 0), "unsure").otherwise(_verdict())
    return checked.withColumn("verdict", verdict).select(*audited.columns, "unchecked", "unsure")


def _began_us(look: Look) -> int:
    return round(look.at.timestamp() * 1_000_000)


def all_recorded(silver: DataFrame, look: Look, host: str) -> bool:
    """Whether `silver` has all records of carried messages from before the look.

    A syphon's record is on disk before its message leaves the queue. So nothing is missing from processes on this
    `host`, from processes that ended in order, and from processes with a record younger than the look. The last records
    of other processes may still be on their way.
    """
    is_close = f.col("operation") == Operation.CLOSE.value
    last = (
        silver.where(
            f.col("role").isin(Role.CLIENT.value, Role.SYPHON.value) & ~f.startswith("process", f.lit(f"{host}-"))
        )
        .groupBy("process")
        .agg(f.bool_or(is_close).alias("closed"), f.max("at").alias("at"))
    )
    return last.where(~f.col("closed") & (f.unix_micros("at") < _began_us(look))).isEmpty()


def _verdict() -> Column:
    return (
        f.when(f.col("lost") > 0, "lost")
        .when(f.col("waiting") > 0, "waiting")
        .when(f.col("accepted") == 0, "never accepted")
        .when(f.col("dead_lettered") > 0, "dead-lettered")
        .when(f.col("expired") > 0, "expired")
        .when(f.col("duplicates") > 0, "duplicated")
        .otherwise("delivered")
    )


def audit(silver: DataFrame, *, look: Look | None = None, require_receipts: bool = False) -> DataFrame:
    """What became of every message in the ledger."""
    judged = judge(weigh(evidence(about_messages(silver))), require_receipts=require_receipts)
    return judged if look is None else confirm(judged, look, sure=all_recorded(silver, look, host_label()))


def through_backlog(audited: DataFrame) -> DataFrame:
    """Only the messages that were accepted into a backlog or a spool."""
    return audited.where((f.col("diverted") > 0) | (f.col("spooled") > 0) | (f.col("inferred") > 0))


def look_into_backlogs(
    spark: SparkSession, primary_names: Collection[str], access: Mapping[str, str], *, id_salt: bytes | None = None
) -> Look:
    """Peek every message in the backlog queues of these primaries and in their dead-letter queues, for `confirm`.

    `access` has the data source's options for the secondary: `connectionStringEnv` (the name of an environment
    variable) or `connectionString`, and `connectionVerify` if needed. Backlog queues beyond those in use are included:
    messages may be stranded there. `id_salt` is the salt of a ledger with hashed ids. A primary without backlog queues
    is refused, because all its waiting messages would seem lost.
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
        hashed = f.udf(lambda plain: None if plain is None else hashed_id(plain, salt), t.StringType(), useArrow=False)
        seen = seen.unionByName(seen.withColumn("message_id", hashed("message_id")))
    # Eager, because the look must be older than everything that is read after it.
    seen = seen.localCheckpoint(eager=True)
    return Look(seen, frozenset(name.lower() for name in primary_names), at, salted=id_salt is not None)


def _check_backlog(primary_name: str, access: Mapping[str, str]) -> None:
    pattern = f"{re.escape(primary_name)}{BACKLOG_SEGMENT}[0-9]+"
    options = read_options({**access, "queuePattern": pattern}, "batch")
    wire = wire_for(options.access)
    if not wire.call(wire.resolve(options.entities)):
        raise TablesError(
            f"{wire.host} has no backlog queues of '{primary_name}': use the primary's name as it stands in their "
            "paths, such as contoso, and the connection string of its secondary."
        )


def unread_ids(ledger: Path, read: Collection[str]) -> frozenset[str]:
    """The ids of messages with records in files that are not in `read`: being written, or published since.

    Only records about backlogs and spools count, because others do not matter for a look. Lines of newer writers count.
    """
    decoder = msgspec.json.Decoder(dict[str, Any])
    ids: set[str] = set()
    for path in [*open_files(ledger), *closed_files(ledger)]:
        if path.name in read:
            continue
        for raw in _lines(path):
            try:
                line = decoder.decode(raw)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # torn, or being written
                continue
            # A namespace's own records prove nothing about backlogs, and include the look itself.
            if line.get("role") == Role.NAMESPACE or not line.get("message_id"):
                continue
            on_backlog = is_backlog_queue(str(line.get("entity", "")))
            if on_backlog or line.get("source") or line.get("route") == Route.SPOOL:
                ids.add(str(line["message_id"]))
    return frozenset(ids)


def _lines(path: Path) -> Iterator[bytes]:
    try:
        file = path.open("rb")
    except FileNotFoundError:  # just published
        file = path.with_name(path.name.removesuffix(".open")).open("rb")
    with file:  # a longer line comes in pieces, which are not records
        yield from iter(lambda: file.readline(MOST_LINE_BYTES), b"")


def seen_messages(peeked: DataFrame, place: str) -> DataFrame:
    """The primary, target and message id of peeked backlog messages; of a message in parts, those of its first part."""
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
    """The id of a message, from the start of its encoding; None if it has none or cannot be read."""
    try:
        return message_key(bytes(start or b""))
    except (AmqpDecodeError, IndexError):
        return None
