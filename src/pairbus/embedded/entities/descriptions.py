"""Descriptions of queues, topics, subscriptions, rules and authorization rules, with the service's defaults and limits.

- A description is a value. `validate()` checks it alone; `validate_change(new, current)` also checks that an update
  keeps the settings that the service fixes at creation. Checks that involve other entities (does the forward target
  exist?) are made where those entities are known.
- Durations are ISO 8601 text outside and integer milliseconds inside; `FOREVER_MS` means no limit.
- `forward_to` and `forward_dead_lettered_messages_to` hold entity paths, never URIs.
- Values of parameters and correlation properties keep the type the client sent: a `datetime` without a time zone stays
  naive. Only the length of an SQL expression is checked here; `filters` parses it.
- `from_json(type(d), to_json(d)) == d`. Fields missing from a stored text get their defaults, so old stores stay
  readable.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from pairbus.embedded.entities.paths import subscription_path, validate_entity_name, validate_subscription_name
from pairbus.embedded.errors import InvalidError

# -- durations

SECOND_MS = 1_000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
# The largest .NET time span means "forever". Clients print it with seven decimals, with six, or rounded up, so every
# duration of at least this many whole milliseconds is read as this one.
FOREVER_MS = 922_337_203_685_477
FOREVER_TEXT = "P10675199DT2H48M5.4775807S"

_ISO_8601 = re.compile(
    r"P(?:(?P<weeks>\d{1,9})W|(?:(?P<days>\d{1,9})D)?"
    r"(?P<time>T(?:(?P<hours>\d{1,9})H)?(?:(?P<minutes>\d{1,9})M)?(?:(?P<seconds>\d{1,12})(?:\.(?P<fraction>\d{1,9}))?S)?)?)",
    re.ASCII,
)
_UNITS = (("weeks", 7 * DAY_MS), ("days", DAY_MS), ("hours", HOUR_MS), ("minutes", MINUTE_MS), ("seconds", SECOND_MS))


def parse_duration(text: str) -> int:
    """The milliseconds of an ISO 8601 duration without years and months, which have no fixed length."""
    match = _ISO_8601.fullmatch(text.strip())
    if match is None or text.strip() == "P" or match["time"] == "T":
        raise InvalidError(
            f"'{text[:64]}' is not a duration. Write it in ISO 8601 without years and months, such as PT30S or P1DT2H."
        )
    total = sum(int(match[name] or 0) * unit for name, unit in _UNITS)
    total += int((match["fraction"] or "0").ljust(3, "0")[:3])
    return min(total, FOREVER_MS)


def format_duration(duration_ms: int) -> str:
    """The shortest ISO 8601 text of a duration."""
    if duration_ms >= FOREVER_MS:
        return FOREVER_TEXT
    days, rest = divmod(duration_ms, DAY_MS)
    hours, rest = divmod(rest, HOUR_MS)
    minutes, rest = divmod(rest, MINUTE_MS)
    seconds, fraction = divmod(rest, SECOND_MS)
    time = "".join(f"{value}{unit}" for value, unit in ((hours, "H"), (minutes, "M")) if value)
    if fraction:
        time += f"{seconds}.{fraction:03d}".rstrip("0") + "S"
    elif seconds:
        time += f"{seconds}S"
    day = f"{days}D" if days else ""
    if not time:
        return f"P{day}" if day else "PT0S"
    return f"P{day}T{time}"


# -- authorization rules

MANAGE = "Manage"
SEND = "Send"
LISTEN = "Listen"
RIGHTS = frozenset({MANAGE, SEND, LISTEN})
MAX_RULES = 12
MAX_KEY_NAME_LENGTH = 256
MAX_KEY_LENGTH = 256


@dataclass(frozen=True, slots=True)
class AuthorizationRule:
    """A named pair of keys, and the rights of a token that is signed with either.

    Manage includes Send and Listen; as in the service, a rule with Manage must list all three. Keys are secrets and are
    not part of the `repr`.
    """

    key_name: str
    rights: frozenset[str]
    primary_key: str = field(repr=False)
    secondary_key: str = field(repr=False)
    created_ms: int = 0
    modified_ms: int = 0

    def validate(self) -> None:
        if not 1 <= len(self.key_name) <= MAX_KEY_NAME_LENGTH or not self.key_name.isprintable():
            raise InvalidError(
                f"KeyName '{self.key_name[:64]}' must have 1 to {MAX_KEY_NAME_LENGTH} printable characters."
            )
        if not self.rights or not self.rights <= RIGHTS:
            raise InvalidError(
                f"Rights of '{self.key_name}' are {sorted(self.rights)}. Grant one or more of Listen, Manage, Send."
            )
        if MANAGE in self.rights and self.rights != RIGHTS:
            raise InvalidError(f"Rights of '{self.key_name}' include Manage. They must include Send and Listen too.")
        for name, key in (("PrimaryKey", self.primary_key), ("SecondaryKey", self.secondary_key)):
            if not 1 <= len(key) <= MAX_KEY_LENGTH or not key.isascii() or not key.isprintable():
                raise InvalidError(
                    f"{name} of '{self.key_name}' must have 1 to {MAX_KEY_LENGTH} printable ASCII characters."
                )


def validate_rules(rules: tuple[AuthorizationRule, ...]) -> None:
    """Check the authorization rules of a namespace or entity: their number, each rule, and that names are unique."""
    if len(rules) > MAX_RULES:
        raise InvalidError(f"AuthorizationRules has {len(rules)} rules. At most {MAX_RULES} are allowed.")
    seen: set[str] = set()
    for rule in rules:
        rule.validate()
        if rule.key_name.casefold() in seen:
            raise InvalidError(f"AuthorizationRules contains '{rule.key_name}' twice. Each KeyName must be unique.")
        seen.add(rule.key_name.casefold())


# -- rules of subscriptions

DEFAULT_RULE_NAME = "$Default"
MAX_RULE_NAME_LENGTH = 50
MAX_EXPRESSION_LENGTH = 1_024
MAX_PARAMETERS = 1_000
MAX_PROPERTY_LENGTH = 32_767
_FORBIDDEN_IN_RULE_NAMES = frozenset("/\\@?#*")

PropertyValue = str | bool | int | float | datetime | timedelta


@dataclass(frozen=True, slots=True)
class SqlFilter:
    expression: str
    parameters: Mapping[str, PropertyValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TrueFilter:
    """Matches every message."""


@dataclass(frozen=True, slots=True)
class FalseFilter:
    """Matches no message."""


@dataclass(frozen=True, slots=True)
class CorrelationFilter:
    """Matches messages that have all of these values. A property that is None is not compared."""

    correlation_id: str | None = None
    message_id: str | None = None
    to: str | None = None
    reply_to: str | None = None
    label: str | None = None
    session_id: str | None = None
    reply_to_session_id: str | None = None
    content_type: str | None = None
    properties: Mapping[str, PropertyValue] = field(default_factory=dict)


CORRELATION_FIELDS = tuple(item.name for item in fields(CorrelationFilter) if item.name != "properties")
RuleFilter = SqlFilter | TrueFilter | FalseFilter | CorrelationFilter


@dataclass(frozen=True, slots=True)
class SqlAction:
    expression: str
    parameters: Mapping[str, PropertyValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RuleDescription:
    """A filter that selects messages, and an optional action that changes the selected copies."""

    name: str
    filter: RuleFilter = field(default_factory=TrueFilter)
    action: SqlAction | None = None
    created_ms: int = 0

    def validate(self) -> None:
        if (
            not 1 <= len(self.name) <= MAX_RULE_NAME_LENGTH
            or not self.name.isprintable()
            or not _FORBIDDEN_IN_RULE_NAMES.isdisjoint(self.name)
        ):
            raise InvalidError(
                f"Rule name '{self.name[:64]}' needs 1 to {MAX_RULE_NAME_LENGTH} characters and none of / \\ @ ? # *."
            )
        match self.filter:
            case SqlFilter(expression, parameters):
                _validate_expression("SqlFilter", expression, parameters)
            case CorrelationFilter() as correlation:
                _validate_correlation(correlation)
        if self.action is not None:
            _validate_expression("SqlRuleAction", self.action.expression, self.action.parameters)
        _validate_text(self)


DEFAULT_RULE = RuleDescription(DEFAULT_RULE_NAME)


def _validate_expression(kind: str, expression: str, parameters: Mapping[str, PropertyValue]) -> None:
    if not 1 <= len(expression) <= MAX_EXPRESSION_LENGTH:
        raise InvalidError(
            f"SqlExpression of a {kind} has {len(expression)} characters. 1 to {MAX_EXPRESSION_LENGTH} are allowed."
        )
    _validate_number(f"A {kind} has {len(parameters)} parameters.", parameters)
    for name in parameters:
        if not name.startswith("@") or len(name) < 2:
            raise InvalidError(f"Parameter '{name[:64]}' of a {kind} must have a name with a leading @.")


def _validate_correlation(correlation: CorrelationFilter) -> None:
    for name in CORRELATION_FIELDS:
        value: str | None = getattr(correlation, name)
        if value is not None and len(value) > MAX_PROPERTY_LENGTH:
            raise InvalidError(
                f"{name} of a CorrelationFilter has {len(value)} characters. At most {MAX_PROPERTY_LENGTH} are allowed."
            )
    _validate_number(f"A CorrelationFilter has {len(correlation.properties)} properties.", correlation.properties)


def _validate_number(sentence: str, values: Mapping[str, PropertyValue]) -> None:
    if len(values) > MAX_PARAMETERS:
        raise InvalidError(f"{sentence} At most {MAX_PARAMETERS} are allowed.")


# -- queues, topics and subscriptions

MAX_USER_METADATA_LENGTH = 1_024
SIZES_IN_MEGABYTES = (1_024, 2_048, 3_072, 4_096, 5_120)
PARTITIONS = 16
STATUSES = ("Active", "Disabled", "SendDisabled", "ReceiveDisabled")
RANGES = {
    "default_message_time_to_live_ms": (SECOND_MS, FOREVER_MS),
    "auto_delete_on_idle_ms": (5 * MINUTE_MS, FOREVER_MS),
    "duplicate_detection_history_time_window_ms": (20 * SECOND_MS, 7 * DAY_MS),
    "max_message_size_in_kilobytes": (1, 102_400),
    "lock_duration_ms": (5 * SECOND_MS, 5 * MINUTE_MS),
    "max_delivery_count": (1, 2_147_483_647),
}
"""The lowest and the highest value of a setting, for the entities that have it."""


@dataclass(frozen=True, slots=True)
class QueueDescription:
    name: str
    lock_duration_ms: int = MINUTE_MS
    max_size_in_megabytes: int = 1_024
    requires_duplicate_detection: bool = False
    requires_session: bool = False
    default_message_time_to_live_ms: int = FOREVER_MS
    dead_lettering_on_message_expiration: bool = False
    duplicate_detection_history_time_window_ms: int = 10 * MINUTE_MS
    max_delivery_count: int = 10
    enable_batched_operations: bool = True
    status: str = "Active"
    auto_delete_on_idle_ms: int = FOREVER_MS
    enable_partitioning: bool = False
    enable_express: bool = False
    user_metadata: str | None = None
    forward_to: str | None = None
    forward_dead_lettered_messages_to: str | None = None
    max_message_size_in_kilobytes: int = 256
    authorization_rules: tuple[AuthorizationRule, ...] = ()

    @property
    def path(self) -> str:
        return self.name

    def validate(self) -> None:
        validate_entity_name(self.name)
        _validate_settings(self)


@dataclass(frozen=True, slots=True)
class TopicDescription:
    name: str
    default_message_time_to_live_ms: int = FOREVER_MS
    max_size_in_megabytes: int = 1_024
    requires_duplicate_detection: bool = False
    duplicate_detection_history_time_window_ms: int = 10 * MINUTE_MS
    enable_batched_operations: bool = True
    filtering_messages_before_publishing: bool = False
    status: str = "Active"
    support_ordering: bool = True
    auto_delete_on_idle_ms: int = FOREVER_MS
    enable_partitioning: bool = False
    enable_express: bool = False
    user_metadata: str | None = None
    max_message_size_in_kilobytes: int = 256
    authorization_rules: tuple[AuthorizationRule, ...] = ()

    @property
    def path(self) -> str:
        return self.name

    def validate(self) -> None:
        validate_entity_name(self.name)
        _validate_settings(self)


@dataclass(frozen=True, slots=True)
class SubscriptionDescription:
    topic: str
    name: str
    lock_duration_ms: int = MINUTE_MS
    requires_session: bool = False
    default_message_time_to_live_ms: int = FOREVER_MS
    dead_lettering_on_message_expiration: bool = False
    dead_lettering_on_filter_evaluation_exceptions: bool = True
    max_delivery_count: int = 10
    enable_batched_operations: bool = True
    status: str = "Active"
    forward_to: str | None = None
    forward_dead_lettered_messages_to: str | None = None
    auto_delete_on_idle_ms: int = FOREVER_MS
    user_metadata: str | None = None
    default_rule: RuleDescription | None = None
    """The first rule of a new subscription (None: `DEFAULT_RULE`). Only creation uses it."""

    @property
    def path(self) -> str:
        return subscription_path(self.topic, self.name)

    def validate(self) -> None:
        validate_entity_name(self.topic)
        validate_subscription_name(self.name)
        _validate_settings(self)
        if self.default_rule is not None:
            self.default_rule.validate()


EntityDescription = QueueDescription | TopicDescription | SubscriptionDescription
E = TypeVar("E", bound=EntityDescription)
FIXED_SETTINGS = ("requires_session", "requires_duplicate_detection", "enable_partitioning")
"""The settings that cannot be changed after creation, as far as an entity has them."""


def element_name(field_name: str) -> str:
    """The service's name of a field: `LockDuration` for `lock_duration_ms`."""
    return "".join(word.capitalize() for word in field_name.removesuffix("_ms").split("_"))


def forward_targets(entity: EntityDescription) -> list[tuple[str, str]]:
    """The element names and paths of an entity's forward targets."""
    targets = [(name, getattr(entity, name, None)) for name in ("forward_to", "forward_dead_lettered_messages_to")]
    return [(element_name(name), path) for name, path in targets if path is not None]


def _validate_text(description: "EntityDescription | RuleDescription") -> None:
    """Refuse text that cannot be stored."""
    try:
        to_json(description).encode()
    except UnicodeEncodeError:
        raise InvalidError(
            f"The description of '{description.name}' contains half of a surrogate pair, which is not a character."
        ) from None


def _validate_settings(entity: EntityDescription) -> None:
    for name, (lowest, highest) in RANGES.items():
        value = getattr(entity, name, lowest)
        if not lowest <= value <= highest:
            shown = [
                format_duration(max(number, 0)) if name.endswith("_ms") else number
                for number in (value, lowest, highest)
            ]
            raise InvalidError(f"{element_name(name)} is {shown[0]}. It must be between {shown[1]} and {shown[2]}.")
    if entity.status not in STATUSES:
        raise InvalidError(f"Status is '{entity.status[:64]}'. It must be one of {', '.join(STATUSES)}.")
    if entity.user_metadata is not None and len(entity.user_metadata) > MAX_USER_METADATA_LENGTH:
        raise InvalidError(
            f"UserMetadata has {len(entity.user_metadata)} characters. At most {MAX_USER_METADATA_LENGTH} are allowed."
        )
    _validate_text(entity)
    if not isinstance(entity, SubscriptionDescription):
        _validate_publishing(entity)
    for name, path in forward_targets(entity):
        try:
            validate_entity_name(path)
        except InvalidError as error:
            raise InvalidError(f"{name} does not name a queue or topic. {error.description}") from None


def _validate_publishing(entity: QueueDescription | TopicDescription) -> None:
    """Check the settings of entities that clients send to."""
    sizes: tuple[int, ...] = SIZES_IN_MEGABYTES
    if entity.enable_partitioning:
        sizes += tuple(PARTITIONS * size for size in SIZES_IN_MEGABYTES)
    if entity.max_size_in_megabytes not in sizes:
        raise InvalidError(
            f"MaxSizeInMegabytes is {entity.max_size_in_megabytes}. It must be one of {', '.join(map(str, sizes))}."
        )
    if entity.enable_express and entity.requires_duplicate_detection:
        raise InvalidError("EnableExpress and RequiresDuplicateDetection cannot be enabled together.")
    validate_rules(entity.authorization_rules)


def with_identity(new: E, current: EntityDescription) -> E:
    """The new description under the path that its entity was created with; only creation uses a default rule."""
    kept: dict[str, Any] = {"name": current.name}
    if isinstance(current, SubscriptionDescription):
        kept |= {"topic": current.topic, "default_rule": None}
    return replace(new, **kept)


def validate_change(new: EntityDescription, current: EntityDescription) -> None:
    new.validate()
    for name in FIXED_SETTINGS:
        before, after = getattr(current, name, None), getattr(new, name, None)
        if before != after:
            raise InvalidError(
                f"{element_name(name)} of '{new.path}' is {str(before).lower()} and cannot be changed to"
                f" {str(after).lower()}: it is fixed when the entity is created."
            )


# -- stored as JSON

_FILTER_KINDS: dict[str, type[RuleFilter]] = {
    "sql": SqlFilter,
    "true": TrueFilter,
    "false": FalseFilter,
    "correlation": CorrelationFilter,
}
_KIND_OF_FILTER: dict[type, str] = {filter_type: kind for kind, filter_type in _FILTER_KINDS.items()}
_D = TypeVar("_D", bound="EntityDescription | RuleDescription | AuthorizationRule | RuleFilter | SqlAction")


def to_json(value: EntityDescription | RuleDescription | tuple[AuthorizationRule, ...]) -> str:
    return json.dumps(_to_plain(value), ensure_ascii=False, separators=(",", ":"))


def from_json(kind: type[_D], text: str) -> _D:
    return _from_plain(kind, json.loads(text))


def authorization_rules_from_json(text: str) -> tuple[AuthorizationRule, ...]:
    return _rules_from_plain(json.loads(text))


def _to_plain(value: Any) -> Any:
    """JSON has no times and durations: each becomes an object that names its kind. None is left out."""
    if is_dataclass(value):
        kind = _KIND_OF_FILTER.get(type(value))
        named = {item.name: _to_plain(getattr(value, item.name)) for item in fields(value)}
        if kind is not None:
            named["kind"] = kind
        return {name: plain for name, plain in named.items() if plain is not None}
    match value:
        case datetime():
            return {"datetime": value.isoformat()}
        case timedelta():
            return {"duration_us": value // timedelta(microseconds=1)}
        case frozenset():
            return sorted(value)
        case tuple():
            return [_to_plain(item) for item in value]
        case Mapping():
            return {name: _to_plain(item) for name, item in value.items()}
    return value


def _from_plain(kind: type[_D], plain: Mapping[str, Any]) -> _D:
    names = [item.name for item in fields(kind) if plain.get(item.name) is not None]
    return kind(**{name: _READERS[name](plain[name]) if name in _READERS else plain[name] for name in names})


def _rules_from_plain(plain: list[Mapping[str, Any]]) -> tuple[AuthorizationRule, ...]:
    return tuple(_from_plain(AuthorizationRule, rule) for rule in plain)


def _values_from_plain(plain: Mapping[str, Any]) -> dict[str, PropertyValue]:
    return {name: _value_from_plain(value) for name, value in plain.items()}


def _value_from_plain(plain: Any) -> PropertyValue:
    match plain:
        case {"datetime": str(text)}:
            return datetime.fromisoformat(text)
        case {"duration_us": int(microseconds)}:
            return timedelta(microseconds=microseconds)
    value: PropertyValue = plain
    return value


_READERS: dict[str, Callable[[Any], Any]] = {
    "rights": frozenset,
    "authorization_rules": _rules_from_plain,
    "default_rule": partial(_from_plain, RuleDescription),
    "filter": lambda plain: _from_plain(_FILTER_KINDS[plain["kind"]], plain),
    "action": partial(_from_plain, SqlAction),
    "parameters": _values_from_plain,
    "properties": _values_from_plain,
}
