"""The tables on disk: Parquet by day, a manifest that says what is current, and the search for duplicate records.

    TABLES/CURRENT.json                                      the manifest, replaced by a rename
    TABLES/silver/batch=000012/day=2026-11-15/namespace=…/   records that build 12 read from new ledger files
    TABLES/quarantine/batch=000012/                          lines it could not read, with the reason
    TABLES/NAME/batch=000012/day=2026-11-15/                 one day of a gold table, as build 12 made it

Rules
- Only what the manifest names exists. A build writes new folders, makes them durable, then replaces the manifest.
  Killed before that, it has changed nothing, and the next build removes what it left.
- A ledger file is identified by its name: it is read once and must not change after publication. For files that have
  left the ledger folder, and for records that were read, the manifest keeps spans of numbers. So it is as long as that
  folder, plus two short lines for each process that ever recorded.
- Replaced folders stay until the next build, so that a reader of the previous manifest can finish.
- Every attempt of a build has its own number, kept in the lock file. Spark may outlive a killed driver and go on
  writing for a moment; its files must not collide with anyone's.

Duplicate records: a ledger file may appear under two names, or a line twice in a file. (`process`, `n`) identifies a
record, so it counts once. The search must cost almost nothing where there are no duplicates:

- Within a batch, numbers are counted by process as bits, 64 to a word. That is exact, and one row is shuffled for 64
  records.
- Across builds, the manifest has a few spans for each process that cover all numbers read. Writers number their records
  consecutively, so new numbers are outside. A number inside a span may be known or not.
- Only records of the processes that remain in doubt are compared one by one, with those of the same day: a copy has the
  same time as its original.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as f
from pyspark.sql import types as t

from pairbus.ledger.files import CLOSED_SUFFIX, closed_name
from pairbus.pipeline.gold import Pricing

RECORDED_TWICE = "recorded twice"
"""Why a copy is in quarantine."""

Spans = tuple[tuple[int, int], ...]
"""First and last number of each span, in order."""

_NAME = ("day", "process", "n")
_MOST_SPANS = 8


@dataclass(frozen=True, slots=True)
class Numbers:
    """Which records of one process a batch has."""

    first: int
    last: int
    records: int
    distinct: int

    def may_be_known(self, spans: Spans) -> bool:
        return any(first <= self.last and self.first <= last for first, last in spans)


def numbers_of(records: DataFrame) -> dict[str, Numbers]:
    """The numbers of silver records, by process."""
    words = records.groupBy("process", f.shiftright("n", 6).alias("word")).agg(
        f.expr("bit_or(shiftleft(1L, cast(n & 63 as int)))").alias("bits"),
        f.count("*").alias("records"),
        f.min("n").alias("first"),
        f.max("n").alias("last"),
    )
    found = words.groupBy("process").agg(
        f.min("first").alias("first"),
        f.max("last").alias("last"),
        f.sum("records").alias("records"),
        f.sum(f.bit_count("bits")).alias("distinct"),
    )
    return {
        row["process"]: Numbers(row["first"], row["last"], row["records"], row["distinct"]) for row in found.collect()
    }


def in_doubt(numbers: Mapping[str, Numbers], known: Mapping[str, Spans]) -> list[str]:
    """Processes some of whose records may be there twice; of no other process is one."""
    return sorted(
        process
        for process, found in numbers.items()
        if found.records > found.distinct or found.may_be_known(known.get(process, ()))
    )


def covered(known: Mapping[str, Spans], numbers: Mapping[str, Numbers]) -> dict[str, Spans]:
    """The spans with these numbers too: few for each process, whatever its numbers are."""
    spans = dict(known)
    for process, found in numbers.items():
        spans[process] = _few(joined([*spans.get(process, ()), (found.first, found.last)]))
    return spans


def joined(spans: Iterable[tuple[int, int]]) -> Spans:
    """The same numbers, in as few spans as there can be."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(spans):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(last, found[-1][1]))
        else:
            found.append((first, last))
    return tuple(found)


def _few(spans: Spans) -> Spans:
    """At most so many, that cover these: the narrowest gaps are closed."""
    few = list(spans)
    while len(few) > _MOST_SPANS:
        at = min(range(1, len(few)), key=lambda i: few[i][0] - few[i - 1][1])
        few[at - 1 : at + 1] = [(few[at - 1][0], few[at][1])]
    return tuple(few)


def copies(records: DataFrame, known: DataFrame, processes: Iterable[str]) -> DataFrame:
    """Of the records of these processes, those that are known, and all but one of those that are here several times."""
    return _marked(records, known, _named(records, processes)).where("copy").drop("copy")


def without_copies(records: DataFrame, known: DataFrame | None, processes: Iterable[str]) -> DataFrame:
    """All records, of any process, but the copies."""
    named = _named(records, processes)
    single = _marked(records, known, named).where("not copy").drop("copy")
    return records.join(named, "process", "left_anti").unionByName(single)


def told_apart(records: DataFrame) -> DataFrame:
    """The same records, each once."""
    doubtful = in_doubt(numbers_of(records), {})
    return without_copies(records, None, doubtful) if doubtful else records


def as_quarantined(copies: DataFrame) -> DataFrame:
    reason, line = f.lit(RECORDED_TWICE).alias("reason"), f.lit(None).cast("string").alias("line")
    return copies.select("file", "process", "n", reason, line)


def _named(records: DataFrame, processes: Iterable[str]) -> DataFrame:
    rows = [(process,) for process in processes]
    return f.broadcast(records.sparkSession.createDataFrame(rows, "process string"))


def _marked(records: DataFrame, known: DataFrame | None, named: DataFrame) -> DataFrame:
    again = f.row_number().over(Window.partitionBy(*_NAME).orderBy("file")) > 1
    marked = records.join(named, "process", "left_semi").withColumn("copy", again)
    if known is None:
        # No join with an empty frame instead: where the optimizer finds out that it is empty, it leaves a filter that
        # is simply true, and Spark's reader of JSON lines, to which that is handed down, drops all rows for it.
        return marked
    there = known.join(named, "process", "left_semi").select(*_NAME).distinct().withColumn("known", f.lit(True))
    whole = marked.join(there, [*_NAME], "left")
    return whole.withColumn("copy", f.col("copy") | f.col("known").isNotNull()).drop("known")


FORMAT = 3
_COMPACT_BYTES = 128 * 1024 * 1024


class TablesError(RuntimeError):
    """The tables' folder cannot be used as it is; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """Which files were read, and which batch holds each day of each table."""

    batch: int = 0
    files: dict[str, int] = field(default_factory=dict)
    """Ledger files that are in silver and were in the ledger's folder at the last build, with their bytes."""
    departed: dict[str, Spans] = field(default_factory=dict)
    """Files that are in silver and left the folder: for each process, the first and last number of each span."""
    numbers: dict[str, Spans] = field(default_factory=dict)
    """For each process, spans that cover the numbers of its records in silver: see `pairbus.pipeline.store`."""
    silver: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """For each day, the batches that have records of it."""
    quarantine: tuple[int, ...] = ()
    tables: dict[str, dict[str, int]] = field(default_factory=dict)
    """For each gold table, the batch that made each day of it."""
    open_days: tuple[str, ...] = ()
    """Days of `messages` on which some message still waits."""
    last_days: dict[str, str] = field(default_factory=dict)
    """For days of `messages`, the day of the last record about any of them, where that is a later one."""
    prices: Pricing | None = None
    """What the bills were made with."""
    format: int = FORMAT

    def with_table(self, name: str, replaced: Iterable[str], written: Iterable[str], batch: int) -> Manifest:
        """The same, but the replaced days of the table are now what the batch has written for them, if
        anything.
        """
        gone = set(replaced)
        kept = {day: maker for day, maker in self.tables.get(name, {}).items() if day not in gone}
        return replace(self, tables={**self.tables, name: {**kept, **dict.fromkeys(written, batch)}})

    def has_read(self, name: str) -> bool:
        if name in self.files:
            return True
        process, number = _process_and_number(name)
        spans = self.departed.get(process, ())
        return number is not None and any(first <= number <= last for first, last in spans)

    def with_files(self, read: Mapping[str, int], present: Collection[str]) -> Manifest:
        """The same after `read` (names and bytes), when the ledger's folder holds the names `present`."""
        known = {**self.files, **read}
        files: dict[str, int] = {}
        numbers: dict[str, list[tuple[int, int]]] = {}
        for name, size in known.items():
            process, number = _process_and_number(name)
            if name in present or number is None:
                files[name] = size
            else:
                numbers.setdefault(process, []).append((number, number))
        left = {process: joined([*self.departed.get(process, ()), *spans]) for process, spans in numbers.items()}
        return replace(self, files=files, departed={**self.departed, **left})

    def days(self, table: str) -> list[str]:
        return sorted(self.tables.get(table, {}))


def _process_and_number(name: str) -> tuple[str, int | None]:
    """A ledger file's name taken apart; no number if no writer gives such a name."""
    process, _, digits = name.removesuffix(CLOSED_SUFFIX).rpartition(".")
    number = int(digits) if digits.isdecimal() and digits.isascii() else None
    return process, number if number is not None and name == closed_name(process, number) else None


class TableStore:
    """Reads and writes the tables of one folder. Writing needs `locked`."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self._current = self.folder / "CURRENT.json"

    def manifest(self) -> Manifest:
        try:
            text = self._current.read_bytes()
        except FileNotFoundError:
            return Manifest()
        manifest = msgspec.json.decode(text, type=Manifest)
        if manifest.format < FORMAT:
            raise TablesError(
                f"The tables in {self.folder} have format {manifest.format}, of an older program: build them anew "
                "from the whole ledger, into another folder."
            )
        if manifest.format > FORMAT:
            raise TablesError(
                f"The tables in {self.folder} have format {manifest.format}, this program knows up to {FORMAT}: "
                "use the newer program, or build into another folder."
            )
        return manifest

    @contextlib.contextmanager
    def locked(self) -> Iterator[int]:
        """One build at a time; a second one is told so at once.

        Gives the number of the batch it may write; the number after that is its own too, for what it compacts.
        """
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(self.folder / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise TablesError(
                    f"Another build is writing the tables in {self.folder}: wait for it, or use another folder."
                ) from None
            batch = max(self.manifest().batch, int(os.pread(descriptor, 20, 0) or 0)) + 1
            os.pwrite(descriptor, b"%d" % (batch + 1), 0)
            yield batch
        finally:
            os.close(descriptor)

    def publish(self, manifest: Manifest) -> None:
        """Make everything written so far durable and current, in one step."""
        os.sync()
        unnamed = self.folder / "CURRENT.json.new"
        with unnamed.open("wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(manifest), indent=1))
            file.flush()
            os.fsync(file.fileno())
        unnamed.replace(self._current)
        folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def sweep(self, manifest: Manifest) -> None:
        """Remove what the manifest does not name: replaced days, and what a killed build left.

        What Spark is still writing for a driver that is gone cannot be removed yet: the next build does.
        """
        days = {
            f"{name}/batch={batch:06d}/day={day}"
            for name, of_day in manifest.tables.items()
            for day, batch in of_day.items()
        }
        days |= {f"silver/batch={b:06d}/day={day}" for day, batches in manifest.silver.items() for b in batches}
        wanted = {day.rpartition("/")[0] for day in days}
        wanted |= {f"quarantine/batch={batch:06d}" for batch in manifest.quarantine}
        for batch in sorted(self.folder.glob("*/batch=*")):
            name = str(batch.relative_to(self.folder))
            if name not in wanted:
                shutil.rmtree(batch, ignore_errors=True)
            elif not name.startswith("quarantine/"):
                for day in batch.glob("day=*"):
                    if f"{name}/{day.name}" not in days:
                        shutil.rmtree(day, ignore_errors=True)

    def write(self, frame: DataFrame, table: str, batch: int, *partitions: str) -> list[str]:
        """Write a batch of a table; returns the days it holds. What an earlier try left is replaced."""
        place = self.folder / table / f"batch={batch:06d}"
        writer = frame.write.mode("overwrite")
        (writer.partitionBy(*partitions) if partitions else writer).parquet(str(place))
        return sorted(path.name.removeprefix("day=") for path in place.glob("day=*"))

    def write_again(self, frame: DataFrame, table: str, batch: int, *partitions: str) -> list[str]:
        """The same with a frame that is made of this batch: it takes the batch's place when it is written."""
        beside = self.folder / f"{table}-again"
        days = self.write(frame, beside.name, batch, *partitions)
        place = self.folder / table / f"batch={batch:06d}"
        shutil.rmtree(place)
        (beside / place.name).rename(place)
        with contextlib.suppress(OSError):  # a killed try may have left something: the next build sweeps it
            beside.rmdir()
        return days

    def compact(self, spark: SparkSession, schema: t.StructType, manifest: Manifest, day: str, batch: int) -> None:
        """Write a day of silver again, as few files: what all its batches hold becomes one batch."""
        records = self.read_silver(spark, schema, manifest, [day])
        held = [self.folder / f"silver/batch={number:06d}/day={day}" for number in manifest.silver[day]]
        size = sum(file.stat().st_size for folder in held for file in folder.rglob("*.parquet"))
        place = self.folder / f"silver/batch={batch:06d}/day={day}"
        files = records.drop("day").coalesce(1 + size // _COMPACT_BYTES)
        files.write.mode("overwrite").partitionBy("namespace").parquet(str(place))

    def compact_quarantine(self, spark: SparkSession, schema: t.StructType, manifest: Manifest, batch: int) -> None:
        """Write the lines in quarantine again, as one batch."""
        self.write(self.read_quarantine(spark, schema, manifest).coalesce(1), "quarantine", batch)

    def read_silver(
        self, spark: SparkSession, schema: t.StructType, manifest: Manifest, days: Iterable[str] | None = None
    ) -> DataFrame:
        """Silver records of these days (all, unless given)."""
        chosen = manifest.silver if days is None else {d: manifest.silver[d] for d in days if d in manifest.silver}
        paths = [f"silver/batch={batch:06d}/day={day}" for day, batches in chosen.items() for batch in batches]
        # A partition cannot hold an empty string: Spark writes and reads it as null.
        return self._read(spark, schema, "silver", paths).fillna("", ["namespace"])

    def read_silver_batch(
        self, spark: SparkSession, schema: t.StructType, batch: int, days: Iterable[str]
    ) -> DataFrame:
        """What one batch brought, published or not."""
        paths = [f"silver/batch={batch:06d}/day={day}" for day in days]
        return self._read(spark, schema, "silver", paths).fillna("", ["namespace"])

    def read_table(
        self,
        spark: SparkSession,
        schema: t.StructType,
        table: str,
        manifest: Manifest,
        days: Iterable[str] | None = None,
    ) -> DataFrame:
        """These days of a gold table (all, unless given)."""
        of_day = manifest.tables.get(table, {})
        chosen = of_day if days is None else {day: of_day[day] for day in days if day in of_day}
        paths = [f"{table}/batch={batch:06d}/day={day}" for day, batch in chosen.items()]
        return self._read(spark, schema, table, paths)

    def read_quarantine(self, spark: SparkSession, schema: t.StructType, manifest: Manifest) -> DataFrame:
        paths = [f"quarantine/batch={batch:06d}" for batch in manifest.quarantine]
        return self._read(spark, schema, "quarantine", paths)

    def _read(self, spark: SparkSession, schema: t.StructType, table: str, paths: list[str]) -> DataFrame:
        if not paths:
            return spark.createDataFrame([], schema)
        reader = spark.read.schema(schema).option("basePath", str(self.folder / table))
        return reader.parquet(*(str(self.folder / path) for path in paths)).select(*schema.fieldNames())
