"""A scenario: what is sent, what fails when, and what is expected. Read from TOML, and checked before anything starts.

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

An expectation is one comparison: a name, an operator, and a number, a time, a state or another name. All expectations
of a list must hold. Their types are checked before anything runs: a count is compared with a number, a time with a
number and a unit, a state with `healthy`, `suspect` or `failed_over`. The latency of sends that never happened is not
a number, and no comparison with it holds.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field, structs

from pairbus.toml import TomlError, convert_toml, read_small_file, read_toml, suggest

MAX_MESSAGES = 1_000_000
MAX_EXPECTATIONS = 100
MAX_EXPECTATION_LENGTH = 300
MAX_DURATION_SECONDS = 24 * 3600.0

NamespaceRole = Literal["primary", "secondary"]
REAL_MODES = ("disable",)
"""Faults that work on real namespaces too: the drill changes the status of a queue or topic of its own."""

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)(ms|s|m|h)", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._/-]{0,98}[A-Za-z0-9])?", re.ASCII)


# --- the file -----------------------------------------------------------------------------------------------


class Duration(float):
    """Seconds, written as '500ms', '30s', '5m' or '1h'."""

    expected = "a duration in quotes, such as '500ms', '30s' or '5m', at most '24h'"
    minimum = 0.0


class PositiveDuration(Duration):
    expected = "a duration in quotes above 0, such as '500ms', '30s' or '5m', at most '24h'"
    minimum = 0.001


Rate = Annotated[float, Meta(ge=0.01, le=10_000)]
MessageCount = Annotated[int, Meta(ge=1, le=MAX_MESSAGES)]
SenderCount = Annotated[int, Meta(ge=1, le=64)]
Size = Annotated[int, Meta(ge=0, le=200_000)]
SmallNumber = Annotated[int, Meta(ge=1, le=100)]


class DrillEntity(Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """A queue or topic of the primary that the drill creates."""

    queue: str | None = None
    topic: str | None = None
    sessions: bool = False
    duplicate_detection: bool = False

    def __post_init__(self) -> None:
        if (self.queue is None) == (self.topic is None):
            raise ValueError("needs either queue or topic, with its name.")
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"'{self.name[:60]}' is not a name: use letters, digits, '.', '-', '_' and '/'.")
        if self.topic is not None and self.sessions:
            raise ValueError("a topic has no sessions: remove the key, or make it a queue.")

    @property
    def name(self) -> str:
        return str(self.topic if self.queue is None else self.queue)


class Pairing(Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """Options of the pairing."""

    failover_interval: Duration | UnsetType = UNSET
    ping_primary_interval: Duration | UnsetType = UNSET
    syphon_retry_interval: Duration | UnsetType = UNSET
    send_timeout: Duration | UnsetType = UNSET
    enable_syphon: bool | UnsetType = UNSET
    divert_during_interval: bool | UnsetType = UNSET
    backlog_queue_count: SmallNumber | UnsetType = UNSET
    recovery_pings: SmallNumber | UnsetType = UNSET
    backlog_time_to_live: Literal["restore", "deduct"] | UnsetType = UNSET
    spool: bool = False
    sdk_retries: Annotated[int, Meta(ge=0, le=10)] = 3

    @property
    def options(self) -> dict[str, Any]:
        """The keys that are options of SendAvailabilityPairedNamespaceOptions, `spool` apart."""
        values = {key: value for key, value in structs.asdict(self).items() if value is not UNSET}
        return {key: value for key, value in values.items() if key not in ("spool", "sdk_retries")}


class StepAction(Struct, frozen=True, forbid_unknown_fields=True, rename="kebab", tag_field="do"):
    """One step of a scenario; `do` chooses the class."""


class SendAction(StepAction, frozen=True, tag="send"):
    """Send `count` messages, and wait until every send has been answered."""

    entity: str
    count: MessageCount
    rate: Rate | None = None
    senders: SenderCount = 1
    size: Size = 64


class StartAction(StepAction, frozen=True, tag="start"):
    """Send in the background, `rate` messages per second, until StopAction."""

    entity: str
    rate: Rate
    senders: SenderCount = 1
    size: Size = 64


class StopAction(StepAction, frozen=True, tag="stop"):
    """Stop the background senders of one entity, or of all."""

    entity: str | None = None


class FaultAction(StepAction, frozen=True, tag="fault"):
    mode: Literal["refuse", "drop", "hang", "error", "throttle", "slow", "accept-then-fail", "idle-detach", "disable"]
    namespace: NamespaceRole = "primary"
    entity: str | None = None
    condition: str | None = None
    rate: Annotated[float, Meta(ge=0, le=10_000)] | None = None
    delay: PositiveDuration | None = None

    def __post_init__(self) -> None:
        for key, mode in (("condition", "error"), ("rate", "throttle"), ("delay", "slow")):
            if (getattr(self, key) is not None) != (self.mode == mode):
                raise ValueError(f"mode {mode} needs {key}, and no other mode may have it.")
        if self.mode == "disable" and self.entity is None:
            raise ValueError("mode disable needs an entity.")


class ClearAction(StepAction, frozen=True, tag="clear"):
    namespace: NamespaceRole = "primary"
    entity: str | None = None


class KillAction(StepAction, frozen=True, tag="kill"):
    namespace: NamespaceRole = "primary"


class RestartAction(StepAction, frozen=True, tag="restart"):
    namespace: NamespaceRole = "primary"


class PauseAction(StepAction, frozen=True, tag="pause"):
    seconds: PositiveDuration = field(name="for")


class WaitAction(StepAction, frozen=True, tag="wait"):
    """Wait until a comparison holds, or all comparisons of a list."""

    until: str | Annotated[tuple[str, ...], Meta(min_length=1, max_length=MAX_EXPECTATIONS)]
    within: PositiveDuration = PositiveDuration(60)


class SyphonAction(StepAction, frozen=True, tag="syphon"):
    """Run a syphon until the backlog is empty."""

    within: PositiveDuration = PositiveDuration(120)


class PurgeAction(StepAction, frozen=True, tag="purge"):
    """Delete messages of the backlog. The only step that loses messages: it shows that the drill notices."""

    count: MessageCount | None = None


AnyAction = (
    SendAction
    | StartAction
    | StopAction
    | FaultAction
    | ClearAction
    | KillAction
    | RestartAction
    | PauseAction
    | WaitAction
    | SyphonAction
    | PurgeAction
)


class ScenarioFile(Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    expect: Annotated[
        tuple[str, ...],
        Meta(min_length=1, max_length=MAX_EXPECTATIONS, extra={"expected": 'a list of texts, such as ["lost == 0"]'}),
    ]
    entities: Annotated[tuple[DrillEntity, ...], Meta(min_length=1, max_length=50)]
    steps: Annotated[tuple[AnyAction, ...], Meta(min_length=1, max_length=200)]
    pairing: Pairing = Pairing()


@dataclass(frozen=True, slots=True)
class DrillStep:
    number: int
    action: AnyAction
    text: str
    """The step in one line, for people."""
    until: tuple[Expectation, ...] = ()


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    entities: Mapping[str, DrillEntity]
    pairing: Pairing
    steps: tuple[DrillStep, ...]
    expect: tuple[Expectation, ...]

    @property
    def only_for_embedded(self) -> list[str]:
        """The steps that real namespaces cannot do."""
        return [
            step.text
            for step in self.steps
            if isinstance(step.action, KillAction | RestartAction)
            or (isinstance(step.action, FaultAction) and step.action.mode not in REAL_MODES)
        ]


def read_scenario(path: Path) -> Scenario:
    """Read a scenario from a file; TomlError if it cannot be read or is wrong."""
    raw = read_small_file(path, f"the scenario {path}")
    return parse_scenario(read_toml(raw, where=str(path)), where=str(path))


def parse_scenario(content: dict[str, Any], *, where: str = "scenario") -> Scenario:
    """Check the content of a file; `where` names the file in the TomlError."""
    file = convert_toml(content, ScenarioFile, where=where, dec_hook=_duration)
    entities = {entity.name: entity for entity in file.entities}
    if len(entities) < len(file.entities):
        raise TomlError(f"{where}: An entity is described twice: describe each queue and topic once.")
    steps = []
    for number, action in enumerate(file.steps, start=1):
        name = getattr(action, "entity", None)
        if name is not None and name not in entities:
            raise TomlError(
                f"{where}: steps {number}: '{name[:60]}' is not an entity of this drill: {suggest(name, entities)}"
            )
        until = action.until if isinstance(action, WaitAction) else ()
        texts = (until,) if isinstance(until, str) else until
        conditions = parse_expectations(texts, entities, where=f"{where}: steps {number}", live=True)
        steps.append(DrillStep(number, action, _describe(content["steps"][number - 1]), conditions))
    expect = parse_expectations(file.expect, entities, where=where, live=False)
    return Scenario(file.name, entities, file.pairing, tuple(steps), expect)


def _duration(kind: type, value: Any) -> Any:
    found = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    seconds = float(found[1]) * _UNITS[found[2]] if found else -1.0
    if not getattr(kind, "minimum", 0.0) <= seconds <= MAX_DURATION_SECONDS:
        raise ValueError("Expected a duration")
    return kind(seconds)


def _describe(table: Mapping[str, Any]) -> str:
    details = (
        f"{key} {', '.join(value) if isinstance(value, list) else value}" for key, value in table.items() if key != "do"
    )
    return f"{table['do']} {', '.join(details)}".strip()


# --- expectations -------------------------------------------------------------------------------------------

STATES = ("healthy", "suspect", "failed_over")
OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_COMPARISON = re.compile(r"(.+?)\s*(==|!=|<=|>=|<|>)\s*(.+)", re.DOTALL)
_OPERAND = re.compile(
    r"(?P<number>\d{1,12}(?:\.\d{1,6})?)(?P<unit>ms|s|m|h)?"
    r"|(?P<name>[A-Za-z_]\w*)(?:\(\s*(?:\"(?P<quoted>[^\"]*)\"|(?P<entity>[\w./-]+))\s*\))?",
    re.ASCII,
)
_ENTITY = re.compile(r"\w\([^()]*\)")
_JOINED = re.compile(r"\b(and|or|not)\b|[()]")

Value = float | str
Lookup = Callable[[str, str | None], Value]


class MetricKind(StrEnum):
    COUNT = "count"
    TIME = "time"
    STATE = "state"


@dataclass(frozen=True, slots=True)
class Metric:
    """A name that an expectation can use: its kind, and whether it is about one entity, the whole drill, or both."""

    kind: MetricKind
    meaning: str
    live: bool = True
    """False: known only after the census, at the end."""
    scope: Literal["both", "entity", "all"] = "both"


METRICS: Mapping[str, Metric] = {
    "accepted": Metric(MetricKind.COUNT, "messages whose send returned"),
    "refused": Metric(MetricKind.COUNT, "messages whose send raised an error"),
    "failovers": Metric(MetricKind.COUNT, "transitions to failed over"),
    "recoveries": Metric(MetricKind.COUNT, "transitions from failed over to healthy"),
    "state": Metric(MetricKind.STATE, "the current state", scope="entity"),
    "waiting": Metric(MetricKind.COUNT, "messages in the backlog queues", scope="all"),
    "spooled": Metric(MetricKind.COUNT, "messages in the spool", scope="all"),
    "p50_send": Metric(MetricKind.TIME, "50 % of the accepted sends took no longer"),
    "p95_send": Metric(MetricKind.TIME, "95 % of the accepted sends took no longer"),
    "p99_send": Metric(MetricKind.TIME, "99 % of the accepted sends took no longer"),
    "max_send": Metric(MetricKind.TIME, "the longest accepted send"),
    "elapsed": Metric(MetricKind.TIME, "time since the first step", scope="all"),
    "delivered": Metric(MetricKind.COUNT, "accepted messages that are in their entity", live=False),
    "dead_lettered": Metric(MetricKind.COUNT, "accepted messages in a dead-letter queue", live=False),
    "duplicates": Metric(
        MetricKind.COUNT,
        "extra copies of accepted messages: in their entity, or on the way to it if it does not detect duplicates",
        live=False,
    ),
    "lost": Metric(MetricKind.COUNT, "accepted messages that were not found anywhere", live=False),
}
_ADVICE = {
    MetricKind.COUNT: "compare it with a number",
    MetricKind.TIME: "compare it with a number and its unit, such as 2s or 500ms",
    MetricKind.STATE: "compare it with healthy, suspect or failed_over",
}


@dataclass(frozen=True, slots=True)
class Operand:
    """A number, a time in seconds, a state, or the name of a metric."""

    kind: MetricKind
    text: str
    value: Value | None = None
    metric: str | None = None
    entity: str | None = None

    def evaluate(self, lookup: Lookup, seen: dict[str, Value]) -> Value:
        if self.metric is None:
            return self.value if self.value is not None else 0.0
        seen[self.text] = value = lookup(self.metric, self.entity)
        return value


@dataclass(frozen=True, slots=True)
class Expectation:
    """One comparison, such as `lost(orders) == 0`."""

    text: str
    left: Operand
    sign: str
    right: Operand

    @property
    def metrics(self) -> set[str | None]:
        return {self.left.metric, self.right.metric}

    def check(self, lookup: Lookup) -> tuple[bool, dict[str, Value]]:
        """Whether it holds, and the values that decided."""
        seen: dict[str, Value] = {}
        left, right = self.left.evaluate(lookup, seen), self.right.evaluate(lookup, seen)
        return is_known(left) and is_known(right) and OPERATORS[self.sign](left, right), seen


def is_known(value: Value) -> bool:
    """False for the latency of sends that never happened."""
    return isinstance(value, str) or not math.isnan(value)


def parse_expectations(
    texts: Iterable[str], entities: Mapping[str, object], *, where: str, live: bool
) -> tuple[Expectation, ...]:
    """Parse comparisons about these entities; TomlError if one is wrong. A `live` one cannot ask for the census."""
    expectations = []
    for text in texts:
        try:
            expectations.append(_parse_expectation(text.strip(), entities, live))
        except ValueError as error:
            raise TomlError(f"{where}: {error}") from None
    return tuple(expectations)


def _parse_expectation(text: str, entities: Mapping[str, object], live: bool) -> Expectation:
    if not text:
        raise ValueError("An expectation is empty: write a comparison such as lost == 0.")
    if len(text) > MAX_EXPECTATION_LENGTH:
        raise ValueError(f"'{text[:40]}…' has {len(text)} characters: use at most {MAX_EXPECTATION_LENGTH}.")
    joined = _JOINED.search(_ENTITY.sub("", text))
    if joined is not None:
        word = f"'{joined[1]}'" if joined[1] else "brackets, except around an entity"
        raise ValueError(
            f"'{text}': an expectation cannot use {word}: write one comparison per line of the list; all must hold."
        )
    found = _COMPARISON.fullmatch(text)
    if found is None:
        raise ValueError(f"'{text}' is not a comparison: write NAME == VALUE, with one of {' '.join(OPERATORS)}.")
    try:
        left, right = _parse_operand(found[1], entities, live), _parse_operand(found[3], entities, live)
        if left.metric is None:
            raise ValueError(f"'{left.text}' is not a name: write the name first, as in lost == 0.")
        if left.kind is not right.kind:
            raise ValueError(f"{left.text} is a {left.kind}: {_ADVICE[left.kind]}, not with {right.text}.")
        if left.kind is MetricKind.STATE and found[2] not in ("==", "!="):
            raise ValueError("compare states with == or != only.")
    except ValueError as error:
        raise ValueError(f"'{text}': {error}") from None
    return Expectation(text, left, found[2], right)


def _parse_operand(text: str, entities: Mapping[str, object], live: bool) -> Operand:
    found = _OPERAND.fullmatch(text)
    if found is None:
        raise ValueError(f"'{text[:40]}' is unreadable: use a name, a number, a time such as 2s, or a state.")
    number, unit, name = found["number"], found["unit"], found["name"]
    if number is not None:
        kind = MetricKind.COUNT if unit is None else MetricKind.TIME
        return Operand(kind, text, float(number) * _UNITS.get(unit, 1.0))
    entity = found["quoted"] if found["quoted"] is not None else found["entity"]
    if name in STATES and entity is None:
        return Operand(MetricKind.STATE, name, name)
    metric = METRICS.get(name)
    if metric is None:
        raise ValueError(f"'{name}' is unknown: {suggest(name, [*METRICS, *STATES])}")
    if live and not metric.live:
        raise ValueError(f"{name} is known only at the end: use it in 'expect'.")
    if entity is None and metric.scope == "entity":
        raise ValueError(f"{name} is about one entity: write {name}(ENTITY).")
    if entity is not None and metric.scope == "all":
        raise ValueError(f"{name} is about the whole drill: remove the entity.")
    if entity is not None and entity not in entities:
        raise ValueError(f"'{entity}' is not an entity of this drill: {suggest(entity, entities)}")
    return Operand(metric.kind, name if entity is None else f"{name}({entity})", metric=name, entity=entity)
