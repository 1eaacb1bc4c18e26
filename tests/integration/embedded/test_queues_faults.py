"""Faults switched on from Python and over the control endpoint: what the SDK's clients then see."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
)
from tests.support.stage import Stage, receive, receive_one, texts

from pairbus.embedded.errors import Limits
from pairbus.embedded.faults import FaultControlError, RemoteSwitchboard
from pairbus.testing.clock import ManualClock
from pairbus.testing.namespace import EmbeddedNamespace

CONDITIONS = {
    "com.microsoft:server-busy": ServiceBusServerBusyError,
    "com.microsoft:timeout": OperationTimeoutError,
    "com.microsoft:entity-disabled": MessagingEntityDisabledError,
    "amqp:internal-error": ServiceBusError,
    "amqp:not-found": MessagingEntityNotFoundError,
    "amqp:unauthorized-access": ServiceBusAuthorizationError,
    "amqp:resource-limit-exceeded": ServiceBusQuotaExceededError,
    "amqp:link:message-size-exceeded": MessageSizeExceededError,
    "amqp:not-allowed": ServiceBusError,
}


def test_every_condition_becomes_the_sdks_own_error(stage: Stage, client: ServiceBusClient) -> None:
    queue, healthy = stage.queue(), stage.queue()
    sender = client.get_queue_sender(queue)
    sender.send_messages(ServiceBusMessage("before"))
    for condition, kind in CONDITIONS.items():
        stage.namespace.fault("error", entity=queue, condition=condition)
        with pytest.raises(kind):
            sender.send_messages(ServiceBusMessage("refused"))
    client.get_queue_sender(healthy).send_messages(ServiceBusMessage("another queue"))
    stage.namespace.clear_faults(queue)
    sender.send_messages(ServiceBusMessage("after"))
    assert texts(client.get_queue_receiver(queue).peek_messages(5)) == ["before", "after"]


def test_refusing_connections_of_one_queue_and_of_all(stage: Stage, client: ServiceBusClient) -> None:
    queue, healthy = stage.queue(), stage.queue()
    sender = client.get_queue_sender(queue)
    sender.send_messages(ServiceBusMessage("before"))
    stage.namespace.fault("refuse", entity=queue)
    with pytest.raises(ServiceBusError):
        sender.send_messages(ServiceBusMessage("refused"))
    client.get_queue_sender(healthy).send_messages(ServiceBusMessage("fine"))
    stage.namespace.fault("refuse")
    with pytest.raises(ServiceBusConnectionError):
        client.get_queue_sender(healthy).send_messages(ServiceBusMessage("refused"))
    stage.namespace.clear_faults()
    sender.send_messages(ServiceBusMessage("after"))
    assert (stage.counts(queue)[0], stage.counts(healthy)[0]) == (2, 1)


def test_dropping_the_connection_mid_send(stage: Stage, client: ServiceBusClient) -> None:
    queue = stage.queue()
    sender = client.get_queue_sender(queue)
    sender.send_messages(ServiceBusMessage("before"))
    stage.namespace.fault("drop", entity=queue)
    with pytest.raises(ServiceBusConnectionError):
        sender.send_messages(ServiceBusMessage("dropped"))
    stage.namespace.clear_faults()
    assert stage.counts(queue)[0] == 1, "what was dropped was not stored"


def test_hanging_and_failing_after_accepting(stage: Stage, client: ServiceBusClient) -> None:
    queue = stage.queue()
    sender = client.get_queue_sender(queue)
    sender.send_messages(ServiceBusMessage("before"))
    stage.namespace.fault("hang", entity=queue)
    with pytest.raises(OperationTimeoutError):
        sender.send_messages(ServiceBusMessage("hung"), timeout=0.5)
    assert stage.counts(queue)[0] == 1, "what hangs is not stored"
    stage.namespace.clear_faults()
    sender.send_messages(ServiceBusMessage("between"))
    stage.namespace.fault("accept-then-fail", entity=queue)
    with pytest.raises(OperationTimeoutError):
        sender.send_messages(ServiceBusMessage("stored"), timeout=1)
    stage.namespace.clear_faults()
    assert stage.counts(queue)[0] == 3, "what is accepted is stored"


def test_a_fault_of_the_namespace_reaches_every_entity(stage: Stage, client: ServiceBusClient) -> None:
    queue, topic = stage.queue(), stage.topic()
    senders = [client.get_queue_sender(queue), client.get_topic_sender(topic)]
    for sender in senders:
        sender.send_messages(ServiceBusMessage("before"))
    stage.namespace.fault("error", condition="com.microsoft:server-busy")
    for sender in senders:
        with pytest.raises(ServiceBusServerBusyError):
            sender.send_messages(ServiceBusMessage("refused"))
    stage.namespace.fault("throttle", rate=0)
    for sender in senders:
        with pytest.raises(ServiceBusServerBusyError):
            sender.send_messages(ServiceBusMessage("refused"))
    # The entity's own fault goes before the namespace's: here, one that hardly does anything.
    stage.namespace.fault("slow", entity=queue, delay=0.01)
    senders[0].send_messages(ServiceBusMessage("after"))
    stage.namespace.clear_faults()
    assert stage.counts(queue)[0] == 2


def test_throttling_lets_a_rate_through(stage: Stage, client: ServiceBusClient) -> None:
    queue = stage.queue()
    sender = client.get_queue_sender(queue)
    sender.send_messages(ServiceBusMessage("before"))
    stage.namespace.fault("throttle", entity=queue, rate=2)
    for _ in range(2):
        sender.send_messages(ServiceBusMessage("within"))
    with pytest.raises(ServiceBusServerBusyError):
        sender.send_messages(ServiceBusMessage("above"))
    stage.clock.advance(0.5)
    sender.send_messages(ServiceBusMessage("a moment later"))
    stage.namespace.clear_faults()


def test_slowing_down_delays_and_loses_nothing(stage: Stage, client: ServiceBusClient) -> None:
    queue = stage.queue()
    sender, receiver = client.get_queue_sender(queue), client.get_queue_receiver(queue)
    stage.namespace.fault("slow", delay=0.05)
    sender.send_messages(ServiceBusMessage("slow"))
    receiver.complete_message(receive_one(receiver))
    stage.namespace.clear_faults()
    assert stage.counts(queue) == (0, 0, 0)


def test_receivers_feel_faults_too(stage: Stage, client: ServiceBusClient) -> None:
    queue = stage.queue()
    client.get_queue_sender(queue).send_messages([ServiceBusMessage("a"), ServiceBusMessage("b")])
    receiver = client.get_queue_receiver(queue)
    message = receive_one(receiver)
    stage.namespace.fault("hang", entity=queue)
    assert receiver.receive_messages(1, max_wait_time=0.3) == []
    stage.namespace.fault("error", entity=queue, condition="com.microsoft:server-busy")
    with pytest.raises(ServiceBusError):
        receiver.complete_message(message)
    stage.namespace.clear_faults()
    stage.clock.advance(61)  # the SDK gave the link up, and with it what it held
    assert sorted(texts(receive(receiver, 2))) == ["a", "b"]


def test_a_fault_ends_by_itself(stage: Stage, client: ServiceBusClient) -> None:
    queue = stage.queue()
    sender = client.get_queue_sender(queue)
    sender.send_messages(ServiceBusMessage("before"))
    stage.namespace.fault("error", entity=queue, condition="amqp:not-allowed", duration=30)
    with pytest.raises(ServiceBusError):
        sender.send_messages(ServiceBusMessage("refused"))
    (fault,) = stage.namespace.faults()
    assert (fault["mode"], fault["entity"], fault["for_ms"]) == ("error", queue, 30_000)
    stage.clock.advance(30)
    assert stage.namespace.faults() == []
    sender.send_messages(ServiceBusMessage("after"))
    assert stage.counts(queue)[0] == 2


def test_the_control_endpoint_refuses_nonsense_and_strangers(stage: Stage) -> None:
    nonsense: tuple[dict[str, Any], ...] = (
        {"mode": "explode"},
        {"mode": "error"},
        {"mode": "slow", "delay_ms": -1},
        {"mode": "throttle"},
        {"mode": "hang", "for_ms": 0},
        {"mode": "hang", "entity": ""},
    )
    for wrong in nonsense:
        with pytest.raises(FaultControlError):
            RemoteSwitchboard(stage.namespace.connection_string).set(**wrong)
    stranger = stage.namespace.connection_string.replace("SharedAccessKey=", "SharedAccessKey=AAAA")
    with pytest.raises(FaultControlError, match="Manage"):
        RemoteSwitchboard(stranger).list()
    assert stage.namespace.faults() == []


def test_a_senders_link_without_messages_is_detached_as_in_the_service(tmp_path: Path) -> None:
    clock = ManualClock()
    limits = Limits(link_idle_ms=600_000)
    with EmbeddedNamespace("contoso", data=tmp_path / "contoso", clock=clock, limits=limits) as namespace:
        with namespace.admin() as admin:
            admin.create_queue("orders")
        with namespace.client(retry_total=0) as client, client.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage("in use"))
            clock.advance(600)
            sender.send_messages(ServiceBusMessage("in use again"))
            clock.advance(600)
            clock.advance(600)
            with pytest.raises(ServiceBusError):
                sender.send_messages(ServiceBusMessage("too late"))
            sender.send_messages(ServiceBusMessage("on a fresh link"))
