"""Queues, topics and subscriptions at run time: a description, its messages, and when they were last used."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from pairbus.embedded.entities.descriptions import (
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from pairbus.embedded.entities.filters import MessageProperties
from pairbus.embedded.entities.message import Changes
from pairbus.embedded.entities.paths import SubQueue, queue_id_of
from pairbus.embedded.entities.queue import MessageQueue

# A message in a sub-queue has nowhere else to go.
NO_DELIVERY_LIMIT = 1 << 31


@dataclass(slots=True)
class EntityTimes:
    created_ms: int
    updated_ms: int
    accessed_ms: int


class SeenMessageIds:
    """The message ids within the duplicate detection window, oldest first."""

    def __init__(self, entity_id: int) -> None:
        self._entity_id = entity_id
        self._at: dict[str, int] = {}
        self._order: deque[tuple[int, str]] = deque()

    def load(self, message_id: str, at_ms: int) -> None:
        self._at[message_id] = at_ms
        self._order.append((at_ms, message_id))

    def is_duplicate(self, message_id: str, now: int, window_ms: int, changes: Changes) -> bool:
        """Whether the id was seen within the window. Remembers it if not."""
        forgotten_ms = None
        while self._order and self._order[0][0] <= now - window_ms:
            forgotten_ms, old = self._order.popleft()
            del self._at[old]
        if forgotten_ms is not None:
            changes.seen_drops.append((self._entity_id, forgotten_ms))
        if message_id in self._at:
            return True
        self.load(message_id, now)
        changes.seen.append((self._entity_id, message_id, now))
        return False

    def has(self, message_id: str, now: int, window_ms: int) -> bool:
        at_ms = self._at.get(message_id)
        return at_ms is not None and at_ms > now - window_ms


@dataclass(slots=True)
class SubscriptionRule:
    """A rule with its filter and action compiled."""

    entity_id: int
    description: RuleDescription
    matches: Callable[[MessageProperties], bool]
    act: Callable[[MessageProperties], None] | None


MakeQueue = Callable[[int, int, int, bool], MessageQueue]


class QueueEntity:
    """A queue or, as `SubscriptionEntity`, a subscription: an entity that clients receive from."""

    def __init__(
        self,
        entity_id: int,
        description: QueueDescription | SubscriptionDescription,
        times: EntityTimes,
        make_queue: MakeQueue,
    ) -> None:
        self.entity_id = entity_id
        self.times = times
        self.receivers = 0
        self.pings = 0
        self.seen = SeenMessageIds(entity_id)
        self._make_queue = make_queue
        self.description: QueueDescription | SubscriptionDescription = description
        self.main = make_queue(
            queue_id_of(entity_id, SubQueue.MAIN),
            description.lock_duration_ms,
            description.max_delivery_count,
            description.requires_session,
        )
        self._sub_queues: dict[SubQueue, MessageQueue] = {}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path!r}: {len(self.main)} messages>"

    @property
    def path(self) -> str:
        return self.description.path

    def describe(self, description: QueueDescription | SubscriptionDescription) -> None:
        self.description = description
        self.main.lock_duration_ms = description.lock_duration_ms
        self.main.max_delivery_count = description.max_delivery_count
        for queue in self._sub_queues.values():
            queue.lock_duration_ms = description.lock_duration_ms

    def queue(self, sub_queue: SubQueue) -> MessageQueue:
        """The main queue or a sub-queue. Sub-queues are created on first use."""
        if sub_queue is SubQueue.MAIN:
            return self.main
        queue = self._sub_queues.get(sub_queue)
        if queue is None:
            queue = self._sub_queues[sub_queue] = self._make_queue(
                queue_id_of(self.entity_id, sub_queue), self.description.lock_duration_ms, NO_DELIVERY_LIMIT, False
            )
        return queue

    def queues(self) -> Iterator[MessageQueue]:
        yield self.main
        yield from self._sub_queues.values()

    def depth(self, sub_queue: SubQueue) -> int:
        queue = self._sub_queues.get(sub_queue)
        return len(queue) if queue is not None else 0

    @property
    def size_bytes(self) -> int:
        return sum(queue.size_bytes for queue in self.queues())


class SubscriptionEntity(QueueEntity):
    description: SubscriptionDescription

    def __init__(
        self,
        entity_id: int,
        description: SubscriptionDescription,
        times: EntityTimes,
        make_queue: MakeQueue,
        topic: "TopicEntity",
    ) -> None:
        super().__init__(entity_id, description, times, make_queue)
        self.topic = topic
        self.rules: dict[str, SubscriptionRule] = {}


@dataclass(slots=True)
class TopicEntity:
    """A topic holds only scheduled messages. All others go to its subscriptions at once."""

    entity_id: int
    description: TopicDescription
    times: EntityTimes
    main: MessageQueue
    seen: SeenMessageIds
    subscriptions: dict[str, SubscriptionEntity] = field(default_factory=dict)
    pings: int = 0
    # Bytes of the payloads in its subscriptions, counting a shared payload once.
    shared_bytes: int = 0

    def __repr__(self) -> str:
        return f"<TopicEntity {self.path!r}: {len(self.subscriptions)} subscriptions>"

    @property
    def path(self) -> str:
        return self.description.name

    def describe(self, description: TopicDescription) -> None:
        self.description = description

    @property
    def size_bytes(self) -> int:
        return self.main.size_bytes + self.shared_bytes


Entity = QueueEntity | TopicEntity
