"""The entities of a namespace: creating, updating, finding, listing and deleting them.

Invariants: `entities` holds every entity under its path in lower case; a topic's `subscriptions` holds its
subscriptions too; an id is never used twice; every change made here is written to `changes` in the same step.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TypeVar

from pairbus.embedded.entities.descriptions import (
    DEFAULT_RULE,
    FOREVER_MS,
    AuthorizationRule,
    EntityDescription,
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
    forward_targets,
    from_json,
    to_json,
    validate_change,
    with_identity,
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
from pairbus.embedded.entities.paths import SubQueue, entity_id_of, queue_id_of, sub_queue_of
from pairbus.embedded.entities.queue import MessageQueue
from pairbus.embedded.errors import EntityExistsError, EntityNotFoundError, InvalidError, Limits, QuotaExceededError

E = TypeVar("E", QueueEntity, SubscriptionEntity, TopicEntity)
_DESCRIPTIONS: dict[str, type[EntityDescription]] = {
    "queue": QueueDescription,
    "topic": TopicDescription,
    "subscription": SubscriptionDescription,
}
Compiled = tuple[Callable[[MessageProperties], bool], Callable[[MessageProperties], None] | None]


class Registry:
    def __init__(
        self, changes: Callable[[], Changes], payloads: Payloads, next_token: Callable[[], bytes], limits: Limits
    ) -> None:
        self.entities: dict[str, Entity] = {}
        self.touched: set[MessageQueue] = set()
        self.by_id: dict[int, Entity] = {}
        self.authorization_rules: tuple[AuthorizationRule, ...] = ()
        self.rules_by_path: dict[str, tuple[AuthorizationRule, ...]] = {}
        """The authorization rules of the entities that have any, by their paths in lower case."""
        self._changes = changes
        self._payloads = payloads
        self._make_queue = partial(MessageQueue, changes, self.touched, next_token)
        self._limits = limits
        self._next_id = 1

    # -- finding

    def entity(self, path: str) -> Entity:
        entity = self.entities.get(path.lower())
        if entity is None:
            raise _not_found(path)
        return entity

    def queue(self, path: str) -> QueueEntity:
        return self._of_kind(QueueEntity, path)

    def topic(self, path: str) -> TopicEntity:
        return self._of_kind(TopicEntity, path)

    def subscription(self, path: str) -> SubscriptionEntity:
        return self._of_kind(SubscriptionEntity, path)

    def _of_kind(self, kind: type[E], path: str) -> E:
        entity = self.entities.get(path.lower())
        if type(entity) is not kind:
            raise _not_found(path)
        return entity

    def rule(self, subscription: str, name: str) -> SubscriptionRule:
        rule = self.subscription(subscription).rules.get(name.lower())
        if rule is None:
            raise _not_found(f"{subscription}/Rules/{name}")
        return rule

    def queues(self) -> Iterator[QueueEntity]:
        return (entity for _, entity in sorted(self.entities.items()) if type(entity) is QueueEntity)

    def topics(self) -> Iterator[TopicEntity]:
        return (entity for _, entity in sorted(self.entities.items()) if type(entity) is TopicEntity)

    # -- creating and updating

    def create(self, description: EntityDescription, now: int) -> Entity:
        description.validate()
        if isinstance(description, SubscriptionDescription):
            return self._create_subscription(description, now)
        self._check_free(description)
        if len(self.entities) >= self._limits.max_entities:
            raise QuotaExceededError(f"The namespace has {len(self.entities)} entities, which is the maximum.")
        return self._create(description, now)

    def _create_subscription(self, description: SubscriptionDescription, now: int) -> SubscriptionEntity:
        topic = self.topic(description.topic)
        self._check_free(description)
        if len(topic.subscriptions) >= self._limits.max_subscriptions_per_topic:
            raise QuotaExceededError(
                f"The topic '{topic.path}' has {len(topic.subscriptions)} subscriptions, which is the maximum."
            )
        rule = description.default_rule or DEFAULT_RULE
        compiled = _compile(rule)
        entity = self._create(replace(description, topic=topic.path, default_rule=None), now)
        assert isinstance(entity, SubscriptionEntity)
        self._add_rule(entity, replace(rule, created_ms=now), compiled, now)
        return entity

    def _create(self, description: EntityDescription, now: int) -> Entity:
        self._check_targets(description)
        entity = self._add(self._take_id(), description, EntityTimes(now, now, now))
        self._write(entity)
        return entity

    def update(self, description: EntityDescription, now: int) -> Entity:
        entity = self.entity(description.path)
        current = entity.description
        if type(current) is not type(description):
            raise _not_found(description.path)
        description = with_identity(description, current)
        validate_change(description, current)
        self._check_targets(description)
        entity.describe(description)  # type: ignore[arg-type]
        self._index_rules(entity)
        entity.times.updated_ms = entity.times.accessed_ms = now
        self._write(entity)
        return entity

    def create_rule(self, subscription: str, description: RuleDescription, now: int) -> RuleDescription:
        description.validate()
        owner = self.subscription(subscription)
        if description.name.lower() in owner.rules:
            raise _exists(f"{subscription}/Rules/{description.name}")
        description = replace(description, created_ms=now)
        self._add_rule(owner, description, _compile(description), now)
        return description

    def update_rule(self, subscription: str, description: RuleDescription, now: int) -> RuleDescription:
        description.validate()
        rule = self.rule(subscription, description.name)
        compiled = _compile(description)
        rule.description = replace(description, name=rule.description.name, created_ms=rule.description.created_ms)
        rule.matches, rule.act = compiled
        self._write_rule(self.subscription(subscription), rule, now)
        return rule.description

    def set_authorization_rules(self, rules: tuple[AuthorizationRule, ...]) -> None:
        self.authorization_rules = rules
        self._changes().settings["authorization_rules"] = to_json(rules)

    # -- deleting

    def delete(self, entity: Entity) -> list[Entity]:
        """Delete an entity, and a topic's subscriptions with it. Returns everything that was deleted."""
        subscriptions = entity.subscriptions.values() if isinstance(entity, TopicEntity) else ()
        deleted: list[Entity] = [*subscriptions, entity]
        for each in deleted:
            self._drop(each)
        return deleted

    def delete_rule(self, subscription: str, name: str) -> None:
        rule = self.rule(subscription, name)
        del self.subscription(subscription).rules[name.lower()]
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
        self.rules_by_path.pop(entity.path.lower(), None)
        self._changes().entities.append(entity.entity_id)

    def drop_payload(self, entity: Entity, payload_id: int, size: int) -> None:
        """One message of the entity no longer needs the payload."""
        if self._payloads.drop(payload_id) and isinstance(entity, SubscriptionEntity):
            entity.topic.shared_bytes -= size

    # -- loading and stopping

    def load(self, entity_id: int, kind: str, path: str, text: str, times: EntityTimes) -> None:
        """Add an entity from the store. Topics come before subscriptions, subscriptions before rules."""
        self._next_id = max(self._next_id, entity_id + 1)
        if kind == "rule":
            owner = self.subscription(path.lower().partition("/rules/")[0])
            description = from_json(RuleDescription, text)
            rule = SubscriptionRule(entity_id, description, *_compile(description))
            owner.rules[description.name.lower()] = rule
        else:
            self._add(entity_id, from_json(_DESCRIPTIONS[kind], text), times)

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

    def _add(self, entity_id: int, description: EntityDescription, times: EntityTimes) -> Entity:
        entity: Entity
        if isinstance(description, QueueDescription):
            entity = QueueEntity(entity_id, description, times, self._make_queue)
        elif isinstance(description, TopicDescription):
            main = self._make_queue(queue_id_of(entity_id, SubQueue.MAIN), 60_000, NO_DELIVERY_LIMIT, False)
            entity = TopicEntity(entity_id, description, times, main, SeenMessageIds(entity_id))
        else:
            topic = self.topic(description.topic)
            entity = SubscriptionEntity(entity_id, description, times, self._make_queue, topic)
            topic.subscriptions[description.name.lower()] = entity
        self.entities[entity.path.lower()] = entity
        self.by_id[entity_id] = entity
        self._index_rules(entity)
        return entity

    def _index_rules(self, entity: Entity) -> None:
        rules = getattr(entity.description, "authorization_rules", ())
        if rules:
            self.rules_by_path[entity.path.lower()] = rules
        else:
            self.rules_by_path.pop(entity.path.lower(), None)

    def _add_rule(self, owner: SubscriptionEntity, description: RuleDescription, compiled: Compiled, now: int) -> None:
        rule = SubscriptionRule(self._take_id(), description, *compiled)
        owner.rules[description.name.lower()] = rule
        self._write_rule(owner, rule, now)

    def _check_free(self, description: EntityDescription) -> None:
        if description.path.lower() in self.entities:
            raise _exists(description.path)

    def _check_targets(self, description: EntityDescription) -> None:
        for name, target in forward_targets(description):
            is_itself = target.lower() == description.path.lower()
            if not is_itself and isinstance(self.entities.get(target.lower()), SubscriptionEntity | None):
                raise InvalidError(
                    f"{name} names '{target}', which is not a queue or topic of this namespace. Create it first."
                )

    def _write(self, entity: Entity) -> None:
        kind = next(kind for kind, described in _DESCRIPTIONS.items() if isinstance(entity.description, described))
        text, times = to_json(entity.description), entity.times
        row = (entity.entity_id, kind, entity.path, text, times.created_ms, times.updated_ms, times.accessed_ms)
        self._changes().entities.append(row)

    def _write_rule(self, owner: SubscriptionEntity, rule: SubscriptionRule, now: int) -> None:
        path = f"{owner.path}/Rules/{rule.description.name}"
        text = to_json(rule.description)
        self._changes().entities.append((rule.entity_id, "rule", path, text, rule.description.created_ms, now, now))


def _compile(description: RuleDescription) -> Compiled:
    action = compile_action(description.action) if description.action is not None else None
    return compile_filter(description.filter), action


def _not_found(path: str) -> EntityNotFoundError:
    return EntityNotFoundError(f"The messaging entity '{path}' could not be found.")


def _exists(path: str) -> EntityExistsError:
    return EntityExistsError(f"The messaging entity '{path}' already exists. Choose another name, or update it.")
