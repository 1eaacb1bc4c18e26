"""The guide of the embedded namespace tells the truth: its programs run, its tables are those of the code."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from pairbus.embedded.errors import Limits
from pairbus.embedded.faults import MODES

GUIDE = (Path(__file__).parents[2] / "docs" / "embedded.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)


@pytest.mark.parametrize("program", PROGRAMS, ids=[f"program-{number}" for number in range(len(PROGRAMS))])
def test_programs_run(program: str) -> None:
    exec(compile(program, "docs/embedded.md", "exec"), {"__name__": "__guide__"})


def test_limits_are_those_of_the_code() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\d+|none) \|$", GUIDE, re.MULTILINE)
    told = {name: None if value == "none" else int(value) for name, value in rows}
    assert told == dataclasses.asdict(Limits())


def test_fault_modes_are_those_of_the_code() -> None:
    section = GUIDE.partition("## Faults")[2].partition("```python")[0]
    assert tuple(re.findall(r"^\| `([a-z-]+)` \|", section, re.MULTILINE)) == MODES
