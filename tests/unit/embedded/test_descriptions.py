"""Descriptions: defaults, the limits the service puts on every field, what an update may not change, and
JSON.
"""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import isodate  # type: ignore[import-untyped]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pairbus.embedded.entities.descriptions import (
    DAY_MS,
    FOREVER_MS,
    RIGHTS,
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
    format_duration,
    from_json,
    parse_duration,
    to_json,
    validate_change,
)
from pairbus.embedded.errors import InvalidError

RULE = AuthorizationRule("app", frozenset({"Send"}), "k1", "k2", created_ms=5, modified_ms=6)

GOOD_CHANGES: list[dict[str, Any]] = [
    {"name": "a"},
    {"name": "contoso/x-servicebus-transfer/0"},
    {"name": "txt/.-_123"},
    {"name": "q" * 260},
    {"name": "subscriptions"},
    {"lock_duration_ms": 5_000},
    {"lock_duration_ms": 300_000},
    {"max_size_in_megabytes": 5120},
    {"max_size_in_megabytes": 81_920, "enable_partitioning": True},
    {"default_message_time_to_live_ms": 1_000},
    {"auto_delete_on_idle_ms": 300_000},
    {"duplicate_detection_history_time_window_ms": 20_000},
    {"duplicate_detection_history_time_window_ms": 7 * DAY_MS},
    {"max_delivery_count": 1},
    {"max_delivery_count": 2_147_483_647},
    {"user_metadata": "x" * 1024},
    {"status": "SendDisabled"},
    {"forward_to": "other/queue"},
    {"authorization_rules": (RULE,)},
]

BAD_CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"name": ""}, "0 characters"),
    ({"name": "q" * 261}, "261 characters"),
    ({"name": "/a"}, "begin and end"),
    ({"name": "a/"}, "begin and end"),
    ({"name": "a//b"}, "no empty segment"),
    ({"name": "a/../b"}, "no segment . or .."),
    ({"name": "a/./b"}, "no segment . or .."),
    ({"name": "a b"}, "not allowed"),
    ({"name": "ä"}, "not allowed"),
    ({"name": "a\n"}, "not allowed"),
    ({"name": "t/Subscriptions/s"}, "reserved"),
    ({"lock_duration_ms": 4_999}, "LockDuration is PT4.999S"),
    ({"lock_duration_ms": 300_001}, "PT5S and PT5M"),
    ({"max_size_in_megabytes": 1025}, "MaxSizeInMegabytes is 1025"),
    ({"max_size_in_megabytes": 81_920}, "MaxSizeInMegabytes is 81920"),
    ({"default_message_time_to_live_ms": 0}, "DefaultMessageTimeToLive is PT0S"),
    ({"auto_delete_on_idle_ms": 299_999}, "AutoDeleteOnIdle"),
    ({"duplicate_detection_history_time_window_ms": 19_999}, "DuplicateDetectionHistoryTimeWindow"),
    ({"duplicate_detection_history_time_window_ms": 7 * DAY_MS + 1}, "PT20S and P7D"),
    ({"max_delivery_count": 0}, "MaxDeliveryCount is 0"),
    ({"max_delivery_count": 2_147_483_648}, "MaxDeliveryCount"),
    ({"user_metadata": "x" * 1025}, "1025 characters"),
    ({"status": "Paused"}, "Status is 'Paused'"),
    ({"forward_to": "sb://elsewhere/q"}, "ForwardTo"),
    ({"forward_dead_lettered_messages_to": ""}, "ForwardDeadLetteredMessagesTo"),
    ({"enable_express": True, "requires_duplicate_detection": True}, "cannot be enabled together"),
    ({"max_message_size_in_kilobytes": 0}, "MaxMessageSizeInKilobytes"),
    ({"authorization_rules": (RULE, replace(RULE, key_name="APP"))}, "twice"),
    ({"authorization_rules": (replace(RULE, rights=frozenset()),)}, "one or more"),
    ({"authorization_rules": (replace(RULE, rights=frozenset({"Manage"})),)}, "Send and Listen too"),
    ({"authorization_rules": (replace(RULE, primary_key=""),)}, "PrimaryKey"),
    ({"authorization_rules": tuple(replace(RULE, key_name=f"k{i}") for i in range(13))}, "At most 12"),
]


@pytest.mark.parametrize("change", GOOD_CHANGES, ids=str)
def test_what_the_service_takes_is_valid(change: dict[str, Any]) -> None:
    replace(QueueDescription("orders"), **change).validate()


@pytest.mark.parametrize(("change", "words"), BAD_CHANGES, ids=str)
def test_what_the_service_refuses_names_the_field_and_the_range(change: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidError) as refused:
        replace(QueueDescription("orders"), **change).validate()
    assert words in refused.value.description


def test_a_secret_key_is_in_no_repr() -> None:
    assert "k1" not in repr(QueueDescription("q", authorization_rules=(RULE,)))


def test_topics_are_checked_too() -> None:
    TopicDescription("events").validate()
    with pytest.raises(InvalidError, match="DuplicateDetectionHistoryTimeWindow"):
        TopicDescription("events", duplicate_detection_history_time_window_ms=25 * DAY_MS).validate()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": "s" * 51}, "51 characters"),
        ({"name": "a/b"}, "not allowed"),
        ({"topic": ""}, "0 characters"),
        ({"lock_duration_ms": 25 * DAY_MS}, "LockDuration is P25D"),
        ({"default_rule": RuleDescription("", TrueFilter())}, "Rule name"),
    ],
    ids=str,
)
def test_subscriptions_are_checked_too(change: dict[str, Any], words: str) -> None:
    SubscriptionDescription("events", "all").validate()
    with pytest.raises(InvalidError) as refused:
        replace(SubscriptionDescription("events", "all"), **change).validate()
    assert words in refused.value.description


@pytest.mark.parametrize("name", ["requires_session", "requires_duplicate_detection", "enable_partitioning"])
def test_an_update_cannot_change_what_creation_fixed(name: str) -> None:
    current = QueueDescription("orders")
    validate_change(replace(current, lock_duration_ms=10_000, enable_express=True), current)
    with pytest.raises(InvalidError, match="fixed when the entity is created"):
        validate_change(replace(current, **{name: True}), current)  # type: ignore[arg-type]


def test_an_update_of_topic_and_subscription_cannot_change_what_creation_fixed() -> None:
    topic = TopicDescription("t")
    with pytest.raises(InvalidError, match="EnablePartitioning of 't' is false"):
        validate_change(replace(topic, enable_partitioning=True), topic)
    subscription = SubscriptionDescription("t", "s", requires_session=True)
    with pytest.raises(InvalidError, match="RequiresSession of 't/Subscriptions/s' is true"):
        validate_change(replace(subscription, requires_session=False), subscription)


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (RuleDescription("a/b"), "Rule name"),
        (RuleDescription("r" * 51), "Rule name"),
        (RuleDescription("r", SqlFilter("")), "0 characters"),
        (RuleDescription("r", SqlFilter("x" * 1025)), "1025 characters"),
        (RuleDescription("r", SqlFilter("a=@p", {"p": 1})), "leading @"),
        (RuleDescription("r", TrueFilter(), SqlAction("s" * 1025)), "1025 characters"),
        (RuleDescription("r", CorrelationFilter(label="x" * 40_000)), "label"),
    ],
    ids=str,
)
def test_rules_are_measured(rule: RuleDescription, words: str) -> None:
    with pytest.raises(InvalidError) as refused:
        rule.validate()
    assert words in refused.value.description


texts = st.text(max_size=20)
values = st.one_of(
    texts,
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.datetimes().map(lambda moment: moment.replace(fold=0)),
    st.datetimes(timezones=st.just(UTC)).map(lambda moment: moment.replace(fold=0)),
    st.timedeltas(),
)
parameters = st.dictionaries(texts, values, max_size=4)
filters = st.one_of(
    st.builds(SqlFilter, texts, parameters),
    st.builds(TrueFilter),
    st.builds(FalseFilter),
    st.builds(CorrelationFilter, correlation_id=st.none() | texts, label=st.none() | texts, properties=parameters),
)
rules = st.builds(RuleDescription, texts, filters, st.none() | st.builds(SqlAction, texts, parameters), st.integers(0))
keys = st.builds(AuthorizationRule, texts, st.frozensets(st.sampled_from(sorted(RIGHTS))), texts, texts, st.integers(0))


@settings(deadline=None, print_blob=True, max_examples=100)
@given(rules)
def test_rules_survive_json(rule: RuleDescription) -> None:
    again = from_json(RuleDescription, to_json(rule))
    assert again == rule
    assert repr(again) == repr(rule), "the types of values survive too"


@settings(deadline=None, print_blob=True, max_examples=50)
@given(st.builds(QueueDescription, texts, user_metadata=st.none() | texts, authorization_rules=st.tuples(keys, keys)))
def test_queues_survive_json(queue: QueueDescription) -> None:
    assert from_json(QueueDescription, to_json(queue)) == queue


@settings(deadline=None, print_blob=True, max_examples=50)
@given(st.builds(SubscriptionDescription, texts, texts, default_rule=st.none() | rules))
def test_subscriptions_survive_json(subscription: SubscriptionDescription) -> None:
    assert from_json(SubscriptionDescription, to_json(subscription)) == subscription


def test_topics_survive_json_and_missing_fields_get_defaults() -> None:
    topic = TopicDescription("t", support_ordering=False, authorization_rules=(RULE,))
    assert from_json(TopicDescription, to_json(topic)) == topic
    assert from_json(TopicDescription, '{"name":"t","from_the_future":1}') == TopicDescription("t")


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("PT0S", 0),
        ("PT13S", 13_000),
        ("PT10M1S", 601_000),
        ("P1DT2H3M4.5S", 93_784_500),
        ("P2W", 14 * DAY_MS),
        ("PT0.001S", 1),
        ("PT1.9999999S", 1_999),
        ("P10675199DT2H48M5.4775807S", FOREVER_MS),
        ("P10675199DT2H48M5.477581S", FOREVER_MS),
        ("P10675199DT2H48M5.477580S", FOREVER_MS),
        ("P99999999D", FOREVER_MS),
    ],
)
def test_durations_are_read(text: str, milliseconds: int) -> None:
    assert parse_duration(text) == milliseconds


@pytest.mark.parametrize(
    "text", ["", "P", "PT", "P1DT", "60", "P1Y", "P1M", "PT-5S", "-PT5S", "PT1H1H", "00:01:00", "PT٣S"]
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(InvalidError, match="not a duration"):
        parse_duration(text)


@settings(deadline=None, print_blob=True)
@given(st.integers(0, FOREVER_MS))
def test_durations_survive_their_text(milliseconds: int) -> None:
    assert parse_duration(format_duration(milliseconds)) == milliseconds


@settings(deadline=None, print_blob=True)
@given(st.integers(0, 10_000 * DAY_MS))
def test_durations_are_the_clients_durations(milliseconds: int) -> None:
    assert isodate.parse_duration(format_duration(milliseconds)) == timedelta(milliseconds=milliseconds)


def test_a_naive_time_stays_naive() -> None:
    moment = datetime(2020, 7, 5, 11, 12, 13)
    rule = RuleDescription("r", SqlFilter("a=@a", {"@a": moment}))
    again = from_json(RuleDescription, to_json(rule))
    assert isinstance(again.filter, SqlFilter)
    assert again.filter.parameters["@a"] == moment
