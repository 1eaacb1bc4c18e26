"""The namespace under arbitrary operations: no message is in two places or in none, and the disk knows everything.

After every step the changes are written to a real store. At the end a second namespace is loaded from it and must be
equal to the first, but for the locks.
"""

import shutil
import sqlite3
import tempfile
from collections import Counter
from contextlib import closing
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pairbus.amqp.codec import encode
from pairbus.amqp.message import Facts, read_facts
from pairbus.amqp.types import Symbol, Timestamp, UInt
from pairbus.embedded.entities.descriptions import QueueDescription, SubscriptionDescription, TopicDescription
from pairbus.embedded.entities.entity import Entity, QueueEntity
from pairbus.embedded.entities.message import (
    AbandonMessage,
    CompleteMessage,
    DeadLetterMessage,
    DeferMessage,
    IncomingMessage,
    QueueEntry,
    ReleaseMessage,
    Settlement,
    State,
)
from pairbus.embedded.entities.namespace import NamespaceState, Place
from pairbus.embedded.entities.paths import SubQueue
from pairbus.embedded.entities.queue import MessageQueue, MessageSession
from pairbus.embedded.errors import BrokerError, Limits, MessageLockLostError, SessionLockLostError
from pairbus.embedded.store import Store

PLAIN = "plain"  # expires silently, gives up after three deliveries
STRICT = "strict"  # dead-letters what expires, detects duplicates
SESSIONS = "sessions"
TOPIC = "topic"
COPIES = ("topic/Subscriptions/a", "topic/Subscriptions/b", "topic/Subscriptions/c")
RECEIVED_FROM = (PLAIN, STRICT, SESSIONS, *COPIES)


def message(number: int, *, ttl_ms: int | None, session_id: str | None, scheduled_ms: int | None) -> IncomingMessage:
    header = b"" if ttl_ms is None else b"\x00\x53\x70" + encode([None, None, UInt(ttl_ms)])
    annotations = (
        b""
        if scheduled_ms is None
        else b"\x00\x53\x72" + encode({Symbol("x-opt-scheduled-enqueue-time"): Timestamp(scheduled_ms)})
    )
    properties = b"\x00\x53\x73" + encode([f"m{number}", *[None] * 9, session_id])
    return IncomingMessage.from_raw(header + annotations + properties + b"\x00\x53\x75" + encode(b"body"))


def message_id(namespace: NamespaceState, payload_id: int) -> str:
    facts: Facts = read_facts(namespace.payloads.read(payload_id))
    assert facts.message_key is not None
    return facts.message_key


class NamespaceModel(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="pairbus-model-"))
        self.store = Store(self.folder)
        self.namespace = NamespaceState(self.store.cache, b"nonce-01", Limits())
        self.now = 1_000_000
        self.sent = 0
        self.accepted: Counter[str] = Counter()
        self.gone: Counter[str] = Counter()
        self.mortal: dict[str, int] = {}
        self.held: list[tuple[str, bytes, MessageSession | None]] = []
        self.sessions: list[MessageSession] = []
        registry = self.namespace.registry
        registry.create(QueueDescription(PLAIN, lock_duration_ms=5_000, max_delivery_count=3), self.now)
        registry.create(
            QueueDescription(
                STRICT,
                lock_duration_ms=5_000,
                max_delivery_count=3,
                dead_lettering_on_message_expiration=True,
                requires_duplicate_detection=True,
                duplicate_detection_history_time_window_ms=20_000,
            ),
            self.now,
        )
        registry.create(QueueDescription(SESSIONS, lock_duration_ms=5_000, requires_session=True), self.now)
        registry.create(TopicDescription(TOPIC), self.now)
        for name in ("a", "b", "c"):
            registry.create(SubscriptionDescription(TOPIC, name, lock_duration_ms=5_000), self.now)
        self.commit()

    def commit(self) -> None:
        changes = self.namespace.take_changes()
        self.store.commit(changes)
        self.store.cache.mark_written(payload_id for payload_id, _ in changes.payloads)
        self.store.cache.discard(changes.payload_drops)

    def place(self, path: str) -> Place:
        return self.namespace.place(path, self.now)

    def queues(self) -> list[tuple[QueueEntity, MessageQueue]]:
        entities = [self.namespace.registry.entities[path.lower()] for path in RECEIVED_FROM]
        return [(e, q) for e in entities if isinstance(e, QueueEntity) for q in e.queues()]

    # -- operations

    @rule(
        path=st.sampled_from((PLAIN, STRICT, SESSIONS, TOPIC)),
        count=st.integers(1, 3),
        ttl_ms=st.sampled_from((None, None, 3_000, 30_000)),
        delay_ms=st.sampled_from((None, None, None, 2_000)),
        session_id=st.sampled_from(("red", "blue")),
        repeat=st.booleans(),
    )
    def send(
        self, path: str, count: int, ttl_ms: int | None, delay_ms: int | None, session_id: str, repeat: bool
    ) -> None:
        for _ in range(count):
            if not (repeat and path == STRICT and self.sent):
                self.sent += 1
            scheduled_ms = None if delay_ms is None else self.now + delay_ms
            one = message(self.sent, ttl_ms=ttl_ms, session_id=session_id, scheduled_ms=scheduled_ms)
            seen = self.namespace.registry.entity(path).seen
            window = 20_000
            duplicate = path == STRICT and seen.has(f"m{self.sent}", self.now, window)
            self.namespace.send(path, [one], self.now)
            if not duplicate and ttl_ms is not None and path != STRICT:
                self.mortal[f"m{self.sent}"] = self.now + ttl_ms
            if not duplicate:
                self.accepted[f"m{self.sent}"] += len(COPIES) if path == TOPIC else 1
        self.commit()

    @rule(path=st.sampled_from((PLAIN, STRICT, *COPIES)), delete=st.booleans(), dead=st.booleans())
    def receive(self, path: str, delete: bool, dead: bool) -> None:
        full = f"{path}/$DeadLetterQueue" if dead else path
        place = self.place(full)
        waiting = [e for e in place.queue.entries.values() if e.state is State.ACTIVE and e.lock_token is None]
        taken = self.namespace.take(place, self.now, None, delete=delete)
        if taken is None:
            assert all(entry.expires_ms <= self.now for entry in waiting)
        else:
            entry, raw = taken
            assert entry is waiting[0], "the oldest message comes first"
            assert entry.expires_ms > self.now
            if delete:
                self.gone[str(read_facts(raw).message_id)] += 1
            else:
                assert entry.lock_token is not None
                self.held.append((full, entry.lock_token, None))
        self.commit()

    @rule(session_id=st.sampled_from((None, "red", "blue")))
    def accept_session(self, session_id: str | None) -> None:
        place = self.place(SESSIONS)
        try:
            session = self.namespace.accept_session(place, session_id, len(self.sessions) + 1, self.now)
        except BrokerError:
            assert session_id is not None
            assert place.queue.sessions[session_id].locked_until_ms > self.now
            return
        if session is not None:
            self.sessions.append(session)
        self.commit()

    @precondition(lambda self: self.sessions)
    @rule(data=st.data())
    def receive_in_session(self, data: st.DataObject) -> None:
        session = data.draw(st.sampled_from(self.sessions))
        place = self.place(SESSIONS)
        if session.holder is None or session.locked_until_ms <= self.now:
            return
        taken = self.namespace.take(place, self.now, session, delete=False)
        if taken is not None:
            entry, _ = taken
            assert entry.session_id == session.session_id
            assert entry.lock_token is not None
            self.held.append((SESSIONS, entry.lock_token, session))
        self.commit()

    @precondition(lambda self: self.sessions)
    @rule(data=st.data(), state=st.sampled_from((b"state", None)))
    def set_state_and_release(self, data: st.DataObject, state: bytes | None) -> None:
        session = data.draw(st.sampled_from(self.sessions))
        place = self.place(SESSIONS)
        if session.holder is not None:
            place.queue.set_session_state(session.session_id, state, self.now)
            place.queue.release_session(session, count=False)
        self.commit()

    @precondition(lambda self: self.held)
    @rule(
        data=st.data(),
        outcome=st.sampled_from(
            (
                CompleteMessage(),
                CompleteMessage(),
                ReleaseMessage(),
                AbandonMessage(),
                AbandonMessage({"k": "v"}),
                DeferMessage(),
                DeferMessage({"k": 1}),
                DeadLetterMessage("because", "of that", {"x": True}),
            )
        ),
    )
    def settle(self, data: st.DataObject, outcome: Settlement) -> None:
        path, token, _ = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        place = self.place(path)
        try:
            (entry,) = self.namespace.locked_entries(place, [token], self.now)
        except (MessageLockLostError, SessionLockLostError):
            return
        identifier = message_id(self.namespace, entry.payload_id)
        if isinstance(outcome, DeadLetterMessage) and place.sub_queue is not SubQueue.MAIN:
            return
        self.namespace.settle(place, [entry], outcome, self.now)
        if isinstance(outcome, CompleteMessage):
            self.gone[identifier] += 1
        self.commit()

    @rule(path=st.sampled_from(RECEIVED_FROM), delete=st.booleans())
    def receive_deferred(self, path: str, delete: bool) -> None:
        place = self.place(path)
        numbers = [e.sequence_number for e in place.queue.entries.values() if e.state is State.DEFERRED][:2]
        session_id = place.queue.entries[numbers[0]].session_id if numbers else None
        try:
            taken = self.namespace.receive_deferred(place, numbers, self.now, session_id, delete=delete)
        except BrokerError:
            return
        for entry, raw in taken:
            if delete:
                self.gone[str(read_facts(raw).message_id)] += 1
            else:
                assert entry.lock_token is not None
                self.held.append((path, entry.lock_token, None))
        self.commit()

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        path, token, session = data.draw(st.sampled_from(self.held))
        place = self.place(path)
        try:
            self.namespace.locked_entries(place, [token], self.now)
        except (MessageLockLostError, SessionLockLostError):
            return
        if not place.queue.requires_session:
            assert place.queue.renew(token, self.now) == self.now + 5_000
        elif session is not None:
            assert place.queue.renew_session(session.session_id, self.now) == self.now + 5_000

    @rule(path=st.sampled_from((PLAIN, STRICT, SESSIONS, TOPIC)))
    def cancel(self, path: str) -> None:
        entity = self.namespace.registry.entity(path)
        numbers = [e.sequence_number for e in entity.main.entries.values() if e.state is State.SCHEDULED]
        if numbers and entity.main.entries[numbers[0]].scheduled_ms > self.now:  # type: ignore[operator]
            identifier = message_id(self.namespace, entity.main.entries[numbers[0]].payload_id)
            self.namespace.cancel_scheduled(path, numbers[:1], self.now)
            self.gone[identifier] += len(COPIES) if path == TOPIC else 1
        self.commit()

    @rule(ms=st.sampled_from((1, 1_000, 2_500, 5_001, 21_000)))
    def pass_time(self, ms: int) -> None:
        self.now += ms
        for _, queue in self.queues():
            self.namespace.advance(queue, self.now)
        self.namespace.advance(self.namespace.registry.topic(TOPIC).main, self.now)
        self.commit()

    # -- what must hold

    def present(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for _, queue in self.queues():
            found.update(message_id(self.namespace, entry.payload_id) for entry in queue.entries.values())
        for entry in self.namespace.registry.topic(TOPIC).main.entries.values():
            found[message_id(self.namespace, entry.payload_id)] += len(COPIES)
        return found

    @invariant()
    def nothing_is_lost_or_doubled(self) -> None:
        if hasattr(self, "store"):
            assert not (self.present() + self.gone) - self.accepted, "a message is there twice"
            # Every operation but time accounts for what it removed. Time removes what expired where nobody keeps it.
            missing = self.accepted - self.gone - self.present()
            for identifier in missing:
                assert self.mortal.get(identifier, self.now + 1) <= self.now, f"{identifier} is lost"
            self.gone.update(missing)

    @invariant()
    def counters_agree(self) -> None:
        if hasattr(self, "store"):
            for _, queue in self.queues():
                states = Counter(entry.state for entry in queue.entries.values())
                assert queue.active == states[State.ACTIVE]
                assert queue.scheduled == states[State.SCHEDULED]
                assert queue.size_bytes == sum(entry.size for entry in queue.entries.values())
            topic = self.namespace.registry.topic(TOPIC)
            payloads = {
                entry.payload_id: entry.size
                for subscription in topic.subscriptions.values()
                for queue in subscription.queues()
                for entry in queue.entries.values()
            }
            assert topic.shared_bytes == sum(payloads.values()), "a payload is counted once, however many hold it"

    def teardown(self) -> None:
        if not hasattr(self, "store"):
            return
        self.commit()
        self.store.close()
        again = Store(self.folder)
        twin = NamespaceState(again.cache, b"nonce-02", Limits())
        again.load(twin)
        for path, entity in self.namespace.registry.entities.items():
            other = twin.registry.entities[path]
            assert other.description == entity.description
            queues = entity.queues() if isinstance(entity, QueueEntity) else iter((entity.main,))
            for queue in queues:
                loaded = twin.registry.queue_by_id(queue.queue_id)
                assert [row(e) for e in loaded.entries.values()] == [row(e) for e in queue.entries.values()]
                assert loaded.next_sequence == queue.next_sequence
                assert (loaded.active, loaded.scheduled, loaded.size_bytes) == (
                    queue.active,
                    queue.scheduled,
                    queue.size_bytes,
                )
                kept = {s.session_id: s.state for s in queue.sessions.values() if s.state is not None}
                assert {s.session_id: s.state for s in loaded.sessions.values() if s.state is not None} == kept
                for entry in loaded.entries.values():
                    assert message_id(twin, entry.payload_id) == message_id(self.namespace, entry.payload_id)
        assert twin.registry.topic(TOPIC).shared_bytes == self.namespace.registry.topic(TOPIC).shared_bytes
        again.close()
        with closing(sqlite3.connect(again.path)) as database:
            (stored,) = database.execute("SELECT count(*) FROM payload").fetchone()
        held = {entry.payload_id for e in twin.registry.by_id.values() for entry in _entries(e)}
        assert stored == len(held), "no payload outlives its last message"
        shutil.rmtree(self.folder)


def _entries(entity: Entity) -> list[QueueEntry]:
    queues = list(entity.queues()) if isinstance(entity, QueueEntity) else [entity.main]
    return [entry for queue in queues for entry in queue.entries.values()]


def row(entry: QueueEntry) -> tuple[object, ...]:
    names = (
        "sequence_number",
        "size",
        "state",
        "enqueued_ms",
        "expires_ms",
        "delivery_count",
        "session_id",
        "scheduled_ms",
        "origin",
    )
    return tuple(getattr(entry, name) for name in names)


TestNamespaceModel = NamespaceModel.TestCase
TestNamespaceModel.settings = settings(max_examples=150, stateful_step_count=50, deadline=None, print_blob=True)
