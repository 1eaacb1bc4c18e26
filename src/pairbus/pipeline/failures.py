"""What went wrong in Spark, as one line: the last error of a worker's traceback, or the first line of Spark's own."""

from __future__ import annotations

import re

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

SPARK_ERRORS: tuple[type[Exception], ...] = (PySparkException, Py4JError)
_RAISED = re.compile(r"^(?:[A-Za-z_][\w.]*\.)?[A-Za-z_]\w*(?:Error|Exception): (\S.*)$", re.MULTILINE)
_JAVA = re.compile(r"^(?:Caused by: |: )?(?:[a-z]\w*\.)+[A-Z]\w*: ")
_CONDITION = re.compile(r"^\[[A-Z_.0-9]+\] ")
LONGEST = 500


def cause_of(error: Exception) -> str:
    """One line for people. What a Python worker raised says more than what Spark says about its worker."""
    text = str(error)
    told = text.partition("JVM stacktrace:")[0]
    raised = _RAISED.findall(told) if "Traceback (most recent call last)" in told else []
    lines = [line.strip() for line in told.splitlines() if line.strip()]
    if isinstance(error, Py4JError) and len(lines) > 1 and not raised:
        lines = lines[1:]  # the first one only says that something was called
    line = raised[-1] if raised else next(iter(lines), type(error).__name__)
    line = _CONDITION.sub("", _JAVA.sub("", line)).strip()
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"
