"""The namespace at work: the pure core, its disk and its receivers behind one set of operations.

Everything runs on one asyncio loop. An operation succeeds, or it raises a `BrokerError` or passes it to its `done`
callback. `done` is called once the change is on disk. These are callbacks rather than tasks because the AMQP layer uses
them for every message.
"""

import asyncio
import logging
import secrets
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar, cast
from uuid import uuid4

from pairbus.amqp.message import with_message_id
from pairbus.amqp.types import AmqpDecodeError
from pairbus.embedded.clock import Alarm, Clock, SystemClock
from pairbus.embedded.entities.descriptions import (
    FOREVER_MS,
    AuthorizationRule,
    EntityDescription,
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from pairbus.embedded.entities.entity import Entity, EntityTimes, QueueEntity
from pairbus.embedded.entities.message import IncomingMessage, QueueEntry, Settlement
from pairbus.embedded.entities.namespace import MessageCounts, NamespaceState, Place
from pairbus.embedded.entities.paths import parse_address
from pairbus.embedded.errors import BrokerError, InvalidError, Limits, StoreFailedError
from pairbus.embedded.receivers import (
    Closed,
    Deliver,
    Dispatcher,
    MessageDelivery,
    ReceiveMode,
    Receiver,
    SessionRequest,
    render,
)
from pairbus.embedded.store import GroupCommit, Store
from pairbus.embedded.transactions import Transactions, TransactionStep

__all__ = ["Broker", "MessageDelivery", "ReceiveMode", "Receiver"]

log = logging.getLogger(__name__)

T = TypeVar("T")
D = TypeVar("D", bound=EntityDescription)
Done = Callable[[BrokerError | None], None]

MAX_PEEK_BYTES = 1024 * 1024
IDLE_CHECK_MS = 1_000


class Broker:
    def __init__(self, store: Store, clock: Clock | None = None, limits: Limits | None = None) -> None:
        self.rules_listeners: set[Callable[[], None]] = set()
        """Called when authorization rules may have changed: of the namespace, or with an updated or deleted entity."""
        self.clock = clock or SystemClock()
        self.limits = limits or Limits()
        self._store = store
        self.namespace = NamespaceState(store.cache, secrets.token_bytes(8), self.limits)
        store.load(self.namespace)
        self.namespace.registry.start_idle_times(self.clock.now_ms())
        self._commits = GroupCommit(self.namespace, store)
        self._dispatcher = Dispatcher(self.namespace, self._commits, self.clock)
        self._transactions = Transactions(self.limits)
        self._idle_alarm: Alarm | None = None
        self._idle_watch_due = False
        self._dispatcher.finish_operation()
        self._watch_idle()

    async def close(self) -> None:
        """Stop. Everything decided is on disk when this returns."""
        self._dispatcher.stop()
        if self._idle_alarm is not None:
            self._idle_alarm.cancel()
        await self._commits.close()
        try:
            if self.is_committing:
                self._store.write_access_times(self.namespace.registry.access_times())
        except sqlite3.Error as error:
            log.warning("cannot write the times of last access: %s", error)
        finally:
            self._store.close()

    @property
    def is_committing(self) -> bool:
        """False while the disk refuses what the namespace writes."""
        return not self._commits.failing

    # -- sending

    def send(self, path: str, raws: Sequence[bytes], done: Done, *, txn: bytes | None = None) -> None:
        try:
            messages = self._incoming(raws)
            if txn is not None:
                self._transactions.add(txn, self._send_step(path, messages), self.clock.now_ms())
                done(None)
                return
            self.namespace.send(path, messages, self.clock.now_ms())
        except BrokerError as error:
            done(error)
            return
        self._answer_after_commit(done, None)

    def _send_step(self, path: str, messages: Sequence[IncomingMessage]) -> TransactionStep:
        router = self.namespace.router
        return TransactionStep(
            lambda now: router.check(router.sendable(path), messages),
            lambda now: _discard(router.send(router.sendable(path), messages, now)),
        )

    def _incoming(self, raws: Sequence[bytes]) -> list[IncomingMessage]:
        if not self.is_committing:
            raise StoreFailedError("The namespace cannot write to its disk. Try again later.")
        if len(raws) > self.limits.max_batch_messages:
            # One batch is stored in one step, during which nobody else is served.
            most = self.limits.max_batch_messages
            raise InvalidError(f"The batch has {len(raws)} messages; at most {most} are allowed. Send several batches.")
        try:
            return [self._with_id(IncomingMessage.from_raw(raw)) for raw in raws]
        except AmqpDecodeError as error:
            raise InvalidError(f"The message is malformed: {error}.") from None

    @staticmethod
    def _with_id(message: IncomingMessage) -> IncomingMessage:
        """Every message needs an id, as in the service: the JavaScript SDK tracks its locks by message id."""
        if message.facts.message_id is not None:
            return message
        return IncomingMessage.from_raw(with_message_id(message.raw, uuid4().hex))

    def schedule(self, path: str, raws: Sequence[bytes], done: Callable[[list[int] | BrokerError], None]) -> None:
        """Pass the sequence numbers to `done`: 0 for a duplicate, and for a message that is due and went elsewhere."""
        self._run(done, lambda: self.namespace.send(path, self._incoming(raws), self.clock.now_ms()))

    def cancel_scheduled(self, path: str, sequence_numbers: Sequence[int], done: Done) -> None:
        self._run(done, lambda: self.namespace.cancel_scheduled(path, sequence_numbers, self.clock.now_ms()))

    # -- receiving

    def open_receiver(self, path: str, mode: ReceiveMode, deliver: Deliver, closed: Closed) -> Receiver:
        place = self.namespace.receivable(path, self.clock.now_ms())
        receiver = self._dispatcher.open_receiver(place, mode, self._wrap_delivery(path, deliver), closed)
        self._dispatcher.finish_operation()
        return receiver

    def accept_session(
        self,
        path: str,
        session_id: str | None,
        mode: ReceiveMode,
        deliver: Deliver,
        closed: Closed,
        accepted: Callable[[Receiver | BrokerError], None],
        timeout_ms: int,
    ) -> Callable[[], None]:
        """Call `accepted` with a receiver or the reason there is none. Returns a function that cancels the request."""
        try:
            place = self.namespace.receivable(path, self.clock.now_ms())
        except BrokerError as error:
            accepted(error)
            return lambda: None
        request = SessionRequest(place, mode, self._wrap_delivery(path, deliver), closed, accepted)
        return self._dispatcher.accept_session(request, session_id, timeout_ms)

    def _wrap_delivery(self, path: str, deliver: Deliver) -> Deliver:
        """The callback for deliveries from `path`; a subclass may wrap the receiver's own."""
        return deliver

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
        def check(now: int) -> tuple[Place, list[QueueEntry]]:
            place = self.namespace.place(path, now)
            self.namespace.check_settlement(place, settlement)
            return place, self.namespace.locked_entries(place, lock_tokens, now, session_id)

        def apply(now: int) -> None:
            place, entries = check(now)
            self.namespace.settle(place, entries, settlement, now)

        if txn is None:
            self._run(done, lambda: apply(self.clock.now_ms()))
            return
        step = TransactionStep(lambda now: _discard(check(now)), apply, frozenset(lock_tokens))
        try:
            self._transactions.add(txn, step, self.clock.now_ms())
        except BrokerError as error:
            done(error)
            return
        done(None)

    def renew_locks(self, path: str, lock_tokens: Sequence[bytes]) -> list[int]:
        now = self.clock.now_ms()
        place = self.namespace.place(path, now)
        self.namespace.locked_entries(place, lock_tokens, now)
        ends = [place.queue.renew(token, now) for token in lock_tokens]
        self._dispatcher.dispatch(place.queue)
        return ends

    def peek(self, path: str, from_sequence_number: int, count: int, session_id: str | None) -> list[bytes]:
        _, queue = self.namespace.peekable(path, self.clock.now_ms())
        result: list[bytes] = []
        size = 0
        for entry in queue.peek(from_sequence_number, count, session_id):
            raw = render(entry, self.namespace.payloads.read(entry.payload_id), with_state=True)
            size += len(raw)
            if result and size > MAX_PEEK_BYTES:
                break
            result.append(raw)
        self._dispatcher.finish_operation()
        return result

    def receive_deferred(
        self,
        path: str,
        sequence_numbers: Sequence[int],
        mode: ReceiveMode,
        session_id: str | None,
        done: Callable[[list[tuple[bytes, bytes]] | BrokerError], None],
    ) -> None:
        def receive() -> list[tuple[bytes, bytes]]:
            now = self.clock.now_ms()
            place = self.namespace.receivable(path, now)
            delete = mode is ReceiveMode.RECEIVE_AND_DELETE
            taken = self.namespace.receive_deferred(place, sequence_numbers, now, session_id, delete=delete)
            return [
                (entry.lock_token or self.namespace.next_token(), render(entry, raw, with_state=True))
                for entry, raw in taken
            ]

        self._run(done, receive)

    def delete_batch(
        self, path: str, count: int, enqueued_before_ms: int, done: Callable[[int | BrokerError], None]
    ) -> None:
        def delete() -> int:
            place = self.namespace.receivable(path, self.clock.now_ms())
            return self.namespace.delete_batch(place, count, enqueued_before_ms)

        self._run(done, delete)

    # -- sessions

    def renew_session(self, path: str, session_id: str) -> int:
        now = self.clock.now_ms()
        queue = self.namespace.place(path, now).queue
        end = queue.renew_session(session_id, now)
        self._dispatcher.dispatch(queue)
        return end

    def get_session_state(self, path: str, session_id: str) -> bytes | None:
        now = self.clock.now_ms()
        return self.namespace.place(path, now).queue.held_session(session_id, now).state

    def set_session_state(self, path: str, session_id: str, state: bytes | None, done: Done) -> None:
        def apply() -> None:
            now = self.clock.now_ms()
            queue = self.namespace.place(path, now).queue
            queue.held_session(session_id, now)
            queue.set_session_state(session_id, state, now)

        self._run(done, apply)

    def list_sessions(self, path: str, last_updated_ms: int | None, skip: int, top: int) -> list[str]:
        return self.namespace.list_sessions(self.namespace.place(path, self.clock.now_ms()), last_updated_ms, skip, top)

    # -- transactions

    def begin_transaction(self) -> bytes:
        return self._transactions.begin()

    def discharge(self, txn: bytes, fail: bool, done: Done) -> None:
        self._run(done, lambda: self._transactions.discharge(txn, self.clock.now_ms(), fail=fail))

    # -- administration

    def get(self, path: str) -> EntityDescription:
        """The description of the queue, topic or subscription at this path."""
        return self.namespace.registry.entity(path.strip("/")).description

    def get_rule(self, subscription: str, name: str) -> RuleDescription:
        return self.namespace.registry.rule(subscription, name).description

    def list_queues(self) -> list[QueueDescription]:
        return [entity.description for entity in self.namespace.registry.queues()]  # type: ignore[misc]

    def list_topics(self) -> list[TopicDescription]:
        return [entity.description for entity in self.namespace.registry.topics()]

    def list_subscriptions(self, topic: str) -> list[SubscriptionDescription]:
        subscriptions = self.namespace.registry.topic(topic).subscriptions
        return [entity.description for _, entity in sorted(subscriptions.items())]

    def list_rules(self, subscription: str) -> list[RuleDescription]:
        rules = self.namespace.registry.subscription(subscription).rules
        return [rule.description for _, rule in sorted(rules.items())]

    def check_exists(self, path: str) -> None:
        """Raise if the path names no queue, topic or subscription, and no sub-queue of one."""
        self.namespace.registry.entity(parse_address(path).key)

    def check_sendable(self, path: str) -> None:
        """Raise if clients cannot send to this path now."""
        self.namespace.router.sendable(path)

    async def create(self, description: D) -> D:
        entity = self.namespace.registry.create(description, self.clock.now_ms())
        await self._committed()
        self._created(entity.path)
        return cast(D, entity.description)

    def _created(self, path: str) -> None:
        """Called after an entity was created, for subclasses."""

    async def update(self, description: D) -> D:
        now = self.clock.now_ms()
        registry, path = self.namespace.registry, description.path.lower()
        rules_before = registry.rules_by_path.get(path)
        entity = registry.update(description, now)
        if registry.rules_by_path.get(path) != rules_before:
            self._tell_rules_changed()
        if isinstance(entity, QueueEntity):
            self.namespace.router.forward_all(entity, now)
        await self._committed()
        return cast(D, entity.description)

    async def create_rule(self, subscription: str, description: RuleDescription) -> RuleDescription:
        created = self.namespace.registry.create_rule(subscription, description, self.clock.now_ms())
        await self._committed()
        return created

    async def update_rule(self, subscription: str, description: RuleDescription) -> RuleDescription:
        updated = self.namespace.registry.update_rule(subscription, description, self.clock.now_ms())
        await self._committed()
        return updated

    async def delete(self, path: str) -> None:
        """Delete the queue, topic or subscription at this path."""
        self._delete(self.namespace.registry.entity(path.strip("/")))
        await self._committed()

    async def delete_rule(self, subscription: str, name: str) -> None:
        self.namespace.registry.delete_rule(subscription, name)
        await self._committed()

    def _delete(self, entity: Entity) -> None:
        for deleted in self.namespace.registry.delete(entity):
            if isinstance(deleted, QueueEntity):
                self._dispatcher.close_queues(list(deleted.queues()), deleted.path)
            if getattr(deleted.description, "authorization_rules", ()):
                self._tell_rules_changed()

    def _tell_rules_changed(self) -> None:
        for listener in list(self.rules_listeners):
            listener()

    def counts(self, path: str) -> MessageCounts:
        return self.namespace.counts(path.strip("/"))

    def times(self, path: str) -> EntityTimes:
        return self.namespace.registry.entity(path.strip("/")).times

    def authorization_rules(self) -> tuple[AuthorizationRule, ...]:
        return self.namespace.registry.authorization_rules

    def rules_by_path(self) -> Mapping[str, tuple[AuthorizationRule, ...]]:
        """The authorization rules of the entities that have any, by their paths in lower case."""
        return self.namespace.registry.rules_by_path

    async def set_authorization_rules(self, rules: tuple[AuthorizationRule, ...]) -> None:
        self.namespace.registry.set_authorization_rules(rules)
        self._tell_rules_changed()
        await self._committed()

    async def _committed(self) -> None:
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._dispatcher.finish_operation()
        if not self._idle_watch_due:
            # Many changes in one turn of the loop need only one scan of all entities.
            self._idle_watch_due = True
            asyncio.get_running_loop().call_soon(self._watch_idle)

        def answer() -> None:
            if written.done():
                return
            if self._commits.refusal is None:
                written.set_result(None)
            else:
                written.set_exception(self._commits.refusal)

        self._commits.after(answer)
        await written

    # -- deleting idle entities

    def _watch_idle(self) -> None:
        self._idle_watch_due = False
        if self._idle_alarm is not None:
            self._idle_alarm.cancel()
            self._idle_alarm = None
        ends = [
            entity.times.accessed_ms + entity.description.auto_delete_on_idle_ms
            for entity in self.namespace.registry.entities.values()
            if entity.description.auto_delete_on_idle_ms < FOREVER_MS
        ]
        if ends:
            # A receiver keeps its entity alive past this time, so do not check again at once.
            when = max(min(ends), self.clock.now_ms() + IDLE_CHECK_MS)
            self._idle_alarm = self.clock.call_at(when, self._delete_idle)

    def _delete_idle(self) -> None:
        self._idle_alarm = None
        for entity in self.namespace.idle_entities(self.clock.now_ms()):
            if entity.path.lower() in self.namespace.registry.entities:
                self._delete(entity)
        self._dispatcher.finish_operation()
        self._watch_idle()

    def _run(self, done: Callable[[T | BrokerError], None], operation: Callable[[], T]) -> None:
        """Run an operation. Answer with its result once it is on disk, or at once with the error that refuses it."""
        try:
            result = operation()
        except BrokerError as error:
            self._dispatcher.finish_operation()
            done(error)
            return
        self._answer_after_commit(done, result)

    def _answer_after_commit(self, done: Callable[[T | BrokerError], None], value: T) -> None:
        self._dispatcher.finish_operation()
        self._commits.after(lambda: done(value if self._commits.refusal is None else self._commits.refusal))


def _discard(_: object) -> None:
    return None
