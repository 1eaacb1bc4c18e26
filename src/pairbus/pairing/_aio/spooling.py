"""Carries what neither namespace took from the local journal to whichever is back first.

Rules
- The messages of one entity leave the journal in the order they came, and only after a namespace has accepted
  them. Entities do not wait for each other.
- A healthy entity's messages go to the primary, all others to the backlog. What the primary refuses goes to
  the backlog too: the syphon knows what to do with it.
- Under the policy "deduct" the time a message spent in the journal is part of its life.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from azure.core.exceptions import AzureError
from azure.servicebus.aio import ServiceBusSender

from pairbus import envelope, errors
from pairbus.amqp.message import read_facts
from pairbus.failover import EntityState
from pairbus.ledger import CompletedOperation, Operation, Route, error_name, outcome_of
from pairbus.pairing import sdk
from pairbus.pairing._aio import runtime
from pairbus.pairing._aio.backlog import IN_DOUBT, Backlog, BacklogRoute
from pairbus.pairing._aio.link import Link, TurnTimeoutError
from pairbus.pairing.failures import SpoolError, SpoolFullError
from pairbus.spool import Entry, Journal

_log = logging.getLogger("pairbus.pairing")

_MOST_AT_ONCE = 100
_MOST_BYTES_AT_ONCE = sdk.STANDARD_LIMIT_BYTES // 2
_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 30.0


class SpoolForwarder:
    """The journal of one paired client and the task that empties it."""

    def __init__(
        self,
        folder: Path | str,
        *,
        limit_bytes: int,
        backlog: Backlog,
        state_of: Callable[[str], EntityState],
        policy: envelope.TimeToLivePolicy,
        send_timeout: float,
        make_primary_sender: Callable[[str], ServiceBusSender],
    ) -> None:
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._backlog = backlog
        self._state_of = state_of
        self._policy = policy
        self._send_timeout = send_timeout
        self._make_primary_sender = make_primary_sender
        self._wake = runtime.Wake()
        self._journal: Journal | None = None
        self._job: runtime.Job | None = None
        self._refused: set[tuple[str, str]] = set()
        self._pausing = False
        self._closing = False

    @property
    def depth(self) -> int:
        """How many messages wait in the journal."""
        return 0 if self._journal is None else self._journal.depth

    async def start(self) -> None:
        """Open the journal and begin to forward what an earlier process left in it."""
        self._journal = await runtime.in_thread(lambda: Journal(self._folder, limit_bytes=self._limit_bytes))
        self._backlog.observers.spool_depth(self._journal.depth)
        self._backlog.observers.add_callback(lambda _: self._wake.set())
        self._job = runtime.Job("pairbus-spool", self._forward_for_ever)

    async def keep(self, entity: str, forms: Sequence[bytes]) -> None:
        """Store messages in backlog form; on disk when this returns, and also when it is cancelled meanwhile."""
        journal = self._journal
        if journal is None:
            raise ValueError("The spool has been closed.")
        started = runtime.now()
        try:
            await runtime.in_thread(lambda: journal.append(entity, forms, time.time_ns() // 1_000_000))
        except errors.SpoolFullError as error:
            raise SpoolFullError(str(self._folder), self._limit_bytes) from error
        except errors.SpoolError as error:
            raise SpoolError(str(error)) from error
        finally:
            self._backlog.observers.spool_depth(journal.depth)
            if not (self._pausing and self._backlog.is_down):  # else it would look in vain, once for each message
                self._wake.set()
        self._observe(Operation.SPOOL, entity, forms, started)

    async def close(self) -> None:
        """Stop forwarding; what waits stays for the next process."""
        self._closing = True
        self._wake.set()
        if self._job is not None:
            await self._job.stop()
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    async def _forward_for_ever(self) -> None:
        pause = _FIRST_PAUSE_SECONDS
        while not self._closing:
            try:
                emptied = await self._forward()
            except Exception:  # the outermost loop: what waits must go on waiting for a better time
                _log.exception("Forwarding from the spool failed; it is tried again.")
                emptied = False
            if emptied:
                pause = _FIRST_PAUSE_SECONDS
                self._refused.clear()
                await self._wake.wait(None)
            else:
                back = self._backlog.next_return
                wait = pause if back is None else max(0.0, min(pause, back - runtime.now()))
                self._pausing = True
                await self._wake.wait(wait)
                self._pausing = False
                pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)

    async def _forward(self) -> bool:
        """Forward until nothing waits (True) or neither namespace takes what does (False)."""
        journal = self._journal
        if journal is None:
            return False
        primary: dict[str, Link] = {}
        backlog: dict[str, BacklogRoute] = {}
        try:
            entities = await runtime.in_thread(journal.entities)
            while entities and not self._closing:
                moved = False
                for entity in entities:
                    moved = await self._forward_entity(journal, entity, primary, backlog) or moved
                if not moved:
                    return False
                entities = await runtime.in_thread(journal.entities)
            return not entities
        finally:
            for link in primary.values():
                await link.close()
            for route in backlog.values():
                await route.close()

    async def _forward_entity(
        self, journal: Journal, entity: str, primary: dict[str, Link], backlog: dict[str, BacklogRoute]
    ) -> bool:
        """Forward the messages of one entity, in order, until a namespace does not take them; whether any went."""
        moved, after = False, 0
        while not self._closing:
            entries = await runtime.in_thread(
                functools.partial(
                    journal.oldest, entity, after=after, most=_MOST_AT_ONCE, most_bytes=_MOST_BYTES_AT_ONCE
                )
            )
            if not entries:
                break
            gone = await self._to_primary(entity, entries, primary)
            await self._remove(journal, gone)
            rest = [entry for entry in entries if entry not in gone]
            if rest and await self._to_backlog(entity, rest, backlog):
                await self._remove(journal, rest)
                gone, rest = entries, []
            moved = moved or bool(gone)
            if not all(self._is_expired(entry) for entry in rest):
                break
            # What has expired waits for the backlog, and holds up nobody: it is not going home any more.
            after = entries[-1].number
        return moved

    async def _remove(self, journal: Journal, entries: Sequence[Entry]) -> None:
        if entries:
            await runtime.in_thread(lambda: journal.remove(entries))
            self._backlog.observers.spool_depth(journal.depth)

    def _is_expired(self, entry: Entry) -> bool:
        return isinstance(self._restored(entry), envelope.Expired)

    def _restored(self, entry: Entry) -> envelope.Restored | envelope.Expired:
        now_ms = time.time_ns() // 1_000_000
        return envelope.restore(entry.raw, now_ms=now_ms, policy=self._policy, enqueued_ms=entry.stored_ms)

    async def _to_primary(self, entity: str, entries: Sequence[Entry], links: dict[str, Link]) -> Sequence[Entry]:
        """The messages that the primary took: all whose time is not over, or none."""
        if self._state_of(entity) is not EntityState.HEALTHY:
            return ()
        raws, living = [], []
        for entry in entries:
            restored = self._restored(entry)
            if isinstance(restored, envelope.Restored):  # the syphon dead-letters the others where one looks for them
                raws.append(restored.raw)
                living.append(entry)
        if not living:
            return ()
        link = links.setdefault(entity, Link(lambda: self._make_primary_sender(entity), self._backlog.guard))
        started = runtime.now()

        async def send(sender: ServiceBusSender, seconds: float) -> None:
            await sender.send_messages(sdk.RawBatch(raws, sender), timeout=seconds)

        try:
            await link.use(started + self._send_timeout, send)
        except (AzureError, OSError, ValueError) as error:
            self._tell_refusal("primary", entity, error)
            self._observe(Operation.SEND, entity, raws, started, error)
            return ()
        except runtime.CANCELLED as error:
            self._observe(Operation.SEND, entity, raws, started, error)
            raise
        self._refused.discard(("primary", entity))
        self._observe(Operation.SEND, entity, raws, started)
        return living

    async def _to_backlog(self, entity: str, entries: Sequence[Entry], routes: dict[str, BacklogRoute]) -> bool:
        raws = [entry.raw for entry in entries]
        if self._policy == "deduct":
            now_ms = time.time_ns() // 1_000_000
            raws = [envelope.aged(entry.raw, now_ms - entry.stored_ms) for entry in entries]
        route = routes.setdefault(entity, BacklogRoute(entity, self._backlog))
        try:
            await route.send(raws, runtime.now() + self._send_timeout, route=Route.SPOOL)
        except (errors.PairbusError, AzureError, OSError, ValueError) as error:
            self._tell_refusal("backlog", entity, error)
            return False
        self._refused.discard(("backlog", entity))
        return True

    def _tell_refusal(self, place: str, entity: str, error: BaseException) -> None:
        """Log it once, until the place takes messages of the entity again."""
        if (place, entity) not in self._refused:
            self._refused.add((place, entity))
            _log.info("The %s does not take spooled messages for %s: %s", place, entity, type(error).__name__)

    def _observe(
        self,
        operation: Operation,
        entity: str,
        raws: Sequence[bytes],
        started: float,
        error: BaseException | None = None,
    ) -> None:
        observers = self._backlog.observers
        if observers.watching:
            in_doubt = isinstance(error, IN_DOUBT) and not isinstance(error, TurnTimeoutError)
            observers.sent(
                CompletedOperation(
                    operation,
                    observers.primary,
                    entity,
                    [read_facts(raw).message_key if observers.wants_ids else None for raw in raws],
                    [len(raw) for raw in raws],
                    outcome=outcome_of(error, in_doubt=in_doubt),
                    error=error_name(error),
                    latency_us=int((runtime.now() - started) * 1_000_000),
                    route=Route.SPOOL,
                )
            )
