"""The public names and their signatures are those of docs/reference/python.md: changing one is a decision."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "generate_api_reference.py"


def test_the_public_names_are_those_that_are_written_down() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), "--check"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_what_is_awaited_is_shown_so() -> None:
    page = (SCRIPT.parents[1] / "docs" / "reference" / "python.md").read_text("utf-8")
    sync, aio = page.split("## `pairbus.aio`")
    assert "@classmethod def from_connection_strings(" in sync
    assert "@classmethod async def from_connection_strings(" in aio
