"""The published table of rights is what a running namespace allows."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_page_of_rights_is_up_to_date() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "generate_rights_reference.py"))
    page = (ROOT / "docs" / "reference" / "rights.md").read_text(encoding="utf-8")
    assert page == script["page"](), "run scripts/generate_rights_reference.py, and look at what changed"
