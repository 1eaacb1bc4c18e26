"""Topics, subscriptions and rules through the SDK's administration client."""

from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest
from azure.core.exceptions import HttpResponseError, ResourceExistsError, ResourceNotFoundError
from azure.servicebus import ServiceBusMessage
from azure.servicebus.management import (
    ApiVersion,
    CorrelationRuleFilter,
    FalseRuleFilter,
    ServiceBusAdministrationClient,
    SqlRuleAction,
    SqlRuleFilter,
    TrueRuleFilter,
)

from pairbus.testing import EmbeddedNamespace

MOMENT = datetime(2020, 7, 5, 11, 12, 13)


@pytest.fixture(scope="module")
def namespace() -> Iterator[EmbeddedNamespace]:
    with EmbeddedNamespace("contoso") as running:
        yield running


@pytest.fixture
def admin(namespace: EmbeddedNamespace) -> Iterator[ServiceBusAdministrationClient]:
    with namespace.admin() as client:
        yield client
        for topic in list(client.list_topics()):
            client.delete_topic(topic.name)
        for queue in list(client.list_queues()):
            client.delete_queue(queue.name)


def test_a_topic_comes_back_as_it_was_made_and_updated(admin: ServiceBusAdministrationClient) -> None:
    topic = admin.create_topic("events/by-day", enable_partitioning=True, max_size_in_megabytes=3072)
    assert topic.enable_partitioning is True
    assert topic.support_ordering is True
    assert topic.availability_status == "Available"
    admin.update_topic(
        topic,
        default_message_time_to_live="PT11M2S",
        auto_delete_on_idle=timedelta(minutes=10),
        duplicate_detection_history_time_window=timedelta(minutes=12),
        enable_express=True,
        enable_batched_operations=False,
        support_ordering=False,
        user_metadata="m",
    )
    topic = admin.get_topic("events/by-day")
    assert topic.default_message_time_to_live == timedelta(minutes=11, seconds=2)
    assert topic.auto_delete_on_idle == timedelta(minutes=10)
    assert topic.duplicate_detection_history_time_window == timedelta(minutes=12)
    assert topic.enable_express is True
    assert topic.enable_batched_operations is False
    assert topic.support_ordering is False
    assert topic.user_metadata == "m"
    assert [found.name for found in admin.list_topics()] == ["events/by-day"]
    with pytest.raises(ResourceExistsError):
        admin.create_topic("events/by-day")
    with pytest.raises(HttpResponseError, match="DuplicateDetectionHistoryTimeWindow is P25D"):
        admin.update_topic(topic, duplicate_detection_history_time_window=timedelta(days=25))
    with pytest.raises(HttpResponseError):
        admin.create_topic("other", max_message_size_in_kilobytes=1024)
    admin.delete_topic("events/by-day")
    with pytest.raises(ResourceNotFoundError):
        admin.get_topic("events/by-day")


def test_a_subscription_comes_back_as_it_was_made_and_updated(admin: ServiceBusAdministrationClient) -> None:
    admin.create_queue("target")
    admin.create_topic("events")
    made = admin.create_subscription(
        "events",
        "all",
        lock_duration="PT13S",
        requires_session=True,
        dead_lettering_on_message_expiration=True,
        dead_lettering_on_filter_evaluation_exceptions=False,
        default_message_time_to_live=timedelta(minutes=11),
        auto_delete_on_idle=timedelta(minutes=10),
        max_delivery_count=14,
        forward_dead_lettered_messages_to="target",
    )
    for subscription in (made, admin.get_subscription("EVENTS", "ALL")):
        assert subscription.name.lower() == "all"
        assert subscription.lock_duration == timedelta(seconds=13)
        assert subscription.requires_session is True
        assert subscription.dead_lettering_on_message_expiration is True
        assert subscription.dead_lettering_on_filter_evaluation_exceptions is False
        assert subscription.default_message_time_to_live == timedelta(minutes=11)
        assert subscription.auto_delete_on_idle == timedelta(minutes=10)
        assert subscription.max_delivery_count == 14
        assert str(subscription.forward_dead_lettered_messages_to).endswith("/target")
        assert subscription.availability_status == "Available"
    admin.update_subscription(
        "events", made, lock_duration=timedelta(minutes=2), forward_dead_lettered_messages_to=None
    )
    after = admin.get_subscription("events", "all")
    assert after.lock_duration == timedelta(minutes=2)
    assert after.forward_dead_lettered_messages_to is None
    with pytest.raises(HttpResponseError, match="RequiresSession"):
        admin.update_subscription("events", made, requires_session=False)
    with pytest.raises(ResourceExistsError):
        admin.create_subscription("events", "all")
    with pytest.raises(ResourceNotFoundError):
        admin.create_subscription("nowhere", "all")
    with pytest.raises(HttpResponseError):
        admin.create_subscription("events", "a" * 51)


def test_subscriptions_are_listed_and_deleted(admin: ServiceBusAdministrationClient) -> None:
    admin.create_topic("events")
    assert list(admin.list_subscriptions("events")) == []
    for name in ("b", "a", "c"):
        admin.create_subscription("events", name)
    assert [found.name for found in admin.list_subscriptions("events")] == ["a", "b", "c"]
    assert [found.name for found in admin.list_subscriptions("events", max_page_size=2)] == ["a", "b", "c"]
    admin.delete_subscription("events", "b")
    assert [found.name for found in admin.list_subscriptions_runtime_properties("events")] == ["a", "c"]
    with pytest.raises(ResourceNotFoundError):
        admin.delete_subscription("events", "b")
    with pytest.raises(ResourceNotFoundError):
        list(admin.list_subscriptions("nowhere"))


def test_filters_and_actions_of_every_kind_and_type(admin: ServiceBusAdministrationClient) -> None:
    admin.create_topic("events")
    admin.create_subscription("events", "all")
    values: dict[str, str | int | float | bool | datetime | timedelta] = {
        "text": "a <b> & 'c'",
        "int": 2,
        "long": 2**31 + 2,
        "negative": -5,
        "double": 1.5,
        "bool": False,
        "moment": MOMENT,
        "duration": timedelta(days=1, hours=2, minutes=3),
    }
    correlation = CorrelationRuleFilter(
        correlation_id="c",
        message_id="m",
        to="t",
        reply_to="r",
        label="l",
        session_id="s",
        reply_to_session_id="rs",
        content_type="ct",
        properties=values,
    )
    action = SqlRuleAction("SET Priority = @p", parameters={"@p": MOMENT})
    admin.create_rule("events", "all", "correlation", filter=correlation, action=action)
    rule = admin.get_rule("events", "all", "correlation")
    assert isinstance(rule.filter, CorrelationRuleFilter)
    assert rule.filter.properties == values
    for name in ("correlation_id", "message_id", "to", "reply_to", "label", "session_id", "content_type"):
        assert getattr(rule.filter, name) == getattr(correlation, name)
    assert rule.filter.reply_to_session_id == "rs"
    assert isinstance(rule.action, SqlRuleAction)
    assert rule.action.sql_expression == "SET Priority = @p"
    assert rule.action.parameters == {"@p": MOMENT}

    sql = SqlRuleFilter("Priority = @one AND Level < @two", parameters={"@one": "x", "@two": 1})
    admin.create_rule("events", "all", "sql", filter=sql)
    rule = admin.get_rule("events", "all", "sql")
    assert type(rule.filter) is SqlRuleFilter
    assert rule.filter.sql_expression == "Priority = @one AND Level < @two"
    assert rule.filter.parameters == {"@one": "x", "@two": 1}
    assert rule.action is None

    admin.create_rule("events", "all", "none", filter=FalseRuleFilter())
    admin.create_rule("events", "all", "plain")
    assert type(admin.get_rule("events", "all", "none").filter) is FalseRuleFilter
    assert type(admin.get_rule("events", "all", "plain").filter) is TrueRuleFilter
    names = [found.name for found in admin.list_rules("events", "all")]
    assert names == ["$Default", "correlation", "none", "plain", "sql"]


def test_rules_are_updated_and_deleted(admin: ServiceBusAdministrationClient) -> None:
    admin.create_topic("events")
    admin.create_subscription("events", "all")
    rule = admin.create_rule("events", "all", "rule", filter=SqlRuleFilter("Priority = 'low'"))
    admin.update_rule(
        "events", "all", rule, filter=CorrelationRuleFilter(correlation_id="c"), action=SqlRuleAction("SET a = 1")
    )
    changed = admin.get_rule("events", "all", "rule")
    assert isinstance(changed.filter, CorrelationRuleFilter)
    assert isinstance(changed.action, SqlRuleAction)
    admin.update_rule("events", "all", changed, action=None)
    assert admin.get_rule("events", "all", "rule").action is None
    with pytest.raises(ResourceExistsError):
        admin.create_rule("events", "all", "rule")
    rule.name = "unknown"
    with pytest.raises(HttpResponseError):
        admin.update_rule("events", "all", rule)
    admin.delete_rule("events", "all", "rule")
    admin.delete_rule("events", "all", "$Default")
    assert list(admin.list_rules("events", "all")) == []
    with pytest.raises(ResourceNotFoundError):
        admin.delete_rule("events", "all", "rule")
    with pytest.raises(ResourceNotFoundError):
        admin.get_rule("events", "all", "rule")


@pytest.mark.parametrize("expression", ["", "x" * 1025, "Priority = ", "DROP TABLE x"])
def test_bad_filters_are_refused(admin: ServiceBusAdministrationClient, expression: str) -> None:
    admin.create_topic("events")
    admin.create_subscription("events", "all")
    with pytest.raises(HttpResponseError) as refused:
        admin.create_rule("events", "all", "rule", filter=SqlRuleFilter(expression))
    assert refused.value.status_code == 400
    assert [found.name for found in admin.list_rules("events", "all")] == ["$Default"]


def test_topic_runtime_properties_count_subscriptions_and_filters(admin: ServiceBusAdministrationClient) -> None:
    admin.create_topic("events")
    admin.create_subscription("events", "one")
    admin.create_subscription("events", "two")
    admin.create_rule("events", "one", "sql", filter=SqlRuleFilter("1=1"))
    admin.create_rule("events", "two", "correlation", filter=CorrelationRuleFilter(correlation_id="c"))
    counted = admin.get_topic_runtime_properties("events")
    assert counted.subscription_count == 2
    assert counted.sql_filter_count == 3
    assert counted.correlation_filter_count == 1
    assert counted.size_in_bytes == 0
    assert counted.scheduled_message_count == 0
    (listed,) = admin.list_topics_runtime_properties()
    assert (listed.name, listed.sql_filter_count) == ("events", 3)


def test_filter_counts_belong_to_the_newest_api_version(
    namespace: EmbeddedNamespace, admin: ServiceBusAdministrationClient
) -> None:
    admin.create_topic("events")
    with namespace.admin(api_version=ApiVersion.V2021_05) as older:
        counted = older.get_topic_runtime_properties("events")
    assert counted.subscription_count == 0
    assert counted.sql_filter_count is None
    assert counted.correlation_filter_count is None


def test_subscription_runtime_properties_count_messages(
    namespace: EmbeddedNamespace, admin: ServiceBusAdministrationClient
) -> None:
    admin.create_topic("events")
    admin.create_subscription("events", "all")
    with namespace.client() as client, client.get_topic_sender("events") as sender:
        sender.send_messages([ServiceBusMessage("1"), ServiceBusMessage("2")])
    counted = admin.get_subscription_runtime_properties("events", "all")
    assert counted.active_message_count == 2
    assert counted.total_message_count == 2
    assert counted.dead_letter_message_count == 0
    assert counted.created_at_utc is not None
    assert counted.accessed_at_utc is not None


def test_deleting_a_topic_deletes_what_is_below_it(admin: ServiceBusAdministrationClient) -> None:
    admin.create_topic("events")
    admin.create_subscription("events", "all")
    admin.delete_topic("events")
    admin.create_topic("events")
    assert list(admin.list_subscriptions("events")) == []
