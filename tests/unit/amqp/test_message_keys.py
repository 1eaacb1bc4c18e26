"""A message has one key: what a client notes of it before it is sent is what is read from its bytes."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageProperties

from pairbus.amqp.message import message_key, read_facts
from pairbus.pairing.sdk import message_ids
from pairbus.pipeline.audit import message_id_inside


@pytest.mark.parametrize(
    ("message_id", "key"),
    [
        ("order-1", "order-1"),
        (b"order-1", "6f726465722d31"),
        (b"\x00\xff\xfe", "00fffe"),
        (uuid.UUID(int=7), "00000000-0000-0000-0000-000000000007"),
        (42, "42"),
        (None, None),
    ],
)
def test_the_key_before_and_after_encoding(message_id: Any, key: str | None) -> None:
    message = AmqpAnnotatedMessage(data_body=[b"x"], properties=AmqpMessageProperties(message_id=message_id))
    outgoing = PyamqpTransport.to_outgoing_amqp_message(message)
    assert message_ids(message) == [key]
    assert message_ids({"body": b"x", "message_id": message_id}) == [key]
    raw = bytes(encode_payload(bytearray(), outgoing))
    assert read_facts(raw).message_key == message_key(raw) == message_id_inside(raw) == key
