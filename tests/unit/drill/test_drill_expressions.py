"""Expectations: what can be written, what it means, and what is refused before anything runs."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pairbus.drill.expressions import METRICS, ExpressionError, Value, parse

ENTITIES = {"orders": None, "eu/invoices": None}
SEEN: dict[tuple[str, str | None], Value] = {
    ("lost", None): 0,
    ("lost", "orders"): 2,
    ("accepted", None): 100,
    ("delivered", None): 100,
    ("duplicates", "eu/invoices"): 1,
    ("p99_send", None): 1.5,
    ("state", "orders"): "failed_over",
}


def holds(text: str) -> bool:
    return parse(text, entities=ENTITIES, live=False).holds(lambda metric, entity: SEEN[metric, entity])[0]


@pytest.mark.parametrize(
    "text",
    [
        "lost == 0",
        "0 == lost",
        "lost(orders) == 2",
        'duplicates("eu/invoices") <= 1',
        "delivered == accepted",
        "p99_send < 2s",
        "p99_send >= 1500ms",
        "p99_send < 0.1m",
        "state(orders) == failed_over",
        "state(orders) != healthy",
        "lost == 0 and delivered == 100",
        "lost == 7 or delivered == 100",
        "not lost == 1",
        "not (lost == 1 or lost == 2)",
        "lost == 1 and lost == 1 or lost == 0",
        "lost==0",
    ],
)
def test_what_holds(text: str) -> None:
    assert holds(text)
    assert not holds(f"not ({text})")


@pytest.mark.parametrize(
    "text",
    ["p99_send < 2s", "p99_send != 2s", "not p99_send > 2s", "not not p99_send < 2s", "p99_send == p99_send"],
)
def test_nothing_holds_of_a_time_that_nobody_took(text: str) -> None:
    assert not parse(text, entities=ENTITIES, live=False).holds(lambda metric, entity: math.nan)[0]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "An expression is empty: write something like lost == 0."),
        ("lost", "a comparison such as == or <= is missing at its end."),
        ("lost ==", "a number or a name is missing at its end."),
        ("lost = 0", "'= 0' cannot be read."),
        ("lost == 0 0", "'0' is not expected there."),
        ("lsot == 0", "'lsot' is unknown: did you mean 'lost'?"),
        ("lost == 0 and", "a number or a name is missing at its end."),
        ("(lost == 0", "a ')' is missing."),
        ("lost(orders == 0", "a ')' is missing."),
        ("lost(ordrs) == 0", "'ordrs' is no entity of this drill: did you mean 'orders'?"),
        ("p99_send < 2", "p99_send is a time: compare it with a number and its unit, such as 2s or 500ms, not with 2."),
        ("lost < 2s", "lost is a count: compare it with a number, not with 2s."),
        ("p99_send < lost", "p99_send is a time: "),
        ("state == healthy", "state is of one entity: write state(ENTITY)."),
        (
            "state(orders) == 1",
            "state(orders) is a state: compare it with healthy, suspect or failed_over, not with 1.",
        ),
        ("state(orders) < healthy", "states are compared with == or != only."),
        ("waiting(orders) == 0", "waiting is of the whole drill: leave out the entity."),
        ("1 == 2s", "1 and 2s cannot be compared."),
        ("lost and == 0", "'and' is no comparison: use one of == != < <= > >=."),
        ("__import__('os') == 0", "cannot be read."),
        ("lost == 0x10", "'0x10' cannot be read."),
        ("not " * 11 + "lost == 0", "it is nested more than 10 deep."),
        ("(" * 40 + "lost == 0" + ")" * 40, "it is nested more than 10 deep."),
        ("lost==0 or " * 25 + "lost==0", "it has more than 100 words."),
        ("lost == " + "0" * 400, "has 408 characters: at most 300 are read."),
    ],
)
def test_what_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(ExpressionError) as said:
        parse(text, entities=ENTITIES, live=False)
    assert sentence in str(said.value)


@pytest.mark.parametrize("metric", [name for name, metric in METRICS.items() if not metric.live])
def test_what_only_the_census_knows_cannot_be_waited_for(metric: str) -> None:
    with pytest.raises(ExpressionError, match=f"{metric} is known only at the end: use it in 'expect'"):
        parse(f"{metric} == 0", entities=ENTITIES, live=True)


def test_the_values_that_decided_are_told() -> None:
    expression = parse("lost == 0 or lost(orders) < 2", entities=ENTITIES, live=False)
    assert expression.holds(lambda metric, entity: SEEN[metric, entity]) == (True, {"lost": 0, "lost(orders)": 2})


@given(st.text(alphabet="lost()=<>!andor 0123456789.ms\"'_\\\n\x00é", max_size=60))
@settings(deadline=None, print_blob=True, max_examples=300)
def test_any_text_is_read_or_refused_in_one_line(text: str) -> None:
    try:
        parse(text, entities=ENTITIES, live=False)
    except ExpressionError as error:
        assert len(str(error)) < 500
