"""Receivers and what they are fed.

A receiver stands on one queue (or one session of it) with so much credit. Whenever a queue has news, `feed` hands its
ready messages to receivers in turn, and free sessions to those who wait for one. Deliveries are effects: they leave
after everything decided before them is on disk.
"""

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import partial

from pairbus.amqp.message import for_delivery
from pairbus.amqp.types import Int, Long, Timestamp
from pairbus.embedded.clock import Alarm, Clock
from pairbus.embedded.entities.message import Entry, State
from pairbus.embedded.entities.namespace import Namespace, Place
from pairbus.embedded.entities.queue import MessageQueue, Session
from pairbus.embedded.errors import (
    BrokerError,
    EntityNotFoundError,
    NotAllowedError,
    SessionLockLostError,
    TimeoutExpiredError,
)
from pairbus.embedded.store import GroupCommit

LOST_SESSION_NOTICE_MS = 3_000

log = logging.getLogger(__name__)


class ReceiveMode(Enum):
    PEEK_LOCK = "peek-lock"
    RECEIVE_AND_DELETE = "receive-and-delete"


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message on its way to a receiver. `lock_token` is the delivery tag."""

    lock_token: bytes
    raw: bytes
    settled: bool
    sequence_number: int


Deliver = Callable[[Delivery], None]
Closed = Callable[[BrokerError], None]


@dataclass(slots=True, eq=False)
class Receiver:
    """A link that takes messages. Close it when the link ends."""

    number: int
    place: Place
    mode: ReceiveMode
    deliver: Deliver
    closed: Closed
    session: Session | None
    feeding: "Feeding"
    credit: int = 0
    is_open: bool = True

    @property
    def session_id(self) -> str | None:
        return self.session.session_id if self.session is not None else None

    @property
    def session_locked_until_ms(self) -> int | None:
        return self.session.locked_until_ms if self.session is not None else None

    def set_credit(self, credit: int) -> None:
        """The link's outstanding credit as the client now has it."""
        self.credit = max(0, credit)
        if self.credit and self.is_open:
            self.feeding.feed(self.place.queue)

    def drain(self) -> None:
        self.credit = 0

    def close(self) -> None:
        self.feeding.close_receiver(self)

    def __repr__(self) -> str:
        state = f"credit {self.credit}" if self.is_open else "closed"
        return f"<Receiver {self.number} on {self.place.entity.path!r}, {self.mode.value}, {state}>"


@dataclass(slots=True, eq=False)
class SessionWait:
    """Somebody waits for the next session that has messages."""

    place: Place
    mode: ReceiveMode
    deliver: Deliver
    closed: Closed
    accepted: Callable[[Receiver | BrokerError], None]
    alarm: Alarm | None = None
    is_over: bool = False


@dataclass(slots=True)
class _Audience:
    """Those who stand on one queue."""

    receivers: deque[Receiver] = field(default_factory=deque)
    waits: deque[SessionWait] = field(default_factory=deque)


class Feeding:
    def __init__(self, namespace: Namespace, commits: GroupCommit, clock: Clock) -> None:
        self._namespace = namespace
        self._commits = commits
        self._clock = clock
        self._audiences: dict[int, _Audience] = {}
        self._last_number = 0
        self._alarm: Alarm | None = None
        self._alarm_ms = 0
        # Feeding calls back into links, which may call feeding: the outermost call finishes the work.
        self._settling = False
        self._stopped = False

    # -- coming and going

    def open_receiver(self, place: Place, mode: ReceiveMode, deliver: Deliver, closed: Closed) -> Receiver:
        if place.queue.requires_session:
            raise NotAllowedError(
                f"It is not possible for an entity that requires sessions to create a non-sessionful message receiver "
                f"('{place.entity.path}'). Accept a session."
            )
        return self._add(place, mode, deliver, closed, None)

    def _add(
        self, place: Place, mode: ReceiveMode, deliver: Deliver, closed: Closed, session: Session | None
    ) -> Receiver:
        self._last_number += 1
        number = session.holder if session is not None and session.holder is not None else self._last_number
        receiver = Receiver(number, place, mode, deliver, closed, session, self)
        place.entity.receivers += 1
        self._audience(place.queue).receivers.append(receiver)
        return receiver

    def _audience(self, queue: MessageQueue) -> _Audience:
        audience = self._audiences.get(queue.queue_id)
        if audience is None:
            audience = self._audiences[queue.queue_id] = _Audience()
        return audience

    def close_receiver(self, receiver: Receiver) -> None:
        """A session is let go with its link; other locks live on until they end or are settled elsewhere."""
        if not receiver.is_open:
            return
        self._remove(receiver)
        session = receiver.session
        if session is not None and session.holder == receiver.number:
            self._namespace.release_session(receiver.place, session)
        self.settle_down()

    def _remove(self, receiver: Receiver) -> None:
        receiver.is_open = False
        receiver.credit = 0
        receiver.place.entity.receivers -= 1
        receiver.place.entity.times.accessed_ms = self._clock.now_ms()
        queue_id = receiver.place.queue.queue_id
        audience = self._audiences[queue_id]
        audience.receivers.remove(receiver)
        if not audience.receivers and not audience.waits:
            del self._audiences[queue_id]

    def close_queues(self, queues: list[MessageQueue], path: str) -> None:
        """The entity is gone: whoever stood on it learns so."""
        error = EntityNotFoundError(f"The messaging entity '{path}' was deleted.")
        for queue in queues:
            audience = self._audiences.get(queue.queue_id)
            if audience is None:
                continue
            for receiver in list(audience.receivers):
                self._remove(receiver)
                self._commits.after(partial(receiver.closed, error))
            for wait in list(audience.waits):
                self._end_wait(wait, error)

    # -- sessions

    def accept_session(
        self,
        place: Place,
        session_id: str | None,
        mode: ReceiveMode,
        deliver: Deliver,
        closed: Closed,
        accepted: Callable[[Receiver | BrokerError], None],
        timeout_ms: int,
    ) -> Callable[[], None]:
        wait = SessionWait(place, mode, deliver, closed, accepted)
        try:
            if not self._try_accept(wait, session_id):
                now = self._clock.now_ms()
                wait.alarm = self._clock.call_at(now + timeout_ms, lambda: self._give_up(wait))
                self._audience(place.queue).waits.append(wait)
        except BrokerError as error:
            accepted(error)
        self.settle_down()
        return lambda: self._cancel_wait(wait)

    def _try_accept(self, wait: SessionWait, session_id: str | None) -> bool:
        self._last_number += 1
        now = self._clock.now_ms()
        session = self._namespace.accept_session(wait.place, session_id, self._last_number, now)
        if session is None:
            return False
        wait.is_over = True
        if wait.alarm is not None:
            wait.alarm.cancel()
        wait.accepted(self._add(wait.place, wait.mode, wait.deliver, wait.closed, session))
        return True

    def _give_up(self, wait: SessionWait) -> None:
        if not wait.is_over:
            self._end_wait(
                wait, TimeoutExpiredError(f"No session of '{wait.place.entity.path}' became available in time.")
            )

    def _cancel_wait(self, wait: SessionWait) -> None:
        if not wait.is_over:
            self._end_wait(wait, None)

    def _end_wait(self, wait: SessionWait, error: BrokerError | None) -> None:
        wait.is_over = True
        if wait.alarm is not None:
            wait.alarm.cancel()
        queue_id = wait.place.queue.queue_id
        audience = self._audiences.get(queue_id)
        if audience is not None and wait in audience.waits:
            audience.waits.remove(wait)
            if not audience.receivers and not audience.waits:
                del self._audiences[queue_id]
        if error is not None:
            wait.accepted(error)

    def _tell_lost_sessions(self) -> None:
        """Links whose session's lock ended get nothing more, and are closed with the reason a little later.

        Later, because the service takes its time, too: a client that is about to close an idle session by itself
        does not see it fail. Whoever wants the session has it at once.
        """
        lost = self._namespace.lost_sessions
        while lost:
            queue, session = lost.pop()
            audience = self._audiences.get(queue.queue_id)
            for receiver in list(audience.receivers) if audience is not None else ():
                if receiver.session is session and session.holder != receiver.number:
                    self._remove(receiver)
                    error = SessionLockLostError(
                        f"The session lock on '{session.session_id}' has expired. Accept the session again."
                    )
                    when_ms = self._clock.now_ms() + LOST_SESSION_NOTICE_MS
                    self._clock.call_at(when_ms, partial(receiver.closed, error))

    # -- feeding

    def feed(self, queue: MessageQueue) -> None:
        self._namespace.touched.add(queue)
        self.settle_down()

    def settle_down(self) -> None:
        """After an operation: hands out what became ready, notes deadlines, and has the changes written."""
        if self._settling:
            return
        self._settling = True
        try:
            self._feed_touched()
        finally:
            self._settling = False
        self._set_alarm()
        if self._namespace.has_changes:
            self._commits.soon()

    def _feed_touched(self) -> None:
        touched = self._namespace.touched
        self._tell_lost_sessions()
        while touched:
            queue = touched.pop()
            audience = self._audiences.get(queue.queue_id)
            if audience is not None:
                self._serve(queue, audience)
            self._namespace.arm(queue)

    def _serve(self, queue: MessageQueue, audience: _Audience) -> None:
        while audience.waits and queue.has_ready_session():
            wait = audience.waits.popleft()
            if not wait.is_over and not self._try_accept(wait, None):
                audience.waits.appendleft(wait)
                break
        if queue.requires_session:
            for receiver in list(audience.receivers):
                while receiver.credit > 0 and receiver.is_open and self._hand_over(receiver):
                    pass
            return
        hungry = deque(receiver for receiver in audience.receivers if receiver.credit > 0)
        while hungry and queue.has_ready():
            receiver = hungry.popleft()
            if receiver.credit > 0 and receiver.is_open and self._hand_over(receiver):
                hungry.append(receiver)
        # Whoever came first waits longest next time.
        audience.receivers.rotate(-1)

    def _hand_over(self, receiver: Receiver) -> bool:
        """Gives the receiver its next message; False when there is none for it."""
        session = receiver.session
        now = self._clock.now_ms()
        if session is not None and (session.holder != receiver.number or not receiver.place.queue.has_ready(session)):
            return False
        delete = receiver.mode is ReceiveMode.RECEIVE_AND_DELETE
        taken = self._namespace.take(receiver.place, now, session, delete=delete)
        if taken is None:
            return False
        receiver.credit -= 1
        entry, raw = taken
        token = entry.lock_token or self._namespace.next_token()
        delivery = Delivery(token, render(entry, raw), delete, entry.sequence_number)
        self._commits.after(lambda: self._deliver(receiver, entry, delivery, raw))
        return True

    def _deliver(self, receiver: Receiver, entry: Entry, delivery: Delivery, raw: bytes) -> None:
        if receiver.is_open:
            receiver.deliver(delivery)
            return
        # The link went away before the message left: nobody has seen it.
        if delivery.settled:
            self._namespace.give_back(receiver.place, entry, raw)
        elif entry.lock_token == delivery.lock_token:
            receiver.place.queue.release(entry, count=False)
        self.settle_down()

    # -- time

    def _set_alarm(self) -> None:
        deadline = self._namespace.next_deadline()
        if self._alarm is not None:
            if self._alarm_ms <= deadline:
                return
            self._alarm.cancel()
            self._alarm = None
        if self._namespace.has_deadline and not self._stopped:
            self._alarm_ms = deadline
            self._alarm = self._clock.call_at(deadline, self._wake)

    def _wake(self) -> None:
        self._alarm = None
        now = self._clock.now_ms()
        for queue in self._namespace.due_queues(now):
            self._namespace.bring_up(queue, now)
            self._namespace.touched.add(queue)
        self.settle_down()

    def stop(self) -> None:
        self._stopped = True
        if self._alarm is not None:
            self._alarm.cancel()
        for audience in list(self._audiences.values()):
            for wait in list(audience.waits):
                self._end_wait(wait, None)


def render(entry: Entry, raw: bytes, *, with_state: bool = False) -> bytes:
    """The message as a client sees it: the namespace's own annotations replace whatever a sender put there."""
    annotations: dict[str, object | None] = {
        "x-opt-sequence-number": Long(entry.sequence_number),
        "x-opt-enqueued-time": Timestamp(entry.enqueued_ms),
        "x-opt-locked-until": Timestamp(entry.locked_until_ms) if entry.lock_token else None,
        "x-opt-message-state": Int(entry.state) if with_state or entry.state is not State.ACTIVE else None,
        "x-opt-deadletter-source": entry.origin,
    }
    return for_delivery(raw, delivery_count=entry.delivery_count, annotations=annotations, lock_token=entry.lock_token)
