"""How the demo is shown: sentences with the seconds since its beginning, and the current status.

On a terminal the status is a table that is redrawn in place; elsewhere it is a line now and then, without control
codes. The display never waits: others measure what it shows (`DemoStatus`).
"""

from __future__ import annotations

import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from pairbus import EntityState

LINE_EVERY_SECONDS = 5.0
REDRAWS_PER_SECOND = 4
_COLOURS = {EntityState.HEALTHY: "green", EntityState.SUSPECT: "yellow", EntityState.FAILED_OVER: "red"}


@dataclass(frozen=True, slots=True)
class EntityStatus:
    entity: str
    state: EntityState
    sent: int
    arrived: tuple[tuple[str, int], ...]
    """The number of messages at each destination."""

    @property
    def route(self) -> str:
        return "backlog" if self.state is EntityState.FAILED_OVER else "primary"


@dataclass(frozen=True, slots=True)
class DemoStatus:
    entities: tuple[EntityStatus, ...]
    backlog: int | None
    """None while the depth is unknown."""

    @property
    def depth(self) -> str:
        return "?" if self.backlog is None else f"{self.backlog:,}"

    @property
    def line(self) -> str:
        parts = [
            f"{status.entity} {status.state.value} -> {status.route}, {status.sent:,} sent" for status in self.entities
        ]
        return f"{'; '.join(parts)}; {self.depth} in the backlog"


class PlainNarrator:
    """Prints lines of text, for files and pipes; nothing without an output."""

    def __init__(self, output: TextIO | None) -> None:
        self._output = output
        self._began = self._shown_at = time.monotonic()

    def say(self, sentence: str) -> None:
        if self._output is not None:
            self._output.write(f"{_seconds(self._began)}  {sentence}\n")
            self._output.flush()

    def show(self, status: DemoStatus) -> None:
        if time.monotonic() >= self._shown_at + LINE_EVERY_SECONDS:
            self._shown_at = time.monotonic()
            self.say(status.line)

    def watching(self) -> Any:
        """A context in which `show` may be called."""
        return nullcontext()


class LiveNarrator:
    """Prints sentences above a table that is redrawn in place."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.monotonic()
        self._spinner = Spinner("dots")
        self._live = Live(console=console, refresh_per_second=REDRAWS_PER_SECOND)

    def say(self, sentence: str) -> None:
        self._console.print(Text.assemble((_seconds(self._began), "dim"), "  ", sentence))

    def show(self, status: DemoStatus) -> None:
        self._live.update(Group(_table(status), self._spinner))

    def watching(self) -> Any:
        return self._live


Narrator = PlainNarrator | LiveNarrator


def narrator() -> Narrator:
    """The narrator that fits standard output."""
    console = Console(highlight=False)
    if sys.stdout.isatty() and not console.is_dumb_terminal:
        return LiveNarrator(console)
    return PlainNarrator(sys.stdout)


def _seconds(began: float) -> str:
    return f"{time.monotonic() - began:6.1f} s"


def _table(demo: DemoStatus) -> Table:
    table = Table(caption=f"{demo.depth} messages in the backlog", caption_justify="left")
    for title in ("entity", "state", "sends go to"):
        table.add_column(title)
    table.add_column("sent", justify="right")
    table.add_column("arrived", justify="right")
    for status in demo.entities:
        arrived = "\n".join(
            f"{amount:,}" if name == status.entity else f"{name.removeprefix(f'{status.entity}/')} {amount:,}"
            for name, amount in status.arrived
        )
        state = Text(status.state.value, style=_COLOURS[status.state])
        table.add_row(status.entity, state, status.route, f"{status.sent:,}", arrived)
    return table
