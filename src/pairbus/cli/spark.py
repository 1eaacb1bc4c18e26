"""A Spark session for one command."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from pairbus.cli.refusal import Refusal

Answer = TypeVar("Answer")


def with_spark(ask: Callable[[Any], Answer]) -> Answer:
    """Run something on a Spark session of its own; what goes wrong becomes a refusal."""
    if importlib.util.find_spec("pyspark") is None:
        raise Refusal("This command runs on Spark, which is not installed: run pip install 'pairbus[spark]'.")
    from pairbus.pipeline.session import local_session

    with refusing():
        spark = local_session()
        try:
            return ask(spark)
        finally:
            spark.stop()


@contextmanager
def refusing() -> Iterator[None]:
    """What is wrong with Java, the tables, the queues or Spark as a sentence.

    Never a traceback: it would end with 1, which a report keeps for "a message is lost".
    """
    from pairbus.pipeline.failures import SPARK_ERRORS, cause_of
    from pairbus.pipeline.java import JavaMissingError
    from pairbus.pipeline.servicebus.wire import WireError
    from pairbus.pipeline.store import TablesError

    try:
        yield
    except (TablesError, JavaMissingError, WireError) as error:
        raise Refusal(str(error)) from error
    except OSError as error:
        raise Refusal(f"{error.filename or 'A file'} cannot be used: {error.strerror or error}.") from error
    except SPARK_ERRORS as error:
        raise Refusal(f"Spark could not finish: {cause_of(error).rstrip('.')}.") from error
