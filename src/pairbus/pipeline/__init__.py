"""The pipeline on Spark: the connector, the syphon as a Spark job, and the tables made from the ledger.

Its names are loaded on first use: the package can be imported without Spark, its names cannot.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pairbus.pipeline.servicebus import ServiceBusDataSource
    from pairbus.pipeline.servicebus.options import Access
    from pairbus.pipeline.spark_syphon import run_spark_syphon

__all__ = ["Access", "ServiceBusDataSource", "run_spark_syphon"]

_HOMES = {
    "Access": "pairbus.pipeline.servicebus.options",
    "ServiceBusDataSource": "pairbus.pipeline.servicebus",
    "run_spark_syphon": "pairbus.pipeline.spark_syphon",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in ("", "pairbus"):
            raise
        raise ModuleNotFoundError(
            f"{__name__}.{name} needs the package {missing!r}, which is not installed: run pip install "
            "'pairbus[spark]'.",
            name=missing,
        ) from error
