"""Sending to a queue with the SDK: singles, batches, messages over many frames, everything a message can carry."""

from __future__ import annotations

import json
import sqlite3
import uuid
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageBodyType, AmqpMessageHeader, AmqpMessageProperties
from azure.servicebus.exceptions import MessageSizeExceededError, ServiceBusError, ServiceBusQuotaExceededError
from tests.support.sdk import Face, sdk_client
from tests.support.stage import Stage, receive, receive_one, texts

from pairbus.testing import EmbeddedNamespace


def test_singles_lists_and_batches_arrive_in_order(stage: Stage, client: ServiceBusClient) -> None:
    queue = stage.queue()
    sender, receiver = client.get_queue_sender(queue), client.get_queue_receiver(queue)
    sender.send_messages(ServiceBusMessage("one"))
    sender.send_messages([ServiceBusMessage("two"), ServiceBusMessage("three")])
    batch = sender.create_message_batch()
    for number in range(250):
        batch.add_message(ServiceBusMessage(f"batch {number}"))
    sender.send_messages(batch)

    messages = receive(receiver, 253)

    assert texts(messages) == ["one", "two", "three", *(f"batch {number}" for number in range(250))]
    assert [message.sequence_number for message in messages] == list(range(1, 254))
    for message in messages:
        receiver.complete_message(message)
    assert stage.counts(queue) == (0, 0, 0)


def test_all_a_message_can_carry_comes_back(stage: Stage, client: ServiceBusClient) -> None:
    queue = stage.queue()
    properties: dict[str | bytes, Any] = {
        "text": "é",
        "number": 7,
        "part": 0.25,
        "yes": True,
        "id": uuid.uuid4(),
        "none": None,
    }
    sent = ServiceBusMessage(
        b"\x00\xffbody",
        application_properties=properties,
        message_id="id-1",
        correlation_id="c-1",
        content_type="application/json",
        subject="label",
        to="elsewhere",
        reply_to="back",
        reply_to_session_id="back-session",
        session_id="s-1",
        partition_key="s-1",
        time_to_live=timedelta(hours=1),
    )
    client.get_queue_sender(queue).send_messages(sent)

    got = receive_one(client.get_queue_receiver(queue))

    assert b"".join(got.body) == b"\x00\xffbody"
    assert {_text(key): _text(value) for key, value in (got.application_properties or {}).items()} == properties
    for name in ("message_id", "correlation_id", "content_type", "subject", "to", "reply_to", "reply_to_session_id"):
        assert getattr(got, name) == getattr(sent, name), name
    assert (got.session_id, got.partition_key, got.time_to_live) == ("s-1", "s-1", timedelta(hours=1))
    assert got.enqueued_time_utc is not None and got.enqueued_time_utc.timestamp() * 1000 == stage.clock.now_ms()
    assert got.expires_at_utc == got.enqueued_time_utc + timedelta(hours=1)
    assert got.delivery_count == 0


def test_bodies_of_every_kind_and_headers_survive(stage: Stage, client: ServiceBusClient) -> None:
    queue = stage.queue()
    sender, receiver = client.get_queue_sender(queue), client.get_queue_receiver(queue)
    header = AmqpMessageHeader(priority=7, durable=True)
    properties = AmqpMessageProperties(message_id=b"typed")
    sender.send_messages(AmqpAnnotatedMessage(data_body=[b"a", b"b"], header=header, properties=properties))
    sender.send_messages(AmqpAnnotatedMessage(value_body={b"key": [1, None, 2.5]}))
    sender.send_messages(
        [AmqpAnnotatedMessage(sequence_body=[[1, b"x"], [2]]), AmqpAnnotatedMessage(value_body=None, footer={"f": 1})]
    )

    data, value, sequence, nothing = (message.raw_amqp_message for message in receive(receiver, 4))

    assert (data.body_type, list(data.body)) == (AmqpMessageBodyType.DATA, [b"a", b"b"])
    assert data.header is not None and (data.header.priority, data.header.durable) == (7, True)
    assert data.properties is not None and data.properties.message_id == b"typed"
    assert (value.body_type, value.body) == (AmqpMessageBodyType.VALUE, {b"key": [1, None, 2.5]})
    assert (sequence.body_type, list(sequence.body)) == (AmqpMessageBodyType.SEQUENCE, [[1, b"x"], [2]])
    assert (nothing.body, {_text(key): value for key, value in (nothing.footer or {}).items()}) == (None, {"f": 1})


def test_messages_over_many_frames_and_the_limit(stage: Stage, client: ServiceBusClient) -> None:
    queue = stage.queue()
    sender, receiver = client.get_queue_sender(queue), client.get_queue_receiver(queue)
    body = bytes(range(256)) * 1000
    sender.send_messages(ServiceBusMessage(body))
    assert b"".join(receive_one(receiver).body) == body

    with pytest.raises(MessageSizeExceededError):
        sender.send_messages(ServiceBusMessage(b"x" * 262_144))
    with pytest.raises(ServiceBusError, match="properties"):
        sender.send_messages(ServiceBusMessage("", application_properties={"p": "x" * 66_000}))
    with pytest.raises(ServiceBusError, match="129"):
        # The SDK's own message class would refuse the id; other clients send it.
        sender.send_messages(AmqpAnnotatedMessage(data_body=b"", properties={"message_id": "x" * 129}))

    sender.send_messages(ServiceBusMessage("still open"))
    assert str(receive_one(receiver)) == "still open"


def test_a_full_queue_refuses_until_there_is_room(face: Face, tmp_path: Path) -> None:
    with EmbeddedNamespace(data=tmp_path) as namespace:
        with namespace.admin() as admin:
            admin.create_queue("small")
        namespace.stop()
        _shrink_queues_to_a_megabyte(tmp_path)
        namespace.start()
        with sdk_client(namespace, face, retry_total=0) as client:
            sender, receiver = client.get_queue_sender("small"), client.get_queue_receiver("small")
            for _ in range(4):
                sender.send_messages(ServiceBusMessage(b"x" * 250_000))
            with pytest.raises(ServiceBusQuotaExceededError):
                sender.send_messages(ServiceBusMessage(b"x" * 250_000))
            receiver.complete_message(receive_one(receiver))
            sender.send_messages(ServiceBusMessage(b"x" * 250_000))


def _shrink_queues_to_a_megabyte(folder: Path) -> None:
    """The service sells queues from a gigabyte on: too long to fill in a test."""
    with closing(sqlite3.connect(folder / "namespace.db")) as database, database:
        for identity, text in database.execute("SELECT id, description FROM entity").fetchall():
            smaller = json.dumps({**json.loads(text), "max_size_in_megabytes": 1})
            database.execute("UPDATE entity SET description = ? WHERE id = ?", (smaller, identity))


def test_names_with_slashes(stage: Stage, face: Face) -> None:
    name = f"contoso/x-servicebus-transfer/{face}"
    stage.admin.create_queue(name)
    with sdk_client(stage.namespace, face) as client:
        client.get_queue_sender(name.upper()).send_messages(ServiceBusMessage("found"))
        receiver = client.get_queue_receiver(name)
        receiver.dead_letter_message(receive_one(receiver))
        assert str(receive_one(client.get_queue_receiver(name, sub_queue="deadletter"))) == "found"


def _text(value: object) -> object:
    return value.decode() if isinstance(value, bytes) else value


def test_a_message_without_an_id_is_given_one(stage: Stage, client: ServiceBusClient) -> None:
    queue = stage.queue()
    sent = AmqpAnnotatedMessage(data_body=b"x", properties=AmqpMessageProperties(subject=b"kept"))
    client.get_queue_sender(queue).send_messages(sent)
    receiver = client.get_queue_receiver(queue)
    first = receive_one(receiver)
    receiver.abandon_message(first)
    again = receive_one(receiver)
    assert first.message_id and first.message_id == again.message_id
    assert again.subject == "kept"
