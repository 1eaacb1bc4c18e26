"""`pairbus syphon --engine spark`: the syphon as a Spark job, its signals, its progress, its last word."""

from __future__ import annotations

import importlib.util
import json
import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Literal

import typer

from pairbus.cli.refusal import Refusal
from pairbus.cli.tables import asked
from pairbus.cli.voice import remark
from pairbus.pairing.options import backlog_path
from pairbus.syphon import Namespace
from pairbus.syphon.namespaces import count_waiting


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
    from pairbus.pipeline.java import JavaMissingError
    from pairbus.pipeline.servicebus.options import Access
    from pairbus.pipeline.spark_syphon import SparkSyphonError, SparkSyphonReport, run_spark_syphon, session_for

    def access(option: str, namespace: Namespace) -> Access:
        if namespace._connection_string is None:
            raise Refusal(
                f"{option} is a host name: --engine spark needs a connection string (env:VARIABLE or a file)."
            )
        return Access(None, namespace.connection_verify, namespace._connection_string)

    def progress(report: SparkSyphonReport) -> None:
        left = sum(report.left.values())
        remark(f"round {report.rounds}: {report.restored} restored, {report.dead_lettered} dead-lettered, {left} left")

    ends = access("--primary", primary), access("--secondary", secondary)
    asked(count_waiting(secondary, [backlog_path(primary_name, number) for number in queues]))  # before Spark starts
    stop = threading.Event()
    try:
        spark = session_for(master, "pairbus syphon")
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
        finally:
            spark.stop()
    except (SparkSyphonError, JavaMissingError, ValueError) as error:
        raise Refusal(str(error)) from error
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
