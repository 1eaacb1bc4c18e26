"""A scenario: what is sent where, what goes wrong when, and what is expected. Read from TOML, all of it checked first.

    name = "The primary dies"
    expect = ["lost == 0", "p99_send < 2s"]

    [pairing]                       # options of the pairing
    failover-interval = "0s"

    [[entities]]
    queue = "orders"

    [[steps]]
    do = "send"
    entity = "orders"
    count = 100

docs/drill.md describes every key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from pairbus.drill.expressions import Expression, ExpressionError, parse
from pairbus.toml import read_toml

LARGEST_BYTES = 256 * 1024
MOST_STEPS = 200
MOST_ENTITIES = 50
MOST_EXPECTATIONS = 100
MOST_MESSAGES = 1_000_000
MOST_SENDERS = 64
HIGHEST_RATE = 10_000
LARGEST_MESSAGE = 200_000
LONGEST_SECONDS = 24 * 3600.0
DEFAULT_WITHIN_SECONDS = 60.0

NamespaceRole = Literal["primary", "secondary"]
MODES = ("refuse", "drop", "hang", "error", "throttle", "slow", "accept-then-fail", "disable")
ANYWHERE_MODES = ("disable",)
"""Faults that a real namespace can be given too: the status of a queue or topic of our own is changed."""

_DURATIONS = ("failover-interval", "ping-primary-interval", "syphon-retry-interval", "send-timeout")
_FLAGS = ("enable-syphon", "divert-during-interval", "spool")
_NUMBERS = ("backlog-queue-count", "recovery-pings")
PAIRING = (*_DURATIONS, *_FLAGS, *_NUMBERS, "backlog-time-to-live", "sdk-retries")
"""The keys of [pairing]."""
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)(ms|s|m|h)", re.ASCII)
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._/-]{0,98}[A-Za-z0-9])?", re.ASCII)


class ScenarioError(ValueError):
    """What is wrong with a scenario; one sentence."""


@dataclass(frozen=True, slots=True)
class Entity:
    """A queue or topic of the primary that the drill makes for itself."""

    name: str
    topic: bool = False
    sessions: bool = False
    duplicate_detection: bool = False


@dataclass(frozen=True, slots=True)
class Send:
    """Send messages: so many and wait until that is done, or, without a count, in the background until `Stop`."""

    entity: str
    count: int | None = None
    rate: float | None = None
    senders: int = 1
    size: int = 64


@dataclass(frozen=True, slots=True)
class Stop:
    """End what sends in the background, to one entity or to all."""

    entity: str | None = None


@dataclass(frozen=True, slots=True)
class Break:
    namespace: NamespaceRole
    mode: str
    entity: str | None = None
    condition: str | None = None
    rate: float | None = None
    delay: float | None = None


@dataclass(frozen=True, slots=True)
class Clear:
    namespace: NamespaceRole
    entity: str | None = None


@dataclass(frozen=True, slots=True)
class Kill:
    namespace: NamespaceRole


@dataclass(frozen=True, slots=True)
class Restart:
    namespace: NamespaceRole


@dataclass(frozen=True, slots=True)
class Pause:
    seconds: float


@dataclass(frozen=True, slots=True)
class Wait:
    until: Expression
    within: float = DEFAULT_WITHIN_SECONDS


@dataclass(frozen=True, slots=True)
class Carry:
    """Run a syphon until the backlog is empty."""

    within: float = 2 * DEFAULT_WITHIN_SECONDS


@dataclass(frozen=True, slots=True)
class Purge:
    """Throw away what waits in the backlog: the one step that loses messages, to see that the drill notices."""

    count: int | None = None


Action = Send | Stop | Break | Clear | Kill | Restart | Pause | Wait | Carry | Purge


@dataclass(frozen=True, slots=True)
class Step:
    number: int
    action: Action
    said: str
    """The step as its author wrote it, in short."""


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    entities: Mapping[str, Entity]
    pairing: Mapping[str, Any]
    """Options of SendAvailabilityPairedNamespaceOptions, `spool` apart, which is True or absent."""
    sdk_retries: int
    steps: tuple[Step, ...]
    expect: tuple[Expression, ...]

    @property
    def only_for_embedded(self) -> list[str]:
        """The steps that a real namespace cannot be asked for."""
        return [
            step.said
            for step in self.steps
            if isinstance(step.action, Kill | Restart)
            or (isinstance(step.action, Break) and step.action.mode not in ANYWHERE_MODES)
        ]


def read_scenario(path: Path) -> Scenario:
    """The scenario in a file; ScenarioError in one sentence if it cannot be read or is wrong."""
    try:
        with path.open("rb") as file:
            raw = file.read(LARGEST_BYTES + 1)
    except OSError as error:
        raise ScenarioError(f"The scenario {path} cannot be read: {error.strerror}.") from error
    if len(raw) > LARGEST_BYTES:
        raise ScenarioError(f"The scenario {path} has more than {LARGEST_BYTES} bytes.")
    try:
        content = read_toml(raw)
    except ValueError as error:
        raise ScenarioError(f"{path} is not TOML: {error}.") from error
    try:
        return parse_scenario(content)
    except ScenarioError as error:
        raise ScenarioError(f"{path}: {error}") from error


def parse_scenario(content: Mapping[str, Any]) -> Scenario:
    table = _Table(content, "the scenario")
    table.only("name", "expect", "pairing", "entities", "steps")
    entities = {entity.name: entity for entity in map(_entity, table.tables("entities", MOST_ENTITIES))}
    if len(entities) < len(content.get("entities", ())):
        raise ScenarioError("An entity is described twice: describe each queue and topic once.")
    if not entities:
        raise ScenarioError("The scenario has no [[entities]]: name at least one queue or topic.")
    steps = tuple(
        _step(number, step, entities) for number, step in enumerate(table.tables("steps", MOST_STEPS), start=1)
    )
    if not steps:
        raise ScenarioError("The scenario has no [[steps]]: say what is to happen.")
    expect = _expectations(content.get("expect", ()), entities)
    pairing, retries = _pairing(_Table(table.table("pairing"), "pairing"))
    return Scenario(table.text("name"), entities, pairing, retries, steps, expect)


def _expectations(texts: Any, entities: Mapping[str, Entity]) -> tuple[Expression, ...]:
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise ScenarioError('expect is missing: give a list of texts, such as expect = ["lost == 0"].')
    if len(texts) > MOST_EXPECTATIONS:
        raise ScenarioError(f"expect has {len(texts)} entries: at most {MOST_EXPECTATIONS} are checked.")
    return tuple(_expression(text, entities, live=False) for text in texts)


def _expression(text: str, entities: Mapping[str, Entity], *, live: bool) -> Expression:
    try:
        return parse(text, entities=entities, live=live)
    except ExpressionError as error:
        raise ScenarioError(str(error)) from error


def _entity(table: _Table) -> Entity:
    table.only("queue", "topic", "sessions", "duplicate-detection")
    if ("queue" in table.content) == ("topic" in table.content):
        raise ScenarioError(f"{table.name} needs either queue or topic, with its name.")
    topic = "topic" in table.content
    name = table.text("topic" if topic else "queue")
    if not _NAME.fullmatch(name):
        raise ScenarioError(f"{table.name}: '{name[:60]}' is no name: use letters, digits, '.', '-', '_' and '/'.")
    if topic and table.flag("sessions"):
        raise ScenarioError(f"{table.name}: a topic has no sessions: leave them out, or make it a queue.")
    return Entity(name, topic, table.flag("sessions"), table.flag("duplicate-detection"))


def _pairing(table: _Table) -> tuple[dict[str, Any], int]:
    table.only(*PAIRING)
    options: dict[str, Any] = {}
    for key in table.content:
        name = key.replace("-", "_")
        if key in _DURATIONS:
            options[name] = table.seconds(key, least=0.0)
        elif key in _FLAGS:
            options[name] = table.flag(key)
        elif key in _NUMBERS:
            options[name] = table.number(key, 1, 100)
        elif key == "backlog-time-to-live":
            options[name] = table.choice(key, ("restore", "deduct"))
    if not options.get("spool", True):
        del options["spool"]
    return options, table.number("sdk-retries", 0, 10, default=3)


def _step(number: int, table: _Table, entities: Mapping[str, Entity]) -> Step:
    do = table.choice("do", tuple(_ACTIONS))
    keys, make = _ACTIONS[do]
    table.only("do", *keys)
    name = table.content.get("entity")
    if name is not None and (not isinstance(name, str) or name not in entities):
        raise ScenarioError(
            f"{table.name}: '{str(name)[:60]}' is no entity of this drill: {_meant(str(name), entities)}"
        )
    details = ", ".join(f"{key} {value}" for key, value in table.content.items() if key != "do")
    try:
        return Step(number, make(table, entities), f"{do} {details}".strip())
    except ScenarioError as error:
        text = str(error)
        raise ScenarioError(text if text.startswith(table.name) else f"{table.name}: {text}") from error


def _send(table: _Table, entities: Mapping[str, Entity]) -> Action:
    return Send(
        table.text("entity"),
        table.number("count", 1, MOST_MESSAGES) if "count" in table.content else None,
        table.real("rate", 0.01, HIGHEST_RATE) if "rate" in table.content else None,
        table.number("senders", 1, MOST_SENDERS, default=1),
        table.number("size", 0, LARGEST_MESSAGE, default=64),
    )


def _start(table: _Table, entities: Mapping[str, Entity]) -> Action:
    table.real("rate", 0.01, HIGHEST_RATE)
    return _send(table, entities)


def _break(table: _Table, entities: Mapping[str, Entity]) -> Action:
    mode = table.choice("mode", MODES)
    for key, owner in (("condition", "error"), ("rate", "throttle"), ("delay", "slow")):
        if (key in table.content) != (mode == owner):
            raise ScenarioError(f"{table.name}: {key} goes with mode {owner}, and only with it.")
    if mode == "disable" and "entity" not in table.content:
        raise ScenarioError(f"{table.name}: mode disable is for one entity: name it.")
    return Break(
        _role(table),
        mode,
        table.content.get("entity"),
        table.text("condition") if mode == "error" else None,
        table.real("rate", 0, HIGHEST_RATE) if mode == "throttle" else None,
        table.seconds("delay") if mode == "slow" else None,
    )


def _role(table: _Table) -> NamespaceRole:
    if "namespace" not in table.content:
        return "primary"
    return "primary" if table.choice("namespace", ("primary", "secondary")) == "primary" else "secondary"


def _purge(table: _Table, entities: Mapping[str, Entity]) -> Action:
    return Purge(table.number("count", 1, MOST_MESSAGES) if "count" in table.content else None)


_ACTIONS: dict[str, tuple[tuple[str, ...], Any]] = {
    "send": (("entity", "count", "rate", "senders", "size"), lambda table, _: _counted(table)),
    "start": (("entity", "rate", "senders", "size"), _start),
    "stop": (("entity",), lambda table, _: Stop(table.content.get("entity"))),
    "fault": (("namespace", "entity", "mode", "condition", "rate", "delay"), _break),
    "clear": (("namespace", "entity"), lambda table, _: Clear(_role(table), table.content.get("entity"))),
    "kill": (("namespace",), lambda table, _: Kill(_role(table))),
    "restart": (("namespace",), lambda table, _: Restart(_role(table))),
    "pause": (("for",), lambda table, _: Pause(table.seconds("for"))),
    "wait": (
        ("until", "within"),
        lambda table, entities: Wait(
            _expression(table.text("until"), entities, live=True), table.within(DEFAULT_WITHIN_SECONDS)
        ),
    ),
    "syphon": (("within",), lambda table, _: Carry(table.within(2 * DEFAULT_WITHIN_SECONDS))),
    "purge": (("count",), _purge),
}


def _counted(table: _Table) -> Action:
    table.number("count", 1, MOST_MESSAGES)
    return _send(table, {})


class _Table:
    """One table of the file, with its place in it; every value is checked as it is read."""

    def __init__(self, content: Mapping[str, Any], name: str) -> None:
        self.content = content
        self.name = name

    def only(self, *known: str) -> None:
        for key in self.content:
            if key not in known:
                raise ScenarioError(f"{self.name}: '{key[:60]}' is unknown: {_meant(key, known)}")

    def tables(self, key: str, most: int) -> list[_Table]:
        found = self.content.get(key, [])
        if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
            raise ScenarioError(f"{key} must be tables: write [[{key}]] above each of them.")
        if len(found) > most:
            raise ScenarioError(f"There are {len(found)} {key}: at most {most} are allowed.")
        return [_Table(one, f"{key} {number}") for number, one in enumerate(found, start=1)]

    def table(self, key: str) -> Mapping[str, Any]:
        found = self.content.get(key, {})
        if not isinstance(found, dict):
            raise ScenarioError(f"{key} is {found!r}: expected a table, [{key}].")
        return found

    def _value(self, key: str, kinds: Any, expected: str) -> Any:
        if key not in self.content:
            raise ScenarioError(f"{self.name} needs {key}, {expected}.")
        value = self.content[key]
        if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool):
            raise ScenarioError(f"{self.name}: {key} is {str(value)[:60]!r}: expected {expected}.")
        return value

    def text(self, key: str) -> str:
        found: str = self._value(key, str, "a text in quotes")
        return found

    def flag(self, key: str) -> bool:
        return bool(self._value(key, bool, "true or false")) if key in self.content else False

    def number(self, key: str, low: int, high: int, *, default: int | None = None) -> int:
        if default is not None and key not in self.content:
            return default
        found = self._value(key, int, f"a whole number from {low} to {high}")
        if not low <= found <= high:
            raise ScenarioError(f"{self.name}: {key} is {found}: expected a whole number from {low} to {high}.")
        return int(found)

    def real(self, key: str, low: float, high: float) -> float:
        found = self._value(key, (int, float), f"a number from {low:g} to {high:g}")
        if not low <= found <= high:
            raise ScenarioError(f"{self.name}: {key} is {found}: expected a number from {low:g} to {high:g}.")
        return float(found)

    def choice(self, key: str, known: tuple[str, ...]) -> str:
        found = self._value(key, str, f"one of {', '.join(known)}")
        if found not in known:
            raise ScenarioError(f"{self.name}: {key} '{found[:60]}' is unknown: {_meant(found, known)}")
        return str(found)

    def seconds(self, key: str, *, least: float = 0.001) -> float:
        text = str(self._value(key, str, "a duration in quotes, such as '500ms' or '30s'"))
        found = _DURATION.fullmatch(text.strip())
        value = float(found[1]) * _UNITS[found[2]] if found else -1.0
        if not least <= value <= LONGEST_SECONDS:
            raise ScenarioError(f"{self.name}: {key} '{text[:60]}' is not a duration: write '500ms', '30s' or '5m'.")
        return value

    def within(self, default: float) -> float:
        return self.seconds("within") if "within" in self.content else default


def _meant(given: str, known: Mapping[str, object] | tuple[str, ...]) -> str:
    close = get_close_matches(given, list(known), n=1)
    return f"did you mean '{close[0]}'?" if close else f"known are {', '.join(known)}."
