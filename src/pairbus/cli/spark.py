"""A Spark session for one command."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any, TypeVar

from pairbus.cli.refusal import Refusal

Answer = TypeVar("Answer")


def with_spark(ask: Callable[[Any], Answer]) -> Answer:
    """Run something on a Spark session of its own; what is wrong with Java or the tables becomes a refusal."""
    if importlib.util.find_spec("pyspark") is None:
        raise Refusal("This command runs on Spark, which is not installed: run pip install 'pairbus[spark]'.")
    from pairbus.pipeline.java import JavaMissingError
    from pairbus.pipeline.session import local_session
    from pairbus.pipeline.store import TablesError

    try:
        spark = local_session()
        try:
            return ask(spark)
        finally:
            spark.stop()
    except (TablesError, JavaMissingError) as error:
        raise Refusal(str(error)) from error
