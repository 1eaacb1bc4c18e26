"""Messages as rows, and rows as messages."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructType

from pairbus.amqp.codec import encode
from pairbus.amqp.message import for_delivery, read_facts, read_stamps
from pairbus.amqp.types import Described, Int, Symbol, Timestamp, UInt, ULong
from pairbus.pipeline.servicebus.messages import read
from pairbus.pipeline.servicebus.rows import SCHEMA, RowBuilder, RowError, check_columns, check_schema, encode_rows

ID = UUID("12345678-1234-5678-1234-567812345678")


def peeked(raw: bytes, number: int = 7, state: int = 0) -> bytes:
    """As a namespace hands it over."""
    annotations = {
        "x-opt-sequence-number": number,
        "x-opt-enqueued-time": Timestamp(1_700_000_000_000),
        "x-opt-message-state": Int(state),
    }
    return for_delivery(raw, delivery_count=3, annotations=annotations)


def section(code: int, value: Any, name: str | None = None) -> bytes:
    return encode(Described(Symbol(name) if name else ULong(code), value))


def test_every_property_becomes_a_column() -> None:
    raw = peeked(
        section(0x70, [True, None, UInt(60_000)])
        + section(0x72, {Symbol("x-opt-partition-key"): "p", Symbol("x-opt-scheduled-enqueue-time"): Timestamp(5)})
        + section(
            0x73,
            [ID, None, "to", "subject", "reply", b"\x01\x02", Symbol("text/plain"), None, None, None, "s", None, "rs"],
        )
        + section(0x74, {"n": Int(1), "DeadLetterReason": "Why", "DeadLetterErrorDescription": "Because"})
        + section(0x75, b"one")
        + section(0x75, b"two"),
        state=1,
    )
    row = RowBuilder(SCHEMA, "orders", "contoso").build([read(raw)]).to_pylist()[0]
    properties = dict(row.pop("application_properties"))
    assert set(properties) == {"n", "DeadLetterReason", "DeadLetterErrorDescription"}
    assert row == {
        "body": b"onetwo",
        "body_type": "data",
        "message_id": str(ID),
        "session_id": "s",
        "content_type": "text/plain",
        "correlation_id": "0102",
        "subject": "subject",
        "to": "to",
        "reply_to": "reply",
        "reply_to_session_id": "rs",
        "partition_key": "p",
        "time_to_live_ms": 60_000,
        "scheduled_enqueue_time": datetime(1970, 1, 1, 0, 0, 0, 5_000, tzinfo=UTC),
        "enqueued_time": datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC),
        "sequence_number": 7,
        "delivery_count": 3,
        "state": "deferred",
        "dead_letter_reason": "Why",
        "dead_letter_error_description": "Because",
        "entity": "orders",
        "namespace": "contoso",
    }


@pytest.mark.parametrize(
    ("body", "kind", "content"),
    [
        (section(0x77, "text"), "value", b"text"),
        (section(0x77, b"raw"), "value", b"raw"),
        (section(0x77, {"a": Int(1)}), "value", encode({"a": Int(1)})),
        (section(0x76, [Int(1), "b"]), "sequence", encode([Int(1), "b"])),
    ],
)
def test_bodies_that_are_no_data(body: bytes, kind: str, content: bytes) -> None:
    message = read(peeked(body))
    assert (message.body_type, message.body) == (kind, content)


def test_sections_may_be_named_in_full() -> None:
    annotations = {Symbol("x-opt-sequence-number"): 9, Symbol("x-opt-enqueued-time"): Timestamp(4)}
    raw = (
        section(0, annotations, "amqp:message-annotations:map")
        + section(0, ["id"], "amqp:properties:list")
        + section(0, b"body", "amqp:data:binary")
    )
    seen, message = read_stamps(raw), read(raw)
    assert (seen.sequence_number, seen.enqueued_ms, seen.state) == (9, 4, "active")
    assert (message.sequence_number, message.message_id, message.body) == (9, "id", b"body")


def test_stamps_are_not_fooled_by_what_a_sender_wrote() -> None:
    lie = b"\xa3\x15x-opt-sequence-number\x81" + (99).to_bytes(8)
    raw = peeked(section(0x72, {Symbol("x-mine"): lie}) + section(0x75, lie))
    assert read_stamps(raw).sequence_number == 7


def test_a_reader_may_be_given_fewer_columns() -> None:
    few = StructType().add("sequence_number", LongType()).add("message_id", StringType())
    batch = RowBuilder(few, "q", "n").build([read(peeked(section(0x73, ["id"]) + section(0x75, b"")))])
    assert batch.to_pylist() == [{"sequence_number": 7, "message_id": "id"}]
    with pytest.raises(ValueError, match="no column 'other'"):
        check_schema(StructType().add("other", LongType()))
    with pytest.raises(ValueError, match="'body' is binary, not string"):
        check_schema(StructType().add("body", StringType()))


# --- rows as messages -------------------------------------------------------------------------------------


def rows(**columns: list[Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def test_a_row_becomes_the_message_it_describes() -> None:
    batch = rows(
        body=["hello"],
        message_id=["m"],
        session_id=["s"],
        content_type=["text/plain"],
        correlation_id=["c"],
        subject=["sub"],
        to=["t"],
        reply_to=["r"],
        reply_to_session_id=["rs"],
        partition_key=["s"],
        time_to_live_ms=[5000],
        scheduled_enqueue_time=[datetime(2030, 1, 1, tzinfo=UTC)],
    )
    (message,) = encode_rows(batch, 0, "p", "orders")
    facts = read_facts(message.raw)
    assert (facts.message_id, facts.session_id, facts.content_type, facts.correlation_id) == (
        "m",
        "s",
        "text/plain",
        "c",
    )
    assert (facts.subject, facts.to, facts.reply_to, facts.reply_to_session_id) == ("sub", "t", "r", "rs")
    assert (facts.partition_key, facts.ttl_ms, facts.scheduled_ms) == ("s", 5000, 1_893_456_000_000)
    assert message.raw.endswith(b"hello")
    assert message.entity == "orders"


def test_ids_repeat_with_the_row_and_only_with_its_content() -> None:
    def ids(*bodies: str) -> list[str]:
        return [one.message_id for one in encode_rows(rows(body=list(bodies)), 5, "query-3-0", "q")]

    assert ids("a", "b") == ids("a", "b")
    assert ids("a", "b")[0].startswith("query-3-0-5-")
    assert not set(ids("a", "b")) & set(ids("b", "a"))
    assert len(set(ids("a", "a"))) == 2


def test_the_width_of_plain_numbers_is_kept() -> None:
    kind = pa.map_(pa.string(), pa.int32())
    batch = pa.RecordBatch.from_arrays(
        [pa.array(["b"]), pa.array([[("n", 5)]], kind)], ["body", "application_properties"]
    )
    (message,) = encode_rows(batch, 0, "p", "q")
    assert type(read_facts(message.raw).application_properties["n"]) is Int


def test_the_fixed_destination_wins_and_one_is_needed() -> None:
    batch = rows(body=["a"], entity=["own"])
    assert [one.entity for one in encode_rows(batch, 0, "p", None)] == ["own"]
    assert [one.entity for one in encode_rows(batch, 0, "p", "fixed")] == ["fixed"]
    nowhere = pa.RecordBatch.from_pydict({"body": ["a", "b"], "entity": ["own", None]})
    with pytest.raises(RowError, match=r"Row 11 .*'entity' is null"):
        list(encode_rows(nowhere, 10, "p", None))


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"body": "binary", "colour": "string"}, "'colour' cannot be written"),
        ({"body": "int"}, "'body' is int; expected binary or string"),
        ({"body": "string", "time_to_live_ms": "string"}, "'time_to_live_ms' is string"),
        ({"body": "string", "application_properties": "string"}, "expected a map"),
        ({"message_id": "string"}, "no column 'body'"),
    ],
)
def test_columns_that_cannot_be_written_are_refused(columns: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_columns(columns, "q")


def test_what_was_read_can_be_written() -> None:
    check_columns({one.name: one.dataType.simpleString() for one in SCHEMA.fields}, None)


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("message_id", "x" * 129, "129 characters"),
        ("time_to_live_ms", 0, "time_to_live_ms is 0"),
        ("content_type", "Grüße", "cannot be written as Symbol"),
    ],
)
def test_a_row_that_is_no_message_is_named(column: str, value: Any, words: str) -> None:
    with pytest.raises(RowError, match=rf"Row 3 .*({words})"):
        list(encode_rows(rows(**{"body": ["a"], column: [value]}), 3, "p", "q"))
