"""Topics: which subscription gets what, by filters of every kind, and what actions make of it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.management import CorrelationRuleFilter, FalseRuleFilter, SqlRuleAction, SqlRuleFilter
from tests.support.stage import Stage, receive, receive_one, texts


def _subscribe(stage: Stage, topic: str, name: str, *filters: object, action: str | None = None) -> None:
    """A subscription with these filters in place of the default rule."""
    stage.admin.create_subscription(topic, name)
    stage.admin.delete_rule(topic, name, "$Default")
    for number, one in enumerate(filters):
        rule = {"filter": one, "action": SqlRuleAction(action) if action else None}
        stage.admin.create_rule(topic, name, f"rule-{number}", **rule)  # type: ignore[arg-type]


def _got(client: ServiceBusClient, topic: str, subscription: str) -> list[str]:
    return texts(client.get_subscription_receiver(topic, subscription).peek_messages(100))


def test_filters_of_every_kind_choose(stage: Stage, client: ServiceBusClient) -> None:
    topic = stage.topic()
    stage.admin.create_subscription(topic, "all")
    _subscribe(stage, topic, "none", FalseRuleFilter())
    _subscribe(stage, topic, "empty")
    _subscribe(stage, topic, "large", SqlRuleFilter("quantity > 10 AND color IN ('red', 'blue')"))
    _subscribe(stage, topic, "with", SqlRuleFilter("quantity > @least", parameters={"@least": 15}))
    _subscribe(stage, topic, "labelled", SqlRuleFilter("sys.Label LIKE 'ur%' AND EXISTS(quantity)"))
    _subscribe(stage, topic, "correlated", CorrelationRuleFilter(correlation_id="c", properties={"color": "red"}))
    _subscribe(stage, topic, "either", SqlRuleFilter("color = 'green'"), CorrelationRuleFilter(label="urgent"))
    sender = client.get_topic_sender(topic)
    sender.send_messages(
        [
            ServiceBusMessage("red 5", application_properties={"color": "red", "quantity": 5}, correlation_id="c"),
            ServiceBusMessage("red 12", application_properties={"color": "red", "quantity": 12}, subject="urgent"),
            ServiceBusMessage("blue 20", application_properties={"color": "blue", "quantity": 20}),
            ServiceBusMessage("green", application_properties={"color": "green"}, subject="urgent"),
            ServiceBusMessage("plain"),
        ]
    )
    assert {name: _got(client, topic, name) for name in ("all", "none", "empty", "large")} == {
        "all": ["red 5", "red 12", "blue 20", "green", "plain"],
        "none": [],
        "empty": [],
        "large": ["red 12", "blue 20"],
    }
    assert {name: _got(client, topic, name) for name in ("with", "labelled", "correlated", "either")} == {
        "with": ["blue 20"],
        "labelled": ["red 12"],
        "correlated": ["red 5"],
        "either": ["red 12", "green"],
    }


def test_actions_change_the_copy_of_their_subscription_only(stage: Stage, client: ServiceBusClient) -> None:
    topic = stage.topic()
    stage.admin.create_subscription(topic, "plain")
    action = "SET sys.Label = 'seen'; SET quantity = quantity * 2; REMOVE secret"
    _subscribe(stage, topic, "changed", SqlRuleFilter("quantity > 1"), action=action)
    sent = ServiceBusMessage("x", application_properties={"quantity": 21, "secret": "s"})
    client.get_topic_sender(topic).send_messages(sent)

    plain = receive_one(client.get_subscription_receiver(topic, "plain"))
    changed = receive_one(client.get_subscription_receiver(topic, "changed"))

    assert (_plain(plain.application_properties), plain.subject) == ({"quantity": 21, "secret": "s"}, None)
    properties = _plain(changed.application_properties)
    assert properties["quantity"] == 42 and "secret" not in properties
    assert changed.subject == "seen"


def test_subscriptions_settle_each_for_itself(stage: Stage, client: ServiceBusClient) -> None:
    topic = stage.topic()
    for name in ("one", "two"):
        stage.admin.create_subscription(
            topic,
            name,
            max_delivery_count=2,
            dead_lettering_on_message_expiration=True,
            lock_duration=timedelta(minutes=1),
        )
    sender = client.get_topic_sender(topic)
    sender.send_messages([ServiceBusMessage("a"), ServiceBusMessage("b", time_to_live=timedelta(seconds=50))])
    one = client.get_subscription_receiver(topic, "one")
    a, b = receive(one, 2)
    one.complete_message(a)
    one.dead_letter_message(b, reason="bad")
    assert stage.subscription_counts(topic, "one") == (0, 1)
    assert stage.subscription_counts(topic, "two") == (2, 0)

    stage.clock.advance(50)
    two = client.get_subscription_receiver(topic, "two")
    for _ in range(2):
        two.abandon_message(receive_one(two))
    graves = client.get_subscription_receiver(topic, "two", sub_queue="deadletter")
    reasons = {str(dead): dead.dead_letter_reason for dead in receive(graves, 2)}
    assert reasons == {"a": "MaxDeliveryCountExceeded", "b": "TTLExpiredException"}
    for dead in receive(client.get_subscription_receiver(topic, "one", sub_queue="deadletter"), 1):
        assert (str(dead), dead.dead_letter_reason) == ("b", "bad")


def test_scheduling_deferring_and_duplicates_on_a_topic(stage: Stage, client: ServiceBusClient) -> None:
    topic = stage.topic(requires_duplicate_detection=True)
    for name in ("one", "two"):
        stage.admin.create_subscription(topic, name)
    sender = client.get_topic_sender(topic)
    for _ in range(2):
        sender.send_messages(ServiceBusMessage("once", message_id="same"))
    first, second = sender.schedule_messages([ServiceBusMessage("soon"), ServiceBusMessage("never")], stage.utc(60))
    sender.cancel_scheduled_messages(second)
    assert stage.admin.get_topic_runtime_properties(topic).scheduled_message_count == 1
    assert first != second
    receivers = [client.get_subscription_receiver(topic, name) for name in ("one", "two")]
    for receiver in receivers:
        once = receive_one(receiver)
        assert str(once) == "once"
        receiver.complete_message(once)
    stage.clock.advance(60)
    for receiver in receivers:
        soon = receive_one(receiver)
        receiver.defer_message(soon)
        (back,) = receiver.receive_deferred_messages(soon.sequence_number or 0)
        assert str(back) == "soon"
        receiver.complete_message(back)


def test_subscriptions_forward_into_queues(stage: Stage, client: ServiceBusClient) -> None:
    topic, target = stage.topic(), stage.queue()
    stage.admin.create_subscription(topic, "forwarding", forward_to=target)
    client.get_topic_sender(topic).send_messages([ServiceBusMessage("a"), ServiceBusMessage("b")])
    assert texts(receive(client.get_queue_receiver(target), 2)) == ["a", "b"]
    assert stage.subscription_counts(topic, "forwarding") == (0, 0)


def test_bad_expressions_are_refused_when_the_rule_is_made(stage: Stage) -> None:
    topic = stage.topic()
    stage.admin.create_subscription(topic, "s")
    for expression in ("color =", "x" * 1025, "NOT", "(" * 512 + "a=1"):
        with pytest.raises(HttpResponseError) as refused:
            stage.admin.create_rule(topic, "s", "bad", filter=SqlRuleFilter(expression))
        assert refused.value.status_code == 400
    assert [rule.name for rule in stage.admin.list_rules(topic, "s")] == ["$Default"]


def _plain(found: Mapping[Any, Any] | None) -> dict[str, Any]:
    pairs = ((key, value) for key, value in (found or {}).items())
    return {_text(key): _text(value) for key, value in pairs}


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value
