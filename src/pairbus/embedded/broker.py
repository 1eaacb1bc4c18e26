"""The namespace at work: the pure core, its disk and its receivers behind one set of operations.

Everything runs on one asyncio loop. An operation either raises (or hands its `done` callback) a `BrokerError`, or
happens; `done` is called after the change is on disk. Callbacks rather than tasks: the AMQP layer calls this for every
message.
"""

import asyncio
import json
import logging
import secrets
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar
from uuid import uuid4

from pairbus.amqp.message import with_message_id
from pairbus.amqp.types import AmqpDecodeError
from pairbus.embedded.clock import Alarm, Clock, SystemClock
from pairbus.embedded.entities.descriptions import (
    FOREVER_MS,
    AuthorizationRule,
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from pairbus.embedded.entities.entity import Entity, QueueEntity, SubscriptionEntity, Times
from pairbus.embedded.entities.message import Entry, Incoming, Outcome, parse_all
from pairbus.embedded.entities.namespace import Counts, Namespace, Place
from pairbus.embedded.entities.paths import parse_address
from pairbus.embedded.errors import (
    BrokerError,
    EntityNotFoundError,
    InvalidError,
    Limits,
    NotAllowedError,
    StoreFailedError,
)
from pairbus.embedded.receivers import Closed, Deliver, Delivery, Feeding, ReceiveMode, Receiver, render
from pairbus.embedded.store import GroupCommit, Store
from pairbus.embedded.transactions import Step, Transactions

__all__ = ["Broker", "Delivery", "ReceiveMode", "Receiver"]

log = logging.getLogger(__name__)

T = TypeVar("T")
Done = Callable[[BrokerError | None], None]

MAX_PEEK_BYTES = 1024 * 1024
IDLE_CHECK_MS = 1_000


class Broker:
    def __init__(self, store: Store, clock: Clock | None = None, limits: Limits | None = None) -> None:
        self.clock = clock or SystemClock()
        self.limits = limits or Limits()
        self._store = store
        self.namespace = Namespace(store.shelf, secrets.token_bytes(8), self.limits)
        store.load(self.namespace)
        self.namespace.registry.start_idle_times(self.clock.now_ms())
        self._commits = GroupCommit(self.namespace, store)
        self._feeding = Feeding(self.namespace, self._commits, self.clock)
        self._transactions = Transactions(self.limits)
        self._idle_alarm: Alarm | None = None
        self._idle_watch_due = False
        self._feeding.settle_down()
        self._watch_idle()

    async def close(self) -> None:
        """Stops; everything decided is on disk when it returns."""
        self._feeding.stop()
        if self._idle_alarm is not None:
            self._idle_alarm.cancel()
        await self._commits.close()
        try:
            if not self._commits.failing:
                self._store.write_access_times(self.namespace.registry.touch_times())
        except sqlite3.Error as error:
            log.warning("the times of last access were not written: %s", error)
        finally:
            self._store.close()

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
        self._after(done, None)

    def _send_step(self, path: str, messages: Sequence[Incoming]) -> Step:
        router = self.namespace.router
        return Step(
            lambda now: router.check(router.sendable(path), messages),
            lambda now: _ignore(router.send(router.sendable(path), messages, now)),
        )

    def _incoming(self, raws: Sequence[bytes]) -> list[Incoming]:
        if self._commits.failing:
            raise StoreFailedError("The namespace cannot write to its disk at the moment. Try again later.")
        try:
            return [self._identified(message) for message in parse_all(raws)]
        except AmqpDecodeError as error:
            raise InvalidError(f"The message is not well formed: {error}.") from None

    @staticmethod
    def _identified(message: Incoming) -> Incoming:
        """Every message has an id, as in the service: the JavaScript SDK keeps its locks by it."""
        if message.facts.message_id is not None:
            return message
        return Incoming.from_raw(with_message_id(message.raw, uuid4().hex))

    def schedule(
        self,
        path: str,
        raws: Sequence[bytes],
        done: Callable[[list[int] | BrokerError], None],
        *,
        txn: bytes | None = None,
    ) -> None:
        try:
            messages = self._incoming(raws)
            if txn is not None:
                raise NotAllowedError("Messages cannot be scheduled within a transaction: schedule them outside of it.")
            numbers = self.namespace.schedule(path, messages, self.clock.now_ms())
        except BrokerError as error:
            done(error)
            return
        self._after(done, numbers)

    def cancel_scheduled(self, path: str, sequence_numbers: Sequence[int], done: Done) -> None:
        self._do(done, lambda: self.namespace.cancel_scheduled(path, sequence_numbers, self.clock.now_ms()))

    # -- receiving

    def open_receiver(self, path: str, mode: ReceiveMode, deliver: Deliver, closed: Closed) -> Receiver:
        place = self.namespace.receivable(path, self.clock.now_ms())
        receiver = self._feeding.open_receiver(place, mode, self._delivering(path, deliver), closed)
        self._feeding.settle_down()
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
        """Calls `accepted` with a receiver or the reason there is none; what it returns takes the wish back."""
        try:
            place = self.namespace.receivable(path, self.clock.now_ms())
        except BrokerError as error:
            accepted(error)
            return _nothing
        delivering = self._delivering(path, deliver)
        return self._feeding.accept_session(place, session_id, mode, delivering, closed, accepted, timeout_ms)

    def _delivering(self, path: str, deliver: Deliver) -> Deliver:
        """How a message of `path` is handed to its receiver."""
        return deliver

    def settle(
        self,
        path: str,
        lock_tokens: Sequence[bytes],
        outcome: Outcome,
        done: Done,
        *,
        session_id: str | None = None,
        txn: bytes | None = None,
    ) -> None:
        def check(now: int) -> tuple[Place, list[Entry]]:
            place = self.namespace.place(path, now)
            self.namespace.check_outcome(place, outcome)
            return place, self.namespace.held(place, lock_tokens, now, session_id)

        def apply(now: int) -> None:
            place, held = check(now)
            self.namespace.settle(place, held, outcome, now)

        if txn is None:
            self._do(done, lambda: apply(self.clock.now_ms()))
            return
        step = Step(lambda now: _ignore(check(now)), apply, frozenset(lock_tokens))
        try:
            self._transactions.add(txn, step, self.clock.now_ms())
        except BrokerError as error:
            done(error)
            return
        done(None)

    def renew_locks(self, path: str, lock_tokens: Sequence[bytes]) -> list[int]:
        now = self.clock.now_ms()
        place = self.namespace.place(path, now)
        self.namespace.held(place, lock_tokens, now)
        ends = [place.queue.renew(token, now) for token in lock_tokens]
        self._feeding.feed(place.queue)
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
        self._feeding.settle_down()
        return result

    def receive_deferred(
        self,
        path: str,
        sequence_numbers: Sequence[int],
        mode: ReceiveMode,
        session_id: str | None,
        done: Callable[[list[tuple[bytes, bytes]] | BrokerError], None],
    ) -> None:
        delete = mode is ReceiveMode.RECEIVE_AND_DELETE
        try:
            now = self.clock.now_ms()
            place = self.namespace.receivable(path, now)
            taken = self.namespace.receive_deferred(place, sequence_numbers, now, session_id, delete=delete)
        except BrokerError as error:
            done(error)
            return
        self._after(
            done,
            [
                (entry.lock_token or self.namespace.next_token(), render(entry, raw, with_state=True))
                for entry, raw in taken
            ],
        )

    def delete_batch(
        self, path: str, count: int, enqueued_before_ms: int, done: Callable[[int | BrokerError], None]
    ) -> None:
        try:
            now = self.clock.now_ms()
            deleted = self.namespace.delete_batch(self.namespace.receivable(path, now), count, enqueued_before_ms, now)
        except BrokerError as error:
            done(error)
            return
        self._after(done, deleted)

    # -- sessions

    def renew_session(self, path: str, session_id: str) -> int:
        now = self.clock.now_ms()
        queue = self.namespace.place(path, now).queue
        end = queue.renew_session(session_id, now)
        self._feeding.feed(queue)
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

        self._do(done, apply)

    def list_sessions(self, path: str, last_updated_ms: int | None, skip: int, top: int) -> list[str]:
        return self.namespace.list_sessions(self.namespace.place(path, self.clock.now_ms()), last_updated_ms, skip, top)

    # -- transactions

    def begin_transaction(self) -> bytes:
        return self._transactions.begin()

    def discharge(self, txn: bytes, fail: bool, done: Done) -> None:
        self._do(done, lambda: self._transactions.discharge(txn, self.clock.now_ms(), fail=fail))

    def abandon_transaction(self, txn: bytes) -> None:
        self._transactions.abandon(txn)

    # -- administration

    def get_queue(self, name: str) -> QueueDescription:
        description = self.namespace.registry.queue(name).description
        assert isinstance(description, QueueDescription)
        return description

    def get_topic(self, name: str) -> TopicDescription:
        return self.namespace.registry.topic(name).description

    def get_subscription(self, topic: str, name: str) -> SubscriptionDescription:
        return _of_subscription(self.namespace.registry.subscription(topic, name))

    def get_rule(self, topic: str, subscription: str, name: str) -> RuleDescription:
        return self.namespace.registry.rule(topic, subscription, name).description

    def list_queues(self) -> list[QueueDescription]:
        return [entity.description for entity in self.namespace.registry.queues()]  # type: ignore[misc]

    def list_topics(self) -> list[TopicDescription]:
        return [entity.description for entity in self.namespace.registry.topics()]

    def list_subscriptions(self, topic: str) -> list[SubscriptionDescription]:
        found = self.namespace.registry.topic(topic).subscriptions
        return [_of_subscription(entity) for _, entity in sorted(found.items())]

    def list_rules(self, topic: str, subscription: str) -> list[RuleDescription]:
        rules = self.namespace.registry.subscription(topic, subscription).rules
        return [rule.description for _, rule in sorted(rules.items())]

    def exists(self, path: str) -> bool:
        try:
            self.namespace.peekable(path, self.clock.now_ms())
        except EntityNotFoundError:
            return False
        return True

    def check_exists(self, path: str) -> None:
        """Raises unless there is a queue, topic or subscription (or a sub-queue of one) at this path."""
        self.namespace.registry.entity(parse_address(path).key)

    def check_sendable(self, path: str) -> None:
        """Raises unless a client may send to this path now."""
        self.namespace.router.sendable(path)

    async def create_queue(self, description: QueueDescription) -> QueueDescription:
        self.namespace.registry.create_queue(description, self.clock.now_ms())
        await self._administered()
        return self.get_queue(description.name)

    async def update_queue(self, description: QueueDescription) -> QueueDescription:
        now = self.clock.now_ms()
        entity = self.namespace.registry.update_queue(description, now)
        self.namespace.router.forward_all(entity, now)
        await self._administered()
        return self.get_queue(description.name)

    async def create_topic(self, description: TopicDescription) -> TopicDescription:
        self.namespace.registry.create_topic(description, self.clock.now_ms())
        await self._administered()
        return self.get_topic(description.name)

    async def update_topic(self, description: TopicDescription) -> TopicDescription:
        self.namespace.registry.update_topic(description, self.clock.now_ms())
        await self._administered()
        return self.get_topic(description.name)

    async def create_subscription(self, description: SubscriptionDescription) -> SubscriptionDescription:
        self.namespace.registry.create_subscription(description, self.clock.now_ms())
        await self._administered()
        return self.get_subscription(description.topic, description.name)

    async def update_subscription(self, description: SubscriptionDescription) -> SubscriptionDescription:
        now = self.clock.now_ms()
        entity = self.namespace.registry.update_subscription(description, now)
        self.namespace.router.forward_all(entity, now)
        await self._administered()
        return self.get_subscription(description.topic, description.name)

    async def create_rule(self, topic: str, subscription: str, description: RuleDescription) -> RuleDescription:
        created = self.namespace.registry.create_rule(topic, subscription, description, self.clock.now_ms())
        await self._administered()
        return created

    async def update_rule(self, topic: str, subscription: str, description: RuleDescription) -> RuleDescription:
        updated = self.namespace.registry.update_rule(topic, subscription, description, self.clock.now_ms())
        await self._administered()
        return updated

    async def delete_queue(self, name: str) -> None:
        self._gone([self.namespace.registry.delete_queue(name)])
        await self._administered()

    async def delete_topic(self, name: str) -> None:
        subscriptions = list(self.namespace.registry.topic(name).subscriptions.values())
        self._gone([self.namespace.registry.delete_topic(name), *subscriptions])
        await self._administered()

    async def delete_subscription(self, topic: str, name: str) -> None:
        self._gone([self.namespace.registry.delete_subscription(topic, name)])
        await self._administered()

    async def delete_rule(self, topic: str, subscription: str, name: str) -> None:
        self.namespace.registry.delete_rule(topic, subscription, name)
        await self._administered()

    async def delete(self, path: str) -> None:
        """Deletes what stands at the path: a queue, topic, subscription or rule."""
        owner, _, rule = path.strip("/").partition("/Rules/")
        topic, _, subscription = owner.partition("/Subscriptions/")
        if rule:
            await self.delete_rule(topic, subscription, rule)
        elif subscription:
            await self.delete_subscription(topic, subscription)
        elif isinstance(self.namespace.registry.entity(topic.lower()), QueueEntity):
            await self.delete_queue(topic)
        else:
            await self.delete_topic(topic)

    def _gone(self, entities: Iterable[Entity]) -> None:
        for entity in entities:
            if isinstance(entity, QueueEntity):
                self._feeding.close_queues(list(entity.queues()), entity.path)

    def counts(self, path: str) -> Counts:
        return self.namespace.counts(path.strip("/"))

    def times(self, path: str) -> Times:
        return self.namespace.registry.entity(path.strip("/").lower()).times

    def authorization_rules(self) -> tuple[AuthorizationRule, ...]:
        return self.namespace.registry.authorization_rules

    async def set_authorization_rules(self, rules: tuple[AuthorizationRule, ...]) -> None:
        text = json.dumps([rule.to_plain() for rule in rules], ensure_ascii=False)
        self.namespace.registry.set_authorization_rules(rules, text)
        await self._administered()

    async def _administered(self) -> None:
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._feeding.settle_down()
        if not self._idle_watch_due:
            # Looking through all entities once for many changes.
            self._idle_watch_due = True
            asyncio.get_running_loop().call_soon(self._watch_idle)
        self._commits.after(lambda: None if written.done() else written.set_result(None))
        await written

    # -- deleting what nobody uses

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
            # A receiver keeps its entity alive past its end: look again later, not at once.
            when = max(min(ends), self.clock.now_ms() + IDLE_CHECK_MS)
            self._idle_alarm = self.clock.call_at(when, self._delete_idle)

    def _delete_idle(self) -> None:
        self._idle_alarm = None
        registry = self.namespace.registry
        for entity in self.namespace.idle_entities(self.clock.now_ms()):
            if entity.path.lower() not in registry.entities:
                continue
            if isinstance(entity, SubscriptionEntity):
                gone: list[Entity] = [registry.delete_subscription(entity.topic.path, entity.description.name)]
            elif isinstance(entity, QueueEntity):
                gone = [registry.delete_queue(entity.path)]
            else:
                gone = [*entity.subscriptions.values(), registry.delete_topic(entity.path)]
            self._gone(gone)
        self._feeding.settle_down()
        self._watch_idle()

    # -- small steps

    def _do(self, done: Done, operation: Callable[[], None]) -> None:
        """Runs an operation and answers when it is on disk, or at once with its refusal."""
        try:
            operation()
        except BrokerError as error:
            self._feeding.settle_down()
            done(error)
            return
        self._after(done, None)

    def _after(self, done: Callable[[T], None], value: T) -> None:
        self._feeding.settle_down()
        self._commits.after(partial(done, value))


def _of_subscription(entity: SubscriptionEntity) -> SubscriptionDescription:
    assert isinstance(entity.description, SubscriptionDescription)
    return entity.description


def _ignore(_: object) -> None:
    return None


def _nothing() -> None:
    return None
