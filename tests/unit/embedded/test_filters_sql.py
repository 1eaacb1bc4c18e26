"""SQL filters: what each operator makes of values, of unknown ones, and of values of the wrong kind."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from uuid import UUID

import pytest

from pairbus.amqp.types import (
    Byte,
    Char,
    Decimal32,
    Decimal64,
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
    encode_decimal,
)
from pairbus.embedded.entities.descriptions import FalseFilter, PropertyValue, SqlFilter, TrueFilter
from pairbus.embedded.entities.filters import EvaluationError, MessageProperties, compile_filter

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
NOON_MS = 1_794_744_000_000
AN_ID = UUID("6f1c2b1e-8f0a-4f0e-9d3b-0c1d2e3f4a5b")

SYSTEM = {
    "MessageId": "m-1",
    "Label": "Order",
    "To": "stores/5",
    "EnqueuedTimeUtc": Timestamp(NOON_MS),
    "TimeToLive": timedelta(minutes=5),
    "Size": 120,
    "ForcePersistence": False,
}
APPLICATION = {
    "Color": "red",
    "empty": "",
    "quoted": "it's",
    "quantity": 10,
    "byte": Byte(-3),
    "ubyte": UByte(3),
    "short": Short(-300),
    "ushort": UShort(300),
    "int": Int(70_000),
    "uint": UInt(4_000_000_000),
    "ulong": ULong(2**64 - 1),
    "half": 0.5,
    "single": Float(0.25),
    "price": encode_decimal(Decimal("2.08")),
    "urgent": True,
    "letter": Char("x"),
    "symbol": Symbol("sym"),
    "when": Timestamp(NOON_MS),
    "later": Timestamp(NOON_MS + 90_000),
    "span": Described(Symbol("com.microsoft:timespan"), 900_000_000),
    "offset": Described(Symbol("com.microsoft:datetime-offset"), 621_355_968_000_000_000 + NOON_MS * 10_000),
    "link": Described(Symbol("com.microsoft:uri"), "http://contoso"),
    "id": AN_ID,
    "blob": b"\x00\x01",
    "list": [1, 2],
    "odd": Described(Symbol("com.contoso:point"), 1),
    "nothing": None,
    "name": "color",
    "pattern": "r%",
    "Property With Space": "yes",
    "a]b": "bracket",
    'a"b': "quote",
    "http://contoso/type": "account",
    "größe": 5,
}


def verdict(expression: str, parameters: dict[str, PropertyValue] | None = None) -> bool | None:
    """True, false, or None for unknown: neither the expression nor its negation takes the message."""
    view = MessageProperties(SYSTEM, lambda: APPLICATION)
    held = compile_filter(SqlFilter(expression, parameters or {}))(view)
    denied = compile_filter(SqlFilter(f"NOT ({expression})", parameters or {}))(view)
    assert not (held and denied)
    return True if held else False if denied else None


@pytest.mark.parametrize(
    "expression",
    [
        "1=1",
        "color = 'red'",
        "COLOR = 'red'",
        "user.Color = 'red'",
        "USER.[color] = 'red'",
        "\"Color\" = 'red'",
        "'red' = color",
        "color <> 'blue'",
        "color != 'Red'",
        "color > 'blue' AND color < 'yellow'",
        "color >= 'red' and color <= 'red'",
        "quoted = 'it''s'",
        "empty = ''",
        "[Property With Space] = 'yes'",
        "[a]]b] = 'bracket'",
        '"a""b" = \'quote\'',
        "\"http://contoso/type\" = 'account'",
        "größe = 5",
        "sys.Label = 'Order'",
        "SYS.label LIKE 'O%'",
        "sys.Subject = 'Order'",
        "sys . [MessageId] = 'm-1'",
        "sys.Size = 120",
        "sys.ForcePersistence = FALSE",
        "quantity = 10",
        "quantity = 0xA",
        "quantity = 0Xa",
        "quantity = 10.0",
        "quantity = 1E1",
        "quantity = 1.0e+1",
        "quantity > 2.08",
        "half = .5",
        "half = 0.5",
        "half = 5E-1",
        "half < 1.",
        "single = 0.25",
        "single = half / 2",
        "price = 2.08",
        "price > 2",
        "price < half * 5",
        "byte = -3 AND ubyte = +3 AND short = -300 AND ushort = 300",
        "int = 70000 AND uint = 4000000000",
        "ulong > 9223372036854775807",
        "byte < ulong",
        "quantity > -9223372036854775808",
        "urgent = TRUE",
        "urgent <> false",
        "letter = 'x'",
        "symbol = 'sym'",
        "link = 'http://contoso'",
        "when < later",
        "when = offset",
        "when = sys.EnqueuedTimeUtc",
        "later - when = span",
        "when + span = later",
        "span + when = later",
        "later - span = when",
        "span + span > span",
        "span - span < span",
        "-span < +span",
        "sys.TimeToLive > span",
        "id = id",
        "blob = blob",
    ],
)
def test_it_is_true(expression: str) -> None:
    assert verdict(expression) is True


@pytest.mark.parametrize(
    "expression",
    [
        "1=2",
        "color = 'Red'",
        "color = 'RED' OR color = 'Blue'",
        "quantity = 11",
        "quantity <> 10",
        "quantity < 10",
        "price = 2",
        "single = 0.26",
        "urgent = FALSE",
        "when >= later",
        "blob <> blob",
        "EXISTS(missing)",
        "EXISTS(sys.SessionId)",
        "color IS NULL",
        "missing IS NOT NULL",
        "nothing IS NOT NULL",
    ],
)
def test_it_is_false(expression: str) -> None:
    assert verdict(expression) is False


@pytest.mark.parametrize(
    "expression",
    [
        "missing = 1",
        "missing <> 1",
        "nothing = 1",
        "color = NULL",
        "NULL = NULL",
        "NULL <> 1",
        "sys.SessionId = 'a'",
        "sys.SessionId <> 'a'",
        "missing < missing",
        "missing + 1 = 1",
        "1 - missing = 1",
        "-missing = 1",
        "missing LIKE '%'",
        "missing NOT LIKE '%'",
        "color LIKE missing",
        "color LIKE NULL",
        "color LIKE '%' ESCAPE missing",
        "color LIKE '%' ESCAPE NULL",
        "missing IN (1, 2)",
        "missing NOT IN (1, 2)",
        "missing IN ('a', 'b')",
        "NULL IN (NULL)",
        "property('missing') = 1",
        "property(missing) = 1",
    ],
)
def test_it_is_unknown(expression: str) -> None:
    assert verdict(expression) is None


T, F, U = "1=1", "1=2", "missing=1"


@pytest.mark.parametrize(
    ("left", "right", "both", "either"),
    [
        (T, T, True, True),
        (T, F, False, True),
        (T, U, None, True),
        (F, T, False, True),
        (F, F, False, False),
        (F, U, False, None),
        (U, T, None, True),
        (U, F, False, None),
        (U, U, None, None),
    ],
)
def test_and_and_or_know_unknown(left: str, right: str, both: bool | None, either: bool | None) -> None:
    assert verdict(f"{left} AND {right}") is both
    assert verdict(f"{left} OR {right}") is either


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("1=1 OR 1=2 AND 1=2", True),
        ("(1=1 OR 1=2) AND 1=2", False),
        ("NOT 1=2 AND 1=2", False),
        ("NOT (1=2 AND 1=2)", True),
        ("NOT NOT 1=1", True),
        ("NOT 1=1 OR 1=1", True),
        ("2 + 3 * 4 = 14", True),
        ("(2 + 3) * 4 = 20", True),
        ("10 - 4 - 3 = 3", True),
        ("100 / 10 / 5 = 2", True),
        ("-2 * -3 = 6", True),
        ("- - 2 = 2", True),
        ("2 - -2 = 4", True),
        ("7 / 2 = 3", True),
        ("-7 / 2 = -3", True),
        ("7 / -2 = -3", True),
        ("7 % 4 = 3", True),
        ("-7 % 4 = -3", True),
        ("7 % -4 = 3", True),
        ("7 / 2.0 = 3.5", True),
        ("-7.5 % 2 = -1.5", True),
        ("1 / 0.0 > 1E308", True),
        ("-1 / 0.0 < -1E308", True),
        ("0.0 / 0.0 = 0.0 / 0.0", False),
        ("1.0 % 0.0 <> 1.0 % 0.0", True),
        ("price * 2 = 4.16", True),
        ("price + 1 = 3.08", True),
        ("price - 2 > 0", True),
        ("price / 2 = 1.04", True),
        ("price % 2 = 0.08", True),
        ("-price = -2.08", True),
        ("ulong - 1 < ulong", True),
        # A long is compared with a double as a double, so these two integers are the same.
        ("9007199254740993 = 9007199254740992.0", True),
        ("9007199254740993 = 9007199254740992", False),
    ],
)
def test_precedence_and_arithmetic(expression: str, expected: bool) -> None:
    assert verdict(expression) is expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("color + '-' + quantity = 'red-10'", True),
        ("quantity + color = '10red'", True),
        ("'' + urgent = 'True'", True),
        ("'' + half = '0.5'", True),
        ("'' + 3.0 = '3'", True),
        ("'' + 1E15 = '1E+15'", True),
        ("'' + 123456789012345.0 = '123456789012345'", True),
        ("'' + 1.25E-7 = '1.25E-07'", True),
        ("'' + 0.00001 = '1E-05'", True),
        ("'' + 0.0001 = '0.0001'", True),
        ("'' + -1E300 = '-1E+300'", True),
        ("'' + 0.0 = '0'", True),
        ("'' + (1 / 0.0) + (-1 / 0.0) + (0 / 0.0) = 'Infinity-InfinityNaN'", True),
        ("'' + price = '2.08'", True),
        ("'' + id = '6f1c2b1e-8f0a-4f0e-9d3b-0c1d2e3f4a5b'", True),
    ],
)
def test_text_plus_a_value_is_text(expression: str, expected: bool) -> None:
    assert verdict(expression) is expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("color LIKE 'red'", True),
        ("color LIKE 'Red'", False),
        ("color LIKE '%'", True),
        ("empty LIKE '%'", True),
        ("empty LIKE '_'", False),
        ("color LIKE 'r_d'", True),
        ("color LIKE 'r%'", True),
        ("color LIKE '%ed'", True),
        ("color LIKE '%e%'", True),
        ("color LIKE '%x%'", False),
        ("color LIKE 're'", False),
        ("color NOT LIKE 'b%'", True),
        ("color NOT LIKE 'r%'", False),
        ("color LIKE pattern", True),
        ("color LIKE 'r' + '%'", True),
        ("color + '%' LIKE 'red!%' ESCAPE '!'", True),
        ("color + 'x' LIKE 'red!%' ESCAPE '!'", False),
        ("'a_c' LIKE 'a\\_c' ESCAPE '\\'", True),
        ("'abc' LIKE 'a\\_c' ESCAPE '\\'", False),
        ("'a!' LIKE 'a!!' ESCAPE '!'", True),
        ("'ABC%' LIKE 'ABC\\%' ESCAPE '\\'", True),
        ("'100%' LIKE '100' + '!' + '%' ESCAPE '!'", True),
        ("'a.c' LIKE 'a.c'", True),
        ("'abc' LIKE 'a.c'", False),
        ("'aab' LIKE '%ab'", True),
        ("'abab' LIKE 'ab%ab'", True),
        ("'aba' LIKE 'ab%ba'", False),
        ("letter LIKE '_'", True),
        ("'aba' LIKE '%ab%ba%'", False),
        ("'abba' LIKE '%ab%ba%'", True),
        ("'axaxa' LIKE '%a_a%a_a%'", False),
        ("'axaaxa' LIKE '%a_a%a_a%'", True),
    ],
)
def test_like(expression: str, expected: bool) -> None:
    assert verdict(expression) is expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("color IN ('blue', 'red')", True),
        ("color IN('blue')", False),
        ("color NOT IN ('blue')", True),
        ("color NOT IN ('blue', 'red')", False),
        ("letter IN ('x')", True),
        ("quantity IN (9, 10.0)", True),
        ("quantity IN (1 + 9)", True),
        ("quantity NOT IN (missing, 11)", True),
        ("quantity IN (missing, 11)", False),
        ("quantity IN (missing, 10)", True),
        ("quantity + 1 IN (11)", True),
        ("sys.To IN ('stores/5', 'stores/6') OR color = 'none'", True),
    ],
)
def test_in(expression: str, expected: bool) -> None:
    assert verdict(expression) is expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("EXISTS(color)", True),
        ("EXISTS ( nothing )", True),
        ("exists(list)", True),
        ("EXISTS(sys.Label)", True),
        ("missing IS NULL", True),
        ("nothing IS NULL", True),
        ("sys.SessionId IS NULL", True),
        ("color IS NOT NULL", True),
        ("list IS NOT NULL", True),
        ("odd IS NULL", False),
        ("property('color') = 'red'", True),
        ("PROPERTY('Color') = 'red'", True),
        ("p('co' + 'lor') = 'red'", True),
        ("p(name) = 'red'", True),
        ("name = 'color'", True),
        ("newid() <> newid()", True),
        ("newid() = id", False),
    ],
)
def test_properties_and_functions(expression: str, expected: bool) -> None:
    assert verdict(expression) is expected


def test_names_that_only_look_like_keywords_and_functions_are_properties() -> None:
    view = MessageProperties({}, lambda: {"p": 1, "property": 2, "sys": 3, "user": 4, "android": 5, "newid": 6})
    taken = compile_filter(SqlFilter("p = 1 AND property = 2 AND sys = 3 AND user = 4 AND android = 5 AND newid = 6"))
    assert taken(view)


@pytest.mark.parametrize(
    "expression",
    [
        "color = 1",
        "color <> 1",
        "quantity = 'ten'",
        "quantity > '1'",
        "urgent = 1",
        "urgent > FALSE",
        "id = 'x'",
        "id < id",
        "blob < blob",
        "when > 1",
        "when = span",
        "color - 'r' = ''",
        "color * 2 = ''",
        "urgent + 1 = 2",
        "when + when = when",
        "when + 1 = when",
        "when * 2 = when",
        "span - when = span",
        "-color = 'x'",
        "+urgent = TRUE",
        "'' + when = ''",
        "'' + blob = ''",
        "quantity LIKE '1%'",
        "color LIKE 1 + 1",
        "color LIKE pattern + name ESCAPE name",
        "color LIKE 'a' + '!' ESCAPE '!'",
        "color IN (1)",
        "quantity IN ('a', 'b')",
        "p(quantity) = 1",
        "list = 1",
        "odd = 1",
        "1 / 0 = 1",
        "1 % 0 = 1",
        "price / 0 = 1",
        "price % 0 = 1",
        "9223372036854775807 * 9223372036854775807 > 0",
        "-9223372036854775808 - 1 < 0",
        "-ulong < 0",
        "later + (later - when) * 1 = later",
    ],
)
def test_values_that_do_not_fit_are_an_evaluation_error(expression: str) -> None:
    taken = compile_filter(SqlFilter(expression))
    with pytest.raises(EvaluationError, match=r"\.$"):
        taken(MessageProperties(SYSTEM, lambda: APPLICATION))


@pytest.mark.parametrize(
    "expression", ["far - early = span", "far + (when - early) = far", "when + when2 - when = when"]
)
def test_times_out_of_range_are_an_evaluation_error(expression: str) -> None:
    times = {
        "far": Timestamp(2**63 - 1),
        "early": Timestamp(-(2**63)),
        "when": Timestamp(NOON_MS),
        "when2": Timestamp(NOON_MS),
        "span": Described(Symbol("com.microsoft:timespan"), 10),
    }
    with pytest.raises(EvaluationError):
        compile_filter(SqlFilter(expression))(MessageProperties({}, lambda: times))


def test_a_part_that_would_fail_is_not_reached_when_the_verdict_stands() -> None:
    assert verdict("1=2 AND color = 1") is False
    assert verdict("1=1 OR color = 1") is True
    with pytest.raises(EvaluationError):
        verdict("missing = 1 AND color = 1")


def test_parameters_have_values_of_any_kind() -> None:
    parameters: dict[str, PropertyValue] = {
        "@text": "red",
        "@number": 10,
        "@double": 0.5,
        "@flag": True,
        "@noon": NOON,
        "@naive": NOON.replace(tzinfo=None),
        "@span": timedelta(seconds=90),
    }
    expression = (
        "color = @text AND quantity = @NUMBER AND half = @double AND urgent = @flag AND when = @noon"
        " AND when = @naive AND later - when <= @span AND color IN (@text) AND color LIKE @text"
    )
    assert verdict(expression, parameters) is True
    assert verdict("when < @noon", parameters) is False


def test_decimals_of_every_width_are_numbers() -> None:
    numbers = {
        "narrow": Decimal32(bytes.fromhex("32800001")),
        "middle": Decimal64(bytes.fromhex("31c0000000000001")),
        "wide": Decimal128(bytes.fromhex("30400000000000000000000000000001")),
        "infinite": Decimal64(bytes.fromhex("7800000000000000")),
        "none": Decimal64(bytes.fromhex("7c00000000000000")),
    }
    view = MessageProperties({}, lambda: numbers)
    assert compile_filter(SqlFilter("narrow = 1 AND middle = narrow AND wide = middle"))(view)
    assert compile_filter(SqlFilter("infinite > wide AND none <> none"))(view)


def test_true_and_false_filters() -> None:
    view = MessageProperties({})
    assert compile_filter(TrueFilter())(view) is True
    assert compile_filter(FalseFilter())(view) is False


def test_application_properties_are_not_decoded_for_system_properties() -> None:
    def never() -> dict[str, object]:
        raise AssertionError("the filter looked at an application property")

    assert compile_filter(SqlFilter("sys.Label = 'Order' OR color = 'red'"))(MessageProperties(SYSTEM, never))


def test_a_property_written_twice_counts_once_and_keys_that_are_no_text_are_nobodys() -> None:
    view = MessageProperties({}, lambda: {"Color": "red", "color": "blue", 7: "seven"})
    assert compile_filter(SqlFilter("color = 'red' AND COLOR = 'red'"))(view)
