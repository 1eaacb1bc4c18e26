"""Expressions the namespace refuses: one sentence each, with the place and what was expected there."""

from typing import Any

import pytest

from pairbus.embedded.entities.descriptions import MAX_EXPRESSION_LENGTH, CorrelationFilter, SqlAction, SqlFilter
from pairbus.embedded.entities.filters import MAX_STATEMENTS, MessageProperties, compile_action, compile_filter
from pairbus.embedded.entities.filters.compiling import MAX_NESTING, MAX_TERMS
from pairbus.embedded.errors import InvalidError


@pytest.mark.parametrize(
    ("expression", "position", "complaint"),
    [
        ("", 1, "found the end, expected a condition"),
        ("  ", 3, "found the end, expected a condition"),
        ("color", 6, "found the end, expected a comparison, an arithmetic operator, IN, IS, LIKE or NOT"),
        ("color =", 8, "found the end, expected a value or a property"),
        ("= 1", 1, "found '=', expected a condition"),
        ("color == 'red'", 8, "found '=', expected a value or a property"),
        ("(color = 'red'", 15, "found the end, expected"),
        ("color = 'red')", 14, "found ')', expected"),
        ("color AND size = 1", 7, "found 'AND', expected a comparison"),
        ("color = 1 AND", 14, "found the end, expected a condition"),
        ("color = 1 size = 2", 11, "found 'size', expected an arithmetic operator, AND, OR or the end"),
        ("color IN ()", 11, "found ')', expected a value or a property"),
        ("color IN (1 2)", 13, "found '2', expected ')', a comma or an arithmetic operator"),
        ("color IN 1", 10, "found '1', expected '('"),
        ("color IS 1", 10, "found '1', expected NOT or NULL"),
        ("1 IS NULL", 3, "found 'IS', expected"),
        ("(color) IS NULL", 9, "found 'IS', expected"),
        ("EXISTS(1)", 8, "found '1', expected a property name"),
        ("EXISTS color", 8, "found 'color', expected '('"),
        ("NOT", 4, "found the end, expected a condition"),
        ("and = 1", 1, "found 'and', expected a condition"),
        ("color = and", 9, "found 'and', expected a value or a property"),
        ("TRUE", 5, "found the end, expected a comparison"),
        ("(a = 1) = TRUE", 9, "found '=', expected"),
        ("a = 1;", 6, "found ';', expected"),
        ("a LIKE", 7, "found the end, expected a value or a property"),
        ("a LIKE 'x' ESCAPE", 18, "found the end, expected a value or a property"),
        ("color = 'red", 9, "the string that starts here has no closing '"),
        ("[color = 1", 1, "the property name that starts here is empty or has no closing ]"),
        ("[] = 1", 1, "the property name that starts here is empty or has no closing ]"),
        ('"color = 1', 1, 'the property name that starts here is empty or has no closing "'),
        ("_color = 1", 1, "must be in brackets, as in [_name]"),
        ("m² = 1", 1, "'m²' must be in brackets"),
        ("1color = 1", 1, "the number that starts here is followed by a letter"),
        ("0x = 1", 1, "the number that starts here is followed by a letter"),
        ("color = @", 9, "expected a parameter's name after @"),
        ("color = $1", 9, "found '$'"),
        ("color = 1 & 2", 11, "found '&'"),
        ("color = @missing", 9, "the parameter @missing has no value"),
        ("contoso.color = 1", 1, "expected the scope sys or user before the dot, found 'contoso'"),
        ("sys.color = 1", 5, "the service has no system property 'color'"),
        ("EXISTS(sys.color)", 12, "the service has no system property 'color'"),
        ("upper(color) = 'RED'", 1, "'upper' is not a function, expected newid(), property(name) or p(name)"),
        ("newid(1) = 1", 7, "newid() takes no argument"),
        ("p() = 1", 1, "p() needs the name of a property"),
        ("a = 9223372036854775808", 5, "9223372036854775808 is larger than a 64 bit integer"),
        ("a = --9223372036854775808", 5, "9223372036854775808 is larger than a 64 bit integer"),
        ("a = 0x10000000000000000", 5, "is larger than a 64 bit integer"),
        ("a = 99999999999999999999999999", 5, "'999999999999999999999999'... is larger than"),
        ("a = 1E999", 5, "'1E999' is larger than a double"),
        ("a LIKE 1", 8, "the pattern and the escape of LIKE must be text"),
        ("a LIKE 'x' ESCAPE 1", 8, "the pattern and the escape of LIKE must be text"),
        ("a LIKE 'x' ESCAPE 'ab'", 8, "the escape must be one character, this one has 2"),
        ("a LIKE 'x' ESCAPE ''", 8, "the escape must be one character, this one has 0"),
        ("a LIKE 'x!' ESCAPE '!'", 8, "the pattern ends with the escape character"),
    ],
)
def test_a_bad_filter_is_refused_with_its_place(expression: str, position: int, complaint: str) -> None:
    with pytest.raises(InvalidError) as refused:
        compile_filter(SqlFilter(expression))
    sentence = refused.value.description
    assert sentence.startswith(f"The SQL filter is not valid at character {position}: ")
    assert complaint in sentence
    assert sentence.endswith(".")
    assert "\n" not in sentence


@pytest.mark.parametrize(
    ("expression", "position", "complaint"),
    [
        ("", 1, "found the end, expected REMOVE or SET"),
        (";", 1, "found ';', expected REMOVE or SET"),
        ("color = 'red'", 1, "found 'color', expected REMOVE or SET"),
        ("SET", 4, "found the end, expected a property name"),
        ("SET color", 10, "found the end, expected '='"),
        ("SET color =", 12, "found the end, expected a value or a property"),
        ("SET a = 1, SET b = 2", 10, "found ',', expected"),
        ("SET a = 1;; SET b = 2", 11, "found ';', expected"),
        ("SET a = b = c", 11, "found '=', expected"),
        ("SET a = b > c", 11, "found '>', expected"),
        ("SET 'a' = 1", 5, "found \"'a'\", expected a property name"),
        ("REMOVE", 7, "found the end, expected a property name"),
        ("REMOVE a, b", 9, "found ',', expected"),
        ("SET sys.SequenceNumber = 1", 5, "sys.SequenceNumber belongs to the service and cannot be changed"),
        ("REMOVE sys.enqueuedtimeutc", 8, "sys.EnqueuedTimeUtc belongs to the service"),
        ("SET sys.color = 1", 9, "the service has no system property 'color'"),
        ("SET a = @missing", 9, "the parameter @missing has no value"),
    ],
)
def test_a_bad_action_is_refused_with_its_place(expression: str, position: int, complaint: str) -> None:
    with pytest.raises(InvalidError) as refused:
        compile_action(SqlAction(expression))
    sentence = refused.value.description
    assert sentence.startswith(f"The SQL action is not valid at character {position}: ")
    assert complaint in sentence


def test_the_length_of_an_expression_is_limited() -> None:
    longest = "a = '" + "x" * (MAX_EXPRESSION_LENGTH - 6) + "'"
    assert len(longest) == 1_024
    compile_filter(SqlFilter(longest))
    with pytest.raises(InvalidError, match=r"The SQL filter has 1025 characters\. At most 1024 are allowed"):
        compile_filter(SqlFilter(longest + " "))
    with pytest.raises(InvalidError, match=r"The SQL action has 1025 characters\. At most 1024 are allowed"):
        compile_action(SqlAction("SET a = '" + "x" * 1_015 + "'"))


@pytest.mark.parametrize("nested", ["NOT " * 40 + "a = 1", "-" * 40 + "a = 1", "p(" * 40 + "a" + ")" * 40 + "=1"])
def test_nesting_is_limited(nested: str) -> None:
    with pytest.raises(InvalidError, match=f"may be nested {MAX_NESTING} deep"):
        compile_filter(SqlFilter(nested))


@pytest.mark.parametrize(
    "nested", ["NOT " * 255 + "a=1", "-" * 1_020 + "a=1", "p(" * 330 + "a" + ")" * 330 + "=1", "-(" * 340 + "a"]
)
def test_the_deepest_nesting_that_fits_is_refused_like_any_other(nested: str) -> None:
    with pytest.raises(InvalidError):
        compile_filter(SqlFilter(nested))


def test_parentheses_around_one_thing_and_long_chains_are_not_nesting() -> None:
    view = MessageProperties({}, lambda: {"a": 1})
    assert compile_filter(SqlFilter("(" * 500 + "a = 1" + ")" * 500))(view)
    assert compile_filter(SqlFilter("a" + " + 1" * 200 + " = 201"))(view)
    assert compile_filter(SqlFilter(" OR ".join(["a=0"] * 100 + ["a=1"])))(view)


def test_the_number_of_terms_is_limited() -> None:
    def choices(count: int) -> SqlFilter:
        return SqlFilter("a IN (" + ",".join("1" * count) + ")")

    compile_filter(choices(MAX_TERMS - 1))
    with pytest.raises(InvalidError, match=f"at most {MAX_TERMS} values and properties are allowed"):
        compile_filter(choices(MAX_TERMS))


def test_the_number_of_statements_is_limited() -> None:
    compile_action(SqlAction("SET a = 1;" * MAX_STATEMENTS))
    with pytest.raises(InvalidError, match=r"The SQL action has 33 statements\. At most 32 are allowed"):
        compile_action(SqlAction("SET a = 1;" * (MAX_STATEMENTS + 1)))


def test_a_value_that_no_expression_can_hold_is_refused_with_the_rule() -> None:
    listed: Any = {"@list": [1]}
    with pytest.raises(InvalidError, match="A list cannot be used in an expression"):
        compile_filter(SqlFilter("a = @list", listed))
    with pytest.raises(InvalidError, match="A list cannot be used in an expression"):
        compile_action(SqlAction("SET a = @list", listed))
    with pytest.raises(InvalidError, match="A list cannot be used in an expression"):
        compile_filter(CorrelationFilter(properties={"a": listed["@list"]}))
