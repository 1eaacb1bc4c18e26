"""The two kinds of link to an entity: one the client sends on, one it receives on.

OASIS AMQP 1.0, part 2, 2.6.7 flow control and 2.6.12 transferring a message; part 3, 3.4 delivery state; part 4, 4.4
transactional work.

Sending
- A message is answered once, after it is on disk: accepted, or rejected with a full error. The answer is never
  released or modified: the SDK would wait forever.
- Credit is returned with the answer, not on arrival, so a client that respects credit has a bounded number of messages
  in flight. A client that does not is slowed down by not reading from it.

Receiving
- The broker gets the client's credit in portions, and none while the client does not read. That bounds the messages
  that wait in this process for one client, however much credit the client grants.
- A client's disposition is answered with the outcome that was applied, the same one the client asked for, or rejected
  with the reason. A different outcome costs the SDK seconds, a missing answer a minute.
- A closed link gives up its session lock and its place at the queue. Message locks remain until they expire.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from pairbus.amqp.links import IncomingDelivery, Link, OutgoingDelivery
from pairbus.amqp.message import BATCH_FORMAT, split_batch
from pairbus.amqp.outcomes import Accepted, AmqpError, Modified, Rejected, Released, State, Transactional
from pairbus.amqp.types import AmqpDecodeError, Described, Symbol, ULong
from pairbus.embedded.broker import MessageDelivery, ReceiveMode, Receiver
from pairbus.embedded.clock import Alarm
from pairbus.embedded.entities.message import (
    AbandonMessage,
    CompleteMessage,
    DeadLetterMessage,
    DeferMessage,
    ReleaseMessage,
    Settlement,
)
from pairbus.embedded.errors import BrokerError, InvalidError, MessageTooLargeError, NotAllowedError
from pairbus.embedded.faults import SERVER_BUSY, Fault

if TYPE_CHECKING:
    from pairbus.embedded.amqp.connection import ServerConnection

SEND_CREDIT = 1_000
MAX_HUNG = 10 * SEND_CREDIT
"""A client that ignores credit and keeps sending to an entity that hangs is cut at this number of messages."""

SESSION_FILTER = "com.microsoft:session-filter"
LOCKED_UNTIL = Symbol("com.microsoft:locked-until-utc")
OPERATION_TIMEOUT = "com.microsoft:timeout"
DEFAULT_SESSION_TIMEOUT_MS = 65_000
MAX_SESSION_TIMEOUT_MS = 24 * 3_600_000

FEED_RETRY_S = 0.02
FIRST_WINDOW = 32
MAX_WINDOW = 256
QUEUED_BYTES = 4 << 20
"""A window is the number of messages that should add up to this size, going by the sizes seen so far."""

FAULT_ACTIVE = "A fault is switched on."
BUSY = AmqpError(SERVER_BUSY, "The server is busy. Wait 10 seconds and try again.")

_ACCEPTED = Accepted()
_TIMED_OUT = Rejected(AmqpError("com.microsoft:timeout", "The entity did not answer in time."))
_IDLE = AmqpError("amqp:link:detach-forced", "The link is detached because it was idle. Open another one.")
_BATCH_OVERHEAD_BYTES = 4_096
"""Allowed for the envelope of a batch whose messages have exactly the permitted size."""
_TICKS_AT_EPOCH = 621_355_968_000_000_000
_TICKS_PER_MS = 10_000


def amqp_error(error: BrokerError) -> AmqpError:
    return AmqpError(error.condition, error.description)


class LinkEnd:
    """The server's end of a link. The client needs ``right`` on ``path`` for the link to stay open.

    Every kind of link overrides what concerns it; the rest is ignored.
    """

    right: str | None = None
    holding_modes: tuple[str, ...] = ("hang",)
    """The modes of a fault that keep items in ``_hung``."""

    def __init__(self, connection: ServerConnection, link: Link, path: str = "") -> None:
        self.path = path
        self._connection = connection
        self._link = link
        self._hung: list[Any] = []

    def _is_held(
        self, fault: Fault, item: Any, proceed: Callable[[], None], refuse: Callable[[AmqpError], None]
    ) -> bool:
        """Apply a fault to a message, a settlement or a request. False if it is to be handled as usual."""
        match fault.mode:
            case "hang" if len(self._hung) < MAX_HUNG:
                self._hung.append(item)
            case "refuse" | "drop" | "hang":
                self._connection.abort()
            case "error":
                refuse(AmqpError(fault.condition or "amqp:internal-error", FAULT_ACTIVE))
            case "slow":
                asyncio.get_running_loop().call_later((fault.delay_ms or 0) / 1000, proceed)
            case _:
                return False
        return True

    def _take_hung(self) -> list[Any]:
        """The items that hang, if the fault that holds them is over."""
        fault = self._connection.faults.fault_of(self.path)
        if fault is not None and fault.mode in self.holding_modes:
            return []
        hung, self._hung = self._hung, []
        return hung

    def received(self, delivery: IncomingDelivery, raw: bytes, message_format: int) -> None:
        delivery.settle()

    def too_large(self, delivery: IncomingDelivery, size: int) -> None:
        delivery.settle()

    def updated(self, delivery: OutgoingDelivery) -> None:
        delivery.settle()

    def credit_changed(self) -> None:
        return

    def faults_changed(self) -> None:
        return

    def closed(self) -> None:
        return


class SendingLink(LinkEnd):
    """A link on which the client sends to an entity."""

    right: str | None = "Send"
    holding_modes = ("hang", "accept-then-fail")

    def __init__(self, connection: ServerConnection, link: Link, path: str) -> None:
        super().__init__(connection, link, path)
        self._answered = 0
        self._active = True
        self._idle_alarm: Alarm | None = None

    def open(self) -> None:
        limits = self._connection.limits
        if limits.link_idle_ms is not None:
            self._watch_idleness(limits.link_idle_ms)
        self._link.accept(
            properties={Symbol("com.microsoft:max-message-batch-size"): ULong(limits.max_batch_bytes)},
            max_message_size=limits.max_message_bytes,
        )
        self._link.grant(SEND_CREDIT)

    def closed(self) -> None:
        if self._idle_alarm is not None:
            self._idle_alarm.cancel()
            self._idle_alarm = None

    def _watch_idleness(self, idle_ms: int) -> None:
        """Detach the link when no message came during a whole period."""

        def look() -> None:
            if self._active:
                self._watch_idleness(idle_ms)
            else:
                self._detach_as_idle()

        self._active = False
        clock = self._connection.broker.clock
        self._idle_alarm = clock.call_at(clock.now_ms() + idle_ms, look)

    def _detach_as_idle(self) -> None:
        self._link.context = None
        self.closed()
        self._link.close(_IDLE)

    def received(self, delivery: IncomingDelivery, raw: bytes, message_format: int) -> None:
        self._active = True
        connection = self._connection
        fault = connection.faults.fault_of(self.path)
        if fault is None:
            self._store(delivery, raw, message_format)
            return
        if fault.mode == "accept-then-fail":
            self._store_without_answer(delivery, raw, message_format)
            return
        if fault.mode == "slow":
            connection.storing(len(raw))
        reject = partial(self._reject, delivery)
        store_late = partial(self._store_late, delivery, raw, message_format)
        if fault.mode == "throttle" and not connection.faults.lets_through(fault):
            reject(BUSY)
        elif not self._is_held(fault, (delivery, _TIMED_OUT), store_late, reject):
            self._store(delivery, raw, message_format)

    def too_large(self, delivery: IncomingDelivery, size: int) -> None:
        self._answer(delivery, 0, None, _too_large(size, self._connection.limits.max_message_bytes))

    def _store(self, delivery: IncomingDelivery, raw: bytes, message_format: int) -> None:
        size = len(raw)
        txn = None
        if delivery.in_transaction:
            state = delivery.state
            txn = state.txn if isinstance(state, Transactional) else None
        self._connection.storing(size)
        answer = partial(self._answer, delivery, size, txn)
        raws = [raw]
        if message_format == BATCH_FORMAT:
            limit = self._connection.limits.max_batch_bytes
            if size > limit + _BATCH_OVERHEAD_BYTES:
                answer(_too_large(size, limit))
                return
            try:
                raws = split_batch(raw)
            except AmqpDecodeError as error:
                answer(InvalidError(f"The batch is not well formed: {error}."))
                return
            if not raws:
                answer(None)
                return
        self._connection.broker.send(self.path, raws, answer, txn=txn)

    def _answer(self, delivery: IncomingDelivery, size: int, txn: bytes | None, error: BrokerError | None) -> None:
        if size:
            self._connection.stored(size)
        if error is not None:
            delivery.settle(Rejected(amqp_error(error)))
        elif txn is not None:
            delivery.settle(Transactional(txn, _ACCEPTED))
        else:
            delivery.settle()
        self._return_credit()

    def _return_credit(self) -> None:
        self._answered += 1
        if self._answered >= SEND_CREDIT // 2:
            self._link.grant(self._answered)
            self._answered = 0

    def _store_late(self, delivery: IncomingDelivery, raw: bytes, message_format: int) -> None:
        self._connection.stored(len(raw))
        self._store(delivery, raw, message_format)

    def _reject(self, delivery: IncomingDelivery, error: AmqpError) -> None:
        delivery.settle(Rejected(error))
        self._return_credit()

    def _store_without_answer(self, delivery: IncomingDelivery, raw: bytes, message_format: int) -> None:
        try:
            raws = split_batch(raw) if message_format == BATCH_FORMAT else [raw]
        except AmqpDecodeError:
            raws = []
        self._connection.storing(len(raw))

        def stored(error: BrokerError | None) -> None:
            self._connection.stored(len(raw))
            self._hung.append((delivery, _ACCEPTED if error is None else Rejected(amqp_error(error))))
            self.faults_changed()  # the fault may have ended meanwhile

        self._connection.broker.send(self.path, raws, stored)

    def faults_changed(self) -> None:
        fault = self._connection.faults.fault_of(self.path)
        if fault is not None and fault.mode == "idle-detach":
            self._detach_as_idle()
            return
        for delivery, state in self._take_hung():
            delivery.settle(state)
            self._return_credit()


def _too_large(size: int, limit: int) -> MessageTooLargeError:
    return MessageTooLargeError(f"The message has {size} bytes, but the entity accepts only {limit}. Make it smaller.")


class ReceivingLink(LinkEnd):
    """A link on which the client receives from a queue, a subscription, a sub-queue or a session."""

    right: str | None = "Listen"

    def __init__(self, connection: ServerConnection, link: Link, path: str) -> None:
        super().__init__(connection, link, path)
        self._receiver: Receiver | None = None
        self._cancel_wait: Callable[[], None] | None = None
        self._granted = 0
        self._window = FIRST_WINDOW
        self._usual_size = 0.0
        self._feed_due = False
        self._feed_retry: asyncio.TimerHandle | None = None
        self._session_id: str | None = None

    def open(self) -> None:
        """Take a place at the queue, or wait for a session. The attach is answered when there is one."""
        mode = ReceiveMode.RECEIVE_AND_DELETE if self._link.remote_sends_settled else ReceiveMode.PEEK_LOCK
        broker = self._connection.broker
        wants_session, session_id = requested_session(self._link.remote_source.filter)
        if not wants_session:
            self._receiver = broker.open_receiver(self.path, mode, self._deliver, self._ended)
            self._link.accept(max_message_size=self._connection.limits.max_message_bytes)
            return
        timeout_ms = self._link.remote_properties.get(OPERATION_TIMEOUT)
        if not isinstance(timeout_ms, int) or not 0 <= timeout_ms <= MAX_SESSION_TIMEOUT_MS:
            timeout_ms = DEFAULT_SESSION_TIMEOUT_MS
        self._cancel_wait = broker.accept_session(
            self.path, session_id, mode, self._deliver, self._ended, self._session_accepted, timeout_ms
        )

    def _session_accepted(self, result: Receiver | BrokerError) -> None:
        self._cancel_wait = None
        if isinstance(result, BrokerError):
            self._connection.refuse(self._link, amqp_error(result))
            return
        if not self._link.alive:
            result.close()
            return
        self._receiver = result
        self._session_id = result.session_id
        until_ms = result.session.locked_until_ms if result.session is not None else 0
        self._link.accept(
            properties={LOCKED_UNTIL: until_ms * _TICKS_PER_MS + _TICKS_AT_EPOCH},
            source_filter={Symbol(SESSION_FILTER): result.session_id},
            max_message_size=self._connection.limits.max_message_bytes,
        )
        self._feed()

    def closed(self) -> None:
        if self._cancel_wait is not None:
            self._cancel_wait()
            self._cancel_wait = None
        if self._receiver is not None:
            self._receiver.close()
            self._receiver = None

    def _ended(self, error: BrokerError) -> None:
        """The broker closed the receiver: the entity is gone, or the session lock is lost."""
        self._receiver = None
        self._link.close(amqp_error(error))

    # --- deliveries ---------------------------------------------------------------------------------------

    def credit_changed(self) -> None:
        self._feed()

    def faults_changed(self) -> None:
        for delivery in self._take_hung():
            delivery.settle(_TIMED_OUT)
        self._feed()

    def _feed(self) -> None:
        """Pass on to the broker as much of the client's credit as may be in flight now."""
        self._feed_due = False
        if self._feed_retry is not None:
            self._feed_retry.cancel()
            self._feed_retry = None
        receiver = self._receiver
        if receiver is None or not self._link.alive:
            return
        in_flight = self._granted - receiver.credit
        room = max(min(self._link.credit - in_flight, self._window), 0)
        if self._is_full():
            # The client's session takes no more frames, and no event will say when it does: retry soon.
            room = 0
            self._feed_due = True
            self._feed_retry = asyncio.get_running_loop().call_later(FEED_RETRY_S, self._feed)
        elif self._is_blocked():
            room = 0
        if room != receiver.credit:
            self._granted = room + in_flight
            receiver.set_credit(room)
        if self._link.draining and not self._is_full() and not self._is_blocked():
            self._drain(receiver)

    def _drain(self, receiver: Receiver) -> None:
        """Every ready message has been taken. Once they have left, return the remaining credit."""
        if self._granted > receiver.credit:
            return
        receiver.drain()
        self._granted = receiver.credit
        self._link.drained()

    def _is_full(self) -> bool:
        return self._link.queued_bytes > QUEUED_BYTES and not self._connection.protocol.writing_is_paused

    def _is_blocked(self) -> bool:
        """Whether deliveries wait for something whose end is reported to us."""
        if self._connection.protocol.writing_is_paused:
            return True
        fault = self._connection.faults.fault_of(self.path)
        return fault is not None and fault.mode == "hang"

    def _deliver(self, delivery: MessageDelivery) -> None:
        self._granted -= 1
        self._usual_size += (len(delivery.raw) - self._usual_size) / 8
        self._window = max(1, min(MAX_WINDOW, int(QUEUED_BYTES / (self._usual_size + 1))))
        # A settled delivery cannot be settled again: it carries an empty tag, as the service's deliveries do.
        tag = b"" if delivery.settled else delivery.lock_token
        self._link.send(tag, delivery.raw, settled=delivery.settled)
        if not self._feed_due and (self._granted <= self._window // 2 or self._link.draining):
            self._feed_due = True
            asyncio.get_running_loop().call_soon(self._feed)

    # --- settlement ---------------------------------------------------------------------------------------

    def updated(self, delivery: OutgoingDelivery) -> None:
        if delivery.context is not None:
            if delivery.settled:
                delivery.settle()
            return
        state = delivery.state
        if state is None and not delivery.settled:
            return
        delivery.context = "settling"
        fault = self._connection.faults.fault_of(self.path)
        if fault is not None:
            settle_late = partial(self._settle, delivery, state)
            if self._is_held(fault, delivery, settle_late, lambda error: delivery.settle(Rejected(error))):
                return
        self._settle(delivery, state)

    def _settle(self, delivery: OutgoingDelivery, state: State | None) -> None:
        txn, requested = (state.txn, state.outcome) if isinstance(state, Transactional) else (None, state)
        outcome = requested_settlement(requested)
        if outcome is None:
            delivery.settle()
            return
        self._connection.broker.settle(
            self.path,
            (delivery.tag,),
            outcome,
            partial(self._settled, delivery, state),
            session_id=self._session_id,
            txn=txn,
        )

    def _settled(self, delivery: OutgoingDelivery, requested: State | None, error: BrokerError | None) -> None:
        if error is not None:
            delivery.settle(Rejected(amqp_error(error)))
        elif isinstance(requested, Rejected):
            delivery.settle(Rejected())
        else:
            delivery.settle(requested)


def requested_session(filters: dict[Any, Any]) -> tuple[bool, str | None]:
    """Whether a source asks for a session, and for which; None means the next available session."""
    for key, value in filters.items():
        name = key.decode("ascii", "replace") if isinstance(key, bytes) else str(key)
        if name == SESSION_FILTER:
            session_id = value.value if isinstance(value, Described) else value
            if isinstance(session_id, bytes):
                session_id = session_id.decode("utf-8", "replace")
            if session_id is not None and not isinstance(session_id, str):
                kind = type(session_id).__name__
                raise NotAllowedError(f"The session filter is of type {kind}. It must be a string or null.")
            return True, session_id
    return False, None


def requested_settlement(state: State | None) -> Settlement | None:
    """The settlement that a client's disposition asks for."""
    match state:
        case Accepted():
            return CompleteMessage()
        case Released():
            return ReleaseMessage()
        case Modified(_, True, annotations):
            return DeferMessage(dict(annotations))
        case Modified(_, _, annotations):
            return AbandonMessage(dict(annotations))
        case Rejected(error):
            info = dict(error.info) if error is not None else {}
            reason, description = info.pop("DeadLetterReason", None), info.pop("DeadLetterErrorDescription", None)
            return DeadLetterMessage(
                None if reason is None else str(reason), None if description is None else str(description), info
            )
    return None
