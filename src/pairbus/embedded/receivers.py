"""Receivers, and the dispatcher that hands them messages.

A receiver is attached to one queue, or to one session of it, with a number of credits. Whenever a queue changes, the
dispatcher gives its ready messages to the receivers in turn, and its free sessions to the requests that wait for one.
Deliveries are effects: they leave only after everything decided before them is on disk.
"""

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import partial

from pairbus.amqp.message import for_delivery
from pairbus.amqp.types import Int, Long, Timestamp
from pairbus.embedded.clock import Alarm, Clock
from pairbus.embedded.entities.message import QueueEntry, State
from pairbus.embedded.entities.namespace import NamespaceState, Place
from pairbus.embedded.entities.queue import NEVER_MS, MessageQueue, MessageSession
from pairbus.embedded.errors import (
    BrokerError,
    EntityNotFoundError,
    NotAllowedError,
    SessionLockLostError,
    TimeoutExpiredError,
)
from pairbus.embedded.store import GroupCommit

LOST_SESSION_NOTICE_MS = 3_000


class ReceiveMode(Enum):
    PEEK_LOCK = "peek-lock"
    RECEIVE_AND_DELETE = "receive-and-delete"


@dataclass(frozen=True, slots=True)
class MessageDelivery:
    """A message on its way to a receiver. `lock_token` is the delivery tag."""

    lock_token: bytes
    raw: bytes
    settled: bool
    sequence_number: int


Deliver = Callable[[MessageDelivery], None]
Closed = Callable[[BrokerError], None]


@dataclass(slots=True, eq=False)
class Receiver:
    """A link that takes messages. Close it when the link ends."""

    number: int
    place: Place
    mode: ReceiveMode
    deliver: Deliver
    closed: Closed
    session: MessageSession | None
    dispatcher: "Dispatcher"
    credit: int = 0
    is_open: bool = True

    @property
    def session_id(self) -> str | None:
        return self.session.session_id if self.session is not None else None

    def set_credit(self, credit: int) -> None:
        """Set the link's outstanding credit."""
        self.credit = max(0, credit)
        if self.credit and self.is_open:
            self.dispatcher.dispatch(self.place.queue)

    def drain(self) -> None:
        self.credit = 0

    def close(self) -> None:
        self.dispatcher.close_receiver(self)

    def __repr__(self) -> str:
        state = f"credit {self.credit}" if self.is_open else "closed"
        return f"<Receiver {self.number} on {self.place.entity.path!r}, {self.mode.value}, {state}>"


@dataclass(slots=True, eq=False)
class SessionRequest:
    """A client that waits for the next session with messages."""

    place: Place
    mode: ReceiveMode
    deliver: Deliver
    closed: Closed
    accepted: Callable[[Receiver | BrokerError], None]
    alarm: Alarm | None = None
    is_over: bool = False


@dataclass(slots=True)
class _Consumers:
    """The receivers of one queue, and the requests for one of its sessions."""

    receivers: deque[Receiver] = field(default_factory=deque)
    requests: deque[SessionRequest] = field(default_factory=deque)


class Dispatcher:
    def __init__(self, namespace: NamespaceState, commits: GroupCommit, clock: Clock) -> None:
        self._namespace = namespace
        self._commits = commits
        self._clock = clock
        self._consumers: defaultdict[int, _Consumers] = defaultdict(_Consumers)
        self._last_number = 0
        self._alarm: Alarm | None = None
        self._alarm_ms = 0
        # Dispatching calls back into links, which may dispatch again: the outermost call does all the work.
        self._is_dispatching = False
        self._stopped = False

    # -- opening and closing receivers

    def open_receiver(self, place: Place, mode: ReceiveMode, deliver: Deliver, closed: Closed) -> Receiver:
        if place.queue.requires_session:
            raise NotAllowedError(
                f"It is not possible for an entity that requires sessions to create a non-sessionful message receiver "
                f"('{place.entity.path}'). Accept a session."
            )
        return self._add(place, mode, deliver, closed, None)

    def _add(
        self, place: Place, mode: ReceiveMode, deliver: Deliver, closed: Closed, session: MessageSession | None
    ) -> Receiver:
        self._last_number += 1
        number = session.holder if session is not None and session.holder is not None else self._last_number
        receiver = Receiver(number, place, mode, deliver, closed, session, self)
        place.entity.receivers += 1
        self._consumers[place.queue.queue_id].receivers.append(receiver)
        return receiver

    def close_receiver(self, receiver: Receiver) -> None:
        """Close a receiver and release its session, whose messages count as not delivered.

        Locks on other messages stay until they expire or are settled.
        """
        if not receiver.is_open:
            return
        self._remove(receiver)
        session = receiver.session
        if session is not None and session.holder == receiver.number:
            receiver.place.queue.release_session(session, count=False)
        self.finish_operation()

    def _remove(self, receiver: Receiver) -> None:
        receiver.is_open = False
        receiver.credit = 0
        receiver.place.entity.receivers -= 1
        receiver.place.entity.times.accessed_ms = self._clock.now_ms()
        queue = receiver.place.queue
        self._consumers[queue.queue_id].receivers.remove(receiver)
        self._forget_without_consumers(queue)

    def _forget_without_consumers(self, queue: MessageQueue) -> None:
        consumers = self._consumers[queue.queue_id]
        if not consumers.receivers and not consumers.requests:
            del self._consumers[queue.queue_id]

    def close_queues(self, queues: list[MessageQueue], path: str) -> None:
        """Close all receivers of a deleted entity."""
        error = EntityNotFoundError(f"The messaging entity '{path}' was deleted.")
        for queue in queues:
            consumers = self._consumers.get(queue.queue_id)
            if consumers is None:
                continue
            for receiver in list(consumers.receivers):
                self._remove(receiver)
                self._commits.after(partial(receiver.closed, error))
            for request in list(consumers.requests):
                self._end_request(request, error)

    # -- sessions

    def accept_session(self, request: SessionRequest, session_id: str | None, timeout_ms: int) -> Callable[[], None]:
        """Answer the request now or when a session is free. Returns a function that cancels it."""
        try:
            if not self._try_accept(request, session_id):
                now = self._clock.now_ms()
                request.alarm = self._clock.call_at(now + timeout_ms, lambda: self._time_out(request))
                self._consumers[request.place.queue.queue_id].requests.append(request)
        except BrokerError as error:
            request.accepted(error)
        self.finish_operation()
        return lambda: self._end_request(request, None)

    def _try_accept(self, request: SessionRequest, session_id: str | None) -> bool:
        self._last_number += 1
        now = self._clock.now_ms()
        session = self._namespace.accept_session(request.place, session_id, self._last_number, now)
        if session is None:
            return False
        request.is_over = True
        if request.alarm is not None:
            request.alarm.cancel()
        request.accepted(self._add(request.place, request.mode, request.deliver, request.closed, session))
        return True

    def _time_out(self, request: SessionRequest) -> None:
        path = request.place.entity.path
        self._end_request(request, TimeoutExpiredError(f"No session of '{path}' became available in time."))

    def _end_request(self, request: SessionRequest, error: BrokerError | None) -> None:
        if request.is_over:
            return
        request.is_over = True
        if request.alarm is not None:
            request.alarm.cancel()
        queue = request.place.queue
        consumers = self._consumers.get(queue.queue_id)
        if consumers is not None and request in consumers.requests:
            consumers.requests.remove(request)
            self._forget_without_consumers(queue)
        if error is not None:
            request.accepted(error)

    def _close_lost_sessions(self) -> None:
        """Stop deliveries to links that lost their session's lock, and close those links a little later.

        The service takes its time too, so a client that is about to close an idle session does not see an error. The
        session itself is free at once.
        """
        lost = self._namespace.lost_sessions
        while lost:
            queue, session = lost.pop()
            consumers = self._consumers.get(queue.queue_id)
            for receiver in list(consumers.receivers) if consumers is not None else ():
                if receiver.session is session and session.holder != receiver.number:
                    self._remove(receiver)
                    error = SessionLockLostError(
                        f"The session lock on '{session.session_id}' has expired. Accept the session again."
                    )
                    when_ms = self._clock.now_ms() + LOST_SESSION_NOTICE_MS
                    self._clock.call_at(when_ms, partial(receiver.closed, error))

    # -- dispatching

    def dispatch(self, queue: MessageQueue) -> None:
        self._namespace.touched.add(queue)
        self.finish_operation()

    def finish_operation(self) -> None:
        """After an operation: deliver what became ready, set the next alarm, and have the changes written."""
        if self._is_dispatching:
            return
        self._is_dispatching = True
        try:
            self._dispatch_touched()
        finally:
            self._is_dispatching = False
        self._set_alarm()
        if self._namespace.has_changes:
            self._commits.soon()

    def _dispatch_touched(self) -> None:
        touched = self._namespace.touched
        self._close_lost_sessions()
        while touched:
            queue = touched.pop()
            consumers = self._consumers.get(queue.queue_id)
            if consumers is not None:
                self._serve(queue, consumers)
            self._namespace.note_deadline(queue)

    def _serve(self, queue: MessageQueue, consumers: _Consumers) -> None:
        while consumers.requests and queue.first_ready_session():
            request = consumers.requests.popleft()
            if not request.is_over and not self._try_accept(request, None):
                consumers.requests.appendleft(request)
                break
        if queue.requires_session:
            for receiver in list(consumers.receivers):
                while receiver.credit > 0 and receiver.is_open and self._deliver_next(receiver):
                    pass
            return
        waiting = deque(receiver for receiver in consumers.receivers if receiver.credit > 0)
        while waiting and queue.has_ready():
            receiver = waiting.popleft()
            if receiver.credit > 0 and receiver.is_open and self._deliver_next(receiver):
                waiting.append(receiver)
        # Start with another receiver next time.
        consumers.receivers.rotate(-1)

    def _deliver_next(self, receiver: Receiver) -> bool:
        """Deliver the receiver's next message; False when there is none for it."""
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
        delivery = MessageDelivery(token, render(entry, raw), delete, entry.sequence_number)
        self._commits.after(lambda: self._deliver(receiver, entry, delivery, raw))
        return True

    def _deliver(self, receiver: Receiver, entry: QueueEntry, delivery: MessageDelivery, raw: bytes) -> None:
        if receiver.is_open:
            receiver.deliver(delivery)
            return
        # The link closed before the message left, so no client has seen it.
        if delivery.settled:
            self._namespace.requeue(receiver.place, entry, raw)
        elif entry.lock_token == delivery.lock_token:
            receiver.place.queue.release(entry, count=False)
        self.finish_operation()

    # -- time

    def _set_alarm(self) -> None:
        deadline = self._namespace.next_deadline()
        if self._alarm is not None:
            if self._alarm_ms <= deadline:
                return
            self._alarm.cancel()
            self._alarm = None
        if deadline < NEVER_MS and not self._stopped:
            self._alarm_ms = deadline
            self._alarm = self._clock.call_at(deadline, self._wake)

    def _wake(self) -> None:
        self._alarm = None
        now = self._clock.now_ms()
        for queue in self._namespace.due_queues(now):
            self._namespace.advance(queue, now)
            self._namespace.touched.add(queue)
        self.finish_operation()

    def stop(self) -> None:
        self._stopped = True
        if self._alarm is not None:
            self._alarm.cancel()
        for consumers in list(self._consumers.values()):
            for request in list(consumers.requests):
                self._end_request(request, None)


def render(entry: QueueEntry, raw: bytes, *, with_state: bool = False) -> bytes:
    """The message as clients see it: the namespace's own annotations replace those of the sender."""
    annotations: dict[str, object | None] = {
        "x-opt-sequence-number": Long(entry.sequence_number),
        "x-opt-enqueued-time": Timestamp(entry.enqueued_ms),
        "x-opt-locked-until": Timestamp(entry.locked_until_ms) if entry.lock_token else None,
        "x-opt-message-state": Int(entry.state) if with_state or entry.state is not State.ACTIVE else None,
        "x-opt-deadletter-source": entry.origin,
    }
    return for_delivery(raw, delivery_count=entry.delivery_count, annotations=annotations, lock_token=entry.lock_token)
