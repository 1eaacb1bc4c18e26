"""Where a message goes: to a queue, to subscriptions, on to a forward target, or to a dead-letter queue.

A send is checked as a whole before any of it is stored: either all messages of a batch are accepted or none.

A forwarded message carries its *route*, the entities it passed. After the maximum number of hops, or when it would
return to an entity it has passed, it goes to a transfer dead-letter queue: a topic whose subscriptions forward back to
it would otherwise multiply it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pairbus.amqp.message import Facts, read_facts, with_application_properties
from pairbus.embedded.entities.descriptions import FOREVER_MS, SubscriptionDescription
from pairbus.embedded.entities.entity import Entity, QueueEntity, SubscriptionEntity, TopicEntity
from pairbus.embedded.entities.filters import EvaluationError
from pairbus.embedded.entities.filters.views import MessageProperties, with_action_applied
from pairbus.embedded.entities.message import Changes, IncomingMessage, Payloads, QueueEntry, State
from pairbus.embedded.entities.paths import SubQueue, parse_address
from pairbus.embedded.entities.queue import NEVER_MS, MessageQueue
from pairbus.embedded.entities.registry import Registry
from pairbus.embedded.errors import (
    BrokerError,
    EntityDisabledError,
    InvalidError,
    Limits,
    MessageTooLargeError,
    NotAllowedError,
    QuotaExceededError,
)

MEGABYTE = 1024 * 1024
# The largest uint (AMQP 1.0, 3.2.1).
MAX_TTL_MS = 2**32 - 1
# The last millisecond of the year 9999, the latest time the service knows.
LATEST_MS = 253_402_300_799_999

DEAD_LETTER_REASON = "DeadLetterReason"
DEAD_LETTER_DESCRIPTION = "DeadLetterErrorDescription"

# Paths in lower case, first entity first.
Route = tuple[str, ...]


class Router:
    def __init__(self, registry: Registry, payloads: Payloads, changes: Callable[[], Changes], limits: Limits) -> None:
        self._registry = registry
        self._payloads = payloads
        self._changes = changes
        self._limits = limits

    # -- sending

    def sendable(self, path: str) -> Entity:
        """The queue or topic at this path, if clients may send to it."""
        address = parse_address(path)
        entity = self._registry.entity(address.key)
        if address.sub_queue is not SubQueue.MAIN or isinstance(entity, SubscriptionEntity):
            raise NotAllowedError(f"'{path}' does not accept sends. Send to a queue or a topic.")
        if entity.description.status in ("Disabled", "SendDisabled"):
            raise EntityDisabledError(
                f"Messaging entity '{entity.path}' is currently disabled for sending (status "
                f"{entity.description.status})."
            )
        return entity

    def check(self, entity: Entity, messages: Sequence[IncomingMessage]) -> None:
        """Raise for the first message that the entity must refuse."""
        limits = self._limits
        arriving = 0
        needs_session = isinstance(entity, QueueEntity) and entity.description.requires_session
        for message in messages:
            facts = message.facts
            if message.size > limits.max_message_bytes:
                raise MessageTooLargeError(
                    f"The message has {message.size} bytes. '{entity.path}' accepts at most {limits.max_message_bytes}."
                )
            if facts.application_properties_size > limits.max_properties_bytes:
                raise MessageTooLargeError(
                    f"The application properties have {facts.application_properties_size} bytes. At most "
                    f"{limits.max_properties_bytes} are allowed."
                )
            if needs_session and facts.session_id is None and not message.is_ping:
                raise NotAllowedError(
                    f"The SessionId was not set on a message, and it cannot be sent to the entity. Entity "
                    f"'{entity.path}' requires sessions."
                )
            for name, value in (("MessageId", facts.message_key), ("SessionId", facts.session_id)):
                if value is not None and len(value) > limits.max_id_length:
                    raise InvalidError(
                        f"The {name} has {len(value)} characters. At most {limits.max_id_length} are allowed."
                    )
            if facts.scheduled_ms is not None and facts.scheduled_ms > LATEST_MS:
                raise InvalidError(
                    f"The scheduled enqueue time {facts.scheduled_ms} is after the year 9999. Choose an earlier time."
                )
            if facts.ttl_ms is not None and not 0 <= facts.ttl_ms <= MAX_TTL_MS:
                raise InvalidError(f"The time to live is {facts.ttl_ms} ms. It must be between 0 and {MAX_TTL_MS}.")
            arriving += message.size
        self._check_quota(entity, arriving)

    def _check_quota(self, entity: Entity, arriving: int) -> None:
        description = entity.description
        if isinstance(description, SubscriptionDescription):
            return
        limit = description.max_size_in_megabytes * MEGABYTE
        if entity.size_bytes + arriving > limit:
            raise QuotaExceededError(
                f"The maximum entity size has been reached or exceeded for '{entity.path}': it holds "
                f"{entity.size_bytes} of {limit} bytes."
            )

    def send(self, entity: Entity, messages: Sequence[IncomingMessage], now: int) -> list[int]:
        """Store messages that passed `check`. Returns their sequence numbers, 0 for a message that is not kept here."""
        entity.times.accessed_ms = now
        return [self._accept(entity, message, now) for message in messages]

    def _accept(self, entity: Entity, message: IncomingMessage, now: int) -> int:
        if message.is_ping:
            entity.pings += 1
            return 0
        if self._is_duplicate(entity, message, now):
            return 0
        if message.facts.scheduled_ms is not None and message.facts.scheduled_ms > now:
            return self.schedule(entity, message, now)
        return self.enqueue(entity, message.raw, message.facts, now)

    def _is_duplicate(self, entity: Entity, message: IncomingMessage, now: int) -> bool:
        description = entity.description
        if isinstance(description, SubscriptionDescription):
            return False
        if message.facts.message_key is None or not description.requires_duplicate_detection:
            return False
        window = description.duplicate_detection_history_time_window_ms
        return entity.seen.is_duplicate(message.facts.message_key, now, window, self._changes())

    def schedule(self, entity: Entity, message: IncomingMessage, now: int) -> int:
        entry = entity.main.append(
            self._payloads.add(message.raw),
            message.size,
            now,
            NEVER_MS,
            state=State.SCHEDULED,
            session_id=message.facts.session_id,
            scheduled_ms=message.facts.scheduled_ms,
        )
        return entry.sequence_number

    def activate(self, entity: Entity, entry: QueueEntry, now: int) -> None:
        """Enqueue a scheduled message that is due, as if it had just been sent."""
        raw = self._payloads.read(entry.payload_id)
        self.discard(entity, entity.main, entry)
        self.enqueue(entity, raw, read_facts(raw), now)

    # -- placing

    def enqueue(
        self, entity: Entity, raw: bytes, facts: Facts, now: int, *, route: Route = (), origin: str | None = None
    ) -> int:
        route = (*route, entity.path.lower())
        if isinstance(entity, TopicEntity):
            self._publish(entity, raw, facts, now, route, origin)
            return 0
        if entity.description.forward_to is not None:
            self._forward(entity, entity.description.forward_to, raw, facts, now, route, origin)
            return 0
        return self._place(entity, self._payloads.add(raw), len(raw), facts, now, origin).sequence_number

    def _place(
        self, entity: QueueEntity, payload_id: int, size: int, facts: Facts, now: int, origin: str | None = None
    ) -> QueueEntry:
        description = entity.description
        ttl_ms = description.default_message_time_to_live_ms
        if isinstance(entity, SubscriptionEntity):
            ttl_ms = min(ttl_ms, entity.topic.description.default_message_time_to_live_ms)
        if facts.ttl_ms is not None:
            ttl_ms = min(ttl_ms, facts.ttl_ms)
        return entity.main.append(
            payload_id,
            size,
            now,
            NEVER_MS if ttl_ms >= FOREVER_MS else now + ttl_ms,
            session_id=facts.session_id,
            origin=origin,
        )

    def _publish(
        self, topic: TopicEntity, raw: bytes, facts: Facts, now: int, route: Route, origin: str | None
    ) -> None:
        shared_payload: int | None = None
        view = MessageProperties.of_facts(facts, size=len(raw), enqueued_ms=now)
        for subscription in topic.subscriptions.values():
            if subscription.description.status in ("Disabled", "SendDisabled"):
                continue
            plain, changed = self._copies(subscription, raw, view, now)
            forward_to = subscription.description.forward_to
            if forward_to is not None:
                for copy in [raw] * plain + changed:
                    self._forward(subscription, forward_to, copy, read_facts(copy), now, route, origin)
                continue
            if plain:
                if shared_payload is None:
                    shared_payload = self._payloads.add(raw)
                    topic.shared_bytes += len(raw)
                else:
                    self._payloads.share(shared_payload)
                self._place_in_subscription(subscription, shared_payload, raw, facts, now)
            for copy in changed:
                topic.shared_bytes += len(copy)
                self._place_in_subscription(subscription, self._payloads.add(copy), copy, read_facts(copy), now)

    def _copies(
        self, subscription: SubscriptionEntity, raw: bytes, view: MessageProperties, now: int
    ) -> tuple[bool, list[bytes]]:
        """The copies a subscription gets: whether it gets the original, and one changed copy per matching action."""
        plain = False
        changed: list[bytes] = []
        for rule in subscription.rules.values():
            try:
                if not rule.matches(view):
                    continue
                if rule.act is None:
                    plain = True
                    continue
                copy = view.copy()
                rule.act(copy)
                copy.set_application_property("RuleName", rule.description.name)
                changed.append(self._changed_copy(raw, copy))
            except EvaluationError as error:
                description = subscription.description
                assert isinstance(description, SubscriptionDescription)
                if description.dead_lettering_on_filter_evaluation_exceptions:
                    text = f"Rule '{rule.description.name}': {error}"
                    self._dead_letter_raw(subscription, raw, "FilterEvaluationException", text, now)
        return plain, changed

    def _changed_copy(self, raw: bytes, changed: MessageProperties) -> bytes:
        copy = with_action_applied(raw, changed)
        if len(copy) > self._limits.max_message_bytes:
            raise EvaluationError(f"the action makes the message {len(copy)} bytes long, which is too large")
        return copy

    def _place_in_subscription(
        self, subscription: SubscriptionEntity, payload_id: int, raw: bytes, facts: Facts, now: int
    ) -> None:
        if subscription.description.requires_session and facts.session_id is None:
            self._registry.drop_payload(subscription, payload_id, len(raw))
            self._dead_letter_raw(
                subscription, raw, "Session ID is null.", "Session enabled entity doesn't allow a null session id.", now
            )
            return
        self._place(subscription, payload_id, len(raw), facts, now)

    # -- leaving

    def discard(self, entity: Entity, queue: MessageQueue, entry: QueueEntry) -> None:
        """Delete a message."""
        queue.remove(entry)
        self._registry.drop_payload(entity, entry.payload_id, entry.size)

    def modify(
        self, entity: QueueEntity, queue: MessageQueue, entry: QueueEntry, properties: Mapping[str, Any]
    ) -> None:
        """Set application properties on a stored message, for this entry only."""
        raw = with_dead_letter_properties(self._payloads.read(entry.payload_id), None, None, properties)
        old_payload, old_size = entry.payload_id, entry.size
        queue.replace_payload(entry, self._payloads.add(raw), len(raw))
        if isinstance(entity, SubscriptionEntity):
            entity.topic.shared_bytes += len(raw)
        self._registry.drop_payload(entity, old_payload, old_size)

    def dead_letter(
        self,
        entity: QueueEntity,
        queue: MessageQueue,
        entry: QueueEntry,
        now: int,
        reason: str | None,
        description: str | None,
        properties: Mapping[str, Any] | None = None,
    ) -> None:
        """Move a message to the dead-letter queue, or to the entity's forward target for dead letters."""
        raw = self._payloads.read(entry.payload_id)
        raw = with_dead_letter_properties(raw, reason, description, properties or {})
        self.discard(entity, queue, entry)
        self._to_dead_letters(entity, raw, entry.enqueued_ms, entry.delivery_count, entry.session_id, now)

    def _dead_letter_raw(self, entity: QueueEntity, raw: bytes, reason: str, description: str, now: int) -> None:
        raw = with_dead_letter_properties(raw, reason, description, {})
        self._to_dead_letters(entity, raw, now, 0, read_facts(raw).session_id, now)

    def _to_dead_letters(
        self, entity: QueueEntity, raw: bytes, enqueued_ms: int, delivery_count: int, session_id: str | None, now: int
    ) -> None:
        target = entity.description.forward_dead_lettered_messages_to
        if target is not None:
            route = (f"{entity.path}/$DeadLetterQueue".lower(),)
            self._forward(entity, target, raw, read_facts(raw), now, route, entity.path)
            return
        self._to_sub_queue(entity, SubQueue.DEAD_LETTER, raw, enqueued_ms, delivery_count, session_id)

    def _to_sub_queue(
        self,
        entity: QueueEntity,
        sub_queue: SubQueue,
        raw: bytes,
        enqueued_ms: int,
        delivery_count: int,
        session_id: str | None,
    ) -> None:
        entity.queue(sub_queue).append(
            self._payloads.add(raw),
            len(raw),
            enqueued_ms,
            NEVER_MS,
            session_id=session_id,
            delivery_count=delivery_count,
        )
        if isinstance(entity, SubscriptionEntity):
            entity.topic.shared_bytes += len(raw)

    def forward_all(self, entity: QueueEntity, now: int) -> None:
        """Forward the messages that were already waiting when forwarding was switched on."""
        target = entity.description.forward_to
        if target is None:
            return
        for entry in [e for e in entity.main.entries.values() if e.state is State.ACTIVE and e.lock_token is None]:
            raw = self._payloads.read(entry.payload_id)
            self.discard(entity, entity.main, entry)
            self._forward(entity, target, raw, read_facts(raw), now, (entity.path.lower(),), entry.origin)

    def _forward(
        self, source: QueueEntity, target: str, raw: bytes, facts: Facts, now: int, route: Route, origin: str | None
    ) -> None:
        """Forward a message. If the target refuses it, it goes to the source's transfer dead-letter queue."""
        if len(route) > self._limits.forward_hops:
            reason = "MaxTransferHopCountExceeded"
            detail = f"The message was forwarded {len(route) - 1} times, which is the maximum."
        elif target.lower() in route:
            reason = "MaxTransferHopCountExceeded"
            detail = f"The message has already passed '{target}' and would be forwarded in circles."
        else:
            message = IncomingMessage.from_raw(raw)
            try:
                entity = self.sendable(target)
                self.check(entity, [message])
            except BrokerError as error:
                reason, detail = "ForwardTargetRefused", error.description
            else:
                if not self._is_duplicate(entity, message, now):
                    self.enqueue(entity, raw, facts, now, route=route, origin=origin)
                return
        raw = with_dead_letter_properties(raw, reason, detail, {})
        self._to_sub_queue(source, SubQueue.TRANSFER_DEAD_LETTER, raw, now, 0, facts.session_id)


def with_dead_letter_properties(
    raw: bytes, reason: str | None, description: str | None, properties: Mapping[str, Any]
) -> bytes:
    updates = dict(properties)
    if reason is not None:
        updates[DEAD_LETTER_REASON] = reason
    if description is not None:
        updates[DEAD_LETTER_DESCRIPTION] = description
    return with_application_properties(raw, updates) if updates else raw
