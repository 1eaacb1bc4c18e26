"""What time does to a queue: life times, schedules, duplicates remembered, idle queues. The tests own the clock."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from azure.core.exceptions import ResourceNotFoundError
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.management import EntityStatus
from tests.support.sdk import FACES, Face
from tests.support.stage import Stage, receive, receive_one, stage, texts


@pytest.fixture(name="stage", scope="module")
def _stage(face: Face) -> Iterator[Stage]:
    """One for each face: tokens last an hour, and these tests take half of it."""
    assert face in FACES
    with stage() as opened:
        yield opened


def test_messages_expire_by_their_own_time_or_the_queues(stage: Stage, client: ServiceBusClient) -> None:
    queue = stage.queue(default_message_time_to_live=timedelta(seconds=100))
    sender = client.get_queue_sender(queue)
    sender.send_messages(
        [
            ServiceBusMessage("short", time_to_live=timedelta(seconds=10)),
            ServiceBusMessage("the queue's", time_to_live=timedelta(hours=1)),
            ServiceBusMessage("none"),
        ]
    )
    browser = client.get_queue_receiver(queue)
    stage.clock.advance(11)
    assert texts(browser.peek_messages(10, sequence_number=1)) == ["the queue's", "none"]
    stage.clock.advance(90)
    assert browser.peek_messages(10, sequence_number=1) == []
    assert stage.counts(queue) == (0, 0, 0)


def test_expired_messages_are_dead_lettered_where_the_queue_says_so(stage: Stage, client: ServiceBusClient) -> None:
    queue = stage.queue(dead_lettering_on_message_expiration=True)
    sender = client.get_queue_sender(queue)
    sender.send_messages(ServiceBusMessage("late", time_to_live=timedelta(seconds=10)))
    stage.clock.advance(10)
    graveyard = client.get_queue_receiver(queue, sub_queue="deadletter")
    dead = receive_one(graveyard)
    assert (str(dead), dead.dead_letter_reason) == ("late", "TTLExpiredException")
    stage.clock.advance(300)
    assert stage.counts(queue) == (0, 1, 0), "nothing expires among the dead"


def test_scheduled_messages_come_at_their_time(stage: Stage, client: ServiceBusClient) -> None:
    queue = stage.queue()
    sender, receiver = client.get_queue_sender(queue), client.get_queue_receiver(queue)
    times = [stage.utc(seconds) for seconds in (30, 60, 90)]
    numbers = [sender.schedule_messages(ServiceBusMessage(f"{n}"), when)[0] for n, when in enumerate(times)]
    sender.send_messages(ServiceBusMessage("annotated", scheduled_enqueue_time_utc=times[0]))
    sender.send_messages(ServiceBusMessage("now", scheduled_enqueue_time_utc=stage.utc(-5)))
    assert stage.counts(queue) == (1, 0, 4)
    now = receive_one(receiver)
    assert str(now) == "now"
    receiver.complete_message(now)

    sender.cancel_scheduled_messages(numbers[2])
    stage.clock.advance(30)
    first = receive(receiver, 2)
    assert texts(first) == ["0", "annotated"]
    assert {message.enqueued_time_utc for message in first} == {times[0]}
    assert {message.scheduled_enqueue_time_utc for message in first} == {times[0]}
    stage.clock.advance(30)
    assert str(receive_one(receiver)) == "1"
    stage.clock.advance(100)
    assert stage.counts(queue)[2] == 0
    assert "2" not in texts(receiver.peek_messages(10, sequence_number=1)), "it was cancelled"


def test_duplicates_are_taken_and_dropped_while_remembered(stage: Stage, client: ServiceBusClient) -> None:
    queue = stage.queue(
        requires_duplicate_detection=True, duplicate_detection_history_time_window=timedelta(seconds=30)
    )
    sender = client.get_queue_sender(queue)
    for text in ("first", "again"):
        sender.send_messages(ServiceBusMessage(text, message_id="same"))
    sender.send_messages([ServiceBusMessage(text, message_id="twin") for text in ("batched", "batched again")])
    sender.schedule_messages(ServiceBusMessage("scheduled", message_id="same"), stage.utc(5))
    assert stage.counts(queue) == (2, 0, 0)
    stage.clock.advance(31)
    sender.send_messages(ServiceBusMessage("much later", message_id="same"))
    assert texts(receive(client.get_queue_receiver(queue), 3)) == ["first", "batched", "much later"]


def test_a_queue_nobody_uses_goes(stage: Stage, client: ServiceBusClient) -> None:
    queue = stage.queue(auto_delete_on_idle=timedelta(minutes=5))
    sender = client.get_queue_sender(queue)
    stage.clock.advance(250)
    sender.send_messages(ServiceBusMessage("still used"))
    stage.clock.advance(250)
    assert stage.admin.get_queue(queue).status == EntityStatus.ACTIVE
    with client.get_queue_receiver(queue) as receiver:
        receiver.complete_message(receive_one(receiver))
        stage.clock.advance(301)
        assert stage.admin.get_queue(queue).status == EntityStatus.ACTIVE, "somebody waits at it"
    stage.clock.advance(302)
    with pytest.raises(ResourceNotFoundError):
        stage.admin.get_queue(queue)
