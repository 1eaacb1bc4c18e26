# Generated from ../_aio/backlog.py by scripts/generate_sync.py: change that file, not this one.
"""The way of a diverted message: from a paired sender into one of the backlog queues.

Rules
- A sender picks a queue at random when it first needs one and stays with it.
- A queue that does not take a send is pulled for all senders of the paired client; the send is tried on
  another one, at most once on each, within its deadline.
- Where there is a spool, a send does not ask every queue of a namespace that is out of reach: all of them rest
  as soon as no connection comes about, two connections break, or no queue is left to try. Until one takes a
  send again only the spool's forwarder tries, and it always has something to try with.
- Messages are sent in order. A message too large for the queue's link is carried in parts, all of them in
  one queue.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence

from azure.core.exceptions import AzureError
from azure.servicebus import ServiceBusSender
from azure.servicebus.exceptions import MessageSizeExceededError, OperationTimeoutError, ServiceBusConnectionError

from pairbus import envelope
from pairbus.amqp.message import BATCH_ENTRY_BYTES, read_facts
from pairbus.failover import BUSY_PAUSE_SECONDS, Rotation, Verdict, verdict
from pairbus.ledger import CompletedOperation, Operation, Route, error_name, outcome_of
from pairbus.pairing import sdk
from pairbus.pairing._sync import runtime
from pairbus.pairing._sync.link import Link
from pairbus.pairing.events import Observers
from pairbus.pairing.failures import BacklogUnavailableError, PartlyAcceptedError

_FAIR_ATTEMPT_SECONDS = 1.0

_ENDS: tuple[type[BaseException], ...] = (AzureError, OSError, *runtime.CANCELLED)
IN_DOUBT: tuple[type[BaseException], ...] = (OperationTimeoutError, ServiceBusConnectionError, *runtime.CANCELLED)
"""Ends of a send after which nobody knows whether the server has taken it."""


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
        """The secondary was out of reach when last tried; only known where there is a spool."""

    @property
    def in_rotation(self) -> tuple[str, ...]:
        with self._mutex:
            return self._rotation.in_rotation(runtime.now())

    @property
    def next_return(self) -> float | None:
        with self._mutex:
            return self._rotation.next_return(runtime.now())

    def choose(self, favourite: str | None, without: dict[str, BaseException]) -> str | None:
        """The favourite if it may be used, else another one at random; None if there is none."""
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

    @property
    def errors(self) -> dict[str, BaseException]:
        """The last error of every queue that has failed and not worked since."""
        with self._mutex:
            return dict(self._errors)

    def pull(self, queue: str, error: BaseException) -> None:
        with self._mutex:
            now = runtime.now()
            was_in = self._rotation.pull(queue, now)
            self._errors[queue] = error
            left = len(self._rotation.in_rotation(now))
        if was_in and not self.is_down:
            self.observers.pulled(queue, error, left)

    def take_down(self, error: BaseException) -> None:
        """No queue can be reached: all of them rest from now on."""
        with self._mutex:
            now = runtime.now()
            for queue in self._rotation.queues:
                self._rotation.pull(queue, now)
            was_down, self.is_down = self.is_down, True
        if not was_down:
            self.observers.taken_down(error)

    def answered(self) -> None:
        """The secondary can be reached: its queues are tried by every send again."""
        self.is_down = False

    def put_back(self, queue: str) -> None:
        if self._rotation.is_whole:
            return
        self.answered()
        with self._mutex:
            was_out = self._rotation.put_back(queue)
            self._errors.pop(queue, None)
            left = len(self._rotation.in_rotation(runtime.now()))
        if was_out:
            self.observers.put_back(queue, left)


class BacklogRoute:
    """One paired sender's way into the backlog."""

    def __init__(self, entity: str, backlog: Backlog) -> None:
        self._entity = entity
        self._backlog = backlog
        self._queue: str | None = None
        self._links: dict[str, Link] = {}
        self._tally = backlog.observers.tally(entity, Route.BACKLOG)
        self._closed = False

    @property
    def queue(self) -> str | None:
        """The queue this sender stays with; None before it first needed one."""
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
                self._backlog.answered()
                if sent:
                    raise PartlyAcceptedError(range(sent), range(sent, len(raws)), error) from error
                raise
            except (AzureError, OSError) as error:
                if verdict(sdk.describe(error)) is Verdict.BUSY and self._pause(deadline):
                    continue
                failed[queue] = error
                if not _is_the_callers_hurry(error, runtime.now() - started):
                    self._backlog.pull(queue, error)
                    pulled.append(error)
                continue
            self._backlog.put_back(queue)

    def limit_bytes(self, deadline: float) -> int:
        """How many bytes one send to this sender's backlog queue may have, as its link says."""
        queue = self._backlog.choose(self._queue, {})
        if queue is None or self._backlog.is_down:
            return sdk.STANDARD_LIMIT_BYTES
        self._queue = queue
        link = self._link(queue)
        if not sdk.batch_limit(link.sender):
            try:
                link.open(deadline)
            except (AzureError, OSError) as error:
                self._backlog.pull(queue, error)
                return sdk.STANDARD_LIMIT_BYTES
        return sdk.batch_limit(link.sender)

    def close(self) -> None:
        self._closed = True
        while self._links:
            _, link = self._links.popitem()
            link.close()

    def _send_some(
        self,
        queue: str,
        raws: Sequence[bytes],
        first: int,
        deadline: float,
        episode: str | None,
        route: Route,
    ) -> int:
        """Send as many messages as one send takes, or one message in parts; how many messages that were."""
        link = self._links.get(queue) or self._link(queue)
        started = runtime.now()
        # A queue that hangs must leave time for another one.
        until = started + (deadline - started) / 2 if self._backlog.has_others(queue) else deadline
        limit = sdk.batch_limit(link.sender)
        if not limit:
            link.open(until)
            limit = sdk.batch_limit(link.sender)
        count = _count_that_fits(raws, first, limit)
        pieces: Sequence[Sequence[bytes]] = [raws[first : first + count]]
        if not count:
            count = 1
            whole = raws[first]
            piece_limit = limit - BATCH_ENTRY_BYTES
            pieces = [[part] for part in envelope.split(whole, self._entity, uuid.uuid4().hex, piece_limit)]
        try:
            for piece in pieces:

                def send(sender: ServiceBusSender, seconds: float, piece: Sequence[bytes] = piece) -> None:
                    sender.send_messages(sdk.RawBatch(piece, sender), timeout=seconds)

                link.use(until, send)
        except _ENDS as error:
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

    def _pause(self, deadline: float) -> bool:
        """Wait until a busy server may be asked again; False if the deadline comes before."""
        if runtime.now() + BUSY_PAUSE_SECONDS >= deadline:
            return False
        runtime.Wake().wait(BUSY_PAUSE_SECONDS)
        return True

    def _link(self, queue: str) -> Link:
        link = self._links.get(queue)
        if link is None:
            if self._closed:
                raise ValueError("The sender has been closed.")
            link = Link(lambda: self._backlog.make_sender(queue), self._backlog.guard)
            link = self._links.setdefault(queue, link)
        return link

    def _failure(
        self, sent: int, total: int, primary_error: BaseException | None, failed: dict[str, BaseException]
    ) -> BacklogUnavailableError | PartlyAcceptedError:
        unavailable = BacklogUnavailableError(self._entity, primary_error, self._backlog.errors | failed)
        unavailable.__cause__ = next(reversed(failed.values()), primary_error)
        if not sent:
            return unavailable
        return PartlyAcceptedError(range(sent), range(sent, total), unavailable)


def _count_that_fits(raws: Sequence[bytes], first: int, limit: int) -> int:
    """How many messages from the `first` on fit into one send of at most `limit` bytes; 0 if not even one does."""
    count, size = 0, 0
    for raw in raws[first:] if first else raws:
        size += len(raw) + BATCH_ENTRY_BYTES
        if size > limit:
            break
        count += 1
    return count


def _are_all_down(errors: Sequence[BaseException], *, over: bool, none_left: bool) -> bool:
    """Whether the errors of the queues that one send was refused by speak for all the queues of the namespace.

    One connection that breaks, or one queue that hangs, may be that queue's own trouble: it takes two.
    """
    if not errors:
        return False
    broken = sum(isinstance(error, ServiceBusConnectionError | OSError) for error in errors)
    return none_left or sdk.could_not_connect(errors[-1]) or broken > 1 or (over and len(errors) > 1)


def _is_the_callers_hurry(error: BaseException, seconds: float) -> bool:
    """Whether a queue failed only because it was given no fair chance: a busy server, a very short timeout."""
    if verdict(sdk.describe(error)) is Verdict.BUSY:
        return True
    return isinstance(error, OperationTimeoutError) and seconds < _FAIR_ATTEMPT_SECONDS
