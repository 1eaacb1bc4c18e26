"""Request bodies: an Atom entry whose content is one description.

Bounded before anything is believed: size, depth and number of elements; document types, entities and external
references are refused. Namespaces and the order of elements are not held against a client, unknown elements
are ignored: a newer client may know more than we do.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from xml.etree.ElementTree import Element as XmlElement
from xml.etree.ElementTree import ParseError, TreeBuilder

from defusedxml.common import DefusedXmlException
from defusedxml.ElementTree import DefusedXMLParser

from pairbus.embedded.administration.elements import (
    QUEUE_ELEMENTS,
    SUBSCRIPTION_ELEMENTS,
    TOPIC_ELEMENTS,
    Element,
)
from pairbus.embedded.administration.filters_xml import child, local_name, read_rule
from pairbus.embedded.entities.authorization import AuthorizationRule
from pairbus.embedded.entities.descriptions import (
    DEFAULT_RULE_NAME,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from pairbus.embedded.errors import InvalidError
from pairbus.embedded.security import generate_key

MAX_DEPTH = 16
MAX_ELEMENTS = 10_000


class _BoundedTreeBuilder(TreeBuilder):
    """Builds the tree as long as it stays small."""

    def __init__(self) -> None:
        super().__init__()
        self._depth = 0
        self._count = 0

    def start(self, tag: str, attrs: dict[str, str], /) -> XmlElement:
        self._depth += 1
        self._count += 1
        if self._depth > MAX_DEPTH or self._count > MAX_ELEMENTS:
            raise InvalidError(
                f"The body is too deep or too long: at most {MAX_DEPTH} levels and {MAX_ELEMENTS} elements are allowed."
            )
        return super().start(tag, attrs)

    def end(self, tag: str, /) -> XmlElement:
        self._depth -= 1
        return super().end(tag)


def parse_content(body: bytes) -> XmlElement:
    """The description element inside the entry."""
    if not body.strip():
        raise InvalidError("The request has no body: send an Atom entry with a description as its content.")
    parser = DefusedXMLParser(target=_BoundedTreeBuilder(), forbid_dtd=True)
    try:
        parser.feed(body)
        entry = parser.close()
    except (ParseError, DefusedXmlException, ValueError, LookupError) as error:
        raise InvalidError(f"The body is not the XML expected here: {str(error)[:200]}.") from None
    content = child(entry, "content")
    if local_name(entry) != "entry" or content is None or len(content) != 1:
        raise InvalidError("The body must be an Atom entry whose content holds exactly one description.")
    return content[0]


def read_queue(root: XmlElement, start: QueueDescription, now_ms: int) -> QueueDescription:
    """`start` (the defaults of a new queue, or the queue as it is) with what the element says."""
    rules = _read_authorization(root, start.authorization_rules, now_ms)
    return replace(start, **_read_fields(root, QUEUE_ELEMENTS), authorization_rules=rules)


def read_topic(root: XmlElement, start: TopicDescription, now_ms: int) -> TopicDescription:
    rules = _read_authorization(root, start.authorization_rules, now_ms)
    return replace(start, **_read_fields(root, TOPIC_ELEMENTS), authorization_rules=rules)


def read_subscription(root: XmlElement, start: SubscriptionDescription) -> SubscriptionDescription:
    rule_element = child(root, "DefaultRuleDescription")
    rule = None
    if rule_element is not None and child(rule_element, "Filter") is not None:
        name_element = child(rule_element, "Name")
        name = (name_element.text if name_element is not None else None) or DEFAULT_RULE_NAME
        rule = read_rule(rule_element, name)
    return replace(start, **_read_fields(root, SUBSCRIPTION_ELEMENTS), default_rule=rule)


def _read_fields(root: XmlElement, elements: tuple[Element, ...]) -> dict[str, Any]:
    present = {local_name(element): element.text or "" for element in root}
    found: dict[str, Any] = {}
    for element in elements:
        text = present.get(element.name)
        if element.absent_means_none:
            found[element.field] = element.read(text or "")
        elif text is not None and text.strip():
            found[element.field] = element.read(text)
    return found


def _read_authorization(
    root: XmlElement, current: tuple[AuthorizationRule, ...], now_ms: int
) -> tuple[AuthorizationRule, ...]:
    """Absent: the rules stay. A key that is not given is kept from the rule of the same name, or made."""
    parent = child(root, "AuthorizationRules")
    if parent is None:
        return current
    known = {rule.key_name.casefold(): rule for rule in current}
    rules = []
    for element in parent:
        texts = {local_name(item): item.text or "" for item in element}
        rights_element = child(element, "Rights")
        before = known.get(texts.get("KeyName", "").casefold())
        rules.append(
            AuthorizationRule(
                key_name=texts.get("KeyName", ""),
                rights=frozenset(
                    (item.text or "").strip() for item in (() if rights_element is None else rights_element)
                ),
                primary_key=texts.get("PrimaryKey") or _key(before, lambda rule: rule.primary_key),
                secondary_key=texts.get("SecondaryKey") or _key(before, lambda rule: rule.secondary_key),
                created_ms=now_ms if before is None else before.created_ms,
                modified_ms=now_ms,
            )
        )
    return tuple(rules)


def _key(before: AuthorizationRule | None, which: Callable[[AuthorizationRule], str]) -> str:
    return generate_key() if before is None else which(before)
