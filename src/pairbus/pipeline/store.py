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

- Within a batch, numbers are counted by process (`sql/numbers.sql`).
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

from pairbus.errors import UsageError
from pairbus.ledger.files import CLOSED_SUFFIX, closed_name, sync_folder
from pairbus.pipeline.gold import Pricing
from pairbus.pipeline.queries import query
from pairbus.pipeline.schemas import QUARANTINE, SILVER, Table
from pairbus.pipeline.servicebus.offsets import Pairs, joined
from pairbus.private import NotPrivateError, open_private, private_folder, replace_private

FORMAT = 3
RECORDED_TWICE = "recorded twice"
"""The reason for which a duplicate is in quarantine."""

_IDENTITY = ("day", "process", "n")
_MAX_SPANS = 8
_COMPACT_BYTES = 128 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Numbers:
    """The numbers of one process's records in a batch."""

    first: int
    last: int
    records: int
    distinct: int


def numbers_of(records: DataFrame) -> dict[str, Numbers]:
    """The numbers of silver records, by process."""
    return {process: Numbers(*numbers) for process, *numbers in query("numbers", {"records": records}).collect()}


def in_doubt(numbers: Mapping[str, Numbers], known: Mapping[str, Pairs]) -> list[str]:
    """The processes that may have duplicate records; no other process has any."""
    return sorted(
        process
        for process, batch in numbers.items()
        if batch.records > batch.distinct
        or any(first <= batch.last and batch.first <= last for first, last in known.get(process, ()))
    )


def covered(known: Mapping[str, Pairs], numbers: Mapping[str, Numbers]) -> dict[str, Pairs]:
    """Pairs that cover the known numbers and these, at most `_MAX_SPANS` for each process."""
    spans = dict(known)
    for process, batch in numbers.items():
        spans[process] = _close_gaps(joined([*spans.get(process, ()), (batch.first, batch.last)]))
    return spans


def _close_gaps(spans: Pairs) -> Pairs:
    """Close the narrowest gaps until at most `_MAX_SPANS` spans are left."""
    left = list(spans)
    while len(left) > _MAX_SPANS:
        at = min(range(1, len(left)), key=lambda i: left[i][0] - left[i - 1][1])
        left[at - 1 : at + 1] = [(left[at - 1][0], left[at][1])]
    return tuple(left)


def copies(records: DataFrame, known: DataFrame, processes: Iterable[str]) -> DataFrame:
    """The duplicates among the records of these processes: known records, and all but one of equal ones."""
    return _marked(records, known, _frame(records, processes)).where("copy").drop("copy")


def without_copies(records: DataFrame, known: DataFrame | None, processes: Iterable[str]) -> DataFrame:
    """All records without the duplicates of these processes."""
    doubtful = _frame(records, processes)
    single = _marked(records, known, doubtful).where("not copy").drop("copy")
    return records.join(doubtful, "process", "left_anti").unionByName(single)


def each_once(records: DataFrame) -> DataFrame:
    """The records without duplicates."""
    doubtful = in_doubt(numbers_of(records), {})
    return without_copies(records, None, doubtful) if doubtful else records


def as_quarantined(copies: DataFrame) -> DataFrame:
    reason, line = f.lit(RECORDED_TWICE).alias("reason"), f.lit(None).cast("string").alias("line")
    return copies.select("file", "process", "n", reason, line)


def _frame(records: DataFrame, processes: Iterable[str]) -> DataFrame:
    rows = [(process,) for process in processes]
    return f.broadcast(records.sparkSession.createDataFrame(rows, "process string"))


def _marked(records: DataFrame, known: DataFrame | None, doubtful: DataFrame) -> DataFrame:
    """The records of the doubtful processes, with a column `copy`."""
    again = f.row_number().over(Window.partitionBy(*_IDENTITY).orderBy("file")) > 1
    marked = records.join(doubtful, "process", "left_semi").withColumn("copy", again)
    if known is None:
        # Do not join an empty frame instead: the optimizer turns it into a filter that is always true and pushes it
        # down, and Spark's reader of JSON lines then drops all rows.
        return marked
    read = known.join(doubtful, "process", "left_semi").select(*_IDENTITY).distinct().withColumn("known", f.lit(True))
    compared = marked.join(read, [*_IDENTITY], "left")
    return compared.withColumn("copy", f.col("copy") | f.col("known").isNotNull()).drop("known")


class TablesError(UsageError, RuntimeError):
    """The folder of the tables cannot be used; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The files that were read, and the batch that has each day of each table."""

    batch: int = 0
    files: dict[str, int] = field(default_factory=dict)
    """Ledger files that are in silver and were in the ledger folder at the last build, with their sizes in bytes."""
    departed: dict[str, Pairs] = field(default_factory=dict)
    """Ledger files that are in silver and have left the ledger folder: for each process, spans of their numbers."""
    numbers: dict[str, Pairs] = field(default_factory=dict)
    """For each process, spans that cover the numbers of its records in silver."""
    silver: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """For each day, the batches that have records of it."""
    quarantine: tuple[int, ...] = ()
    tables: dict[str, dict[str, int]] = field(default_factory=dict)
    """For each gold table and day, the batch that wrote it."""
    open_days: tuple[str, ...] = ()
    """Days of `messages` on which some message still waits."""
    last_days: dict[str, str] = field(default_factory=dict)
    """For each day of `messages`, the day of the last record about any of its messages, if that is a later day."""
    prices: Pricing | None = None
    """The prices of the bills."""
    skipped: int = 0
    """Entries of the ledger folder that the last build skipped: they look like ledger files and are none."""
    format: int = FORMAT

    def with_table(self, name: str, replaced: Iterable[str], written: Iterable[str], batch: int) -> Manifest:
        """The manifest after a batch replaced days of a table; a day that it did not write is gone."""
        gone = set(replaced)
        kept = {day: writer for day, writer in self.tables.get(name, {}).items() if day not in gone}
        return replace(self, tables={**self.tables, name: {**kept, **dict.fromkeys(written, batch)}})

    def has_read(self, name: str) -> bool:
        if name in self.files:
            return True
        process, number = _process_and_number(name)
        spans = self.departed.get(process, ())
        return number is not None and any(first <= number <= last for first, last in spans)

    def with_files(self, read: Mapping[str, int], present: Collection[str]) -> Manifest:
        """The manifest after the files `read` (names and sizes), with the names `present` in the ledger folder."""
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
        return sorted(self.silver if table == SILVER.name else self.tables.get(table, {}))

    def folders(self, table: str, days: Iterable[str] | None = None) -> list[str]:
        """The folders of these days of a table, or of all. The quarantine has no days."""
        if table == QUARANTINE.name:
            return [_path(table, batch) for batch in self.quarantine]
        gold = {day: (batch,) for day, batch in self.tables.get(table, {}).items()}
        batches = self.silver if table == SILVER.name else gold
        return [
            _path(table, batch, day) for day in (batches if days is None else days) for batch in batches.get(day, ())
        ]


def _process_and_number(name: str) -> tuple[str, int | None]:
    """Split the name of a ledger file. The number is None if no writer makes such a name."""
    process, _, digits = name.removesuffix(CLOSED_SUFFIX).rpartition(".")
    number = int(digits) if digits.isdecimal() and digits.isascii() else None
    return process, number if number is not None and name == closed_name(process, number) else None


def _path(table: str, batch: int, day: str | None = None) -> str:
    return f"{table}/batch={batch:06d}" + (f"/day={day}" if day else "")


class TableStore:
    """Reads and writes the tables in one folder. Hold `locked` while writing."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self._current = self.folder / "CURRENT.json"

    def manifest(self) -> Manifest:
        try:
            text = self._current.read_bytes()
        except FileNotFoundError:
            return Manifest()
        manifest = msgspec.json.decode(text, type=Manifest)
        if manifest.format != FORMAT:
            is_older = manifest.format < FORMAT
            remedy = "rebuild them from the whole ledger" if is_older else "use the newer program, or build"
            raise TablesError(
                f"The tables in {self.folder} have format {manifest.format}, but this program knows only {FORMAT}: "
                f"{remedy} in another folder."
            )
        return manifest

    @contextlib.contextmanager
    def locked(self) -> Iterator[int]:
        """Allow one build at a time; a second one fails at once.

        Yields the number of its batch. The next number is reserved as well, for compaction.
        """
        try:
            private_folder(self.folder)
            descriptor = open_private(self.folder / "LOCK", os.O_RDWR | os.O_CREAT)
        except NotPrivateError as error:
            raise TablesError(f"Cannot use the tables in {self.folder}: {error.strerror}.") from error
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
        """Make everything written so far durable, then current in one step."""
        os.sync()
        content = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
        replace_private(self._current, content, durable=True)
        sync_folder(self.folder)

    def sweep(self, manifest: Manifest) -> None:
        """Remove what the manifest does not name: replaced days, and the files of a killed build.

        Files that Spark is still writing for a dead driver are left for the next build.
        """
        tables = (*manifest.tables, SILVER.name, QUARANTINE.name)
        wanted = {folder for table in tables for folder in manifest.folders(table)}
        batches = {"/".join(folder.split("/")[:2]) for folder in wanted}
        for batch in sorted(self.folder.glob("*/batch=*")):
            name = str(batch.relative_to(self.folder))
            unwanted = [day for day in batch.glob("day=*") if f"{name}/{day.name}" not in wanted]
            for folder in unwanted if name in batches else [batch]:
                shutil.rmtree(folder, ignore_errors=True)

    def scratch(self, batch: int) -> Path:
        """A folder for what only this build needs; the next build removes it."""
        return self.folder / _path("scratch", batch)

    def write(self, frame: DataFrame, table: str, batch: int, *partitions: str) -> list[str]:
        """Write a batch of a table, replacing files of an earlier attempt; returns its days."""
        place = self.folder / _path(table, batch)
        writer = frame.write.mode("overwrite")
        (writer.partitionBy(*partitions) if partitions else writer).parquet(str(place))
        return sorted(path.name.removeprefix("day=") for path in place.glob("day=*"))

    def write_again(self, frame: DataFrame, table: str, batch: int, *partitions: str) -> list[str]:
        """Replace a batch by a frame that is computed from it; returns its days."""
        beside = self.folder / f"{table}-again"
        days = self.write(frame, beside.name, batch, *partitions)
        place = self.folder / _path(table, batch)
        shutil.rmtree(place)
        (beside / place.name).rename(place)
        with contextlib.suppress(OSError):  # a killed attempt may have left files: the next build sweeps them
            beside.rmdir()
        return days

    def compact(self, spark: SparkSession, manifest: Manifest, day: str, batch: int) -> None:
        """Write all batches of a day of silver again as one batch, in few files."""
        folders = [self.folder / folder for folder in manifest.folders(SILVER.name, [day])]
        size = sum(file.stat().st_size for folder in folders for file in folder.rglob("*.parquet"))
        files = self.read(spark, SILVER, manifest, [day]).drop("day").coalesce(1 + size // _COMPACT_BYTES)
        place = self.folder / _path(SILVER.name, batch, day)
        files.write.mode("overwrite").partitionBy("namespace").parquet(str(place))

    def read(
        self, spark: SparkSession, table: Table, manifest: Manifest | None = None, days: Iterable[str] | None = None
    ) -> DataFrame:
        """These days of a table, or all, as the manifest has them; without one, as they are now."""
        folders = (manifest or self.manifest()).folders(table.name, days)
        if not folders:
            return spark.createDataFrame([], table.schema)
        reader = spark.read.schema(table.schema).option("basePath", str(self.folder / table.name))
        rows = reader.parquet(*(str(self.folder / folder) for folder in folders)).select(*table.names)
        # A partition cannot hold an empty string: Spark writes and reads it as null.
        return rows.fillna("", ["namespace"]) if table is SILVER else rows
