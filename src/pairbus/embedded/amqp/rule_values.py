"""Rules as they travel over AMQP management: maps when a client adds one, described lists when it asks for them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from pairbus.amqp.types import Described, Int, Symbol, Timestamp, ULong
from pairbus.embedded.entities.descriptions import (
    CorrelationFilter,
    FalseFilter,
    PropertyValue,
    RuleDescription,
    RuleFilter,
    SqlAction,
    SqlFilter,
    TrueFilter,
)
from pairbus.embedded.errors import InvalidError

RULE = ULong(0x13700000004)
NO_ACTION = ULong(0x13700000005)
SQL_ACTION = ULong(0x13700000006)
SQL_FILTER = ULong(0x1370000006)
TRUE_FILTER = ULong(0x1370000007)
FALSE_FILTER = ULong(0x1370000008)
CORRELATION_FILTER = ULong(0x1370000009)

_COMPATIBILITY_LEVEL = Int(20)
_CORRELATION_FIELDS = {
    "correlation-id": "correlation_id",
    "message-id": "message_id",
    "to": "to",
    "reply-to": "reply_to",
    "label": "label",
    "session-id": "session_id",
    "reply-to-session-id": "reply_to_session_id",
    "content-type": "content_type",
}


def read_rule(name: str, value: Any) -> RuleDescription:
    fields = _map(value, "rule-description")
    if "sql-filter" in fields:
        found = _map(fields["sql-filter"], "sql-filter")
        rule_filter: RuleFilter = SqlFilter(_text(found.get("expression"), "expression"))
    elif "correlation-filter" in fields:
        rule_filter = _read_correlation(_map(fields["correlation-filter"], "correlation-filter"))
    elif "false-filter" in fields:
        rule_filter = FalseFilter()
    else:
        rule_filter = TrueFilter()
    action = fields.get("sql-rule-action")
    return RuleDescription(
        name,
        rule_filter,
        None if action is None else SqlAction(_text(_map(action, "sql-rule-action").get("expression"), "expression")),
    )


def _read_correlation(fields: dict[str, Any]) -> CorrelationFilter:
    own = {
        attribute: None if fields.get(key) is None else str(fields[key])
        for key, attribute in _CORRELATION_FIELDS.items()
    }
    properties = _map(fields.get("properties") or {}, "properties")
    return CorrelationFilter(**own, properties={key: _property(key, item) for key, item in properties.items()})


def _property(name: str, value: Any) -> PropertyValue:
    if isinstance(value, Timestamp):
        return datetime.fromtimestamp(value / 1000, UTC)
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        return str(value)
    raise InvalidError(f"Property '{name[:64]}' has a type that a correlation filter cannot compare.")


def rule_value(rule: RuleDescription) -> Described:
    action: Described = Described(NO_ACTION, [])
    if rule.action is not None:
        action = Described(SQL_ACTION, [rule.action.expression, _COMPATIBILITY_LEVEL])
    return Described(RULE, [_filter_value(rule.filter), action, rule.name, Timestamp(rule.created_ms)])


def _filter_value(rule_filter: RuleFilter) -> Described:
    match rule_filter:
        case SqlFilter(expression):
            return Described(SQL_FILTER, [expression, _COMPATIBILITY_LEVEL])
        case CorrelationFilter():
            values = [getattr(rule_filter, attribute) for attribute in _CORRELATION_FIELDS.values()]
            properties = {key: _property_value(item) for key, item in rule_filter.properties.items()}
            return Described(CORRELATION_FILTER, [*values, properties])
        case FalseFilter():
            return Described(FALSE_FILTER, [])
        case TrueFilter():
            return Described(TRUE_FILTER, [])


def _property_value(value: PropertyValue) -> Any:
    if isinstance(value, datetime):
        return Timestamp(int(value.replace(tzinfo=value.tzinfo or UTC).timestamp() * 1000))
    if isinstance(value, str | bool | int | float):
        return value
    return Described(Symbol("com.microsoft:timespan"), int(value.total_seconds() * 10_000_000))


def _map(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidError(f"'{name}' must be a map.")
    return {key.decode("utf-8", "replace") if isinstance(key, bytes) else str(key): item for key, item in value.items()}


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise InvalidError(f"'{name}' must be text.")
    return str(value)
