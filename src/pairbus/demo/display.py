"""How the story is shown: sentences with the seconds since it began, and how things stand.

On a terminal the state of affairs is a table that is redrawn in place; anywhere else it is a line now and then, and no
control codes. Looking must not wait: what is shown was measured by others (`Affairs`).
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from pairbus import EntityState
from pairbus.demo.background import in_background

PLAIN_EVERY_SECONDS = 5.0
DRAWN_PER_SECOND = 4
_COLOURS = {EntityState.HEALTHY: "green", EntityState.SUSPECT: "yellow", EntityState.FAILED_OVER: "red"}


@dataclass(frozen=True, slots=True)
class Standing:
    """How one entity stands."""

    entity: str
    state: EntityState
    sent: int
    arrived: tuple[tuple[str, int], ...]
    """Destinations with how many messages each has."""

    @property
    def route(self) -> str:
        return "backlog" if self.state is EntityState.FAILED_OVER else "primary"


@dataclass(frozen=True, slots=True)
class Affairs:
    """How everything stands at one moment; `backlog` is None while nobody can say."""

    standings: tuple[Standing, ...]
    backlog: int | None

    @property
    def depth(self) -> str:
        return "?" if self.backlog is None else f"{self.backlog:,}"

    @property
    def line(self) -> str:
        parts = [f"{one.entity} {one.state.value} -> {one.route}, {one.sent:,} sent" for one in self.standings]
        return f"{'; '.join(parts)}; {self.depth} in the backlog"


Look = Callable[[], Affairs]


class _Clock:
    def __init__(self) -> None:
        self._began = time.monotonic()

    def stamp(self) -> str:
        return f"{time.monotonic() - self._began:6.1f} s"


class PlainNarrator:
    """Lines of text, for files and pipes."""

    def __init__(self, output: TextIO) -> None:
        self._output = output
        self._clock = _Clock()
        self._lock = threading.Lock()

    def say(self, sentence: str) -> None:
        with self._lock:
            self._output.write(f"{self._clock.stamp()}  {sentence}\n")
            self._output.flush()

    @contextmanager
    def watching(self, look: Look) -> Iterator[None]:
        def tell(stop: threading.Event) -> None:
            while not stop.wait(PLAIN_EVERY_SECONDS):
                self.say(look().line)

        with in_background("state of affairs", tell):
            yield


class LiveNarrator:
    """Sentences above a table that is redrawn in place."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._clock = _Clock()
        self._spinner = Spinner("dots")

    def say(self, sentence: str) -> None:
        self._console.print(Text.assemble((self._clock.stamp(), "dim"), "  ", sentence))

    @contextmanager
    def watching(self, look: Look) -> Iterator[None]:
        with Live(
            console=self._console,
            get_renderable=lambda: Group(self._table(look()), self._spinner),
            refresh_per_second=DRAWN_PER_SECOND,
        ):
            yield

    def _table(self, affairs: Affairs) -> Table:
        table = Table(caption=f"{affairs.depth} messages in the backlog", caption_justify="left")
        for title in ("entity", "state", "sends go to"):
            table.add_column(title)
        table.add_column("sent", justify="right")
        table.add_column("arrived", justify="right")
        for one in affairs.standings:
            arrived = "\n".join(
                f"{amount:,}" if name == one.entity else f"{name.removeprefix(f'{one.entity}/')} {amount:,}"
                for name, amount in one.arrived
            )
            state = Text(one.state.value, style=_COLOURS[one.state])
            table.add_row(one.entity, state, one.route, f"{one.sent:,}", arrived)
        return table


class QuietNarrator:
    """Keeps the story to itself."""

    def say(self, sentence: str) -> None:
        pass

    @contextmanager
    def watching(self, look: Look) -> Iterator[None]:
        yield


Narrator = PlainNarrator | LiveNarrator | QuietNarrator


def narrator() -> PlainNarrator | LiveNarrator:
    """The one that fits standard output."""
    console = Console(highlight=False)
    if sys.stdout.isatty() and not console.is_dumb_terminal:
        return LiveNarrator(console)
    return PlainNarrator(sys.stdout)
