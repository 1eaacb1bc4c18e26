"""The administration operations: what each method does with the resource that a path names.

Clients write the slashes of an entity's name as they are or as %2F. `Subscriptions` and `Rules` are recognised in any
case; every other name is a queue or a topic.

PUT creates without `If-Match`, and updates with it (`*` or the entity's ETag). Lists are sorted by name and have pages
of at most 100. Checks that involve several entities are made here: whether a forward target exists, and whether the
caller may send to it.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeVar
from urllib.parse import unquote

from aiohttp import web

from pairbus.embedded.administration import atom
from pairbus.embedded.administration.atom import AtomEntry, RequestContext
from pairbus.embedded.administration.elements import local_name, read_rule
from pairbus.embedded.broker import Broker
from pairbus.embedded.entities.descriptions import (
    SEND,
    CorrelationFilter,
    EntityDescription,
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
    forward_targets,
    validate_change,
)
from pairbus.embedded.entities.entity import EntityTimes
from pairbus.embedded.entities.paths import subscription_path
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


class TargetKind(Enum):
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
    kind: TargetKind
    path: str
    """The whole decoded path, without leading and trailing slashes."""
    entity: str = ""
    subscription: str = ""
    rule: str = ""

    @property
    def owner(self) -> str:
        """The path of the entity or subscription that the target is, or belongs to."""
        return subscription_path(self.entity, self.subscription) if self.subscription else self.entity


def parse_target(raw_path: str) -> Target:
    """The target of a raw request path without its query."""
    if len(raw_path) > MAX_PATH_LENGTH:
        raise InvalidError(f"The path has {len(raw_path)} characters. At most {MAX_PATH_LENGTH} are allowed.")
    path = unquote(raw_path, errors="replace").strip("/")
    if not path:
        raise InvalidError("The path names no entity. Put the entity's name after the host.")
    segments = path.split("/")
    words = [segment.lower() for segment in segments]
    match words:
        case ["$namespaceinfo"]:
            return Target(TargetKind.NAMESPACE, path)
        case ["$resources", "queues"]:
            return Target(TargetKind.QUEUES, path)
        case ["$resources", "topics"]:
            return Target(TargetKind.TOPICS, path)
        case ["$pairbus", *_]:
            return Target(TargetKind.CONTROL, path)
        case [word, *_] if word.startswith("$"):
            raise EntityNotFoundError(f"'{path}' is not a resource of this namespace.")
        case [_, *_, "subscriptions"]:
            return Target(TargetKind.SUBSCRIPTIONS, path, "/".join(segments[:-1]))
        case [_, *_, "subscriptions", _]:
            return Target(TargetKind.SUBSCRIPTION, path, "/".join(segments[:-2]), segments[-1])
        case [_, *_, "subscriptions", _, "rules"]:
            return Target(TargetKind.RULES, path, "/".join(segments[:-3]), segments[-2])
        case [_, *_, "subscriptions", _, "rules", _]:
            return Target(TargetKind.RULE, path, "/".join(segments[:-4]), segments[-3], segments[-1])
    return Target(TargetKind.ENTITY, path, path)


PAGE_SIZE = 100
ENTRY_TYPE = "application/atom+xml;type=entry;charset=utf-8"
FEED_TYPE = "application/atom+xml;type=feed;charset=utf-8"
FORWARD_TOKEN_HEADERS = {
    "ForwardTo": "ServiceBusSupplementaryAuthorization",
    "ForwardDeadLetteredMessagesTo": "ServiceBusDlqSupplementaryAuthorization",
}

_NAME_FILTER = re.compile(r"\s*startswith\(\s*path\s*,\s*'((?:[^']|'')*)'\s*\)(?:\s+eq\s+true)?\s*", re.IGNORECASE)
_D = TypeVar("_D", QueueDescription, TopicDescription, SubscriptionDescription, RuleDescription)


@dataclass(frozen=True, slots=True)
class AdministrationRequest:
    """A request whose token has been checked for the target."""

    method: str
    target: Target
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    context: RequestContext
    now_ms: int

    @property
    def if_match(self) -> str | None:
        return self.headers.get("If-Match")


def _response(status: int, body: str = "", content_type: str = ENTRY_TYPE, etag: str | None = None) -> web.Response:
    headers = {"Content-Type": content_type} | ({} if etag is None else {"ETag": etag})
    return web.Response(status=status, body=body.encode(), headers=headers)


class Operations:
    def __init__(self, broker: Broker, authority: Authority, limits: Limits, name: str, created_ms: int) -> None:
        self._broker = broker
        self._authority = authority
        self._message_kilobytes = limits.max_message_kilobytes
        self._name = name
        self._created_ms = created_ms

    async def run(self, request: AdministrationRequest) -> web.Response:
        match request.method, request.target.kind:
            case "GET", TargetKind.NAMESPACE:
                return self._namespace(request)
            case "GET", TargetKind.QUEUES:
                return self._list(request, "Queues", self._broker.list_queues(), self._entry)
            case "GET", TargetKind.TOPICS:
                return self._list(request, "Topics", self._broker.list_topics(), self._entry)
            case "GET", TargetKind.SUBSCRIPTIONS:
                subscriptions = self._broker.list_subscriptions(request.target.entity)
                return self._list(request, "Subscriptions", subscriptions, self._entry)
            case "GET", TargetKind.RULES:
                rules = self._broker.list_rules(request.target.owner)
                return self._list(request, "Rules", rules, self._rule_entry)
            case "GET", TargetKind.RULE:
                rule = self._broker.get_rule(request.target.owner, request.target.rule)
                return self._entry_response(request, self._rule_entry(request, rule), 200)
            case "GET", TargetKind.ENTITY | TargetKind.SUBSCRIPTION:
                entity = self._broker.get(request.target.owner)
                return self._entry_response(request, self._entry(request, entity), 200)
            case "PUT", TargetKind.ENTITY | TargetKind.SUBSCRIPTION:
                return await self._put_entity(request)
            case "PUT", TargetKind.RULE:
                return await self._put_rule(request)
            case "DELETE", TargetKind.RULE:
                await self._broker.delete_rule(request.target.owner, request.target.rule)
                return _response(200)
            case "DELETE", TargetKind.ENTITY | TargetKind.SUBSCRIPTION:
                await self._broker.delete(request.target.owner)
                return _response(200)
            case _:
                raise NotAllowedError(f"{request.method} is not supported on '{request.target.path}'.")

    def _namespace(self, request: AdministrationRequest) -> web.Response:
        content = atom.namespace_content(self._name, self._created_ms, self._created_ms)
        times = EntityTimes(self._created_ms, self._created_ms, self._created_ms)
        entry = AtomEntry(request.target.path, self._name, times, content)
        return _response(200, atom.write_entry(request.context, entry))

    # -- reading

    def _entry(self, request: AdministrationRequest, description: EntityDescription) -> AtomEntry:
        path = description.path
        times = self._broker.times(path)
        filter_counts = self._filter_counts(request, path) if isinstance(description, TopicDescription) else (0, 0)
        content = atom.entity_content(request.context, description, self._broker.counts(path), times, filter_counts)
        return AtomEntry(path, description.name, times, content)

    def _filter_counts(self, request: AdministrationRequest, topic: str) -> tuple[int, int]:
        """The numbers of SQL filters (including true and false filters) and correlation filters of a topic."""
        if request.context.api_version < atom.FILTER_COUNTS_SINCE:
            return 0, 0
        rules = [rule for each in self._broker.list_subscriptions(topic) for rule in self._broker.list_rules(each.path)]
        correlation = sum(isinstance(rule.filter, CorrelationFilter) for rule in rules)
        return len(rules) - correlation, correlation

    def _rule_entry(self, request: AdministrationRequest, rule: RuleDescription) -> AtomEntry:
        path = f"{request.target.owner}/Rules/{rule.name}"
        times = EntityTimes(rule.created_ms, rule.created_ms, rule.created_ms)
        return AtomEntry(path, rule.name, times, atom.rule_content(rule))

    def _list(
        self,
        request: AdministrationRequest,
        title: str,
        items: Sequence[_D],
        entry_of: Callable[[AdministrationRequest, _D], AtomEntry],
    ) -> web.Response:
        skip = _whole_number(request.query, "$skip", 0)
        top = min(_whole_number(request.query, "$top", PAGE_SIZE), PAGE_SIZE)
        prefix = _name_prefix(request.query)
        chosen = [item for item in items if item.name.lower().startswith(prefix)] if prefix else items
        entries = [entry_of(request, item) for item in chosen[skip : skip + top]]
        following = skip + top
        more = top > 0 and following < len(chosen)
        next_query = f"$skip={following}&$top={top}&" if more else None
        feed = atom.write_feed(request.context, request.target.path, title, entries, next_query, request.now_ms)
        return _response(200, feed, FEED_TYPE)

    def _entry_response(self, request: AdministrationRequest, entry: AtomEntry, status: int) -> web.Response:
        return _response(status, atom.write_entry(request.context, entry), etag=_etag(entry.times))

    # -- creating and updating

    async def _put_entity(self, request: AdministrationRequest) -> web.Response:
        root = atom.parse_content(request.body)
        kind, new = local_name(root), self._new_entities(request.target)
        if kind not in new:
            raise InvalidError(f"The content is a {kind[:64]}. It must be a {' or a '.join(new)}.")
        current = None
        if request.if_match is not None:
            current = self._broker.get(request.target.owner)
            self._require_match(request, current.path)
            if kind != type(current).__name__:
                raise InvalidError(
                    f"'{current.name}' has a {type(current).__name__} and cannot be updated with a {kind}."
                )
        entity = atom.read_description(root, current or new[kind], request.now_ms)
        if current is None:
            entity.validate()
        else:
            if isinstance(entity, SubscriptionDescription):
                entity = replace(entity, default_rule=None)
            validate_change(entity, current)
        self._require_size(entity)
        self._require_forwards(request, entity)
        written = await (self._broker.create(entity) if current is None else self._broker.update(entity))
        return self._entry_response(request, self._entry(request, written), 201 if current is None else 200)

    def _new_entities(self, target: Target) -> dict[str, EntityDescription]:
        """The descriptions with defaults that a request to create the target can start from, by their elements."""
        if target.kind is TargetKind.SUBSCRIPTION:
            new: tuple[EntityDescription, ...] = (SubscriptionDescription(target.entity, target.subscription),)
        else:
            size = self._message_kilobytes
            new = (
                QueueDescription(target.entity, max_message_size_in_kilobytes=size),
                TopicDescription(target.entity, max_message_size_in_kilobytes=size),
            )
        return {type(description).__name__: description for description in new}

    async def _put_rule(self, request: AdministrationRequest) -> web.Response:
        root = atom.parse_content(request.body)
        if local_name(root) != "RuleDescription":
            raise InvalidError(f"The content is a {local_name(root)[:64]}. It must be a RuleDescription.")
        subscription = request.target.owner
        rule = replace(read_rule(root, request.target.rule), created_ms=request.now_ms)
        rule.validate()
        if request.if_match is None:
            created = await self._broker.create_rule(subscription, rule)
            return self._entry_response(request, self._rule_entry(request, created), 201)
        current = self._broker.get_rule(subscription, request.target.rule)
        changed = replace(rule, name=current.name, created_ms=current.created_ms)
        updated = await self._broker.update_rule(subscription, changed)
        return self._entry_response(request, self._rule_entry(request, updated), 200)

    # -- checks

    def _require_match(self, request: AdministrationRequest, path: str) -> None:
        etag = _etag(self._broker.times(path))
        if request.if_match not in ("*", etag):
            raise PreconditionFailedError(f"'{path}' has changed: its ETag is {etag}, not {request.if_match}.")

    def _require_size(self, entity: EntityDescription) -> None:
        """Only the Premium tier has a message size per entity."""
        if isinstance(entity, SubscriptionDescription):
            return
        if entity.max_message_size_in_kilobytes != self._message_kilobytes:
            raise InvalidError(
                f"MaxMessageSizeInKilobytes is {entity.max_message_size_in_kilobytes}."
                f" In this namespace it is {self._message_kilobytes} for every entity."
            )

    def _require_forwards(self, request: AdministrationRequest, entity: EntityDescription) -> None:
        for element, path in forward_targets(entity):
            if path.lower() != entity.path.lower():
                self._require_target(element, path)
            header = FORWARD_TOKEN_HEADERS[element]
            if not self._may_send(request, path, header):
                raise UnauthorizedError(
                    f"{element} needs the right to send to '{path}'. Pass a token for it in {header}."
                )

    def _require_target(self, element: str, path: str) -> None:
        try:
            self._broker.get(path)
        except EntityNotFoundError:
            raise InvalidError(f"{element} names '{path}', which is not a queue or topic of this namespace.") from None

    def _may_send(self, request: AdministrationRequest, path: str, header: str) -> bool:
        """Whether the token for forwarding, or the request's own token, allows sending to the path."""
        for token in (request.headers.get(header), request.headers.get("Authorization")):
            try:
                if token and self._authority.check(token, path, request.now_ms).allows(path, SEND):
                    return True
            except UnauthorizedError:
                continue
        return False


def _etag(times: EntityTimes) -> str:
    return f'"{times.updated_ms}"'


def _whole_number(query: Mapping[str, str], name: str, default: int) -> int:
    text = query.get(name, "")
    if not text:
        return default
    if not text.isascii() or not text.isdecimal() or len(text) > 9:
        raise InvalidError(f"{name} is '{text[:64]}'. It must be a whole number, 0 or more.")
    return int(text)


def _name_prefix(query: Mapping[str, str]) -> str:
    text = query.get("$filter", "")
    if not text:
        return ""
    match = _NAME_FILTER.fullmatch(text)
    if match is None:
        raise InvalidError(f"$filter is '{text[:64]}'. Only startswith(path, 'prefix') eq true is supported.")
    return match[1].replace("''", "'").lower()
