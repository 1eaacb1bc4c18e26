"""Values for people (a table) and for programs (JSON)."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Coroutine, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, TypeVar

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pairbus.cli.plain import plain
from pairbus.cli.refusal import Refusal
from pairbus.cli.voice import remark
from pairbus.syphon.transport import ReceiverLostError

T = TypeVar("T")


def asked(question: Coroutine[Any, Any, T]) -> T:
    """The answer of a namespace; a sentence if it has none."""
    try:
        return asyncio.run(question)
    except (ReceiverLostError, RuntimeError, OSError, TimeoutError) as error:
        raise Refusal(str(error)) from error


def print_rows(rows: Sequence[Any], *, as_json: bool) -> None:
    """Dataclasses of one kind, a row each."""
    values = [asdict(row) for row in rows]
    if as_json:
        sys.stdout.write(json.dumps(values) + "\n")
        return
    if not values:
        remark("There is nothing.")
        return
    table = Table(*(name.removesuffix("_ms").replace("_", " ") for name in values[0]))
    for row in values:
        # As text, not as rich's markup, and without control characters: whoever sent a message chose its id.
        table.add_row(*(Text(plain(_shown(name, value))) for name, value in row.items()))
    width = None if sys.stdout.isatty() else 240
    Console(file=sys.stdout, width=width).print(table)


def _shown(name: str, value: Any) -> str:
    if value is None:
        return ""
    if name.endswith("_ms"):
        return datetime.fromtimestamp(value / 1000, UTC).isoformat(timespec="seconds")
    if isinstance(value, dict):
        return ", ".join(f"{key}: {count}" for key, count in value.items())
    if isinstance(value, bool):
        return "yes" if value else ""
    return str(value)
