"""How the demo is shown: sentences with the seconds since its beginning, and the current status.

On a terminal the status is a table that is redrawn in place; elsewhere it is a line now and then, without control
codes. The display never waits: others measure what it shows (`DemoStatus`).
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


GetStatus = Callable[[], DemoStatus]


@contextmanager
def in_background(name: str, work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run `work` on a thread while the context is open; its argument is an event that is set at the end."""
    stop = threading.Event()
    thread = threading.Thread(target=work, args=(stop,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


class _Clock:
    def __init__(self) -> None:
        self._began = time.monotonic()

    def stamp(self) -> str:
        return f"{time.monotonic() - self._began:6.1f} s"


class PlainNarrator:
    """Prints lines of text, for files and pipes."""

    def __init__(self, output: TextIO) -> None:
        self._output = output
        self._clock = _Clock()
        self._lock = threading.Lock()

    def say(self, sentence: str) -> None:
        with self._lock:
            self._output.write(f"{self._clock.stamp()}  {sentence}\n")
            self._output.flush()

    @contextmanager
    def watching(self, get_status: GetStatus) -> Iterator[None]:
        def print_lines(stop: threading.Event) -> None:
            while not stop.wait(LINE_EVERY_SECONDS):
                self.say(get_status().line)

        with in_background("status", print_lines):
            yield


class LiveNarrator:
    """Prints sentences above a table that is redrawn in place."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._clock = _Clock()
        self._spinner = Spinner("dots")

    def say(self, sentence: str) -> None:
        self._console.print(Text.assemble((self._clock.stamp(), "dim"), "  ", sentence))

    @contextmanager
    def watching(self, get_status: GetStatus) -> Iterator[None]:
        with Live(
            console=self._console,
            get_renderable=lambda: Group(self._table(get_status()), self._spinner),
            refresh_per_second=REDRAWS_PER_SECOND,
        ):
            yield

    def _table(self, demo: DemoStatus) -> Table:
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


class QuietNarrator:
    """Prints nothing."""

    def say(self, sentence: str) -> None:
        pass

    @contextmanager
    def watching(self, get_status: GetStatus) -> Iterator[None]:
        yield


Narrator = PlainNarrator | LiveNarrator | QuietNarrator


def narrator() -> PlainNarrator | LiveNarrator:
    """The narrator that fits standard output."""
    console = Console(highlight=False)
    if sys.stdout.isatty() and not console.is_dumb_terminal:
        return LiveNarrator(console)
    return PlainNarrator(sys.stdout)
