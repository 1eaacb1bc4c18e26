"""Arbitrary bodies of administration requests: what is not a description is refused with a sentence, nothing else.

Three kinds of input: bytes that are no XML, XML of any shape, and good descriptions in which something was changed.
"""

from __future__ import annotations

from xml.sax.saxutils import escape

from hypothesis import given, settings
from hypothesis import strategies as st

from pairbus.embedded.administration.atom import parse_content, read_description
from pairbus.embedded.administration.elements import elements_of, read_rule
from pairbus.embedded.entities.descriptions import QueueDescription, SubscriptionDescription, TopicDescription
from pairbus.embedded.entities.filters import compile_filter
from pairbus.embedded.errors import InvalidError

KINDS = (QueueDescription, TopicDescription, SubscriptionDescription)
NOW_MS = 1_735_689_600_000
QUICK = settings(deadline=None, print_blob=True, max_examples=150)

_NAMES = st.sampled_from(
    [
        *(element.name for kind in KINDS for element in elements_of(kind)),
        "entry",
        "content",
        "AuthorizationRules",
        "AuthorizationRule",
        "Rights",
        "KeyName",
        "DefaultRuleDescription",
        "Filter",
        "Action",
        "Name",
        "SqlExpression",
        "Parameters",
        "KeyValueOfstringanyType",
        "Key",
        "Value",
        "CorrelationId",
        "Properties",
    ]
)
_TEXTS = st.one_of(
    st.sampled_from(
        ["", "true", "PT1M", "P10675199DT2H48M5.4775807S", "-1", "1e999", "PT", "nil", "a = 1", "SET a = 1"]
    ),
    st.integers().map(str),
    st.text(st.characters(min_codepoint=32, max_codepoint=0x2FFF), max_size=40),
)
_ATTRIBUTES = st.sampled_from(
    [
        "",
        ' i:type="SqlFilter"',
        ' i:type="CorrelationFilter"',
        ' i:type="TrueFilter"',
        ' i:type="SqlRuleAction"',
        ' i:type="d6p1:int"',
        ' i:type="d6p1:dateTime"',
        ' i:type="d6p1:duration"',
        ' i:type="nonsense"',
        ' i:nil="true"',
    ]
)


def _element(children: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.builds(
        lambda name, attributes, inside: f"<{name}{attributes}>{''.join(inside)}</{name}>",
        _NAMES,
        _ATTRIBUTES,
        st.lists(children, max_size=5),
    )


_ELEMENTS = st.recursive(_TEXTS.map(escape), _element, max_leaves=25)
_DESCRIPTIONS = st.builds(
    lambda kind, inside: f"<{kind}>{''.join(inside)}</{kind}>",
    st.sampled_from(["QueueDescription", "TopicDescription", "SubscriptionDescription", "RuleDescription", "Other"]),
    st.lists(_element(_ELEMENTS), max_size=6),
)


def _entry(description: str) -> bytes:
    head = 'xmlns="http://www.w3.org/2005/Atom" xmlns:i="http://www.w3.org/2001/XMLSchema-instance"'
    kinds = 'xmlns:d6p1="http://www.w3.org/2001/XMLSchema"'
    return f'<entry {head} {kinds}><content type="application/xml">{description}</content></entry>'.encode()


def _read_as_everything(body: bytes) -> None:
    """Only InvalidError may come out, whatever the body is read as; what is read can be judged."""
    try:
        root = parse_content(body)
    except InvalidError as error:
        assert error.description
        return
    for read in (
        lambda: read_description(root, QueueDescription("q"), NOW_MS).validate(),
        lambda: read_description(root, TopicDescription("t"), NOW_MS).validate(),
        lambda: read_description(root, SubscriptionDescription("t", "s"), NOW_MS).validate(),
        lambda: compile_filter(read_rule(root, "r").filter),
    ):
        try:
            read()
        except InvalidError as error:
            assert error.description


@given(st.binary(max_size=400))
@QUICK
def test_bytes_that_mean_nothing(body: bytes) -> None:
    _read_as_everything(body)


@given(_DESCRIPTIONS)
@QUICK
def test_descriptions_of_any_shape(description: str) -> None:
    _read_as_everything(_entry(description))


@given(_DESCRIPTIONS, st.data())
@QUICK
def test_descriptions_with_bytes_changed(description: str, data: st.DataObject) -> None:
    body = bytearray(_entry(description))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(body) - 1))
        body[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
    _read_as_everything(bytes(body))
