"""What the connector makes of numbers, offsets, options, variants and filters, without any connection."""

from __future__ import annotations

import asyncio
import itertools
import random
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, In, IsNotNull, LessThanOrEqual, Not, StringContains
from pyspark.sql.types import VariantVal

from pairbus.amqp.message import Stamps
from pairbus.amqp.types import (
    Byte,
    Char,
    Decimal128,
    Float,
    Int,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
    encode_decimal,
)
from pairbus.pipeline.servicebus.batch import first_and_last, slices, split_filters
from pairbus.pipeline.servicebus.messages import METADATA, VariantError, from_variant, to_variant
from pairbus.pipeline.servicebus.offsets import Offset, Position, Runs
from pairbus.pipeline.servicebus.options import Access, read_options, write_options

NUMBERS = st.sets(st.integers(0, 60))
SECRET = "Endpoint=sb://contoso/;SharedAccessKeyName=n;SharedAccessKey=very-secret"


# --- runs -------------------------------------------------------------------------------------------------


@settings(deadline=None, print_blob=True)
@given(NUMBERS, NUMBERS, st.integers(1, 9))
def test_runs_are_sets_of_numbers(some: set[int], others: set[int], size: int) -> None:
    runs = Runs.of(some)
    assert list(runs) == sorted(some)
    assert len(runs) == len(some)
    assert {number for number in range(62) if number in runs} == some
    assert Runs.parse(str(runs)) == runs
    assert set(runs.union([Runs.of(others)])) == some | others
    assert set(runs.without(others)) == some - others
    parts = runs.split(size)
    assert [number for part in parts for number in part] == sorted(some)
    assert all(len(part) == size for part in parts[:-1])


@pytest.mark.parametrize("text", ["1-", "a", "5-1", "1-5,6", "7,3"])
def test_runs_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"sequence numbers"):
        Runs.parse(text)


@settings(deadline=None, print_blob=True)
@given(st.sets(st.integers(0, 1 << 40), max_size=40))
def test_first_and_last_are_found_with_few_looks(numbers: set[int]) -> None:
    looks = 0

    async def next_from(number: int) -> int | None:
        nonlocal looks
        looks += 1
        return min((one for one in numbers if one >= number), default=None)

    found = asyncio.run(first_and_last(next_from))
    assert found == ((min(numbers), max(numbers)) if numbers else None)
    assert looks <= 2 * 64


@settings(deadline=None, print_blob=True)
@given(st.integers(0, 1 << 62), st.integers(0, 10_000), st.integers(1, 500), st.integers(1, 50))
def test_slices_cover_a_range_exactly(first: int, span: int, size: int, most: int) -> None:
    cut = slices(first, first + span, size, most)
    assert len(cut) <= most
    assert cut[0][0] == first
    assert cut[-1][1] == first + span
    assert all(one[1] + 1 == two[0] for one, two in itertools.pairwise(cut))


# --- offsets ----------------------------------------------------------------------------------------------


def test_an_offset_survives_its_text_and_differs_once_it_is_settled() -> None:
    parts = (Runs.of(range(1, 11)), Runs.of([12, 13, 20]))
    offset = Offset({"orders": Position(21, 1_700_000_000_000, parts, Runs.of([3]), 2), "b": Position()})
    assert Offset.from_json(offset.to_json()) == offset
    assert offset.to_json()["entities"]["orders"]["parts"] == ["1-10", "12-13,20"]
    assert len(offset.entities["orders"].runs) == 13
    settled = Offset({"orders": Position(21, 1_700_000_000_000, (), Runs.of([3]), 2), "b": Position()})
    assert settled.to_json() != offset.to_json()


def test_an_offset_of_another_version_is_refused() -> None:
    with pytest.raises(ValueError, match="version 7"):
        Offset.from_json({"v": 7, "entities": {}})


# --- options ----------------------------------------------------------------------------------------------


def test_options_are_case_insensitive_and_have_defaults() -> None:
    options = read_options({"CONNECTIONSTRING": SECRET, "Queue": "orders, invoices"}, "stream")
    assert options.entities.named == ("orders", "invoices")
    assert options.max_messages == 100_000
    assert options.fail_on_data_loss
    assert options.access.connection_string() == SECRET


def test_the_connection_string_is_in_no_repr() -> None:
    options = read_options({"connectionString": SECRET, "queue": "orders"}, "batch")
    assert "very-secret" not in repr(options)
    assert "very-secret" not in repr(write_options({"connectionString": SECRET}))


def test_the_environment_is_read_where_the_connection_is_made() -> None:
    access = read_options({"connectionStringEnv": "BUS", "queue": "q"}, "batch").access
    assert access.connection_string({"BUS": SECRET}) == SECRET
    with pytest.raises(ValueError, match=r"'BUS'.*not set.*spark\.executorEnv\.BUS"):
        access.connection_string({})
    assert access == Access("BUS")


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({"queue": "q", "subQueue": "deadLetter"}, "q/$DeadLetterQueue"),
        ({"queue": "q", "subQueue": "transfer-dead-letter"}, "q/$Transfer/$DeadLetterQueue"),
        ({"topic": "t", "subscription": "s"}, "t/Subscriptions/s"),
        ({"topic": "t", "subscription": "s", "subQueue": "deadletter"}, "t/Subscriptions/s/$DeadLetterQueue"),
    ],
)
def test_paths(options: dict[str, str], path: str) -> None:
    assert read_options({"connectionString": SECRET, **options}, "batch").entities.named == (path,)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"queue": "q"}, "Neither of the options connectionString"),
        ({"connectionString": SECRET, "connectionStringEnv": "X", "queue": "q"}, "Both"),
        ({"connectionString": SECRET}, "say what to read"),
        ({"connectionString": SECRET, "queue": "q", "queuePattern": "q.*"}, "say what to read"),
        ({"connectionString": SECRET, "topic": "t"}, "topic and subscription together"),
        ({"connectionString": SECRET, "queue": "a,A"}, "'A' twice"),
        ({"connectionString": SECRET, "queuePattern": "("}, "not a regular expression"),
        ({"connectionString": SECRET, "queue": "q", "subQueue": "other"}, "subQueue is 'other'"),
        ({"connectionString": SECRET, "queue": "q", "messagesPerPartition": "0"}, "messagesPerPartition is '0'"),
        ({"connectionString": SECRET, "queue": "q", "failOnDataLoss": "maybe"}, "failOnDataLoss is 'maybe'"),
        ({"connectionString": SECRET, "queue": "q", "maxMesages": "1"}, "Unknown option 'maxMesages'"),
    ],
)
def test_wrong_options_are_refused_in_one_sentence(options: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words.replace("(", r"\(")) as refusal:
        read_options(options, "stream")
    assert "very-secret" not in str(refusal.value)


def test_options_of_streams_are_refused_for_batches() -> None:
    with pytest.raises(ValueError, match="maxMessagesPerTrigger is for streams"):
        read_options({"connectionString": SECRET, "queue": "q", "maxMessagesPerTrigger": "5"}, "batch")


def test_a_write_has_one_fixed_destination() -> None:
    assert write_options({"connectionString": SECRET, "topic": "t"}).destination == "t"
    with pytest.raises(ValueError, match="both set"):
        write_options({"connectionString": SECRET, "topic": "t", "queue": "q"})


# --- variants ---------------------------------------------------------------------------------------------

VALUES: list[tuple[Any, Any, Any]] = [
    (None, None, None),
    (True, True, True),
    (False, False, False),
    (Byte(-5), -5, Byte(-5)),
    (Short(-300), -300, Short(-300)),
    (Int(70_000), 70_000, Int(70_000)),
    (-(1 << 60), -(1 << 60), -(1 << 60)),
    (UByte(200), 200, Short(200)),
    (UShort(65_535), 65_535, Int(65_535)),
    (UInt(1 << 31), 1 << 31, 1 << 31),
    (ULong(7), 7, 7),
    (ULong((1 << 64) - 1), Decimal((1 << 64) - 1), ULong((1 << 64) - 1)),
    (Float(1.5), 1.5, Float(1.5)),
    (2.5, 2.5, 2.5),
    (encode_decimal(Decimal("12.345")), Decimal("12.345"), encode_decimal(Decimal("12.345"))),
    (encode_decimal(Decimal(10) ** 30), Decimal(10) ** 30, encode_decimal(Decimal(10) ** 30)),
    (
        Timestamp(1_700_000_000_123),
        datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC),
        Timestamp(1_700_000_000_123),
    ),
    ("Grüße", "Grüße", "Grüße"),
    ("x" * 100, "x" * 100, "x" * 100),
    (Symbol("sym"), "sym", "sym"),
    (Char("ß"), "ß", "ß"),
    (b"\x00\xff", b"\x00\xff", b"\x00\xff"),
]


@pytest.mark.parametrize(("value", "python", "again"), VALUES)
def test_variants_keep_values_and_types(value: Any, python: Any, again: Any) -> None:
    raw = to_variant(value)
    assert VariantVal(raw, METADATA).toPython() == python
    back = from_variant(raw)
    assert back == again
    assert type(back) is type(again)


def test_a_uuid_is_a_uuid() -> None:
    value = UUID("12345678-1234-5678-1234-567812345678")
    assert from_variant(to_variant(value)) == value


def test_decimals_without_a_number_travel_as_bytes() -> None:
    infinite = Decimal128(bytes.fromhex("78000000000000000000000000000000"))
    assert from_variant(to_variant(infinite)) == bytes(infinite)


@pytest.mark.parametrize("raw", [b"", b"\x18\x00", b"\x3c\x09\x00\x00\x00a"])
def test_cut_variants_are_refused(raw: bytes) -> None:
    with pytest.raises(VariantError, match="truncated"):
        from_variant(raw)


def test_objects_are_no_application_properties() -> None:
    with pytest.raises(VariantError, match="an object"):
        from_variant(b"\x02\x00\x00")


# --- filters ----------------------------------------------------------------------------------------------


def test_filters_narrow_the_range_and_the_rest_is_left_to_spark() -> None:
    at = datetime(2024, 1, 1, tzinfo=UTC)
    left: list[Filter] = [StringContains(("message_id",), "x"), EqualTo(("subject",), "s")]
    taken: list[Filter] = [
        IsNotNull(("sequence_number",)),
        GreaterThan(("sequence_number",), 10),
        LessThanOrEqual(("sequence_number",), 20),
        GreaterThan(("enqueued_time",), at),
        Not(In(("state",), ("scheduled", "deferred"))),
        EqualTo(("entity",), "orders"),
    ]
    random.Random(1).shuffle(taken)
    wanted, rest = split_filters([left[0], *taken, left[1]])
    assert list(rest) == left
    assert wanted.bounds() == (11, 20)
    assert wanted.accepts_entity("orders")
    assert not wanted.accepts_entity("invoices")
    later = int(at.timestamp() * 1000) + 1
    assert wanted.accepts(Stamps(15, later))
    assert not wanted.accepts(Stamps(15, later, state="deferred"))
    assert not wanted.accepts(Stamps(15, later - 1))
    assert not wanted.accepts(Stamps(21, later))
