"""Results for programs: the same command line with --json, and with nothing but results when quiet."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.backlogs import make_backlog

from pairbus.cli.__main__ import run
from pairbus.testing import EmbeddedNamespace, wait_until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedNamespace]:
    with EmbeddedNamespace("contoso-json", data=tmp_path_factory.mktemp("json"), process=True) as namespace:
        yield namespace


def test_a_fault_command_tells_the_faults_that_are_on(
    server: EmbeddedNamespace, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(*words: str) -> str:
        assert run(["fault", str(server.data), *words]) == 0
        said = capsys.readouterr()
        assert said.err == ""
        return said.out

    hanging = [{"mode": "hang", "entity": "orders"}]
    assert json.loads(told("--entity", "orders", "--mode", "hang", "--json")) == hanging
    assert json.loads(told("--json")) == hanging
    monkeypatch.setenv("PAIRBUS_FAULT_JSON", "1")
    assert json.loads(told()) == hanging
    monkeypatch.delenv("PAIRBUS_FAULT_JSON")
    assert told("--mode", "refuse", "--quiet") == ""
    monkeypatch.setenv("PAIRBUS_QUIET", "true")
    assert told("--clear") == ""
    monkeypatch.delenv("PAIRBUS_QUIET")
    assert json.loads(told("--json")) == []


def test_pruned_queues_are_a_list(server: EmbeddedNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    queues = make_backlog(server, "fabrikam", 3)
    words = ["backlog", "prune", "--primary-name", "fabrikam", "--secondary", str(server.data), "--queues", "0"]
    assert run([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == queues[1:]
    assert run([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


@pytest.mark.parametrize("option", ["--json", "--quiet"])
def test_serving_says_what_the_ready_file_says_or_nothing(tmp_path: Path, option: str) -> None:
    config, ready = tmp_path / "pairbus.toml", tmp_path / "ready.json"
    config.write_text('[serve]\nport = 0\ndata = "data"\nready-file = "ready.json"\n')
    command = [sys.executable, "-m", "pairbus.cli", "--config", str(config), "serve", "contoso", option]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: ready.exists() or process.poll() is not None, what="the server")
        described = ready.read_text()
        process.send_signal(signal.SIGTERM)
        said, complained = process.communicate(timeout=120)
    assert (process.returncode, complained) == (0, "")
    assert json.loads(described)["name"] == "contoso"
    if option == "--json":
        assert json.loads(said) == json.loads(described)
    else:
        assert said == ""
    assert (tmp_path / "data").is_dir()
