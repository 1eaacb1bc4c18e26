"""How many messages wait in the backlog queues, asked of the secondary's administration at a bounded rate.

Rules
- Asked only for the primaries that publish here, one request for each backlog queue, at most `MOST_QUEUES` a round.
- A round begins no sooner than `BUSY_SECONDS` after the last one while messages wait or an entity is failed over, and
  `IDLE_SECONDS` otherwise; after a failure, `IDLE_SECONDS` as well. Nobody waits for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pairbus.dashboard.view import Depth

if TYPE_CHECKING:
    from pairbus.syphon import Namespace

BUSY_SECONDS = 10.0
IDLE_SECONDS = 60.0
MOST_QUEUES = 100


class DepthWatch:
    """The depths of one secondary's backlog queues, by the label of the primary."""

    def __init__(self, secondary: Namespace) -> None:
        self._secondary = secondary
        self._next = 0.0
        self._round: asyncio.Task[None] | None = None
        self.depths: dict[str, Depth] = {}
        self.trouble: str | None = None

    @property
    def host(self) -> str:
        return self._secondary.host

    def ask(self, queues: Mapping[str, list[str]], *, busy: bool) -> None:
        """Begin a round if one is due. `queues`: the backlog queues of each primary, by its label."""
        now = time.monotonic()
        if self._round is not None and not self._round.done():
            return
        if busy and self._next > now + BUSY_SECONDS and self.trouble is None:
            self._next = now
        if queues and now >= self._next:
            self._next = now + (BUSY_SECONDS if busy else IDLE_SECONDS)
            self._round = asyncio.create_task(self._count(queues), name="pairbus depths")

    async def close(self) -> None:
        if self._round is not None:
            self._round.cancel()
            await asyncio.gather(self._round, return_exceptions=True)

    async def _count(self, queues: Mapping[str, list[str]]) -> None:
        from pairbus.syphon.namespaces import NamespaceError, count_waiting

        asked = 0
        try:
            for label, names in queues.items():
                names = names[: MOST_QUEUES - asked]
                asked += len(names)
                waiting, dead = await count_waiting(self._secondary, names)
                self.depths[label] = Depth(waiting, dead, time.time())
        except NamespaceError:
            self.trouble = f"{self.host} does not say how many wait"
            self.depths.clear()
            self._next = time.monotonic() + IDLE_SECONDS
        else:
            self.trouble = None
