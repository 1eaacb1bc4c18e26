"""A build that is killed has changed nothing, and the next one makes the same tables as if it had never been.

Two kinds of kills. Drivers die by SIGKILL at moments in random order: after each of the folders a build writes, and
around each step by which Python itself changes the disk. They work on the Spark of the tests, which saves its start and
makes it worse: Spark survives and goes on with the job of the dead driver, beside the next build. There are 22 moments,
and each costs most of a build: `make soak` takes all of them, `make test` two of each kind and the last one, others in
each run. And whole builds, Java and all, are killed together; each costs a start of Spark, so it is one here, and as
many as one likes in `make soak`.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import suppress
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pairbus.ledger import CompletedOperation, LedgerWriter, Operation, Role, Route, closed_files
from pairbus.pipeline import schemas
from pairbus.pipeline.build import build
from pairbus.pipeline.store import TableStore

pytestmark = pytest.mark.timeout(900)  # Spark on a busy machine

KILLS = int(os.environ.get("PAIRBUS_BUILD_KILLS", "1"))
MOMENTS_OF_A_KIND = int(os.environ.get("PAIRBUS_DRIVER_KILLS", "2"))
WRITES = 12
"""Folders that one build leaves: silver, quarantine, and the tables."""
STEPS = ("shutil.rmtree", "os.rename", "os.sync", "os.fsync", "os.replace")
"""How a build changes the disk without Spark: a sweep, silver without copies, and the publication."""

PROGRAM = """
    import sys
    from pairbus.pipeline.build import build
    from pairbus.pipeline.session import local_session
    from pairbus.pipeline.small_tables import SMALL_TABLES
    spark = local_session(cores=2, settings=SMALL_TABLES)
    print("ready", flush=True)
    build(spark, sys.argv[1], sys.argv[2])
    print("done", flush=True)
"""
DRIVERS = """
    import os, shutil, signal, sys
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession
    from pairbus.pipeline.build import build

    def dying(module, name, when):
        real = getattr(module, name)
        def die(*arguments, **options):
            if when == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            result = real(*arguments, **options)
            os.kill(os.getpid(), signal.SIGKILL)
        setattr(module, name, die)

    def drive(step, when):
        gateway = launch_gateway()  # to the Spark that the environment names
        context = gateway.jvm.JavaSparkContext(gateway.jvm.org.apache.spark.SparkContext.getOrCreate())
        spark = SparkSession(SparkContext(gateway=gateway, jsc=context, conf=SparkConf(_jconf=context.getConf())))
        if step == "none":
            os.sync = signal.pause  # killed from outside, some time before it would publish
        else:
            module, _, name = step.partition(".")
            dying({"os": os, "shutil": shutil}[module], name, when)
        build(spark, sys.argv[1], sys.argv[2])

    for line in sys.stdin:  # each line is one driver; its process id is the answer
        child = os.fork()
        if child == 0:
            try:
                drive(*line.split())
            finally:
                os._exit(0)
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
QUEUE = "contoso/x-servicebus-transfer/0"


def write_ledger(folder: Path, name: str) -> None:
    earlier = set(closed_files(folder))
    with LedgerWriter(folder, role=Role.CLIENT) as writer:
        ids = [f"{name}-{i}" for i in range(100)]
        writer.record(CompletedOperation(Operation.SEND, "contoso", "orders", ids, route=Route.PRIMARY))
        backlog = [f"{name}-b{i}" for i in range(50)]
        writer.record(
            CompletedOperation(
                Operation.DIVERT, "fabrikam", QUEUE, backlog, destination="orders", route=Route.BACKLOG, episode=name
            )
        )
        writer.record(
            CompletedOperation(
                Operation.TRANSITION, "contoso", "orders", state_from="healthy", state_to="failed over", episode=name
            )
        )
        writer.record(
            CompletedOperation(
                Operation.RESTORE, "contoso", "orders", backlog[:40], source=QUEUE, route=Route.SYPHON, role=Role.SYPHON
            )
        )
    # Under two names: a build writes silver again, without the copies.
    (written,) = set(closed_files(folder)) - earlier
    shutil.copy(written, folder / f"{name}-copy.000001.jsonl")
    (folder / f"{name}-torn.000001.jsonl").write_text('{"v":1,')


def content(spark: SparkSession, folder: Path) -> dict[str, list[str]]:
    store = TableStore(folder)
    manifest = store.manifest()
    frames = {
        "silver": store.read(spark, schemas.SILVER, manifest),
        "quarantine": store.read(spark, schemas.QUARANTINE, manifest),
    }
    for table in schemas.TABLES[2:]:
        frames[table.name] = store.read(spark, table, manifest)
    return {name: sorted(str(row) for row in frame.collect()) for name, frame in frames.items()}


def files_that_count(tables: Path) -> dict[str, bytes]:
    """Every file that the manifest names, and the manifest."""
    manifest = TableStore(tables).manifest()
    places = {f"silver/batch={b:06d}" for batches in manifest.silver.values() for b in batches}
    places |= {f"quarantine/batch={b:06d}" for b in manifest.quarantine}
    for name, of_day in manifest.tables.items():
        places |= {f"{name}/batch={batch:06d}/day={day}" for day, batch in of_day.items()}
    found = [tables / "CURRENT.json", *(path for place in places for path in (tables / place).rglob("*.parquet"))]
    return {str(path.relative_to(tables)): path.read_bytes() for path in found}


def folders_written(tables: Path, after: int) -> int:
    """Count the folders of batches later than `after`."""
    with suppress(FileNotFoundError):  # a build removes folders while this looks: look again
        return sum(int(path.name.removeprefix("batch=")) > after for path in tables.glob("*/batch=*"))
    return 0


def last_try(tables: Path) -> int:
    return int((tables / "LOCK").read_text())


def wait_for_folders(tables: Path, after: int, goal: int, over: subprocess.Popen[str] | None = None) -> None:
    deadline = time.monotonic() + 600
    while folders_written(tables, after) < goal and (over is None or over.poll() is None):
        assert time.monotonic() < deadline
        time.sleep(0.002)


def kill_a_build(ledger: Path, tables: Path, chance: random.Random) -> bool:
    """Start a build and kill it with -9, Java too, when it has written some random number of folders; whether it had
    ended.
    """
    after, goal = last_try(tables), chance.randint(1, WRITES)
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), str(ledger), str(tables)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        wait_for_folders(tables, after, goal, over=child)
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        rest, _ = child.communicate()
    return "done" in rest


def test_a_killed_build_and_its_repetition_equal_one_clean_build(spark: SparkSession, tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(2**32)
    chance = random.Random(seed)
    ledger, tables = tmp_path / "ledger", tmp_path / "tables"
    write_ledger(ledger, "before")
    build(spark, ledger, tables)
    before = files_that_count(tables)
    write_ledger(ledger, "after")
    for _ in range(KILLS):
        if kill_a_build(ledger, tables, chance):
            break
        assert files_that_count(tables) == before, f"seed {seed}"
    build(spark, ledger, tables)
    build(spark, ledger, tmp_path / "clean")
    assert content(spark, tables) == content(spark, tmp_path / "clean"), f"seed {seed}"


def moments(chance: random.Random) -> list[tuple[str, str, int]]:
    """Where drivers die: a step, before or after it; or the number of folders written. The first of them leaves
    something to sweep, and the last has published, though it did not live to know it.
    """
    last = ("os.replace", "after", 0)
    writes = [("none", "-", folders) for folders in range(1, WRITES + 1)]
    steps = [(step, when, 0) for step in STEPS for when in ("before", "after") if (step, when, 0) != last]
    first, *rest = chance.sample(writes, min(MOMENTS_OF_A_KIND, len(writes)))
    rest += chance.sample(steps, min(MOMENTS_OF_A_KIND, len(steps)))
    chance.shuffle(rest)
    return [first, *rest, last]


def test_killed_drivers_and_one_repetition_equal_one_clean_build(spark: SparkSession, tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(2**32)
    ledger, tables = tmp_path / "ledger", tmp_path / "tables"
    write_ledger(ledger, "before")
    build(spark, ledger, tables)
    before = files_that_count(tables)
    write_ledger(ledger, "after")
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    parameters = gateway.gateway_parameters
    drivers = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(DRIVERS), str(ledger), str(tables)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "PYSPARK_GATEWAY_PORT": str(parameters.port),
            "PYSPARK_GATEWAY_SECRET": parameters.auth_token,
        },
    )
    assert drivers.stdin is not None
    assert drivers.stdout is not None
    with drivers:
        for step, when, folders in moments(random.Random(seed)):
            assert files_that_count(tables) == before, f"seed {seed}"
            after = last_try(tables)
            drivers.stdin.write(f"{step} {when}\n")
            drivers.stdin.flush()
            driver = int(drivers.stdout.readline())
            if folders:
                try:
                    wait_for_folders(tables, after, folders)
                finally:
                    os.kill(driver, signal.SIGKILL)  # it pauses before it would publish, and waits for nothing else
            assert int(drivers.stdout.readline()) == -signal.SIGKILL, f"{step} {when} {folders}, seed {seed}"
        drivers.stdin.close()
    build(spark, ledger, tables)
    build(spark, ledger, tmp_path / "clean")
    assert content(spark, tables) == content(spark, tmp_path / "clean"), f"seed {seed}"
