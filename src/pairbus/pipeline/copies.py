"""Records that are there twice: a ledger file under two names, or a line twice in a file.

(`process`, `n`) names a record for ever, so a record is counted once, however often it is met. To find those that are
met again must cost next to nothing in a ledger where there are none:

- Within a batch, numbers are counted by process as bits, 64 to a word: exact, and what is shuffled is one row for 64
  records, not the records.
- Across builds, the manifest has for each process a few spans that cover all numbers that were read. Writers number
  their records one after the other, so new ones are outside. Inside a span a number may be known or not.
- Only records of the processes that this leaves in doubt are compared one by one, with those of the same day: a copy
  has the same time as its original.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

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
