"""Queues that take or give nothing for a while, forwarding, and entities that go away under their clients."""

from __future__ import annotations

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusSubQueue
from azure.servicebus.exceptions import (
    MessagingEntityDisabledError,
    ServiceBusAuthenticationError,
    ServiceBusError,
)
from azure.servicebus.management import EntityStatus
from tests.support.stage import Stage, receive, receive_one, texts


def _set_status(stage: Stage, queue: str, status: EntityStatus) -> None:
    description = stage.admin.get_queue(queue)
    description.status = status
    stage.admin.update_queue(description)


def test_status_disables_sending_or_receiving(stage: Stage, client: ServiceBusClient) -> None:
    queue = stage.queue()
    sender, receiver = client.get_queue_sender(queue), client.get_queue_receiver(queue)
    _set_status(stage, queue, EntityStatus.RECEIVE_DISABLED)
    sender.send_messages(ServiceBusMessage("in"))
    with pytest.raises(MessagingEntityDisabledError):
        receiver.receive_messages(1, max_wait_time=30)
    _set_status(stage, queue, EntityStatus.SEND_DISABLED)
    with pytest.raises(MessagingEntityDisabledError):
        sender.send_messages(ServiceBusMessage("refused"))
    assert str(receive_one(receiver)) == "in"
    _set_status(stage, queue, EntityStatus.DISABLED)
    with pytest.raises(MessagingEntityDisabledError):
        client.get_queue_sender(queue).send_messages(ServiceBusMessage("refused"))
    _set_status(stage, queue, EntityStatus.ACTIVE)
    client.get_queue_sender(queue).send_messages(ServiceBusMessage("again"))


def test_what_is_not_there_is_refused(stage: Stage, client: ServiceBusClient) -> None:
    # The service answers a token for a missing entity with 404, which the SDK calls an authentication error.
    with pytest.raises(ServiceBusAuthenticationError):
        client.get_queue_sender("nowhere").send_messages(ServiceBusMessage(""))
    topic = stage.topic()
    with pytest.raises(ServiceBusError):
        client.get_queue_receiver(topic).receive_messages(1, max_wait_time=30)


def test_a_deleted_queue_lets_its_clients_know(stage: Stage, client: ServiceBusClient) -> None:
    queue = stage.queue()
    sender, receiver = client.get_queue_sender(queue), client.get_queue_receiver(queue)
    sender.send_messages(ServiceBusMessage("lost with it"))
    receive_one(receiver)
    stage.admin.delete_queue(queue)
    with pytest.raises(ServiceBusError):
        sender.send_messages(ServiceBusMessage("nobody home"))
    with pytest.raises(ServiceBusError):
        receiver.receive_messages(1, max_wait_time=30)


def test_forwarding_over_a_hop_and_of_dead_letters(stage: Stage, client: ServiceBusClient) -> None:
    last, graves = stage.queue(), stage.queue()
    middle = stage.queue(forward_to=last)
    first = stage.queue(forward_to=middle)
    sender = client.get_queue_sender(first)
    sender.send_messages([ServiceBusMessage("a", message_id="a"), ServiceBusMessage("b")])
    assert [stage.counts(queue)[0] for queue in (first, middle, last)] == [0, 0, 2]
    a, b = receive(client.get_queue_receiver(last), 2)
    assert (str(a), a.message_id, str(b)) == ("a", "a", "b")

    source = stage.queue(forward_dead_lettered_messages_to=graves)
    client.get_queue_sender(source).send_messages(ServiceBusMessage("dying"))
    receiver = client.get_queue_receiver(source)
    receiver.dead_letter_message(receive_one(receiver), reason="because")
    dead = receive_one(client.get_queue_receiver(graves))
    assert (str(dead), dead.dead_letter_reason) == ("dying", "because")
    assert dead.dead_letter_source == source


def test_a_message_that_cannot_be_forwarded_waits_in_the_transfer_dead_letter_queue(
    stage: Stage, client: ServiceBusClient
) -> None:
    last = stage.queue()
    chain = [last]
    for _ in range(6):
        chain.append(stage.queue(forward_to=chain[-1]))
    client.get_queue_sender(chain[-1]).send_messages(ServiceBusMessage("too far"))
    assert stage.counts(last)[0] == 0, "it went over more than four hops"
    stuck = [
        queue
        for queue in chain
        if stage.admin.get_queue_runtime_properties(queue).transfer_dead_letter_message_count == 1
    ]
    assert len(stuck) == 1
    receiver = client.get_queue_receiver(stuck[0], sub_queue=ServiceBusSubQueue.TRANSFER_DEAD_LETTER)
    dead = receive_one(receiver)
    assert str(dead) == "too far" and dead.dead_letter_reason


def test_forwarding_stops_at_a_disabled_queue_and_goes_on_later(stage: Stage, client: ServiceBusClient) -> None:
    last = stage.queue()
    first = stage.queue()
    client.get_queue_sender(first).send_messages(ServiceBusMessage("before"))
    description = stage.admin.get_queue(first)
    description.forward_to = last
    stage.admin.update_queue(description)
    assert texts(receive(client.get_queue_receiver(last), 1)) == ["before"], "what is there is forwarded too"


def test_pings_are_taken_and_never_delivered(stage: Stage, client: ServiceBusClient) -> None:
    queue = stage.queue()
    sender = client.get_queue_sender(queue)
    sender.send_messages(ServiceBusMessage("", content_type="application/vnd.ms-servicebus-ping"))
    assert stage.counts(queue) == (0, 0, 0)
    assert client.get_queue_receiver(queue).peek_messages(1) == []


def test_partition_keys_are_kept_on_a_partitioned_queue(stage: Stage, client: ServiceBusClient) -> None:
    queue = stage.queue(enable_partitioning=True)
    sender = client.get_queue_sender(queue)
    batch = sender.create_message_batch()
    for number in range(3):
        batch.add_message(ServiceBusMessage(f"{number}", partition_key="p"))
    sender.send_messages(batch)
    messages = receive(client.get_queue_receiver(queue), 3)
    assert [(str(message), message.partition_key) for message in messages] == [("0", "p"), ("1", "p"), ("2", "p")]
