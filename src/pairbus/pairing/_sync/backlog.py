# Generated from ../_aio/backlog.py by scripts/generate_sync.py: change that file, not this one.
"""The way into the backlog queues: made ready when pairing, filled by diverted sends and by the local spool.

The rules are in `pairing/queues.py`.
"""

from __future__ import annotations

import functools
import logging
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, cast

from azure.core.exceptions import AzureError, ResourceExistsError, ResourceNotFoundError
from azure.servicebus import ServiceBusSender
from azure.servicebus.exceptions import MessageSizeExceededError
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus import envelope, errors
from pairbus.amqp.message import BATCH_ENTRY_BYTES
from pairbus.failover.classification import BUSY_PAUSE_SECONDS, Verdict, verdict
from pairbus.failover.states import EntityState
from pairbus.ledger import Operation, Route
from pairbus.pairing import sdk
from pairbus.pairing._sync import runtime
from pairbus.pairing._sync.entity import SharedSender
from pairbus.pairing.options import BACKLOG_QUEUE_SETTINGS, SendAvailabilityPairedNamespaceOptions
from pairbus.pairing.queues import (
    FAIR_ATTEMPT_SECONDS,
    Backlog,
    are_all_down,
    blames_message,
    count_that_fits,
    had_no_fair_chance,
    is_right_missing,
    warn_of_differences,
    was_created,
)
from pairbus.spool import SpoolEntry, SpoolJournal

_log = logging.getLogger("pairbus.pairing")

_FORWARD_MESSAGES = 100
_FORWARD_BYTES = sdk.STANDARD_LIMIT_BYTES // 2
_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 30.0

_SEND_ERRORS: tuple[type[BaseException], ...] = (AzureError, OSError, *runtime.CANCELLED)


def ensure_queues(
    admin: ServiceBusAdministrationClient, names: Sequence[str], timeout_s: float
) -> tuple[tuple[str, ...], dict[str, Exception]]:
    """Create the backlog queues that do not exist, all at once.

    Returns the created ones, and the errors of those that the credential must not look up: they may exist. Raises
    PairingError for the first queue that failed otherwise.
    """
    outcomes = runtime.all_of([functools.partial(_ensure_queue, admin, name, timeout_s) for name in names])
    answers = dict(zip(names, outcomes, strict=True))
    unknown = {name: answer for name, answer in answers.items() if is_right_missing(answer)}
    created = [name for name in names if name not in unknown and was_created(name, answers[name])]
    return tuple(created), cast(dict[str, Exception], unknown)


def _ensure_queue(admin: ServiceBusAdministrationClient, name: str, timeout_s: float) -> bool:
    """Whether the queue had to be created."""
    timeouts: dict[str, Any] = {"connection_timeout": timeout_s, "read_timeout": timeout_s}
    try:
        properties = admin.get_queue(name, **timeouts)
    except ResourceNotFoundError:
        try:
            admin.create_queue(name, **BACKLOG_QUEUE_SETTINGS, **timeouts)
        except ResourceExistsError:  # another client of the pair was faster
            return False
        return True
    warn_of_differences(name, properties)
    return False


class BacklogRoute:
    """The way of one paired sender into the backlog."""

    def __init__(self, entity: str, backlog: Backlog) -> None:
        self._entity = entity
        self._backlog = backlog
        self._queue: str | None = None
        self._senders: dict[str, SharedSender] = {}
        self._tally = backlog.observers.tally(entity, Route.BACKLOG)
        self._closed = False

    @property
    def queue(self) -> str | None:
        """The queue this sender stays with; None until it first needs one."""
        return self._queue

    def send(
        self,
        raws: Sequence[bytes],
        deadline: float,
        *,
        primary_error: BaseException | None = None,
        episode: str | None = None,
        route: Route = Route.BACKLOG,
    ) -> None:
        """Send messages in backlog form, in order; raises BacklogUnavailableError or PartlyAcceptedError."""
        sent = 0
        failed: dict[str, BaseException] = {}
        pulled: list[BaseException] = []
        suspect: tuple[str, BaseException] | None = None
        while sent < len(raws):
            queue = self._backlog.choose(self._queue, failed)
            started = runtime.now()
            over = queue is None or started >= deadline
            if self._backlog.has_spool and are_all_down(pulled, over=over, none_left=queue is None):
                self._backlog.take_down(pulled[-1])
                over = True
            if queue is None or over:
                raise self._backlog.failure(self._entity, sent, len(raws), primary_error, failed)
            self._queue = queue
            try:
                sent += self._send_some(queue, raws, sent, deadline, episode, route)
            except (MessageSizeExceededError, ValueError) as error:
                self._backlog.mark_reachable()
                if sent:
                    raise sdk.PartlyAcceptedError(range(sent), range(sent, len(raws)), error) from error
                raise
            except (AzureError, OSError) as error:
                if blames_message(error):
                    self._backlog.mark_reachable()
                    if suspect is not None or self._backlog.has_one_queue:
                        self._queue = queue if suspect is None else suspect[0]
                        if sent:
                            raise sdk.PartlyAcceptedError(range(sent), range(sent, len(raws)), error) from error
                        raise
                    suspect = queue, error
                    failed[queue] = error
                    continue
                if verdict(sdk.describe(error)) is Verdict.BUSY and _pause_for_busy_server(deadline):
                    continue
                failed[queue] = error
                if not had_no_fair_chance(error, runtime.now() - started):
                    self._backlog.pull(queue, error)
                    pulled.append(error)
                continue
            self._backlog.put_back(queue)
            if suspect is not None:  # another queue took what this one refused
                self._backlog.pull(*suspect)
                suspect = None

    def limit_bytes(self, deadline: float) -> int:
        """The size limit of one send to this sender's backlog queue, as its link announced it."""
        queue = self._backlog.choose(self._queue, {})
        if queue is None or self._backlog.is_down:
            return sdk.STANDARD_LIMIT_BYTES
        self._queue = queue
        shared = self._sender(queue)
        if not sdk.batch_limit(shared.sender):
            started = runtime.now()
            try:
                shared.open(deadline)
            except (AzureError, OSError) as error:
                if not had_no_fair_chance(error, runtime.now() - started):
                    self._backlog.pull(queue, error)
                return sdk.STANDARD_LIMIT_BYTES
        return sdk.batch_limit(shared.sender)

    def close(self) -> None:
        self._closed = True
        while self._senders:
            _, shared = self._senders.popitem()
            shared.close()

    def _send_some(
        self, queue: str, raws: Sequence[bytes], first: int, deadline: float, episode: str | None, route: Route
    ) -> int:
        """Send as many messages as fit into one send, or one message in parts; returns the number of messages."""
        shared = self._senders.get(queue) or self._sender(queue)
        started = runtime.now()
        until = deadline
        if self._backlog.has_others(queue):
            # A queue that hangs must leave time for another one, but needs a fair chance itself.
            until = min(started + max((deadline - started) / 2, FAIR_ATTEMPT_SECONDS), deadline)
        limit = sdk.batch_limit(shared.sender)
        if not limit:
            shared.open(until)
            limit = sdk.batch_limit(shared.sender)
        count = count_that_fits(raws, first, limit)
        pieces: Sequence[Sequence[bytes]] = [raws[first : first + count]]
        if not count:
            count = 1
            part_limit = limit - BATCH_ENTRY_BYTES
            pieces = [[part] for part in envelope.split(raws[first], self._entity, uuid.uuid4().hex, part_limit)]
        observers = self._backlog.observers
        observe = functools.partial(
            self._backlog.observe,
            Operation.DIVERT,
            queue,
            namespace=observers.secondary,
            route=route,
            destination=self._entity,
            episode=episode,
        )

        def in_doubt(error: BaseException) -> None:
            observe(raws[first : first + count], runtime.now() - started, error)

        try:
            for piece in pieces:
                shared.send(functools.partial(sdk.RawBatch, piece), until, in_doubt)
        except _SEND_ERRORS as error:
            in_doubt(error)
            raise
        if observers.in_detail or route is not Route.BACKLOG:
            observe(raws[first : first + count], runtime.now() - started)
        elif self._tally is not None:
            self._tally.add(count, runtime.now() - started)
        return count

    def _sender(self, queue: str) -> SharedSender:
        shared = self._senders.get(queue)
        if shared is None:
            if self._closed:
                raise ValueError("The sender has been closed.")
            shared = SharedSender(lambda: self._backlog.make_sender(queue, self._entity), self._backlog.guard)
            shared = self._senders.setdefault(queue, shared)
        return shared


def _pause_for_busy_server(deadline: float) -> bool:
    """Wait until a busy server may be called again; False if the deadline comes first."""
    if runtime.now() + BUSY_PAUSE_SECONDS >= deadline:
        return False
    runtime.Wake().wait(BUSY_PAUSE_SECONDS)
    return True


class SpoolForwarder:
    """The local journal of one paired client, and the task that empties it into whichever namespace is back first."""

    def __init__(
        self,
        options: SendAvailabilityPairedNamespaceOptions[Any, Any],
        backlog: Backlog,
        state_of: Callable[[str], EntityState],
        make_primary_sender: Callable[[str], ServiceBusSender],
    ) -> None:
        self._options = options
        self._backlog = backlog
        self._state_of = state_of
        self._policy = options.backlog_time_to_live
        self._send_timeout = cast(float, options.send_timeout)
        self._make_primary_sender = make_primary_sender
        self._wake = runtime.Wake()
        self._journal: SpoolJournal | None = None
        self._job: runtime.Job | None = None
        self._refused: set[tuple[str, str]] = set()
        self._pausing = False
        self._closing = False

    @property
    def depth(self) -> int:
        """The number of messages in the journal."""
        return 0 if self._journal is None else self._journal.depth

    def start(self) -> None:
        """Open the journal and begin to forward the messages that an earlier process left in it."""
        folder, limit = cast(str, self._options.spool), self._options.spool_limit_bytes
        self._journal = runtime.in_thread(lambda: SpoolJournal(folder, limit_bytes=limit))
        self._backlog.observers.spool_depth(self._journal.depth)
        self._backlog.observers.add_callback(lambda _: self._wake.set())
        self._job = runtime.Job("pairbus-spool", self._forward_forever)

    def store(self, entity: str, forms: Sequence[bytes]) -> None:
        """Store messages in backlog form; they are on disk when this returns, even if it is cancelled meanwhile."""
        journal = self._journal
        if journal is None:
            raise ValueError("The spool has been closed.")
        started = runtime.now()
        try:
            runtime.in_thread(lambda: journal.append(entity, forms, time.time_ns() // 1_000_000))
        except errors.SpoolFullError as error:
            raise sdk.SpoolFullError(str(journal.folder), self._options.spool_limit_bytes) from error
        except errors.SpoolError as error:
            raise sdk.SpoolError(str(error)) from error
        finally:
            self._backlog.observers.spool_depth(journal.depth)
            if not (self._pausing and self._backlog.is_down):  # else the forwarder would wake in vain for each message
                self._wake.set()
        seconds = runtime.now() - started
        self._backlog.observe(Operation.SPOOL, entity, forms, seconds, route=Route.SPOOL)

    def close(self) -> None:
        """Stop forwarding; the remaining messages stay for the next process."""
        self._closing = True
        self._wake.set()
        if self._job is not None:
            self._job.stop()
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    def _forward_forever(self) -> None:
        pause = _FIRST_PAUSE_SECONDS
        while not self._closing:
            try:
                emptied = self._forward()
            except Exception:  # the outermost loop: the messages must wait for a better time
                _log.exception("Forwarding from the spool failed; retrying.")
                emptied = False
            if emptied:
                pause = _FIRST_PAUSE_SECONDS
                self._refused.clear()
                self._wake.wait(None)
            else:
                back = self._backlog.next_return
                wait = pause if back is None else min(pause, max(back - runtime.now(), _FIRST_PAUSE_SECONDS))
                self._pausing = True
                self._wake.wait(wait)
                self._pausing = False
                pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)

    def _forward(self) -> bool:
        """Forward until the journal is empty (True) or neither namespace takes the messages (False)."""
        journal = self._journal
        if journal is None:
            return False
        primary: dict[str, SharedSender] = {}
        backlog: dict[str, BacklogRoute] = {}
        try:
            entities = runtime.in_thread(journal.entities)
            while entities and not self._closing:
                moved = False
                for entity in entities:
                    moved = self._forward_entity(journal, entity, primary, backlog) or moved
                if not moved:
                    return False
                entities = runtime.in_thread(journal.entities)
            return not entities
        finally:
            for shared in primary.values():
                shared.close()
            for route in backlog.values():
                route.close()

    def _forward_entity(
        self, journal: SpoolJournal, entity: str, primary: dict[str, SharedSender], backlog: dict[str, BacklogRoute]
    ) -> bool:
        """Forward the messages of one entity, in order, until a namespace refuses; whether any message left."""
        moved, after = False, 0
        while not self._closing:
            entries = runtime.in_thread(
                functools.partial(
                    journal.oldest, entity, after=after, most=_FORWARD_MESSAGES, most_bytes=_FORWARD_BYTES
                )
            )
            if not entries:
                break
            entries = self._without_unreadable(journal, entries)
            gone = self._to_primary(entity, entries, primary)
            self._remove(journal, gone)
            rest = [entry for entry in entries if entry not in gone]
            if rest and self._to_backlog(journal, entity, rest, backlog):
                gone, rest = entries, []
            moved = moved or bool(gone)
            if not all(entry.is_expired(self._policy) for entry in rest):
                break
            # Expired messages wait for the backlog and hold up nobody: they will not go home.
            after = entries[-1].number
        return moved

    def _without_unreadable(self, journal: SpoolJournal, entries: list[SpoolEntry]) -> list[SpoolEntry]:
        """Set aside what a damaged disk has left unreadable: it would stop all messages."""
        readable = []
        for entry in entries:
            defect = entry.defect(self._policy)
            if defect is None:
                readable.append(entry)
            else:
                self._set_aside(journal, entry, f"it cannot be read: {defect}")
        return readable

    def _set_aside(self, journal: SpoolJournal, entry: SpoolEntry, reason: str) -> None:
        _log.warning("A spooled message for %s is set aside: %s", entry.entity, reason)
        runtime.in_thread(functools.partial(journal.set_aside, entry, reason))
        self._backlog.observers.spool_depth(journal.depth)

    def _remove(self, journal: SpoolJournal, entries: Sequence[SpoolEntry]) -> None:
        if entries:
            runtime.in_thread(lambda: journal.remove(entries))
            self._backlog.observers.spool_depth(journal.depth)

    def _to_primary(
        self, entity: str, entries: Sequence[SpoolEntry], senders: dict[str, SharedSender]
    ) -> Sequence[SpoolEntry]:
        """Send the messages that have not expired to the primary; returns all of them, or none."""
        if self._state_of(entity) is not EntityState.HEALTHY:
            return ()
        raws, living = [], []
        for entry in entries:
            restored = entry.restored(self._policy)
            if isinstance(restored, envelope.Restored):  # the syphon dead-letters the expired ones
                raws.append(restored.raw)
                living.append(entry)
        if not living:
            return ()
        shared = senders.setdefault(
            entity, SharedSender(lambda: self._make_primary_sender(entity), self._backlog.guard)
        )
        started = runtime.now()
        observe = functools.partial(self._backlog.observe, Operation.SEND, entity, raws, route=Route.SPOOL)
        try:
            shared.send(functools.partial(sdk.RawBatch, raws), started + self._send_timeout)
        except (AzureError, OSError, ValueError) as error:
            self._log_refusal("primary", entity, error)
            observe(runtime.now() - started, error)
            return ()
        except runtime.CANCELLED as error:
            observe(runtime.now() - started, error)
            raise
        self._refused.discard(("primary", entity))
        observe(runtime.now() - started)
        return living

    def _to_backlog(
        self, journal: SpoolJournal, entity: str, entries: Sequence[SpoolEntry], routes: dict[str, BacklogRoute]
    ) -> bool:
        """Move messages to the backlog, and set aside those that it refuses; False if it takes none now."""
        raws = [entry.aged if self._policy == "deduct" else entry.raw for entry in entries]
        route = routes.setdefault(entity, BacklogRoute(entity, self._backlog))
        try:
            route.send(raws, runtime.now() + self._send_timeout, route=Route.SPOOL)
        except (errors.PairbusError, AzureError, OSError, ValueError) as error:
            if isinstance(error, errors.PartlyAcceptedError):
                self._remove(journal, entries[: error.rest[0]])
                entries = entries[error.rest[0] :]
            if not blames_message(getattr(error, "cause", error)):
                self._log_refusal("backlog", entity, error)
                return False
            if len(entries) > 1:  # one by one, to find the message that is refused
                taken = True
                for entry in entries:
                    taken = taken and self._to_backlog(journal, entity, [entry], routes)
                return taken
            self._set_aside(journal, entries[0], sdk.cause(error))
            return True
        self._refused.discard(("backlog", entity))
        self._remove(journal, entries)
        return True

    def _log_refusal(self, place: str, entity: str, error: BaseException) -> None:
        """Log once, until the place takes messages of the entity again."""
        if (place, entity) not in self._refused:
            self._refused.add((place, entity))
            _log.info("The %s does not take spooled messages for %s: %s", place, entity, type(error).__name__)
