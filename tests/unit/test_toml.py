"""TOML that people write: every mistake is one sentence with the file, the key, the value and what was expected."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Meta, Struct

from pairbus.toml import TomlError, convert_toml, read_toml, suggest


class Colour(str):
    expected = "red or blue in quotes"


class Move(Struct, frozen=True, forbid_unknown_fields=True, rename="kebab", tag_field="do"):
    pass


class Send(Move, frozen=True, tag="send"):
    entity: str
    batch_size: Annotated[int, Meta(ge=1, le=5_000)] = 1
    colour: Colour | None = None


class Kill(Move, frozen=True, tag="kill"):
    namespace: Literal["primary", "secondary"] = "primary"


class Plan(Struct, frozen=True, forbid_unknown_fields=True):
    share: Annotated[float, Meta(gt=0, le=1)] = 1.0
    rates: float | list[str] = 0.0


class File(Struct, frozen=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(pattern="^[a-z]+$", extra={"expected": "a word of small letters"})]
    moves: Annotated[tuple[Send | Kill, ...], Meta(min_length=1, max_length=3)]
    plan: Plan = Plan()
    tags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.name == "nobody":
            raise ValueError("nobody has no moves.")


def hook(kind: type, value: Any) -> Any:
    if value not in ("red", "blue"):
        raise ValueError("Expected a colour")
    return kind(value)


def decode(text: str) -> File:
    return convert_toml(read_toml(text, where="plan.toml"), File, where="plan.toml", dec_hook=hook)


KILL = '[[moves]]\ndo = "kill"\n'


def test_a_file_becomes_a_value() -> None:
    text = f'name = "x"\n[plan]\nshare = 0.5\n{KILL}[[moves]]\ndo = "send"\nentity = "q"\n'
    assert decode(f'{text}colour = "red"\nbatch-size = 7\n') == File(
        "x", (Kill(), Send("q", 7, Colour("red"))), Plan(0.5)
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "name is missing: expected a word of small letters."),
        ("name = 1", "name is 1: expected a word of small letters."),
        ('name = "X"', "name is 'X': expected a word of small letters."),
        ('name = "x"', "moves is missing: expected tables: write [[moves]] above each of them."),
        ('name = "x"\n[moves]', "moves is {}: expected tables: write [[moves]] above each of them."),
        ('name = "x"\nmoves = []', "moves has 0 entries: expected 1 to 3."),
        (f'name = "x"\n{KILL * 4}', "moves has 4 entries: expected 1 to 3."),
        ('name = "x"\nmoves = [3]', "moves 1 is 3: expected a table."),
        (f'name = "nobody"\n{KILL}', "nobody has no moves."),
        (f'name = "x"\nmvoes = 1\n{KILL}', "'mvoes' is unknown: did you mean 'moves'?"),
        (f'name = "x"\n{KILL}[[moves]]', "moves 2: do is missing: expected one of send, kill."),
        (f'name = "x"\n{KILL}[[moves]]\ndo = "sned"', "moves 2: do 'sned' is unknown: did you mean 'send'?"),
        (f'name = "x"\n{KILL}[[moves]]\ndo = "send"', "moves 2: entity is missing: expected a text in quotes."),
        (f'name = "x"\n{KILL}namespace = "x"', "moves 1: namespace 'x' is unknown: known are primary, secondary."),
        (f'name = "x"\n{KILL}namspace = "x"', "moves 1: 'namspace' is unknown: did you mean 'namespace'?"),
        (f'name = "x"\n{KILL}\n[plan]\nshare = 0', "plan: share is 0: expected a number above 0, at most 1."),
        (
            f'name = "x"\n{KILL}\n[plan]\nrates = "x"',
            "plan: rates is 'x': expected a number or a list of texts, such as",
        ),
        (f'name = "x"\n{KILL}\n[plan]\nrates = [1]', "plan: rates 1 is 1: expected a text in quotes."),
        (f'name = "x"\n{KILL}\n[plan]\nrates = 2026-01-31', "plan: rates is 2026-01-31: expected a number or"),
        (f'name = "x"\n{KILL}\n[plan]\nshare = 07:32:00', "plan: share is 07:32:00: expected a number above 0"),
        (f'name = "x"\nplan = 1\n{KILL}', "plan is 1: expected a table, [plan]."),
        (f'name = "x"\ntags = "x"\n{KILL}', 'tags is \'x\': expected a list of texts, such as ["one", "two"].'),
    ],
)
def test_a_mistake_is_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(TomlError) as caught:
        decode(text)
    assert str(caught.value).startswith(f"plan.toml: {sentence}")


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("batch-size = 0", "batch-size is 0: expected a whole number from 1 to 5,000."),
        ("batch-size = true", "batch-size is true: expected a whole number from 1 to 5,000."),
        ("batch_size = 1", "'batch_size' is unknown: did you mean 'batch-size'?"),
        ("colour = 'green'", "colour is 'green': expected red or blue in quotes."),
        (f"colour = '{'x' * 500}'", f"colour is '{'x' * 59}…: expected red or blue"),
    ],
)
def test_a_mistake_in_a_list_names_its_entry(line: str, sentence: str) -> None:
    with pytest.raises(TomlError) as caught:
        decode(f'name = "x"\n[[moves]]\ndo = "send"\nentity = "q"\n{line}')
    assert str(caught.value).startswith(f"plan.toml: moves 1: {sentence}")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("name = ", "plan.toml is not TOML: Invalid value"),
        (f"x = {'[' * 5000}", "plan.toml is not TOML: it is nested too deeply."),
        (f"{'a.' * 500}a = 1", "plan.toml is not TOML: it is nested too deeply."),
        (f"x = {'1' * 5000}", "plan.toml is not TOML: it has a whole number of more than 64 bits."),
        (f"x = 0x{'f' * 5000}", "plan.toml is not TOML: it has a whole number of more than 64 bits."),
    ],
)
def test_what_is_not_toml_is_said(text: str, sentence: str) -> None:
    with pytest.raises(TomlError) as caught:
        decode(text)
    assert str(caught.value).startswith(sentence)


def test_bytes_that_are_not_utf8_are_refused() -> None:
    with pytest.raises(TomlError, match=r"plan\.toml is not TOML: 'utf-8' codec can't decode"):
        read_toml(b"\xff", where="plan.toml")


def test_a_suggestion_is_the_closest_word_or_all_of_a_few() -> None:
    assert suggest("LSOT", ["lost", "waiting"]) == "did you mean 'lost'?"
    assert suggest("xyz", ["b", "a"]) == "known are a, b."
    assert suggest("xyz", ["b", "a"], otherwise="use one of") == "use one of a, b."
    assert suggest("xyz", [f"name{number}" for number in range(30)]) == "there are 30 of them."


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)
keys = st.sampled_from(["name", "moves", "plan", "tags", "do", "x.y"])


@given(st.dictionaries(keys, values | st.lists(st.dictionaries(keys, values, max_size=3), max_size=3), max_size=4))
@settings(deadline=None)
def test_any_content_is_read_or_refused_in_one_sentence(content: dict[str, Any]) -> None:
    try:
        convert_toml(content, File, where="plan.toml", dec_hook=hook)
    except TomlError as error:
        assert str(error).startswith("plan.toml: ")
        assert len(str(error)) < 400
