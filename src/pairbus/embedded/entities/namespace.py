"""The whole namespace as pure state: every operation takes the time, and either succeeds or raises.

Nothing here waits, reads a clock or touches a disk. `take_changes()` returns what the store must write; `touched` holds
the queues whose receivers need attention. An operation first advances its queue to `now`, so it never acts on an
expired lock or message.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from pairbus.embedded.entities.entity import Entity, QueueEntity, SubscriptionEntity, TopicEntity
from pairbus.embedded.entities.message import (
    AbandonMessage,
    Changes,
    CompleteMessage,
    DeadLetterMessage,
    DeferMessage,
    IncomingMessage,
    Payloads,
    PayloadStorage,
    QueueEntry,
    ReleaseMessage,
    Settlement,
    State,
)
from pairbus.embedded.entities.paths import SubQueue, entity_id_of, parse_address, sub_queue_of
from pairbus.embedded.entities.queue import COMPACTION_FLOOR, NEVER_MS, MessageQueue, MessageSession
from pairbus.embedded.entities.registry import Registry
from pairbus.embedded.entities.routing import Router
from pairbus.embedded.errors import (
    EntityDisabledError,
    Limits,
    MessageLockLostError,
    NotAllowedError,
    SessionLockLostError,
)

# In the protocol, listing sessions updated after a time this far ahead means "sessions that have messages".
FAR_FUTURE_MS = 250_000_000_000_000


@dataclass(frozen=True, slots=True)
class Place:
    """A queue that clients can receive from, and its entity."""

    entity: QueueEntity
    queue: MessageQueue
    sub_queue: SubQueue


@dataclass(frozen=True, slots=True)
class MessageCounts:
    active: int = 0
    dead_letter: int = 0
    scheduled: int = 0
    transfer: int = 0
    transfer_dead_letter: int = 0
    size_bytes: int = 0
    message_count: int = 0
    subscription_count: int = 0


class NamespaceState:
    def __init__(self, cache: PayloadStorage, lock_nonce: bytes, limits: Limits) -> None:
        self._changes = Changes()
        self._lock_nonce = lock_nonce
        self._locks = 0
        self._deadlines: list[tuple[int, int]] = []
        self._noted_deadlines: dict[int, int] = {}
        self.limits = limits
        self.lost_sessions: list[tuple[MessageQueue, MessageSession]] = []
        self.payloads = Payloads(self._current_changes, cache)
        self.registry = Registry(self._current_changes, self.payloads, self.next_token, limits)
        self.router = Router(self.registry, self.payloads, self._current_changes, limits)

    def _current_changes(self) -> Changes:
        return self._changes

    def take_changes(self) -> Changes:
        """All changes since the last call."""
        changes, self._changes = self._changes, Changes()
        return changes

    @property
    def has_changes(self) -> bool:
        return bool(self._changes)

    @property
    def touched(self) -> set[MessageQueue]:
        return self.registry.touched

    def next_token(self) -> bytes:
        # The counter makes it unique within this run, the nonce across runs.
        self._locks += 1
        return self._lock_nonce + self._locks.to_bytes(8, "little")

    # -- sending

    def send(self, path: str, messages: Sequence[IncomingMessage], now: int) -> list[int]:
        entity = self.router.sendable(path)
        self.router.check(entity, messages)
        return self.router.send(entity, messages, now)

    def cancel_scheduled(self, path: str, sequence_numbers: Sequence[int], now: int) -> None:
        entity = self.router.sendable(path)
        self.advance(entity.main, now)
        entries = [entity.main.scheduled_entry(number) for number in sequence_numbers]
        for entry in {entry.sequence_number: entry for entry in entries}.values():
            self.router.discard(entity, entity.main, entry)

    # -- receiving

    def place(self, path: str, now: int) -> Place:
        """The queue at a path that clients receive from or manage."""
        address = parse_address(path)
        entity = self.registry.entity(address.key)
        if isinstance(entity, TopicEntity):
            raise NotAllowedError(f"'{entity.path}' is a topic. Receive from one of its subscriptions.")
        queue = entity.queue(address.sub_queue)
        self.advance(queue, now)
        return Place(entity, queue, address.sub_queue)

    def receivable(self, path: str, now: int) -> Place:
        place = self.place(path, now)
        description = place.entity.description
        if description.status in ("Disabled", "ReceiveDisabled"):
            raise EntityDisabledError(
                f"Messaging entity '{place.entity.path}' is currently disabled for receiving (status "
                f"{description.status})."
            )
        if description.forward_to is not None and place.sub_queue is SubQueue.MAIN:
            raise NotAllowedError(
                f"'{place.entity.path}' forwards its messages to '{description.forward_to}'. Receive them there."
            )
        place.entity.times.accessed_ms = now
        return place

    def peekable(self, path: str, now: int) -> tuple[Entity, MessageQueue]:
        """Like `place`, but for a topic it is the queue of its scheduled messages."""
        address = parse_address(path)
        entity = self.registry.entity(address.key)
        queue = entity.main if isinstance(entity, TopicEntity) else entity.queue(address.sub_queue)
        self.advance(queue, now)
        return entity, queue

    def take(
        self, place: Place, now: int, session: MessageSession | None, *, delete: bool
    ) -> tuple[QueueEntry, bytes] | None:
        """The next message for a receiver, with its bytes: locked, or deleted if `delete` is set."""
        queue = place.queue
        entry = queue.take(now, session, delete=delete)
        if entry is None:
            return None
        raw = self.payloads.read(entry.payload_id)
        if delete:
            self.registry.drop_payload(place.entity, entry.payload_id, entry.size)
        return entry, raw

    def requeue(self, place: Place, entry: QueueEntry, raw: bytes) -> None:
        """Put a message that was deleted on receipt but never delivered back at the end of its queue."""
        if place.entity.entity_id not in self.registry.by_id:
            return
        place.queue.append(
            self.payloads.add(raw),
            entry.size,
            entry.enqueued_ms,
            entry.expires_ms,
            session_id=entry.session_id,
            scheduled_ms=entry.scheduled_ms,
            delivery_count=entry.delivery_count,
            origin=entry.origin,
        )
        if isinstance(place.entity, SubscriptionEntity):
            place.entity.topic.shared_bytes += entry.size

    def receive_deferred(
        self, place: Place, sequence_numbers: Sequence[int], now: int, session_id: str | None, *, delete: bool
    ) -> list[tuple[QueueEntry, bytes]]:
        queue = place.queue
        if queue.requires_session:
            queue.held_session(session_id or "", now)
        entries = [queue.deferred(number, session_id) for number in sequence_numbers]
        result = []
        for entry in {entry.sequence_number: entry for entry in entries}.values():
            raw = self.payloads.read(entry.payload_id)
            if delete:
                self.router.discard(place.entity, queue, entry)
            else:
                queue.lock_deferred(entry, now)
            result.append((entry, raw))
        return result

    # -- settling

    def locked_entries(
        self, place: Place, lock_tokens: Sequence[bytes], now: int, session_id: str | None = None
    ) -> list[QueueEntry]:
        """The messages locked with these tokens, each once. Raises if a lock is lost."""
        if session_id is not None and place.queue.requires_session:
            place.queue.held_session(session_id, now)
        try:
            return [place.queue.locked(token, now) for token in dict.fromkeys(lock_tokens)]
        except MessageLockLostError:
            if place.queue.requires_session:
                raise SessionLockLostError(
                    "The session lock has expired on the receiver, or the message was settled already."
                ) from None
            raise

    @staticmethod
    def check_settlement(place: Place, settlement: Settlement) -> None:
        """Raise if messages of this queue cannot be settled in this way."""
        if isinstance(settlement, DeadLetterMessage) and place.sub_queue is not SubQueue.MAIN:
            raise NotAllowedError("A message in a dead-letter queue cannot be dead-lettered again. Complete it.")

    def settle(self, place: Place, entries: Sequence[QueueEntry], settlement: Settlement, now: int) -> None:
        self.check_settlement(place, settlement)
        place.entity.times.accessed_ms = now
        for entry in entries:
            self._settle_entry(place, entry, settlement, now)
        self._forward_returned(place, now)

    def _forward_returned(self, place: Place, now: int) -> None:
        """Forward messages that were locked when forwarding was switched on, once they are released."""
        if place.sub_queue is SubQueue.MAIN and place.entity.description.forward_to is not None:
            self.router.forward_all(place.entity, now)

    def _settle_entry(self, place: Place, entry: QueueEntry, settlement: Settlement, now: int) -> None:
        entity, queue = place.entity, place.queue
        match settlement:
            case CompleteMessage():
                self.router.discard(entity, queue, entry)
            case ReleaseMessage():
                queue.release(entry, count=False)
            case AbandonMessage(properties):
                if properties:
                    self.router.modify(entity, queue, entry, properties)
                if queue.release(entry):
                    self._dead_letter_exhausted(place, entry, now)
            case DeferMessage(properties):
                if properties:
                    self.router.modify(entity, queue, entry, properties)
                queue.defer(entry)
            case DeadLetterMessage(reason, description, properties):
                self.router.dead_letter(entity, queue, entry, now, reason, description, properties)

    def _dead_letter_exhausted(self, place: Place, entry: QueueEntry, now: int) -> None:
        description = f"Message could not be consumed after {entry.delivery_count} delivery attempts."
        self.router.dead_letter(place.entity, place.queue, entry, now, "MaxDeliveryCountExceeded", description)

    def delete_batch(self, place: Place, count: int, enqueued_before_ms: int) -> int:
        """Delete up to `count` of the oldest active, unlocked messages. Returns how many."""
        if place.queue.requires_session:
            raise NotAllowedError(
                f"'{place.entity.path}' requires sessions: its messages cannot be deleted in batches."
            )
        deletable = (
            entry
            for entry in place.queue.entries.values()
            if entry.state is State.ACTIVE and entry.lock_token is None and entry.enqueued_ms <= enqueued_before_ms
        )
        chosen = list(islice(deletable, count))
        for entry in chosen:
            self.router.discard(place.entity, place.queue, entry)
        return len(chosen)

    # -- sessions

    def accept_session(self, place: Place, session_id: str | None, holder: int, now: int) -> MessageSession | None:
        if not place.queue.requires_session:
            raise NotAllowedError(
                f"'{place.entity.path}' does not require sessions. Open a receiver without a session."
            )
        return place.queue.accept_session(session_id, holder, now)

    def list_sessions(self, place: Place, last_updated_ms: int | None, skip: int, top: int) -> list[str]:
        if last_updated_ms is None or last_updated_ms >= FAR_FUTURE_MS:
            chosen = [s for s in place.queue.sessions.values() if s.messages]
        else:
            chosen = [s for s in place.queue.sessions.values() if s.updated_ms > last_updated_ms]
        return sorted(session.session_id for session in chosen)[skip : skip + top]

    # -- time

    def advance(self, queue: MessageQueue, now: int) -> None:
        """Bring one queue up to `now`. Sessions whose locks expired are added to `lost_sessions`."""
        if queue.next_deadline() > now:
            return
        owner = self.registry.by_id.get(entity_id_of(queue.queue_id))
        if owner is None:
            return
        due = queue.collect_due(now)
        if isinstance(owner, QueueEntity):
            place = Place(owner, queue, sub_queue_of(queue.queue_id))
            for entry in due.undeliverable:
                self._dead_letter_exhausted(place, entry, now)
            for entry in due.expired:
                if owner.description.dead_lettering_on_message_expiration:
                    text = "The message expired and was dead lettered."
                    self.router.dead_letter(owner, queue, entry, now, "TTLExpiredException", text)
                else:
                    self.router.discard(owner, queue, entry)
            self._forward_returned(place, now)
        for entry in due.scheduled:
            self.router.activate(owner, entry, now)
        self.lost_sessions.extend((queue, session) for session in due.lost_sessions)
        self.touched.add(queue)

    def note_deadline(self, queue: MessageQueue) -> None:
        """Note when the queue must be advanced again."""
        deadline = queue.next_deadline()
        if deadline < NEVER_MS and deadline < self._noted_deadlines.get(queue.queue_id, NEVER_MS):
            self._noted_deadlines[queue.queue_id] = deadline
            heapq.heappush(self._deadlines, (deadline, queue.queue_id))
            if len(self._deadlines) > max(COMPACTION_FLOOR, 2 * len(self._noted_deadlines)):
                self._deadlines = sorted((when, queue_id) for queue_id, when in self._noted_deadlines.items())

    def next_deadline(self) -> int:
        return self._deadlines[0][0] if self._deadlines else NEVER_MS

    def due_queues(self, now: int) -> list[MessageQueue]:
        """The queues whose deadline has passed."""
        queues = []
        while self._deadlines and self._deadlines[0][0] <= now:
            deadline, queue_id = heapq.heappop(self._deadlines)
            if self._noted_deadlines.get(queue_id) == deadline:
                del self._noted_deadlines[queue_id]
            if entity_id_of(queue_id) in self.registry.by_id:
                queues.append(self.registry.queue_by_id(queue_id))
        return queues

    def idle_entities(self, now: int) -> list[Entity]:
        """The entities that have been idle for as long as their description allows."""
        return [
            entity
            for entity in self.registry.entities.values()
            if entity.times.accessed_ms + entity.description.auto_delete_on_idle_ms <= now
            and not (isinstance(entity, QueueEntity) and entity.receivers)
        ]

    def count_loaded(self, queue_id: int, entry: QueueEntry, counted: set[int]) -> None:
        """Add a loaded message to its topic's size, once per payload (`counted` holds those already added)."""
        owner = self.registry.owner(queue_id)
        if isinstance(owner, SubscriptionEntity) and entry.payload_id not in counted:
            counted.add(entry.payload_id)
            owner.topic.shared_bytes += entry.size

    # -- counting

    def counts(self, key: str) -> MessageCounts:
        entity = self.registry.entity(key.lower())
        if isinstance(entity, TopicEntity):
            return MessageCounts(
                scheduled=entity.main.scheduled,
                size_bytes=entity.size_bytes,
                subscription_count=len(entity.subscriptions),
            )
        dead_letter = entity.depth(SubQueue.DEAD_LETTER)
        transfer_dead_letter = entity.depth(SubQueue.TRANSFER_DEAD_LETTER)
        return MessageCounts(
            active=entity.main.active,
            dead_letter=dead_letter,
            scheduled=entity.main.scheduled,
            transfer_dead_letter=transfer_dead_letter,
            size_bytes=entity.size_bytes,
            message_count=len(entity.main) + dead_letter + transfer_dead_letter,
        )
