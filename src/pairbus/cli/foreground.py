"""Running things for a command: until a signal stops them, until a namespace has answered, on a Spark session."""

from __future__ import annotations

import importlib.util
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from pairbus.cli.output import Refusal

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def stop_event() -> asyncio.Event:
    """An event that SIGINT and SIGTERM set, for the running loop."""
    import asyncio

    event = asyncio.Event()
    for number in STOP_SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, event.set)
    return event


def ask_namespace(question: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that talks to a namespace; its errors become refusals."""
    import asyncio

    from pairbus.syphon.transport import ReceiverLostError

    try:
        return asyncio.run(question)
    except (ReceiverLostError, RuntimeError, OSError) as error:
        raise Refusal(str(error)) from error


def with_spark(work: Callable[[Any], T]) -> T:
    """Run `work` on a Spark session of its own; its errors become refusals."""
    if importlib.util.find_spec("pyspark") is None:
        raise Refusal("This command runs on Spark, which is not installed: run pip install 'pairbus[spark]'.")
    from pairbus.pipeline.session import local_session

    with refusing_spark_errors():
        spark = local_session()
        try:
            return work(spark)
        finally:
            spark.stop()


@contextmanager
def refusing_spark_errors() -> Iterator[None]:
    """Turn errors of the disk and of Spark into refusals.

    A traceback would exit with 1, which a report reserves for "a message is lost".
    """
    from pairbus.pipeline.session import SPARK_ERRORS, cause_of

    try:
        yield
    except OSError as error:
        raise Refusal(f"Cannot use {error.filename or 'a file'}: {error.strerror or error}.") from error
    except SPARK_ERRORS as error:
        raise Refusal(f"Spark failed: {cause_of(error).rstrip('.')}.") from error
