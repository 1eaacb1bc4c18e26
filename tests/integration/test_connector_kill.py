"""A stream that is killed with -9, again and again, at different moments of a batch.

Every message is in the table exactly once, and the queues are empty at the end.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pairbus.pipeline.servicebus import ServiceBusDataSource
from pairbus.testing import EmbeddedNamespace
from pairbus.testing.flooding import flood

MESSAGES = 6_000
PER_BATCH = 400
QUEUES = ("north", "south")
MOMENTS_TO_TRY = os.environ.get("PAIRBUS_STREAM_KILLS", "").split()
"""Of "planned written sunk committed removing". Each costs a start of Spark; a long run names all of them."""

PROGRAM = """
    import sys
    from pairbus.pipeline.servicebus import ServiceBusDataSource
    from pairbus.pipeline.session import local_session
    spark = local_session(cores=2, settings={"spark.sql.shuffle.partitions": "2"})
    spark.dataSource.register(ServiceBusDataSource)
    folder, per_batch = sys.argv[1:]
    query = (
        spark.readStream.format("servicebus")
        .options(connectionStringEnv="CONTOSO", queue="north,south", maxMessagesPerTrigger=per_batch)
        .option("messagesPerPartition", "150").load()
        .writeStream.option("checkpointLocation", folder + "/checkpoint").format("parquet")
        .start(folder + "/table")
    )
    query.awaitTermination()
"""


def numbered(folder: Path) -> int:
    return sum(1 for path in folder.glob("*") if path.name.isdigit()) if folder.exists() else 0


def waiting(namespace: EmbeddedNamespace) -> int:
    with namespace.admin() as admin:
        return sum(admin.get_queue_runtime_properties(name).active_message_count or 0 for name in QUEUES)


def moments(namespace: EmbeddedNamespace, folder: Path) -> dict[str, Callable[[], int]]:
    """Numbers that change at the moment of this name."""
    table, checkpoint = folder / "table", folder / "checkpoint"
    return {
        "planned": lambda: numbered(checkpoint / "offsets"),
        "written": lambda: sum(1 for _ in table.glob("part-*")),
        "sunk": lambda: numbered(table / "_spark_metadata"),
        "committed": lambda: numbered(checkpoint / "commits"),
        "removing": lambda: waiting(namespace),
    }


def stream_until(moment: Callable[[], int], namespace: EmbeddedNamespace, folder: Path) -> None:
    """Run the stream in a process of its own and kill it when the moment has come, once a batch of its own was done."""
    before, commits = moment(), numbered(folder / "checkpoint" / "commits")
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), str(folder), str(PER_BATCH)],
        env={**os.environ, "CONTOSO": namespace.connection_string},
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 300
        settled = False
        while moment() == before:
            assert child.poll() is None
            assert time.monotonic() < deadline
            if not settled and numbered(folder / "checkpoint" / "commits") > commits:
                settled, before = True, moment()
            time.sleep(0.002)
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


@pytest.mark.skipif(not MOMENTS_TO_TRY, reason="a long run: set PAIRBUS_STREAM_KILLS='written sunk removing'")
@pytest.mark.timeout(1800)
def test_a_stream_killed_at_any_moment_reads_each_message_exactly_once(spark: SparkSession, tmp_path: Path) -> None:
    spark.dataSource.register(ServiceBusDataSource)
    with EmbeddedNamespace("contoso", process=True) as namespace:
        with namespace.admin() as admin:
            for name in QUEUES:
                admin.create_queue(name, lock_duration="PT10S")
        for name in QUEUES:
            flood(namespace, name, MESSAGES // 2)
        known = moments(namespace, tmp_path)
        for name in MOMENTS_TO_TRY:
            stream_until(known[name], namespace, tmp_path)
        left = waiting(namespace)
        query = (
            spark.readStream.format("servicebus")
            .options(connectionString=namespace.connection_string, queue="north,south")
            .load()
            .writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .format("parquet")
            .start(str(tmp_path / "table"))
        )
        assert query.awaitTermination(200)
        assert 0 < left < MESSAGES, "the kills came before the first or after the last batch"
        assert waiting(namespace) == 0
    rows = spark.read.parquet(str(tmp_path / "table")).select("entity", "sequence_number").collect()
    found = Counter((row.entity, row.sequence_number) for row in rows)
    assert found == Counter((name, number) for name in QUEUES for number in range(1, MESSAGES // 2 + 1))
