"""The audit's verdict in one sentence, with the numbers behind it: from a ledger as it is, or from built
tables.
"""

from __future__ import annotations

import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from pairbus.costs.rules import ACCEPTED
from pairbus.ledger.files import files_as_they_are, publish_orphans
from pairbus.ledger.records import Operation, Outcome, Role
from pairbus.pipeline.audit import Look, audit
from pairbus.pipeline.copies import told_apart
from pairbus.pipeline.gold import operations_daily
from pairbus.pipeline.silver import flow_column, quarantine, read_lines, silver


@dataclass(frozen=True, slots=True)
class Summary:
    """Counts of message copies over a whole ledger.

    `accepted` is always the sum of the four after it and `lost`.
    """

    accepted: int
    delivered: int
    dead_lettered: int
    expired: int
    waiting: int
    lost: int
    duplicates: int
    diverted: int
    spooled: int
    restored: int
    pings: int
    billed_operations: int
    unidentified: int
    """Operations on messages without an id: they cannot be followed."""
    unrecorded: int
    """Operations that writers had to leave out, by their own count."""
    broken_lines: int
    died: int
    """Processes whose ledger has no last word: they run, or died, and their last moment may be missing."""
    unsure: int = 0
    """Of those waiting: not found in the queues, but somebody may have carried them home and not told yet."""
    unchecked: int = 0
    """Of those waiting: not looked for, though the queues were looked into."""
    inferred: int = 0
    """Of those accepted: no client has told, but they were in a backlog or spool."""

    @property
    def balanced(self) -> bool:
        """Everything accepted was delivered."""
        return self.accepted == self.delivered

    @property
    def sentence(self) -> str:
        ending = f"lost {self.lost:,}, duplicates {self.duplicates:,}"
        if self.balanced:
            return f"accepted {self.accepted:,} = delivered {self.delivered:,}, {ending}"
        parts = [f"delivered {self.delivered:,}"]
        parts += [f"dead-lettered {self.dead_lettered:,}"] if self.dead_lettered else []
        parts += [f"expired {self.expired:,}"] if self.expired else []
        parts += [f"waiting {self.waiting:,}"] if self.waiting else []
        return f"accepted {self.accepted:,}: {', '.join(parts)}, {ending}"

    def to_json(self) -> dict[str, int | bool | str]:
        return {"sentence": self.sentence, "balanced": self.balanced, **asdict(self)}


def summarise(
    spark: SparkSession,
    ledger_folder: Path | str,
    *,
    look: Look | None = None,
    require_receipts: bool = False,
) -> Summary:
    """Audit a ledger folder as it is now, open files included, without building tables.

    For a session on this machine: files that are being written are copied to a temporary folder of it first.
    `require_receipts` counts a message as delivered when a receiver settled it, not when the primary took it;
    `look` is what a look into the queues found, see `pairbus.pipeline.audit.confirm`.
    """
    folder = Path(ledger_folder)
    if not folder.is_dir():
        raise ValueError(f"The ledger folder {folder} does not exist; give the folder that clients record in.")
    publish_orphans(folder)
    with tempfile.TemporaryDirectory(prefix="pairbus-ledger-") as copied:
        lines = read_lines(spark, files_as_they_are(folder, Path(copied)))
        # Read once, for several questions; and no filter of theirs reaches the reader of JSON lines, which drops all
        # rows for one that is simply true.
        records = told_apart(silver(lines)).persist()
        try:
            return summarise_records(records, quarantine(lines), look=look, require_receipts=require_receipts)
        finally:
            records.unpersist()


def summarise_records(
    records: DataFrame,
    quarantined: DataFrame,
    *,
    look: Look | None = None,
    require_receipts: bool = False,
) -> Summary:
    of_clients = (f.col("role") != Role.NAMESPACE.value) & (f.col("outcome") == Outcome.OK.value)
    totals = records.agg(
        _count(of_clients & (f.col("operation") == Operation.PING.value)).alias("pings"),
        _unidentified(),
        *_words(),
    ).first()
    billed = operations_daily(records).where("in_bill").agg(_total(f.lit(True), "billed").alias("billed")).first()
    copies = ("accepted", "delivered", "dead_lettered", "expired", "waiting", "lost", "duplicates")
    travelled = ("diverted", "spooled", "restored", "inferred")
    audited = audit(records, look=look, require_receipts=require_receipts)
    doubted = _doubted(audited)
    sums = audited.agg(
        *(f.coalesce(f.sum(name), f.lit(0)).alias(name) for name in copies + travelled + doubted)
    ).first()
    assert totals is not None
    assert billed is not None
    assert sums is not None
    return Summary(
        **{name: int(sums[name]) for name in copies + travelled + doubted},
        **{name: int(totals[name]) for name in ("pings", "unidentified", "unrecorded", "died")},
        billed_operations=int(billed["billed"]),
        broken_lines=quarantined.count(),
    )


def summarise_tables(records: DataFrame, operations: DataFrame, audited: DataFrame, quarantined: DataFrame) -> Summary:
    """The same from built tables: only what went through a backlog is followed message by message.

    What the primary accepted directly is delivered, as it is without `require_receipts`.
    """
    of_clients = (f.col("role") != Role.NAMESPACE.value) & (f.col("outcome") == Outcome.OK.value)
    done = operations.agg(
        _total(of_clients & flow_column(*ACCEPTED), "operations").alias("accepted"),
        _total(f.col("in_bill"), "billed").alias("billed_operations"),
        _total(of_clients & (f.col("operation") == Operation.PING.value), "operations").alias("pings"),
    ).first()
    words = records.agg(*_words(), _unidentified()).first()
    fates = ("dead_lettered", "expired", "waiting", "lost", "duplicates")
    names = (*fates, "diverted", "spooled", "restored", "inferred", *_doubted(audited))
    sums = audited.agg(*(f.coalesce(f.sum(name), f.lit(0)).alias(name) for name in names)).first()
    assert done is not None
    assert words is not None
    assert sums is not None
    counts = {name: int(sums[name]) for name in names}
    accepted = int(done["accepted"]) + counts["inferred"]
    undelivered = counts["dead_lettered"] + counts["expired"] + counts["waiting"] + counts["lost"]
    return Summary(
        **counts,
        accepted=accepted,
        delivered=accepted - undelivered,
        pings=int(done["pings"]),
        billed_operations=int(done["billed_operations"]),
        unidentified=int(words["unidentified"]),
        unrecorded=int(words["unrecorded"]),
        died=int(words["died"]),
        broken_lines=quarantined.count(),
    )


def _doubted(audited: DataFrame) -> tuple[str, ...]:
    """What a look into the queues adds, if there was one."""
    return tuple(name for name in ("unsure", "unchecked") if name in audited.columns)


def _unidentified() -> Column:
    on_message = f.col("operation").isin(
        [Operation.SEND.value, Operation.DIVERT.value, Operation.SPOOL.value, Operation.RESTORE.value]
    )
    ok = (f.col("outcome") == Outcome.OK.value) & (f.col("role") != Role.NAMESPACE.value)
    return _count(ok & on_message & f.col("message_id").isNull()).alias("unidentified")


def _words() -> list[Column]:
    """What the ledgers say about themselves."""
    operation = f.col("operation")
    missing = f.sum(f.when(operation == Operation.GAP.value, f.col("count")))
    opened, closed = _count(operation == Operation.OPEN.value), _count(operation == Operation.CLOSE.value)
    return [f.coalesce(missing, f.lit(0)).alias("unrecorded"), (opened - closed).alias("died")]


def _total(condition: Column, name: str) -> Column:
    return f.coalesce(f.sum(f.when(condition, f.col(name))), f.lit(0))


def _count(condition: Column) -> Column:
    return f.count(f.when(condition, 1))
