"""On a real standalone cluster, a master and two workers on loopback, whose Python has never heard of pairbus.

The code comes to the executors in an archive, as docs/spark.md says; one executor is killed while it carries messages.
What executors record comes to the driver's ledger though they share no folder with it.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import sysconfig
import textwrap
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pyspark
import pytest
from tests.support.ledgers import records_in
from tests.support.raw import flood, raw_message

import pairbus
from pairbus import envelope
from pairbus.ledger import Operation, Outcome
from pairbus.pairing.options import backlog_path
from pairbus.pipeline.java import find_java, home_for_spark
from pairbus.testing import EmbeddedPair, embedded_pair, wait_until

QUEUES = 2
MESSAGES = 16_000
OF_THE_CLUSTER = ("pyarrow", "pandas")
"""What a cluster that runs PySpark has installed."""

JOB = """
    import json, sys, time
    from pathlib import Path
    from pyspark.sql import SparkSession
    from pairbus.pipeline import Access, ServiceBusDataSource, run_spark_syphon

    ledger, ca_file, messages = sys.argv[1:]
    spark = SparkSession.builder.appName("cluster").getOrCreate()
    spark.dataSource.register(ServiceBusDataSource)

    def homes(_):
        import pairbus
        yield pairbus.__file__

    found = spark.sparkContext.parallelize([0], 1).mapPartitions(homes).collect()
    print(json.dumps(found), flush=True)
    def carry():
        return run_spark_syphon(
            Access("PRIMARY", ca_file), Access("SECONDARY", ca_file), spark=spark, once=True, primary_name="contoso",
            queues=range(2), ledger=ledger,
        )

    report = carry()
    # The records of a killed executor come with the next task on its machine. The other machine may have been done
    # before a new executor started there: run again until they are here. Nothing is left to carry.
    def recorded():
        lines = [json.loads(line) for path in Path(ledger).glob("*.jsonl") for line in path.open()]
        return len({line.get("message_id") for line in lines if line["operation"] == "restore"})

    deadline = time.monotonic() + 240
    while recorded() < int(messages) and time.monotonic() < deadline:
        assert carry().restored == 0
    reader = spark.read.format("servicebus").option("connectionStringEnv", "PRIMARY").option("queue", "orders")
    there = reader.option("messagesPerPartition", "2000").load().select("message_id").distinct().count()
    print(json.dumps([report.restored, report.failures, sum(report.left.values()), there]), flush=True)
"""


def needed(name: str, found: dict[str, importlib.metadata.Distribution]) -> None:
    """A distribution and all it requires, as far as it is installed."""
    try:
        one = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return
    key = one.metadata["Name"].lower()
    if key in found:
        return
    found[key] = one
    for requirement in one.requires or ():
        if "extra ==" not in requirement:
            needed(re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0], found)


def copy(distribution: importlib.metadata.Distribution, target: Path) -> None:
    for file in distribution.files or ():
        if ".." not in file.parts and "__pycache__" not in file.parts and "tests" not in file.parts:
            (target / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(str(file.locate()), target / file)


def build_archive(folder: Path) -> Path:
    """What `pip install --target` and `zip` make of `pairbus[syphon]`, from what is installed here."""
    found: dict[str, importlib.metadata.Distribution] = {}
    for name in ("azure-servicebus", "aiohttp", "msgspec", "python-qpid-proton", "certifi"):
        needed(name, found)
    content = folder / "content"
    for one in found.values():
        copy(one, content)
    shutil.copytree(Path(pairbus.__file__).parent, content / "pairbus", ignore=shutil.ignore_patterns("__pycache__"))
    archive = folder / "executors.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for path in content.rglob("*"):
            file.write(path, path.relative_to(content))
    return archive


def build_python(folder: Path) -> Path:
    """A Python as clusters have it: with what PySpark needs, and nothing else."""
    libraries = folder / "libraries"
    libraries.mkdir()
    distributions: dict[str, importlib.metadata.Distribution] = {}
    for name in OF_THE_CLUSTER:
        needed(name, distributions)
    for found in distributions.values():
        tops = {file.parts[0] for file in found.files or () if ".." not in file.parts}
        for top in tops:
            if not (libraries / top).exists():
                (libraries / top).symlink_to(Path(sysconfig.get_paths()["platlib"]) / top)
    python = folder / "python"
    real = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{libraries}" exec {real} "$@"\n')
    python.chmod(0o700)
    return python


@contextmanager
def cluster(folder: Path, secrets: dict[str, str]) -> Iterator[str]:
    """A master and two workers of one core each. The machines know the secrets, by their environment."""
    java = str(home_for_spark(find_java()))
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "JAVA_HOME": java,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(folder / "local"),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        **secrets,
    }
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    start = Path(pyspark.__file__).parent / "bin" / "spark-class"
    master = f"spark://127.0.0.1:{port}"
    commands = [
        ["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"],
        *(
            [
                "org.apache.spark.deploy.worker.Worker",
                "--host",
                "127.0.0.1",
                "--webui-port",
                "0",
                "-c",
                "1",
                "-m",
                "600m",
                "-d",
                str(folder / f"work-{i}"),
                master,
            ]
            for i in range(2)
        ),
    ]
    running: list[subprocess.Popen[bytes]] = []
    log = (folder / "cluster.log").open("wb")
    try:
        for number, command in enumerate(commands):
            # As on machines of their own, the workers have nothing in common but the network.
            own = {**environment, "TMPDIR": str(folder / f"machine-{number}")}
            Path(own["TMPDIR"]).mkdir()
            running.append(subprocess.Popen([start, *command], env=own, cwd=folder, stdout=log, stderr=log))
        text = folder / "cluster.log"
        wait_until(lambda: text.read_bytes().count(b"Successfully registered with master") == 2, timeout=120)
        yield master
    finally:
        for one in running:
            end(one)
        log.close()


def end(process: subprocess.Popen[Any]) -> None:
    """It and all it started."""
    with suppress(psutil.NoSuchProcess):
        for child in psutil.Process(process.pid).children(recursive=True):
            with suppress(psutil.Error):
                child.kill()
    process.kill()
    process.wait()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[EmbeddedPair]:
    with embedded_pair(tmp_path / "namespaces", process=True) as started:
        with started.primary.admin() as admin:
            admin.create_queue("orders", requires_duplicate_detection=True)
        with started.secondary.admin() as admin:
            for number in range(QUEUES):
                # Short locks: what a killed executor held comes again soon.
                admin.create_queue(backlog_path("contoso", number), lock_duration="PT6S")
        for number in range(QUEUES):

            def make(index: int, number: int = number) -> bytes:
                return envelope.to_backlog(raw_message(f"{number}-{index}", b"x" * 500), "orders")

            flood(started.secondary, f"contoso/x-servicebus-transfer/{number}", MESSAGES // QUEUES, make=make)
        yield started


def carried(pair: EmbeddedPair) -> int:
    with pair.primary.admin() as admin:
        return admin.get_queue_runtime_properties("orders").active_message_count or 0


def at_work(machine: Path) -> bool:
    """Whether an executor carries there: it records into a folder of its own machine first."""
    return any(machine.glob("pairbus-syphon-*/*"))


def restored_by_the_ledger(folder: Path) -> set[str | None]:
    records = records_in(folder)
    return {one.message_id for one in records if one.operation is Operation.RESTORE and one.outcome is Outcome.OK}


def command_lines() -> list[str]:
    """What everyone on this machine can see of the cluster's processes."""
    found = []
    for one in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            found.append(" ".join(one.cmdline()))
    return found


def executors() -> list[psutil.Process]:
    found = []
    for one in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if any("CoarseGrainedExecutorBackend" in word for word in one.cmdline()):
                found.append(one)
    return found


@pytest.mark.timeout(1200)
def test_a_cluster_with_the_code_in_an_archive_carries_on_without_a_lost_executor(
    pair: EmbeddedPair, tmp_path: Path
) -> None:
    archive, python = build_archive(tmp_path), build_python(tmp_path)
    check = subprocess.run([python, "-c", "import pyarrow, pandas; import pairbus"], capture_output=True, text=True)
    assert "No module named 'pairbus'" in check.stderr
    secrets = {"PRIMARY": pair.primary.connection_string, "SECONDARY": pair.secondary.connection_string}
    machines = [tmp_path / f"machine-{number}" for number in (1, 2)]
    job = tmp_path / "job.py"
    job.write_text(textwrap.dedent(JOB))
    with cluster(tmp_path, secrets) as master:
        path = [str(Path(pairbus.__file__).parent.parent), sysconfig.get_paths()["platlib"]]
        driver = subprocess.Popen(
            [
                Path(pyspark.__file__).parent / "bin" / "spark-submit",
                *("--master", master),
                *("--archives", f"{archive}#pairbus"),
                *("--conf", "spark.executorEnv.PYTHONPATH=pairbus"),
                *("--conf", "spark.executor.memory=512m", "--conf", "spark.executor.cores=1"),
                # Nothing begins before both executors are there: the one that is killed has work, and so has the other.
                *("--conf", "spark.cores.max=2", "--conf", "spark.scheduler.minRegisteredResourcesRatio=1.0"),
                *("--conf", "spark.scheduler.maxRegisteredResourcesWaitingTime=300s"),
                *("--conf", "spark.driver.bindAddress=127.0.0.1", "--conf", "spark.driver.host=127.0.0.1"),
                *("--conf", "spark.ui.enabled=false"),
                *(str(job), str(tmp_path / "ledger"), pair.secondary.ca_file, str(MESSAGES)),
            ],
            env={
                **os.environ,
                **secrets,
                "JAVA_HOME": str(home_for_spark(find_java())),
                "SPARK_LOCAL_IP": "127.0.0.1",
                "PYSPARK_PYTHON": str(python),
                "PYSPARK_DRIVER_PYTHON": sys.executable,
                "PYTHONPATH": os.pathsep.join(path),
            },
            stdout=subprocess.PIPE,
            stderr=(tmp_path / "driver.log").open("wb"),
            text=True,
        )
        try:
            deadline = time.monotonic() + 500
            while carried(pair) < 500 or not all(at_work(machine) for machine in machines):
                assert driver.poll() is None, (tmp_path / "driver.log").read_text()[-3000:]
                assert time.monotonic() < deadline
            victims = executors()
            assert len(victims) == 2
            assert not [line for line in command_lines() if "SharedAccessKey=" in line]
            victims[0].kill()
            out, _ = driver.communicate(timeout=500)
        finally:
            end(driver)
        assert driver.returncode == 0, (tmp_path / "driver.log").read_text()[-3000:]
    homes, (restored, _, left, there) = (json.loads(line) for line in out.splitlines()[-2:])
    written = [path for path in tmp_path.rglob("*") if path.is_file() and "namespaces" not in path.parts]
    keys = [text.partition("SharedAccessKey=")[2].partition(";")[0].encode() for text in secrets.values()]
    assert not [path for path in written if any(key in path.read_bytes() for key in keys)]
    assert all("/work-" in home and "/pairbus/pairbus/__init__.py" in home for home in homes)
    assert (left, there) == (0, MESSAGES)
    assert restored <= MESSAGES * 2
    assert carried(pair) == MESSAGES
    assert restored_by_the_ledger(tmp_path / "ledger") == {
        f"{number}-{index}" for number in range(QUEUES) for index in range(MESSAGES // QUEUES)
    }
    assert [path for machine in machines for path in machine.rglob("*.jsonl*")] == []
