"""SQL actions: what they set, what they remove, and what types are left behind."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from uuid import UUID

import pytest

from pairbus.amqp.codec import decode, encode
from pairbus.amqp.message import Facts
from pairbus.amqp.types import (
    Byte,
    Decimal128,
    Described,
    Float,
    Int,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
    decode_decimal,
    encode_decimal,
)
from pairbus.embedded.entities.descriptions import PropertyValue, SqlAction, SqlFilter
from pairbus.embedded.entities.filters import EvaluationError, MessageProperties, compile_action, compile_filter

AN_ID = UUID("6f1c2b1e-8f0a-4f0e-9d3b-0c1d2e3f4a5b")


def changed(
    expression: str,
    application: dict[str, object] | None = None,
    parameters: dict[str, PropertyValue] | None = None,
) -> MessageProperties:
    view = MessageProperties({"Label": "Order", "MessageId": "m-1"}, lambda: application or {})
    compile_action(SqlAction(expression, parameters or {}), new_id=lambda: AN_ID)(view)
    return view


def test_the_documented_example() -> None:
    view = changed(
        "SET quantity = quantity / 2; REMOVE priority;SET sys.CorrelationId = 'low';",
        {"color": "red", "quantity": Int(10), "priority": "high"},
    )
    assert view.updates == {"quantity": 5}
    assert type(view.updates["quantity"]) is Int
    assert view.removed == {"priority"}
    assert view.system_updates == {"CorrelationId": "low"}


def test_semicolons_are_optional_and_keywords_have_any_case() -> None:
    assert changed("set a = 1 Set b = a + 1 REMOVE c").updates == {"a": 1, "b": 2}


def test_statements_see_what_came_before() -> None:
    view = changed("SET a = 'x'; SET b = a + 'y'; REMOVE a; SET c = a; SET sys.Label = b; SET d = sys.Label")
    assert view.updates == {"b": "xy", "c": None, "d": "xy"}
    assert view.system_updates == {"Label": "xy"}
    assert view.removed == {"a"}


def test_names_keep_the_case_the_message_has() -> None:
    view = changed("SET COLOR = 'blue'; REMOVE SIZE; SET New = 1", {"Color": "red", "Size": 3})
    assert view.updates == {"Color": "blue", "New": 1}
    assert view.removed == {"Size"}


def test_removing_takes_every_spelling_and_setting_again_brings_one_back() -> None:
    view = changed("REMOVE color; SET Color = 'blue'", {"Color": "red", "color": "green"})
    assert view.updates == {"Color": "blue"}
    assert view.removed == {"color"}
    assert compile_filter(SqlFilter("color = 'blue'"))(view)


def test_removing_what_is_not_there_changes_nothing() -> None:
    view = changed("REMOVE color")
    assert (view.updates, view.removed) == ({}, set())


def test_unknown_sets_null() -> None:
    assert changed("SET a = missing; SET b = missing + 1").updates == {"a": None, "b": None}
    assert changed("SET sys.Label = missing").system_updates == {"Label": None}
    assert changed("REMOVE sys.Label").system_updates == {"Label": None}


@pytest.mark.parametrize(
    ("existing", "expression", "expected"),
    [
        (Byte(1), "127", Byte(127)),
        (Byte(1), "128", 128),
        (UByte(1), "255", UByte(255)),
        (UByte(1), "-1", -1),
        (Short(1), "-32768", Short(-32768)),
        (UShort(1), "65535", UShort(65535)),
        (Int(1), "2147483647", Int(2147483647)),
        (Int(1), "2147483648", 2147483648),
        (UInt(1), "4294967295", UInt(4294967295)),
        (ULong(2**63), "a + 1", ULong(2**63 + 1)),
        (1, "2", 2),
        (1.5, "2", 2.0),
        (1.5, "9007199254740993", 9007199254740993),
        (Float(1.5), "2", Float(2.0)),
        (Float(1.5), "16777217", 16777217),
        (Float(1.5), "0.25", Float(0.25)),
        (Float(1.5), "0.1", 0.1),
        (Float(1.5), "1E300", 1e300),
        (Int(1), "0.5", 0.5),
        ("text", "1", 1),
        (1, "'text'", "text"),
        (True, "1", 1),
        (Int(1), "TRUE", True),
        (None, "1", 1),
        (Timestamp(5), "1", 1),
    ],
)
def test_set_keeps_the_type_when_the_value_fits(existing: object, expression: str, expected: object) -> None:
    value = changed(f"SET a = {expression}", {"a": existing}).updates["a"]
    assert value == expected
    assert type(value) is type(expected)


def test_an_unsigned_result_is_not_forced_into_a_long() -> None:
    value = changed("SET b = a - 1", {"a": ULong(2**64 - 1)}).updates["b"]
    assert value == 2**64 - 2
    assert type(value) is ULong


def test_a_copied_property_keeps_its_type_whatever_it_is() -> None:
    held: dict[str, object] = {"list": [1, Int(2)], "int": Int(3), "price": encode_decimal(Decimal("2.08"))}
    view = changed("SET a = list; SET b = int; SET c = price", held)
    assert view.updates == {"a": [1, Int(2)], "b": 3, "c": held["price"]}
    assert type(view.updates["b"]) is Int


def test_every_stored_value_has_an_encoding() -> None:
    view = changed(
        "SET a = later - when; SET b = price * 2; SET c = newid(); SET d = @noon; SET e = @span; SET f = when + @span",
        {"when": Timestamp(0), "later": Timestamp(1_500), "price": encode_decimal(Decimal("2.08"))},
        {"@noon": datetime(1970, 1, 1, 12, tzinfo=UTC), "@span": timedelta(seconds=1)},
    )
    assert view.updates == {
        "a": Described(Symbol("com.microsoft:timespan"), 15_000_000),
        "b": encode_decimal(Decimal("4.16")),
        "c": AN_ID,
        "d": Timestamp(43_200_000),
        "e": Described(Symbol("com.microsoft:timespan"), 10_000_000),
        "f": Timestamp(1_000),
    }
    again, _ = decode(encode(view.updates))
    assert again == view.updates


def test_system_properties_take_their_own_kind() -> None:
    view = changed(
        "SET sys.MessageId = newid(); SET sys.TimeToLive = @span; SET sys.ScheduledEnqueueTimeUtc = @noon;"
        " SET sys.ForcePersistence = TRUE; SET sys.To = 'x' + 1; SET sys.Subject = letter",
        {"letter": Symbol("s")},
        {"@span": timedelta(minutes=1), "@noon": datetime(1970, 1, 1, 12)},
    )
    assert view.system_updates == {
        "MessageId": str(AN_ID),
        "TimeToLive": timedelta(minutes=1),
        "ScheduledEnqueueTimeUtc": Timestamp(43_200_000),
        "ForcePersistence": True,
        "To": "x1",
        "Label": "s",
    }
    assert type(view.system_updates["Label"]) is str


@pytest.mark.parametrize(
    ("expression", "complaint"),
    [
        ("SET sys.Label = 1", "sys.Label can only be set to text"),
        ("SET sys.To = TRUE", "sys.To can only be set to text"),
        ("SET sys.TimeToLive = 60", "sys.TimeToLive can only be set to a duration of zero or more"),
        ("SET sys.TimeToLive = -@span", "sys.TimeToLive can only be set to a duration of zero or more"),
        ("SET sys.ScheduledEnqueueTimeUtc = 'noon'", "can only be set to a point in time"),
        ("SET sys.ForcePersistence = 1", "can only be set to a boolean"),
        ("SET sys.SessionId = long", "sys.SessionId would have 129 characters. At most 128 are allowed"),
        ("SET a = 1 / 0", "divide a number by the integer zero"),
        ("SET a = 'x' - 1", "not defined for text and an integer"),
    ],
)
def test_what_cannot_be_set_is_an_evaluation_error(expression: str, complaint: str) -> None:
    with pytest.raises(EvaluationError, match=complaint):
        changed(expression, {"long": "x" * 129}, {"@span": timedelta(minutes=1)})


def test_text_cannot_grow_without_bounds() -> None:
    with pytest.raises(EvaluationError, match="At most 32767 are allowed"):
        changed("SET a = a + a;" * 32, {"a": "0123456789"})


def test_a_copy_is_changed_alone() -> None:
    original = MessageProperties({"Label": "Order"}, lambda: {"color": "red", "size": 1})
    assert compile_filter(SqlFilter("color = 'red'"))(original)
    copy = original.copy()
    compile_action(SqlAction("SET color = 'blue'; REMOVE size; SET sys.Label = 'x'"))(copy)
    still = compile_filter(SqlFilter("color = 'red' AND EXISTS(size) AND sys.Label = 'Order'"))
    assert still(original)
    assert not still(copy)
    second = copy.copy()
    compile_action(SqlAction("SET color = 'green'"))(second)
    assert copy.updates == {"color": "blue"}
    assert second.updates == {"color": "green"}
    assert second.removed == {"size"}


def test_the_view_of_a_message_that_came_in() -> None:
    facts = Facts(
        message_id=ULong(7),
        correlation_id=AN_ID,
        session_id="s",
        content_type="text/plain",
        subject="Order",
        to="t",
        reply_to="r",
        reply_to_session_id="rs",
        ttl_ms=1_000,
        scheduled_ms=5,
        partition_key="k",
    )
    view = MessageProperties.of_facts(facts, size=42, enqueued_ms=1_000, sequence_number=9)
    expression = (
        f"sys.MessageId = '7' AND sys.CorrelationId = '{AN_ID}' AND sys.SessionId = 's'"
        " AND sys.ContentType = 'text/plain' AND sys.Label = 'Order' AND sys.To = 't' AND sys.ReplyTo = 'r'"
        " AND sys.ReplyToSessionId = 'rs' AND sys.TimeToLive = @ttl AND sys.ScheduledEnqueueTimeUtc < @now"
        " AND sys.EnqueuedTimeUtc = @now AND sys.PartitionKey = 'k' AND sys.Size = 42 AND sys.SequenceNumber = 9"
        " AND sys.DeliveryCount = 0 AND sys.ForcePersistence = FALSE AND sys.LockedUntilUtc IS NULL"
        " AND sys.TransactionId IS NULL AND sys.ViaPartitionKey IS NULL"
        " AND sys.ExpiresAtUtc - sys.EnqueuedTimeUtc = sys.TimeToLive"
    )
    now = datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert compile_filter(SqlFilter(expression, {"@ttl": timedelta(seconds=1), "@now": now}))(view)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("30400000000000000000000000000001", "1"),
        ("303c00000000000000000000000000d0", "2.08"),
        ("b03c00000000000000000000000000d0", "-2.08"),
        ("31c0000000000001", "1"),
        ("32800001", "1"),
        ("77f8967f", "9.999999E+96"),
    ],
)
def test_decimals_read_as_the_standard_writes_them(raw: str, expected: str) -> None:
    assert str(decode_decimal(Decimal128(bytes.fromhex(raw)))) == expected


def test_decimals_that_do_not_fit_are_refused_and_odd_ones_are_read() -> None:
    with pytest.raises(ValueError, match="does not fit into a decimal128"):
        encode_decimal(Decimal("1" * 35))
    assert decode_decimal(Decimal128(b"\x6c" + b"\x00" * 15)) == 0
    assert decode_decimal(Decimal128(b"\xf8" + b"\x00" * 15)) == float("-inf")
