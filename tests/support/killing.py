"""Kills a server at chosen moments; its clients reconnect every time."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable

from tests.support.raw import open_raw

from pairbus.amqp.client import ClientConnection
from pairbus.amqp.outcomes import LinkLostError
from pairbus.testing.namespace import EmbeddedNamespace

PATIENCE_SECONDS = 60.0
MOST_EVENTS_BETWEEN_KILLS = 120


def chosen_seed() -> int:
    """The seed in `PAIRBUS_KILL_SEED`, or a new one. It is printed, so that a failing run can be repeated."""
    seed = int(os.environ.get("PAIRBUS_KILL_SEED", random.SystemRandom().randrange(2**32)))
    print(f"PAIRBUS_KILL_SEED={seed}")  # pytest shows it when the test fails
    return seed


class Killing:
    """Counts the clients' events, and kills the server after a random number of them.

    Clients run as `worker`s: coroutines that are given a fresh connection and run until they return True (done) or
    the connection is lost, which brings them a new one.
    """

    def __init__(self, server: EmbeddedNamespace, seed: int) -> None:
        self._server = server
        self._moments = random.Random(seed)
        self._up = asyncio.Event()
        self._up.set()
        self._events = 0
        self._goal = 0
        self._reached = asyncio.Event()
        self.over = False

    def note(self) -> None:
        """Count one event."""
        self._events += 1
        if self._events >= self._goal:
            self._reached.set()

    async def rounds(self, count: int) -> None:
        """Kill and restart the server `count` times; then set `over`, and workers may finish."""
        for _ in range(count):
            self._goal = self._events + self._moments.randint(1, MOST_EVENTS_BETWEEN_KILLS)
            self._reached.clear()
            async with asyncio.timeout(PATIENCE_SECONDS):
                await self._reached.wait()
            self._up.clear()
            await asyncio.to_thread(self._server.kill)
            await asyncio.to_thread(self._server.start)
            self._up.set()
        self.over = True

    async def worker(self, work: Callable[[ClientConnection], Awaitable[bool]]) -> None:
        while True:
            await self._up.wait()
            try:
                connection = await open_raw(self._server.connection_string)
            except (OSError, TimeoutError, LinkLostError):
                continue
            try:
                if await work(connection):
                    return
            except LinkLostError:
                continue
            finally:
                connection.abort()
