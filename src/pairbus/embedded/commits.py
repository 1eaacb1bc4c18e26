"""Group commit: what was decided is written in groups, and what follows from it happens after it is on disk.

An *effect* (an acknowledgement, a delivery) belongs to the decisions made before it. Effects run in order, each after
the transaction that holds those decisions has been synced; with nothing to write they run at once. While one group is
being written the next one collects, so a loaded server syncs once for many sends.

An effect that asks for another one never overtakes those that wait already.

If the disk refuses a group, the group stays and is tried again every second. Nothing decided since is acknowledged, and
`failing` is set, so that new work can be refused instead of piling up.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from pairbus.embedded.entities.message import Changes
from pairbus.embedded.entities.namespace import Namespace
from pairbus.embedded.store import Store

log = logging.getLogger(__name__)

RETRY_SECONDS = 1.0

Effect = Callable[[], None]


class GroupCommit:
    def __init__(self, namespace: Namespace, store: Store) -> None:
        self._namespace = namespace
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="pairbus-store")
        self._effects: list[Effect] = []
        self._group: tuple[Changes, list[Effect]] | None = None
        self._flush_due = False
        self._running = False
        self._closed = False
        self._retry: asyncio.TimerHandle | None = None
        self._drained: asyncio.Future[None] | None = None
        self.failing = False

    def after(self, effect: Effect) -> None:
        """Runs the effect once everything decided so far is on disk."""
        if self._group is None and not self._effects and not self._running and not self._namespace.has_changes:
            self._run([effect])
            return
        self._effects.append(effect)
        self.soon()

    def soon(self) -> None:
        """Sees to it that what changed gets written."""
        if not self._flush_due and self._group is None and not self._closed:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        if self._group is not None or self._closed:
            return
        effects, self._effects = self._effects, []
        if not self._namespace.has_changes:
            self._run(effects)
            return
        self._group = (self._namespace.take_changes(), effects)
        self._write()

    def _write(self) -> None:
        self._retry = None
        if self._group is not None:
            future = self._writer.submit(self._store.commit, self._group[0])
            future.add_done_callback(lambda done: self._loop.call_soon_threadsafe(self._written, done))

    def _written(self, done: "Future[None]") -> None:
        assert self._group is not None
        changes, effects = self._group
        error = done.exception()
        if error is not None:
            # Whatever the reason: forgetting the group would acknowledge nothing and refuse nothing, for ever.
            if not self.failing:
                log.error(
                    "cannot write to %s (%s): nothing is acknowledged until it works again", self._store.path, error
                )
            self.failing = True
            self._retry = self._loop.call_later(RETRY_SECONDS, self._write)
            if self._drained is not None:
                _resolve(self._drained)
            return
        self.failing = False
        self._group = None
        self._store.shelf.written(payload_id for payload_id, _ in changes.payloads)
        self._store.shelf.dropped(changes.payload_drops)
        self._run(effects)
        if self._effects or self._namespace.has_changes:
            self._flush()

    def _run(self, effects: list[Effect]) -> None:
        self._running = True
        for effect in effects:
            try:
                effect()
            except Exception:
                # One connection's trouble must not keep the others from their answers.
                log.exception("an effect failed")
        self._running = False

    async def drain(self) -> None:
        """Returns when everything decided so far is on disk and its effects have run, or when the disk refuses."""
        while not self.failing and (self._group is not None or self._effects or self._namespace.has_changes):
            self._drained = self._loop.create_future()
            self.after(partial(_resolve, self._drained))
            await self._drained

    async def close(self) -> None:
        await self.drain()
        self._closed = True
        if self._retry is not None:
            self._retry.cancel()
        await asyncio.to_thread(self._writer.shutdown)


def _resolve(written: "asyncio.Future[None]") -> None:
    if not written.done():
        written.set_result(None)
