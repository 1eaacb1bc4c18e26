"""What a pump records must be on disk before the backlog lets go of a message.

Otherwise a crash right after the completion leaves a message that is gone from the backlog and, as far as the records
say, went nowhere. Waiting is shared: whoever asks while a flush is under way waits for the next one, together with all
others that ask meanwhile. So there is one flush for many windows of many pumps.

A disk that refuses stops nobody: after `PATIENCE_SECONDS` the message is completed all the same, and for
`PAUSE_SECONDS` nobody waits again. What is missing in the ledger is counted there.
"""

from __future__ import annotations

import asyncio

from pairbus.ledger import LedgerWriter

PATIENCE_SECONDS = 2.0
PAUSE_SECONDS = 30.0


class DurableRecords:
    """One ledger, for all pumps of one event loop."""

    def __init__(self, ledger: LedgerWriter) -> None:
        self._ledger = ledger
        self._under_way: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None
        self._resume_at = 0.0
        self.flushes = 0

    async def wait(self) -> None:
        """Until everything recorded before this call is in the file."""
        if asyncio.get_running_loop().time() < self._resume_at:
            return
        if self._next is None:
            self._next = asyncio.ensure_future(self._flush(self._under_way))
        await asyncio.shield(self._next)

    async def _flush(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        self._under_way, self._next = self._next, None  # what is recorded from here on may come too late for us
        self.flushes += 1
        if not await asyncio.to_thread(self._ledger.flush, PATIENCE_SECONDS):
            self._resume_at = asyncio.get_running_loop().time() + PAUSE_SECONDS
