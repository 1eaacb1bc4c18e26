"""Builds the tables: reads only new ledger files, recomputes only the days they touch.

The steps, for a build that found new files:

1. New files to silver and quarantine, as a batch of their own. Records that are there already, or twice in these
   files, go to quarantine (`pairbus.pipeline.store`).
2. Tables that a day's silver decides (`operations_daily`, `transitions`): the days the batch touches, anew.
3. `messages`, which may span days: the batch's evidence is added to the messages it concerns, found among the
   days that are recent (`lookback_days`) or still have waiting messages; then the days that changed, anew.
4. Tables made from those (`audit`, `waiting`, `availability`), for the days that changed; the small ones
   (`episodes`, `bills`, `pairing_cost`) as a whole. Tables that do not need each other are made at the same time.
5. Publication, in one step. A build that dies before it has changed nothing.

Without new files there is nothing to do, unless the prices are others than last time: then bills are made anew.

So one build of many files gives the same tables as many builds of a few, in any order, as long as a message's
records are not read more than `lookback_days` apart after it was settled.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import date, timedelta
from pathlib import Path
from threading import Lock
from typing import Any

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as f

from pairbus.ledger.files import closed_files, publish_orphans
from pairbus.pipeline import gold, schemas
from pairbus.pipeline.audit import evidence, judge, speaking, through_backlog, weigh
from pairbus.pipeline.gold import Pricing
from pairbus.pipeline.silver import broken, quarantine, read_lines, silver, utc_day
from pairbus.pipeline.store import (
    Manifest,
    TablesError,
    TableStore,
    as_quarantined,
    copies,
    covered,
    in_doubt,
    numbers_of,
    without_copies,
)

_log = logging.getLogger("pairbus.pipeline")
_MOST_NAMED = 20
"""Namespaces that a sentence names."""
_FEW_KEYS = 2_000_000
"""Up to so many messages of interest every task may hold their keys: some 60 MiB."""


@dataclass(frozen=True, slots=True)
class BuildResult:
    """What one build did."""

    new_files: int
    records: int
    quarantined: int
    days: tuple[str, ...]
    """Days that some table was recomputed for."""


def build(
    spark: SparkSession,
    ledger_folder: Path | str,
    tables_folder: Path | str,
    *,
    pricing: Pricing | None = None,
    lookback_days: int = 7,
    most_batches: int = 32,
) -> BuildResult:
    """Bring the tables up to the published ledger files. Running it again changes nothing.

    Bills are made with `pricing`; unless given, as the build before made them, and the first with the shipped prices.
    A day of silver that has come to more than `most_batches` batches is written again as one, and so is the quarantine:
    however often one builds, the number of files stays bounded.
    """
    ledger = Path(ledger_folder)
    if not ledger.is_dir():
        raise ValueError(f"The ledger folder {ledger} does not exist; give the folder that clients record in.")
    store = TableStore(tables_folder)
    with store.locked() as batch:
        before = store.manifest()
        store.sweep(before)
        publish_orphans(ledger)
        files = _new_files(ledger, before)
        prices = pricing or before.prices or Pricing()
        if not files and (not before.batch or before.prices == prices.kept):
            return BuildResult(0, 0, 0, ())
        sizes = {path.name: path.stat().st_size for path in files}
        present = {path.name for path in closed_files(ledger)}
        builder = Build(spark, store, before, batch, prices, lookback_days)
        result = builder.run(files)
        builder.compact(most_batches)
        store.publish(builder.manifest.with_files(sizes, present))
    unknown = unknown_names(spark, tables_folder, prices)
    if unknown:
        _log.warning("%s", unknown)
    return result


def unknown_names(spark: SparkSession, tables_folder: Path | str, pricing: Pricing) -> str | None:
    """A sentence about names in `pricing` that no namespace of the tables has, if there are any.

    This is not an error: a namespace may not have done anything yet.
    """
    store = TableStore(tables_folder)
    manifest = store.manifest()
    if not manifest.batch or not (pricing.plans or pricing.connections):
        return None
    bills = store.read_table(spark, schemas.BILLS.schema, "bills", manifest)
    known = sorted(row["namespace"] for row in bills.select("namespace").distinct().collect())
    unknown = pricing.unknown_names(known)
    if not unknown:
        return None
    named = ", ".join(known[:_MOST_NAMED]) + (f" and {len(known) - _MOST_NAMED} more" if known[_MOST_NAMED:] else "")
    return (
        f"No namespace of the tables is called {' or '.join(unknown)} (they have {named or 'none'}): "
        "its plans and connections are in no bill."
    )


def _new_files(ledger: Path, manifest: Manifest) -> list[Path]:
    files = []
    for path in closed_files(ledger):
        known = manifest.files.get(path.name)
        if known is None:
            if not manifest.has_read(path.name):
                files.append(path)
        elif known != path.stat().st_size:
            raise TablesError(
                f"The ledger file {path.name} has changed after it was read ({known} bytes then, "
                f"{path.stat().st_size} now): restore it, or build the tables anew in an empty folder."
            )
    return files


class Build:
    """One build: the manifest grows with each step, and counts only once it is published."""

    def __init__(
        self,
        spark: SparkSession,
        store: TableStore,
        before: Manifest,
        batch: int,
        pricing: Pricing,
        lookback_days: int,
    ) -> None:
        self._spark = spark
        self._store = store
        self._before = before
        self._pricing = pricing
        self._lookback = timedelta(days=lookback_days)
        self._batch = batch
        self.manifest = replace(before, batch=self._batch, prices=pricing.kept)
        self._lock = Lock()

    def run(self, files: Sequence[Path]) -> BuildResult:
        if not files:
            self._make_bills()
            return BuildResult(0, 0, 0, ())
        days, records, quarantined = self._ingest(files)
        touched = self.refresh(days) if days else set()
        if not days and self._before.prices not in (None, self._pricing.kept):
            self._make_bills()
        return BuildResult(len(files), records, quarantined, tuple(sorted(touched)))

    def refresh(self, days: Sequence[str]) -> set[str]:
        """Bring all gold tables up to what the batch's silver has for these days; the days that changed."""
        *_, changed = _together(
            lambda: self._recompute_operations(days),
            lambda: self._recompute_transitions(days),
            lambda: self._add_to_messages(days),
        )
        touched: set[str] = {*days, *changed}
        _together(
            lambda: self._judge_days(changed),
            lambda: self._recompute_availability(touched),
            self._make_bills,
        )
        self._recompute_episodes()
        return touched

    def compact(self, most_batches: int) -> None:
        into = self._batch + 1
        for day in [day for day, batches in self.manifest.silver.items() if len(batches) > most_batches]:
            self._store.compact(self._spark, schemas.SILVER.schema, self.manifest, day, into)
            self.manifest = replace(self.manifest, batch=into, silver={**self.manifest.silver, day: (into,)})
        if len(self.manifest.quarantine) > most_batches:
            self._store.compact_quarantine(self._spark, schemas.QUARANTINE.schema, self.manifest, into)
            self.manifest = replace(self.manifest, batch=into, quarantine=(into,))

    def _ingest(self, files: Sequence[Path]) -> tuple[list[str], int, int]:
        lines = read_lines(self._spark, files)
        counts = Observation("ingest")
        counted = lines.observe(counts, f.count("*").alias("lines"), f.count_if(broken()).alias("broken"))
        days = self._store.write(silver(counted), "silver", self._batch, "day", "namespace")
        total, bad = int(counts.get["lines"]), int(counts.get["broken"])
        numbers = numbers_of(self._silver_of_batch(days))
        days, twice = self._leave_out_copies(lines, days, in_doubt(numbers, self._before.numbers))
        if bad and not twice:
            self._store.write(quarantine(lines), "quarantine", self._batch)
        known = self.manifest
        self.manifest = replace(
            known,
            numbers=covered(known.numbers, numbers),
            silver={**known.silver, **{day: (*known.silver.get(day, ()), self._batch) for day in days}},
            quarantine=(*known.quarantine, self._batch) if bad or twice else known.quarantine,
        )
        return days, total - bad - twice, bad + twice

    def _leave_out_copies(self, lines: DataFrame, days: list[str], doubtful: Sequence[str]) -> tuple[list[str], int]:
        """Write the batch again if records of these processes are there twice: its days then, and how many were."""
        if not doubtful:
            return days, 0
        known = self._store.read_silver(self._spark, schemas.SILVER.schema, self._before, days)
        again = copies(self._silver_of_batch(days), known, doubtful)
        twice = again.count()
        if twice:
            self._store.write(quarantine(lines).unionByName(as_quarantined(again)), "quarantine", self._batch)
            single = without_copies(self._silver_of_batch(days), known, doubtful)
            days = self._store.write_again(single, "silver", self._batch, "day", "namespace")
        return days, twice

    def _silver_of_batch(self, days: Iterable[str]) -> DataFrame:
        return self._store.read_silver_batch(self._spark, schemas.SILVER.schema, self._batch, days)

    def _recompute_operations(self, days: Collection[str]) -> None:
        self._replace("operations_daily", gold.operations_daily(self._silver(days)), days)

    def _recompute_transitions(self, days: Collection[str]) -> None:
        # Few, among many records: one file, not one for each task that looked for them.
        self._replace("transitions", gold.transitions(self._silver(days)).repartition(1), days)

    def _silver(self, days: Collection[str]) -> DataFrame:
        return self._store.read_silver(self._spark, schemas.SILVER.schema, self.manifest, days)

    def _add_to_messages(self, days: Sequence[str]) -> set[str]:
        """Add the batch's evidence; returns the days whose messages changed."""
        earliest = (date.fromisoformat(min(days)) - self._lookback).isoformat()
        before, last = self._before, self._before.last_days
        within = [d for d in before.days("messages") if last.get(d, d) >= earliest or d in before.open_days]
        old = self._read("messages", schemas.MESSAGES, within)
        spoken = speaking(self._silver_of_batch(days))
        special = evidence(spoken.where("not plain")).persist()
        try:
            keys, new = _count_keys(special, old)
            if not keys:
                return set()
            plain_before = self._plain_before(earliest) if new else None
            added = concerning(special, spoken.where("plain"), old, plain_before, few=keys <= _FEW_KEYS)
            return self._merge_messages(old, added, within)
        finally:
            special.unpersist()

    def _plain_before(self, earliest: str) -> DataFrame | None:
        """Plain records that earlier builds read: an id may have been used before it became of interest."""
        days = [day for day in self._before.silver if day >= earliest]
        if not days:
            return None
        earlier = self._store.read_silver(self._spark, schemas.SILVER.schema, self._before, days)
        return speaking(earlier).where("plain")

    def _merge_messages(self, old: DataFrame, added: DataFrame, within: Collection[str]) -> set[str]:
        added = added.persist()
        try:
            touched_rows = old.join(added, "k1", "left_semi").select("day").union(added.select("day"))
            changed = {row["day"].isoformat() for row in touched_rows.distinct().collect()}
            kept_days = [d for d in within if d in changed]
            kept = self._read("messages", schemas.MESSAGES, kept_days)
            if changed:
                self._replace("messages", weigh(kept.unionByName(added)) if kept_days else added, changed)
        finally:
            added.unpersist()
        return changed

    def _judge_days(self, days: Collection[str]) -> None:
        if not days:
            return
        messages = self._read("messages", schemas.MESSAGES, days)
        self._replace("audit", through_backlog(judge(messages)), days)
        audit = self._read("audit", schemas.AUDIT, days)

        def note_open_days() -> None:
            rows = audit.where("waiting > 0").select("day").distinct().collect()
            open_days = (set(self.manifest.open_days) - set(days)) | {row["day"].isoformat() for row in rows}
            with self._lock:
                self.manifest = replace(self.manifest, open_days=tuple(sorted(open_days)))

        def note_last_days() -> None:
            # Late records find a message by when it was last heard of, however long it had waited.
            latest = messages.groupBy("day").agg(f.max(utc_day(f.col("last_at"))).alias("last")).collect()
            heard = {row["day"].isoformat(): row["last"].isoformat() for row in latest if row["last"] > row["day"]}
            with self._lock:
                kept = {day: last for day, last in self.manifest.last_days.items() if day not in days}
                self.manifest = replace(self.manifest, last_days=kept | heard)

        _together(
            lambda: self._replace("waiting", gold.waiting(audit), days),
            lambda: self._replace("episode_messages", gold.episode_messages(audit), days),
            note_open_days,
            note_last_days,
        )

    def _recompute_availability(self, days: Collection[str]) -> None:
        operations = self._read("operations_daily", schemas.OPERATIONS_DAILY, days)
        messages = self._read("messages", schemas.MESSAGES, days)
        self._replace("availability", gold.availability(operations, messages), days)

    def _recompute_episodes(self) -> None:
        transitions = self._read("transitions", schemas.TRANSITIONS)
        carried = self._read("episode_messages", schemas.EPISODE_MESSAGES)
        self._replace("episodes", gold.episodes(transitions, carried), self.manifest.days("episodes"))

    def _make_bills(self) -> None:
        operations = self._read("operations_daily", schemas.OPERATIONS_DAILY)
        self._replace("bills", gold.bills(operations, self._pricing), self.manifest.days("bills"))
        cost = gold.pairing_cost(operations, self._pricing)
        self._replace("pairing_cost", cost, self.manifest.days("pairing_cost"))

    def _read(self, name: str, table: schemas.Table, days: Collection[str] | None = None) -> DataFrame:
        return self._store.read_table(self._spark, table.schema, name, self.manifest, days)

    def _replace(self, name: str, frame: DataFrame, days: Collection[str]) -> None:
        written = self._store.write(frame, name, self._batch, "day")
        with self._lock:
            self.manifest = self.manifest.with_table(name, days, written, self._batch)


def _together(*steps: Callable[[], Any]) -> list[Any]:
    """Steps that do not need each other, at the same time: each waits for Spark, and Spark has room for all.

    All have ended when this returns or raises.
    """
    with ThreadPoolExecutor(len(steps), "pairbus-build") as pool:
        started = [pool.submit(step) for step in steps]
    return [step.result() for step in started]


def _count_keys(special: DataFrame, old: DataFrame) -> tuple[int, int]:
    """How many messages are of interest, and how many of them were not before."""
    told = special.select("k1", f.lit(True).alias("new")).union(old.select("k1", f.lit(False)))
    counted = told.groupBy("k1").agg(f.bool_and("new").alias("new")).agg(f.count("*"), f.count_if("new")).first()
    assert counted is not None
    return int(counted[0]), int(counted[1])


def concerning(
    special: DataFrame, plain: DataFrame, old: DataFrame, plain_before: DataFrame | None, *, few: bool = False
) -> DataFrame:
    """What new evidence adds to `messages`, weighed.

    A message is of interest from its first record that is not plain; then its plain records count too, those of
    this batch and those that were read before. `special` is evidence; the plain ones are records, because most of them
    are left behind before anything is made of them. With `few` keys they are not shuffled for that.
    """
    concerned = special.select("k1").distinct()
    of_interest = concerned.union(old.select("k1")).distinct()
    found = special.unionByName(_plain_evidence(plain, of_interest, few))
    if plain_before is not None:
        first_seen = concerned.join(old.select("k1"), "k1", "left_anti")
        found = found.unionByName(_plain_evidence(plain_before, first_seen, few))
    return weigh(found)


def _plain_evidence(records: DataFrame, keys: DataFrame, few: bool) -> DataFrame:
    found = evidence(records.join(f.broadcast(keys) if few else keys, "k1", "left_semi"))
    # Known to be nothing, so that whoever looks for episodes need not read these records again.
    return found.withColumn("episode", f.lit(None).cast("string"))
