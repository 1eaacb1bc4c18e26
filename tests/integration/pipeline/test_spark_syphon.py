"""The syphon as a Spark job in local mode: drains, records, and survives the loss of those who do the work."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession
from tests.support.backlogs import take_from
from tests.support.ledgers import records_in
from tests.support.raw import flood, raw_message

from pairbus import envelope
from pairbus.ledger import CompletedOperation, LedgerWriter, Operation, Outcome, Route
from pairbus.pairing.options import backlog_path
from pairbus.pipeline.report import summarise
from pairbus.pipeline.servicebus.options import Access
from pairbus.pipeline.spark_syphon import SparkSyphonError, SparkSyphonReport, run_spark_syphon
from pairbus.testing import EmbeddedPair, embedded_pair, wait_until

QUEUES = 3
LOCK_SECONDS = 6


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[EmbeddedPair]:
    with embedded_pair(tmp_path, process=True) as started:
        with started.primary.admin() as admin:
            admin.create_queue("orders", requires_duplicate_detection=True)
            admin.create_queue("invoices")
        with started.secondary.admin() as admin:
            for number in range(QUEUES):
                # Short locks: what a killed worker held comes again soon.
                admin.create_queue(backlog_path("contoso", number), lock_duration=f"PT{LOCK_SECONDS}S")
        yield started


def fill(pair: EmbeddedPair, number: int, count: int, destination: str = "orders") -> None:
    queue = f"contoso/x-servicebus-transfer/{number}"

    def make(index: int) -> bytes:
        return envelope.to_backlog(raw_message(f"{number}-{destination}-{index}", b"x" * 500), destination)

    flood(pair.secondary, queue, count, make=make)


def active(pair: EmbeddedPair, name: str) -> int:
    with pair.primary.admin() as admin:
        return admin.get_queue_runtime_properties(name).active_message_count or 0


def carry(
    spark: SparkSession, pair: EmbeddedPair, ledger: Path | None = None, queues: range = range(QUEUES)
) -> SparkSyphonReport:
    return run_spark_syphon(
        Access(None, pair.primary.ca_file, pair.primary.connection_string),
        Access(None, pair.secondary.ca_file, pair.secondary.connection_string),
        spark=spark,
        once=True,
        primary_name="contoso",
        queues=queues,
        ledger=ledger,
    )


def test_it_drains_every_queue_in_order_and_records_each_message(
    spark: SparkSession, pair: EmbeddedPair, tmp_path: Path
) -> None:
    fill(pair, 0, 700)
    fill(pair, 1, 300)
    fill(pair, 1, 200, "invoices")
    fill(pair, 2, 5, "nowhere")
    report = carry(spark, pair, tmp_path / "ledger")
    assert (report.restored, report.dead_lettered) == (1200, 5)
    assert "syphon contoso: round 1, 1205 messages in 3 queues" in shown_in_the_ui(spark)
    assert not any(report.left.values())
    invoices = [message.message_id for message in take_from(pair.primary, "invoices", 200)]
    assert invoices == [f"1-invoices-{index}" for index in range(200)]
    assert active(pair, "orders") == 1000
    told = records_in(tmp_path / "ledger")
    restored = [one.message_id for one in told if one.operation is Operation.RESTORE and one.outcome is Outcome.OK]
    assert len(restored) == len(set(restored)) == 1200
    assert sum(one.operation is Operation.DEAD_LETTER for one in told) == 5


def shown_in_the_ui(spark: SparkSession) -> set[str]:
    """What the pages of Spark say of its jobs."""
    jobs = spark.sparkContext._jsc.sc().statusStore().jobsList(None)
    told = (jobs.apply(index).description() for index in range(jobs.size()))
    return {one.get() for one in told if one.isDefined()}


def test_it_goes_on_until_it_is_told_to_stop(spark: SparkSession, pair: EmbeddedPair) -> None:
    fill(pair, 0, 50)
    stop, drained = threading.Event(), threading.Event()

    def progress(report: SparkSyphonReport) -> None:
        if report.rounds and not any(report.left.values()):
            drained.set()

    ends = [Access(None, one.ca_file, one.connection_string) for one in (pair.primary, pair.secondary)]
    with ThreadPoolExecutor(1) as aside:
        job = aside.submit(
            run_spark_syphon, *ends, spark=spark, primary_name="contoso", queues=[0], on_progress=progress, stop=stop
        )
        try:
            assert drained.wait(200)
            fill(pair, 0, 20, "invoices")
            wait_until(lambda: job.done() or active(pair, "invoices") == 20)
        finally:
            stop.set()
        assert job.result().restored == 70


def test_progress_is_told_and_an_empty_backlog_is_nothing(spark: SparkSession, pair: EmbeddedPair) -> None:
    report = carry(spark, pair)
    assert (report.rounds, report.restored, report.left) == (
        0,
        0,
        {f"contoso/x-servicebus-transfer/{number}": 0 for number in range(QUEUES)},
    )
    assert carry(spark, pair, queues=range(7, 9)).left == {}


def workers() -> list[psutil.Process]:
    """The Python processes that work for this process's Spark."""
    daemons = []
    for one in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if "pyspark.daemon" in one.cmdline():
                daemons.append(one)
    pids = {one.pid for one in daemons}
    return [one for one in daemons if one.ppid() in pids]


def note_as_diverted(ledger: Path, number: int, count: int) -> None:
    """What a paired client records of the messages that `fill` makes."""
    with LedgerWriter(ledger) as writer:
        writer.record(
            CompletedOperation(
                Operation.DIVERT,
                "standby",
                backlog_path("contoso", number),
                [f"{number}-orders-{index}" for index in range(count)],
                route=Route.BACKLOG,
                destination="orders",
            )
        )


@pytest.mark.timeout(700)
def test_killed_workers_lose_nothing(spark: SparkSession, pair: EmbeddedPair, tmp_path: Path) -> None:
    for number in range(QUEUES):
        fill(pair, number, 3000)
        note_as_diverted(tmp_path / "ledger", number, 3000)
    reports: list[SparkSyphonReport] = []
    runner = threading.Thread(target=lambda: reports.append(carry(spark, pair, tmp_path / "ledger")))
    runner.start()
    deadline = time.monotonic() + 200
    while active(pair, "orders") < 200:
        assert runner.is_alive()
        assert time.monotonic() < deadline
    killed = workers()
    assert killed
    for one in killed:
        with suppress(psutil.Error):
            one.kill()
    runner.join(400)
    assert not runner.is_alive()
    (report,) = reports
    assert report.failures >= 1
    assert report.rounds >= 2
    assert not any(report.left.values())
    # Duplicate detection removed what was sent twice; nothing is missing.
    assert active(pair, "orders") == QUEUES * 3000
    ids = {message.message_id for message in take_from(pair.primary, "orders", QUEUES * 3000)}
    assert ids == {f"{number}-orders-{index}" for number in range(QUEUES) for index in range(3000)}
    # Nor is a record: whatever a killed worker removed from the backlog it had noted before.
    verdict = summarise(spark, tmp_path / "ledger")
    assert (verdict.accepted, verdict.delivered) == (QUEUES * 3000, QUEUES * 3000)
    assert (verdict.lost, verdict.waiting, verdict.broken_lines) == (0, 0, 0)


def test_a_namespace_that_does_not_answer_is_an_error(spark: SparkSession, pair: EmbeddedPair) -> None:
    pair.secondary.stop()
    with pytest.raises(SparkSyphonError, match=r"Cannot read the depths of the backlog queues of 'contoso' in "):
        carry(spark, pair)


@pytest.mark.timeout(700)
def test_the_command_carries_on_spark(pair: EmbeddedPair) -> None:
    fill(pair, 0, 300)
    command = [sys.executable, "-m", "pairbus.cli", "syphon", "--engine", "spark", "--master", "local[2]", "--once"]
    done = subprocess.run(
        [*command, "--primary-name", "contoso", "--queues", f"0-{QUEUES - 1}", "--json"],
        env={
            **os.environ,
            "PAIRBUS_PRIMARY": pair.primary.connection_string,
            "PAIRBUS_SECONDARY": pair.secondary.connection_string,
            "PAIRBUS_CA_FILE": pair.secondary.ca_file,
        },
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout)["restored"] == 300
    assert "300 restored" in done.stderr
    assert active(pair, "orders") == 300
