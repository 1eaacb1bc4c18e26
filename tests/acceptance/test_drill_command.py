"""`pairbus drill` as a team would run it in its CI: the examples, a real pair, and drills that must fail."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from pairbus.drill.scenario import DrillEntity
from pairbus.drill.stage import LeftBehindError, entities_on, real_stage
from pairbus.pairing.options import backlog_path
from pairbus.syphon import Namespace
from pairbus.testing import EmbeddedPair, embedded_pair, wait_until

ROOT = Path(__file__).parent.parent.parent
DRILLS = ROOT / "examples" / "drills"
Done = subprocess.CompletedProcess[str]


def drill(*words: str, **environment: str) -> Done:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PAIRBUS_")}
    return subprocess.run(
        [sys.executable, "-m", "pairbus.cli", "drill", *words],
        env={**kept, **environment},
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.fixture(scope="module")
def players() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(6) as players:
        yield players


@pytest.fixture(scope="module")
def examples(players: ThreadPoolExecutor) -> dict[str, Future[Done]]:
    """All examples, played beside each other: they wait more than they work."""
    return {path.stem: players.submit(drill, str(path), "--json") for path in sorted(DRILLS.glob("*.toml"))}


@pytest.mark.parametrize("name", ["both-down", "one-entity-fails", "primary-dies"])
def test_an_example_passes(examples: dict[str, Future[Done]], name: str) -> None:
    done = examples[name].result()
    result = json.loads(done.stdout)
    assert (done.returncode, result["passed"]) == (0, True), done.stdout + done.stderr
    account = result["account"]
    assert account["lost"] == 0
    assert account["accepted"] == account["delivered"] > 0
    assert all(step["problem"] is None for step in result["steps"])
    assert "\x1b" not in done.stdout + done.stderr


def test_every_example_is_tested() -> None:
    tested = {"both-down", "one-entity-fails", "primary-dies", "notices-a-loss"}
    assert {path.stem for path in DRILLS.glob("*.toml")} == tested


def test_a_loss_is_noticed(examples: dict[str, Future[Done]]) -> None:
    done = examples["notices-a-loss"].result()
    result = json.loads(done.stdout)
    assert (done.returncode, result["passed"]) == (1, False), done.stderr
    assert result["lost"] == [f"orders-{number}" for number in range(1, 6)]
    assert (result["account"]["accepted"], result["account"]["delivered"], result["account"]["lost"]) == (12, 7, 5)
    assert result["verdicts"] == [{"expectation": "lost == 0", "holds": False, "values": {"lost": 5}}]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPair]:
    """Two namespaces that are somebody else's: a drill with --real must leave them as they were."""
    with embedded_pair(tmp_path_factory.mktemp("theirs"), process=True) as pair:
        with pair.primary.admin() as admin:
            admin.create_queue("orders")
        yield pair


def entities(pair: EmbeddedPair) -> list[list[Any]]:
    found = []
    for namespace in (pair.primary, pair.secondary):
        with namespace.admin() as admin:
            found.append([*(one.name for one in admin.list_queues()), *(one.name for one in admin.list_topics())])
    return found


def test_a_drill_on_real_namespaces_uses_its_own_entities_and_removes_them(pair: EmbeddedPair) -> None:
    before = entities(pair)
    done = drill(
        str(DRILLS / "one-entity-fails.toml"),
        "--real",
        "--primary",
        str(pair.primary.data),
        "--secondary",
        str(pair.secondary.data),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "neighbours do not notice: passed in" in done.stdout
    assert "'orders' is failed over" in done.stderr
    assert before == entities(pair) == [["orders"], []]


NEVER = """
name = "never"
expect = ["lost == 0", "waiting == 3", "refused == 0"]
[pairing]
failover-interval = "0s"
backlog-queue-count = 1
sdk-retries = 0
[[entities]]
queue = "orders"
[[steps]]
do = "fault"
mode = "error"
condition = "com.microsoft:entity-disabled"
entity = "orders"
[[steps]]
do = "send"
entity = "orders"
count = 3
[[steps]]
do = "wait"
until = ["accepted >= 4", "waiting > 3"]
within = "300ms"
[[steps]]
do = "send"
entity = "orders"
count = 100
"""


def test_a_step_that_never_ends_fails_the_drill_and_what_waits_is_not_lost(tmp_path: Path) -> None:
    path = tmp_path / "never.toml"
    path.write_text(NEVER)
    done = drill(str(path), "--quiet")
    assert done.returncode == 1, done.stderr
    assert done.stderr == ""
    assert "failed: Waited 0.3 s for accepted >= 4, waiting > 3: accepted is 3, waiting is 3." in (done.stdout)
    assert "never: FAILED" in done.stdout
    assert "FAILS" not in done.stdout  # every expectation holds; the step is what failed


DEAD_SECONDARY = """
name = "nobody answers"
expect = ["lost == 0", "delivered == 3"]
[pairing]
backlog-queue-count = 1
[[entities]]
queue = "orders"
[[steps]]
do = "send"
entity = "orders"
count = 3
[[steps]]
do = "kill"
namespace = "secondary"
[[steps]]
do = "wait"
until = "waiting > 0"
[[steps]]
do = "send"
entity = "orders"
count = 100
"""


def test_a_step_that_fails_ends_the_drill_with_its_account(tmp_path: Path) -> None:
    path = tmp_path / "dead.toml"
    path.write_text(DEAD_SECONDARY)
    done = drill(str(path), "--json")
    assert done.returncode == 1, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert [step["problem"] is None for step in result["steps"]] == [True, True, False]
    assert (result["account"]["accepted"], result["account"]["delivered"], result["account"]["lost"]) == (3, 3, 0)
    assert [verdict["holds"] for verdict in result["verdicts"]] == [True, True]


def test_nothing_is_proved_by_a_drill_that_sends_nothing(tmp_path: Path) -> None:
    path = tmp_path / "nothing.toml"
    head = NEVER.partition("[[steps]]")[0].replace('"lost == 0", "waiting == 3", "refused == 0"', EXAMPLE_OF_THE_GUIDE)
    path.write_text(f'{head}[[steps]]\ndo = "pause"\nfor = "1ms"\n')
    done = drill(str(path), "--json")
    assert done.returncode == 1, done.stdout + done.stderr
    result = json.loads(done.stdout, parse_constant=pytest.fail)  # NaN is not JSON
    assert {one["expectation"]: one["holds"] for one in result["verdicts"]} == {
        "lost == 0": True,
        "p99_send < 2s": False,
        "accepted > 0": False,
    }
    assert result["latencies"]["p99_send"] is None


EXAMPLE_OF_THE_GUIDE = '"lost == 0", "p99_send < 2s"'


@contextmanager
def pausing(path: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A drill that pauses for an hour; it is gone at the end, whatever happens to the test."""
    path.write_text(NEVER.partition("[[steps]]")[0] + '[[steps]]\ndo = "pause"\nfor = "1h"\n')
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PAIRBUS_")}
    with subprocess.Popen(
        [sys.executable, "-m", "pairbus.cli", "drill", str(path), *words],
        env=kept,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stderr is not None
            assert "pause for 1h" in process.stderr.readline()
            yield process
        finally:
            process.kill()  # its servers end with it


def test_ctrl_c_ends_a_drill_and_leaves_nothing_running(tmp_path: Path) -> None:
    with pausing(tmp_path / "long.toml") as process:
        servers = psutil.Process(process.pid).children(recursive=True)
        assert len(servers) == 2
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=120) == ("", "Interrupted.\n")
        assert process.returncode == 130
    wait_until(lambda: not any(server.is_running() for server in servers), what="the servers to end")


def test_a_job_that_is_cancelled_leaves_nothing_in_real_namespaces(pair: EmbeddedPair, tmp_path: Path) -> None:
    before = entities(pair)
    ends = ("--real", "--primary", str(pair.primary.data), "--secondary", str(pair.secondary.data))
    with pausing(tmp_path / "long.toml", *ends) as process:
        assert entities(pair) != before
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=120) == ("", "Interrupted.\n")
        assert process.returncode == 130
    assert entities(pair) == before


def test_what_cannot_be_deleted_is_named_and_the_rest_is_deleted(tmp_path: Path) -> None:
    async def play(pair: EmbeddedPair) -> list[Any]:
        ends = [
            Namespace.parse(one.connection_string, connection_verify=one.ca_file)
            for one in (pair.primary, pair.secondary)
        ]
        async with real_stage(*ends) as stage:
            with pytest.raises(LeftBehindError) as caught:
                async with entities_on(stage, [DrillEntity(queue="orders"), DrillEntity(topic="prices")], 2):
                    async with ends[1].administration() as admin:
                        for number in range(2):
                            await admin.create_queue(backlog_path(stage.primary_name, number))
                    await asyncio.to_thread(pair.primary.kill)
            assert caught.value.names == tuple(f"{stage.path(name)} in {ends[0].host}" for name in ("orders", "prices"))
            async with ends[1].administration() as admin:
                return [queue async for queue in admin.list_queues()]

    with embedded_pair(tmp_path, process=True) as pair:
        assert asyncio.run(play(pair)) == []
