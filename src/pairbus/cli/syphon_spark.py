"""`pairbus syphon --engine spark`: the syphon as a Spark job, its signals, its progress, its last word."""

from __future__ import annotations

import importlib.util
import json
import re
import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Literal

import typer

from pairbus.cli.plain import plain
from pairbus.cli.refusal import Refusal
from pairbus.cli.spark import refusing
from pairbus.cli.tables import asked
from pairbus.cli.voice import remark
from pairbus.syphon import Namespace
from pairbus.syphon.backlog import no_backlog
from pairbus.syphon.namespaces import NamespaceError

_MASTER = re.compile(r"local(\[(\d+|\*)(, *\d+)?\])?|local-cluster\[.+\]|yarn|(spark|k8s)://.+")


def run(
    primary: Namespace,
    secondary: Namespace,
    *,
    master: str | None,
    primary_name: str,
    queues: list[int],
    include_extra: bool,
    rate: float | None,
    backlog_time_to_live: Literal["restore", "deduct"],
    ledger: Path | None,
    once: bool,
    as_json: bool,
) -> int:
    """Carry until told to stop, or until drained; the exit code."""
    if importlib.util.find_spec("pyspark") is None:
        raise Refusal("--engine spark needs Spark, which is not installed: run pip install 'pairbus[spark]'.")
    from pairbus.pipeline.failures import SPARK_ERRORS, cause_of
    from pairbus.pipeline.servicebus.options import Access
    from pairbus.pipeline.spark_syphon import (
        SparkSyphonError,
        SparkSyphonReport,
        backlog_depths,
        run_spark_syphon,
        session_for,
    )

    def access(option: str, namespace: Namespace) -> Access:
        if namespace._connection_string is None:
            raise Refusal(
                f"{option} is a host name: --engine spark needs a connection string (env:VARIABLE or a file)."
            )
        return Access(None, namespace.connection_verify, namespace._connection_string)

    def progress(report: SparkSyphonReport) -> None:
        left = sum(report.left.values())
        why = f"; last error: {plain(report.last_error)}" if report.last_error and left else ""
        remark(
            f"round {report.rounds}: {report.restored} restored, {report.dead_lettered} dead-lettered, {left} left{why}"
        )

    async def look() -> None:
        found = await backlog_depths(secondary, primary_name, queues, include_extra=include_extra)
        if once and not found:
            raise await no_backlog(secondary, primary_name, queues)

    ends = access("--primary", primary), access("--secondary", secondary)
    # Before Spark starts: what it says of these is long, or nothing.
    asked(look())
    if master is not None and not _MASTER.fullmatch(master):
        raise Refusal(
            f"--master '{plain(master)}' is no master of Spark: give local[CORES], spark://HOST:PORT, yarn or "
            "k8s://HOST:PORT."
        )
    stop = threading.Event()
    with refusing():
        try:
            spark = session_for(master, "pairbus syphon")
        except SPARK_ERRORS as error:
            raise Refusal(
                f"Spark could not start: {cause_of(error).rstrip('.')}. Check --master, and what "
                "SPARK_HOME, SPARK_CONF_DIR, PYSPARK_SUBMIT_ARGS and JAVA_HOME say."
            ) from error
        try:
            _stop_on_signals(stop)
            report = run_spark_syphon(
                *ends,
                spark=spark,
                once=once,
                primary_name=primary_name,
                queues=queues,
                include_extra=include_extra,
                backlog_time_to_live=backlog_time_to_live,
                rate=rate,
                ledger=ledger,
                on_progress=progress,
                stop=stop,
            )
        except (SparkSyphonError, NamespaceError, ValueError) as error:
            raise Refusal(str(error)) from error
        finally:
            spark.stop()
    if as_json:
        typer.echo(json.dumps(report.as_dict()))
    else:
        typer.echo(
            f"{report.restored} restored, {report.dead_lettered} dead-lettered in {report.seconds:.1f} s; "
            f"{sum(report.left.values())} left"
        )
    return 0


def _stop_on_signals(stop: threading.Event) -> None:
    """The first signal ends the job after its round; the second one ends the process. Set when Spark's own are set."""

    def told(number: int, _: FrameType | None) -> None:
        stop.set()
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, told)
