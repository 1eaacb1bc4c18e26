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
from pairbus.ledger.records import BACKLOG_SEGMENT, Operation, Outcome, Role, Route, hashed_id, is_backlog_queue
from pairbus.ledger.writer import host_label
from pairbus.pipeline.schemas import AUDIT, MESSAGES
from pairbus.pipeline.servicebus import ServiceBusDataSource
from pairbus.pipeline.servicebus.options import read_options
from pairbus.pipeline.servicebus.wire import wire_for
from pairbus.pipeline.silver import utc_day
from pairbus.pipeline.store import TablesError

KEY = ("primary", "target", "message_id")
EVIDENCE = tuple(column.name for column in MESSAGES.columns if column.type == "integer")
"""The counts of `messages`."""
_SENDS = (Operation.SEND.value, Operation.SCHEDULE.value)
_SETTLEMENTS = (Operation.COMPLETE.value, Operation.DEAD_LETTER.value)
_SUBSCRIPTIONS = "/subscriptions/"
_ABOUT_MESSAGES = (
    *_SENDS,
    *(Operation.DIVERT.value, Operation.SPOOL.value, Operation.RESTORE.value),
    *(*_SETTLEMENTS, Operation.EXPIRE.value, Operation.RESUBMIT.value),
)


def about_messages(silver: DataFrame) -> DataFrame:
    """The records about messages, with the hash of the key (`k1`) and whether the record is `plain`.

    The records of a message that simply goes to the primary and is received are plain. Most are, and they are of no
    interest unless the same message has other records. A message received from a subscription is its topic's message;
    the column `subscription` separates the copies and is empty elsewhere.
    """
    ok = f.col("outcome") == Outcome.OK.value
    by_namespace = f.col("role") == Role.NAMESPACE.value
    operation, on_backlog = f.col("operation"), f.col("on_backlog")
    # A namespace does not know the destination of a message in a backlog; and clients record refusals themselves.
    is_reliable = ~by_namespace | (ok & ~on_backlog)
    records = silver.where(operation.isin(*_ABOUT_MESSAGES) & f.col("message_id").isNotNull() & is_reliable)
    plain = ok & ~on_backlog & ~_from_spool() & (operation.isin(*_SENDS) | operation.isin(*_SETTLEMENTS))
    at_subscription = ok & ~on_backlog & operation.isin(*_SETTLEMENTS) & f.contains("target", f.lit(_SUBSCRIPTIONS))
    topic, subscription = (f.substring_index("target", _SUBSCRIPTIONS, side) for side in (1, -1))
    return (
        records.withColumn("subscription", f.when(at_subscription, subscription).otherwise(""))
        .withColumn("target", f.when(at_subscription, topic).otherwise(f.col("target")))
        .withColumn("k1", hashes()[0])
        .withColumn("plain", plain)
    )


def evidence(records: DataFrame) -> DataFrame:
    """What each record of `about_messages` proves, as marks to be summed."""
    ok = f.col("outcome") == Outcome.OK.value
    by_namespace = f.col("role") == Role.NAMESPACE.value
    operation, on_backlog, from_spool = f.col("operation"), f.col("on_backlog"), _from_spool()
    is_send, is_divert = operation.isin(*_SENDS), operation == Operation.DIVERT.value
    is_spool, is_restore = operation == Operation.SPOOL.value, operation == Operation.RESTORE.value
    settled = operation.isin(*_SETTLEMENTS)
    carried = is_send | is_divert | is_restore | is_spool
    unknown = f.col("outcome") == Outcome.UNKNOWN.value
    left_spool = from_spool & (is_send | is_divert)
    left_backlog = on_backlog & operation.isin(*_SETTLEMENTS, Operation.EXPIRE.value, Operation.RESUBMIT.value)
    unaccepted = ~by_namespace & (unknown | (f.col("outcome") == Outcome.FAILED.value))
    marks: dict[str, Column] = {
        "accepted": ok & ~by_namespace & ((is_send | is_divert) & ~from_spool | is_spool),
        "direct": ok & ~by_namespace & is_send,
        "diverted": ok & ~by_namespace & is_divert,
        "spooled": ok & is_spool,
        "unspooled": ok & ~by_namespace & (is_send | is_divert) & from_spool,
        "restored": ok & is_restore,
        "dead_lettered": ok & ~by_namespace & on_backlog & (operation == Operation.DEAD_LETTER.value),
        "expired": ok & on_backlog & (operation == Operation.EXPIRE.value),
        "resubmitted": ok & (operation == Operation.RESUBMIT.value),
        "removed": ok & ~by_namespace & on_backlog & (operation == Operation.COMPLETE.value),
        "received": ok & ~by_namespace & ~on_backlog & settled,
        "failed": ~by_namespace & (f.col("outcome") == Outcome.FAILED.value) & carried,
        "in_doubt": unknown & carried,
        "refused": unaccepted & ((is_send | is_divert) & ~from_spool | is_spool),
        "unanswered": ~by_namespace & unknown & (is_divert & ~from_spool | is_spool),
        "handled": ~by_namespace & (is_restore | (ok & (left_spool | left_backlog))),
        "namespace_home": ok & by_namespace & ~on_backlog & is_send,
        "namespace_received": ok & by_namespace & ~on_backlog & settled,
        "hashed": f.coalesce(f.col("id_hashed"), f.lit(False)),
    }
    entered = marks["accepted"] & (is_divert | is_spool)
    came_home = ok & ~by_namespace & (is_restore | (is_send & from_spool))
    return records.select(
        "k1",
        *KEY,
        "subscription",
        f.when(is_divert, f.col("episode")).alias("episode"),
        f.col("at").alias("first_at"),
        f.col("at").alias("last_at"),
        f.when(entered, f.col("at")).alias("diverted_at"),
        f.when(came_home, f.col("at")).alias("home_at"),
        *(marks[name].cast("int").alias(name) for name in EVIDENCE),
    )


def _from_spool() -> Column:
    return f.coalesce(f.col("route") == Route.SPOOL.value, f.lit(False))


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
    zero = f.lit(0)
    home = f.greatest(f.col("direct") + f.col("restored"), f.col("namespace_home"))
    unrecorded = (f.col("handled") > 0) & (f.col("accepted") == 0) & (f.col("unanswered") == 0)
    known = (
        _with_subscriptions(messages)
        .withColumn("home", home)
        .withColumn("inferred", unrecorded.cast("int"))
        .withColumn("accepted", f.col("accepted") + f.col("inferred"))
    )
    if require_receipts:
        merged = f.when(f.col("received") > 0, f.least("accepted", "home")).otherwise(zero)
        delivered = f.greatest(f.least("accepted", "received"), merged)
    else:
        delivered = f.least("accepted", f.greatest("home", "received"))
    arrived = f.when(f.col("received") > 0, f.col("received")).otherwise(f.col("home"))
    # A copy may be buried more than once, or although it came home. Count only as many as accepted copies are missing.
    raised = f.greatest(zero, f.col("resubmitted") - f.col("dead_lettered"))
    dead = f.greatest(zero, f.col("dead_lettered") - f.col("resubmitted"))
    judged = (
        known.withColumn("delivered", delivered)
        .withColumn("outstanding", f.col("accepted") - f.col("delivered"))
        .withColumn("expired", f.greatest(zero, f.col("expired") - raised))
        .withColumn("dead_lettered", f.least("outstanding", dead))
        .withColumn("outstanding", f.col("outstanding") - f.col("dead_lettered"))
        .withColumn("expired", f.least("outstanding", "expired"))
        .withColumn("outstanding", f.col("outstanding") - f.col("expired"))
        .withColumn("lost", f.least("outstanding", f.greatest(zero, f.col("removed") - f.col("restored"))))
        .withColumn("waiting", f.col("outstanding") - f.col("lost"))
        .withColumn("duplicates", f.greatest(zero, arrived - f.greatest(f.lit(1), "accepted")))
    )
    return judged.withColumn("verdict", _verdict()).select(*AUDIT.names)


def _with_subscriptions(messages: DataFrame) -> DataFrame:
    """The messages' own rows, with the receipts and times from the rows of subscriptions."""
    received = f.greatest("received", "namespace_received")
    own = messages.where(f.col("subscription") == "").withColumn("received", received)
    most = (
        messages.where(f.col("subscription") != "")
        .groupBy("k1", "k2")
        .agg(f.max(received).alias("most"), f.min("first_at").alias("from"), f.max("last_at").alias("until"))
    )
    # `greatest` and `least` skip nulls.
    return (
        own.join(most, ["k1", "k2"], "left")
        .withColumn("received", f.greatest("received", "most"))
        .withColumn("first_at", f.least("first_at", "from"))
        .withColumn("last_at", f.greatest("last_at", "until"))
    )


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
    zero = f.lit(0)
    known_by_id = f.col("hashed") == 0
    if look.salted and not audited.where("hashed > 0").join(look.seen, list(KEY), "left_semi").isEmpty():
        known_by_id = f.lit(True)  # some hashes match: the salt is the right one
    unread = audited.sparkSession.createDataFrame(
        [(message_id, True) for message_id in look.unread], "message_id string, is_unread boolean"
    )
    is_unread = f.coalesce(f.col("is_unread"), f.lit(False))
    comparable = f.col("primary").isin(*look.primaries) & (f.col("last_at") < _began(look)) & known_by_id & ~is_unread
    in_queues = f.greatest(zero, f.col("waiting") - f.greatest(zero, f.col("spooled") - f.col("unspooled")))
    counted = look.seen.groupBy(*KEY).agg(
        f.count_if(f.col("place") == "backlog").cast("int").alias("seen"),
        f.count_if(f.col("place") == "dead-letter").cast("int").alias("buried"),
    )
    compared = (
        audited.fillna(0, ["hashed"])
        .join(counted, list(KEY), "left")
        .fillna(0, ["seen", "buried"])
        .join(f.broadcast(unread), "message_id", "left")
    )
    unrecorded = f.greatest(zero, f.col("buried") - f.col("dead_lettered") - f.col("expired"))
    checked = (
        compared.withColumn("compared", f.when(comparable, in_queues).otherwise(zero))
        .withColumn("unchecked", f.col("waiting") - f.col("compared"))
        .withColumn("absent", f.greatest(zero, f.col("compared") - f.col("seen")))
        .withColumn("buried", f.least("absent", unrecorded))
        .withColumn("absent", f.col("absent") - f.col("buried"))
        .withColumn("unsure", zero if sure else f.col("absent"))
        .withColumn("dead_lettered", f.col("dead_lettered") + f.col("buried"))
        .withColumn("lost", f.col("lost") + f.col("absent") - f.col("unsure"))
        .withColumn("waiting", f.col("waiting") - f.col("buried") - f.col("absent") + f.col("unsure"))
    )
    verdict = f.when((f.col("lost") == 0) & (f.col("unsure") > 0), "unsure").otherwise(_verdict())
    return checked.withColumn("verdict", verdict).select(*audited.columns, "unchecked", "unsure")


def _began(look: Look) -> Column:
    return f.timestamp_micros(f.lit(round(look.at.timestamp() * 1_000_000)))


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
    return last.where(~f.col("closed") & (f.col("at") < _began(look))).isEmpty()


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
            except msgspec.DecodeError:  # torn, or being written
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
