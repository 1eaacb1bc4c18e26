"""Simulation and forecast on Spark: each run of each choice is a row, and rows are spread over the cores.

Runs are seeded: the same fleet gives the same numbers on one core and on a hundred.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t

from pairbus.costs import Tariff, shipped_tariffs, tariff_for
from pairbus.pipeline.fleet import FleetPlan, PairingChoice, RunResult, play_run

_EXAMPLE = PairingChoice()
CHOICE_COLUMNS = PairingChoice.__struct_fields__
RESULT_COLUMNS = (*RunResult.__dataclass_fields__, "availability", "availability_without_pairing")
_RESULT_SCHEMA = t.StructType(
    [
        t.StructField("choice", t.IntegerType()),
        t.StructField("run", t.LongType()),
        *(t.StructField(name, t.DoubleType()) for name in RESULT_COLUMNS),
    ]
)
PERCENTILES = (5, 50, 95, 99)


def simulate(
    spark: SparkSession, plan: FleetPlan, *, tariffs: tuple[Tariff, ...] | None = None, day: date | None = None
) -> DataFrame:
    """One row for each choice and run, with the columns of `RunResult` and the options of the choice."""
    tariff = tariff_for(shipped_tariffs() if tariffs is None else tariffs, plan.tariff, day or date.today())
    tariff.plan(plan.plan)  # fails here rather than in a worker
    rows = len(plan.choices) * plan.runs
    tasks = min(rows, 4 * spark.sparkContext.defaultParallelism)

    def play(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            results = []
            for number in frame["id"]:
                choice, run = divmod(int(number), plan.runs)
                result = play_run(plan, plan.choices[choice], tariff, run)
                values = {name: float(getattr(result, name)) for name in RESULT_COLUMNS}
                results.append({"choice": choice, "run": run, **values})
            yield pd.DataFrame(results, columns=_RESULT_SCHEMA.fieldNames())

    played = spark.range(0, rows, 1, tasks).mapInPandas(play, _RESULT_SCHEMA)
    kinds = {bool: t.BooleanType(), int: t.IntegerType(), float: t.DoubleType()}
    fields = [t.StructField(name, kinds[type(getattr(_EXAMPLE, name))]) for name in CHOICE_COLUMNS]
    options = [
        (number, *(type(getattr(_EXAMPLE, field.name))(getattr(choice, field.name)) for field in fields))
        for number, choice in enumerate(plan.choices)
    ]
    named = spark.createDataFrame(options, t.StructType([t.StructField("choice", t.IntegerType()), *fields]))
    return played.join(f.broadcast(named), "choice")


def forecast(runs: DataFrame) -> list[dict[str, Any]]:
    """The mean and the percentiles of each result over the runs, for each choice."""
    percentiles = [
        f.percentile(name, f.lit(p / 100)).alias(f"{name}_p{p}") for name in RESULT_COLUMNS for p in PERCENTILES
    ]
    means = [f.mean(name).alias(f"{name}_mean") for name in RESULT_COLUMNS]
    rows = runs.groupBy("choice", *CHOICE_COLUMNS).agg(f.count("*").alias("runs"), *means, *percentiles)
    return [_nested(row.asDict()) for row in rows.orderBy("choice").collect()]


def _nested(row: dict[str, Any]) -> dict[str, Any]:
    kinds = ("mean", *(f"p{p}" for p in PERCENTILES))
    return {
        "options": {name: row[name] for name in CHOICE_COLUMNS},
        "runs": row["runs"],
        **{name: {kind: row[f"{name}_{kind}"] for kind in kinds} for name in RESULT_COLUMNS},
    }
