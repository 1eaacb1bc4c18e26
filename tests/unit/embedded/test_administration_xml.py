"""Atom bodies and descriptions say the same: what is written can be read back, whatever the values."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pairbus.embedded.administration import atom
from pairbus.embedded.administration.atom import AtomEntry, RequestContext
from pairbus.embedded.administration.elements import read_rule
from pairbus.embedded.administration.endpoint import error_body
from pairbus.embedded.administration.operations import Target, TargetKind, parse_target
from pairbus.embedded.entities.descriptions import (
    FOREVER_MS,
    AuthorizationRule,
    CorrelationFilter,
    FalseFilter,
    QueueDescription,
    RuleDescription,
    SqlAction,
    SqlFilter,
    SubscriptionDescription,
    TopicDescription,
    TrueFilter,
)
from pairbus.embedded.entities.entity import EntityTimes
from pairbus.embedded.entities.namespace import MessageCounts
from pairbus.embedded.errors import EntityNotFoundError, InvalidError

CONTEXT = RequestContext("contoso", "localhost:5672", "2024-05")
TIMES = EntityTimes(1_000, 2_000, 3_000)
COUNTS = MessageCounts(1, 2, 3, 4, 5, 6, 7, 8)
NOW_MS = 9_000

# XML 1.0 has no place for control characters, and its readers turn every line end into one kind.
characters = st.characters(codec="utf-8", exclude_categories=("Cc", "Cs"), exclude_characters="\ufffe\uffff")
texts = st.text(characters, min_size=1, max_size=20).filter(lambda text: text.strip() == text)
names = st.from_regex(r"[A-Za-z0-9](?:[A-Za-z0-9._/-]{0,10}[A-Za-z0-9])?", fullmatch=True).filter(
    lambda name: "//" not in name
)
durations = st.integers(0, FOREVER_MS)
rights = st.frozensets(st.sampled_from(["Send", "Listen", "Manage"]), min_size=1)
keys = st.builds(
    AuthorizationRule, texts, rights, texts, texts, created_ms=st.just(NOW_MS), modified_ms=st.just(NOW_MS)
)
lifetimes = {
    "default_message_time_to_live_ms": durations,
    "auto_delete_on_idle_ms": durations,
    "enable_batched_operations": st.booleans(),
    "status": st.sampled_from(["Active", "Disabled", "SendDisabled", "ReceiveDisabled"]),
    "user_metadata": st.none() | texts,
}
queues = st.builds(
    QueueDescription,
    names,
    **lifetimes,
    lock_duration_ms=durations,
    max_size_in_megabytes=st.integers(1, 10**6),
    max_delivery_count=st.integers(1, 2**31 - 1),
    requires_session=st.booleans(),
    enable_express=st.booleans(),
    forward_to=st.none() | names,
    forward_dead_lettered_messages_to=st.none() | names,
    authorization_rules=st.lists(keys, max_size=3, unique_by=lambda rule: rule.key_name.casefold()).map(tuple),
)
topics = st.builds(TopicDescription, names, **lifetimes, support_ordering=st.booleans(), enable_express=st.booleans())
subscriptions = st.builds(
    SubscriptionDescription,
    names,
    names,
    **lifetimes,
    lock_duration_ms=durations,
    forward_to=st.none() | names,
    dead_lettering_on_filter_evaluation_exceptions=st.booleans(),
)
moments = st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1))
values = st.one_of(
    texts,
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    moments.map(lambda moment: moment.replace(fold=0)),
    moments.map(lambda moment: moment.replace(fold=0, tzinfo=UTC)),
    st.integers(-(10**12), 10**12).map(lambda milliseconds: timedelta(milliseconds=milliseconds)),
)
parameters = st.dictionaries(texts, values, max_size=4)
filters = st.one_of(
    st.builds(SqlFilter, texts, parameters),
    st.builds(TrueFilter),
    st.builds(FalseFilter),
    st.builds(CorrelationFilter, correlation_id=st.none() | texts, to=st.none() | texts, properties=parameters),
)
rules = st.builds(RuleDescription, texts, filters, st.none() | st.builds(SqlAction, texts, parameters))


def sent(content: str) -> ElementTree.Element:
    """The description in an entry, as a client would send back what it was given."""
    entry = atom.write_entry(CONTEXT, AtomEntry("some/path", "title", TIMES, content))
    return atom.parse_content(entry.encode())


@settings(deadline=None, print_blob=True, max_examples=60)
@given(queues)
def test_queues_are_read_as_they_were_written(queue: QueueDescription) -> None:
    root = sent(atom.entity_content(CONTEXT, queue, COUNTS, TIMES, (0, 0)))
    assert atom.read_description(root, QueueDescription(queue.name), NOW_MS) == queue


@settings(deadline=None, print_blob=True, max_examples=40)
@given(topics)
def test_topics_are_read_as_they_were_written(topic: TopicDescription) -> None:
    root = sent(atom.entity_content(CONTEXT, topic, COUNTS, TIMES, (1, 2)))
    assert atom.read_description(root, TopicDescription(topic.name), NOW_MS) == topic


@settings(deadline=None, print_blob=True, max_examples=40)
@given(subscriptions)
def test_subscriptions_are_read_as_they_were_written(subscription: SubscriptionDescription) -> None:
    root = sent(atom.entity_content(CONTEXT, subscription, COUNTS, TIMES, (0, 0)))
    start = SubscriptionDescription(subscription.topic, subscription.name)
    assert atom.read_description(root, start, NOW_MS) == subscription


@settings(deadline=None, print_blob=True, max_examples=100)
@given(rules)
def test_rules_are_read_as_they_were_written(rule: RuleDescription) -> None:
    again = read_rule(sent(atom.rule_content(rule)), rule.name)
    assert again == rule
    assert repr(again) == repr(rule), "the types of values survive too"


@settings(deadline=None, print_blob=True, max_examples=60)
@given(st.text(max_size=20))
def test_no_text_breaks_the_document(text: str) -> None:
    rule = RuleDescription(text, CorrelationFilter(label=text, properties={text: text}))
    assert sent(atom.rule_content(rule)).tag.endswith("RuleDescription")
    assert ElementTree.fromstring(error_body(400, text, NOW_MS)).findtext("Code") == "400"


def test_line_ends_survive() -> None:
    queue = QueueDescription("q", user_metadata="a\r\nb\rc\n")
    root = sent(atom.entity_content(CONTEXT, queue, COUNTS, TIMES, (0, 0)))
    assert atom.read_description(root, QueueDescription("q"), NOW_MS) == queue


def test_what_is_absent_keeps_settings_and_clears_texts() -> None:
    current = QueueDescription("q", max_delivery_count=3, user_metadata="m", forward_to="t")
    root = ElementTree.fromstring("<QueueDescription><LockDuration>PT5S</LockDuration></QueueDescription>")
    changed = atom.read_description(root, current, NOW_MS)
    assert changed == replace(current, lock_duration_ms=5_000, user_metadata=None, forward_to=None)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("orders", "orders"),
        ("sb://host:5672/a/b", "a/b"),
        ("https://contoso.servicebus.windows.net/a%2Fb/", "a/b"),
        ("", None),
        ("sb://host/", None),
    ],
)
def test_a_forward_is_a_path_however_it_is_written(text: str, path: str | None) -> None:
    root = ElementTree.fromstring(f"<QueueDescription><ForwardTo>{text}</ForwardTo></QueueDescription>")
    assert atom.read_description(root, QueueDescription("q"), NOW_MS).forward_to == path


def test_times_of_other_clients_are_read() -> None:
    """Seven decimals and an offset are how .NET writes a point in time."""
    value = '<Value i:type="x:dateTime" xmlns:x="s">2020-07-05T11:12:13.1234567Z</Value>'
    root = ElementTree.fromstring(
        '<RuleDescription xmlns:i="http://www.w3.org/2001/XMLSchema-instance"><Filter i:type="SqlFilter">'
        f"<SqlExpression>a=@a</SqlExpression><Parameters><P><Key>@a</Key>{value}</P></Parameters>"
        "</Filter></RuleDescription>"
    )
    rule = read_rule(root, "r")
    assert isinstance(rule.filter, SqlFilter)
    assert rule.filter.parameters == {"@a": datetime(2020, 7, 5, 11, 12, 13, 123456, tzinfo=UTC)}


@pytest.mark.parametrize(
    ("raw_path", "target"),
    [
        ("/orders", Target(TargetKind.ENTITY, "orders", "orders")),
        ("/a%2Fb/c/", Target(TargetKind.ENTITY, "a/b/c", "a/b/c")),
        ("/subscriptions", Target(TargetKind.ENTITY, "subscriptions", "subscriptions")),
        ("/t/x/subscriptions", Target(TargetKind.SUBSCRIPTIONS, "t/x/subscriptions", "t/x")),
        ("/t%2Fx/Subscriptions/s", Target(TargetKind.SUBSCRIPTION, "t/x/Subscriptions/s", "t/x", "s")),
        ("/t/subscriptions/s/rules", Target(TargetKind.RULES, "t/subscriptions/s/rules", "t", "s")),
        (
            "/t/Subscriptions/s/RULES/%24Default",
            Target(TargetKind.RULE, "t/Subscriptions/s/RULES/$Default", "t", "s", "$Default"),
        ),
        ("/$resources/Topics", Target(TargetKind.TOPICS, "$resources/Topics")),
        ("/$NamespaceInfo", Target(TargetKind.NAMESPACE, "$NamespaceInfo")),
        ("/$pairbus/faults", Target(TargetKind.CONTROL, "$pairbus/faults")),
    ],
)
def test_paths_name_targets(raw_path: str, target: Target) -> None:
    assert parse_target(raw_path) == target


def test_paths_that_name_nothing() -> None:
    with pytest.raises(InvalidError):
        parse_target("/")
    with pytest.raises(InvalidError):
        parse_target("/" + "x" * 2_000)
    with pytest.raises(EntityNotFoundError):
        parse_target("/$else")
