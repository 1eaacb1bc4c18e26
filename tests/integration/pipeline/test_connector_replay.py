"""The stream reader in the hands of a small driver that keeps Spark's order of steps and is killed with -9 many times.

What a real Spark does with it is in test_connector_kill.py; there each kill costs a start of Spark, here only one of
Python.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import textwrap
import time
from collections import Counter
from pathlib import Path

import pytest
from tests.support.raw import flood

from pairbus.pipeline.servicebus.offsets import Offset
from pairbus.testing import EmbeddedNamespace

KILLS = int(os.environ.get("PAIRBUS_REPLAY_KILLS", "6"))
MESSAGES = 1_500
QUEUES = ("north", "south")

DRIVER = """
    import json, os, sys
    from pathlib import Path
    from pairbus.pipeline.servicebus.rows import SCHEMA
    from pairbus.pipeline.servicebus.options import read_options
    from pairbus.pipeline.servicebus.stream import StreamReader

    folder = Path(sys.argv[1])
    options = {"connectionStringEnv": "CONTOSO", "queue": "north,south", "maxMessagesPerTrigger": "100"}
    reader = StreamReader(read_options({**options, "messagesPerPartition": "40"}, "stream"), SCHEMA)

    def write(kind, batch, value):
        path = folder / kind / str(batch)
        path.parent.mkdir(exist_ok=True)
        path.with_suffix(".new").write_text(json.dumps(value))
        path.with_suffix(".new").rename(path)

    def load(kind, batch):
        path = folder / kind / str(batch)
        return json.loads(path.read_text()) if path.exists() else None

    def last(kind):
        return max((int(path.name) for path in (folder / kind).glob("*") if path.name.isdigit()), default=-1)

    print("ready", flush=True)
    if len(sys.argv) > 2:
        reader.prepareForTriggerAvailableNow()
    batch = last("offsets")
    if batch < 0 or last("commits") == batch:
        batch += 1
    while True:
        start = load("offsets", batch - 1) or reader.initialOffset()
        end = load("offsets", batch)
        if end is None:
            end = reader.latestOffset(start, reader.getDefaultReadLimit())
            if end == start:
                if len(sys.argv) > 2:
                    break
                continue
            write("offsets", batch, end)
            if batch:
                reader.commit(start)
        rows = []
        for part in reader.partitions(start, end):
            for found in reader.read(part):
                entities, numbers = found.column("entity").to_pylist(), found.column("sequence_number").to_pylist()
                rows += list(zip(entities, numbers))
        write("table", batch, rows)
        write("commits", batch, {})
        batch += 1
"""


def drive(namespace: EmbeddedNamespace, folder: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(DRIVER), str(folder), *words],
        env={**os.environ, "CONTOSO": namespace.connection_string},
        stdout=subprocess.PIPE,
        text=True,
    )


def active(namespace: EmbeddedNamespace) -> int:
    with namespace.admin() as admin:
        return sum(admin.get_queue_runtime_properties(name).active_message_count or 0 for name in QUEUES)


@pytest.mark.timeout(900)
def test_kills_at_any_moment_leave_each_message_read_once_and_the_queues_empty(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(2**32)
    chance = random.Random(seed)
    with EmbeddedNamespace("contoso", process=True) as namespace:
        for name in QUEUES:
            with namespace.admin() as admin:
                admin.create_queue(name, lock_duration="PT5S")
            flood(namespace, name, MESSAGES // 2)
        for _ in range(KILLS):
            child = drive(namespace, tmp_path)
            try:
                assert child.stdout is not None
                assert child.stdout.readline() == "ready\n"
                time.sleep(chance.uniform(0.0, 1.5))  # the moment of the kill
            finally:
                child.kill()
                child.communicate()
        last = drive(namespace, tmp_path, "now")
        last.communicate(timeout=300)
        assert last.returncode == 0, f"seed {seed}"
        assert active(namespace) == 0, f"seed {seed}"
    found: Counter[tuple[str, int]] = Counter()
    for path in (tmp_path / "table").iterdir():
        if path.name.isdigit():
            rows = [(entity, number) for entity, number in json.loads(path.read_text())]
            # However often it was begun: a batch is what its offset says, task by task.
            planned = Offset.from_json(json.loads((tmp_path / "offsets" / path.name).read_text()))
            parts = [(entity, part) for entity, one in planned.entities.items() for part in one.parts]
            assert rows == [(entity, number) for entity, part in parts for number in part], f"seed {seed}"
            found.update(rows)
    expected = Counter((name, number) for name in QUEUES for number in range(1, MESSAGES // 2 + 1))
    assert found == expected, f"seed {seed}"
