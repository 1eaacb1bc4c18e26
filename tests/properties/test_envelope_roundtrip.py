"""Every message comes back from its backlog form as it was: bodies, properties and annotations of every type."""

from __future__ import annotations

import uuid
from decimal import Decimal
from typing import Any

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.support.messages import TEXTS, messages

from pairbus import envelope
from pairbus.amqp.codec import decode
from pairbus.amqp.message import BATCH_ENTRY_BYTES, Sections, list_fields, map_items, read_facts
from pairbus.envelope import Restored

LIMIT = 256 * 1024


def encoded(message: Any) -> bytes:
    batch = ServiceBusMessageBatch(max_size_in_bytes=2**31)
    batch.add_message(message)
    raw: Any = batch._message
    return bytes(raw[5][0])


def values(raw: bytes) -> dict[str, Any]:
    """The values of a message that must survive, section by section; bodies and properties as bytes."""
    parts = Sections.split(raw)
    properties = list_fields(parts.properties, 13)
    properties[8] = None  # the expiry follows the time to live and the moment of sending
    return {
        "header": list_fields(parts.header, 5),
        "properties": properties,
        "types": [type(value) for value in properties],
        "annotations": map_items(parts.message_annotations),
        "application": parts.application_properties,
        "body": parts.body,
        "footer": parts.footer,
    }


@given(message=messages(), destination=TEXTS.filter(bool))
@settings(max_examples=250, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
def test_out_and_back(message: Any, destination: str) -> None:
    raw = encoded(message)
    form = envelope.to_backlog(raw, destination)
    facts = read_facts(form)
    assert (facts.session_id, facts.ttl_ms, facts.scheduled_ms) == (None, None, None)
    outcome = envelope.restore(form, now_ms=0)
    assert isinstance(outcome, Restored)
    assert outcome.destination == destination
    assert values(outcome.raw) == values(raw)
    if message.header.time_to_live is None and message.annotations.get("x-opt-scheduled-enqueue-time") is None:
        assert outcome.raw == raw, "bit for bit"
    original = read_facts(raw)
    grown = envelope.growth(
        destination,
        original.session_id,
        timed=original.ttl_ms is not None,
        scheduled=original.scheduled_ms is not None,
    )
    assert len(form) - len(raw) <= grown


@given(
    short_of_limit=st.integers(0, 120),
    session=st.none() | st.just("session"),
    destination=st.sampled_from(["orders", "a/much/longer/path-of-a-topic"]),
)
@example(short_of_limit=0, session=None, destination="orders")
@example(short_of_limit=1, session=None, destination="orders")
@settings(max_examples=60, deadline=None, print_blob=True)
def test_a_message_at_the_primarys_limit_fits_the_backlog_in_one_piece_or_in_parts(
    short_of_limit: int, session: str | None, destination: str
) -> None:
    overhead = len(encoded(ServiceBusMessage(b"x" * 300, session_id=session, message_id="m"))) - 300
    raw = encoded(ServiceBusMessage(b"x" * (LIMIT - overhead - short_of_limit), session_id=session, message_id="m"))
    assert len(raw) == LIMIT - short_of_limit
    form = envelope.to_backlog(raw, destination)
    piece_limit = LIMIT - BATCH_ENTRY_BYTES
    if len(form) <= piece_limit:
        joined = form
    else:
        pieces = envelope.split(form, destination, uuid.uuid4().hex, piece_limit)
        assert len(pieces) == 2
        assert all(len(piece) <= piece_limit for piece in pieces)
        assert {envelope.inspect(piece).destination for piece in pieces} == {destination}
        joined = envelope.join([part for piece in pieces if (part := envelope.inspect(piece).part)])
    outcome = envelope.restore(joined, now_ms=0)
    assert isinstance(outcome, Restored)
    assert outcome.raw == raw


@given(content=st.binary(max_size=3000), limit=st.integers(170, 1000))
@settings(max_examples=150, deadline=None, print_blob=True)
def test_parts_keep_their_limit_and_join_to_what_was_split(content: bytes, limit: int) -> None:
    pieces = envelope.split(content, "orders", "id", limit)
    assert all(len(piece) <= limit for piece in pieces)
    parts = [part for piece in pieces if (part := envelope.inspect(piece).part)]
    if content:
        assert envelope.join(parts) == content


@given(raw=st.binary(max_size=200))
@settings(max_examples=200, deadline=None, print_blob=True)
def test_bytes_that_are_no_message_raise_a_value_error_and_nothing_else(raw: bytes) -> None:
    try:
        envelope.restore(raw, now_ms=0)
    except ValueError:
        return


def test_a_decimal_survives() -> None:
    raw = encoded(AmqpAnnotatedMessage(value_body=Decimal("1.5")))
    outcome = envelope.restore(envelope.to_backlog(raw, "orders"), now_ms=0)
    assert isinstance(outcome, Restored)
    assert outcome.raw == raw
    assert decode(Sections.split(raw).body, 3)[0] is not None
