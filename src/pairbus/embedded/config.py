"""Entities from a configuration file in the format of the vendor's emulator.

`UserConfig` → `Namespaces` → `Queues`, and `Topics` → `Subscriptions` → `Rules`. Each has a `Name` and `Properties`;
durations are ISO 8601. All properties of the administration API are accepted, not only those of the emulator. A file
may describe several namespaces; a server uses the one with its name, or the only one.

Applying a file creates missing entities and updates the others. If a subscription lists rules, it gets exactly these.
Entities that the file does not mention stay.

Every error names the line and the key. For that the JSON is parsed here: strictly, with limits on its size and depth,
and without duplicate keys.
"""

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from pairbus.embedded.administration.elements import CORRELATION_ELEMENTS, elements_of
from pairbus.embedded.broker import Broker
from pairbus.embedded.entities.descriptions import (
    CorrelationFilter,
    EntityDescription,
    FalseFilter,
    PropertyValue,
    QueueDescription,
    RuleDescription,
    RuleFilter,
    SqlAction,
    SqlFilter,
    SubscriptionDescription,
    TopicDescription,
    TrueFilter,
    forward_targets,
    with_identity,
)
from pairbus.embedded.errors import EntityNotFoundError, InvalidError, Limits
from pairbus.errors import UsageError

MAX_TEXT_LENGTH = 4 * 1024 * 1024
MAX_DEPTH = 32
_BLANKS = " \t\n\r"
_SURROGATES = re.compile("[\ud800-\udfff]")

Scalar = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Node:
    """A JSON value and its line. A member of an object has the line of its key."""

    value: "dict[str, Node] | list[Node] | Scalar"
    line: int


class LocatedError(Exception):
    """A mistake on one line of a configuration."""

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(f"line {line}: {problem}")


def parse(text: str) -> Node:
    if len(text) > MAX_TEXT_LENGTH:
        raise LocatedError(1, f"the text has {len(text)} characters, and at most {MAX_TEXT_LENGTH} are allowed")
    reader = _Reader(text)
    node = reader.value(0)
    reader.skip_blanks()
    if reader.at < len(text):
        raise reader.error("expected the end of the text")
    return node


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self.at = 0
        self._line = 1
        self._counted = 0

    def error(self, problem: str) -> LocatedError:
        return LocatedError(self._current_line(), problem)

    def skip_blanks(self) -> None:
        while self.at < len(self._text) and self._text[self.at] in _BLANKS:
            self.at += 1

    def value(self, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise self.error(f"values are nested deeper than {MAX_DEPTH} levels")
        self.skip_blanks()
        line = self._current_line()
        match self._text[self.at : self.at + 1]:
            case "{":
                return Node(self._members(depth), line)
            case "[":
                return Node(self._items(depth), line)
            case _:
                return Node(self._scalar(), line)

    def _members(self, depth: int) -> dict[str, Node]:
        members: dict[str, Node] = {}
        for _ in self._until("}"):
            self.skip_blanks()
            if not self._text.startswith('"', self.at):
                raise self.error('expected a key in double quotes, or "}"')
            line = self._current_line()
            key = str(self._scalar())
            if key in members:
                raise LocatedError(line, f"the key '{key[:64]}' appears twice")
            if not self._skip_mark(":"):
                raise self.error(f"expected ':' after the key '{key[:64]}'")
            members[key] = Node(self.value(depth + 1).value, line)
        return members

    def _items(self, depth: int) -> list[Node]:
        return [self.value(depth + 1) for _ in self._until("]")]

    def _until(self, close: str) -> Iterator[None]:
        """One turn for each item, up to the bracket that closes them."""
        self.at += 1
        if self._skip_mark(close):
            return
        while True:
            yield
            if self._skip_mark(close):
                return
            if not self._skip_mark(","):
                raise self.error(f"expected ',' or '{close}'")

    def _scalar(self) -> Scalar:
        try:
            value, self.at = _DECODER.raw_decode(self._text, self.at)
        except json.JSONDecodeError as error:
            raise LocatedError(error.lineno, error.msg[0].lower() + error.msg[1:]) from None
        except ValueError as error:
            raise self.error(str(error)) from None
        if isinstance(value, str) and _SURROGATES.search(value):
            raise self.error("the text contains half of a surrogate pair, which is not a character")
        scalar: Scalar = value
        return scalar

    def _skip_mark(self, mark: str) -> bool:
        self.skip_blanks()
        if self._text.startswith(mark, self.at):
            self.at += 1
            return True
        return False

    def _current_line(self) -> int:
        self._line += self._text.count("\n", self._counted, self.at)
        self._counted = self.at
        return self._line


_D = TypeVar("_D", QueueDescription, TopicDescription, SubscriptionDescription, RuleDescription)

_JSON_TYPES: dict[str, tuple[type, str]] = {
    "boolean": (bool, "true or false"),
    "integer": (int, "a whole number"),
    "duration": (str, "a duration such as PT1M"),
}


class ConfigError(UsageError):
    """A configuration is wrong. The message names the file, the line and the key."""


@dataclass(frozen=True, slots=True)
class SubscriptionConfig:
    description: SubscriptionDescription
    rules: tuple[RuleDescription, ...]


@dataclass(frozen=True, slots=True)
class NamespaceConfig:
    name: str
    queues: tuple[QueueDescription, ...]
    topics: tuple[TopicDescription, ...]
    subscriptions: tuple[SubscriptionConfig, ...]


@dataclass(frozen=True, slots=True)
class Config:
    source: str
    namespaces: tuple[NamespaceConfig, ...]

    def namespace(self, name: str) -> NamespaceConfig:
        """The namespace with this name, or the only one."""
        for namespace in self.namespaces:
            if namespace.name.lower() == name.lower():
                return namespace
        if len(self.namespaces) == 1:
            return self.namespaces[0]
        known = ", ".join(namespace.name for namespace in self.namespaces)
        raise ConfigError(f"{self.source} has no namespace '{name}'. It describes {known or 'none'}.")


def read_config(path: Path) -> Config:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"Cannot read the configuration {path}: {error.strerror}.") from error
    except UnicodeDecodeError:
        raise ConfigError(f"The configuration {path} is not UTF-8 text.") from None
    return parse_config(text, str(path))


def parse_config(text: str, source: str = "The configuration") -> Config:
    try:
        root = _members(parse(text), "the file", ("UserConfig",))
        user = _members(_required(root, "UserConfig", 1), "UserConfig", ("Namespaces", "Logging"))
        namespaces = tuple(_namespace(node) for node in _list(user, "Namespaces"))
    except LocatedError as error:
        sentence = f"{source}, {error}"
        raise ConfigError(sentence if sentence.endswith("?") else f"{sentence}.") from None
    if not namespaces:
        raise ConfigError(f"{source} describes no namespace. Add one to UserConfig.Namespaces.")
    return Config(source, namespaces)


async def apply_config(config: NamespaceConfig, broker: Broker, limits: Limits) -> None:
    """Create and update the entities of the file. Forwarding comes last, when all its targets exist."""
    kilobytes = limits.max_message_kilobytes
    queues = [replace(queue, max_message_size_in_kilobytes=kilobytes) for queue in config.queues]
    for queue in queues:
        await _ensure(broker, replace(queue, forward_to=None, forward_dead_lettered_messages_to=None))
    for topic in config.topics:
        await _ensure(broker, replace(topic, max_message_size_in_kilobytes=kilobytes))
    for subscription in config.subscriptions:
        rules = subscription.rules
        path = await _ensure(broker, replace(subscription.description, default_rule=rules[0] if rules else None))
        if rules:
            await _ensure_rules(broker, path, rules)
    for queue in queues:
        await _ensure(broker, queue)


async def _ensure(broker: Broker, wanted: EntityDescription) -> str:
    """Create the entity, or update it if it differs. Returns its path."""
    try:
        current = broker.get(wanted.path)
    except EntityNotFoundError:
        return (await broker.create(wanted)).path
    if type(current) is not type(wanted):
        await broker.create(wanted)  # refused: the name is in use
    wanted = with_identity(wanted, current)
    if not isinstance(wanted, SubscriptionDescription) and not isinstance(current, SubscriptionDescription):
        wanted = replace(wanted, authorization_rules=current.authorization_rules)
    if wanted != current:
        await broker.update(wanted)
    return current.path


async def _ensure_rules(broker: Broker, subscription: str, rules: tuple[RuleDescription, ...]) -> None:
    """Create new rules before deleting old ones, so that no message which both select is missed."""
    present = {rule.name.lower(): rule for rule in broker.list_rules(subscription)}
    for rule in rules:
        current = present.pop(rule.name.lower(), None)
        if current is None:
            await broker.create_rule(subscription, rule)
        elif (current.filter, current.action) != (rule.filter, rule.action):
            await broker.update_rule(subscription, replace(rule, name=current.name))
    for obsolete in present.values():
        await broker.delete_rule(subscription, obsolete.name)


# -- reading


def _namespace(node: Node) -> NamespaceConfig:
    members = _members(node, "a namespace", ("Name", "Queues", "Topics"))
    name = _name(members, "namespace", node.line)
    queues = [_entity(item, QueueDescription, "queue") for item in _list(members, "Queues")]
    topics = [_entity(item, TopicDescription, "topic", "Subscriptions") for item in _list(members, "Topics")]
    known: set[str] = set()
    named: list[tuple[EntityDescription, dict[str, Node]]] = [*queues, *topics]
    for entity, described in named:
        if entity.name.lower() in known:
            problem = f"Name: '{entity.name}' is used twice, and the names of queues and topics must be unique"
            raise LocatedError(described["Name"].line, problem)
        known.add(entity.name.lower())
    subscriptions = [
        _subscription(topic.name, item) for topic, described in topics for item in _list(described, "Subscriptions")
    ]
    forwarding: list[EntityDescription] = [entity for entity, _ in named]
    forwarding += [subscription.description for subscription in subscriptions]
    for entity in forwarding:
        for key, path in forward_targets(entity):
            if path.lower() not in known:
                problem = f"{key} of '{entity.name}' names '{path}', which this namespace does not have"
                raise LocatedError(node.line, problem)
    return NamespaceConfig(
        name, tuple(queue for queue, _ in queues), tuple(topic for topic, _ in topics), tuple(subscriptions)
    )


def _entity(node: Node, kind: type[_D], owner: str, below: str = "", **identity: Any) -> tuple[_D, dict[str, Node]]:
    """The description of an entity, and the members of its object. `below` is the key of the entities it contains."""
    members = _members(node, f"a {owner}", ("Name", "Properties", below) if below else ("Name", "Properties"))
    name = _name(members, owner, node.line)
    description = kind(name=name, **identity, **_properties(members.get("Properties"), kind))
    return _checked(description, node, members), members


def _subscription(topic: str, node: Node) -> SubscriptionConfig:
    description, members = _entity(node, SubscriptionDescription, "subscription", "Rules", topic=topic)
    return SubscriptionConfig(description, tuple(_rule(item) for item in _list(members, "Rules")))


def _rule(node: Node) -> RuleDescription:
    members = _members(node, "a rule", ("Name", "Properties"))
    name = _name(members, "rule", node.line)
    if "Properties" not in members:
        return _checked(RuleDescription(name), node, members)
    properties = _members(
        members["Properties"], "a rule's Properties", ("FilterType", "CorrelationFilter", "SqlFilter", "Action")
    )
    action = None
    if "Action" in properties:
        action = SqlAction(_expression(properties["Action"], "Action"))
    return _checked(RuleDescription(name, _filter(members["Properties"].line, properties), action), node, members)


def _filter(line: int, properties: Mapping[str, Node]) -> RuleFilter:
    kind_node = properties.get("FilterType", Node("True", line))
    match str(kind_node.value).lower():
        case "correlation":
            return _correlation(_required(properties, "CorrelationFilter", kind_node.line))
        case "sql":
            return SqlFilter(_expression(_required(properties, "SqlFilter", kind_node.line), "SqlFilter"))
        case "true":
            return TrueFilter()
        case "false":
            return FalseFilter()
    raise LocatedError(
        kind_node.line, f"FilterType is '{kind_node.value}', but it must be Correlation, Sql, True or False"
    )


def _correlation(node: Node) -> CorrelationFilter:
    members = _members(node, "CorrelationFilter", (*(item.name for item in CORRELATION_ELEMENTS), "Properties"))
    named = {item.field: _text(members[item.name], item.name) for item in CORRELATION_ELEMENTS if item.name in members}
    values: dict[str, PropertyValue] = {}
    if "Properties" in members:
        for key, value in _object(members["Properties"], "Properties").items():
            if not isinstance(value.value, str | bool | int | float):
                raise LocatedError(value.line, f"the property '{key[:64]}' must be text, a number, true or false")
            values[key] = value.value
    return CorrelationFilter(**named, properties=values)


def _expression(node: Node, owner: str) -> str:
    members = _members(node, owner, ("SqlExpression", "CompatibilityLevel", "Parameters", "RequiresPreprocessing"))
    return _text(_required(members, "SqlExpression", node.line), "SqlExpression")


def _properties(node: Node | None, kind: type[Any]) -> dict[str, Any]:
    if node is None:
        return {}
    by_name = {element.name: element for element in elements_of(kind)}
    properties: dict[str, Any] = {}
    for key, value in _members(node, "Properties", by_name).items():
        element = by_name[key]
        if value.value is None:
            continue
        expected, words = _JSON_TYPES.get(element.kind, (str, "text"))
        if type(value.value) is not expected:
            raise LocatedError(value.line, f"{key} must be {words}")
        try:
            properties[element.field] = element.read(str(value.value))
        except InvalidError as error:
            raise LocatedError(value.line, error.description.rstrip(".")) from None
    return properties


def _checked(description: _D, node: Node, members: Mapping[str, Node]) -> _D:
    """Validate the description. An error that begins with a property's name gets the line of that property."""
    try:
        description.validate()
    except InvalidError as error:
        first_word = error.description.partition(" ")[0]
        properties = members.get("Properties")
        line = members["Name"].line if "Name" in members else node.line
        if properties is not None and isinstance(properties.value, dict) and first_word in properties.value:
            line = properties.value[first_word].line
        raise LocatedError(line, f"'{description.name}': {error.description.rstrip('.')}") from None
    return description


def _name(members: Mapping[str, Node], owner: str, line: int) -> str:
    return _text(_required(members, "Name", line), f"Name of a {owner}")


def _text(node: Node, key: str) -> str:
    if not isinstance(node.value, str) or not node.value:
        raise LocatedError(node.line, f"{key} must be text and not empty")
    return node.value


def _required(members: Mapping[str, Node], key: str, line: int) -> Node:
    if key not in members:
        raise LocatedError(line, f"the key {key} is missing")
    return members[key]


def _object(node: Node, owner: str) -> dict[str, Node]:
    if not isinstance(node.value, dict):
        raise LocatedError(node.line, f"{owner} must be an object in braces")
    return node.value


def _members(node: Node, owner: str, allowed: Iterable[str]) -> dict[str, Node]:
    members = _object(node, owner)
    known = list(allowed)
    for key, value in members.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"expected {', '.join(known)}"
            raise LocatedError(value.line, f"the key '{key[:64]}' is unknown in {owner}: {hint}")
    return members


def _list(members: Mapping[str, Node], key: str) -> list[Node]:
    node = members.get(key)
    if node is None or node.value is None:
        return []
    if not isinstance(node.value, list):
        raise LocatedError(node.line, f"{key} must be a list in square brackets")
    return node.value
