"""Rules of a subscription: a filter that chooses messages and an optional action that changes the copies it
chose.

Values in parameters and correlation properties keep the type the client gave: text, bool, int, float, a point
in time (`datetime`, naive when the client named no zone) or a duration (`timedelta`). Expressions are only
measured here; their grammar belongs to the filters' parser.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from pairbus.embedded.errors import InvalidError

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
