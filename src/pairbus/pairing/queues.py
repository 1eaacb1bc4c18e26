"""The backlog queues of one paired client: which may be used, and what a failed send says about them.

Nothing here waits, so the shells for asyncio and for threads share it.

Rules of a diverted send
- A sender picks a queue at random when it first needs one, and stays with it.
- A queue that fails is pulled from the rotation for all senders of the paired client. The send tries another queue,
  each at most once, within its deadline.
- A message that two queues refuse is to blame, not the queues: its error is raised, and no queue is pulled. (One queue
  may refuse what others take: one that requires sessions.)
- With a spool, a send does not try every queue of a namespace that is out of reach. All queues are pulled as soon as a
  connection cannot be opened, two connections break, or no queue is left. From then on only the spool's forwarder
  tries, until one queue takes a send again.
- Messages are sent in order. A message too large for the queue's link is split; all its parts go to one queue.

Rules of the spool
- The messages of one entity leave the journal in order, and only after a namespace has accepted them. Entities do not
  wait for each other.
- Messages for a healthy entity go to the primary, all others to the backlog. Messages that the primary refuses go to
  the backlog too, where the syphon decides about them.
- A message that the backlog refuses is set aside in the journal with the reason, and holds up nobody.
- With the policy "deduct", the time in the journal counts towards a message's time to live.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from azure.core.exceptions import AzureError, HttpResponseError
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    OperationTimeoutError,
    ServiceBusConnectionError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
)

from pairbus import envelope
from pairbus.amqp.conditions import Blame, meaning
from pairbus.amqp.message import BATCH_ENTRY_BYTES, read_facts
from pairbus.errors import BacklogUnavailableError, PairingError, PartlyAcceptedError
from pairbus.failover.classification import Verdict, verdict
from pairbus.failover.rotation import Rotation
from pairbus.ledger import Operation
from pairbus.pairing import sdk
from pairbus.pairing.observers import Observers
from pairbus.pairing.options import BACKLOG_QUEUE_SETTINGS, differences

_log = logging.getLogger("pairbus.pairing")

FAIR_ATTEMPT_SECONDS = 1.0


class Backlog:
    """The backlog queues of one paired client, shared by its senders."""

    def __init__(
        self,
        rotation: Rotation,
        *,
        make_sender: Callable[[str, str], Any],
        random: Callable[[], float],
        guard: Any,
        observers: Observers,
        has_spool: bool,
    ) -> None:
        self._rotation = rotation
        self._errors: dict[str, BaseException] = {}
        self._mutex = threading.Lock()
        self._random = random
        self.make_sender = make_sender
        """Makes the SDK's sender for a backlog queue and the entity whose messages it takes."""
        self.guard = guard
        self.observers = observers
        self.has_spool = has_spool
        self.is_down = False
        """The secondary was out of reach at the last attempt; only maintained with a spool."""

    @property
    def in_rotation(self) -> tuple[str, ...]:
        with self._mutex:
            return self._rotation.in_rotation(time.monotonic())

    @property
    def next_return(self) -> float | None:
        """When the next pulled queue may be used again."""
        with self._mutex:
            return self._rotation.next_return(time.monotonic())

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
            now = time.monotonic()
            if favourite is not None and favourite not in without and self._rotation.may_use(favourite, now):
                return favourite
            return self._rotation.pick(self._random(), now, without=without)

    @property
    def has_one_queue(self) -> bool:
        return len(self._rotation.queues) == 1

    def has_others(self, queue: str) -> bool:
        if self._rotation.is_whole:
            return len(self._rotation.queues) > 1
        with self._mutex:
            return self._rotation.has_other(queue, time.monotonic())

    def pull(self, queue: str, error: BaseException) -> None:
        with self._mutex:
            now = time.monotonic()
            was_in = self._rotation.pull(queue, now)
            self._errors[queue] = error
            left = len(self._rotation.in_rotation(now))
        if was_in and not self.is_down:
            self.observers.pulled(queue, error, left)

    def take_down(self, error: BaseException) -> None:
        """Pull all queues, because none can be reached."""
        with self._mutex:
            now = time.monotonic()
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
            left = len(self._rotation.in_rotation(time.monotonic()))
        if was_out:
            self.observers.put_back(queue, left)

    def observe(
        self,
        operation: Operation,
        entity: str,
        raws: Sequence[bytes],
        seconds: float,
        error: BaseException | None = None,
        **fields: Any,
    ) -> None:
        """Record an operation that carried encoded messages; `fields` are those of a CompletedOperation."""
        observers = self.observers
        if observers.watching:
            fields["message_ids"] = [read_facts(raw).message_key if observers.wants_ids else None for raw in raws]
            fields["sizes"] = [len(raw) for raw in raws]
            in_doubt = sdk.is_in_doubt(error)
            observers.sent(observers.completed(operation, entity, seconds, error, in_doubt=in_doubt, **fields))

    def failure(
        self, entity: str, sent: int, total: int, primary_error: BaseException | None, failed: dict[str, BaseException]
    ) -> BacklogUnavailableError | PartlyAcceptedError:
        """The error of a send that no queue took as a whole."""
        unavailable = sdk.BacklogUnavailableError(entity, primary_error, self.errors | failed)
        unavailable.__cause__ = next(reversed(failed.values()), primary_error)
        return sdk.PartlyAcceptedError(range(sent), range(sent, total), unavailable) if sent else unavailable


def was_created(queue: str, outcome: bool | BaseException) -> bool:
    """Whether the queue had to be created; raises PairingError if it could be neither found nor created."""
    if isinstance(outcome, AzureError | OSError | ValueError):
        raise PairingError(queue, outcome) from outcome
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


def is_right_missing(outcome: bool | BaseException) -> bool:
    """Whether the administration answered that the credential lacks the right to look at the queue."""
    return isinstance(outcome, HttpResponseError) and outcome.status_code in (401, 403)


def keeps_from_pairing(error: BaseException) -> bool:
    """Whether an error of a link to one backlog queue is about the namespace or the credential, not just that queue."""
    own = (ServiceBusServerBusyError, MessagingEntityDisabledError, ServiceBusQuotaExceededError)
    return not isinstance(error, own)


def warn_of_differences(queue: str, properties: Any) -> None:
    """Log the settings of an existing backlog queue that are not the usual ones."""
    different = differences(properties)
    if different:
        _log.warning(
            "Backlog queue %s exists with other settings and is used as it is: %s.",
            queue,
            ", ".join(
                f"{setting} is {value!r}, usually {BACKLOG_QUEUE_SETTINGS[setting]!r}"
                for setting, value in different.items()
            ),
        )


def count_that_fits(raws: Sequence[bytes], first: int, limit: int) -> int:
    """The number of messages from `first` on that fit into one send of `limit` bytes; 0 if the first must be split."""
    count, size = 0, 0
    for raw in raws[first:] if first else raws:
        size += len(raw) + BATCH_ENTRY_BYTES
        if size > limit or envelope.must_be_split(raw):
            break
        count += 1
    return count


def are_all_down(errors_of_send: Sequence[BaseException], *, over: bool, none_left: bool) -> bool:
    """Whether the errors of one send show that the whole namespace is out of reach.

    One broken connection, or one queue that hangs, may be the trouble of that queue alone: it takes two.
    """
    if not errors_of_send:
        return False
    broken = sum(isinstance(error, ServiceBusConnectionError | OSError) for error in errors_of_send)
    return none_left or sdk.could_not_connect(errors_of_send[-1]) or broken > 1 or (over and len(errors_of_send) > 1)


def blames_message(error: BaseException) -> bool:
    """Whether a queue refused the message itself."""
    if isinstance(error, MessageSizeExceededError):
        return True
    return meaning(sdk.describe(error).condition).blame is Blame.MESSAGE


def had_no_fair_chance(error: BaseException, seconds: float) -> bool:
    """Whether a queue failed only because the server was busy, it was not called, or the timeout was very short."""
    if isinstance(error, sdk.TurnTimeoutError) or verdict(sdk.describe(error)) is Verdict.BUSY:
        return True
    return isinstance(error, OperationTimeoutError) and seconds < FAIR_ATTEMPT_SECONDS
