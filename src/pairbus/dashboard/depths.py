"""How many messages wait in the backlog queues, asked of the secondary's administration at a bounded rate.

Rules
- Asked only for the pairs that publish here, one request for each backlog queue, at most `MOST_QUEUES` a round. A pair
  is asked for as a whole or not at all; those that were not asked for longest come first.
- A round begins no sooner than `BUSY_SECONDS` after the last one while messages wait or an entity is failed over, and
  `IDLE_SECONDS` otherwise; after a failure, `IDLE_SECONDS` as well. Nobody waits for it, and it is given up after
  `ROUND_SECONDS`.
- What could not be counted has no depth, and a trouble that says so: an old number is never kept.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pairbus.dashboard.view import Depth

if TYPE_CHECKING:
    from pairbus.syphon import Namespace

BUSY_SECONDS = 10.0
IDLE_SECONDS = 60.0
MOST_QUEUES = 100
ROUND_SECONDS = 30.0

_log = logging.getLogger("pairbus.dashboard")


class DepthWatch:
    """The depths of one secondary's backlog queues, by the key of the pair."""

    def __init__(self, secondary: Namespace) -> None:
        self._secondary = secondary
        self._next = 0.0
        self._round: asyncio.Task[None] | None = None
        self._asked: dict[str, float] = {}
        self._failed = False
        self.depths: dict[str, Depth] = {}
        self.troubles: dict[str, str] = {}

    @property
    def host(self) -> str:
        return self._secondary.host

    def ask(self, queues: Mapping[str, list[str]], *, busy: bool) -> None:
        """Begin a round if one is due. `queues`: the backlog queues of each pair, by its key."""
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
        from pairbus.syphon.namespaces import count_waiting

        for gone in self.depths.keys() - queues.keys():
            del self.depths[gone]
        self.troubles = {
            key: f"{len(names)} backlog queues are too many to count"
            for key, names in queues.items()
            if _is_vast(names)
        }
        try:
            async with asyncio.timeout(ROUND_SECONDS):
                for key in choose(queues, self._asked):
                    begun = time.time()
                    waiting, dead = await count_waiting(self._secondary, queues[key])
                    self.depths[key] = Depth(waiting, dead, (begun + time.time()) / 2)
                    self._asked[key] = time.monotonic()
        except (
            Exception
        ) as error:  # the outermost of this task: whatever it was, the page must not show what it was before
            _log.warning("%s does not say how many wait (%s).", self.host, type(error).__name__)
            self._failed = True
            self.depths.clear()
            self.troubles |= dict.fromkeys(queues, f"{self.host} does not say how many wait")
            self._next = time.monotonic() + IDLE_SECONDS
        else:
            self._failed = False


def choose(queues: Mapping[str, list[str]], asked: Mapping[str, float]) -> list[str]:
    """The pairs of this round: whole ones, those that were not asked for longest first."""
    found, room = [], MOST_QUEUES
    for key in sorted(queues, key=lambda one: asked.get(one, 0.0)):
        if _is_vast(queues[key]):
            continue
        room -= len(queues[key])
        if room < 0:
            break  # and not a smaller one instead: this one would wait for ever
        found.append(key)
    return found


def _is_vast(queues: Sequence[str]) -> bool:
    return len(queues) > MOST_QUEUES
