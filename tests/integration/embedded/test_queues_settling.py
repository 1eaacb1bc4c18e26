"""What a receiver may do with a message, over its link and, when the link is gone, over management."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiveMode
from azure.servicebus.exceptions import MessageNotFoundError, ServiceBusError
from tests.support.stage import Stage, receive, receive_one, texts


def test_an_abandoned_message_comes_back_in_its_place(stage: Stage, client: ServiceBusClient) -> None:
    queue = stage.queue()
    client.get_queue_sender(queue).send_messages([ServiceBusMessage("first"), ServiceBusMessage("second")])
    receiver = client.get_queue_receiver(queue)
    receiver.abandon_message(receive_one(receiver))
    first, second = receive(receiver, 2)
    assert (str(first), first.delivery_count) == ("first", 1)
    assert (str(second), second.delivery_count) == ("second", 0)


def test_deferred_messages_are_received_by_number_only(stage: Stage, client: ServiceBusClient) -> None:
    queue = stage.queue()
    client.get_queue_sender(queue).send_messages([ServiceBusMessage(f"{number}") for number in range(4)])
    receiver = client.get_queue_receiver(queue)
    for message in receive(receiver, 3):
        receiver.defer_message(message)
    assert str(receive_one(receiver)) == "3", "deferred ones are passed over"

    back = receiver.receive_deferred_messages([1, 2])
    assert texts(back) == ["0", "1"]
    receiver.renew_message_lock(back[0])
    receiver.complete_message(back[0])
    receiver.dead_letter_message(back[1], reason="late", error_description="too late")
    with pytest.raises(MessageNotFoundError):
        receiver.receive_deferred_messages([1])
    deleting = client.get_queue_receiver(queue, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)
    assert texts(deleting.receive_deferred_messages(3)) == ["2"]
    with pytest.raises(ServiceBusError):
        deleting.receive_deferred_messages(3)
    assert stage.counts(queue) == (1, 1, 0)


def test_dead_letters_carry_their_reason_and_can_be_completed(stage: Stage, client: ServiceBusClient) -> None:
    queue = stage.queue()
    sender, receiver = client.get_queue_sender(queue), client.get_queue_receiver(queue)
    sender.send_messages([ServiceBusMessage("a", application_properties={"kept": 1}), ServiceBusMessage("b")])
    first, second = receive(receiver, 2)
    receiver.dead_letter_message(first, reason="Unreadable", error_description="no such colour")
    receiver.dead_letter_message(second)

    graveyard = client.get_queue_receiver(queue, sub_queue="deadletter")
    told, untold = receive(graveyard, 2)

    assert (told.dead_letter_reason, told.dead_letter_error_description) == ("Unreadable", "no such colour")
    assert _plain(told.application_properties)["kept"] == 1
    assert untold.dead_letter_reason is None
    graveyard.complete_message(told)
    graveyard.abandon_message(untold)
    again = receive_one(graveyard)
    assert (str(again), again.delivery_count) == ("b", 1)
    graveyard.complete_message(again)
    assert stage.counts(queue) == (0, 0, 0)


def test_settling_after_the_link_is_lost(stage: Stage, client: ServiceBusClient) -> None:
    """Locks belong to the queue, not to the link: another receiver settles over management."""
    queue = stage.queue()
    client.get_queue_sender(queue).send_messages([ServiceBusMessage(f"{number}") for number in range(4)])
    with client.get_queue_receiver(queue) as receiver:
        messages = receive(receiver, 4)
    other = client.get_queue_receiver(queue)
    assert len(other.peek_messages(10)) == 4
    other.complete_message(messages[0])
    other.dead_letter_message(messages[1], reason="later")
    other.defer_message(messages[2])
    other.abandon_message(messages[3])

    assert stage.counts(queue)[:2] == (1, 1)
    assert str(receive_one(other)) == "3"
    assert texts(other.receive_deferred_messages(3)) == ["2"]


def _plain(found: Mapping[Any, Any] | None) -> dict[str, Any]:
    return {key.decode() if isinstance(key, bytes) else key: value for key, value in (found or {}).items()}
