"""Runs the queries in the folder `sql`, one file each. Their words are those of `pairbus.ledger.records`."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as f


def query(name: str, frames: dict[str, DataFrame], **parameters: Any) -> DataFrame:
    """The result of `sql/NAME.sql`: `{frame}` in it is one of the frames, `:parameter` one of the parameters."""
    spark = next(iter(frames.values())).sparkSession
    return spark.sql(_text(name), parameters, **{word: _other_plan(frame) for word, frame in frames.items()})


def _other_plan(frame: DataFrame) -> DataFrame:
    """The same rows by another plan, which reads the frame's own plan and so its cache.

    Spark makes a view of each frame in a query and drops it when it has read the query's text. Dropping a view removes
    its plan from the cache: with the frame itself, `persist` would end with the first query. Spark sees through a plan
    that only selects columns, but not through one that adds a column and drops it.
    """
    return frame.withColumn("not in the frame", f.lit(True)).drop("not in the frame")


@cache
def _text(name: str) -> str:
    return (files("pairbus.pipeline") / "sql" / f"{name}.sql").read_text(encoding="utf-8")
