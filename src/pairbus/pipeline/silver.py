"""Ledger lines (bronze) to clean records (silver). Functions from frames to frames.

The ledger's published files are the bronze; they never change. A line becomes a silver record, or it is quarantined
with its reason; nothing is dropped. Names of namespaces and entities are case-insensitive and become lower case.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from pairbus.costs.rules import RULES, UNIT_BYTES, Billing, FlowName, Rule
from pairbus.ledger.records import BACKLOG_SEGMENT, SCHEMA_VERSION, Operation, Outcome, Record, Role, Route
from pairbus.pipeline.queries import query
from pairbus.pipeline.schemas import BROKEN, LINE_SCHEMA, SILVER

_DEFAULTS: dict[str, Any] = {
    field.name: str(field.default) if isinstance(field.default, str) else field.default
    for field in msgspec.structs.fields(Record)
    if isinstance(field.default, str | int)
}
"""The values of fields that the writer left out; those without a default are null."""
_MOST = {
    field.name: kind.le
    for field in msgspec.inspect.type_info(Record).fields  # type: ignore[attr-defined]
    for kind in getattr(field.type, "types", (field.type,))
    if isinstance(kind, msgspec.inspect.IntType) and kind.le is not None
}
_DAY_MICROSECONDS = 86_400_000_000
_MOST_NAMESPACE_BYTES = 240
"""Silver has a folder for each namespace, and a folder name may have 255 bytes."""


def read_lines(spark: SparkSession, files: Sequence[Path]) -> DataFrame:
    """Read the lines of ledger files, parsed where possible; `file` is the name of the file."""
    if not files:
        return spark.createDataFrame([], LINE_SCHEMA).withColumn("file", f.lit(""))
    reader = spark.read.schema(LINE_SCHEMA).option("mode", "PERMISSIVE").option("columnNameOfCorruptRecord", BROKEN)
    reader = reader.option("lineSep", "\n")  # as other readers of the ledger do
    return reader.json([str(path) for path in files]).withColumn("file", f.col("_metadata.file_name"))


def quarantine(lines: DataFrame) -> DataFrame:
    """The lines that are not records, with the reason; `line` is null if only a field is wrong."""
    return (
        lines.withColumn("reason", _reason())
        .where("reason is not null")
        .select("file", "process", "n", "reason", f.col(BROKEN).alias("line"))
    )


def broken() -> Column:
    """Whether a line is not a record."""
    return _reason().isNotNull()


def silver(lines: DataFrame) -> DataFrame:
    """Clean records, with the columns of `SILVER`."""
    clean = lines.where(~broken()).fillna(_DEFAULTS).withColumn("billed", _billed())
    records = query("silver", {"lines": clean}, segment=BACKLOG_SEGMENT)
    return records.withColumn("day", utc_day(f.col("at"))).select(*SILVER.names)


def utc_day(at: Column) -> Column:
    """The UTC day of a moment, whatever the session's time zone is."""
    return f.date_from_unix_date(f.floor(f.unix_micros(at) / _DAY_MICROSECONDS).cast("int"))


def _reason() -> Column:
    operations = [operation.value for operation in Operation]
    return (
        f.when(f.col(BROKEN).isNotNull(), "not a JSON object of the ledger's fields")
        .when(f.col("v").isNull(), "no version")
        .when(f.col("v") > SCHEMA_VERSION, f"version newer than {SCHEMA_VERSION}")
        .when(f.col("process").isNull() | f.col("n").isNull(), "no process or number")
        .when(f.col("at_us").isNull() | ~f.col("at_us").between(0, 4_102_444_800_000_000), "no time of this century")
        .when(~f.coalesce(f.col("operation"), f.lit("")).isin(operations), "unknown operation")
        .when(~f.coalesce(f.col("role"), f.lit("")).isin([role.value for role in Role]), "unknown role")
        .when(~_known("outcome", Outcome), "unknown outcome")
        .when(~_known("route", Route), "unknown route")
        .when(f.least("bytes", "billed", "latency_us", "count") < 0, "negative number")
        .when(f.greatest(*(f.coalesce(name, f.lit(0)) > most for name, most in _MOST.items())), "number too large")
        .when(_folder_bytes(f.lower("namespace")) > _MOST_NAMESPACE_BYTES, "namespace's name too long")
    )


def _known(field: str, words: type[StrEnum]) -> Column:
    return f.coalesce(f.col(field).isin([word.value for word in words]), f.lit(True))


def _folder_bytes(name: Column) -> Column:
    """The most bytes that a folder of this name can have: other characters are escaped, or take several bytes."""
    return f.length(f.regexp_replace(name, "[^a-z0-9._-]", "%xxx"))


def _billed() -> Column:
    """The column form of `pairbus.costs.rules.billed_operations`."""
    units = f.greatest(f.lit(1), f.ceil(f.coalesce(f.col("bytes"), f.lit(0)) / UNIT_BYTES)).cast("long")
    by_rule = rule_column(lambda rule: rule.billing, {Billing.PER_UNIT: units, Billing.ONCE: f.lit(1)}, default=0)
    refused = f.col("outcome") == Outcome.FAILED.value
    return f.coalesce(f.col("billed"), f.when(refused, 0).otherwise(by_rule)).cast("long")


def flow_column(*flows: FlowName) -> Column:
    """Whether an operation belongs to one of these flows."""
    return rule_column(lambda rule: not set(flows).isdisjoint(rule.flows), default=False)


def rule_column(
    value_of: Callable[[Rule], Hashable], columns: Mapping[Hashable, Column] | None = None, *, default: Hashable = None
) -> Column:
    """Compile one value of each row of `pairbus.costs.rules.RULES` to a column.

    It is computed from the columns `operation`, `outcome`, `route` and, for some values, `on_backlog`. A value stands
    for itself, unless `columns` maps values to columns: then any other value is the `default`.
    """
    alike: dict[tuple[Rule, ...], list[str]] = {}
    for operation, rules in RULES.items():
        alike.setdefault(rules, []).append(operation.value)
    uniform: dict[Hashable, list[str]] = {}
    branches: list[tuple[Column, Hashable]] = []
    for rules, operations in alike.items():
        values = [value_of(rule) for rule in rules]
        if len(set(values)) == 1:
            uniform.setdefault(values[0], []).extend(operations)
        else:
            is_one = f.col("operation").isin(operations)
            branches += [(is_one & _applies(rule), value) for rule, value in zip(rules, values, strict=True)]
    branches += [(f.col("operation").isin(operations), value) for value, operations in uniform.items()]
    known = dict(columns or {})
    compiled = f.when(f.lit(False), f.lit(default))
    for condition, value in branches:
        compiled = compiled.when(condition, known.get(value, f.lit(default if known else value)))
    return compiled.otherwise(f.lit(default))


def _applies(rule: Rule) -> Column:
    condition = f.lit(True)
    if rule.outcome is not None:
        condition &= f.coalesce("outcome", f.lit(Outcome.OK.value)) == rule.outcome.value
    if rule.on_backlog is not None:
        condition &= f.col("on_backlog") == f.lit(rule.on_backlog)
    if rule.from_spool is not None:
        from_spool = f.coalesce(f.col("route") == Route.SPOOL.value, f.lit(False))
        condition &= from_spool == f.lit(rule.from_spool)
    return condition
