"""A link on which a client sends to an entity.

Rules
- A message is answered once, after it is on disk: accepted, or rejected with a full error. Released and modified are
  never answered: the SDK waits for ever on them.
- Credit comes back with the answer, not with the receipt: a client that respects credit has a bounded number of
  messages in flight. One that does not is slowed down by not being read from.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from pairbus.amqp.links import IncomingDelivery, Link
from pairbus.amqp.message import BATCH_FORMAT, split_batch
from pairbus.amqp.outcomes import Accepted, AmqpError, Rejected, Transactional
from pairbus.amqp.types import AmqpDecodeError, Symbol, ULong
from pairbus.embedded.amqp.ends import QuietEnd, amqp_error
from pairbus.embedded.errors import BrokerError, InvalidError, MessageTooLargeError
from pairbus.embedded.faults import SERVER_BUSY, Fault

if TYPE_CHECKING:
    from pairbus.embedded.amqp.connection import ServerConnection

CREDIT = 1_000
MAX_HUNG = 10 * CREDIT
"""A client that goes on sending to an entity that hangs, without regard to credit, is cut off here."""
_ACCEPTED = Accepted()


class SendingLink(QuietEnd):
    right: str | None = "Send"

    def __init__(self, connection: ServerConnection, link: Link, path: str) -> None:
        self.path = path
        self._connection = connection
        self._link = link
        self._answered = 0
        self._hung: list[tuple[IncomingDelivery, Rejected | Accepted]] = []

    def open(self) -> None:
        limits = self._connection.limits
        self._link.accept(
            properties={Symbol("com.microsoft:max-message-batch-size"): ULong(limits.max_batch_bytes)},
            max_message_size=limits.max_message_bytes,
        )
        self._link.grant(CREDIT)

    def received(self, delivery: IncomingDelivery, raw: bytes, message_format: int) -> None:
        faults = self._connection.faults
        fault = faults.fault_of(self.path)
        if fault is not None and self._faulty(fault, delivery, raw, message_format):
            return
        self._store(delivery, raw, message_format)

    def received_too_much(self, delivery: IncomingDelivery, size: int) -> None:
        self._answer(
            delivery, 0, None, MessageTooLargeError(_too_large(size, self._connection.limits.max_message_bytes))
        )

    def _store(self, delivery: IncomingDelivery, raw: bytes, message_format: int) -> None:
        size = len(raw)
        txn = None
        if delivery.in_transaction:
            state = delivery.state
            txn = state.txn if isinstance(state, Transactional) else None
        self._connection.takes(size)
        answer = partial(self._answer, delivery, size, txn)
        limits = self._connection.limits
        if message_format == BATCH_FORMAT:
            if size > limits.max_batch_bytes + _BATCH_ROOM:
                answer(MessageTooLargeError(_too_large(size, limits.max_batch_bytes)))
                return
            try:
                raws = split_batch(raw)
            except AmqpDecodeError as error:
                answer(InvalidError(f"The batch is not well formed: {error}."))
                return
            if not raws:
                answer(None)
                return
        else:
            raws = [raw]
        self._connection.broker.send(self.path, raws, answer, txn=txn)

    def _answer(self, delivery: IncomingDelivery, size: int, txn: bytes | None, error: BrokerError | None) -> None:
        if size:
            self._connection.took(size)
        if error is not None:
            delivery.settle(Rejected(amqp_error(error)))
        elif txn is not None:
            delivery.settle(Transactional(txn, _ACCEPTED))
        else:
            delivery.settle()
        self._give_back_credit()

    def _give_back_credit(self) -> None:
        self._answered += 1
        if self._answered >= CREDIT // 2:
            self._link.grant(self._answered)
            self._answered = 0

    # --- faults -------------------------------------------------------------------------------------------

    def _faulty(self, fault: Fault, delivery: IncomingDelivery, raw: bytes, message_format: int) -> bool:
        """Do what the fault says; False if the message is to be stored as usual."""
        connection = self._connection
        match fault.mode:
            case "refuse" | "drop":
                connection.abort()
            case "hang" if len(self._hung) < MAX_HUNG:
                self._hung.append((delivery, _TIMED_OUT))
            case "hang":
                connection.abort()
            case "error":
                self._reject(delivery, AmqpError(fault.condition or "amqp:internal-error", "A fault was switched on."))
            case "throttle":
                if connection.faults.lets_through(fault):
                    return False
                self._reject(delivery, AmqpError(SERVER_BUSY, "The server is busy. Wait 10 seconds and try again."))
            case "slow":
                connection.takes(len(raw))
                asyncio.get_running_loop().call_later(
                    (fault.delay_ms or 0) / 1000, self._store_late, delivery, raw, message_format
                )
            case "accept-then-fail":
                self._store_silently(delivery, raw, message_format)
        return True

    def _store_late(self, delivery: IncomingDelivery, raw: bytes, message_format: int) -> None:
        self._connection.took(len(raw))
        self._store(delivery, raw, message_format)

    def _reject(self, delivery: IncomingDelivery, error: AmqpError) -> None:
        delivery.settle(Rejected(error))
        self._give_back_credit()

    def _store_silently(self, delivery: IncomingDelivery, raw: bytes, message_format: int) -> None:
        try:
            raws = split_batch(raw) if message_format == BATCH_FORMAT else [raw]
        except AmqpDecodeError:
            raws = []
        self._connection.takes(len(raw))

        def stored(error: BrokerError | None) -> None:
            self._connection.took(len(raw))
            self._hung.append((delivery, _ACCEPTED if error is None else Rejected(amqp_error(error))))
            self.faults_changed()  # the fault may have ended while the message was being stored

        self._connection.broker.send(self.path, raws, stored)

    def faults_changed(self) -> None:
        """The fault is over, perhaps: whoever still waits for an answer gets one now."""
        fault = self._connection.faults.fault_of(self.path)
        if fault is not None and fault.mode in ("hang", "accept-then-fail"):
            return
        waiting, self._hung = self._hung, []
        for delivery, state in waiting:
            delivery.settle(state)
            self._give_back_credit()


_BATCH_ROOM = 4_096
"""The envelope around a batch that is exactly as large as allowed."""

_TIMED_OUT = Rejected(AmqpError("com.microsoft:timeout", "The entity did not answer in time."))


def _too_large(size: int, limit: int) -> str:
    return f"The message has {size} bytes; the entity takes {limit} at most. Send a smaller one."
