"""A link on which a client receives from an entity, a subscription, a sub-queue or a session.

Rules
- The broker gets the client's credit in portions, and none while the client does not read: what waits inside this
  process for one client is bounded, however much credit it gave.
- A client's disposition is answered with the outcome that was applied, the same it asked for, or rejected with the
  reason. A wrong echo costs the SDK seconds, none a minute.
- When the link goes, so do its session's lock and its place at the queue; message locks stay until they expire.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from pairbus.amqp.links import Link, OutgoingDelivery
from pairbus.amqp.outcomes import Accepted, AmqpError, Modified, Rejected, Released, State, Transactional
from pairbus.amqp.types import Described, Symbol
from pairbus.embedded.amqp.ends import QuietEnd, amqp_error
from pairbus.embedded.broker import Delivery, ReceiveMode, Receiver
from pairbus.embedded.entities.message import Abandon, Complete, DeadLetter, Defer, Release, Settlement
from pairbus.embedded.errors import BrokerError, NotAllowedError
from pairbus.embedded.faults import Fault

if TYPE_CHECKING:
    from pairbus.embedded.amqp.connection import ServerConnection

SESSION_FILTER = "com.microsoft:session-filter"
LOCKED_UNTIL = Symbol("com.microsoft:locked-until-utc")
OPERATION_TIMEOUT = "com.microsoft:timeout"
DEFAULT_SESSION_TIMEOUT_MS = 65_000
MAX_SESSION_TIMEOUT_MS = 24 * 3_600_000

LOOK_AGAIN_S = 0.02
FIRST_WINDOW = 32
MAX_WINDOW = 256
QUEUED_BYTES = 4 << 20
"""A window is as many messages as are expected to make up this size, from the sizes seen so far."""

_TICKS_AT_EPOCH = 621_355_968_000_000_000
_TICKS_PER_MS = 10_000


class ReceivingLink(QuietEnd):
    right: str | None = "Listen"

    def __init__(self, connection: ServerConnection, link: Link, path: str) -> None:
        self.path = path
        self._connection = connection
        self._link = link
        self._receiver: Receiver | None = None
        self._cancel_wait: Callable[[], None] | None = None
        self._granted = 0
        self._window = FIRST_WINDOW
        self._usual_size = 0.0
        self._feed_due = False
        self._look_again: asyncio.TimerHandle | None = None
        self._session_id: str | None = None
        self._hung: list[OutgoingDelivery] = []

    def open(self) -> None:
        """Take a place at the queue, or wait for a session; the attach is answered when there is one."""
        mode = ReceiveMode.RECEIVE_AND_DELETE if self._link.remote_sends_settled else ReceiveMode.PEEK_LOCK
        broker = self._connection.broker
        wanted, session_id = session_wanted(self._link.remote_source.filter)
        if not wanted:
            self._receiver = broker.open_receiver(self.path, mode, self._deliver, self._ended)
            self._link.accept(max_message_size=self._connection.limits.max_message_bytes)
            return
        timeout_ms = self._link.remote_properties.get(OPERATION_TIMEOUT)
        if not isinstance(timeout_ms, int) or not 0 <= timeout_ms <= MAX_SESSION_TIMEOUT_MS:
            timeout_ms = DEFAULT_SESSION_TIMEOUT_MS
        self._cancel_wait = broker.accept_session(
            self.path, session_id, mode, self._deliver, self._ended, self._accepted, timeout_ms
        )

    def _accepted(self, result: Receiver | BrokerError) -> None:
        self._cancel_wait = None
        if isinstance(result, BrokerError):
            self._connection.refuse(self._link, amqp_error(result))
            return
        if not self._link.alive:
            result.close()
            return
        self._receiver = result
        self._session_id = result.session_id
        until_ms = result.session_locked_until_ms or 0
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
        """The broker took the place away: the entity is gone, or the session's lock is lost."""
        self._receiver = None
        self._link.close(amqp_error(error))

    # --- giving messages ----------------------------------------------------------------------------------

    def credit_changed(self) -> None:
        self._feed()

    def faults_changed(self) -> None:
        fault = self._connection.faults.fault_of(self.path)
        if fault is None or fault.mode != "hang":
            hung, self._hung = self._hung, []
            for delivery in hung:
                delivery.settle(Rejected(AmqpError("com.microsoft:timeout", "The entity did not answer in time.")))
        self._feed()

    def _feed(self) -> None:
        """Hand the broker as much of the client's credit as may be in flight now."""
        self._feed_due = False
        if self._look_again is not None:
            self._look_again.cancel()
            self._look_again = None
        receiver = self._receiver
        if receiver is None or not self._link.alive:
            return
        in_flight = self._granted - receiver.credit
        room = max(min(self._link.credit - in_flight, self._window), 0)
        if self._is_full():
            # The client's session takes no more frames. Nothing tells when it does again: look a little later.
            room = 0
            self._feed_due = True
            self._look_again = asyncio.get_running_loop().call_later(LOOK_AGAIN_S, self._feed)
        elif self._is_blocked():
            room = 0
        if room != receiver.credit:
            self._granted = room + in_flight
            receiver.set_credit(room)
        if self._link.draining and not self._is_full() and not self._is_blocked():
            self._drain(receiver)

    def _drain(self, receiver: Receiver) -> None:
        """All that is ready was taken by now; when it has left, the rest of the credit goes back."""
        if self._granted > receiver.credit:
            return
        receiver.drain()
        self._granted = receiver.credit
        self._link.drained()

    def _is_full(self) -> bool:
        return self._link.queued_bytes > QUEUED_BYTES and not self._connection.protocol.writing_is_paused

    def _is_blocked(self) -> bool:
        """Nothing may be delivered for a reason whose end we are told of."""
        if self._connection.protocol.writing_is_paused:
            return True
        fault = self._connection.faults.fault_of(self.path)
        return fault is not None and fault.mode == "hang"

    def _deliver(self, delivery: Delivery) -> None:
        self._granted -= 1
        self._usual_size += (len(delivery.raw) - self._usual_size) / 8
        self._window = max(1, min(MAX_WINDOW, int(QUEUED_BYTES / (self._usual_size + 1))))
        # Nobody can settle what is settled already: such a delivery carries an empty tag, as the service's do.
        tag = b"" if delivery.settled else delivery.lock_token
        self._link.send(tag, delivery.raw, settled=delivery.settled)
        if not self._feed_due and (self._granted <= self._window // 2 or self._link.draining):
            self._feed_due = True
            asyncio.get_running_loop().call_soon(self._feed)

    # --- being answered -----------------------------------------------------------------------------------

    def updated(self, delivery: OutgoingDelivery) -> None:
        if delivery.context is not None:
            if delivery.remotely_settled:
                delivery.settle()
            return
        state = delivery.state
        if state is None and not delivery.remotely_settled:
            return
        delivery.context = "answered"
        fault = self._connection.faults.fault_of(self.path)
        if fault is not None and self._faulty(fault, delivery, state):
            return
        self._settle(delivery, state)

    def _settle(self, delivery: OutgoingDelivery, state: State | None) -> None:
        txn, wanted = None, state
        if isinstance(state, Transactional):
            txn, wanted = state.txn, state.outcome
        outcome = outcome_wanted(wanted)
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

    def _settled(self, delivery: OutgoingDelivery, asked: State | None, error: BrokerError | None) -> None:
        if error is not None:
            delivery.settle(Rejected(amqp_error(error)))
        elif isinstance(asked, Rejected):
            delivery.settle(Rejected())
        else:
            delivery.settle(asked)

    def _faulty(self, fault: Fault, delivery: OutgoingDelivery, state: State | None) -> bool:
        match fault.mode:
            case "refuse" | "drop":
                self._connection.abort()
            case "hang":
                self._hung.append(delivery)
            case "error":
                condition = fault.condition or "amqp:internal-error"
                delivery.settle(Rejected(AmqpError(condition, "A fault was switched on.")))
            case "slow":
                asyncio.get_running_loop().call_later((fault.delay_ms or 0) / 1000, self._settle, delivery, state)
            case _:
                return False
        return True


def session_wanted(filters: dict[Any, Any]) -> tuple[bool, str | None]:
    """Whether a source asks for a session, and which: None is the next that is available."""
    for key, value in filters.items():
        name = key.decode("ascii", "replace") if isinstance(key, bytes) else str(key)
        if name == SESSION_FILTER:
            plain = value.value if isinstance(value, Described) else value
            if isinstance(plain, bytes):
                plain = plain.decode("utf-8", "replace")
            if plain is not None and not isinstance(plain, str):
                raise NotAllowedError(
                    f"The session filter must be a session id as text or null, not {type(plain).__name__}."
                )
            return True, plain
    return False, None


def outcome_wanted(state: State | None) -> Settlement | None:
    """What a client's disposition asks the broker to do."""
    match state:
        case Accepted():
            return Complete()
        case Released():
            return Release()
        case Modified(_, True, annotations):
            return Defer(dict(annotations))
        case Modified(_, _, annotations):
            return Abandon(dict(annotations))
        case Rejected(error):
            info = dict(error.info) if error is not None else {}
            reason, description = info.pop("DeadLetterReason", None), info.pop("DeadLetterErrorDescription", None)
            return DeadLetter(
                None if reason is None else str(reason), None if description is None else str(description), info
            )
    return None
