"""The tables on disk: Parquet by day, and one small file that says which of it counts.

    TABLES/CURRENT.json                                      the manifest, replaced by a rename
    TABLES/silver/batch=000012/day=2026-11-15/namespace=…/   what build 12 read from new ledger files
    TABLES/quarantine/batch=000012/                          lines it could not read, with the reason
    TABLES/NAME/batch=000012/day=2026-11-15/                 a gold table's day, as build 12 made it

Rules
- Only what the manifest names exists. A build writes new folders, makes them durable, then replaces the
  manifest: killed before that, it has changed nothing, and the next build sweeps what it left.
- A ledger file's name is its identity: it is read once, and must not change after it was published. Names of files
  that have left the ledger's folder are kept as spans of numbers, and so are the records that were read, which tells
  those that come again under another name: the manifest is as long as that folder, and two short lines for each process
  that ever recorded.
- What a build replaces stays until the next build, so that a reader of the manifest before can finish.
- Every try of a build has a number of its own, kept in the lock's file: Spark may outlive a driver that was killed
  and go on writing for a moment, and what it writes must meet nobody's.
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
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t

from pairbus.ledger.files import CLOSED_SUFFIX, closed_name
from pairbus.pipeline.copies import Spans, joined
from pairbus.pipeline.gold import Pricing

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
    """For each process, spans that cover the numbers of its records in silver: see `pairbus.pipeline.copies`."""
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
