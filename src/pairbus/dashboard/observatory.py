"""Looks at the state folder once a second, for all viewers together."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from pairbus.dashboard.depths import DepthWatch
from pairbus.dashboard.ledger_tail import LedgerTail
from pairbus.dashboard.money import Prices
from pairbus.dashboard.reading import Sighting, look
from pairbus.dashboard.tallies import Tallies
from pairbus.dashboard.view import Known, key, view
from pairbus.pairing.options import backlog_path
from pairbus.publishing.flows import DAY_SECONDS

PERIOD_SECONDS = 1.0

_log = logging.getLogger("pairbus.dashboard")


@dataclass(frozen=True, slots=True)
class Settings:
    """Where to look, and at which prices. `token` is None for a page that is read-only."""

    state_folder: Path
    prices: Prices
    ledger: Path | None = None
    token: str | None = None


class Observatory:
    """The last view, as the JSON that is sent, and a way to wait for the next one."""

    def __init__(self, settings: Settings, depths: DepthWatch | None = None) -> None:
        self.settings = settings
        self._depths = depths
        self._tallies = Tallies()
        self._tail = None if settings.ledger is None else LedgerTail(settings.ledger)
        self._next: asyncio.Event = asyncio.Event()
        self.latest = b"{}"
        self.closing = False

    async def watch(self) -> None:
        """Look until cancelled."""
        while True:
            try:
                await self.look()
            except Exception:  # the outermost loop: the page keeps what it shows and says how old it is
                _log.exception("The state folder could not be looked at.")
            await asyncio.sleep(PERIOD_SECONDS)

    async def look(self) -> dict[str, Any]:
        """Look once; everyone who waits for a new view gets this one."""
        now = time.time()
        sighting = await asyncio.to_thread(look, self.settings.state_folder)
        complete = self._tail is None or await asyncio.to_thread(self._tail.read_on, int(now) // DAY_SECONDS)
        depths = self._depths
        if depths is not None:
            self._tallies.see(sighting)
            queues = _queues(sighting, depths.host)
            failed_over = any(
                entity.state != "healthy"
                for process in sighting.processes
                if process.alive
                for pair in process.state.pairs
                for entity in pair.entities
            )
            depths.ask(queues, busy=failed_over or any(one.messages for one in depths.depths.values()))
        # On a thread: an hour of hundreds of processes takes a while to put together.
        seen = await asyncio.to_thread(
            view,
            Known(
                sighting=sighting,
                prices=self.settings.prices,
                depths={} if depths is None else self._tallies.anchored(depths.depths, now),
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
        self.latest = msgspec.json.encode(seen)
        self._wake_viewers()
        return seen

    async def wait(self) -> bytes | None:
        """The next view; None when there will be none."""
        await self._next.wait()
        return None if self.closing else self.latest

    async def close(self) -> None:
        """Let every viewer go."""
        self.closing = True
        self._wake_viewers()
        if self._depths is not None:
            await self._depths.close()

    def _wake_viewers(self) -> None:
        waiting, self._next = self._next, asyncio.Event()
        waiting.set()


def _queues(sighting: Sighting, secondary: str) -> dict[str, list[str]]:
    """The backlog queues in this secondary that somebody here uses, by the key of the pair."""
    found: dict[str, set[str]] = {}
    for process in sighting.processes:
        for pair in process.state.pairs:
            if pair.secondary == secondary:
                paths = (backlog_path(pair.primary_name, number) for number in range(pair.backlog_queues))
                found.setdefault(key(pair.primary), set()).update(paths)
        for syphon in process.state.syphons:
            if syphon.secondary == secondary:
                found.setdefault(key(syphon.primary), set()).update(pump.queue for pump in syphon.pumps)
    return {name: sorted(queues) for name, queues in found.items()}
