"""Who publishes in the state folder, and what it says now."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pairbus.publishing.folder import is_alive, process_folders, read_state
from pairbus.publishing.records import ProcessState

MOST_PROCESSES = 500
SILENT_SECONDS = 5.0
SHOWN_DEAD_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Process:
    """One process and what it last said. `alive`: it holds its lock and has not said that it ended."""

    name: str
    state: ProcessState
    alive: bool

    def is_silent(self, now: float) -> bool:
        """It lives, and has not been heard of: stopped, swapped out, or its disk does not take anything."""
        return self.alive and now - self.state.at > SILENT_SECONDS

    @property
    def died(self) -> bool:
        """It is gone and never said so."""
        return not self.alive and not self.state.ended


@dataclass(frozen=True, slots=True)
class Sighting:
    """All processes that can be read, and how many cannot, or were too many."""

    processes: tuple[Process, ...]
    unread: int


def look(state_folder: Path) -> Sighting:
    try:
        folders = process_folders(state_folder)
    except FileNotFoundError:  # nobody publishes yet
        folders = []
    found: list[Process] = []
    unread = max(0, len(folders) - MOST_PROCESSES)
    for folder in folders[:MOST_PROCESSES]:
        # First whether it lives, then what it says: one that ends in between has said so.
        alive = is_alive(folder)
        state = read_state(folder)
        if state is None:
            unread += 1
        else:
            found.append(Process(folder.name, state, alive and not state.ended))
    return Sighting(tuple(found), unread)
