"""Watches the state folder once a second, for all viewers together, and counts the backlog at a bounded rate.

Rules of the counting
- It covers the pairs that publish here: one request for each backlog queue, at most `MOST_QUEUES` per round. A round
  counts whole pairs; the pairs that were counted longest ago come first.
- While messages wait or an entity is failed over, a round begins at most every `BUSY_SECONDS`, otherwise, and after a
  failure, every `IDLE_SECONDS`. Nobody waits for a round, and it ends after `ROUND_SECONDS`.
- A queue that could not be counted has no depth and a reason: an old number is never kept.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from pairbus.dashboard.ledger_tail import LedgerTail
from pairbus.dashboard.money import Prices
from pairbus.dashboard.view import Depth, DepthAnchors, Process, Sighting, ViewInput, pair_key, view
from pairbus.pairing.options import backlog_path
from pairbus.publishing.flows import DAY_SECONDS
from pairbus.publishing.folder import is_alive, process_folders, read_state

if TYPE_CHECKING:
    from pairbus.syphon import Namespace

PERIOD_SECONDS = 1.0
MOST_PROCESSES = 500
BUSY_SECONDS = 10.0
IDLE_SECONDS = 60.0
MOST_QUEUES = 100
ROUND_SECONDS = 30.0

_log = logging.getLogger("pairbus.dashboard")


@dataclass(frozen=True, slots=True)
class DashboardSettings:
    """`token` is None for a read-only page."""

    state_folder: Path
    prices: Prices
    ledger: Path | None = None
    token: str | None = None


def look(state_folder: Path) -> Sighting:
    """Read the states of all processes in the folder."""
    try:
        folders = process_folders(state_folder)
    except FileNotFoundError:  # nobody publishes yet
        folders = []
    processes: list[Process] = []
    unread = max(0, len(folders) - MOST_PROCESSES)
    for folder in folders[:MOST_PROCESSES]:
        # The lock first, then the state: a process that ends in between has written that it ended.
        alive = is_alive(folder)
        state = read_state(folder)
        if state is None:
            unread += 1
        else:
            processes.append(Process(folder.name, state, alive and not state.ended))
    return Sighting(tuple(processes), unread)


class Observatory:
    """The latest view as JSON, and a way to wait for the next one."""

    def __init__(self, settings: DashboardSettings, depths: DepthWatch | None = None) -> None:
        self.settings = settings
        self._depths = depths
        self._anchors = DepthAnchors()
        self._tail = None if settings.ledger is None else LedgerTail(settings.ledger)
        self._next: asyncio.Event = asyncio.Event()
        self._looking = asyncio.Lock()
        self.latest = b"{}"
        self.closing = False

    async def watch(self) -> None:
        """Look every second until cancelled."""
        while True:
            try:
                await self.look()
            except Exception:  # the outermost loop: the page keeps its last view and shows its age
                _log.exception("Reading the state folder failed.")
            await asyncio.sleep(PERIOD_SECONDS)

    async def look(self) -> dict[str, Any]:
        """Build a new view and hand it to everyone who waits for one."""
        async with self._looking:  # one at a time: two would count the same lines of the ledger twice
            seen = await self._next_view(time.time())
        self.latest = msgspec.json.encode(seen)
        self._wake_viewers()
        return seen

    async def _next_view(self, now: float) -> dict[str, Any]:
        sighting = await asyncio.to_thread(look, self.settings.state_folder)
        complete = self._tail is None or await asyncio.to_thread(self._tail.read_on, int(now) // DAY_SECONDS)
        depths = self._depths
        if depths is not None:
            self._anchors.see(sighting)
            failed_over = any(
                entity.state != "healthy"
                for process in sighting.processes
                if process.alive
                for pair in process.state.pairs
                for entity in pair.entities
            )
            is_busy = failed_over or any(depth.messages for depth in depths.depths.values())
            depths.start_round_if_due(_queues(sighting, depths.host), busy=is_busy)
        # In a thread: an hour of hundreds of processes takes a while to put together.
        return await asyncio.to_thread(
            view,
            ViewInput(
                sighting=sighting,
                prices=self.settings.prices,
                depths={} if depths is None else self._anchors.anchored(depths.depths, now),
                depth_troubles={} if depths is None else dict(depths.troubles),
                recorded=None if self._tail is None else self._tail.counts(),
                billed=None if self._tail is None else self._tail.billed(),
                ledger_complete=complete,
                ledger_unreadable=0 if self._tail is None else self._tail.unreadable,
                ledger_refused=0 if self._tail is None else self._tail.refused,
                control=self.settings.token is not None,
            ),
            now,
        )

    async def wait(self) -> bytes | None:
        """Wait for the next view; None if there will be none."""
        await self._next.wait()
        return None if self.closing else self.latest

    async def close(self) -> None:
        """End the streams of all viewers."""
        self.closing = True
        self._wake_viewers()
        if self._depths is not None:
            await self._depths.close()

    def _wake_viewers(self) -> None:
        waiting, self._next = self._next, asyncio.Event()
        waiting.set()


def _queues(sighting: Sighting, secondary: str) -> dict[str, list[str]]:
    """The backlog queues in this secondary that processes here use, by the key of the pair."""
    queues: dict[str, set[str]] = {}
    for process in sighting.processes:
        for pair in process.state.pairs:
            if pair.secondary == secondary:
                paths = (backlog_path(pair.primary_name, number) for number in range(pair.backlog_queues))
                queues.setdefault(pair_key(pair.primary), set()).update(paths)
        for syphon in process.state.syphons:
            if syphon.secondary == secondary:
                queues.setdefault(pair_key(syphon.primary), set()).update(pump.queue for pump in syphon.pumps)
    return {key: sorted(names) for key, names in queues.items()}


class DepthWatch:
    """The depths of the backlog queues of one secondary, by the key of the pair."""

    def __init__(self, secondary: Namespace) -> None:
        self._secondary = secondary
        self._next = 0.0
        self._round: asyncio.Task[None] | None = None
        self._counted: dict[str, float] = {}
        self._failed = False
        self.depths: dict[str, Depth] = {}
        self.troubles: dict[str, str] = {}

    @property
    def host(self) -> str:
        return self._secondary.host

    def start_round_if_due(self, queues: Mapping[str, list[str]], *, busy: bool) -> None:
        """`queues` holds the backlog queues of each pair, by its key."""
        now = time.monotonic()
        if self._round is not None and not self._round.done():
            return
        if busy and self._next > now + BUSY_SECONDS and not self._failed:
            self._next = now
        if queues and now >= self._next:
            self._next = now + (BUSY_SECONDS if busy else IDLE_SECONDS)
            self._round = asyncio.create_task(self._count(queues), name="pairbus depths")

    async def close(self) -> None:
        if self._round is not None:
            self._round.cancel()
            await asyncio.gather(self._round, return_exceptions=True)

    async def _count(self, queues: Mapping[str, list[str]]) -> None:
        from pairbus.syphon.backlog import count_waiting

        for gone in self.depths.keys() - queues.keys():
            del self.depths[gone]
        self.troubles = {
            key: f"{len(names)} backlog queues are too many to count"
            for key, names in queues.items()
            if len(names) > MOST_QUEUES
        }
        try:
            async with asyncio.timeout(ROUND_SECONDS):
                for key in choose(queues, self._counted):
                    begun = time.time()
                    counted = (await count_waiting(self._secondary, queues[key])).values()
                    waiting = sum(queue.waiting for queue in counted)
                    dead_letters = sum(queue.dead_letters for queue in counted)
                    self.depths[key] = Depth(waiting, dead_letters, (begun + time.time()) / 2)
                    self._counted[key] = time.monotonic()
        except Exception as error:  # the outermost of this task: the page must not show old numbers, whatever failed
            _log.warning("Cannot count the backlog in %s (%s).", self.host, type(error).__name__)
            self._failed = True
            self.depths.clear()
            self.troubles |= dict.fromkeys(queues, f"Cannot count the backlog in {self.host}")
            self._next = time.monotonic() + IDLE_SECONDS
        else:
            self._failed = False


def choose(queues: Mapping[str, list[str]], counted: Mapping[str, float]) -> list[str]:
    """The pairs of this round: whole ones, the one counted longest ago first."""
    chosen, room = [], MOST_QUEUES
    for key in sorted(queues, key=lambda key: counted.get(key, 0.0)):
        if len(queues[key]) > MOST_QUEUES:
            continue
        room -= len(queues[key])
        if room < 0:
            break  # not a smaller pair instead: this one would wait forever
        chosen.append(key)
    return chosen
