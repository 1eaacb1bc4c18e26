"""Sessions with the SDK: accepted by name or as they come, locked for one receiver, with state and in order."""

from __future__ import annotations

from datetime import timedelta

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusClient, ServiceBusMessage, ServiceBusReceiveMode
from azure.servicebus.exceptions import (
    OperationTimeoutError,
    ServiceBusError,
    SessionCannotBeLockedError,
    SessionLockLostError,
)
from tests.support.stage import Stage, receive, receive_one, texts


def _send(client: ServiceBusClient, queue: str, *pairs: tuple[str, str]) -> None:
    client.get_queue_sender(queue).send_messages(
        [ServiceBusMessage(text, session_id=session) for session, text in pairs]
    )


def test_a_session_is_one_receivers_and_in_order(stage: Stage, client: ServiceBusClient) -> None:
    queue = stage.queue(requires_session=True)
    _send(client, queue, ("a", "a1"), ("b", "b1"), ("a", "a2"), ("b", "b2"), ("a", "a3"))
    receiver = client.get_queue_receiver(queue, session_id="a")
    assert texts(receive(receiver, 3)) == ["a1", "a2", "a3"]
    with pytest.raises(SessionCannotBeLockedError):
        client.get_queue_receiver(queue, session_id="a").receive_messages(1, max_wait_time=30)

    following = client.get_queue_receiver(queue, session_id=NEXT_AVAILABLE_SESSION)
    messages = receive(following, 2)
    assert (following.session.session_id, texts(messages)) == ("b", ["b1", "b2"])
    assert {message.session_id for message in messages} == {"b"}
    with pytest.raises(OperationTimeoutError):
        client.get_queue_receiver(queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=1).receive_messages(1)


def test_closing_gives_the_session_and_its_messages_back(stage: Stage, client: ServiceBusClient) -> None:
    queue = stage.queue(requires_session=True)
    _send(client, queue, ("a", "1"), ("a", "2"))
    with client.get_queue_receiver(queue, session_id="a") as receiver:
        receiver.complete_message(receive(receiver, 2)[0])
    again = client.get_queue_receiver(queue, session_id="a")
    assert texts(receive(again, 1)) == ["2"]


def test_a_session_lock_is_renewed_and_expires(stage: Stage, client: ServiceBusClient) -> None:
    queue = stage.queue(requires_session=True, lock_duration=timedelta(seconds=60))
    _send(client, queue, ("a", "1"))
    slow = client.get_queue_receiver(queue, session_id="a")
    message = receive_one(slow)
    assert slow.session.locked_until_utc == stage.utc(60)
    stage.clock.advance(50)
    assert slow.session.renew_lock() == stage.utc(60)
    stage.clock.advance(50)
    slow.session.set_state(b"still mine")
    stage.clock.advance(11)

    taker = client.get_queue_receiver(queue, session_id="a")
    again = receive_one(taker)
    assert (str(again), again.delivery_count) == ("1", 1)
    with pytest.raises(SessionLockLostError):
        slow.complete_message(message)
    taker.complete_message(again)
    assert taker.session.get_state() == b"still mine"


def test_state_lives_with_the_session(stage: Stage, client: ServiceBusClient) -> None:
    queue = stage.queue(requires_session=True)
    with client.get_queue_receiver(queue, session_id="empty") as receiver:
        assert receiver.session.get_state() is None
        receiver.session.set_state("half done")
    with client.get_queue_receiver(queue, session_id="empty") as receiver:
        assert receiver.session.get_state() == b"half done"
        receiver.session.set_state(None)
        assert receiver.session.get_state() is None


def test_sessions_are_demanded_on_both_sides(stage: Stage, client: ServiceBusClient) -> None:
    queue, plain = stage.queue(requires_session=True), stage.queue()
    with pytest.raises(ServiceBusError, match="SessionId"):
        client.get_queue_sender(queue).send_messages(ServiceBusMessage("no session"))
    with pytest.raises(ServiceBusError):
        client.get_queue_receiver(queue).receive_messages(1, max_wait_time=30)
    with pytest.raises(ServiceBusError):
        client.get_queue_receiver(plain, session_id="a").receive_messages(1, max_wait_time=30)
    _send(client, plain, ("a", "sessions are only a property here"))
    assert receive_one(client.get_queue_receiver(plain)).session_id == "a"


def test_deferring_scheduling_peeking_and_dead_letters(stage: Stage, client: ServiceBusClient) -> None:
    queue = stage.queue(requires_session=True)
    _send(client, queue, ("a", "deferred"), ("a", "dead"), ("b", "b"))
    sender, receiver = client.get_queue_sender(queue), client.get_queue_receiver(queue, session_id="a")
    first, second = receive(receiver, 2)
    receiver.defer_message(first)
    receiver.dead_letter_message(second, reason="why not")
    (number,) = sender.schedule_messages(ServiceBusMessage("scheduled", session_id="a"), stage.utc(30))
    assert texts(receiver.peek_messages(10, sequence_number=1)) == ["deferred", "scheduled"], "of its own session"
    stage.clock.advance(30)
    later = receive_one(receiver)
    assert (str(later), later.session_id) == ("scheduled", "a")
    assert number > 0
    (back,) = receiver.receive_deferred_messages(first.sequence_number or 0)
    receiver.complete_message(back)
    dead = receive_one(client.get_queue_receiver(queue, sub_queue="deadletter"))
    assert (str(dead), dead.session_id, dead.dead_letter_reason) == ("dead", "a", "why not")


def test_receive_and_delete_in_a_session_of_a_subscription(stage: Stage, client: ServiceBusClient) -> None:
    topic = stage.topic()
    stage.admin.create_subscription(topic, "s", requires_session=True)
    sender = client.get_topic_sender(topic)
    sender.send_messages([ServiceBusMessage(f"{number}", session_id="a") for number in range(5)])
    receiver = client.get_subscription_receiver(
        topic, "s", session_id="a", receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE
    )
    assert texts(receive(receiver, 5)) == ["0", "1", "2", "3", "4"]
    assert stage.subscription_counts(topic, "s") == (0, 0)


def test_a_receiver_waits_for_a_session_to_come(stage: Stage, client: ServiceBusClient) -> None:
    queue = stage.queue(requires_session=True)
    with pytest.raises(OperationTimeoutError):
        client.get_queue_receiver(queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=1).receive_messages(1)
    stage.clock.advance(2)  # the server's time stands still: let it end that wait too
    _send(client, queue, ("late", "1"))
    receiver = client.get_queue_receiver(queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=30)
    assert texts(receive(receiver, 1)) == ["1"]
