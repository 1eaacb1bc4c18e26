"""What a fault of the primary does: to the caller, to the message, to the entity's state, and to nobody else."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, get_args

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    MessagingEntityNotFoundError,
    ServiceBusAuthorizationError,
    ServiceBusError,
    ServiceBusServerBusyError,
)
from tests.support.pairing import Shell, backlog_bodies, bodies, paired

from pairbus import EntityState, TransitionEvent
from pairbus.testing.namespace import EmbeddedPair

COUNTING = [
    ("refuse", {}),
    ("drop", {}),
    ("hang", {}),
    ("accept-then-fail", {}),
    ("error", {"condition": "com.microsoft:timeout"}),
    ("error", {"condition": "com.microsoft:entity-disabled"}),
    ("error", {"condition": "amqp:internal-error"}),
    ("error", {"condition": "amqp:resource-limit-exceeded"}),
    ("error", {"condition": "amqp:not-implemented"}),
]
NOT_COUNTING: list[tuple[str, type[Exception]]] = [
    ("amqp:not-found", MessagingEntityNotFoundError),
    ("amqp:unauthorized-access", ServiceBusAuthorizationError),
    ("amqp:link:message-size-exceeded", MessageSizeExceededError),
    ("com.microsoft:argument-error", ServiceBusError),
    ("amqp:not-allowed", ServiceBusError),
]


@pytest.fixture(scope="module", params=get_args(Shell))
def client(request: pytest.FixtureRequest, pair: EmbeddedPair) -> Iterator[Any]:
    """One client for all tests of a shell that need no options of their own."""
    with paired(pair, request.param, failover_interval=0, ping_primary_interval=1800, send_timeout=5) as shared:
        yield shared


def label(fault: tuple[str, dict[str, Any]]) -> str:
    return str(fault[1].get("condition", fault[0]))


@dataclass(frozen=True, slots=True)
class Place:
    """Where an application sends to: a queue, a topic, or a queue with sessions."""

    kind: str
    name: str

    def sender(self, client: Any) -> Any:
        return client.get_topic_sender(self.name) if self.kind == "topic" else client.get_queue_sender(self.name)

    def message(self, body: str) -> ServiceBusMessage:
        return ServiceBusMessage(body, session_id="s-1" if self.kind == "session queue" else None)

    def stored(self, pair: EmbeddedPair) -> list[str]:
        return bodies(pair.primary, f"{self.name}/Subscriptions/all" if self.kind == "topic" else self.name)


@pytest.fixture(params=["queue", "topic", "session queue"])
def place(request: pytest.FixtureRequest, pair: EmbeddedPair) -> Iterator[Place]:
    name = f"place-{uuid.uuid4().hex[:8]}"
    with pair.primary.admin() as admin:
        if request.param == "topic":
            admin.create_topic(name)
            admin.create_subscription(name, "all")
        else:
            admin.create_queue(name, requires_session=request.param == "session queue")
    yield Place(request.param, name)
    pair.primary.clear_faults()


@pytest.mark.parametrize("fault", COUNTING, ids=label)
def test_a_fault_that_counts_diverts_the_very_send(
    pair: EmbeddedPair, client: Any, place: Place, fault: tuple[str, dict[str, Any]]
) -> None:
    mode, details = fault
    events: list[TransitionEvent] = []
    client.on_transition(lambda event: events.append(event) if event.entity == place.name else None)
    sender = place.sender(client)
    sender.send_messages(place.message("before"))
    pair.primary.fault(mode, entity=place.name, **details)
    during = f"during {place.name}"
    sender.send_messages(place.message(during))

    assert client.state(place.name) is EntityState.FAILED_OVER
    assert backlog_of(client, pair, place.name) == [during]
    assert [(event.before, event.after) for event in events] == [(EntityState.HEALTHY, EntityState.FAILED_OVER)]
    assert "Error" in events[0].cause
    assert place.stored(pair) == (["before", during] if mode == "accept-then-fail" else ["before"])


@pytest.mark.parametrize(
    "content",
    [
        {"application_properties": {"what": object()}},
        {"application_properties": {"what": 2**70}},
        {"application_properties": {"what": "\ud800"}},
        {"time_to_live": timedelta(days=60)},
    ],
    ids=["an object", "a number too large", "no text", "a time too long"],
)
def test_content_that_cannot_be_encoded_is_the_messages_own_fault(
    pair: EmbeddedPair, client: Any, queue: str, content: dict[str, Any]
) -> None:
    sender = client.get_queue_sender(queue)
    for wrong in (ServiceBusMessage("x", **content), [ServiceBusMessage("x", **content)]):
        with pytest.raises((ServiceBusError, ValueError, TypeError)):
            sender.send_messages(wrong)
        assert client.state(queue) is EntityState.HEALTHY
    sender.send_messages(ServiceBusMessage("right"))
    assert bodies(pair.primary, queue) == ["right"]


@pytest.mark.parametrize("nonsense", ["hello", b"hello", ["hello"], [[ServiceBusMessage("x")]], 7])
def test_what_is_no_message_is_refused_as_the_sdk_does(
    pair: EmbeddedPair, client: Any, queue: str, nonsense: Any
) -> None:
    sender = client.get_queue_sender(queue)
    for _ in range(2):
        with pytest.raises(TypeError, match="ServiceBusMessage"):
            sender.send_messages(nonsense)
        assert bodies(pair.primary, queue) == []
        client.fail_over(queue)


@pytest.mark.parametrize(("condition", "error"), NOT_COUNTING)
def test_an_error_that_does_not_count_is_raised_as_the_sdk_raised_it(
    pair: EmbeddedPair, client: Any, queue: str, condition: str, error: type[Exception]
) -> None:
    sender = client.get_queue_sender(queue)
    sender.send_messages(ServiceBusMessage("before"))
    pair.primary.fault("error", entity=queue, condition=condition)
    with pytest.raises(error):
        sender.send_messages(ServiceBusMessage(f"wrong {queue}"))
    assert client.state(queue) is EntityState.HEALTHY
    assert backlog_of(client, pair, queue) == []
    pair.primary.clear_faults()
    sender.send_messages(ServiceBusMessage("after"))
    assert bodies(pair.primary, queue) == ["before", "after"]


def backlog_of(client: Any, pair: EmbeddedPair, queue: str) -> list[str]:
    """What waits in the backlog for one queue; the tests that share a client put its name into the bodies."""
    return [body for body in backlog_bodies(client, pair) if queue in body]


@pytest.mark.parametrize("mode", ["refuse", "drop", "hang"])
def test_a_fault_of_the_whole_namespace_fails_over_each_entity_when_it_is_used(
    pair: EmbeddedPair, client: Any, queue: str, mode: str
) -> None:
    other = f"{queue}-other"
    with pair.primary.admin() as admin:
        admin.create_queue(other)
    first, second = client.get_queue_sender(queue), client.get_queue_sender(other)
    second.send_messages(ServiceBusMessage("0"))
    pair.primary.fault(mode)
    first.send_messages(ServiceBusMessage(f"1 {queue}"))
    assert client.state(queue) is EntityState.FAILED_OVER
    assert client.state(other) is EntityState.HEALTHY
    second.send_messages(ServiceBusMessage(f"2 {queue}"))
    assert client.state(other) is EntityState.FAILED_OVER
    assert sorted(backlog_of(client, pair, queue)) == [f"1 {queue}", f"2 {queue}"]


@pytest.mark.every_wire
def test_one_entity_says_nothing_about_its_neighbour(pair: EmbeddedPair, shell: Shell, queue: str) -> None:
    other = f"{queue}-other"
    with pair.primary.admin() as admin:
        admin.create_queue(other)
    with paired(pair, shell, failover_interval=0, send_timeout=6, primary_name=queue) as client:
        pair.primary.fault("refuse", entity=queue)
        client.get_queue_sender(queue).send_messages(ServiceBusMessage("diverted"))
        client.get_queue_sender(other).send_messages(ServiceBusMessage("direct"))
        assert client.state(queue) is EntityState.FAILED_OVER
        assert client.state(other) is EntityState.HEALTHY
        assert backlog_bodies(client, pair) == ["diverted"]
        assert bodies(pair.primary, other) == ["direct"]


def test_a_busy_server_is_waited_for(pair: EmbeddedPair, shell: Shell, queue: str) -> None:
    with paired(pair, shell, failover_interval=0, send_timeout=40, primary_name=queue) as client:
        sender = client.get_queue_sender(queue)
        pair.primary.fault("error", entity=queue, condition="com.microsoft:server-busy", duration=5)
        sender.send_messages(ServiceBusMessage("patient"))
        assert client.state(queue) is EntityState.HEALTHY
        assert bodies(pair.primary, queue) == ["patient"]
        assert backlog_bodies(client, pair) == []


def test_a_busy_server_is_raised_when_the_callers_time_is_shorter_than_the_pause(
    pair: EmbeddedPair, shell: Shell, queue: str
) -> None:
    with paired(pair, shell, failover_interval=0, primary_name=queue) as client:
        sender = client.get_queue_sender(queue)
        pair.primary.fault("throttle", entity=queue, rate=0)
        with pytest.raises(ServiceBusServerBusyError):
            sender.send_messages(ServiceBusMessage("hasty"), timeout=5)
        assert client.state(queue) is EntityState.HEALTHY
        assert backlog_bodies(client, pair) == []


def test_a_slow_primary_within_the_timeout_is_healthy(pair: EmbeddedPair, shell: Shell, queue: str) -> None:
    with paired(pair, shell, failover_interval=0, send_timeout=30, primary_name=queue) as client:
        pair.primary.fault("slow", entity=queue, delay=0.3)
        client.get_queue_sender(queue).send_messages(ServiceBusMessage("slow"))
        assert client.state(queue) is EntityState.HEALTHY
        assert bodies(pair.primary, queue) == ["slow"]


@pytest.mark.every_wire
def test_topics_and_session_queues_fail_over_as_queues_do(pair: EmbeddedPair, shell: Shell, queue: str) -> None:
    topic, sessions = f"{queue}-topic", f"{queue}-sessions"
    with pair.primary.admin() as admin:
        admin.create_topic(topic)
        admin.create_subscription(topic, "all")
        admin.create_queue(sessions, requires_session=True)
    with paired(
        pair, shell, failover_interval=0, ping_primary_interval=1, send_timeout=6, primary_name=queue
    ) as client:
        to_topic, to_sessions = client.get_topic_sender(topic), client.get_queue_sender(sessions)
        pair.primary.fault("refuse")
        to_topic.send_messages(ServiceBusMessage("news"))
        to_sessions.send_messages(ServiceBusMessage("step", session_id="s-1"))
        assert client.state(topic) is EntityState.FAILED_OVER
        assert client.state(sessions) is EntityState.FAILED_OVER
        assert sorted(backlog_bodies(client, pair)) == ["news", "step"]
        pair.primary.clear_faults()
        wait_for_health(client, topic, sessions)
        to_topic.send_messages(ServiceBusMessage("later news"))
        to_sessions.send_messages(ServiceBusMessage("next step", session_id="s-1"))
        # The pings that healed them were taken by both and are shown to no receiver.
        assert bodies(pair.primary, f"{topic}/Subscriptions/all") == ["later news"]
        assert bodies(pair.primary, sessions) == ["next step"]


def wait_for_health(client: Any, *entities: str) -> None:
    from pairbus.testing import wait_until

    wait_until(lambda: all(client.state(one) is EntityState.HEALTHY for one in entities), 30, "health")
