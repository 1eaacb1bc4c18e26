"""Splitting and editing encoded messages: nothing is lost, and what was not edited is unchanged."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from hypothesis import given, settings
from hypothesis import strategies as st
from proton import Message, symbol, timestamp, ulong

from pairbus.amqp.codec import encode
from pairbus.amqp.message import (
    Facts,
    Sections,
    for_delivery,
    read_facts,
    split_batch,
    with_application_properties,
)
from pairbus.amqp.types import AmqpDecodeError, Symbol, Timestamp, UInt, ULong

BOUNDED = settings(max_examples=100, deadline=None, print_blob=True)

ids = st.one_of(st.none(), st.text(min_size=1, max_size=40), st.uuids(), st.integers(0, 2**64 - 1).map(ulong))
names = st.text(min_size=1, max_size=20)
plain = st.one_of(
    st.text(max_size=50), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.binary(max_size=50), st.uuids()
)


@st.composite
def proton_messages(draw: st.DrawFn) -> Message:
    message = Message(
        body=draw(st.one_of(st.binary(max_size=600), st.text(max_size=50), st.lists(st.integers(0, 9)))),
        id=draw(ids),
        correlation_id=draw(ids),
        properties=draw(st.dictionaries(names, plain, max_size=5)) or None,
        subject=draw(st.one_of(st.none(), st.text(min_size=1, max_size=20).filter(lambda s: "\0" not in s))),
        ttl=draw(st.integers(0, 2**32 - 1)) / 1000,
        inferred=draw(st.booleans()),
    )
    if draw(st.booleans()):
        message.annotations = {
            symbol("x-opt-partition-key"): "p",
            symbol("x-opt-scheduled-enqueue-time"): timestamp(5),
        }
    if draw(st.booleans()):
        message.instructions = {symbol("hop"): 1}
    group = draw(st.one_of(st.none(), st.just("a session")))
    if group:
        message.group_id = group
    return message


def encoded(message: Message) -> bytes:
    return bytes(message.encode())


@BOUNDED
@given(proton_messages())
def test_split_and_join_are_inverse(message: Message) -> None:
    raw = encoded(message)
    assert Sections.split(raw).join() == raw


@BOUNDED
@given(proton_messages())
def test_facts_are_what_was_sent(message: Message) -> None:
    facts = read_facts(encoded(message))
    assert facts.message_id == message.id
    assert facts.correlation_id == message.correlation_id
    assert facts.subject == message.subject
    assert facts.session_id == (message.group_id or None)
    assert facts.application_properties == (message.properties or {})
    assert (facts.ttl_ms or 0) == round(message.ttl * 1000)
    assert facts.partition_key == ("p" if message.annotations else None)
    assert facts.scheduled_ms == (5 if message.annotations else None)
    assert facts.body_size == len(Sections.split(encoded(message)).body)


@BOUNDED
@given(proton_messages(), st.integers(0, 2**31))
def test_delivery_edits_two_sections_only(message: Message, count: int) -> None:
    raw = encoded(message)
    out = for_delivery(
        raw,
        delivery_count=count,
        annotations={
            "x-opt-sequence-number": 7,
            "x-opt-locked-until": Timestamp(99),
            "x-opt-partition-key": "q",
        },
    )
    before, after = Sections.split(raw), Sections.split(out)
    assert (after.properties, after.application_properties, after.body) == (
        before.properties,
        before.application_properties,
        before.body,
    )
    assert after.delivery_annotations  # an empty map when there were none
    back = Message()
    back.decode(out)
    assert back.delivery_count == count
    assert back.ttl == message.ttl
    assert back.annotations is not None
    assert back.annotations["x-opt-sequence-number"] == 7
    assert back.annotations["x-opt-partition-key"] == "q"
    assert ("x-opt-scheduled-enqueue-time" in back.annotations) == bool(message.annotations)


@BOUNDED
@given(proton_messages(), st.dictionaries(names, plain, max_size=3), st.lists(names, max_size=3))
def test_application_properties_are_set_and_removed(
    message: Message, updates: dict[str, Any], remove: list[str]
) -> None:
    raw = encoded(message)
    had: dict[str, Any] = message.properties or {}
    gone = [*remove, *list(had)[:1]]
    out = with_application_properties(raw, updates, gone)
    expected = {key: value for key, value in had.items() if key not in gone} | updates
    assert read_facts(out).application_properties == expected
    before, after = Sections.split(raw), Sections.split(out)
    assert (after.header, after.properties, after.body) == (before.header, before.properties, before.body)


@BOUNDED
@given(st.binary(max_size=120))
def test_noise_is_refused_or_read(noise: bytes) -> None:
    for read in (Sections.split, read_facts, split_batch):
        try:
            read(b"\x00\x53" + noise)
        except AmqpDecodeError:
            continue


def test_a_batch_of_the_sdk_is_split_into_its_messages() -> None:
    batch = ServiceBusMessageBatch()
    for number in range(3):
        batch.add_message(ServiceBusMessage(b"body %d" % number, message_id=f"id-{number}", session_id="s"))
    from azure.servicebus._pyamqp._encode import encode_payload

    raw = bytes(encode_payload(bytearray(), batch._message))
    facts = [read_facts(one) for one in split_batch(raw)]
    assert [fact.message_id for fact in facts] == ["id-0", "id-1", "id-2"]
    assert {fact.session_id for fact in facts} == {"s"}


def test_removing_an_annotation() -> None:
    raw = b"\x00\x53\x72" + encode({Symbol("x-opt-a"): 1, Symbol("x-opt-b"): 2}) + b"\x00\x53\x75\xa0\x01x"
    out = for_delivery(raw, delivery_count=0, annotations={"x-opt-a": None})
    assert Sections.split(out).message_annotations == b"\x00\x53\x72" + encode({Symbol("x-opt-b"): 2})


def test_the_lock_token_joins_the_delivery_annotations() -> None:
    message = Message(body="x", instructions={symbol("hop"): 1})
    token = bytes(range(16))
    back = Message()
    back.decode(for_delivery(encoded(message), delivery_count=0, annotations={}, lock_token=token))
    assert back.instructions == {"hop": 1, "x-opt-lock-token": UUID(bytes_le=token)}
    back.decode(for_delivery(encoded(Message(body="x")), delivery_count=0, annotations={}, lock_token=token))
    assert back.instructions == {"x-opt-lock-token": UUID(bytes_le=token)}
    back.decode(for_delivery(encoded(message), delivery_count=0, annotations={}))
    assert back.instructions == {"hop": 1}


def test_binary_keys_are_read_and_replaced() -> None:
    raw = b"\x00\x53\x72" + encode({b"x-opt-partition-key": "p", b"other": 1}) + b"\x00\x53\x75\xa0\x01x"
    assert read_facts(raw).partition_key == "p"
    out = for_delivery(raw, delivery_count=0, annotations={"x-opt-partition-key": "q"})
    assert Sections.split(out).message_annotations == b"\x00\x53\x72" + encode(
        {b"other": 1, Symbol("x-opt-partition-key"): "q"}
    )


def test_wide_and_named_descriptors_are_understood() -> None:
    header = b"\x00" + encode(Symbol("amqp:header:list")) + encode([True, None, UInt(5000)])
    body = b"\x00\x80\x00\x00\x00\x00\x00\x00\x00\x75\xa0\x02hi"
    assert Sections.split(header + body) == Sections(header=header, body=body)
    assert read_facts(header + body) == Facts(ttl_ms=5000, body_size=len(body))


@pytest.mark.parametrize(
    "raw",
    [
        b"\x00\x53\x75\xa0\x00\x00\x53\x70\x45",  # header after the body
        b"\x00\x53\x70\x45\x00\x53\x70\x45",  # two headers
        b"\x00\x53\x75\xa0\x00\x00\x53\x77\x40",  # two kinds of body
        b"\x00\x53\x79\x40",  # no such section
        b"hello",
        b"\x00\x53\x75\xb0\xff\xff\xff\xff",  # longer than the message
    ],
)
def test_malformed_messages_are_refused(raw: bytes) -> None:
    with pytest.raises(AmqpDecodeError):
        Sections.split(raw)
    with pytest.raises(AmqpDecodeError):
        read_facts(raw)


@pytest.mark.parametrize(
    ("message_id", "key"),
    [("a", "a"), (UUID(int=1), str(UUID(int=1))), (ULong(7), "7"), (b"\x01\xff", "01ff"), (None, None)],
)
def test_message_key_is_text(message_id: Any, key: str | None) -> None:
    raw = b"\x00\x53\x73" + encode([message_id]) + b"\x00\x53\x75\xa0\x00"
    assert read_facts(raw).message_key == key
