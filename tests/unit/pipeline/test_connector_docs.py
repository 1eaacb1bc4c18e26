"""docs/reference/connector.md names every option and every column, and no others."""

from __future__ import annotations

import re
from pathlib import Path

from pairbus.pipeline.servicebus.options import STREAM, WRITE
from pairbus.pipeline.servicebus.rows import COLUMNS

TEXT = (Path(__file__).parents[3] / "docs" / "reference" / "connector.md").read_text(encoding="utf-8")


def first_cells(heading: str) -> set[str]:
    """The names in the first column of the table under a heading."""
    section = TEXT.partition(f"## {heading}\n")[2].partition("\n## ")[0].partition("\n### ")[0]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def test_every_option_is_documented() -> None:
    assert first_cells("Options") == {*STREAM, *WRITE}


def test_every_column_is_documented_with_its_type() -> None:
    assert first_cells("Columns") == {name for name, _, _ in COLUMNS}
    for name, kind, _ in COLUMNS:
        assert f"| `{name}` | {kind.simpleString().replace(',', ', ')} |" in TEXT
