"""The backlog form: exact aliases and types, what older clients left, and what is refused."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage

from pairbus import envelope
from pairbus.amqp.codec import encode
from pairbus.amqp.message import (
    MESSAGE_ANNOTATIONS,
    Sections,
    edited_map,
    list_fields,
    map_items,
    read_facts,
    with_application_properties,
    with_message_id,
)
from pairbus.amqp.types import Described, Float, Int, Symbol, Timestamp, UInt, ULong
from pairbus.envelope import Expired, Restored
from pairbus.errors import AliasError, DestinationMissingError, PartError

NOON = datetime.datetime(2030, 1, 1, 12, tzinfo=datetime.UTC)
NOON_MS = 1_893_499_200_000


def encoded(message: ServiceBusMessage | AmqpAnnotatedMessage) -> bytes:
    batch = ServiceBusMessageBatch(max_size_in_bytes=2**31)
    batch.add_message(message)
    raw: Any = batch._message
    return bytes(raw[5][0])


def in_backlog(**aliases: Any) -> bytes:
    """A message as an older client left it in a backlog."""
    raw = encoded(ServiceBusMessage("old", message_id="1"))
    return with_application_properties(raw, {"x-ms-path": "orders", **aliases})


def restored(raw: bytes, **details: Any) -> bytes:
    outcome = envelope.restore(raw, **{"now_ms": 0, **details})
    assert isinstance(outcome, Restored)
    return outcome.raw


def test_the_aliases_have_exactly_their_types() -> None:
    message = ServiceBusMessage(
        "body",
        session_id="s-1",
        time_to_live=datetime.timedelta(seconds=90),
        scheduled_enqueue_time_utc=NOON,
        application_properties={"mine": 1},
    )
    form = envelope.to_backlog(encoded(message), "orders")
    found = read_facts(form).application_properties
    assert [(name, type(value), value) for name, value in found.items()] == [
        ("mine", Int, 1),
        ("x-ms-path", str, "orders"),
        ("x-ms-timetolive", int, 90_000),
        ("x-ms-sessionid", str, "s-1"),
        ("x-ms-scheduledenqueuetimeutc", Timestamp, NOON_MS),
    ]
    facts = read_facts(form)
    assert (facts.session_id, facts.ttl_ms, facts.scheduled_ms) == (None, None, None)


def test_the_expiry_the_sdk_derives_from_the_time_to_live_is_cleared_with_it() -> None:
    form = envelope.to_backlog(encoded(ServiceBusMessage("x", time_to_live=datetime.timedelta(seconds=1))), "orders")
    properties = list_fields(Sections.split(form).properties, 13)
    assert properties[8] is None
    assert properties[9] is not None  # the creation time is information and stays


def test_a_message_with_nothing_to_clear_keeps_every_other_byte() -> None:
    raw = encoded(ServiceBusMessage(b"\x00\xff", application_properties={"a": True}, correlation_id="c"))
    before, after = Sections.split(raw), Sections.split(envelope.to_backlog(raw, "orders"))
    for name in ("header", "message_annotations", "properties", "body", "footer"):
        assert getattr(after, name) == getattr(before, name)
    assert restored(envelope.to_backlog(raw, "orders")) == raw


@pytest.mark.parametrize(
    ("value", "milliseconds"),
    [
        (90_000, 90_000),
        (Described(Symbol("com.microsoft:timespan"), 900_000_000), 90_000),
        (Int(90), 90_000),
        (UInt(90), 90_000),
        (ULong(90), 90_000),
        (90.5, 90_500),
        (Float(1.5), 1_500),
        ("PT1M30S", 90_000),
        ("P1DT2H", 93_600_000),
        ("PT0.5S", 500),
        ("00:01:30", 90_000),
        ("1.02:00:00.5000000", 93_600_500),
        (None, None),
    ],
)
def test_a_time_to_live_of_any_client_is_read(value: Any, milliseconds: int | None) -> None:
    assert envelope.inspect(in_backlog(**{"x-ms-timetolive": value})).time_to_live_ms == milliseconds


@pytest.mark.parametrize(
    ("value", "milliseconds"),
    [
        (Timestamp(NOON_MS), NOON_MS),
        (Described(Symbol("com.microsoft:datetime-offset"), 621_355_968_000_000_000 + NOON_MS * 10_000), NOON_MS),
        (NOON_MS // 1000, NOON_MS),
        (NOON_MS, NOON_MS),
        (NOON_MS / 1000, NOON_MS),
        (Int(1_893_499_200), NOON_MS),
        ("2030-01-01T12:00:00Z", NOON_MS),
        ("2030-01-01T13:00:00+01:00", NOON_MS),
        ("2030-01-01T12:00:00", NOON_MS),
        (None, None),
    ],
)
def test_a_scheduled_time_of_any_client_is_read(value: Any, milliseconds: int | None) -> None:
    assert envelope.inspect(in_backlog(**{"x-ms-scheduledenqueuetimeutc": value})).scheduled_ms == milliseconds


@pytest.mark.parametrize(
    ("alias", "value"),
    [
        ("x-ms-timetolive", True),
        ("x-ms-timetolive", -1),
        ("x-ms-timetolive", "soon"),
        ("x-ms-timetolive", "P"),
        ("x-ms-timetolive", b"\x01"),
        ("x-ms-timetolive", float("nan")),
        ("x-ms-timetolive", float("inf")),
        ("x-ms-timetolive", Timestamp(5)),
        ("x-ms-timetolive", Described(Symbol("com.microsoft:uri"), "x")),
        ("x-ms-scheduledenqueuetimeutc", "tomorrow"),
        ("x-ms-scheduledenqueuetimeutc", False),
        ("x-ms-scheduledenqueuetimeutc", float("nan")),
        ("x-ms-scheduledenqueuetimeutc", [1]),
        ("x-ms-sessionid", 7),
        ("x-ms-path", 7),
        ("x-ms-path", ""),
    ],
)
def test_an_alias_nobody_can_read_is_named(alias: str, value: Any) -> None:
    with pytest.raises(AliasError, match=alias):
        envelope.restore(in_backlog(**{alias: value}), now_ms=0)


def test_a_message_without_destination_is_refused() -> None:
    with pytest.raises(DestinationMissingError, match="x-ms-path"):
        envelope.restore(encoded(ServiceBusMessage("lost")), now_ms=0)


def test_what_the_brokers_added_is_taken_off_and_what_the_sender_set_stays() -> None:
    message = ServiceBusMessage("x", partition_key="pk", application_properties={"a": "b"})
    raw = encoded(message)
    form = Sections.split(envelope.to_backlog(raw, "orders"))
    delivered = b"".join(
        (
            b"\x00\x53\x70" + encode([None, None, None, None, UInt(3)]),
            b"\x00\x53\x71" + encode({Symbol("x-opt-lock-token"): b"1" * 16}),
            edited_map(
                MESSAGE_ANNOTATIONS,
                form.message_annotations,
                add=[(Symbol("x-opt-sequence-number"), 5), (Symbol("x-opt-enqueued-time"), Timestamp(1))],
            ),
            form.properties,
            form.application_properties,
            form.body,
        )
    )
    assert restored(delivered) == raw


def test_restore_gives_the_time_to_live_back_in_full() -> None:
    form = envelope.to_backlog(encoded(ServiceBusMessage("x", time_to_live=datetime.timedelta(minutes=1))), "orders")
    raw = restored(form, now_ms=NOON_MS, enqueued_ms=NOON_MS - 59_000)
    assert read_facts(raw).ttl_ms == 60_000
    assert list_fields(Sections.split(raw).properties, 13)[8] == NOON_MS + 60_000


def test_deduct_gives_only_the_time_that_is_left() -> None:
    form = envelope.to_backlog(encoded(ServiceBusMessage("x", time_to_live=datetime.timedelta(minutes=1))), "orders")
    late = {"policy": "deduct", "now_ms": NOON_MS}
    assert read_facts(restored(form, **late, enqueued_ms=NOON_MS - 59_000)).ttl_ms == 1_000
    outcome = envelope.restore(form, policy="deduct", now_ms=NOON_MS, enqueued_ms=NOON_MS - 61_000)
    assert outcome == Expired("orders", 1_000)
    outcome = envelope.restore(form, policy="deduct", now_ms=NOON_MS, enqueued_ms=NOON_MS - 60_000)
    assert outcome == Expired("orders", 0)


def test_a_scheduled_message_ages_from_its_time_not_from_its_storing() -> None:
    form = envelope.to_backlog(
        encoded(ServiceBusMessage("x", time_to_live=datetime.timedelta(minutes=1), scheduled_enqueue_time_utc=NOON)),
        "orders",
    )
    raw = restored(form, policy="deduct", now_ms=NOON_MS + 10_000, enqueued_ms=NOON_MS - 3_600_000)
    assert read_facts(raw).ttl_ms == 50_000
    assert read_facts(raw).scheduled_ms == NOON_MS


def test_aged_shrinks_the_alias_and_nothing_else() -> None:
    form = envelope.to_backlog(encoded(ServiceBusMessage("x", time_to_live=datetime.timedelta(minutes=1))), "orders")
    assert envelope.inspect(envelope.aged(form, 20_000)).time_to_live_ms == 40_000
    assert envelope.inspect(envelope.aged(form, 90_000)).time_to_live_ms == 0
    plain = envelope.to_backlog(encoded(ServiceBusMessage("x")), "orders")
    assert envelope.aged(plain, 90_000) == plain


def test_a_message_id_is_given_once() -> None:
    raw = encoded(AmqpAnnotatedMessage(data_body=b"x", properties={"subject": "s"}))
    given = with_message_id(raw, "id-1")
    assert read_facts(given).message_id == "id-1"
    assert read_facts(given).subject == "s"
    assert with_message_id(given, "id-2") == given


def test_reserved_names_are_found_as_text_and_as_bytes() -> None:
    assert envelope.reserved_names(["a", b"x-ms-path", "x-ms-sessionid"]) == ("x-ms-path", "x-ms-sessionid")
    assert envelope.reserved_names(["x-ms-other"]) == ()


def test_hundreds_of_parts_keep_their_limit() -> None:
    """Numbers above 127 and contents above 255 bytes take more room than small ones."""
    content = bytes(200_000)
    pieces = envelope.split(content, "orders", "a", 500)
    assert len(pieces) > 300
    assert max(map(len, pieces)) <= 500
    assert envelope.join([part for piece in pieces if (part := envelope.inspect(piece).part)]) == content


def test_a_trace_travels_with_the_backlog_form_and_stays_there() -> None:
    raw = encoded(ServiceBusMessage("x", message_id="m"))
    form = envelope.to_backlog(raw, "orders", trace_parent="00-ab-cd-01")
    assert envelope.inspect(form).trace_parent == "00-ab-cd-01"
    assert restored(form) == raw


def test_parts_that_do_not_fit_together_are_refused() -> None:
    form = envelope.to_backlog(encoded(ServiceBusMessage("x" * 1000)), "orders")
    parts = [envelope.inspect(raw).part for raw in envelope.split(form, "orders", "a", 600)]
    other = [envelope.inspect(raw).part for raw in envelope.split(form, "orders", "b", 600)]
    assert len(parts) > 2
    whole = [part for part in parts if part is not None]
    foreign = [part for part in other if part is not None]
    assert envelope.join(whole[::-1]) == form
    assert envelope.join([*whole, whole[0]]) == form
    with pytest.raises(PartError, match="missing"):
        envelope.join(whole[1:])
    with pytest.raises(PartError, match="different messages"):
        envelope.join([whole[0], *foreign[1:]])
    with pytest.raises(PartError, match="alone"):
        envelope.restore(envelope.split(form, "orders", "a", 600)[0], now_ms=0)
    with pytest.raises(PartError, match="does not fit"):
        envelope.split(form, "orders", "a", 100)


def test_delivery_annotations_which_the_sdk_writes_last_are_put_in_their_place() -> None:
    message = AmqpAnnotatedMessage(data_body=b"x", delivery_annotations={"x-opt-mine": "kept"})
    raw = encoded(message)
    form = envelope.to_backlog(raw, "orders")
    parts = Sections.split(form)
    assert map_items(parts.delivery_annotations) == {"x-opt-mine": "kept"}
    assert parts.body
    assert envelope.inspect(form).destination == "orders"


@pytest.mark.parametrize("count", [0, 1, 2, 126, 127, 128, 300])
def test_the_destination_stands_behind_any_number_of_the_users_properties(count: int) -> None:
    mine: dict[Any, Any] = {f"p{index}": index for index in range(count)}
    raw = encoded(ServiceBusMessage("x", application_properties=mine))
    form = envelope.to_backlog(raw, "orders")
    before, after = Sections.split(raw), Sections.split(form)
    assert map_items(after.application_properties) == {**mine, "x-ms-path": "orders"}
    assert (after.body, after.properties) == (before.body, before.properties)
    assert restored(form) == raw
