"""What the administration endpoint does for each target and method.

Creating is PUT without `If-Match`, updating is PUT with it (`*` or the entity's ETag). Lists are sorted by
name and come in pages of at most 100. What involves more than one entity is checked here: whether the target
of a forward exists, and whether the caller may send to it.

What a request's path names.

Clients write an entity's slashes as they are or as %2F; both mean the same. `Subscriptions` and `Rules` are
recognised in any case. A name that is not one of these shapes is a queue or a topic.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeVar
from urllib.parse import unquote
from xml.etree.ElementTree import Element as XmlElement

from pairbus.embedded.administration import atom
from pairbus.embedded.administration.atom import Entry, Page
from pairbus.embedded.administration.elements import local_name, read_rule
from pairbus.embedded.broker import Broker
from pairbus.embedded.entities.descriptions import (
    SEND,
    CorrelationFilter,
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from pairbus.embedded.entities.paths import rule_path, subscription_path
from pairbus.embedded.errors import (
    EntityNotFoundError,
    InvalidError,
    Limits,
    NotAllowedError,
    PreconditionFailedError,
    UnauthorizedError,
)
from pairbus.embedded.security import Authority

MAX_PATH_LENGTH = 1_024


class Kind(Enum):
    NAMESPACE = "namespace"
    QUEUES = "queues"
    TOPICS = "topics"
    ENTITY = "entity"
    SUBSCRIPTIONS = "subscriptions"
    SUBSCRIPTION = "subscription"
    RULES = "rules"
    RULE = "rule"
    CONTROL = "control"


@dataclass(frozen=True, slots=True)
class Target:
    kind: Kind
    path: str
    """The whole path, decoded, without slashes around it."""
    entity: str = ""
    subscription: str = ""
    rule: str = ""


def parse_target(raw_path: str) -> Target:
    """The target of a raw request path (without its query)."""
    if len(raw_path) > MAX_PATH_LENGTH:
        raise InvalidError(f"The path has {len(raw_path)} characters: at most {MAX_PATH_LENGTH} are allowed.")
    path = unquote(raw_path, errors="replace").strip("/")
    if not path:
        raise InvalidError("The path names no entity: put the entity's name behind the host.")
    segments = path.split("/")
    words = [segment.lower() for segment in segments]
    match words:
        case ["$namespaceinfo"]:
            return Target(Kind.NAMESPACE, path)
        case ["$resources", "queues"]:
            return Target(Kind.QUEUES, path)
        case ["$resources", "topics"]:
            return Target(Kind.TOPICS, path)
        case ["$pairbus", *_]:
            return Target(Kind.CONTROL, path)
        case [word, *_] if word.startswith("$"):
            raise EntityNotFoundError(f"'{path}' is not a resource of this namespace.")
        case [_, *_, "subscriptions"]:
            return Target(Kind.SUBSCRIPTIONS, path, "/".join(segments[:-1]))
        case [_, *_, "subscriptions", _]:
            return Target(Kind.SUBSCRIPTION, path, "/".join(segments[:-2]), segments[-1])
        case [_, *_, "subscriptions", _, "rules"]:
            return Target(Kind.RULES, path, "/".join(segments[:-3]), segments[-2])
        case [_, *_, "subscriptions", _, "rules", _]:
            return Target(Kind.RULE, path, "/".join(segments[:-4]), segments[-3], segments[-1])
    return Target(Kind.ENTITY, path, path)


PAGE_SIZE = 100
ENTRY_TYPE = "application/atom+xml;type=entry;charset=utf-8"
FEED_TYPE = "application/atom+xml;type=feed;charset=utf-8"
FORWARD_TOKEN_HEADER = "ServiceBusSupplementaryAuthorization"  # noqa: S105 — a header's name
DEAD_LETTER_TOKEN_HEADER = "ServiceBusDlqSupplementaryAuthorization"  # noqa: S105

_NAME_FILTER = re.compile(r"\s*startswith\(\s*path\s*,\s*'((?:[^']|'')*)'\s*\)(?:\s+eq\s+true)?\s*", re.IGNORECASE)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Call:
    """One request, with its token already checked for the target."""

    method: str
    target: Target
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    page: Page
    now_ms: int

    @property
    def if_match(self) -> str | None:
        return self.headers.get("If-Match")


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    body: str = ""
    content_type: str = ENTRY_TYPE
    etag: str | None = None


@dataclass(frozen=True, slots=True)
class _At:
    """A rule has one time only; an entry wants three."""

    created_ms: int
    updated_ms: int
    accessed_ms: int


class Operations:
    def __init__(self, broker: Broker, authority: Authority, limits: Limits, name: str, created_ms: int) -> None:
        self._broker = broker
        self._authority = authority
        self._message_kilobytes = max(1, limits.max_message_bytes // 1024)
        self._name = name
        self._created_ms = created_ms

    async def run(self, call: Call) -> Reply:
        match call.method, call.target.kind:
            case "GET", Kind.NAMESPACE:
                return self._namespace(call)
            case "GET", Kind.QUEUES:
                return self._list(
                    call, "Queues", self._broker.list_queues(), lambda queue: queue.name, self._queue_entry
                )
            case "GET", Kind.TOPICS:
                return self._list(
                    call, "Topics", self._broker.list_topics(), lambda topic: topic.name, self._topic_entry
                )
            case "GET", Kind.SUBSCRIPTIONS:
                subscriptions = self._broker.list_subscriptions(call.target.entity)
                return self._list(
                    call, "Subscriptions", subscriptions, lambda item: item.name, self._subscription_entry
                )
            case "GET", Kind.RULES:
                rules = self._broker.list_rules(call.target.entity, call.target.subscription)
                return self._list(call, "Rules", rules, lambda rule: rule.name, self._rule_entry)
            case "GET", Kind.ENTITY | Kind.SUBSCRIPTION | Kind.RULE:
                return self._found(call, self._entry_of(call), 200)
            case "PUT", Kind.ENTITY:
                return await self._put_entity(call)
            case "PUT", Kind.SUBSCRIPTION:
                return await self._put_subscription(call)
            case "PUT", Kind.RULE:
                return await self._put_rule(call)
            case "DELETE", Kind.ENTITY | Kind.SUBSCRIPTION | Kind.RULE:
                await self._broker.delete(_canonical_path(call.target))
                return Reply(200)
            case _:
                raise NotAllowedError(f"{call.method} is not possible on '{call.target.path}'.")

    def _namespace(self, call: Call) -> Reply:
        content = atom.namespace_content(self._name, self._created_ms, self._created_ms)
        times = _At(self._created_ms, self._created_ms, self._created_ms)
        entry = Entry(call.target.path, self._name, times, content)
        return Reply(200, atom.write_entry(call.page, entry))

    # Reading

    def _entry_of(self, call: Call) -> Entry:
        target = call.target
        if target.kind is Kind.RULE:
            return self._rule_entry(call, self._broker.get_rule(target.entity, target.subscription, target.rule))
        if target.kind is Kind.SUBSCRIPTION:
            return self._subscription_entry(call, self._broker.get_subscription(target.entity, target.subscription))
        entity = self._find(target.entity)
        if entity is None:
            raise EntityNotFoundError(f"The messaging entity '{target.entity}' could not be found.")
        return (
            self._queue_entry(call, entity) if isinstance(entity, QueueDescription) else self._topic_entry(call, entity)
        )

    def _find(self, name: str) -> QueueDescription | TopicDescription | None:
        for find in (self._broker.get_queue, self._broker.get_topic):
            try:
                return find(name)
            except EntityNotFoundError:
                continue
        return None

    def _queue_entry(self, call: Call, queue: QueueDescription) -> Entry:
        times = self._broker.times(queue.name)
        content = atom.queue_content(call.page, queue, self._broker.counts(queue.name), times)
        return Entry(queue.name, queue.name, times, content)

    def _topic_entry(self, call: Call, topic: TopicDescription) -> Entry:
        times = self._broker.times(topic.name)
        counts = self._broker.counts(topic.name)
        content = atom.topic_content(call.page, topic, counts, times, self._filter_counts(call, topic.name))
        return Entry(topic.name, topic.name, times, content)

    def _filter_counts(self, call: Call, topic: str) -> tuple[int, int]:
        """SQL filters, to which true and false ones belong, and correlation filters of all its subscriptions."""
        if call.page.api_version < atom.FILTER_COUNTS_SINCE:
            return 0, 0
        correlation = total = 0
        for subscription in self._broker.list_subscriptions(topic):
            rules = self._broker.list_rules(topic, subscription.name)
            total += len(rules)
            correlation += sum(isinstance(rule.filter, CorrelationFilter) for rule in rules)
        return total - correlation, correlation

    def _subscription_entry(self, call: Call, subscription: SubscriptionDescription) -> Entry:
        path = subscription_path(subscription.topic, subscription.name)
        times = self._broker.times(path)
        content = atom.subscription_content(call.page, subscription, self._broker.counts(path), times)
        return Entry(path, subscription.name, times, content)

    def _rule_entry(self, call: Call, rule: RuleDescription) -> Entry:
        path = rule_path(call.target.entity, call.target.subscription, rule.name)
        times = _At(rule.created_ms, rule.created_ms, rule.created_ms)
        return Entry(path, rule.name, times, atom.rule_content(rule))

    def _list(
        self,
        call: Call,
        title: str,
        items: Sequence[_T],
        name_of: Callable[[_T], str],
        entry_of: Callable[[Call, _T], Entry],
    ) -> Reply:
        skip = _whole_number(call.query, "$skip", 0)
        top = min(_whole_number(call.query, "$top", PAGE_SIZE), PAGE_SIZE)
        prefix = _name_prefix(call.query)
        chosen = [item for item in items if name_of(item).lower().startswith(prefix)] if prefix else items
        entries = [entry_of(call, item) for item in chosen[skip : skip + top]]
        following = skip + top
        more = top > 0 and following < len(chosen)
        next_query = f"$skip={following}&$top={top}&" if more else None
        feed = atom.write_feed(call.page, call.target.path, title, entries, next_query, call.now_ms)
        return Reply(200, feed, FEED_TYPE)

    def _found(self, call: Call, entry: Entry, status: int) -> Reply:
        return Reply(status, atom.write_entry(call.page, entry), etag=_etag(entry.times))

    # Creating and updating

    async def _put_entity(self, call: Call) -> Reply:
        root = atom.parse_content(call.body)
        current = self._find(call.target.entity)
        kind = local_name(root)
        if kind not in ("QueueDescription", "TopicDescription"):
            raise InvalidError(f"The content is a {kind[:64]}: expected a QueueDescription or a TopicDescription.")
        if call.if_match is not None and current is None:
            raise EntityNotFoundError(f"The messaging entity '{call.target.entity}' could not be found.")
        if call.if_match is None or current is None:
            return await self._create_entity(call, root, kind)
        self._require_match(call, current.name)
        return await self._update_entity(call, root, kind, current)

    async def _create_entity(self, call: Call, root: XmlElement, kind: str) -> Reply:
        name = call.target.entity
        if kind == "QueueDescription":
            start = QueueDescription(name, max_message_size_in_kilobytes=self._message_kilobytes)
            queue = atom.read_queue(root, start, call.now_ms)
            queue.validate()
            self._require_size(queue)
            self._require_forwards(call, queue)
            return self._found(call, self._queue_entry(call, await self._broker.create_queue(queue)), 201)
        blank = TopicDescription(name, max_message_size_in_kilobytes=self._message_kilobytes)
        topic = atom.read_topic(root, blank, call.now_ms)
        topic.validate()
        self._require_size(topic)
        return self._found(call, self._topic_entry(call, await self._broker.create_topic(topic)), 201)

    async def _update_entity(
        self, call: Call, root: XmlElement, kind: str, current: QueueDescription | TopicDescription
    ) -> Reply:
        if kind != type(current).__name__:
            raise InvalidError(f"'{current.name}' cannot be updated with a {kind}: it has a {type(current).__name__}.")
        if isinstance(current, QueueDescription):
            queue = atom.read_queue(root, current, call.now_ms)
            queue.validate_change(current)
            self._require_size(queue)
            self._require_forwards(call, queue)
            return self._found(call, self._queue_entry(call, await self._broker.update_queue(queue)), 200)
        topic = atom.read_topic(root, current, call.now_ms)
        topic.validate_change(current)
        self._require_size(topic)
        return self._found(call, self._topic_entry(call, await self._broker.update_topic(topic)), 200)

    async def _put_subscription(self, call: Call) -> Reply:
        root = atom.parse_content(call.body)
        if local_name(root) != "SubscriptionDescription":
            raise InvalidError(f"The content is a {local_name(root)[:64]}: expected a SubscriptionDescription.")
        topic = self._broker.get_topic(call.target.entity).name
        if call.if_match is None:
            subscription = atom.read_subscription(root, SubscriptionDescription(topic, call.target.subscription))
            subscription.validate()
            self._require_forwards(call, subscription)
            created = await self._broker.create_subscription(subscription)
            return self._found(call, self._subscription_entry(call, created), 201)
        current = self._broker.get_subscription(topic, call.target.subscription)
        self._require_match(call, subscription_path(topic, current.name))
        subscription = replace(atom.read_subscription(root, current), default_rule=None)
        subscription.validate_change(current)
        self._require_forwards(call, subscription)
        updated = await self._broker.update_subscription(subscription)
        return self._found(call, self._subscription_entry(call, updated), 200)

    async def _put_rule(self, call: Call) -> Reply:
        root = atom.parse_content(call.body)
        if local_name(root) != "RuleDescription":
            raise InvalidError(f"The content is a {local_name(root)[:64]}: expected a RuleDescription.")
        topic, subscription = call.target.entity, call.target.subscription
        rule = replace(read_rule(root, call.target.rule), created_ms=call.now_ms)
        rule.validate()
        if call.if_match is None:
            created = await self._broker.create_rule(topic, subscription, rule)
            return self._found(call, self._rule_entry(call, created), 201)
        current = self._broker.get_rule(topic, subscription, call.target.rule)
        changed = replace(rule, name=current.name, created_ms=current.created_ms)
        updated = await self._broker.update_rule(topic, subscription, changed)
        return self._found(call, self._rule_entry(call, updated), 200)

    # What must hold

    def _require_match(self, call: Call, path: str) -> None:
        etag = _etag(self._broker.times(path))
        if call.if_match not in ("*", etag):
            raise PreconditionFailedError(f"'{path}' has changed since: its ETag is {etag}, not {call.if_match}.")

    def _require_size(self, entity: QueueDescription | TopicDescription) -> None:
        """A size of its own for an entity's messages belongs to the Premium tier."""
        if entity.max_message_size_in_kilobytes != self._message_kilobytes:
            raise InvalidError(
                f"MaxMessageSizeInKilobytes is {entity.max_message_size_in_kilobytes}: in this namespace it"
                " is"
                f" {self._message_kilobytes} for every entity."
            )

    def _require_forwards(self, call: Call, entity: QueueDescription | SubscriptionDescription) -> None:
        for element, path, header in (
            ("ForwardTo", entity.forward_to, FORWARD_TOKEN_HEADER),
            ("ForwardDeadLetteredMessagesTo", entity.forward_dead_lettered_messages_to, DEAD_LETTER_TOKEN_HEADER),
        ):
            if path is None:
                continue
            itself = isinstance(entity, QueueDescription) and path.lower() == entity.name.lower()
            if self._find(path) is None and not itself:
                raise InvalidError(f"{element} names '{path}', which is not a queue or topic of this namespace.")
            if not self._may_send(call, path, header):
                raise UnauthorizedError(
                    f"{element} needs the right to send to '{path}': give a token for it in {header}."
                )

    def _may_send(self, call: Call, path: str, header: str) -> bool:
        """Whether the token given for the forward, or the request's own, reaches the target."""
        for token in (call.headers.get(header), call.headers.get("Authorization")):
            try:
                if token and self._authority.check(token, path, call.now_ms).allows(path, SEND):
                    return True
            except UnauthorizedError:
                continue
        return False


def _canonical_path(target: Target) -> str:
    match target.kind:
        case Kind.RULE:
            return rule_path(target.entity, target.subscription, target.rule)
        case Kind.SUBSCRIPTION:
            return subscription_path(target.entity, target.subscription)
        case _:
            return target.entity


def _etag(times: atom.EntityTimes) -> str:
    return f'"{times.updated_ms}"'


def _whole_number(query: Mapping[str, str], name: str, default: int) -> int:
    text = query.get(name, "")
    if not text:
        return default
    if not text.isascii() or not text.isdecimal() or len(text) > 9:
        raise InvalidError(f"{name} is '{text[:64]}': it must be a whole number, 0 or more.")
    return int(text)


def _name_prefix(query: Mapping[str, str]) -> str:
    text = query.get("$filter", "")
    if not text:
        return ""
    match = _NAME_FILTER.fullmatch(text)
    if match is None:
        raise InvalidError(f"$filter is '{text[:64]}': only startswith(path, 'prefix') eq true is possible.")
    return match[1].replace("''", "'").lower()
