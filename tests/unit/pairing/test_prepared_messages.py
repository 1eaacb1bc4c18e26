"""What is about to be sent has an id that no second attempt changes, and no name the backlog needs for itself."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage

from pairbus import ReservedPropertyError
from pairbus.amqp.message import read_facts
from pairbus.envelope import PATH
from pairbus.pairing import sdk

Properties = dict[Any, Any]
NOWHERE = "Endpoint=sb://nowhere.invalid/;SharedAccessKeyName=name;SharedAccessKey=key"


def join_batch(properties: Properties) -> ServiceBusMessageBatch:
    """As an application makes it with a sender of the SDK."""
    batch = ServiceBusMessageBatch(max_size_in_bytes=100_000)
    for body in ("one", "two"):
        batch.add_message(ServiceBusMessage(body, application_properties=dict(properties)))
    return batch


SHAPES: dict[str, Callable[[Properties], Any]] = {
    "message": lambda properties: ServiceBusMessage("one", application_properties=properties),
    "annotated": lambda properties: AmqpAnnotatedMessage(data_body=b"one", application_properties=properties),
    "mapping": lambda properties: {"body": "one", "application_properties": properties},
    "list": lambda properties: [
        ServiceBusMessage("one"),
        AmqpAnnotatedMessage(data_body=b"two"),
        {"body": "three", "application_properties": properties},
    ],
    "generator": lambda properties: (
        ServiceBusMessage(body, application_properties=dict(properties)) for body in ("one", "two")
    ),
    "batch": join_batch,
}


def ids(outgoing: sdk.Outgoing) -> list[object]:
    """As they stand in what goes over the wire. Nothing is connected: the sender is only asked how it encodes."""
    with (
        ServiceBusClient.from_connection_string(NOWHERE) as client,
        closing(client.get_queue_sender("orders")) as sender,
    ):
        return [read_facts(raw).message_id for raw in sdk.encode(outgoing, 100_000, sender)]


@pytest.mark.parametrize("shape", SHAPES)
def test_every_message_has_an_id_of_its_own_that_stays(shape: str) -> None:
    outgoing = sdk.prepare(SHAPES[shape]({"mine": 1}))
    first = ids(outgoing)
    assert all(first)
    assert len(set(first)) == len(first) == sdk.count_of(outgoing)
    assert ids(outgoing) == first
    assert ids(sdk.prepare(outgoing)) == first


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", [PATH, PATH.encode()])
def test_a_name_of_the_backlog_is_refused_wherever_it_stands(shape: str, name: str | bytes) -> None:
    with pytest.raises(ReservedPropertyError):
        sdk.prepare(SHAPES[shape]({name: "elsewhere"}))


def test_an_id_of_the_applications_is_kept() -> None:
    outgoing = sdk.prepare([ServiceBusMessage("one", message_id="mine"), {"body": "two", "message_id": "yours"}])
    assert ids(outgoing) == ["mine", "yours"]
