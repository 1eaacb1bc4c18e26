"""Filters and actions of rules in Atom XML.

A filter's kind is its `i:type`. Parameter values carry an XML Schema type, always written with the prefix
`d6p1`: some clients cut the first five characters off instead of resolving the prefix.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from xml.etree.ElementTree import Element as XmlElement
from xml.sax.saxutils import quoteattr

from pairbus.embedded.administration.elements import CORRELATION_ELEMENTS, SCHEMA, SCHEMA_INSTANCE, escape
from pairbus.embedded.entities.durations import format_duration, parse_duration
from pairbus.embedded.entities.rules import (
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

TYPE = f"{{{SCHEMA_INSTANCE}}}type"
INT32_MAX = 2_147_483_647
COMPATIBILITY_LEVEL = 20


def read_rule(root: XmlElement, name: str) -> RuleDescription:
    filter_element = child(root, "Filter")
    action_element = child(root, "Action")
    return RuleDescription(
        name,
        TrueFilter() if filter_element is None else _read_filter(filter_element),
        None if action_element is None else _read_action(action_element),
    )


def write_rule_content(rule: RuleDescription, created: str) -> str:
    """The elements inside a RuleDescription."""
    return (
        f"{_write_filter(rule.filter)}{_write_action(rule.action)}"
        f"<CreatedAt>{created}</CreatedAt><Name>{escape(rule.name)}</Name>"
    )


def child(parent: XmlElement, name: str) -> XmlElement | None:
    """The child called `name` in whatever namespace: clients differ in how they write prefixes."""
    for element in parent:
        if local_name(element) == name:
            return element
    return None


def local_name(element: XmlElement) -> str:
    return element.tag.rpartition("}")[2]


def type_name(element: XmlElement) -> str:
    return element.get(TYPE, "").rpartition(":")[2]


def _text(parent: XmlElement, name: str) -> str:
    element = child(parent, name)
    return "" if element is None or element.text is None else element.text


def _read_filter(element: XmlElement) -> RuleFilter:
    match type_name(element):
        case "SqlFilter":
            return SqlFilter(_text(element, "SqlExpression"), _read_values(child(element, "Parameters")))
        case "TrueFilter":
            return TrueFilter()
        case "FalseFilter":
            return FalseFilter()
        case "CorrelationFilter":
            named = {item.field: item.read(_text(element, item.name)) for item in CORRELATION_ELEMENTS}
            return CorrelationFilter(**named, properties=_read_values(child(element, "Properties")))
        case kind:
            raise InvalidError(
                f"Filter has the type '{kind[:64]}': it must be SqlFilter, TrueFilter, FalseFilter or"
                " CorrelationFilter."
            )


def _read_action(element: XmlElement) -> SqlAction | None:
    match type_name(element):
        case "SqlRuleAction":
            return SqlAction(_text(element, "SqlExpression"), _read_values(child(element, "Parameters")))
        case "EmptyRuleAction" | "":
            return None
        case kind:
            raise InvalidError(f"Action has the type '{kind[:64]}': it must be SqlRuleAction or EmptyRuleAction.")


def _read_values(parent: XmlElement | None) -> dict[str, PropertyValue]:
    values: dict[str, PropertyValue] = {}
    for pair in () if parent is None else parent:
        key = _text(pair, "Key")
        value = child(pair, "Value")
        if not key or value is None:
            raise InvalidError("A parameter lacks its Key or its Value.")
        values[key] = _read_value(key, type_name(value), value.text or "")
    return values


def _read_value(key: str, kind: str, text: str) -> PropertyValue:
    try:
        match kind:
            case "string" | "char" | "guid" | "anyURI" | "":
                return text
            case "int" | "long" | "short" | "byte" | "unsignedInt" | "unsignedLong" | "unsignedShort":
                return int(text[:40])
            case "double" | "float" | "decimal":
                return float(text)
            case "boolean":
                return {"true": True, "1": True, "false": False, "0": False}[text.strip().lower()]
            case "dateTime":
                return _read_moment(text)
            case "duration":
                return _read_duration(text.strip())
    except (ValueError, KeyError, OverflowError):
        raise InvalidError(f"The value '{text[:64]}' of '{key[:64]}' is not a {kind}.") from None
    raise InvalidError(f"The value of '{key[:64]}' has the type '{kind[:64]}', which parameters cannot have.")


def _read_moment(text: str) -> datetime:
    """.NET writes seven decimals; Python reads six."""
    head, dot, tail = text.strip().partition(".")
    if dot:
        digits = len(tail) - len(tail.lstrip("0123456789"))
        tail = tail[: min(digits, 6)] + tail[digits:]
    return datetime.fromisoformat(head + dot + tail)


def _read_duration(text: str) -> timedelta:
    negative = text.startswith("-")
    try:
        duration = timedelta(milliseconds=parse_duration(text.removeprefix("-")))
    except InvalidError as error:
        raise ValueError(error.description) from None
    return -duration if negative else duration


def _write_filter(rule_filter: RuleFilter) -> str:
    match rule_filter:
        case SqlFilter(expression, parameters):
            return f'<Filter i:type="SqlFilter">{_write_expression(expression, parameters)}</Filter>'
        case TrueFilter():
            return f'<Filter i:type="TrueFilter">{_write_expression("1=1", {})}</Filter>'
        case FalseFilter():
            return f'<Filter i:type="FalseFilter">{_write_expression("1=0", {})}</Filter>'
        case CorrelationFilter():
            named = "".join(
                f"<{item.name}>{escape(value)}</{item.name}>"
                for item in CORRELATION_ELEMENTS
                if (value := getattr(rule_filter, item.field)) is not None
            )
            properties = _write_values("Properties", rule_filter.properties)
            return f'<Filter i:type="CorrelationFilter">{named}{properties}</Filter>'


def _write_action(action: SqlAction | None) -> str:
    if action is None:
        return '<Action i:type="EmptyRuleAction"/>'
    return f'<Action i:type="SqlRuleAction">{_write_expression(action.expression, action.parameters)}</Action>'


def _write_expression(expression: str, parameters: Mapping[str, PropertyValue]) -> str:
    return (
        f"<SqlExpression>{escape(expression)}</SqlExpression>"
        f"<CompatibilityLevel>{COMPATIBILITY_LEVEL}</CompatibilityLevel>"
        f"{_write_values('Parameters', parameters)}"
    )


def _write_values(name: str, values: Mapping[str, PropertyValue]) -> str:
    if not values:
        return f"<{name}/>"
    pairs = []
    for key, value in values.items():
        kind, text = _write_value(value)
        pairs.append(
            f"<KeyValueOfstringanyType><Key>{escape(key)}</Key>"
            f'<Value i:type={quoteattr("d6p1:" + kind)} xmlns:d6p1="{SCHEMA}">{escape(text)}</Value>'
            f"</KeyValueOfstringanyType>"
        )
    return f"<{name}>{''.join(pairs)}</{name}>"


def _write_value(value: PropertyValue) -> tuple[str, str]:
    match value:
        case bool():
            return "boolean", "true" if value else "false"
        case int():
            return "int" if -INT32_MAX - 1 <= value <= INT32_MAX else "long", str(value)
        case float():
            return "double", repr(value)
        case datetime():
            moment = value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
            return "dateTime", moment.isoformat() + ("" if value.tzinfo is None else "Z")
        case timedelta():
            return "duration", _write_duration(value)
        case str():
            return "string", value


def _write_duration(value: timedelta) -> str:
    milliseconds = value // timedelta(milliseconds=1)
    sign = "-" if milliseconds < 0 else ""
    return sign + format_duration(abs(milliseconds))
