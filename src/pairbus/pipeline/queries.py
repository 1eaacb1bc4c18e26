"""Runs the queries in the folder `sql`, one file each. Their words are those of `pairbus.ledger.records`."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

from pyspark.sql import DataFrame


def query(name: str, frames: dict[str, DataFrame], **parameters: Any) -> DataFrame:
    """The result of `sql/NAME.sql`: `{frame}` in it is one of the frames, `:parameter` one of the parameters."""
    spark = next(iter(frames.values())).sparkSession
    return spark.sql(_text(name), parameters, **frames)


@cache
def _text(name: str) -> str:
    return (files("pairbus.pipeline") / "sql" / f"{name}.sql").read_text(encoding="utf-8")
