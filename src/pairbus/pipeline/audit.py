"""The most important answer: what became of every message that was accepted. Pure functions of frames.

A message is known by (`primary`, `target`, `message_id`). Each silver record is a piece of evidence about one
copy of it; evidence is counted, never ordered, so late and out-of-order files change nothing. What proves
what is in `pairbus.ledger.records`. Then, in copies:

    home        = taken by the primary: sent directly, or restored from a backlog
    delivered   = home, or with `require_receipts` what receivers settled, but not more than was accepted
    outstanding = accepted - delivered - dead-lettered - expired
    lost        = outstanding, as far as more copies left the backlog than were restored
    waiting     = the rest of outstanding; when the queues were looked into, what was not seen there is lost
    duplicates  = copies beyond the accepted ones

A copy that the primary's duplicate detection merged (the same id accepted twice, taken twice, received once)
is delivered: that is what equal ids ask for.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from pairbus.ledger.records import Operation, Outcome, Role, Route

KEY = ("primary", "target", "message_id")
EVIDENCE = (
    "accepted",
    "direct",
    "diverted",
    "spooled",
    "unspooled",
    "restored",
    "dead_lettered",
    "expired",
    "removed",
    "received",
    "in_doubt",
    "namespace_home",
    "namespace_received",
)


def evidence(silver: DataFrame) -> DataFrame:
    """Every record that says something about a message, as counts to be summed by `KEY`."""
    ok = f.col("outcome") == Outcome.OK.value
    by_namespace = f.col("role") == Role.NAMESPACE.value
    operation = f.col("operation")
    from_spool = f.coalesce(f.col("route") == Route.SPOOL.value, f.lit(False))
    is_send = operation.isin(Operation.SEND.value, Operation.SCHEDULE.value)
    is_divert = operation == Operation.DIVERT.value
    at_home = ~f.col("on_backlog")
    settled = operation.isin(Operation.COMPLETE.value, Operation.DEAD_LETTER.value)
    kinds: dict[str, Column] = {
        "accepted": ok & ~by_namespace & ((is_send | is_divert) & ~from_spool | (operation == Operation.SPOOL.value)),
        "direct": ok & ~by_namespace & is_send,
        "diverted": ok & ~by_namespace & is_divert,
        "spooled": ok & (operation == Operation.SPOOL.value),
        "unspooled": ok & ~by_namespace & (is_send | is_divert) & from_spool,
        "restored": ok & (operation == Operation.RESTORE.value),
        "dead_lettered": ok & ~by_namespace & ~at_home & (operation == Operation.DEAD_LETTER.value),
        "expired": ok & ~at_home & (operation == Operation.EXPIRE.value),
        "removed": ok & ~by_namespace & ~at_home & (operation == Operation.COMPLETE.value),
        "received": ok & ~by_namespace & at_home & settled,
        "in_doubt": (f.col("outcome") == Outcome.UNKNOWN.value)
        & (is_send | is_divert | (operation == Operation.RESTORE.value)),
        "namespace_home": ok & by_namespace & at_home & is_send,
        "namespace_received": ok & by_namespace & at_home & settled,
    }
    marks = [kinds[name].cast("int").alias(name) for name in EVIDENCE]
    spoken = operation.isin(
        *(Operation.SEND.value, Operation.SCHEDULE.value, Operation.DIVERT.value, Operation.SPOOL.value),
        *(Operation.RESTORE.value, Operation.DEAD_LETTER.value, Operation.EXPIRE.value, Operation.COMPLETE.value),
    )
    told = silver.where(spoken & f.col("message_id").isNotNull() & f.col("outcome").isin("ok", "unknown"))
    return told.select(*KEY, "at", *marks)


def weigh(evidence: DataFrame) -> DataFrame:
    """The sum of the evidence: one row for each message."""
    sums = [f.sum(name).cast("int").alias(name) for name in EVIDENCE]
    return evidence.groupBy(*KEY).agg(f.min("at").alias("first_at"), f.max("at").alias("last_at"), *sums)


def judge(weighed: DataFrame, *, seen: DataFrame | None = None, require_receipts: bool = False) -> DataFrame:
    """One verdict for each message.

    `seen` holds what a look into the queues found (columns of `KEY`, `place`: "backlog", "dead-letter",
    "spool" or "primary"); without it, "waiting" is what the ledger believes.
    """
    if seen is None:
        found = weighed.withColumn("seen", f.lit(None).cast("int"))
    else:
        counted = seen.groupBy(*KEY).agg(f.count("*").cast("int").alias("seen"))
        found = weighed.join(counted, list(KEY), "left").fillna(0, ["seen"])
    zero = f.lit(0)
    home = f.greatest(f.col("direct") + f.col("restored"), f.col("namespace_home"))
    received = f.greatest(f.col("received"), f.col("namespace_received"))
    known = found.withColumn("home", home).withColumn("received", received)
    if require_receipts:
        merged = f.when(f.col("received") > 0, f.least("accepted", "home")).otherwise(zero)
        delivered = f.greatest(f.least("accepted", "received"), merged)
    else:
        delivered = f.least("accepted", f.greatest("home", "received"))
    arrived_copies = f.when(f.col("received") > 0, f.col("received")).otherwise(f.col("home"))
    outstanding = f.greatest(zero, f.col("accepted") - f.col("delivered") - f.col("dead_lettered") - f.col("expired"))
    gone = f.least("outstanding", f.greatest(zero, f.col("removed") - f.col("restored")))
    still = f.col("outstanding") - f.col("gone")
    waiting = f.when(f.col("seen").isNull(), still).otherwise(f.least(still, "seen"))
    judged = (
        known.withColumn("delivered", delivered)
        .withColumn("outstanding", outstanding)
        .withColumn("gone", gone)
        .withColumn("waiting", waiting)
        .withColumn("lost", f.col("outstanding") - f.col("waiting"))
        .withColumn("duplicates", f.greatest(zero, arrived_copies - f.greatest(f.lit(1), "accepted")))
    )
    return judged.withColumn("verdict", _verdict()).drop("outstanding", "gone", "namespace_home", "namespace_received")


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


def audit(silver: DataFrame, *, seen: DataFrame | None = None, require_receipts: bool = False) -> DataFrame:
    """What became of every message in the ledger."""
    return judge(weigh(evidence(silver)), seen=seen, require_receipts=require_receipts)


def through_backlog(audited: DataFrame) -> DataFrame:
    """Only the messages that were accepted into a backlog or a spool."""
    return audited.where((f.col("diverted") > 0) | (f.col("spooled") > 0))
