"""What an entity is told to be: descriptions of queues, topics and subscriptions, with the service's defaults
and limits.

Invariants:
- A description is a value. `validate()` checks it alone, `validate_change(current)` also that an update
  leaves alone what the service fixes at creation. What needs other entities (does the forward target exist?)
  is checked where they are known.
- Durations are integer milliseconds; `FOREVER_MS` means no limit. Sizes carry their unit in the name.
- `forward_to` and `forward_dead_lettered_messages_to` hold entity paths, never URIs.
- `from_json(d.to_json()) == d`. Fields a stored text lacks get their defaults, so old stores stay readable.

Durations as the service writes them: ISO 8601 text outside, integer milliseconds inside.

The largest .NET time span means "for ever". Clients print it with seven decimals, with six, or rounded up by
their own arithmetic, so every duration of at least `FOREVER_MS` whole milliseconds is read as `FOREVER_MS`.

Authorization rules: a named pair of keys and what a token signed with either may do.

Send and Listen are independent. Manage includes both, so a rule that grants Manage must list all three, as
the service demands. Keys are secrets: they are left out of `repr`.

Rules of a subscription: a filter that chooses messages and an optional action that changes the copies it
chose.

Values in parameters and correlation properties keep the type the client gave: text, bool, int, float, a point
in time (`datetime`, naive when the client named no zone) or a duration (`timedelta`). Expressions are only
measured here; their grammar belongs to the filters' parser.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from typing import Any, Self

from pairbus.embedded.errors import InvalidError

SECOND_MS = 1_000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
FOREVER_MS = 922_337_203_685_477
FOREVER_TEXT = "P10675199DT2H48M5.4775807S"

_ISO_8601 = re.compile(
    r"P(?:(?P<weeks>\d{1,9})W|(?:(?P<days>\d{1,9})D)?"
    r"(?P<time>T(?:(?P<hours>\d{1,9})H)?(?:(?P<minutes>\d{1,9})M)?(?:(?P<seconds>\d{1,12})(?:\.(?P<fraction>\d{1,9}))?S)?)?)",
    re.ASCII,
)
_UNITS = (
    ("weeks", 7 * DAY_MS),
    ("days", DAY_MS),
    ("hours", HOUR_MS),
    ("minutes", MINUTE_MS),
    ("seconds", SECOND_MS),
)


def parse_duration(text: str) -> int:
    """Milliseconds of an ISO 8601 duration without years and months, which have no fixed length."""
    match = _ISO_8601.fullmatch(text.strip())
    if match is None or text.strip() == "P" or match["time"] == "T":
        raise InvalidError(
            f"'{text[:64]}' is not a duration: write it in ISO 8601 with days and smaller, such as PT30S or P1DT2H."
        )
    total = sum(int(match[name] or 0) * unit for name, unit in _UNITS)
    total += int((match["fraction"] or "0").ljust(3, "0")[:3])
    return min(total, FOREVER_MS)


def format_duration(duration_ms: int) -> str:
    """The shortest ISO 8601 text; for ever is the largest .NET time span."""
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


MANAGE = "Manage"
SEND = "Send"
LISTEN = "Listen"
RIGHTS = frozenset({MANAGE, SEND, LISTEN})
MAX_RULES = 12
MAX_KEY_NAME_LENGTH = 256
MAX_KEY_LENGTH = 256


@dataclass(frozen=True, slots=True)
class AuthorizationRule:
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
                f"Rights of '{self.key_name}' are {sorted(self.rights)}: give one or more of Listen, Manage, Send."
            )
        if MANAGE in self.rights and self.rights != RIGHTS:
            raise InvalidError(f"Rights of '{self.key_name}' include Manage: they must include Send and Listen too.")
        for name, key in (("PrimaryKey", self.primary_key), ("SecondaryKey", self.secondary_key)):
            if not 1 <= len(key) <= MAX_KEY_LENGTH or not key.isascii() or not key.isprintable():
                raise InvalidError(
                    f"{name} of '{self.key_name}' must have 1 to {MAX_KEY_LENGTH} printable ASCII characters."
                )

    def to_json(self) -> str:
        return json.dumps(self.to_plain(), ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "AuthorizationRule":
        return cls.from_plain(json.loads(text))

    def to_plain(self) -> dict[str, Any]:
        return {
            "key_name": self.key_name,
            "rights": sorted(self.rights),
            "primary_key": self.primary_key,
            "secondary_key": self.secondary_key,
            "created_ms": self.created_ms,
            "modified_ms": self.modified_ms,
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "AuthorizationRule":
        return cls(**{**plain, "rights": frozenset(plain["rights"])})


def validate_rules(rules: tuple[AuthorizationRule, ...]) -> None:
    """At most 12 rules for one namespace or entity, each name once, without regard to case."""
    if len(rules) > MAX_RULES:
        raise InvalidError(f"AuthorizationRules has {len(rules)} rules: at most {MAX_RULES} are allowed.")
    seen: set[str] = set()
    for rule in rules:
        rule.validate()
        if rule.key_name.casefold() in seen:
            raise InvalidError(f"AuthorizationRules names '{rule.key_name}' twice: each KeyName must be unique.")
        seen.add(rule.key_name.casefold())


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
    """Chooses every message."""


@dataclass(frozen=True, slots=True)
class FalseFilter:
    """Chooses no message."""


@dataclass(frozen=True, slots=True)
class CorrelationFilter:
    """Chooses messages that equal it in every property it names; None names nothing."""

    correlation_id: str | None = None
    message_id: str | None = None
    to: str | None = None
    reply_to: str | None = None
    label: str | None = None
    session_id: str | None = None
    reply_to_session_id: str | None = None
    content_type: str | None = None
    properties: Mapping[str, PropertyValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SqlAction:
    expression: str
    parameters: Mapping[str, PropertyValue] = field(default_factory=dict)


RuleFilter = SqlFilter | TrueFilter | FalseFilter | CorrelationFilter

_CORRELATION_FIELDS = (
    "correlation_id",
    "message_id",
    "to",
    "reply_to",
    "label",
    "session_id",
    "reply_to_session_id",
    "content_type",
)


@dataclass(frozen=True, slots=True)
class RuleDescription:
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
                f"Rule name '{self.name[:64]}' must have 1 to {MAX_RULE_NAME_LENGTH} characters, without /"
                " \\ @ ? # and *."
            )
        match self.filter:
            case SqlFilter(expression, parameters):
                _validate_expression("SqlFilter", expression, parameters)
            case CorrelationFilter() as correlation:
                _validate_correlation(correlation)
        if self.action is not None:
            _validate_expression("SqlRuleAction", self.action.expression, self.action.parameters)

    def to_json(self) -> str:
        return json.dumps(self.to_plain(), ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "RuleDescription":
        return cls.from_plain(json.loads(text))

    def to_plain(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "filter": _filter_to_plain(self.filter),
            "action": None if self.action is None else _expression_to_plain(self.action),
            "created_ms": self.created_ms,
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "RuleDescription":
        action = plain.get("action")
        return cls(
            name=plain["name"],
            filter=_filter_from_plain(plain["filter"]),
            action=None
            if action is None
            else SqlAction(action["expression"], _values_from_plain(action["parameters"])),
            created_ms=plain.get("created_ms", 0),
        )


DEFAULT_RULE = RuleDescription(DEFAULT_RULE_NAME)


def _validate_expression(kind: str, expression: str, parameters: Mapping[str, PropertyValue]) -> None:
    if not 1 <= len(expression) <= MAX_EXPRESSION_LENGTH:
        raise InvalidError(
            f"SqlExpression of a {kind} has {len(expression)} characters: 1 to {MAX_EXPRESSION_LENGTH} are allowed."
        )
    if len(parameters) > MAX_PARAMETERS:
        raise InvalidError(
            f"Parameters of a {kind}: {len(parameters)} were given, at most {MAX_PARAMETERS} are allowed."
        )
    for name in parameters:
        if not name.startswith("@") or len(name) < 2:
            raise InvalidError(f"Parameter '{name[:64]}' of a {kind} must be named with a leading @.")


def _validate_correlation(correlation: CorrelationFilter) -> None:
    for name in _CORRELATION_FIELDS:
        value: str | None = getattr(correlation, name)
        if value is not None and len(value) > MAX_PROPERTY_LENGTH:
            raise InvalidError(
                f"{name} of a CorrelationFilter has {len(value)} characters: at most {MAX_PROPERTY_LENGTH} are allowed."
            )
    if len(correlation.properties) > MAX_PARAMETERS:
        raise InvalidError(
            f"Properties of a CorrelationFilter: {len(correlation.properties)} were given, at most"
            f" {MAX_PARAMETERS} are allowed."
        )


def _filter_to_plain(rule_filter: RuleFilter) -> dict[str, Any]:
    match rule_filter:
        case SqlFilter():
            return {"kind": "sql", **_expression_to_plain(rule_filter)}
        case TrueFilter():
            return {"kind": "true"}
        case FalseFilter():
            return {"kind": "false"}
        case CorrelationFilter():
            plain: dict[str, Any] = {
                "kind": "correlation",
                "properties": _values_to_plain(rule_filter.properties),
            }
            for name in _CORRELATION_FIELDS:
                if (value := getattr(rule_filter, name)) is not None:
                    plain[name] = value
            return plain


def _filter_from_plain(plain: Mapping[str, Any]) -> RuleFilter:
    match plain["kind"]:
        case "sql":
            return SqlFilter(plain["expression"], _values_from_plain(plain["parameters"]))
        case "true":
            return TrueFilter()
        case "false":
            return FalseFilter()
        case "correlation":
            named = {name: plain[name] for name in _CORRELATION_FIELDS if name in plain}
            return CorrelationFilter(**named, properties=_values_from_plain(plain["properties"]))
        case kind:
            raise InvalidError(f"'{kind}' is not a kind of filter: expected sql, true, false or correlation.")


def _expression_to_plain(owner: SqlFilter | SqlAction) -> dict[str, Any]:
    return {"expression": owner.expression, "parameters": _values_to_plain(owner.parameters)}


def _values_to_plain(values: Mapping[str, PropertyValue]) -> dict[str, Any]:
    return {name: _value_to_plain(value) for name, value in values.items()}


def _value_to_plain(value: PropertyValue) -> Any:
    """JSON has no times and durations: those two are wrapped in an object that names them."""
    if isinstance(value, datetime):
        return {"datetime": value.isoformat()}
    if isinstance(value, timedelta):
        return {"duration_us": value // timedelta(microseconds=1)}
    return value


def _values_from_plain(plain: Mapping[str, Any]) -> dict[str, PropertyValue]:
    return {name: _value_from_plain(value) for name, value in plain.items()}


def _value_from_plain(plain: Any) -> PropertyValue:
    match plain:
        case {"datetime": str(text)}:
            return datetime.fromisoformat(text)
        case {"duration_us": int(microseconds)}:
            return timedelta(microseconds=microseconds)
        case str() | bool() | int() | float():
            return plain
        case _:
            raise InvalidError(
                f"{plain!r} is not a property value: expected text, a number, a boolean, a time or a duration."
            )


__all__ = [
    "DEFAULT_RULE",
    "DEFAULT_RULE_NAME",
    "FOREVER_MS",
    "MAX_SUBSCRIPTIONS_PER_TOPIC",
    "AuthorizationRule",
    "CorrelationFilter",
    "FalseFilter",
    "PropertyValue",
    "QueueDescription",
    "RuleDescription",
    "RuleFilter",
    "SqlAction",
    "SqlFilter",
    "SubscriptionDescription",
    "TopicDescription",
    "TrueFilter",
    "validate_entity_name",
    "validate_subscription_name",
]

MAX_ENTITY_NAME_LENGTH = 260
MAX_SUBSCRIPTION_NAME_LENGTH = 50
MAX_SUBSCRIPTIONS_PER_TOPIC = 2_000
MAX_USER_METADATA_LENGTH = 1_024
MAX_DELIVERY_COUNT = 2_147_483_647
SIZES_IN_MEGABYTES = (1_024, 2_048, 3_072, 4_096, 5_120)
PARTITIONS = 16

STATUSES = ("Active", "Disabled", "SendDisabled", "ReceiveDisabled")

_ENTITY_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._~/-]*[A-Za-z0-9])?", re.ASCII)
_SUBSCRIPTION_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?", re.ASCII)


def validate_entity_name(name: str) -> None:
    """A queue's or topic's name: also a path, so a segment that would make it a subscription's path is
    refused.
    """
    if not 1 <= len(name) <= MAX_ENTITY_NAME_LENGTH:
        raise InvalidError(
            f"The entity name '{name[:64]}' has {len(name)} characters: 1 to {MAX_ENTITY_NAME_LENGTH} are allowed."
        )
    if _ENTITY_NAME.fullmatch(name) is None or "//" in name:
        raise InvalidError(
            f"The entity name '{name}' is not allowed: use letters, digits and . - _ ~ / (no two slashes in"
            " a row),"
            " and begin and end with a letter or digit."
        )
    if "subscriptions" in name.lower().split("/")[1:]:
        raise InvalidError(f"The entity name '{name}' is not allowed: the segment 'Subscriptions' is reserved.")


def validate_subscription_name(name: str) -> None:
    if not 1 <= len(name) <= MAX_SUBSCRIPTION_NAME_LENGTH:
        raise InvalidError(
            f"The subscription name '{name[:64]}' has {len(name)} characters:"
            f" 1 to {MAX_SUBSCRIPTION_NAME_LENGTH} are allowed."
        )
    if _SUBSCRIPTION_NAME.fullmatch(name) is None:
        raise InvalidError(
            f"The subscription name '{name}' is not allowed: use letters, digits and . - _,"
            " and begin and end with a letter or digit."
        )


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

    def validate(self) -> None:
        validate_entity_name(self.name)
        _validate_lock(self.lock_duration_ms)
        _validate_publishing(self)
        _validate_max_delivery_count(self.max_delivery_count)
        _validate_forwarding(self)

    def validate_change(self, current: "QueueDescription") -> None:
        """As `validate`, and what is fixed at creation must equal `current`."""
        self.validate()
        _validate_fixed(
            self,
            current,
            ("requires_session", "requires_duplicate_detection", "enable_partitioning"),
            self.name,
        )

    def to_json(self) -> str:
        return _to_json(self)

    @classmethod
    def from_json(cls, text: str) -> Self:
        return cls(**_fields_from_json(cls, text))


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

    def validate(self) -> None:
        validate_entity_name(self.name)
        _validate_publishing(self)

    def validate_change(self, current: "TopicDescription") -> None:
        """As `validate`, and what is fixed at creation must equal `current`."""
        self.validate()
        _validate_fixed(self, current, ("requires_duplicate_detection", "enable_partitioning"), self.name)

    def to_json(self) -> str:
        return _to_json(self)

    @classmethod
    def from_json(cls, text: str) -> Self:
        return cls(**_fields_from_json(cls, text))


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
    """The rule a new subscription starts with (None: `DEFAULT_RULE`). Creation reads it; afterwards the rules
    speak.
    """

    def validate(self) -> None:
        validate_entity_name(self.topic)
        validate_subscription_name(self.name)
        _validate_lock(self.lock_duration_ms)
        _validate_lifetime(self)
        _validate_max_delivery_count(self.max_delivery_count)
        _validate_forwarding(self)
        if self.default_rule is not None:
            self.default_rule.validate()

    def validate_change(self, current: "SubscriptionDescription") -> None:
        """As `validate`, and what is fixed at creation must equal `current`."""
        self.validate()
        _validate_fixed(self, current, ("requires_session",), f"{self.topic}/Subscriptions/{self.name}")

    def to_json(self) -> str:
        return _to_json(self)

    @classmethod
    def from_json(cls, text: str) -> Self:
        return cls(**_fields_from_json(cls, text))


def _validate_range(field_name: str, value_ms: int, lowest_ms: int, highest_ms: int) -> None:
    if not lowest_ms <= value_ms <= highest_ms:
        raise InvalidError(
            f"{field_name} is {format_duration(max(value_ms, 0))}:"
            f" it must be between {format_duration(lowest_ms)} and {format_duration(highest_ms)}."
        )


def _validate_lock(lock_duration_ms: int) -> None:
    _validate_range("LockDuration", lock_duration_ms, 5 * SECOND_MS, 5 * MINUTE_MS)


def _validate_lifetime(entity: QueueDescription | TopicDescription | SubscriptionDescription) -> None:
    _validate_range("DefaultMessageTimeToLive", entity.default_message_time_to_live_ms, SECOND_MS, FOREVER_MS)
    _validate_range("AutoDeleteOnIdle", entity.auto_delete_on_idle_ms, 5 * MINUTE_MS, FOREVER_MS)
    if entity.status not in STATUSES:
        raise InvalidError(f"Status is '{entity.status[:64]}': it must be one of {', '.join(STATUSES)}.")
    if entity.user_metadata is not None and len(entity.user_metadata) > MAX_USER_METADATA_LENGTH:
        raise InvalidError(
            f"UserMetadata has {len(entity.user_metadata)} characters: at most {MAX_USER_METADATA_LENGTH} are allowed."
        )


def _validate_publishing(entity: QueueDescription | TopicDescription) -> None:
    """What queues and topics share: they take messages from senders."""
    _validate_lifetime(entity)
    _validate_range(
        "DuplicateDetectionHistoryTimeWindow",
        entity.duplicate_detection_history_time_window_ms,
        20 * SECOND_MS,
        7 * DAY_MS,
    )
    sizes: tuple[int, ...] = SIZES_IN_MEGABYTES
    if entity.enable_partitioning:
        sizes += tuple(PARTITIONS * size for size in SIZES_IN_MEGABYTES)
    if entity.max_size_in_megabytes not in sizes:
        raise InvalidError(
            f"MaxSizeInMegabytes is {entity.max_size_in_megabytes}: it must be one of {', '.join(map(str, sizes))}."
        )
    if not 1 <= entity.max_message_size_in_kilobytes <= 102_400:
        raise InvalidError(
            f"MaxMessageSizeInKilobytes is {entity.max_message_size_in_kilobytes}: it must be between 1 and 102400."
        )
    if entity.enable_express and entity.requires_duplicate_detection:
        raise InvalidError(
            "EnableExpress and RequiresDuplicateDetection are both true: they cannot be enabled together."
        )
    validate_rules(entity.authorization_rules)


def _validate_max_delivery_count(count: int) -> None:
    if not 1 <= count <= MAX_DELIVERY_COUNT:
        raise InvalidError(f"MaxDeliveryCount is {count}: it must be between 1 and {MAX_DELIVERY_COUNT}.")


def _validate_forwarding(entity: QueueDescription | SubscriptionDescription) -> None:
    for field_name, path in (
        ("ForwardTo", entity.forward_to),
        ("ForwardDeadLetteredMessagesTo", entity.forward_dead_lettered_messages_to),
    ):
        if path is not None:
            try:
                validate_entity_name(path)
            except InvalidError as error:
                raise InvalidError(f"{field_name} names no queue or topic. {error.description}") from None


def _validate_fixed(new: Any, current: Any, field_names: tuple[str, ...], path: str) -> None:
    for field_name in field_names:
        before, after = getattr(current, field_name), getattr(new, field_name)
        if before != after:
            element = "".join(word.capitalize() for word in field_name.split("_"))
            raise InvalidError(
                f"{element} of '{path}' is {str(before).lower()} and cannot be changed to"
                f" {str(after).lower()}:"
                " it is fixed when the entity is created."
            )


def _to_json(description: QueueDescription | TopicDescription | SubscriptionDescription) -> str:
    plain: dict[str, Any] = {}
    for item in fields(description):
        value = getattr(description, item.name)
        match value:
            case RuleDescription():
                value = value.to_plain()
            case tuple():
                value = [rule.to_plain() for rule in value]
        plain[item.name] = value
    return json.dumps(plain, ensure_ascii=False, separators=(",", ":"))


def _fields_from_json(
    cls: type[QueueDescription] | type[TopicDescription] | type[SubscriptionDescription], text: str
) -> dict[str, Any]:
    plain = json.loads(text)
    known = {item.name: plain[item.name] for item in fields(cls) if item.name in plain}
    if "authorization_rules" in known:
        known["authorization_rules"] = tuple(map(AuthorizationRule.from_plain, known["authorization_rules"]))
    if known.get("default_rule") is not None:
        known["default_rule"] = RuleDescription.from_plain(known["default_rule"])
    return known
