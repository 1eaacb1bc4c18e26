"""A Spark session for one machine, made to be part of a command, and Spark's errors as one line.

Everything listens on loopback only, the web UI is off unless requested, and only errors are logged. A session takes
about ten seconds to start: create one per command and pass it on.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pairbus.pipeline.java import find_java, home_for_spark

SPARK_ERRORS: tuple[type[Exception], ...] = (PySparkException, Py4JError)
MAX_CAUSE_CHARS = 500
_LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")
_RAISED = re.compile(r"^(?:[A-Za-z_][\w.]*\.)?[A-Za-z_]\w*(?:Error|Exception): (\S.*)$", re.MULTILINE)
_JAVA = re.compile(r"^(?:Caused by: |: )?(?:[a-z]\w*\.)+[A-Z]\w*: ")
_CONDITION = re.compile(r"^\[[A-Z_.0-9]+\] ")


def local_session(
    name: str = "pairbus",
    *,
    cores: int | None = None,
    driver_memory: str = "1g",
    ui: bool = False,
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start or get the session of this process; it uses all cores of the machine unless `cores` says otherwise."""
    cores = cores or len(os.sched_getaffinity(0))
    builder = SparkSession.builder.appName(name).master(f"local[{cores}]")
    for key, value in (_settings(cores, driver_memory, ui) | dict(settings or {})).items():
        builder = builder.config(key, value)
    with _launch(SPARK_LOCAL_IP="127.0.0.1", PYSPARK_PYTHON=sys.executable):
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def session_for(master: str | None, name: str) -> SparkSession:
    """A session on this machine, with everything on loopback, or one with the settings of a cluster.

    A cluster's driver gets its Java here too.
    """
    if master is None or master.startswith(("local", "spark://127.", "spark://localhost:")):
        return local_session(name, settings={} if master is None else {"spark.master": master})
    with _launch():
        return SparkSession.builder.appName(name).master(master).getOrCreate()


@contextlib.contextmanager
def _launch(**values: str) -> Iterator[None]:
    """Set JAVA_HOME and these variables while Spark starts; the process then gets its own back."""
    values["JAVA_HOME"] = str(home_for_spark(find_java()))
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _settings(cores: int, driver_memory: str, ui: bool) -> dict[str, str]:
    return {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": driver_memory,
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()}",
        "spark.ui.enabled": str(ui).lower(),
        "spark.ui.showConsoleProgress": "false",
        # Adaptive execution merges small partitions but never splits one: start with a few more than cores.
        "spark.sql.shuffle.partitions": str(max(4, 2 * cores)),
        "spark.sql.adaptive.enabled": "true",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        # The reader of JSON lines drops all rows if a pushed-down filter is always true.
        "spark.sql.json.filterPushdown.enabled": "false",
        # A task that writes to a few partitions keeps their files open instead of sorting its rows.
        "spark.sql.maxConcurrentOutputFileWriters": "8",
        # The memory that each of those files needs before it is written.
        "spark.hadoop.parquet.block.size": str(32 * 1024 * 1024),
        "spark.sql.parquet.compression.codec": "zstd",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir()) / f"pairbus-warehouse-{os.getuid()}"),
    }


def cause_of(error: Exception) -> str:
    """The cause of a Spark error in one line. The error of a Python worker comes before Spark's words about it."""
    text = str(error).partition("JVM stacktrace:")[0]
    raised = _RAISED.findall(text) if "Traceback (most recent call last)" in text else []
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if isinstance(error, Py4JError) and len(lines) > 1 and not raised:
        lines = lines[1:]  # the first line only says that something was called
    line = raised[-1] if raised else next(iter(lines), type(error).__name__)
    line = _CONDITION.sub("", _JAVA.sub("", line)).strip()
    return line if len(line) <= MAX_CAUSE_CHARS else f"{line[: MAX_CAUSE_CHARS - 1]}…"
