"""Expectations: what can be written, what it means, and what is refused before anything runs."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pairbus.drill.scenario import METRICS, Expectation, Value, parse_expectations
from pairbus.toml import TomlError

ENTITIES = {"orders": None, "eu/invoices": None, "not-here": None}
SEEN: dict[tuple[str, str | None], Value] = {
    ("lost", None): 0,
    ("lost", "orders"): 2,
    ("lost", "not-here"): 0,
    ("accepted", None): 100,
    ("delivered", None): 100,
    ("duplicates", "eu/invoices"): 1,
    ("p99_send", None): 1.5,
    ("state", "orders"): "failed_over",
}
OPPOSITES = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}


def parse(text: str, *, live: bool = False) -> Expectation:
    (expectation,) = parse_expectations([text], ENTITIES, where="x.toml", live=live)
    return expectation


def holds(text: str) -> bool:
    return parse(text).check(lambda metric, entity: SEEN[metric, entity])[0]


@pytest.mark.parametrize(
    "text",
    [
        "lost == 0",
        "lost(orders) == 2",
        "lost( orders )  ==  2",
        "lost(not-here) == 0",
        'duplicates("eu/invoices") <= 1',
        "duplicates(eu/invoices) <= 1",
        "delivered == accepted",
        "p99_send < 2s",
        "p99_send >= 1500ms",
        "p99_send < 0.1m",
        "state(orders) == failed_over",
        "state(orders) != healthy",
        "lost==0",
    ],
)
def test_what_holds_and_its_opposite(text: str) -> None:
    assert holds(text)
    sign = parse(text).sign
    assert not holds(text.replace(sign, OPPOSITES[sign]))


@pytest.mark.parametrize("text", ["p99_send < 2s", "p99_send != 2s", "p99_send > 2s", "p99_send == p99_send"])
def test_nothing_holds_of_a_time_that_nobody_took(text: str) -> None:
    assert not parse(text).check(lambda metric, entity: math.nan)[0]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("lost == 0 and delivered == 100", "'and'"),
        ("lost == 7 or delivered == 100", "'or'"),
        ("not lost == 1", "'not'"),
        ("lost == 0 and", "'and'"),
        ("lost and == 0", "'and'"),
        ("(lost == 0)", "brackets, except around an entity"),
        ("(lost == 0", "brackets, except around an entity"),
        ("lost(orders == 0", "brackets, except around an entity"),
        ("(" * 40 + "lost == 0" + ")" * 40, "brackets, except around an entity"),
        ("lost==0 or " * 25 + "lost==0", "'or'"),
    ],
)
def test_comparisons_are_not_joined_but_written_one_per_line(text: str, word: str) -> None:
    with pytest.raises(TomlError) as caught:
        parse(text)
    assert str(caught.value) == (
        f"x.toml: '{text}': an expectation cannot use {word}: write one comparison per line of the list; all must hold."
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "An expectation is empty: write a comparison such as lost == 0."),
        ("lost", "'lost' is not a comparison: write NAME == VALUE, with one of == != < <= > >=."),
        ("lost ==", "'lost ==' is not a comparison: write NAME == VALUE"),
        ("lost = 0", "'lost = 0' is not a comparison: write NAME == VALUE, with one of == != < <= > >=."),
        ("0 == lost", "'0' is not a name: write the name first, as in lost == 0."),
        ("lost == 0 0", "'0 0' is unreadable: use a name, a number, a time such as 2s, or a state."),
        ("lost == 0 == 0", "'0 == 0' is unreadable"),
        ("lsot == 0", "'lsot' is unknown: did you mean 'lost'?"),
        ("lost(ordrs) == 0", "'ordrs' is not an entity of this drill: did you mean 'orders'?"),
        ("p99_send < 2", "p99_send is a time: compare it with a number and its unit, such as 2s or 500ms, not with 2."),
        ("lost < 2s", "lost is a count: compare it with a number, not with 2s."),
        ("p99_send < lost", "p99_send is a time: "),
        ("state == healthy", "state is about one entity: write state(ENTITY)."),
        (
            "state(orders) == 1",
            "state(orders) is a state: compare it with healthy, suspect or failed_over, not with 1.",
        ),
        ("state(orders) < healthy", "compare states with == or != only."),
        ("waiting(orders) == 0", "waiting is about the whole drill: remove the entity."),
        ("1 == 2s", "'1' is not a name"),
        ("__import__('os') == 0", "'__import__('os')' is unreadable"),
        ("lost == 0x10", "'0x10' is unreadable"),
        ("lost == " + "0" * 400, "has 408 characters: use at most 300."),
    ],
)
def test_what_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(TomlError) as caught:
        parse(text)
    assert str(caught.value).startswith("x.toml: ")
    assert sentence in str(caught.value)


@pytest.mark.parametrize("metric", [name for name, metric in METRICS.items() if not metric.live])
def test_what_only_the_census_knows_cannot_be_waited_for(metric: str) -> None:
    with pytest.raises(TomlError, match=f"{metric} is known only at the end: use it in 'expect'"):
        parse(f"{metric} == 0", live=True)


def test_the_values_that_decided_are_told() -> None:
    expectation = parse("lost(orders) <= delivered")
    assert expectation.check(lambda metric, entity: SEEN[metric, entity]) == (
        True,
        {"lost(orders)": 2, "delivered": 100},
    )


@given(st.text(alphabet="lost()=<>!andor 0123456789.ms\"'_\\\n\x00é", max_size=60))
@settings(deadline=None, print_blob=True, max_examples=300)
def test_any_text_is_read_or_refused_in_one_line(text: str) -> None:
    try:
        parse(text)
    except TomlError as error:
        assert len(str(error)) < 500
