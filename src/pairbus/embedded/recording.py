"""A broker that records every operation in a ledger, as the namespace saw it.

There is one record for each message of each operation that reached the broker, with the outcome `failed` if it was
refused. Not recorded: operations without messages (locks, session state, reading descriptions), receives that return
nothing, and operations that a fault kept from arriving. A namespace identifies a message only by its id; who sent it,
and whether that was the syphon, is in the records of the clients.

The steps of a transaction are recorded when it commits, and not at all when it is rolled back.
"""

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from pairbus.amqp.message import read_facts
from pairbus.amqp.types import AmqpDecodeError
from pairbus.embedded.broker import Broker, Done
from pairbus.embedded.clock import Clock
from pairbus.embedded.entities.message import (
    PING_CONTENT_TYPE,
    AbandonMessage,
    CompleteMessage,
    DeadLetterMessage,
    DeferMessage,
    IncomingMessage,
    ReleaseMessage,
    Settlement,
)
from pairbus.embedded.errors import BrokerError, Limits
from pairbus.embedded.receivers import Deliver, MessageDelivery, ReceiveMode
from pairbus.embedded.store import Store
from pairbus.ledger import CompletedOperation, LedgerWriter, Operation, error_name, is_backlog_queue, outcome_of

# Records an operation, given the error that refused it.
Record = Callable[[BrokerError | None], None]

T = TypeVar("T")

_PING = PING_CONTENT_TYPE.encode()
_SETTLEMENTS: dict[type[Settlement], Operation] = {
    CompleteMessage: Operation.COMPLETE,
    ReleaseMessage: Operation.ABANDON,
    AbandonMessage: Operation.ABANDON,
    DeferMessage: Operation.DEFER,
    DeadLetterMessage: Operation.DEAD_LETTER,
}


class RecordingBroker(Broker):
    """A broker that records its operations in `ledger`, under the namespace's name."""

    def __init__(self, store: Store, clock: Clock, limits: Limits, name: str, ledger: LedgerWriter) -> None:
        super().__init__(store, clock, limits)
        self._name = name
        self._ledger = ledger
        self._uncommitted: dict[bytes, list[Record]] = {}

    # -- sending

    def send(self, path: str, raws: Sequence[bytes], done: Done, *, txn: bytes | None = None) -> None:
        if is_backlog_queue(path):
            operation = Operation.DIVERT
        else:
            operation = Operation.PING if len(raws) == 1 and _is_ping(raws[0]) else Operation.SEND
        record = self._begin_with_messages(operation, path, raws)
        super().send(path, raws, self._record_then(record, done, txn), txn=txn)

    def schedule(self, path: str, raws: Sequence[bytes], done: Callable[[list[int] | BrokerError], None]) -> None:
        record = self._begin_with_messages(Operation.SCHEDULE, path, raws)
        super().schedule(path, raws, self._record_then(record, done))

    def cancel_scheduled(self, path: str, sequence_numbers: Sequence[int], done: Done) -> None:
        record = self._begin(Operation.CANCEL, path, [None] * len(sequence_numbers))
        super().cancel_scheduled(path, sequence_numbers, self._record_then(record, done))

    # -- receiving

    def _wrap_delivery(self, path: str, deliver: Deliver) -> Deliver:
        def record_and_deliver(delivery: MessageDelivery) -> None:
            self._record_receive(path, [delivery.raw], deleted=delivery.settled)
            deliver(delivery)

        return record_and_deliver

    def receive_deferred(
        self,
        path: str,
        sequence_numbers: Sequence[int],
        mode: ReceiveMode,
        session_id: str | None,
        done: Callable[[list[tuple[bytes, bytes]] | BrokerError], None],
    ) -> None:
        def record(result: list[tuple[bytes, bytes]]) -> None:
            self._record_receive(path, [raw for _, raw in result], deleted=mode is ReceiveMode.RECEIVE_AND_DELETE)

        super().receive_deferred(path, sequence_numbers, mode, session_id, _on_success(record, done))

    def _record_receive(self, path: str, raws: Sequence[bytes], *, deleted: bool) -> None:
        self._begin_with_messages(Operation.RECEIVE, path, raws)(None)
        if deleted:
            self._begin(Operation.COMPLETE, path, _ids(raws))(None)

    def peek(self, path: str, from_sequence_number: int, count: int, session_id: str | None) -> list[bytes]:
        raws = super().peek(path, from_sequence_number, count, session_id)
        self._begin_with_messages(Operation.PEEK, path, raws)(None)
        return raws

    # -- settling

    def settle(
        self,
        path: str,
        lock_tokens: Sequence[bytes],
        settlement: Settlement,
        done: Done,
        *,
        session_id: str | None = None,
        txn: bytes | None = None,
    ) -> None:
        record = self._begin(_SETTLEMENTS[type(settlement)], path, self._locked_ids(path, lock_tokens))
        answer = self._record_then(record, done, txn)
        super().settle(path, lock_tokens, settlement, answer, session_id=session_id, txn=txn)

    def _locked_ids(self, path: str, lock_tokens: Sequence[bytes]) -> list[str | None]:
        """The ids of the messages to settle, read before they are gone. None for lost locks."""
        try:
            now = self.clock.now_ms()
            entries = self.namespace.locked_entries(self.namespace.place(path, now), lock_tokens, now)
        except BrokerError:
            return [None] * len(lock_tokens)
        return _ids([self.namespace.payloads.read(entry.payload_id) for entry in entries])

    def delete_batch(
        self, path: str, count: int, enqueued_before_ms: int, done: Callable[[int | BrokerError], None]
    ) -> None:
        def record(deleted: int) -> None:
            self._begin(Operation.COMPLETE, path, [None] * deleted)(None)

        super().delete_batch(path, count, enqueued_before_ms, _on_success(record, done))

    def discharge(self, txn: bytes, fail: bool, done: Done) -> None:
        records = self._uncommitted.pop(txn, [])

        def record_and_answer(error: BrokerError | None) -> None:
            if error is None and not fail:
                for record in records:
                    record(None)
            done(error)

        super().discharge(txn, fail, record_and_answer)

    # -- administration

    def _created(self, path: str) -> None:
        self._begin(Operation.CREATE, path, [None])(None)

    # -- writing records

    def _begin_with_messages(self, operation: Operation, path: str, raws: Sequence[bytes]) -> Record:
        return self._begin(operation, path, _ids(raws), [len(raw) for raw in raws])

    def _begin(
        self, operation: Operation, path: str, ids: Sequence[str | None], sizes: Sequence[int] | None = None
    ) -> Record:
        """Start timing an operation. Returns the function that records how it ended."""
        begun = time.monotonic_ns()

        def record(error: BrokerError | None) -> None:
            self._ledger.record(
                CompletedOperation(
                    operation,
                    self._name,
                    path.strip("/"),
                    ids,
                    sizes,
                    outcome=outcome_of(error),
                    error=error_name(error),
                    latency_us=(time.monotonic_ns() - begun) // 1000,
                )
            )

        return record

    def _record_then(
        self, record: Record, done: Callable[[T | BrokerError], None], txn: bytes | None = None
    ) -> Callable[[T | BrokerError], None]:
        """Record, or in a transaction keep the record until it commits, and then call `done`."""

        def record_and_answer(result: T | BrokerError) -> None:
            error = result if isinstance(result, BrokerError) else None
            if txn is None or error is not None:
                record(error)
            else:
                self._uncommitted.setdefault(txn, []).append(record)
            done(result)

        return record_and_answer


def _on_success(
    record: Callable[[T], None], done: Callable[[T | BrokerError], None]
) -> Callable[[T | BrokerError], None]:
    def record_and_answer(result: T | BrokerError) -> None:
        if not isinstance(result, BrokerError):
            record(result)
        done(result)

    return record_and_answer


def _is_ping(raw: bytes) -> bool:
    if _PING not in raw:  # cheaper than reading every message
        return False
    try:
        return IncomingMessage.from_raw(raw).is_ping
    except AmqpDecodeError:
        return False


def _ids(raws: Sequence[bytes]) -> list[str | None]:
    ids: list[str | None] = []
    for raw in raws:
        try:
            ids.append(read_facts(raw).message_key)
        except AmqpDecodeError:
            ids.append(None)
    return ids
