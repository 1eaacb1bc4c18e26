"""Every XML element of a description, defined once: its field, and how its text is read and written.

Reading accepts what clients are known to send (`True`, an empty `ForwardTo`, the full URI of an entity); writing is
canonical.

The type of a filter or action is its `i:type`. The values of parameters have an XML Schema type, always written with
the prefix `d6p1`: some clients cut off the first five characters instead of resolving the prefix.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Any, Literal
from urllib.parse import unquote
from xml.etree.ElementTree import Element as XmlElement
from xml.sax.saxutils import escape as xml_escape
from xml.sax.saxutils import quoteattr

from pairbus.embedded.entities.descriptions import (
    CORRELATION_FIELDS,
    CorrelationFilter,
    FalseFilter,
    PropertyValue,
    RuleDescription,
    RuleFilter,
    SqlAction,
    SqlFilter,
    TrueFilter,
    element_name,
    format_duration,
    parse_duration,
)
from pairbus.embedded.errors import InvalidError

ATOM = "http://www.w3.org/2005/Atom"
SERVICE_BUS = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
COUNT_DETAILS = "http://schemas.microsoft.com/netservices/2011/06/servicebus"
SCHEMA = "http://www.w3.org/2001/XMLSchema"
SCHEMA_INSTANCE = "http://www.w3.org/2001/XMLSchema-instance"

MAX_INTEGER_DIGITS = 18

ElementKind = Literal["duration", "boolean", "integer", "word", "text", "path"]


@dataclass(frozen=True, slots=True)
class Element:
    """An absent `text` or `path` means None. An absent element of another kind keeps its value."""

    name: str
    field: str
    kind: ElementKind

    @property
    def absent_means_none(self) -> bool:
        return self.kind in ("text", "path")

    def read(self, text: str) -> Any:
        try:
            return _READERS[self.kind](text)
        except InvalidError as error:
            raise InvalidError(f"{self.name}: {error.description}") from None
        except ValueError as error:
            raise InvalidError(f"{self.name} is '{text[:64]}'. It must be {error}.") from None

    def write(self, value: Any, authority: str) -> str:
        """The element's text, escaped."""
        match self.kind:
            case "duration":
                return format_duration(value)
            case "boolean":
                return "true" if value else "false"
            case "path":
                return escape(f"sb://{authority}/{value}")
            case _:
                return escape(str(value))


def _boolean(text: str) -> bool:
    match text.strip().lower():
        case "true" | "1":
            return True
        case "false" | "0":
            return False
    raise ValueError("true or false")


def _integer(text: str) -> int:
    digits = text.strip()
    if not digits.removeprefix("-").isdecimal() or len(digits) > MAX_INTEGER_DIGITS or not digits.isascii():
        raise ValueError("a whole number")
    return int(digits)


def _path(text: str) -> str:
    """The entity path in a URI such as `sb://host:port/path`, or the path itself."""
    _, is_uri, rest = text.strip().partition("://")
    path = rest.partition("/")[2] if is_uri else text.strip()
    return unquote(path).strip("/")


_READERS: dict[ElementKind, Callable[[str], Any]] = {
    "duration": parse_duration,
    "boolean": _boolean,
    "integer": _integer,
    "word": str.strip,
    "text": lambda text: text or None,
    "path": lambda text: _path(text) or None,
}
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def escape(text: str) -> str:
    """Escape text for an element. Characters that XML 1.0 cannot represent become U+FFFD."""
    return xml_escape(_NOT_IN_XML.sub("\ufffd", text), {"\r": "&#13;"})


_KINDS: dict[object, ElementKind] = {bool: "boolean", int: "integer", str: "word", str | None: "text"}
_NOT_ELEMENTS = ("topic", "name", "authorization_rules", "default_rule")


def elements_of(description: type[Any]) -> tuple[Element, ...]:
    """The elements of a description's settings. The name and the type of a field say how its text is read."""
    return tuple(
        Element(element_name(item.name), item.name, _kind(item.name, item.type))
        for item in fields(description)
        if item.name not in _NOT_ELEMENTS
    )


def _kind(field: str, kind: object) -> ElementKind:
    if field.endswith("_ms"):
        return "duration"
    return "path" if field.startswith("forward_") else _KINDS[kind]


CORRELATION_ELEMENTS = tuple(Element(element_name(field), field, "text") for field in CORRELATION_FIELDS)


# -- rules

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
    """The child with this name in any XML namespace: clients differ in how they write prefixes."""
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
                f"Filter has the type '{kind[:64]}'."
                " It must be SqlFilter, TrueFilter, FalseFilter or CorrelationFilter."
            )


def _read_action(element: XmlElement) -> SqlAction | None:
    match type_name(element):
        case "SqlRuleAction":
            return SqlAction(_text(element, "SqlExpression"), _read_values(child(element, "Parameters")))
        case "EmptyRuleAction" | "":
            return None
        case kind:
            raise InvalidError(f"Action has the type '{kind[:64]}'. It must be SqlRuleAction or EmptyRuleAction.")


def _read_values(parent: XmlElement | None) -> dict[str, PropertyValue]:
    values: dict[str, PropertyValue] = {}
    for pair in () if parent is None else parent:
        key = _text(pair, "Key")
        value = child(pair, "Value")
        if not key or value is None:
            raise InvalidError("A parameter has no Key or no Value.")
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
                return _boolean(text)
            case "dateTime":
                return _read_moment(text)
            case "duration":
                return _read_duration(text.strip())
    except (ValueError, KeyError, OverflowError):
        raise InvalidError(f"The value '{text[:64]}' of '{key[:64]}' is not a {kind}.") from None
    raise InvalidError(f"The value of '{key[:64]}' has the type '{kind[:64]}', which is not allowed for parameters.")


def _read_moment(text: str) -> datetime:
    """Read a time with up to six decimals: .NET writes seven, which Python does not accept."""
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
