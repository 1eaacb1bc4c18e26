"""The troubleshooting page is searched by the text of a message, so it must quote what the program says."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OF_OTHERS = {"certificate verify failed", "DATA_SOURCE_NOT_FOUND: servicebus"}
"""Messages of OpenSSL and Spark."""


def texts_of_the_program() -> str:
    """All its strings, with `…` for what a program fills in."""
    found = []
    for path in (ROOT / "src").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                parts = [str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values]
                found.append("".join(parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
            elif isinstance(node, ast.ClassDef):
                found.append(node.name)
    return "\n".join(found)


def quoted_symptoms() -> list[str]:
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("|")]
    return [quoted for row in rows for quoted in re.findall(r"`([^`]+)`", row) if not quoted.startswith("pairbus ")]


def test_every_quoted_message_is_one_of_the_program() -> None:
    program = texts_of_the_program()
    quoted = quoted_symptoms()
    assert len(quoted) > 10
    missing = [
        message
        for message in quoted
        if message not in OF_OTHERS and not all(part.strip() in program for part in message.split("…"))
    ]
    if missing:
        pytest.fail(f"docs/troubleshooting.md quotes what the program does not say: {missing}")
