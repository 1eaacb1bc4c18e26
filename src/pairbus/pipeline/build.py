"""Builds the tables: reads only new ledger files and recomputes only the days they touch.

The steps of a build with new files:

1. Read the files into a new batch of silver and quarantine. Duplicate records go to quarantine
   (`pairbus.pipeline.store`).
2. Recompute the tables that depend only on the silver of a day (`operations_daily`, `transitions`) for the days of the
   batch.
3. Add the batch's evidence to `messages`. A message may span days, so look for it in recent days (`lookback_days`) and
   in days with waiting messages; recompute the days that changed.
4. From these, recompute `audit`, `waiting` and `availability` for the days that changed, and the small tables
   (`episodes`, `bills`, `pairing_cost`) as a whole. Independent tables are computed at the same time.
5. Publish everything in one step. A build that dies before this has changed nothing.

A build without new files does nothing, unless the prices have changed: then it recomputes the bills.

So one build of many files gives the same tables as many builds of a few files, in any order, as long as the records of
a settled message are read within `lookback_days`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import date, timedelta
from pathlib import Path
from threading import Lock
from typing import Any

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as f

from pairbus.ledger.files import closed_files, publish_orphans, warn_of_skipped, with_short_lines
from pairbus.pipeline import gold, schemas
from pairbus.pipeline.audit import about_messages, evidence, judge, through_backlog, weigh
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
_MAX_NAMED = 20
"""The most namespaces that a sentence names."""
_MAX_BROADCAST_KEYS = 2_000_000
"""Up to this number of messages, every task holds all their keys: about 60 MiB."""


@dataclass(frozen=True, slots=True)
class BuildResult:
    new_files: int
    records: int
    quarantined: int
    days: tuple[str, ...]
    """The days for which some table was recomputed."""


def build(
    spark: SparkSession,
    ledger_folder: Path | str,
    tables_folder: Path | str,
    *,
    pricing: Pricing | None = None,
    lookback_days: int = 7,
    most_batches: int = 32,
) -> BuildResult:
    """Update the tables from the published ledger files. Running it again changes nothing.

    Bills use `pricing`, else the prices of the previous build, else those in this package. A day of silver with more
    than `most_batches` batches is written again as one batch, and so is the quarantine: however often you build, the
    number of files stays bounded.
    """
    ledger = Path(ledger_folder)
    if not ledger.is_dir():
        raise ValueError(f"The ledger folder {ledger} does not exist; give the folder that clients record in.")
    store = TableStore(tables_folder)
    with store.locked() as batch:
        before = store.manifest()
        store.sweep(before)
        publish_orphans(ledger)
        skipped = warn_of_skipped(ledger)
        files = _new_files(ledger, before)
        prices = pricing or before.prices or Pricing()
        if not files and (not before.batch or before.prices == prices.kept):
            if before.batch and skipped != before.skipped:
                store.publish(replace(before, skipped=skipped))
            return BuildResult(0, 0, 0, ())
        sizes = {path.name: path.stat().st_size for path in files}
        present = {path.name for path in closed_files(ledger)}
        builder = Build(spark, store, before, batch, prices, lookback_days)
        result = builder.run(files)
        builder.compact(most_batches)
        store.publish(replace(builder.manifest.with_files(sizes, present), skipped=skipped))
    unknown = unknown_names(spark, tables_folder, prices)
    if unknown:
        _log.warning("%s", unknown)
    return result


def unknown_names(spark: SparkSession, tables_folder: Path | str, pricing: Pricing) -> str | None:
    """A sentence about the names in `pricing` that no namespace in the tables has; None if there are none.

    This is not an error: a namespace may not have done anything yet.
    """
    store = TableStore(tables_folder)
    manifest = store.manifest()
    if not manifest.batch or not (pricing.plans or pricing.connections):
        return None
    bills = store.read(spark, schemas.BILLS, manifest)
    known = sorted(row["namespace"] for row in bills.select("namespace").distinct().collect())
    unknown = pricing.unknown_names(known)
    if not unknown:
        return None
    named = ", ".join(known[:_MAX_NAMED]) + (f" and {len(known) - _MAX_NAMED} more" if known[_MAX_NAMED:] else "")
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
                f"{path.stat().st_size} now): restore it, or rebuild the tables in an empty folder."
            )
    return files


@dataclass
class Build:
    """One build. Each step adds to the manifest, which takes effect when it is published."""

    spark: SparkSession
    store: TableStore
    before: Manifest
    batch: int
    pricing: Pricing
    lookback_days: int

    def __post_init__(self) -> None:
        self.manifest = replace(self.before, batch=self.batch, prices=self.pricing.kept)
        self._lock = Lock()

    def run(self, files: Sequence[Path]) -> BuildResult:
        if not files:
            self._make_bills()
            return BuildResult(0, 0, 0, ())
        days, records, quarantined = self._ingest(files)
        touched = self.refresh(days) if days else set()
        if not days and self.before.prices not in (None, self.pricing.kept):
            self._make_bills()
        return BuildResult(len(files), records, quarantined, tuple(sorted(touched)))

    def refresh(self, days: Sequence[str]) -> set[str]:
        """Update all gold tables from the batch's silver of these days; returns the days that changed."""
        *_, changed = _together(
            lambda: self._replace(schemas.OPERATIONS_DAILY, gold.operations_daily(self._silver(days)), days),
            # Transitions are few among many records: write one file, not one for each task.
            lambda: self._replace(schemas.TRANSITIONS, gold.transitions(self._silver(days)).repartition(1), days),
            lambda: self._add_to_messages(days),
        )
        touched: set[str] = {*days, *changed}
        _together(
            lambda: self._judge_days(changed),
            lambda: self._recompute_availability(touched),
            self._make_bills,
        )
        transitions, carried = self._read(schemas.TRANSITIONS), self._read(schemas.EPISODE_MESSAGES)
        self._replace(schemas.EPISODES, gold.episodes(transitions, carried))
        return touched

    def compact(self, most_batches: int) -> None:
        into = self.batch + 1
        for day in [day for day, batches in self.manifest.silver.items() if len(batches) > most_batches]:
            self.store.compact(self.spark, self.manifest, day, into)
            self.manifest = replace(self.manifest, batch=into, silver={**self.manifest.silver, day: (into,)})
        if len(self.manifest.quarantine) > most_batches:
            lines = self.store.read(self.spark, schemas.QUARANTINE, self.manifest)
            self.store.write(lines.coalesce(1), "quarantine", into)
            self.manifest = replace(self.manifest, batch=into, quarantine=(into,))

    def _ingest(self, files: Sequence[Path]) -> tuple[list[str], int, int]:
        lines = read_lines(self.spark, with_short_lines(files, self.store.scratch(self.batch)))
        counts = Observation("ingest")
        counted = lines.observe(counts, f.count("*").alias("lines"), f.count_if(broken()).alias("broken"))
        days = self.store.write(silver(counted), "silver", self.batch, "day", "namespace")
        total, bad = int(counts.get["lines"]), int(counts.get["broken"])
        numbers = numbers_of(self._silver_of_batch(days))
        days, twice = self._leave_out_copies(lines, days, in_doubt(numbers, self.before.numbers))
        if bad and not twice:
            self.store.write(quarantine(lines), "quarantine", self.batch)
        known = self.manifest
        self.manifest = replace(
            known,
            numbers=covered(known.numbers, numbers),
            silver={**known.silver, **{day: (*known.silver.get(day, ()), self.batch) for day in days}},
            quarantine=(*known.quarantine, self.batch) if bad or twice else known.quarantine,
        )
        return days, total - bad - twice, bad + twice

    def _leave_out_copies(self, lines: DataFrame, days: list[str], doubtful: Sequence[str]) -> tuple[list[str], int]:
        """Write the batch again without duplicates, if these processes have any; returns its days and their number."""
        if not doubtful:
            return days, 0
        known = self._silver(days, self.before)
        again = copies(self._silver_of_batch(days), known, doubtful)
        twice = again.count()
        if twice:
            self.store.write(quarantine(lines).unionByName(as_quarantined(again)), "quarantine", self.batch)
            single = without_copies(self._silver_of_batch(days), known, doubtful)
            days = self.store.write_again(single, "silver", self.batch, "day", "namespace")
        return days, twice

    def _silver_of_batch(self, days: Collection[str]) -> DataFrame:
        return self._silver(days, Manifest(silver=dict.fromkeys(days, (self.batch,))))

    def _silver(self, days: Collection[str], manifest: Manifest | None = None) -> DataFrame:
        return self.store.read(self.spark, schemas.SILVER, manifest or self.manifest, days)

    def _add_to_messages(self, days: Sequence[str]) -> set[str]:
        """Add the batch's evidence; returns the days whose messages changed."""
        earliest = (date.fromisoformat(min(days)) - timedelta(days=self.lookback_days)).isoformat()
        before, last = self.before, self.before.last_days
        within = [d for d in before.days("messages") if last.get(d, d) >= earliest or d in before.open_days]
        old = self._read(schemas.MESSAGES, within)
        records = about_messages(self._silver_of_batch(days))
        special = evidence(records.where("not plain")).persist()
        try:
            keys, new = _count_keys(special, old)
            if not keys:
                return set()
            # An id may have been used before its message became of interest.
            days_before = [day for day in before.silver if day >= earliest] if new else []
            plain_before = about_messages(self._silver(days_before, before)).where("plain") if days_before else None
            few = keys <= _MAX_BROADCAST_KEYS
            added = new_evidence(special, records.where("plain"), old, plain_before, few=few)
            return self._merge_messages(old, added, within)
        finally:
            special.unpersist()

    def _merge_messages(self, old: DataFrame, added: DataFrame, within: Collection[str]) -> set[str]:
        added = added.persist()
        try:
            touched_rows = old.join(added, "k1", "left_semi").select("day").union(added.select("day"))
            changed = {row["day"].isoformat() for row in touched_rows.distinct().collect()}
            kept_days = [d for d in within if d in changed]
            kept = self._read(schemas.MESSAGES, kept_days)
            if changed:
                self._replace(schemas.MESSAGES, weigh(kept.unionByName(added)) if kept_days else added, changed)
        finally:
            added.unpersist()
        return changed

    def _judge_days(self, days: Collection[str]) -> None:
        if not days:
            return
        messages = self._read(schemas.MESSAGES, days)
        self._replace(schemas.AUDIT, through_backlog(judge(messages)), days)
        audit = self._read(schemas.AUDIT, days)

        def note_days() -> None:
            # Late records find a message by the day of its last record, however long it has waited.
            last = messages.select("day", utc_day(f.col("last_at")).alias("last"), f.lit(0).alias("waiting"))
            ends = last.union(audit.select("day", "day", "waiting")).groupBy("day").agg(f.max("last"), f.max("waiting"))
            rows = [(day.isoformat(), last.isoformat(), waiting) for day, last, waiting in ends.collect()]
            with self._lock:
                open_days = set(self.manifest.open_days) - set(days) | {day for day, _, waiting in rows if waiting}
                last_days = {day: last for day, last in self.manifest.last_days.items() if day not in days}
                last_days |= {day: last for day, last, _ in rows if last > day}
                self.manifest = replace(self.manifest, open_days=tuple(sorted(open_days)), last_days=last_days)

        _together(
            lambda: self._replace(schemas.WAITING, gold.waiting(audit), days),
            lambda: self._replace(schemas.EPISODE_MESSAGES, gold.episode_messages(audit), days),
            note_days,
        )

    def _recompute_availability(self, days: Collection[str]) -> None:
        operations, messages = self._read(schemas.OPERATIONS_DAILY, days), self._read(schemas.MESSAGES, days)
        self._replace(schemas.AVAILABILITY, gold.availability(operations, messages), days)

    def _make_bills(self) -> None:
        operations = self._read(schemas.OPERATIONS_DAILY)
        _together(
            lambda: self._replace(schemas.BILLS, gold.bills(operations, self.pricing)),
            lambda: self._replace(schemas.PAIRING_COST, gold.pairing_cost(operations, self.pricing)),
        )

    def _read(self, table: schemas.Table, days: Collection[str] | None = None) -> DataFrame:
        return self.store.read(self.spark, table, self.manifest, days)

    def _replace(self, table: schemas.Table, frame: DataFrame, days: Collection[str] | None = None) -> None:
        """Replace these days of a table, or all."""
        written = self.store.write(frame, table.name, self.batch, "day")
        with self._lock:
            replaced = self.manifest.days(table.name) if days is None else days
            self.manifest = self.manifest.with_table(table.name, replaced, written, self.batch)


def _together(*steps: Callable[[], Any]) -> list[Any]:
    """Run independent steps at the same time. All have ended when this returns or raises."""
    with ThreadPoolExecutor(len(steps), "pairbus-build") as pool:
        started = [pool.submit(step) for step in steps]
    return [step.result() for step in started]


def _count_keys(special: DataFrame, old: DataFrame) -> tuple[int, int]:
    """The number of messages of interest, and how many of them are new."""
    keys = special.select("k1", f.lit(True).alias("new")).union(old.select("k1", f.lit(False)))
    counted = keys.groupBy("k1").agg(f.bool_and("new").alias("new")).agg(f.count("*"), f.count_if("new")).first()
    assert counted is not None
    return int(counted[0]), int(counted[1])


def new_evidence(
    special: DataFrame, plain: DataFrame, old: DataFrame, plain_before: DataFrame | None, *, few: bool = False
) -> DataFrame:
    """What a batch adds to `messages`, weighed.

    A message is of interest from its first record that is not plain. Then its plain records count too, those of this
    batch and those of earlier ones. `special` is evidence; plain records become evidence only after most of them are
    filtered out. With `few` keys, this filter broadcasts the keys instead of shuffling the records.
    """
    in_batch = special.select("k1").distinct()
    of_interest = in_batch.union(old.select("k1")).distinct()
    added = special.unionByName(_plain_evidence(plain, of_interest, few))
    if plain_before is not None:
        first_seen = in_batch.join(old.select("k1"), "k1", "left_anti")
        added = added.unionByName(_plain_evidence(plain_before, first_seen, few))
    return weigh(added)


def _plain_evidence(records: DataFrame, keys: DataFrame, few: bool) -> DataFrame:
    kept = evidence(records.join(f.broadcast(keys) if few else keys, "k1", "left_semi"))
    # Plain records have no episode. A constant null saves reading these records again to look for one.
    return kept.withColumn("episode", f.lit(None).cast("string"))
