"""What Spark says when something goes wrong, as one line."""

from __future__ import annotations

import errno

import pytest
from pyspark.errors import AnalysisException, PySparkException

from pairbus.cli.foreground import refusing_spark_errors
from pairbus.cli.output import Refusal
from pairbus.pipeline.session import MAX_CAUSE_CHARS, cause_of

WORKER = """[PYTHON_DATA_SOURCE_ERROR] Failed to plan Python data source read. Traceback (most recent call last):
  File "worker.py", line 3, in main
RuntimeError: an earlier one

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "worker.py", line 9, in main
pairbus.pipeline.servicebus.wire.WireError: 'orders' does not exist in contoso: gone.
 SQLSTATE: 38000

JVM stacktrace:
org.apache.spark.SparkException: nobody reads this
"""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (WORKER, "'orders' does not exist in contoso: gone."),
        (
            "[PATH_NOT_FOUND] Path does not exist: here. SQLSTATE: 42K03;\n'Plan\n",
            "Path does not exist: here. SQLSTATE: 42K03;",
        ),
        ("", "AnalysisException"),
    ],
)
def test_the_cause_is_one_line(text: str, told: str) -> None:
    assert cause_of(AnalysisException(text)) == told


def test_a_long_cause_is_cut() -> None:
    assert len(cause_of(AnalysisException("x" * 2000))) == MAX_CAUSE_CHARS


def test_an_error_of_spark_is_a_refusal() -> None:
    with pytest.raises(Refusal, match=r"^Spark failed: it did not work\.$"), refusing_spark_errors():
        raise PySparkException("[SOME_CONDITION] it did not work.\nand much more")


def test_a_file_that_cannot_be_used_is_named() -> None:
    with pytest.raises(Refusal, match=r"^Cannot use tables: Permission denied\.$"), refusing_spark_errors():
        raise PermissionError(errno.EACCES, "Permission denied", "tables")
