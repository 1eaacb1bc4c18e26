"""The entities of a namespace: creating, updating, finding, listing and deleting them.

Invariants: `entities` holds every entity under its path in lower case; a topic's `subscriptions` holds its
subscriptions too; an id is never used twice; every change made here is written to `changes` in the same step.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeVar

from pairbus.embedded.entities.descriptions import (
    DEFAULT_RULE,
    FOREVER_MS,
    AuthorizationRule,
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
    forward_targets,
    from_json,
    to_json,
)
from pairbus.embedded.entities.entity import (
    NO_DELIVERY_LIMIT,
    Entity,
    EntityTimes,
    QueueEntity,
    SeenMessageIds,
    SubscriptionEntity,
    SubscriptionRule,
    TopicEntity,
)
from pairbus.embedded.entities.filters import MessageProperties, compile_action, compile_filter
from pairbus.embedded.entities.message import Changes, Payloads
from pairbus.embedded.entities.paths import (
    SubQueue,
    entity_id_of,
    queue_id_of,
    rule_path,
    sub_queue_of,
    subscription_path,
)
from pairbus.embedded.entities.queue import MessageQueue
from pairbus.embedded.errors import EntityExistsError, EntityNotFoundError, InvalidError, Limits, QuotaExceededError

E = TypeVar("E", QueueEntity, SubscriptionEntity, TopicEntity)
Compiled = tuple[Callable[[MessageProperties], bool], Callable[[MessageProperties], None] | None]


class Registry:
    def __init__(
        self, changes: Callable[[], Changes], payloads: Payloads, next_token: Callable[[], bytes], limits: Limits
    ) -> None:
        self.entities: dict[str, Entity] = {}
        self.touched: set[MessageQueue] = set()
        self.by_id: dict[int, Entity] = {}
        self.authorization_rules: tuple[AuthorizationRule, ...] = ()
        self._changes = changes
        self._payloads = payloads
        self._next_token = next_token
        self._limits = limits
        self._next_id = 1

    # -- finding

    def queue(self, name: str) -> QueueEntity:
        entity = self.entities.get(name.lower())
        if type(entity) is not QueueEntity:
            raise _not_found(name)
        return entity

    def topic(self, name: str) -> TopicEntity:
        entity = self.entities.get(name.lower())
        if type(entity) is not TopicEntity:
            raise _not_found(name)
        return entity

    def subscription(self, topic: str, name: str) -> SubscriptionEntity:
        subscription = self.topic(topic).subscriptions.get(name.lower())
        if subscription is None:
            raise _not_found(subscription_path(topic, name))
        return subscription

    def rule(self, topic: str, subscription: str, name: str) -> SubscriptionRule:
        rule = self.subscription(topic, subscription).rules.get(name.lower())
        if rule is None:
            raise _not_found(rule_path(topic, subscription, name))
        return rule

    def entity(self, key: str) -> Entity:
        entity = self.entities.get(key)
        if entity is None:
            raise _not_found(key)
        return entity

    def queues(self) -> Iterator[QueueEntity]:
        return (entity for _, entity in sorted(self.entities.items()) if type(entity) is QueueEntity)

    def topics(self) -> Iterator[TopicEntity]:
        return (entity for _, entity in sorted(self.entities.items()) if type(entity) is TopicEntity)

    # -- creating and updating

    def create_queue(self, description: QueueDescription, now: int) -> QueueEntity:
        description.validate()
        self._check_free(description.name)
        self._check_targets(description)
        entity = self._add_queue(self._take_id(), description, EntityTimes(now, now, now))
        self._write(entity)
        return entity

    def update_queue(self, description: QueueDescription, now: int) -> QueueEntity:
        entity = self.queue(description.name)
        assert isinstance(entity.description, QueueDescription)
        description = replace(description, name=entity.description.name)
        description.validate_change(entity.description)
        self._check_targets(description)
        entity.describe(description)
        return self._updated(entity, now)

    def create_topic(self, description: TopicDescription, now: int) -> TopicEntity:
        description.validate()
        self._check_free(description.name)
        entity = self._add_topic(self._take_id(), description, EntityTimes(now, now, now))
        self._write(entity)
        return entity

    def update_topic(self, description: TopicDescription, now: int) -> TopicEntity:
        entity = self.topic(description.name)
        description = replace(description, name=entity.description.name)
        description.validate_change(entity.description)
        entity.description = description
        return self._updated(entity, now)

    def create_subscription(self, description: SubscriptionDescription, now: int) -> SubscriptionEntity:
        description.validate()
        topic = self.topic(description.topic)
        if description.name.lower() in topic.subscriptions:
            raise _exists(subscription_path(description.topic, description.name))
        if len(topic.subscriptions) >= self._limits.max_subscriptions_per_topic:
            raise QuotaExceededError(
                f"The topic '{topic.path}' has {len(topic.subscriptions)} subscriptions, which is the maximum."
            )
        self._check_targets(description)
        rule = description.default_rule or DEFAULT_RULE
        compiled = _compile(rule)
        description = replace(description, topic=topic.description.name, default_rule=None)
        entity = self._add_subscription(self._take_id(), description, EntityTimes(now, now, now))
        self._write(entity)
        self._add_rule(entity, replace(rule, created_ms=now), compiled, now)
        return entity

    def update_subscription(self, description: SubscriptionDescription, now: int) -> SubscriptionEntity:
        entity = self.subscription(description.topic, description.name)
        current = entity.description
        assert isinstance(current, SubscriptionDescription)
        description = replace(description, topic=current.topic, name=current.name, default_rule=None)
        description.validate_change(current)
        self._check_targets(description)
        entity.describe(description)
        return self._updated(entity, now)

    def create_rule(self, topic: str, subscription: str, description: RuleDescription, now: int) -> RuleDescription:
        description.validate()
        owner = self.subscription(topic, subscription)
        if description.name.lower() in owner.rules:
            raise _exists(rule_path(topic, subscription, description.name))
        description = replace(description, created_ms=now)
        self._add_rule(owner, description, _compile(description), now)
        return description

    def update_rule(self, topic: str, subscription: str, description: RuleDescription, now: int) -> RuleDescription:
        description.validate()
        rule = self.rule(topic, subscription, description.name)
        compiled = _compile(description)
        rule.description = replace(description, name=rule.description.name, created_ms=rule.description.created_ms)
        rule.matches, rule.act = compiled
        self._write_rule(self.subscription(topic, subscription), rule, now)
        return rule.description

    def set_authorization_rules(self, rules: tuple[AuthorizationRule, ...]) -> None:
        self.authorization_rules = rules
        self._changes().settings["authorization_rules"] = to_json(rules)

    # -- deleting

    def delete_queue(self, name: str) -> QueueEntity:
        entity = self.queue(name)
        self._drop(entity)
        return entity

    def delete_topic(self, name: str) -> TopicEntity:
        topic = self.topic(name)
        for subscription in list(topic.subscriptions.values()):
            self._drop(subscription)
        self._drop(topic)
        return topic

    def delete_subscription(self, topic: str, name: str) -> SubscriptionEntity:
        entity = self.subscription(topic, name)
        self._drop(entity)
        return entity

    def delete_rule(self, topic: str, subscription: str, name: str) -> None:
        rule = self.rule(topic, subscription, name)
        del self.subscription(topic, subscription).rules[name.lower()]
        self._changes().entities.append(rule.entity_id)

    def _drop(self, entity: Entity) -> None:
        queues = entity.queues() if isinstance(entity, QueueEntity) else iter((entity.main,))
        for queue in list(queues):
            for entry in list(queue.entries.values()):
                queue.remove(entry)
                self.drop_payload(entity, entry.payload_id, entry.size)
            self.touched.discard(queue)
        del self.by_id[entity.entity_id]
        if isinstance(entity, SubscriptionEntity):
            for rule in entity.rules.values():
                self._changes().entities.append(rule.entity_id)
            del entity.topic.subscriptions[entity.description.name.lower()]
        self.entities.pop(entity.path.lower(), None)
        self._changes().entities.append(entity.entity_id)

    def drop_payload(self, entity: Entity, payload_id: int, size: int) -> None:
        """One message of the entity no longer needs the payload."""
        if self._payloads.drop(payload_id) and isinstance(entity, SubscriptionEntity):
            entity.topic.shared_bytes -= size

    # -- loading and stopping

    def load(self, entity_id: int, kind: str, path: str, text: str, times: EntityTimes) -> None:
        """Add an entity from the store. Topics come before subscriptions, subscriptions before rules."""
        self._next_id = max(self._next_id, entity_id + 1)
        match kind:
            case "queue":
                self._add_queue(entity_id, from_json(QueueDescription, text), times)
            case "topic":
                self._add_topic(entity_id, from_json(TopicDescription, text), times)
            case "subscription":
                self._add_subscription(entity_id, from_json(SubscriptionDescription, text), times)
            case "rule":
                key = path.lower().partition("/rules/")[0]
                owner = self.entities[key]
                assert isinstance(owner, SubscriptionEntity)
                description = from_json(RuleDescription, text)
                matches, act = _compile(description)
                owner.rules[description.name.lower()] = SubscriptionRule(entity_id, description, matches, act)

    def owner(self, queue_id: int) -> Entity:
        return self.by_id[entity_id_of(queue_id)]

    def queue_by_id(self, queue_id: int) -> MessageQueue:
        owner = self.owner(queue_id)
        return owner.queue(sub_queue_of(queue_id)) if isinstance(owner, QueueEntity) else owner.main

    def access_times(self) -> list[tuple[int, int]]:
        """When each entity was last used, for the store to write when the namespace stops."""
        return [(entity.times.accessed_ms, entity.entity_id) for entity in self.entities.values()]

    def start_idle_times(self, now: int) -> None:
        """Restart the idle time of entities that are deleted when idle.

        Nobody could use them while the namespace was stopped, and a killed namespace did not write the access times.
        """
        for entity in self.entities.values():
            if entity.description.auto_delete_on_idle_ms < FOREVER_MS:
                entity.times.accessed_ms = max(entity.times.accessed_ms, now)

    # -- steps of the above

    def _take_id(self) -> int:
        entity_id = self._next_id
        self._next_id += 1
        return entity_id

    def _make_queue(
        self, queue_id: int, lock_duration_ms: int, max_delivery_count: int, requires_session: bool
    ) -> MessageQueue:
        return MessageQueue(
            queue_id,
            self._changes,
            self.touched,
            self._next_token,
            lock_duration_ms=lock_duration_ms,
            max_delivery_count=max_delivery_count,
            requires_session=requires_session,
        )

    def _add_queue(self, entity_id: int, description: QueueDescription, times: EntityTimes) -> QueueEntity:
        return self._add(QueueEntity(entity_id, description, times, self._make_queue))

    def _add_topic(self, entity_id: int, description: TopicDescription, times: EntityTimes) -> TopicEntity:
        main = self._make_queue(queue_id_of(entity_id, SubQueue.MAIN), 60_000, NO_DELIVERY_LIMIT, False)
        return self._add(TopicEntity(entity_id, description, times, main, SeenMessageIds(entity_id)))

    def _add_subscription(
        self, entity_id: int, description: SubscriptionDescription, times: EntityTimes
    ) -> SubscriptionEntity:
        topic = self.topic(description.topic)
        entity = SubscriptionEntity(entity_id, description, times, self._make_queue, topic)
        topic.subscriptions[description.name.lower()] = entity
        return self._add(entity)

    def _add(self, entity: E) -> E:
        self.entities[entity.path.lower()] = entity
        self.by_id[entity.entity_id] = entity
        return entity

    def _add_rule(self, owner: SubscriptionEntity, description: RuleDescription, compiled: Compiled, now: int) -> None:
        rule = SubscriptionRule(self._take_id(), description, *compiled)
        owner.rules[description.name.lower()] = rule
        self._write_rule(owner, rule, now)

    def _check_free(self, name: str) -> None:
        if name.lower() in self.entities:
            raise _exists(name)
        if len(self.entities) >= self._limits.max_entities:
            raise QuotaExceededError(f"The namespace has {len(self.entities)} entities, which is the maximum.")

    def _check_targets(self, description: QueueDescription | SubscriptionDescription) -> None:
        own_key = description.name.lower() if isinstance(description, QueueDescription) else None
        for name, target in forward_targets(description):
            if target.lower() == own_key:
                continue
            if isinstance(self.entities.get(target.lower()), SubscriptionEntity | None):
                raise InvalidError(
                    f"{name} names '{target}', which is not a queue or topic of this namespace. Create it first."
                )

    def _updated(self, entity: E, now: int) -> E:
        entity.times.updated_ms = entity.times.accessed_ms = now
        self._write(entity)
        return entity

    def _write(self, entity: Entity) -> None:
        kind = {QueueEntity: "queue", SubscriptionEntity: "subscription", TopicEntity: "topic"}[type(entity)]
        times = entity.times
        self._changes().entities.append(
            (
                entity.entity_id,
                kind,
                entity.path,
                to_json(entity.description),
                times.created_ms,
                times.updated_ms,
                times.accessed_ms,
            )
        )

    def _write_rule(self, owner: SubscriptionEntity, rule: SubscriptionRule, now: int) -> None:
        path = rule_path(owner.topic.path, owner.description.name, rule.description.name)
        text = to_json(rule.description)
        self._changes().entities.append((rule.entity_id, "rule", path, text, rule.description.created_ms, now, now))


def _compile(description: RuleDescription) -> Compiled:
    action = compile_action(description.action) if description.action is not None else None
    return compile_filter(description.filter), action


def _not_found(path: str) -> EntityNotFoundError:
    return EntityNotFoundError(f"The messaging entity '{path}' could not be found.")


def _exists(path: str) -> EntityExistsError:
    return EntityExistsError(f"The messaging entity '{path}' already exists. Choose another name, or update it.")
