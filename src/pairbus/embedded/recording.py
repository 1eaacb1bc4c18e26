"""A broker that keeps a ledger of its own: what all clients did, as the namespace saw it.

One record for each message of each operation that reached the broker, `failed` where it was refused. Not recorded is
what no message is part of (locks, session state, reading descriptions), a receive that brought nothing (a link that
waits is no operation of the namespace's), and what a fault kept from arriving. A namespace knows a message by its id
alone: who sent it, and whether the syphon did, is in the records of the clients.

Steps of a transaction are recorded when it is committed, and not at all when it is rolled back.
"""

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from pairbus.amqp.message import read_facts
from pairbus.amqp.types import AmqpDecodeError
from pairbus.embedded.broker import Broker, Done
from pairbus.embedded.clock import Clock
from pairbus.embedded.entities.descriptions import QueueDescription, SubscriptionDescription, TopicDescription
from pairbus.embedded.entities.message import (
    PING_CONTENT_TYPE,
    Abandon,
    Complete,
    DeadLetter,
    Defer,
    IncomingMessage,
    Release,
    Settlement,
)
from pairbus.embedded.errors import BrokerError, Limits
from pairbus.embedded.receivers import Deliver, Delivery, ReceiveMode
from pairbus.embedded.store import Store
from pairbus.ledger import CompletedOperation, LedgerWriter, Operation, error_name, is_backlog_queue, outcome_of

T = TypeVar("T")
Note = Callable[[BrokerError | None], None]

_PING = PING_CONTENT_TYPE.encode()
_SETTLEMENTS: dict[type[Settlement], Operation] = {
    Complete: Operation.COMPLETE,
    Release: Operation.ABANDON,
    Abandon: Operation.ABANDON,
    Defer: Operation.DEFER,
    DeadLetter: Operation.DEAD_LETTER,
}


class RecordingBroker(Broker):
    """Does what a broker does, and records it into `ledger` under the namespace's name."""

    def __init__(self, store: Store, clock: Clock, limits: Limits, name: str, ledger: LedgerWriter) -> None:
        super().__init__(store, clock, limits)
        self._name = name
        self._ledger = ledger
        self._uncommitted: dict[bytes, list[Note]] = {}

    # -- sending

    def send(self, path: str, raws: Sequence[bytes], done: Done, *, txn: bytes | None = None) -> None:
        ids = _ids(raws)
        if is_backlog_queue(path):
            operation = Operation.DIVERT
        else:
            operation = Operation.PING if len(raws) == 1 and _is_ping(raws[0]) else Operation.SEND
        note = self._note(operation, path, ids, [len(raw) for raw in raws])
        super().send(path, raws, self._then(note, done, txn), txn=txn)

    def schedule(
        self,
        path: str,
        raws: Sequence[bytes],
        done: Callable[[list[int] | BrokerError], None],
        *,
        txn: bytes | None = None,
    ) -> None:
        note = self._note(Operation.SCHEDULE, path, _ids(raws), [len(raw) for raw in raws])
        super().schedule(path, raws, _answered(note, done), txn=txn)

    def cancel_scheduled(self, path: str, sequence_numbers: Sequence[int], done: Done) -> None:
        note = self._note(Operation.CANCEL, path, [None] * len(sequence_numbers))
        super().cancel_scheduled(path, sequence_numbers, self._then(note, done))

    # -- receiving

    def _wrap_delivery(self, path: str, deliver: Deliver) -> Deliver:
        def noting(delivery: Delivery) -> None:
            self._took(path, [delivery.raw], gone=delivery.settled)
            deliver(delivery)

        return noting

    def receive_deferred(
        self,
        path: str,
        sequence_numbers: Sequence[int],
        mode: ReceiveMode,
        session_id: str | None,
        done: Callable[[list[tuple[bytes, bytes]] | BrokerError], None],
    ) -> None:
        def noting(result: list[tuple[bytes, bytes]] | BrokerError) -> None:
            if not isinstance(result, BrokerError):
                self._took(path, [raw for _, raw in result], gone=mode is ReceiveMode.RECEIVE_AND_DELETE)
            done(result)

        super().receive_deferred(path, sequence_numbers, mode, session_id, noting)

    def _took(self, path: str, raws: Sequence[bytes], *, gone: bool) -> None:
        ids = _ids(raws)
        self._note(Operation.RECEIVE, path, ids, [len(raw) for raw in raws])(None)
        if gone:
            self._note(Operation.COMPLETE, path, ids)(None)

    def peek(self, path: str, from_sequence_number: int, count: int, session_id: str | None) -> list[bytes]:
        raws = super().peek(path, from_sequence_number, count, session_id)
        self._note(Operation.PEEK, path, _ids(raws), [len(raw) for raw in raws])(None)
        return raws

    # -- settling

    def settle(
        self,
        path: str,
        lock_tokens: Sequence[bytes],
        outcome: Settlement,
        done: Done,
        *,
        session_id: str | None = None,
        txn: bytes | None = None,
    ) -> None:
        note = self._note(_SETTLEMENTS[type(outcome)], path, self._ids_held(path, lock_tokens))
        super().settle(path, lock_tokens, outcome, self._then(note, done, txn), session_id=session_id, txn=txn)

    def _ids_held(self, path: str, lock_tokens: Sequence[bytes]) -> list[str | None]:
        """Looked up before the messages are gone; not known for locks that are lost."""
        try:
            now = self.clock.now_ms()
            held = self.namespace.locked_entries(self.namespace.place(path, now), lock_tokens, now)
        except BrokerError:
            return [None] * len(lock_tokens)
        return _ids([self.namespace.payloads.read(entry.payload_id) for entry in held])

    def delete_batch(
        self, path: str, count: int, enqueued_before_ms: int, done: Callable[[int | BrokerError], None]
    ) -> None:
        def noting(result: int | BrokerError) -> None:
            if not isinstance(result, BrokerError):
                self._note(Operation.COMPLETE, path, [None] * result)(None)
            done(result)

        super().delete_batch(path, count, enqueued_before_ms, noting)

    def discharge(self, txn: bytes, fail: bool, done: Done) -> None:
        notes = self._uncommitted.pop(txn, [])

        def noting(error: BrokerError | None) -> None:
            if error is None and not fail:
                for note in notes:
                    note(None)
            done(error)

        super().discharge(txn, fail, noting)

    def abandon_transaction(self, txn: bytes) -> None:
        self._uncommitted.pop(txn, None)
        super().abandon_transaction(txn)

    # -- administration

    async def create_queue(self, description: QueueDescription) -> QueueDescription:
        created = await super().create_queue(description)
        self._note(Operation.CREATE, description.name, [None])(None)
        return created

    async def create_topic(self, description: TopicDescription) -> TopicDescription:
        created = await super().create_topic(description)
        self._note(Operation.CREATE, description.name, [None])(None)
        return created

    async def create_subscription(self, description: SubscriptionDescription) -> SubscriptionDescription:
        created = await super().create_subscription(description)
        self._note(Operation.CREATE, f"{description.topic}/Subscriptions/{description.name}", [None])(None)
        return created

    # -- small steps

    def _note(
        self, operation: Operation, path: str, ids: Sequence[str | None], sizes: Sequence[int] | None = None
    ) -> Note:
        """What records the operation once it is known how it ended; it begins now."""
        begun = time.monotonic_ns()

        def note(error: BrokerError | None) -> None:
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

        return note

    def _then(self, note: Note, done: Done, txn: bytes | None = None) -> Done:
        def noting(error: BrokerError | None) -> None:
            if txn is None or error is not None:
                note(error)
            else:
                self._uncommitted.setdefault(txn, []).append(note)
            done(error)

        return noting


def _answered(note: Note, done: Callable[[T | BrokerError], None]) -> Callable[[T | BrokerError], None]:
    def noting(result: T | BrokerError) -> None:
        note(result if isinstance(result, BrokerError) else None)
        done(result)

    return noting


def _is_ping(raw: bytes) -> bool:
    if _PING not in raw:  # the usual case, for less than reading the message would cost
        return False
    try:
        return IncomingMessage.from_raw(raw).is_ping
    except AmqpDecodeError:
        return False


def _ids(raws: Sequence[bytes]) -> list[str | None]:
    return [_id(raw) for raw in raws]


def _id(raw: bytes) -> str | None:
    try:
        return read_facts(raw).message_key
    except AmqpDecodeError:
        return None
