"""Receiving from a queue with the SDK: both modes, locks and their time, prefetch, long waits, peeking."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from azure.servicebus import (
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusMessageState,
    ServiceBusReceivedMessage,
    ServiceBusReceiveMode,
)
from azure.servicebus.exceptions import MessageLockLostError
from tests.support.stage import Stage, receive, receive_one, texts

from pairbus.testing import wait_until


def test_receive_and_delete_takes_what_it_gives(stage: Stage, client: ServiceBusClient) -> None:
    queue = stage.queue()
    client.get_queue_sender(queue).send_messages([ServiceBusMessage(f"{number}") for number in range(20)])
    receiver = client.get_queue_receiver(queue, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)

    assert texts(receive(receiver, 20)) == [f"{number}" for number in range(20)]
    assert stage.counts(queue) == (0, 0, 0)
    assert receiver.peek_messages() == []


def test_a_lock_is_renewed_expires_and_is_lost(stage: Stage, client: ServiceBusClient) -> None:
    queue = stage.queue(lock_duration=timedelta(seconds=60))
    client.get_queue_sender(queue).send_messages(ServiceBusMessage("held"))
    first, second = client.get_queue_receiver(queue), client.get_queue_receiver(queue)
    held = receive_one(first)
    assert held.locked_until_utc is not None
    assert held.locked_until_utc.timestamp() * 1000 == stage.clock.now_ms() + 60_000

    stage.clock.advance(50)
    renewed = first.renew_message_lock(held)
    assert renewed.timestamp() * 1000 == stage.clock.now_ms() + 60_000
    stage.clock.advance(50)
    assert stage.counts(queue) == (1, 0, 0), "a locked message is counted as active"
    stage.clock.advance(11)

    again = receive_one(second)
    assert (str(again), again.delivery_count) == ("held", 1)
    assert again.lock_token != held.lock_token
    with pytest.raises(MessageLockLostError):
        first.complete_message(held)
    with pytest.raises(MessageLockLostError):
        first.renew_message_lock(held)
    second.complete_message(again)
    assert stage.counts(queue) == (0, 0, 0)


def test_deliveries_are_counted_up_to_the_dead_letter_queue(stage: Stage, client: ServiceBusClient) -> None:
    queue = stage.queue(max_delivery_count=3)
    client.get_queue_sender(queue).send_messages(ServiceBusMessage("poison"))
    receiver = client.get_queue_receiver(queue)
    for expected in range(3):
        message = receive_one(receiver)
        assert message.delivery_count == expected
        receiver.abandon_message(message)

    dead = receive_one(client.get_queue_receiver(queue, sub_queue="deadletter"))

    assert (str(dead), dead.dead_letter_reason) == ("poison", "MaxDeliveryCountExceeded")
    assert dead.dead_letter_error_description
    assert stage.counts(queue) == (0, 1, 0)


def test_a_waiting_receiver_gets_a_message_as_it_comes(stage: Stage, client: ServiceBusClient) -> None:
    queue = stage.queue()
    receiver, sender = client.get_queue_receiver(queue), client.get_queue_sender(queue)
    got: list[ServiceBusReceivedMessage] = []
    waiting = threading.Thread(target=lambda: got.extend(receiver.receive_messages(1, max_wait_time=60)))
    waiting.start()
    sender.send_messages(ServiceBusMessage("news"))
    waiting.join(60)
    assert texts(got) == ["news"]
    assert receiver.receive_messages(1, max_wait_time=0.1) == []


def test_prefetched_messages_come_in_order_and_go_back_when_unused(stage: Stage, client: ServiceBusClient) -> None:
    queue = stage.queue()
    client.get_queue_sender(queue).send_messages([ServiceBusMessage(f"{number}") for number in range(30)])
    with client.get_queue_receiver(queue, prefetch_count=10) as receiver:
        taken = receive(receiver, 5)
        assert texts(taken) == ["0", "1", "2", "3", "4"]
        for message in taken:
            receiver.complete_message(message)
    stage.clock.advance(61)
    rest = receive(client.get_queue_receiver(queue), 25)
    assert texts(rest) == [f"{number}" for number in range(5, 30)]


def test_iterating_over_a_receiver(stage: Stage, client: ServiceBusClient) -> None:
    queue = stage.queue()
    client.get_queue_sender(queue).send_messages([ServiceBusMessage(f"{number}") for number in range(5)])
    receiver = client.get_queue_receiver(queue, max_wait_time=0.5)
    seen = []
    for message in receiver:
        seen.append(str(message))
        receiver.complete_message(message)
    assert seen == ["0", "1", "2", "3", "4"]


def test_peeking_shows_every_state_and_takes_nothing(stage: Stage, client: ServiceBusClient) -> None:
    queue = stage.queue()
    sender, receiver = client.get_queue_sender(queue), client.get_queue_receiver(queue)
    sender.send_messages([ServiceBusMessage(name) for name in ("locked", "deferred", "active")])
    locked, deferred = receive(receiver, 2)
    receiver.defer_message(deferred)
    later = stage.utc(600)
    (scheduled_number,) = sender.schedule_messages([ServiceBusMessage("scheduled")], later)

    browser = client.get_queue_receiver(queue)
    seen = browser.peek_messages(10)
    assert [(str(message), message.state) for message in seen] == [
        ("locked", ServiceBusMessageState.ACTIVE),
        ("deferred", ServiceBusMessageState.DEFERRED),
        ("active", ServiceBusMessageState.ACTIVE),
        ("scheduled", ServiceBusMessageState.SCHEDULED),
    ]
    assert seen[3].sequence_number == scheduled_number
    assert texts(browser.peek_messages(2, sequence_number=2)) == ["deferred", "active"]
    assert texts(browser.peek_messages(1)) == ["scheduled"], "peeking goes on where it was"
    assert browser.peek_messages(5) == []
    receiver.complete_message(locked)
    wait_until(lambda: stage.counts(queue) == (1, 0, 1))
