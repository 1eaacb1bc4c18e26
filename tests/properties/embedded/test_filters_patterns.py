"""LIKE against a textbook definition, and decimals against Python's own."""

from decimal import Decimal

from hypothesis import given, settings
from hypothesis import strategies as st

from pairbus.amqp.types import Decimal128, decode_decimal, encode_decimal
from pairbus.embedded.entities.filters.values import PatternError, compile_pattern


def takes(pattern: str, text: str, escape: str | None) -> bool:
    """By definition: the first character of the pattern decides what the rest must take."""
    if not pattern:
        return not text
    head, rest = pattern[0], pattern[1:]
    if head == escape:
        return text[:1] == rest[0] and takes(rest[1:], text[1:], escape)
    if head == "%":
        return any(takes(rest, text[cut:], escape) for cut in range(len(text) + 1))
    return bool(text) and head in ("_", text[0]) and takes(rest, text[1:], escape)


def ends_in_escape(pattern: str, escape: str | None) -> bool:
    place = 0
    while place < len(pattern):
        if pattern[place] == escape:
            if place + 1 == len(pattern):
                return True
            place += 1
        place += 1
    return False


@settings(deadline=None, print_blob=True, max_examples=1_000)
@given(
    st.text("ab%_!\n", max_size=7),
    st.text("ab%_!\n", max_size=8),
    st.sampled_from([None, "!", "a", "%", "_"]),
)
def test_like_follows_its_definition(pattern: str, text: str, escape: str | None) -> None:
    try:
        found = compile_pattern(pattern, escape)(text)
    except PatternError:
        assert ends_in_escape(pattern, escape)
    else:
        assert found == takes(pattern, text, escape)


@settings(deadline=None, print_blob=True, max_examples=1_000)
@given(st.lists(st.sampled_from(["ab", "ba", "a_", "_b", "b"]), max_size=3).map("%".join), st.text("ab", max_size=7))
def test_pieces_do_not_share_characters(middle: str, text: str) -> None:
    assert compile_pattern(f"%{middle}%")(text) == takes(f"%{middle}%", text, None)


@settings(deadline=None, print_blob=True, max_examples=300)
@given(st.lists(st.sampled_from(["%", "_", "ab", "b"]), max_size=8).map("".join), st.data())
def test_a_text_made_from_its_pattern_is_taken(pattern: str, draw: st.DataObject) -> None:
    text = "".join(
        draw.draw(st.text("abc😀", max_size=5))
        if character == "%"
        else draw.draw(st.sampled_from("abc😀"))
        if character == "_"
        else character
        for character in pattern
    )
    assert compile_pattern(pattern)(text)


def test_patterns_that_make_backtracking_matchers_explode_are_decided() -> None:
    text = "a" * 30_000
    assert not compile_pattern("%a" * 500 + "b")(text)
    assert not compile_pattern("%" + "a_" * 500 + "b%")(text)
    assert compile_pattern("%a" * 500 + "%_%")(text)
    assert compile_pattern("_%" * 512)(text)


@settings(deadline=None, print_blob=True, max_examples=300)
@given(st.integers(-(10**34) + 1, 10**34 - 1), st.integers(-6176, 6111))
def test_decimals_survive_a_round_trip(coefficient: int, exponent: int) -> None:
    sign, digits, _ = Decimal(coefficient).as_tuple()
    value = Decimal((sign, digits, exponent))
    again = decode_decimal(encode_decimal(value))
    assert isinstance(again, Decimal)
    assert again.as_tuple() == value.as_tuple()


@settings(deadline=None, print_blob=True, max_examples=300)
@given(st.binary(min_size=16, max_size=16))
def test_any_sixteen_bytes_are_a_decimal(raw: bytes) -> None:
    value = decode_decimal(Decimal128(raw))
    assert isinstance(value, float) or len(value.as_tuple().digits) <= 34
