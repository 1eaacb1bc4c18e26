"""A stream into Parquet, a real Spark, killed with -9 at two of five moments of a batch, and in `make soak` at all.

Every message is in the table exactly once, and the queues are empty at the end. Each life of Spark finishes the batch
that the life before left, and stops dead still at its moment in the batch after: the test sees that the moment has come
and kills it, so nothing depends on how fast the machine is. Each life costs a start of Spark. A start of Python is
enough for test_connector_replay.py, which kills the reader at many more moments.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession
from tests.support.raw import flood

from pairbus.pipeline.servicebus import ServiceBusDataSource
from pairbus.testing import EmbeddedNamespace, wait_until

MOMENTS = ("planned", "written", "sunk", "committed", "removing")
ROUNDS = int(os.environ.get("PAIRBUS_STREAM_KILL_ROUNDS", "0"))
"""How often all five moments come. Without it, there are two of them, others in each run."""
LIVES = len(MOMENTS) * ROUNDS or 2
PER_BATCH = 100
MESSAGES = LIVES * PER_BATCH * 2 + PER_BATCH
"""A life reads two batches at most; so something is left for the last run."""
QUEUES = ("north", "south")
LIFE_SECONDS = 400

PROGRAM = """
    import os, sys, threading
    from pathlib import Path
    from pyspark.errors import StreamingQueryException
    from pairbus.pipeline.servicebus import ServiceBusDataSource
    from pairbus.pipeline.servicebus.options import read_options
    from pairbus.pipeline.servicebus.stream import StreamReader
    from pairbus.pipeline.servicebus.wire import wire_for
    from pairbus.pipeline.session import local_session

    folder, moment, per_batch = Path(sys.argv[1]), sys.argv[2], sys.argv[3]

    def hold():
        (folder / "moment").touch()
        threading.Event().wait()

    async def lock_some(wire, entity):
        connection = await wire.session.connection(entity)
        receiver = await connection.open_receiver(entity, credit=5)
        await receiver.receive(5)

    class HoldingReader(StreamReader):
        batches = 0

        def latestOffset(self, start, limit):
            if moment == "committed" and self.batches == 2:
                hold()
            return super().latestOffset(start, limit)

        def commit(self, end):
            if moment == "removing" and self.batches == 2:
                entities = {name: {**one, "parts": one["parts"][:1]} for name, one in end["entities"].items()}
                super().commit({**end, "entities": entities})
                wire = wire_for(self._options.access)
                for name in entities:
                    wire.call(lock_some(wire, name))
                hold()
            super().commit(end)

        def partitions(self, start, end):
            parts = super().partitions(start, end)
            self.batches += 1
            if self.batches == 2:
                if moment == "planned":
                    hold()
                if moment == "written":
                    parts[-1].is_last = True
                if moment == "sunk":
                    # Where Spark would note the end of this batch: it cannot get beyond this moment.
                    offsets = (folder / "checkpoint/offsets").iterdir()
                    batch = max(int(path.name) for path in offsets if path.name.isdigit())
                    os.mkfifo(folder / "checkpoint/commits" / str(batch))
            return parts

        def read(self, partition):
            if getattr(partition, "is_last", False):
                hold()
            yield from super().read(partition)

    class Source(ServiceBusDataSource):
        def streamReader(self, schema):
            return HoldingReader(read_options(self.options, "stream"), schema)

    spark = local_session(
        cores=1,
        driver_memory="512m",
    )
    spark.dataSource.register(Source)
    query = (
        spark.readStream.format("servicebus")
        .options(connectionStringEnv="CONTOSO", queue="north,south", maxMessagesPerTrigger=per_batch)
        .option("messagesPerPartition", "30").load()
        .writeStream.option("checkpointLocation", str(folder / "checkpoint")).format("parquet")
        .start(str(folder / "table"))
    )
    try:
        query.awaitTermination()
    except StreamingQueryException:
        if moment != "sunk":
            raise
        hold()
"""


def numbers(folder: Path) -> set[int]:
    return {int(path.name) for path in folder.glob("*") if path.name.isdigit() and path.is_file()}


def active(namespace: EmbeddedNamespace) -> int:
    with namespace.admin() as admin:
        return sum(admin.get_queue_runtime_properties(name).active_message_count or 0 for name in QUEUES)


class Ground:
    """What a stream leaves on disk."""

    def __init__(self, folder: Path) -> None:
        self.table = folder / "table"
        self.planned = numbers(folder / "checkpoint" / "offsets")
        self.sunk = numbers(self.table / "_spark_metadata")
        self.committed = numbers(folder / "checkpoint" / "commits")

    @property
    def newest(self) -> int:
        return max(self.planned)

    def unlisted_files(self) -> int:
        """Files that were written and belong to no batch that the sink took."""
        listed = "".join((self.table / "_spark_metadata" / str(number)).read_text() for number in self.sunk)
        return sum(path.name not in listed for path in self.table.glob("part-*"))


def is_there(moment: str, folder: Path) -> bool:
    if moment != "sunk":
        return (folder / "moment").exists()
    barred = [path for path in (folder / "checkpoint" / "commits").glob("*") if path.is_fifo()]
    return any(int(path.name) in Ground(folder).sunk for path in barred)


def live_until(moment: str, namespace: EmbeddedNamespace, folder: Path) -> None:
    """One life of Spark, killed with all its processes at its moment."""
    errors = folder / "errors"
    with errors.open("wb") as log:
        child = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(PROGRAM), str(folder), moment, str(PER_BATCH)],
            env={**os.environ, "CONTOSO": namespace.connection_string},
            start_new_session=True,
            stderr=log,
        )
    try:
        wait_until(
            lambda: child.poll() is not None or is_there(moment, folder), timeout=LIFE_SECONDS, what=f"moment {moment}"
        )
        assert child.poll() is None, errors.read_text()[-3000:]
    finally:
        with suppress(psutil.NoSuchProcess):  # it ended by itself, and the assertion says why
            family = [psutil.Process(child.pid), *psutil.Process(child.pid).children(recursive=True)]
            for process in family:
                with suppress(psutil.Error):
                    process.send_signal(signal.SIGKILL)
            psutil.wait_procs(family)
        child.wait()
    (folder / "moment").unlink(missing_ok=True)
    for path in (folder / "checkpoint" / "commits").glob("*"):
        if path.is_fifo():
            path.unlink()


def check(moment: str, ground: Ground) -> None:
    """The kill came at its moment."""
    newest = ground.newest
    match moment:
        case "planned" | "written":
            assert newest not in ground.sunk
            assert newest not in ground.committed
            assert (ground.unlisted_files() > 0) == (moment == "written")
        case "sunk":
            assert newest in ground.sunk
            assert newest not in ground.committed
        case "committed":
            assert newest in ground.committed
        case "removing":
            assert newest - 1 in ground.committed
            assert newest not in ground.sunk


@pytest.mark.timeout(3600)
def test_a_stream_killed_at_any_moment_reads_each_message_exactly_once(spark: SparkSession, tmp_path: Path) -> None:
    spark.dataSource.register(ServiceBusDataSource)
    with EmbeddedNamespace("contoso", process=True) as namespace:
        for name in QUEUES:
            with namespace.admin() as admin:
                admin.create_queue(name, lock_duration="PT5S")
            flood(namespace, name, MESSAGES // 2)
        for moment in MOMENTS * ROUNDS or sorted(random.sample(MOMENTS, LIVES), key=MOMENTS.index):
            live_until(moment, namespace, tmp_path)
            check(moment, Ground(tmp_path))
        left = active(namespace)
        assert 0 < left < MESSAGES
        query = (
            spark.readStream.format("servicebus")
            .options(connectionString=namespace.connection_string, queue="north,south")
            .load()
            .writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .format("parquet")
            .start(str(tmp_path / "table"))
        )
        assert query.awaitTermination(LIFE_SECONDS)
        assert active(namespace) == 0
    # Nobody else was there, and half a removal of our own is not taken for somebody else's.
    assert "missing" not in query.recentProgress[-1].sources[0].endOffset
    rows = spark.read.parquet(str(tmp_path / "table")).select("entity", "sequence_number").collect()
    found = Counter((row.entity, row.sequence_number) for row in rows)
    assert found == Counter((name, number) for name in QUEUES for number in range(1, MESSAGES // 2 + 1))
