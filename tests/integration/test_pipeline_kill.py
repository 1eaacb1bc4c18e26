"""A build that is killed has changed nothing, and the next one makes the same tables as if it had never
been.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pairbus.ledger import LedgerWriter, Operation, Role, Route
from pairbus.pipeline import schemas
from pairbus.pipeline.build import build
from pairbus.pipeline.store import TableStore

pytestmark = pytest.mark.timeout(900)  # Spark on a busy machine

KILLS = int(os.environ.get("PAIRBUS_BUILD_KILLS", "2"))
"""Each kill costs a start of Spark; `make soak` takes 20 of them."""
WRITES = 12
"""Folders that one build writes: silver, quarantine, and the tables."""

PROGRAM = """
    import sys
    from pairbus.pipeline.build import build
    from pairbus.pipeline.session import local_session
    spark = local_session(cores=2, settings={"spark.sql.shuffle.partitions": "2"})
    print("ready", flush=True)
    build(spark, sys.argv[1], sys.argv[2])
    print("done", flush=True)
"""
QUEUE = "contoso/x-servicebus-transfer/0"


def write_ledger(folder: Path, name: str) -> None:
    with LedgerWriter(folder, role=Role.CLIENT) as writer:
        ids = [f"{name}-{i}" for i in range(100)]
        writer.record_batch(Operation.SEND, "contoso", "orders", ids, route=Route.PRIMARY)
        backlog = [f"{name}-b{i}" for i in range(50)]
        writer.record_batch(
            Operation.DIVERT, "fabrikam", QUEUE, backlog, destination="orders", route=Route.BACKLOG, episode=name
        )
        writer.record(
            Operation.TRANSITION, "contoso", "orders", state_from="healthy", state_to="failed over", episode=name
        )
        writer.record_batch(
            Operation.RESTORE, "contoso", "orders", backlog[:40], source=QUEUE, route=Route.SYPHON, role=Role.SYPHON
        )
    (folder / f"{name}-torn.000001.jsonl").write_text('{"v":1,')


def content(spark: SparkSession, folder: Path) -> dict[str, list[str]]:
    store = TableStore(folder)
    manifest = store.manifest()
    frames = {
        "silver": store.read_silver(spark, schemas.SILVER.schema, manifest),
        "quarantine": store.read_quarantine(spark, schemas.QUARANTINE.schema, manifest),
    }
    for table in schemas.TABLES[2:]:
        frames[table.name] = store.read_table(spark, table.schema, table.name, manifest)
    return {name: sorted(str(row) for row in frame.collect()) for name, frame in frames.items()}


def folders_written(tables: Path, batch: int) -> int:
    return len(list(tables.glob(f"*/batch={batch:06d}")))


def kill_a_build(ledger: Path, tables: Path, chance: random.Random) -> bool:
    """Start a build and kill it with -9 when it has written some random number of folders; whether it had
    ended.
    """
    batch = TableStore(tables).manifest().batch + 1
    goal = chance.randint(1, WRITES)
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), str(ledger), str(tables)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        deadline = time.monotonic() + 600
        while folders_written(tables, batch) < goal and child.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.002)
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        rest, _ = child.communicate()
    return "done" in rest


def test_a_killed_build_and_its_repetition_equal_one_clean_build(spark: SparkSession, tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(2**32)
    chance = random.Random(seed)
    ledger, tables = tmp_path / "ledger", tmp_path / "tables"
    tables.mkdir()
    write_ledger(ledger, "before")
    build(spark, ledger, tables)
    before = content(spark, tables)
    write_ledger(ledger, "after")
    for _ in range(KILLS):
        if kill_a_build(ledger, tables, chance):
            break
        assert content(spark, tables) == before, f"seed {seed}"
    build(spark, ledger, tables)
    build(spark, ledger, tmp_path / "clean")
    assert content(spark, tables) == content(spark, tmp_path / "clean"), f"seed {seed}"
