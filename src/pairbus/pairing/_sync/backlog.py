# Generated from ../_aio/backlog.py by scripts/generate_sync.py: change that file, not this one.
"""The backlog queues of the secondary: made ready when pairing, filled by diverted sends and by the local spool.

Rules of a diverted send
- A sender picks a queue at random when it first needs one, and stays with it.
- A queue that fails is pulled from the rotation for all senders of the paired client. The send tries another queue,
  each at most once, within its deadline.
- With a spool, a send does not try every queue of a namespace that is out of reach. All queues are pulled as soon as a
  connection cannot be opened, two connections break, or no queue is left. From then on only the spool's forwarder
  tries, until one queue takes a send again.
- Messages are sent in order. A message too large for the queue's link is split; all its parts go to one queue.

Rules of the spool
- The messages of one entity leave the journal in order, and only after a namespace has accepted them. Entities do not
  wait for each other.
- Messages for a healthy entity go to the primary, all others to the backlog. Messages that the primary refuses go to
  the backlog too, where the syphon decides about them.
- With the policy "deduct", the time in the journal counts towards a message's time to live.
"""

from __future__ import annotations

import functools
import logging
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from azure.core.exceptions import AzureError, ResourceExistsError, ResourceNotFoundError
from azure.servicebus import ServiceBusSender
from azure.servicebus.exceptions import MessageSizeExceededError, OperationTimeoutError, ServiceBusConnectionError
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus import envelope, errors
from pairbus.amqp.message import BATCH_ENTRY_BYTES, read_facts
from pairbus.failover import BUSY_PAUSE_SECONDS, EntityState, Rotation, Verdict, verdict
from pairbus.ledger import CompletedOperation, Operation, Route, error_name, outcome_of
from pairbus.pairing import sdk
from pairbus.pairing._sync import runtime
from pairbus.pairing._sync.entity import SharedSender, TurnTimeoutError
from pairbus.pairing.observers import Observers
from pairbus.pairing.options import BACKLOG_QUEUE_SETTINGS, differences
from pairbus.spool import SpoolEntry, SpoolJournal

_log = logging.getLogger("pairbus.pairing")

_FAIR_ATTEMPT_SECONDS = 1.0
_FORWARD_MESSAGES = 100
_FORWARD_BYTES = sdk.STANDARD_LIMIT_BYTES // 2
_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 30.0

_SEND_ERRORS: tuple[type[BaseException], ...] = (AzureError, OSError, *runtime.CANCELLED)
IN_DOUBT: tuple[type[BaseException], ...] = (OperationTimeoutError, ServiceBusConnectionError, *runtime.CANCELLED)
"""Errors of a send after which the server may or may not have taken the messages."""


def ensure_queues(
    admin: ServiceBusAdministrationClient, names: Sequence[str], timeout_s: float
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Create the backlog queues that do not exist, all at once; returns the existing and the created ones.

    Raises PairingError for the first queue that failed.
    """
    outcomes = runtime.all_of([functools.partial(_ensure_queue, admin, name, timeout_s) for name in names])
    created = []
    for name, outcome in zip(names, outcomes, strict=True):
        if isinstance(outcome, BaseException):
            if isinstance(outcome, AzureError | OSError | ValueError):
                raise errors.PairingError(name, outcome) from outcome
            raise outcome
        if outcome:
            created.append(name)
    return tuple(name for name in names if name not in created), tuple(created)


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
    different = differences(properties)
    if different:
        _log.warning(
            "Backlog queue %s exists with other settings and is used as it is: %s.",
            name,
            ", ".join(
                f"{setting} is {value!r}, usually {BACKLOG_QUEUE_SETTINGS[setting]!r}"
                for setting, value in different.items()
            ),
        )
    return False


class Backlog:
    """The backlog queues of one paired client, shared by its senders."""

    def __init__(
        self,
        rotation: Rotation,
        *,
        make_sender: Callable[[str], ServiceBusSender],
        random: Callable[[], float],
        guard: runtime.Guard,
        observers: Observers,
        has_spool: bool,
    ) -> None:
        self._rotation = rotation
        self._errors: dict[str, BaseException] = {}
        self._mutex = runtime.Mutex()
        self._random = random
        self.make_sender = make_sender
        self.guard = guard
        self.observers = observers
        self.has_spool = has_spool
        self.is_down = False
        """The secondary was out of reach at the last attempt; only maintained with a spool."""

    @property
    def in_rotation(self) -> tuple[str, ...]:
        with self._mutex:
            return self._rotation.in_rotation(runtime.now())

    @property
    def next_return(self) -> float | None:
        """When the next pulled queue may be used again."""
        with self._mutex:
            return self._rotation.next_return(runtime.now())

    @property
    def errors(self) -> dict[str, BaseException]:
        """The last error of each queue that has failed and not worked since."""
        with self._mutex:
            return dict(self._errors)

    def choose(self, favourite: str | None, without: dict[str, BaseException]) -> str | None:
        """The favourite if it may be used, else another queue at random; None if no queue is left."""
        if favourite is not None and not without and self._rotation.is_whole:
            return favourite
        with self._mutex:
            now = runtime.now()
            if favourite is not None and favourite not in without and self._rotation.may_use(favourite, now):
                return favourite
            return self._rotation.pick(self._random(), now, without=without)

    def has_others(self, queue: str) -> bool:
        if self._rotation.is_whole:
            return len(self._rotation.queues) > 1
        with self._mutex:
            return self._rotation.has_other(queue, runtime.now())

    def pull(self, queue: str, error: BaseException) -> None:
        with self._mutex:
            now = runtime.now()
            was_in = self._rotation.pull(queue, now)
            self._errors[queue] = error
            left = len(self._rotation.in_rotation(now))
        if was_in and not self.is_down:
            self.observers.pulled(queue, error, left)

    def take_down(self, error: BaseException) -> None:
        """Pull all queues, because none can be reached."""
        with self._mutex:
            now = runtime.now()
            for queue in self._rotation.queues:
                self._rotation.pull(queue, now)
            was_down, self.is_down = self.is_down, True
        if not was_down:
            self.observers.taken_down(error)

    def mark_reachable(self) -> None:
        """The secondary answered: every send tries its queues again."""
        self.is_down = False

    def put_back(self, queue: str) -> None:
        if self._rotation.is_whole:
            return
        self.mark_reachable()
        with self._mutex:
            was_out = self._rotation.put_back(queue)
            self._errors.pop(queue, None)
            left = len(self._rotation.in_rotation(runtime.now()))
        if was_out:
            self.observers.put_back(queue, left)


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
        while sent < len(raws):
            queue = self._backlog.choose(self._queue, failed)
            started = runtime.now()
            over = queue is None or started >= deadline
            if self._backlog.has_spool and _are_all_down(pulled, over=over, none_left=queue is None):
                self._backlog.take_down(pulled[-1])
                over = True
            if queue is None or over:
                raise self._failure(sent, len(raws), primary_error, failed)
            self._queue = queue
            try:
                sent += self._send_some(queue, raws, sent, deadline, episode, route)
            except (MessageSizeExceededError, ValueError) as error:
                self._backlog.mark_reachable()
                if sent:
                    raise sdk.PartlyAcceptedError(range(sent), range(sent, len(raws)), error) from error
                raise
            except (AzureError, OSError) as error:
                if verdict(sdk.describe(error)) is Verdict.BUSY and _pause_for_busy_server(deadline):
                    continue
                failed[queue] = error
                if not _had_no_fair_chance(error, runtime.now() - started):
                    self._backlog.pull(queue, error)
                    pulled.append(error)
                continue
            self._backlog.put_back(queue)

    def limit_bytes(self, deadline: float) -> int:
        """The size limit of one send to this sender's backlog queue, as its link announced it."""
        queue = self._backlog.choose(self._queue, {})
        if queue is None or self._backlog.is_down:
            return sdk.STANDARD_LIMIT_BYTES
        self._queue = queue
        shared = self._sender(queue)
        if not sdk.batch_limit(shared.sender):
            try:
                shared.open(deadline)
            except (AzureError, OSError) as error:
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
        # A queue that hangs must leave time for another one.
        until = started + (deadline - started) / 2 if self._backlog.has_others(queue) else deadline
        limit = sdk.batch_limit(shared.sender)
        if not limit:
            shared.open(until)
            limit = sdk.batch_limit(shared.sender)
        count = _count_that_fits(raws, first, limit)
        pieces: Sequence[Sequence[bytes]] = [raws[first : first + count]]
        if not count:
            count = 1
            part_limit = limit - BATCH_ENTRY_BYTES
            pieces = [[part] for part in envelope.split(raws[first], self._entity, uuid.uuid4().hex, part_limit)]
        try:
            for piece in pieces:

                def send(sender: ServiceBusSender, seconds: float, piece: Sequence[bytes] = piece) -> None:
                    sender.send_messages(sdk.RawBatch(piece, sender), timeout=seconds)

                shared.use(until, send)
        except _SEND_ERRORS as error:
            self._observe(queue, raws[first : first + count], started, error, episode, route)
            raise
        if self._backlog.observers.in_detail or route is not Route.BACKLOG:
            self._observe(queue, raws[first : first + count], started, None, episode, route)
        elif self._tally is not None:
            self._tally.add(count, runtime.now() - started)
        return count

    def _observe(
        self,
        queue: str,
        raws: Sequence[bytes],
        started: float,
        error: BaseException | None,
        episode: str | None,
        route: Route,
    ) -> None:
        observers = self._backlog.observers
        if observers.watching:
            observers.sent(
                CompletedOperation(
                    Operation.DIVERT,
                    observers.secondary,
                    queue,
                    [read_facts(raw).message_key if observers.wants_ids else None for raw in raws],
                    [len(raw) for raw in raws],
                    outcome=outcome_of(error, in_doubt=isinstance(error, IN_DOUBT)),
                    error=error_name(error),
                    latency_us=int((runtime.now() - started) * 1_000_000),
                    route=route,
                    destination=self._entity,
                    episode=episode,
                )
            )

    def _sender(self, queue: str) -> SharedSender:
        shared = self._senders.get(queue)
        if shared is None:
            if self._closed:
                raise ValueError("The sender has been closed.")
            shared = SharedSender(lambda: self._backlog.make_sender(queue), self._backlog.guard)
            shared = self._senders.setdefault(queue, shared)
        return shared

    def _failure(
        self, sent: int, total: int, primary_error: BaseException | None, failed: dict[str, BaseException]
    ) -> errors.BacklogUnavailableError | errors.PartlyAcceptedError:
        unavailable = sdk.BacklogUnavailableError(self._entity, primary_error, self._backlog.errors | failed)
        unavailable.__cause__ = next(reversed(failed.values()), primary_error)
        if not sent:
            return unavailable
        return sdk.PartlyAcceptedError(range(sent), range(sent, total), unavailable)


def _pause_for_busy_server(deadline: float) -> bool:
    """Wait until a busy server may be called again; False if the deadline comes first."""
    if runtime.now() + BUSY_PAUSE_SECONDS >= deadline:
        return False
    runtime.Wake().wait(BUSY_PAUSE_SECONDS)
    return True


def _count_that_fits(raws: Sequence[bytes], first: int, limit: int) -> int:
    """The number of messages from `first` on that fit into one send of `limit` bytes; 0 if the first does not."""
    count, size = 0, 0
    for raw in raws[first:] if first else raws:
        size += len(raw) + BATCH_ENTRY_BYTES
        if size > limit:
            break
        count += 1
    return count


def _are_all_down(errors_of_send: Sequence[BaseException], *, over: bool, none_left: bool) -> bool:
    """Whether the errors of one send show that the whole namespace is out of reach.

    One broken connection, or one queue that hangs, may be the trouble of that queue alone: it takes two.
    """
    if not errors_of_send:
        return False
    broken = sum(isinstance(error, ServiceBusConnectionError | OSError) for error in errors_of_send)
    return none_left or sdk.could_not_connect(errors_of_send[-1]) or broken > 1 or (over and len(errors_of_send) > 1)


def _had_no_fair_chance(error: BaseException, seconds: float) -> bool:
    """Whether a queue failed only because the server was busy or the caller's timeout was very short."""
    if verdict(sdk.describe(error)) is Verdict.BUSY:
        return True
    return isinstance(error, OperationTimeoutError) and seconds < _FAIR_ATTEMPT_SECONDS


class SpoolForwarder:
    """The local journal of one paired client, and the task that empties it into whichever namespace is back first."""

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
        self._journal = runtime.in_thread(lambda: SpoolJournal(self._folder, limit_bytes=self._limit_bytes))
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
            raise sdk.SpoolFullError(str(self._folder), self._limit_bytes) from error
        except errors.SpoolError as error:
            raise sdk.SpoolError(str(error)) from error
        finally:
            self._backlog.observers.spool_depth(journal.depth)
            if not (self._pausing and self._backlog.is_down):  # else the forwarder would wake in vain for each message
                self._wake.set()
        self._observe(Operation.SPOOL, entity, forms, started)

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
                wait = pause if back is None else max(0.0, min(pause, back - runtime.now()))
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
            gone = self._to_primary(entity, entries, primary)
            self._remove(journal, gone)
            rest = [entry for entry in entries if entry not in gone]
            if rest and self._to_backlog(entity, rest, backlog):
                self._remove(journal, rest)
                gone, rest = entries, []
            moved = moved or bool(gone)
            if not all(self._is_expired(entry) for entry in rest):
                break
            # Expired messages wait for the backlog and hold up nobody: they will not go home.
            after = entries[-1].number
        return moved

    def _remove(self, journal: SpoolJournal, entries: Sequence[SpoolEntry]) -> None:
        if entries:
            runtime.in_thread(lambda: journal.remove(entries))
            self._backlog.observers.spool_depth(journal.depth)

    def _is_expired(self, entry: SpoolEntry) -> bool:
        return isinstance(self._restored(entry), envelope.Expired)

    def _restored(self, entry: SpoolEntry) -> envelope.Restored | envelope.Expired:
        now_ms = time.time_ns() // 1_000_000
        return envelope.restore(entry.raw, now_ms=now_ms, policy=self._policy, enqueued_ms=entry.stored_ms)

    def _to_primary(
        self, entity: str, entries: Sequence[SpoolEntry], senders: dict[str, SharedSender]
    ) -> Sequence[SpoolEntry]:
        """Send the messages that have not expired to the primary; returns all of them, or none."""
        if self._state_of(entity) is not EntityState.HEALTHY:
            return ()
        raws, living = [], []
        for entry in entries:
            restored = self._restored(entry)
            if isinstance(restored, envelope.Restored):  # the syphon dead-letters the expired ones
                raws.append(restored.raw)
                living.append(entry)
        if not living:
            return ()
        shared = senders.setdefault(
            entity, SharedSender(lambda: self._make_primary_sender(entity), self._backlog.guard)
        )
        started = runtime.now()

        def send(sender: ServiceBusSender, seconds: float) -> None:
            sender.send_messages(sdk.RawBatch(raws, sender), timeout=seconds)

        try:
            shared.use(started + self._send_timeout, send)
        except (AzureError, OSError, ValueError) as error:
            self._log_refusal("primary", entity, error)
            self._observe(Operation.SEND, entity, raws, started, error)
            return ()
        except runtime.CANCELLED as error:
            self._observe(Operation.SEND, entity, raws, started, error)
            raise
        self._refused.discard(("primary", entity))
        self._observe(Operation.SEND, entity, raws, started)
        return living

    def _to_backlog(self, entity: str, entries: Sequence[SpoolEntry], routes: dict[str, BacklogRoute]) -> bool:
        raws = [entry.raw for entry in entries]
        if self._policy == "deduct":
            now_ms = time.time_ns() // 1_000_000
            raws = [envelope.aged(entry.raw, now_ms - entry.stored_ms) for entry in entries]
        route = routes.setdefault(entity, BacklogRoute(entity, self._backlog))
        try:
            route.send(raws, runtime.now() + self._send_timeout, route=Route.SPOOL)
        except (errors.PairbusError, AzureError, OSError, ValueError) as error:
            self._log_refusal("backlog", entity, error)
            return False
        self._refused.discard(("backlog", entity))
        return True

    def _log_refusal(self, place: str, entity: str, error: BaseException) -> None:
        """Log once, until the place takes messages of the entity again."""
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
