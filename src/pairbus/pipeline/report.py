"""The report of a span of days as plain values, and the audit's verdict in one sentence with its numbers.

`summarise` audits a ledger without tables; `report` reads built tables, for the page, for JSON and for the console.
"""

from __future__ import annotations

import itertools
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f

from pairbus.costs.rules import ACCEPTED, RULES, FlowName
from pairbus.ledger.files import files_as_they_are, publish_orphans, warn_of_skipped, with_short_lines
from pairbus.ledger.records import BACKLOG_SEGMENT, Operation, Role
from pairbus.ledger.writer import host_label
from pairbus.pipeline import gold, schemas
from pairbus.pipeline.audit import Look, all_recorded, audit, confirm
from pairbus.pipeline.gold import Pricing, operations_daily
from pairbus.pipeline.silver import flow_column, quarantine, read_lines, silver
from pairbus.pipeline.store import RECORDED_TWICE, Manifest, TablesError, TableStore, each_once

__all__ = ["Report", "Summary", "report", "summarise"]

_WIDTHS_SECONDS = (1, 5, 15, 60, 300, 900, 3600, 6 * 3600, 24 * 3600, 7 * 24 * 3600)
_MAX_BUCKETS = 120
_CARRIERS = (Role.CLIENT.value, Role.SYPHON.value)
_ENTERING = (FlowName.STORED, FlowName.RESUBMITTED)
"""The flows that put a message into a backlog queue."""
_MAX_NAMED = 100
"""The most messages of a kind that are listed; more are only counted."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Counts of message copies over a whole ledger.

    `accepted` is the sum of `delivered`, `dead_lettered`, `expired`, `waiting` and `lost`.
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
    """Operations on messages without an id, which cannot be followed."""
    unrecorded: int
    """Operations that writers could not record, by their own count."""
    broken_lines: int
    died: int
    """Processes without a closing record: they still run, or died, and their last records may be missing."""
    unsure: int = 0
    """Of `waiting`: not found in the queues, but somebody may have carried them home and not recorded it yet."""
    unchecked: int = 0
    """Of `waiting`: not compared with the look into the queues."""
    inferred: int = 0
    """Of `accepted`: without a record of a client, but they were in a backlog or spool."""
    skipped_files: int = 0
    """Entries of the ledger folder that look like ledger files but cannot be trusted or read, such as links."""

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

    The Spark session must run on this machine, because open files are first copied to a local temporary folder. With
    `require_receipts`, a message is delivered when a receiver settled it, not when the primary accepted it. `look` is a
    look into the queues, see `pairbus.pipeline.audit.confirm`.
    """
    folder = Path(ledger_folder)
    if not folder.is_dir():
        raise ValueError(f"The ledger folder {folder} does not exist; give the folder that clients record in.")
    publish_orphans(folder)
    skipped = warn_of_skipped(folder)
    with tempfile.TemporaryDirectory(prefix="pairbus-ledger-") as copied:
        files = files_as_they_are(folder, Path(copied))
        lines = read_lines(spark, with_short_lines(files, Path(copied) / "short-lines"))
        # Persisted, because several queries read it; and so that no filter reaches the reader of JSON lines, which
        # drops all rows if a filter is always true.
        records = each_once(silver(lines)).persist()
        try:
            audited = audit(records, look=look, require_receipts=require_receipts)
            summary = _summarise(records, operations_daily(records), audited, quarantine(lines))
            return replace(summary, skipped_files=skipped)
        finally:
            records.unpersist()


_COPIES = (
    *("accepted", "delivered", "dead_lettered", "expired", "waiting", "lost", "duplicates"),
    *("diverted", "spooled", "restored", "inferred", "unsure", "unchecked"),
)
"""The columns of an audit that are summed; a look into the queues adds the last two."""
_SUCCEEDED = "role <> 'namespace' and outcome = 'ok'"
_RECORD_COUNTS = (
    f"count_if({_SUCCEEDED} and operation = 'ping') as pings",
    f"count_if({_SUCCEEDED} and message_id is null and operation in ('send', 'divert', 'spool', 'restore'))"
    " as unidentified",
    "coalesce(sum(count) filter (where operation = 'ledger-gap'), 0) as unrecorded",
    "count_if(operation = 'ledger-open') - count_if(operation = 'ledger-close') as died",
)
"""The counts of a summary that come from single records."""


def _summarise(
    records: DataFrame, operations: DataFrame, audited: DataFrame, quarantined: DataFrame, *, follows_all: bool = True
) -> Summary:
    """Built tables do not follow all messages, only those that went through a backlog.

    Then a message that the primary accepted directly counts as delivered.
    """
    names = [name for name in _COPIES if name in audited.columns]
    counts = _row(audited.selectExpr(*(f"coalesce(sum({name}), 0) as {name}" for name in names))).asDict()
    billed, offered = _row(
        operations.withColumn("is_accepted", flow_column(*ACCEPTED)).selectExpr(
            "coalesce(sum(billed) filter (where in_bill), 0)",
            f"coalesce(sum(operations) filter (where is_accepted and {_SUCCEEDED}), 0)",
        )
    )
    if not follows_all:
        undelivered = sum(counts[name] for name in ("dead_lettered", "expired", "waiting", "lost"))
        accepted = offered + counts["inferred"]
        counts |= {"accepted": accepted, "delivered": accepted - undelivered}
    recorded = _row(records.selectExpr(*_RECORD_COUNTS)).asDict()
    return Summary(**counts, **recorded, billed_operations=billed, broken_lines=quarantined.count())


def _row(aggregated: DataFrame) -> Row:
    row = aggregated.first()
    assert row is not None
    return row


@dataclass(frozen=True, slots=True)
class Span:
    """A time in one state; `end_s` is None if it has not ended."""

    entity: str
    state: str
    start_s: float
    end_s: float | None
    cause: str


@dataclass(frozen=True, slots=True)
class Series:
    """Values over time, one for each bucket of `width_s` seconds from `start_s` on."""

    start_s: float
    width_s: int
    values: dict[str, list[float]]


@dataclass(frozen=True, slots=True)
class Report:
    """Times are seconds since the Unix epoch, UTC."""

    first_day: str
    last_day: str
    summary: Summary
    checked: bool
    """Whether the waiting messages were compared with a look into the queues."""
    states: list[Span]
    sends: Series
    depth: Series
    waits: list[tuple[str, int]]
    """Waiting times of messages: the upper limit of each step, and the count."""
    episodes: list[dict[str, Any]]
    waiting: list[dict[str, Any]]
    availability: list[dict[str, Any]]
    bills: list[dict[str, Any]]
    pairing_cost: list[dict[str, Any]]
    lost: list[dict[str, Any]]
    duplicated: list[dict[str, Any]]
    unsure: list[dict[str, Any]] = field(default_factory=list)
    """Waiting messages that were not found, but that somebody may have carried home and not recorded yet."""

    def to_json(self) -> bytes:
        """Everything on the page, for programs."""
        body = asdict(self) | {"summary": self.summary.to_json()}
        return msgspec.json.format(msgspec.json.encode(body), indent=2)


def report(
    spark: SparkSession,
    tables_folder: Path | str,
    *,
    first_day: date | None = None,
    last_day: date | None = None,
    look: Look | None = None,
    pricing: Pricing | None = None,
) -> Report:
    """Report what happened from `first_day` to `last_day`, both included; without them, everything.

    `tables_folder` has the tables of `pairbus.pipeline.build.build`; `look` is a look into the queues from before that
    build. Bills are those of the tables, unless `pricing` differs: then they are made for this report only.
    `pairbus.pipeline.page.html_page` renders the result as a page, `to_json` as JSON.
    """
    store = TableStore(tables_folder)
    manifest = store.manifest()
    if not manifest.batch:
        raise TablesError(
            f"There are no tables in {store.folder}: run 'pairbus ledger build' when the ledger has a published file, "
            "a minute after its first record at the latest."
        )
    known = manifest.days("silver")
    if not known:
        raise TablesError(f"The tables in {store.folder} have no records: no line of the ledger could be read.")
    first, last = (first_day or date.min).isoformat(), (last_day or date.max).isoformat()
    days = [day for day in known if first <= day <= last]
    if not days:
        raise TablesError(
            f"The tables have no records from {first_day} to {last_day}; they have {known[0]} to {known[-1]}."
        )
    return _Reading(spark, store, manifest, days).report(look, pricing)


@dataclass(frozen=True, slots=True)
class _Reading:
    spark: SparkSession
    store: TableStore
    manifest: Manifest
    days: Sequence[str]

    def report(self, look: Look | None, pricing: Pricing | None) -> Report:
        first, last = date.fromisoformat(self.days[0]), date.fromisoformat(self.days[-1])
        start_s = datetime(first.year, first.month, first.day, tzinfo=UTC).timestamp()
        records = self._table(schemas.SILVER)
        by_ledger = self._table(schemas.AUDIT)
        audit = by_ledger
        if look is not None:
            audit = confirm(audit, look, sure=all_recorded(records, look, host_label()))
        audit = audit.persist()
        try:
            operations = self._table(schemas.OPERATIONS_DAILY)
            summary = _summarise(records, operations, audit, self._unreadable(), follows_all=False)
            bills, pairing_cost = self._bills(pricing)
            waited = self._table(schemas.WAITING) if look is None else gold.waiting(audit)
            sends, depth = over_time(records, self._depth_before())
            from_first_day = self._where(schemas.SILVER, lambda day: day >= self.days[0])
            is_end = f.col("operation") == Operation.CLOSE.value
            processes = from_first_day.groupBy("process").agg(f.min("day"), f.bool_or(is_end)).collect()
            alive = {process for process, seen, _ in processes if seen <= last}
            return Report(
                first_day=self.days[0],
                last_day=self.days[-1],
                summary=replace(
                    summary,
                    died=len(alive - {process for process, _, ended_in_order in processes if ended_in_order}),
                    unrecorded=summary.unrecorded - self._dropped_after_reading(records),
                    skipped_files=self.manifest.skipped,
                ),
                checked=look is not None,
                states=_states(self._until_the_end(schemas.TRANSITIONS), start_s, alive),
                sends=sends,
                depth=depth,
                waits=_waits(audit),
                episodes=self._episodes(start_s, alive, _waiting(by_ledger) - _waiting(audit) if look else Counter()),
                waiting=_plain(waited.orderBy("day", "primary", "target")),
                availability=_plain(_in_order(self._table(schemas.AVAILABILITY), "day", "primary", "target")),
                bills=sorted(_plain(bills), key=_line_order),
                pairing_cost=_plain(_in_order(pairing_cost, "month", "namespace", "cause")),
                lost=_named(audit, "lost"),
                duplicated=_named(audit, "duplicates"),
                unsure=_named(audit, "unsure") if look is not None else [],
            )
        finally:
            audit.unpersist()

    def _dropped_after_reading(self, records: DataFrame) -> int:
        """Operations in ledger files that a writer deleted to make room after the tables had read them."""
        gaps = records.where((f.col("operation") == Operation.GAP.value) & (f.col("cause") == "dropped"))
        dropped = gaps.groupBy("entity").agg(f.sum("count").alias("count")).collect()
        # Silver has names in lower case, and no two processes have names that differ only in case.
        files = {name.lower(): size for name, size in self.manifest.files.items()}
        departed = {process.lower(): spans for process, spans in self.manifest.departed.items()}
        manifest = replace(self.manifest, files=files, departed=departed)
        return sum(int(row["count"]) for row in dropped if manifest.has_read(row["entity"]))

    def _unreadable(self) -> DataFrame:
        """The lines that could not be read. Duplicates are not among them: the tables have their originals."""
        lines = self.store.read(self.spark, schemas.QUARANTINE, self.manifest)
        return lines.where(f.col("reason") != RECORDED_TWICE)

    def _bills(self, pricing: Pricing | None) -> tuple[DataFrame, DataFrame]:
        """The bills, and the cost of the pairing, of the months of the span."""
        months = {day[:7] for day in self.days}
        bills, pairing_cost, operations = (
            self._where(table, lambda day: day[:7] in months)
            for table in (schemas.BILLS, schemas.PAIRING_COST, schemas.OPERATIONS_DAILY)
        )
        if pricing is None or pricing.kept == self.manifest.prices:
            return bills, pairing_cost
        return gold.bills(operations, pricing), gold.pairing_cost(operations, pricing)

    def _depth_before(self) -> int:
        """The messages in backlogs when the first day began."""
        earlier = self._where(schemas.OPERATIONS_DAILY, lambda day: day < self.days[0])
        moves = earlier.withColumn("on_backlog", f.contains("entity", f.lit(BACKLOG_SEGMENT)))
        entered, left = flow_column(*_ENTERING), flow_column(FlowName.GONE)
        change = f.when(entered, f.col("operations")).when(left, -f.col("operations"))
        (depth,) = _row(moves.where(f.col("role").isin(*_CARRIERS)).agg(f.sum(change)))
        return max(0, depth or 0)

    def _episodes(self, start_s: float, alive: Collection[str], missing: Counter[str]) -> list[dict[str, Any]]:
        """Failovers that began in the span, or before it and were not over when it began.

        Messages that a look into the queues found `missing` do not wait.
        """
        rows = _in_order(self._until_the_end(schemas.EPISODES), "failed_over_at").collect()
        return [
            _plain_row(row) | {"waiting": row["waiting"] - missing[row["episode"]]}
            for row in rows
            if row["day"].isoformat() >= self.days[0]
            or (row["process"] in alive and (row["healthy_at"] is None or _seconds(row["healthy_at"]) >= start_s))
        ]

    def _until_the_end(self, table: schemas.Table) -> DataFrame:
        """A small table from its first day to the last day of the span."""
        return self._where(table, lambda day: day <= self.days[-1])

    def _table(self, table: schemas.Table) -> DataFrame:
        return self._where(table, lambda day: day in self.days)

    def _where(self, table: schemas.Table, is_wanted: Callable[[str], bool]) -> DataFrame:
        return self.store.read(self.spark, table, self.manifest, filter(is_wanted, self.manifest.days(table.name)))


def _waiting(audit: DataFrame) -> Counter[str]:
    """The number of waiting messages of each failover."""
    rows = audit.where("waiting > 0 and episode is not null").groupBy("episode").count().collect()
    return Counter({row["episode"]: row["count"] for row in rows})


def _in_order(small: DataFrame, *columns: str) -> DataFrame:
    """The rows of a small table in order. One task sorts them; `orderBy` would sample them first, and shuffle."""
    return small.coalesce(1).sortWithinPartitions(*columns)


def _plain(frame: DataFrame) -> list[dict[str, Any]]:
    return [_plain_row(row) for row in frame.collect()]


def _plain_row(row: Row) -> dict[str, Any]:
    return {name: _value(value) for name, value in row.asDict().items()}


def _value(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="milliseconds")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return f"{value.normalize():f}"
    return value


def _line_order(line: dict[str, Any]) -> tuple[str, str, int, int]:
    """The order of lines in a bill: standing charges, operations, connections; steps from the lowest up."""
    what = line["what"]
    kinds = ("base charge", "messaging units", "operations", "brokered connections")
    floor = re.search(r"\d[\d,]*", what)
    kind = next(i for i, name in enumerate(kinds) if what.startswith(name))
    return line["month"], line["namespace"], kind, int(floor[0].replace(",", "")) if floor else 0


def _named(audit: DataFrame, count: str) -> list[dict[str, Any]]:
    rows = audit.where(f.col(count) > 0).orderBy("first_at").limit(_MAX_NAMED)
    return _plain(rows.select("primary", "target", "message_id", "episode", "diverted_at", count, "verdict"))


def _states(transitions: DataFrame, start_s: float, alive: Collection[str]) -> list[Span]:
    """The states other than healthy from `start_s` on, by entity, and by client if an entity has several.

    A state that began earlier is cut at `start_s`. Only processes in `alive` count: a process that died long ago has no
    state.
    """
    every = _in_order(transitions, "primary", "target", "process", "at", "n").collect()
    rows = [row for row in every if row["process"] in alive]
    processes: dict[tuple[str, str], set[str]] = {}
    for row in rows:
        processes.setdefault((row["primary"], row["target"]), set()).add(row["process"])
    spans: list[Span] = []
    for row, after in itertools.zip_longest(rows, rows[1:]):
        if row["state_to"] == "healthy":
            continue
        same = after is not None and all(after[name] == row[name] for name in ("primary", "target", "process"))
        several = len(processes[row["primary"], row["target"]]) > 1
        name = f"{row['primary']}/{row['target']}" + (f" ({row['process']})" if several else "")
        end = _seconds(after["at"]) if after is not None and same else None
        if end is None or end >= start_s:
            spans.append(Span(name, row["state_to"], max(start_s, _seconds(row["at"])), end, row["cause"] or ""))
    return spans


def _seconds(moment: datetime) -> float:
    """Spark returns naive timestamps in the machine's time zone, as `datetime.timestamp` expects."""
    return moment.timestamp()


def over_time(records: DataFrame, depth_before: int) -> tuple[Series, Series]:
    """Sends by route, and the depth of the backlogs, in at most `_MAX_BUCKETS` buckets."""
    kinds = {
        "primary": (FlowName.PRIMARY, FlowName.FORWARDED),
        "backlog": (FlowName.STORED,),
        "spool": (FlowName.SPOOL,),
        "refused": (FlowName.FAILED, FlowName.FORWARD_FAILED),
        "entered": _ENTERING,
        "left": (FlowName.GONE,),
    }
    shown = {flow for flows in kinds.values() for flow in flows}
    # Operations that failed are drawn nowhere, but the time axis includes them.
    drawn = [operation.value for operation, rules in RULES.items() if any(shown & set(rule.flows) for rule in rules)]
    moves = records.where(f.col("role").isin(*_CARRIERS) & f.col("operation").isin(drawn))
    edges = _row(moves.agg(f.min("at").alias("first"), f.max("at").alias("last")))
    if edges["first"] is None:
        return Series(0.0, 1, {}), Series(0.0, 1, {})
    first, last = _seconds(edges["first"]), _seconds(edges["last"])
    fitting = (width for width in _WIDTHS_SECONDS if (last - first) / width < _MAX_BUCKETS - 1)
    width = next(fitting, int((last - first) / (_MAX_BUCKETS - 2)) + 1)
    start = first // width * width
    bucket = f.floor((f.unix_micros("at") / 1_000_000 - f.lit(start)) / width).alias("bucket")
    counts = moves.groupBy(bucket).agg(*(f.count_if(flow_column(*flows)).alias(name) for name, flows in kinds.items()))
    size = int((last - start) // width) + 1
    values = {name: [0.0] * size for name in kinds}
    for row in counts.collect():
        for name in kinds:
            values[name][row["bucket"]] = float(row[name])
    depth, level = [], float(depth_before)
    for entered, gone in zip(values.pop("entered"), values.pop("left"), strict=True):
        level = max(0.0, level + entered - gone)
        depth.append(level)
    return Series(start, width, values), Series(start, width, {"messages in backlogs": depth})


def _waits(audit: DataFrame) -> list[tuple[str, int]]:
    """Waiting times of messages, counted in readable steps."""
    edges = {"1 s": 1, "5 s": 5, "15 s": 15, "1 min": 60, "5 min": 300, "15 min": 900, "1 h": 3600}
    edges |= {"4 h": 4 * 3600, "1 day": 24 * 3600}
    seconds = "(unix_micros(home_at) - unix_micros(diverted_at)) / 1000000"
    within = [f"count_if({seconds} <= {edge}) as `{name}`" for name, edge in edges.items()]
    row = _row(audit.selectExpr(*within, f"count({seconds}) as longer"))
    return [(name, row[name] - shorter) for name, shorter in zip(row.asDict(), (0, *row), strict=False)]
