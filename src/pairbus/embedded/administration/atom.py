"""Atom XML: request bodies (an entry whose content is one description), and response entries and feeds.

Reading checks size, depth and number of elements first, and refuses document types, entities and external references.
It ignores namespaces, the order of elements, and unknown elements, which a newer client may send.

Writing is as strict as clients are: descriptions contain every element; elements have no prefixes, except the counts
inside CountDetails, whose prefix clients look up; an entry's `<id>` is its address, from which some clients take names;
a feed has a second `<link>` only if there is a next page.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, TypeVar
from urllib.parse import quote
from xml.etree.ElementTree import Element as XmlElement
from xml.etree.ElementTree import ParseError, TreeBuilder
from xml.sax.saxutils import quoteattr

from defusedxml.common import DefusedXmlException
from defusedxml.ElementTree import DefusedXMLParser

from pairbus.embedded.administration.elements import (
    ATOM,
    COUNT_DETAILS,
    SCHEMA_INSTANCE,
    SERVICE_BUS,
    child,
    elements_of,
    escape,
    local_name,
    read_rule,
    write_rule_content,
)
from pairbus.embedded.entities.descriptions import (
    DEFAULT_RULE_NAME,
    AuthorizationRule,
    EntityDescription,
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from pairbus.embedded.entities.entity import EntityTimes
from pairbus.embedded.entities.namespace import MessageCounts
from pairbus.embedded.errors import InvalidError
from pairbus.embedded.security import generate_key

MAX_DEPTH = 16
MAX_ELEMENTS = 10_000

D = TypeVar("D", bound=EntityDescription)


class _BoundedTreeBuilder(TreeBuilder):
    """Builds the tree while it is small enough."""

    def __init__(self) -> None:
        super().__init__()
        self._depth = 0
        self._count = 0

    def start(self, tag: str, attrs: dict[str, str], /) -> XmlElement:
        self._depth += 1
        self._count += 1
        if self._depth > MAX_DEPTH or self._count > MAX_ELEMENTS:
            raise InvalidError(
                f"The body is too deep or too long. At most {MAX_DEPTH} levels and {MAX_ELEMENTS} elements are allowed."
            )
        return super().start(tag, attrs)

    def end(self, tag: str, /) -> XmlElement:
        self._depth -= 1
        return super().end(tag)


def parse_content(body: bytes) -> XmlElement:
    """The description element inside the entry."""
    if not body.strip():
        raise InvalidError("The request has no body. Send an Atom entry with a description as its content.")
    parser = DefusedXMLParser(target=_BoundedTreeBuilder(), forbid_dtd=True)
    try:
        parser.feed(body)
        entry = parser.close()
    except (ParseError, DefusedXmlException, ValueError, LookupError) as error:
        raise InvalidError(f"The body is not valid XML: {str(error)[:200]}.") from None
    content = child(entry, "content")
    if local_name(entry) != "entry" or content is None or len(content) != 1:
        raise InvalidError("The body must be an Atom entry whose content is exactly one description.")
    return content[0]


def read_description(root: XmlElement, start: D, now_ms: int) -> D:
    """`start` (a new entity with defaults, or the current entity) with the values of the element."""
    present = {local_name(element): element.text or "" for element in root}
    values: dict[str, Any] = {}
    for element in elements_of(type(start)):
        text = present.get(element.name)
        if element.absent_means_none:
            values[element.field] = element.read(text or "")
        elif text is not None and text.strip():
            values[element.field] = element.read(text)
    if isinstance(start, SubscriptionDescription):
        values["default_rule"] = _read_default_rule(root)
    else:
        values["authorization_rules"] = _read_authorization(root, start.authorization_rules, now_ms)
    return replace(start, **values)


def _read_default_rule(root: XmlElement) -> RuleDescription | None:
    element = child(root, "DefaultRuleDescription")
    if element is None or child(element, "Filter") is None:
        return None
    name = child(element, "Name")
    return read_rule(element, (name.text if name is not None else None) or DEFAULT_RULE_NAME)


def _read_authorization(
    root: XmlElement, current: tuple[AuthorizationRule, ...], now_ms: int
) -> tuple[AuthorizationRule, ...]:
    """Without the element the rules stay. A missing key is kept from the rule of the same name, or generated."""
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


MESSAGE_SIZE_SINCE = "2021-05"
FILTER_COUNTS_SINCE = "2024-05"


@dataclass(frozen=True, slots=True)
class RequestContext:
    """The namespace, and the address and api-version that the client used."""

    namespace: str
    authority: str
    api_version: str

    def address(self, path: str, query: str = "") -> str:
        return f"https://{self.authority}/{quote(path, safe='/$~')}?{query}api-version={self.api_version}"


@dataclass(frozen=True, slots=True)
class AtomEntry:
    path: str
    title: str
    times: EntityTimes
    content: str


def write_entry(context: RequestContext, entry: AtomEntry, *, nested: bool = False) -> str:
    address = escape(context.address(entry.path))
    namespace = "" if nested else f' xmlns="{ATOM}"'
    return (
        f"<entry{namespace}><id>{address}</id>"
        f'<title type="text">{escape(entry.title)}</title>'
        f"<published>{moment(entry.times.created_ms)}</published>"
        f"<updated>{moment(entry.times.updated_ms)}</updated>"
        f"<author><name>{escape(context.namespace)}</name></author>"
        f'<link rel="self" href={quoteattr(context.address(entry.path))}/>'
        f'<content type="application/xml">{entry.content}</content></entry>'
    )


def write_feed(
    context: RequestContext, path: str, title: str, entries: Iterable[AtomEntry], next_query: str | None, now_ms: int
) -> str:
    links = f'<link rel="self" href={quoteattr(context.address(path))}/>'
    if next_query is not None:
        links += f'<link rel="next" href={quoteattr(context.address(path, next_query))}/>'
    return (
        f'<feed xmlns="{ATOM}"><title type="text">{escape(title)}</title>'
        f"<id>{escape(context.address(path))}</id><updated>{moment(now_ms)}</updated>{links}"
        f"{''.join(write_entry(context, entry, nested=True) for entry in entries)}</feed>"
    )


def entity_content(
    context: RequestContext,
    description: EntityDescription,
    counts: MessageCounts,
    times: EntityTimes,
    filter_counts: tuple[int, int],
) -> str:
    """A description with its counts. `filter_counts` are the SQL and correlation filters of a topic."""
    parts = [_settings(context, description)]
    if not isinstance(description, SubscriptionDescription):
        parts += _authorization(description.authorization_rules), _element("SizeInBytes", counts.size_bytes)
        parts.append(_element("IsAnonymousAccessible", "false"))
    if isinstance(description, TopicDescription):
        parts.append(_element("SubscriptionCount", counts.subscription_count))
        if context.api_version >= FILTER_COUNTS_SINCE:
            sql, correlation = filter_counts
            parts += _element("SqlFilterCount", sql), _element("CorrelationFilterCount", correlation)
        parts.append(_element("EnableSubscriptionPartitioning", "false"))
    else:
        parts.append(_element("MessageCount", counts.message_count))
    if isinstance(description, QueueDescription):
        parts.append(_element("SupportOrdering", "true"))
    return _description(type(description).__name__, *parts, _runtime(counts, times))


def _element(name: str, value: object) -> str:
    return f"<{name}>{value}</{name}>"


def rule_content(rule: RuleDescription) -> str:
    return _description("RuleDescription", write_rule_content(rule, moment(rule.created_ms)))


def namespace_content(name: str, created_ms: int, modified_ms: int) -> str:
    return _description(
        "NamespaceInfo",
        f"<Alias/><CreatedTime>{moment(created_ms)}</CreatedTime><MessagingSKU>Standard</MessagingSKU>",
        f"<ModifiedTime>{moment(modified_ms)}</ModifiedTime><Name>{escape(name)}</Name>",
        "<NamespaceType>Messaging</NamespaceType>",
    )


def moment(time_ms: int) -> str:
    """A UTC time with milliseconds."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _description(name: str, *parts: str) -> str:
    return f'<{name} xmlns="{SERVICE_BUS}" xmlns:i="{SCHEMA_INSTANCE}">{"".join(parts)}</{name}>'


def _settings(context: RequestContext, description: EntityDescription) -> str:
    written = []
    for element in elements_of(type(description)):
        value = getattr(description, element.field)
        if value is None:
            continue
        if element.name == "MaxMessageSizeInKilobytes" and context.api_version < MESSAGE_SIZE_SINCE:
            continue
        written.append(_element(element.name, element.write(value, context.authority)))
    return "".join(written)


def _authorization(rules: tuple[AuthorizationRule, ...]) -> str:
    if not rules:
        return "<AuthorizationRules/>"
    return f"<AuthorizationRules>{''.join(map(_authorization_rule, rules))}</AuthorizationRules>"


def _authorization_rule(rule: AuthorizationRule) -> str:
    rights = "".join(f"<AccessRights>{right}</AccessRights>" for right in sorted(rule.rights))
    return (
        '<AuthorizationRule i:type="SharedAccessAuthorizationRule">'
        f"<ClaimType>SharedAccessKey</ClaimType><ClaimValue>None</ClaimValue><Rights>{rights}</Rights>"
        f"<CreatedTime>{moment(rule.created_ms)}</CreatedTime>"
        f"<ModifiedTime>{moment(rule.modified_ms)}</ModifiedTime>"
        f"<KeyName>{escape(rule.key_name)}</KeyName><PrimaryKey>{escape(rule.primary_key)}</PrimaryKey>"
        f"<SecondaryKey>{escape(rule.secondary_key)}</SecondaryKey></AuthorizationRule>"
    )


def _runtime(counts: MessageCounts, times: EntityTimes) -> str:
    details = "".join(
        f"<d2p1:{name}>{value}</d2p1:{name}>"
        for name, value in (
            ("ActiveMessageCount", counts.active),
            ("DeadLetterMessageCount", counts.dead_letter),
            ("ScheduledMessageCount", counts.scheduled),
            ("TransferMessageCount", counts.transfer),
            ("TransferDeadLetterMessageCount", counts.transfer_dead_letter),
        )
    )
    return (
        f'<CountDetails xmlns:d2p1="{COUNT_DETAILS}">{details}</CountDetails>'
        f"<CreatedAt>{moment(times.created_ms)}</CreatedAt><UpdatedAt>{moment(times.updated_ms)}</UpdatedAt>"
        f"<AccessedAt>{moment(times.accessed_ms)}</AccessedAt>"
        "<EntityAvailabilityStatus>Available</EntityAvailabilityStatus>"
    )
