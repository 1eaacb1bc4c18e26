"""The systemd unit and the container file say what `pairbus syphon` understands."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from pairbus.cli.__main__ import command_tree

ROOT = Path(__file__).parents[3]
UNIT = (ROOT / "examples/service/pairbus-syphon.service").read_text(encoding="utf-8")
CONTAINER = (ROOT / "examples/service/Containerfile").read_text(encoding="utf-8")


def command_lines() -> list[list[str]]:
    """Every command line of `pairbus` in the two files, the comments' included."""
    (start,) = re.findall(r"^ExecStart=(.+)$", UNIT, re.MULTILINE)
    (pause,) = re.findall(r"^# Pause it:\s+(.+)$", UNIT, re.MULTILINE)
    (entry,) = re.findall(r"^ENTRYPOINT (.+)$", CONTAINER, re.MULTILINE)
    return [shlex.split(start), shlex.split(pause), json.loads(entry)]


@pytest.mark.parametrize("words", command_lines())
def test_command_lines_are_understood(words: list[str]) -> None:
    assert Path(words[0]).name == "pairbus"
    command = command_tree().commands[words[1]]
    context = command.make_context(words[1], [], resilient_parsing=True)
    given, left, _ = command.make_parser(context).parse_args(list(words[2:]))
    assert given
    assert left == []


def test_the_health_check_asks_where_the_syphon_answers() -> None:
    (address,) = re.findall(r'"--http", "([^"]+)"', CONTAINER)
    assert f"http://{address}/health" in CONTAINER


def test_the_container_installs_extras_that_exist() -> None:
    (extras,) = re.findall(r"'/src\[([a-z,]+)\]'", CONTAINER)
    with (ROOT / "pyproject.toml").open("rb") as file:
        known = tomllib.load(file)["project"]["optional-dependencies"]
    assert set(extras.split(",")) <= set(known)
