"""The filter language against a second reading of it: expressions are generated as plain tuples, written as text in
many ways, and evaluated by a small interpreter that shares nothing with the compiler.
"""

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pairbus.amqp.types import Float, Int, Symbol, ULong
from pairbus.embedded.entities.descriptions import SqlAction, SqlFilter
from pairbus.embedded.entities.filters import (
    EvaluationError,
    MessageProperties,
    compile_action,
    compile_filter,
)
from pairbus.embedded.errors import InvalidError

MESSAGE: dict[str, object] = {
    "color": "red",
    "size": Int(7),
    "count": ULong(12),
    "weight": 2.5,
    "ratio": Float(0.5),
    "flag": True,
    "tag": Symbol("red"),
    "null": None,
}
MEANING: dict[str, Any] = {**MESSAGE, "size": 7, "count": 12, "ratio": 0.5, "tag": "red"}

Node = tuple[Any, ...]


class WrongKind(Exception):  # noqa: N818
    """What the language calls an evaluation error."""


class NotModelled(Exception):  # noqa: N818
    """The interpreter has no opinion (how doubles print, results beyond 64 bits)."""


# -- the interpreter


def value_of(node: Node) -> Any:
    match node:
        case ("const", value):
            return value
        case ("property", name):
            return MEANING.get(name)
        case ("signed", sign, operand):
            value = value_of(operand)
            if value is None:
                return None
            if type(value) not in (int, float):
                raise WrongKind
            return -value if sign == "-" else value
        case ("chain", first, *rest):
            result = value_of(first)
            for symbol, operand in rest:
                other = value_of(operand)
                result = None if result is None or other is None else computed(symbol, result, other)
            return result
    raise AssertionError(node)


def computed(symbol: str, left: Any, right: Any) -> Any:
    numbers = type(left) in (int, float) and type(right) in (int, float)
    if symbol == "+" and not numbers and str in (type(left), type(right)):
        if float in (type(left), type(right)):
            raise NotModelled
        return str(left) + str(right)
    if not numbers:
        raise WrongKind
    if type(left) is int and type(right) is int:
        if right == 0 and symbol in "/%":
            raise WrongKind
        quotient = math.trunc(Fraction(left, right or 1))
        result = {
            "+": left + right,
            "-": left - right,
            "*": left * right,
            "/": quotient,
            "%": left - right * quotient,
        }[symbol]
        if abs(result) >= 2**62:
            raise NotModelled
        return result
    if right == 0 and symbol in "/%":
        raise NotModelled
    left, right = float(left), float(right)
    match symbol:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case "/":
            return left / right
    return math.copysign(abs(left) - abs(right) * math.floor(Fraction(abs(left)) / Fraction(abs(right))), left)


def compared(symbol: str, left: Any, right: Any) -> bool:
    numbers = type(left) in (int, float) and type(right) in (int, float)
    if not numbers and type(left) is not type(right):
        raise WrongKind
    if symbol in ("=", "<>"):
        return bool(left == right) is (symbol == "=")
    if type(left) is bool:
        raise WrongKind
    if symbol in ("<", "<="):
        return bool(left < right) or (symbol == "<=" and bool(left == right))
    return bool(right < left) or (symbol == ">=" and bool(left == right))


def like(text: str, pattern: str, escape: str | None) -> bool:
    """Textbook dynamic programming: reach[i] says whether the pattern so far takes text[:i]."""
    reach = [True] + [False] * len(text)
    place = 0
    while place < len(pattern):
        character = pattern[place]
        if character == escape:
            place += 1
            reach = [False] + [reach[i] and text[i] == pattern[place] for i in range(len(text))]
        elif character == "%":
            for i in range(len(text)):
                reach[i + 1] = reach[i + 1] or reach[i]
        else:
            reach = [False] + [reach[i] and character in ("_", text[i]) for i in range(len(text))]
        place += 1
    return reach[-1]


def truth_of(node: Node) -> bool | None:
    match node:
        case ("compare", symbol, left, right):
            first, second = value_of(left), value_of(right)
            return None if first is None or second is None else compared(symbol, first, second)
        case ("null", name, negated):
            return (MEANING.get(name) is None) is not negated
        case ("exists", name):
            return name in MEANING
        case ("in", left, choices, negated):
            value = value_of(left)
            if value is None:
                return None
            for choice in choices:
                other = value_of(choice)
                if other is not None and compared("=", value, other):
                    return not negated
            return bool(negated)
        case ("like", left, pattern, escape, negated):
            value = value_of(left)
            if value is None:
                return None
            if type(value) is not str:
                raise WrongKind
            return like(value, pattern, escape) is not negated
        case ("not", operand):
            held = truth_of(operand)
            return None if held is None else not held
        case ("and", *parts):
            return _kleene(parts, False)
        case ("or", *parts):
            return _kleene(parts, True)
    raise AssertionError(node)


def _kleene(parts: list[Node], decisive: bool) -> bool | None:
    seen: list[bool | None] = []
    for part in parts:
        seen.append(truth_of(part))
        if seen[-1] is decisive:
            return decisive
    return None if None in seen else not decisive


# -- generating and writing

constants = st.one_of(
    st.integers(-20, 20),
    st.sampled_from([0.0, 0.5, 2.5, -1.25, 7.0, 12.0]),
    st.sampled_from(["", "red", "Red", "it's", "7", "a%b"]),
    st.booleans(),
    st.none(),
).map(lambda value: ("const", value))
properties = st.sampled_from([*MESSAGE, "missing"]).map(lambda name: ("property", name))
operands = st.one_of(constants, properties, properties)


def _chained(symbols: str) -> Any:
    def build(parts: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
        rest = st.lists(st.tuples(st.sampled_from(symbols), parts), max_size=2)
        return st.tuples(parts, rest).map(lambda made: ("chain", made[0], *made[1]) if made[1] else made[0])

    return build


expressions: st.SearchStrategy[Node] = st.recursive(
    operands,
    lambda inner: st.one_of(
        st.tuples(st.just("signed"), st.sampled_from("+-"), inner),
        _chained("+-")(inner),
        _chained("*/%")(inner),
    ),
    max_leaves=5,
)
patterns = st.tuples(
    st.lists(st.sampled_from(["%", "_", "r", "e", "d", "!%", "!_", "!!"]), max_size=6).map("".join),
    st.just("!"),
)
names = st.sampled_from([*MESSAGE, "missing"])
conditions: st.SearchStrategy[Node] = st.one_of(
    st.tuples(st.just("compare"), st.sampled_from(["=", "<>", "<", "<=", ">", ">="]), expressions, expressions),
    st.tuples(st.just("null"), names, st.booleans()),
    st.tuples(st.just("exists"), names),
    st.tuples(st.just("in"), expressions, st.lists(expressions, min_size=1, max_size=3).map(tuple), st.booleans()),
    st.tuples(expressions, patterns, st.booleans()).map(lambda made: ("like", made[0], *made[1], made[2])),
)
predicates: st.SearchStrategy[Node] = st.recursive(
    conditions,
    lambda inner: st.one_of(
        st.tuples(st.just("not"), inner),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: ("and", *parts)),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: ("or", *parts)),
    ),
    max_leaves=4,
)

LEVELS = {"or": 0, "and": 1, "not": 2}


class Writer:
    """Writes a tuple as text. Parentheses stand only where the language needs them, so precedence is put to the
    test; case and blanks come from `draw`.
    """

    def __init__(self, draw: st.DataObject) -> None:
        self._draw = draw

    def word(self, keyword: str) -> str:
        change = self._draw.draw(st.sampled_from([str.upper, str.lower, str.capitalize]))
        blank = self._draw.draw(st.sampled_from([" ", "\n", "\t "]))
        return f"{blank}{change(keyword)}{blank}"

    def predicate(self, node: Node, level: int = 0) -> str:
        kind = node[0]
        if kind in LEVELS:
            own = LEVELS[kind]
            if kind == "not":
                text = f"{self.word('not')}{self.predicate(node[1], own)}"
            else:
                text = self.word(kind).join(self.predicate(part, own + 1) for part in node[1:])
            return f"({text})" if own < level else text
        match node:
            case ("compare", symbol, left, right):
                written = self._draw.draw(st.sampled_from(["<>", "!="])) if symbol == "<>" else symbol
                return f"{self.expression(left)} {written} {self.expression(right)}"
            case ("null", name, negated):
                return f"{self.name(name)}{self.word('is')}{self.word('not') if negated else ''}{self.word('null')}"
            case ("exists", name):
                return f"{self.word('exists')}({self.name(name)})"
            case ("in", left, choices, negated):
                listed = ",".join(self.expression(choice) for choice in choices)
                return f"{self.expression(left)}{self.word('not') if negated else ''}{self.word('in')}({listed})"
            case ("like", left, pattern, escape, negated):
                return (
                    f"{self.expression(left)}{self.word('not') if negated else ''}{self.word('like')}"
                    f"'{pattern}'{self.word('escape')}'{escape}'"
                )
        raise AssertionError(node)

    def expression(self, node: Node, level: int = 0) -> str:
        match node:
            case ("const", value):
                text = self._constant(value)
                return f"({text})" if text.startswith("-") and level else text
            case ("property", name):
                return self.name(name)
            case ("signed", sign, operand):
                return f"{sign}{self.expression(operand, 3)}"
            case ("chain", first, *rest):
                own = 1 if rest[0][0] in "+-" else 2
                text = self.expression(first, own) + "".join(
                    f" {symbol} {self.expression(operand, own + 1)}" for symbol, operand in rest
                )
                return f"({text})" if own < level else text
        raise AssertionError(node)

    def name(self, name: str) -> str:
        scope = self._draw.draw(st.sampled_from(["", "user.", "USER."]))
        change = self._draw.draw(st.sampled_from([str.upper, str.lower, str.capitalize]))
        forms = [f"[{change(name)}]", f'"{change(name)}"']
        return scope + self._draw.draw(st.sampled_from(forms if name == "null" else [change(name), *forms]))

    def _constant(self, value: Any) -> str:
        match value:
            case None:
                return self.word("null")
            case bool():
                return self.word(str(value))
            case str():
                return "'" + value.replace("'", "''") + "'"
            case int() if value >= 0 and self._draw.draw(st.booleans()):
                return hex(value)
            case _:
                return str(value)


def outcome(expression: str) -> bool | str:
    try:
        return compile_filter(SqlFilter(expression))(MessageProperties({}, lambda: MESSAGE))
    except EvaluationError:
        return "error"


@settings(deadline=None, print_blob=True, max_examples=400)
@given(predicates, st.data())
def test_generated_filters_mean_what_the_interpreter_says(node: Node, draw: st.DataObject) -> None:
    text = Writer(draw).predicate(node)
    if len(text) > 1_000:
        return
    try:
        truth: bool | str | None = truth_of(node)
    except WrongKind:
        truth = "error"
    except NotModelled:
        return
    assert outcome(text) == ("error" if truth == "error" else truth is True)
    assert outcome(f"NOT ({text})") == ("error" if truth == "error" else truth is False)


@settings(deadline=None, print_blob=True, max_examples=300)
@given(expressions, st.data())
def test_generated_actions_set_what_the_interpreter_says(node: Node, draw: st.DataObject) -> None:
    view = MessageProperties({}, lambda: MESSAGE)
    act = compile_action(SqlAction(f"SET result = {Writer(draw).expression(node)}"))
    try:
        expected = value_of(node)
    except WrongKind:
        expected = EvaluationError
    except NotModelled:
        return
    try:
        act(view)
    except EvaluationError:
        assert expected is EvaluationError
    else:
        assert view.updates["result"] == expected


TOKENS = [
    "a",
    "color",
    "sys.Label",
    "user.x",
    "[b",
    "c]",
    '"q"',
    "sys",
    ".",
    "'text'",
    "'it''s'",
    "1",
    "0x1F",
    "2.5",
    ".5",
    "1E3",
    "-1",
    "(",
    ")",
    "(",
    ")",
    ",",
    ";",
    "=",
    "<>",
    "!=",
    "<",
    "<=",
    ">",
    ">=",
    "+",
    "-",
    "*",
    "/",
    "%",
    "AND",
    "OR",
    "NOT",
    "LIKE",
    "ESCAPE",
    "IN",
    "EXISTS",
    "IS",
    "NULL",
    "TRUE",
    "FALSE",
    "SET",
    "REMOVE",
    "newid()",
    "property(",
    "p(",
    "@p",
    "@missing",
    "'%_'",
    "'!'",
    "'",
    "[",
    '"',
    "_x",
    "1a",
    "$",
    "²",
    "9223372036854775808",
]


def _never_crashes(text: str) -> None:
    parameters: Mapping[str, str] = {"@p": "value"}
    view = MessageProperties({"Label": "Order"}, lambda: MESSAGE)
    try:
        compile_filter(SqlFilter(text, parameters))(view)
    except (InvalidError, EvaluationError) as error:
        assert str(error).endswith(".")
    try:
        compile_action(SqlAction(text, parameters))(view)
    except (InvalidError, EvaluationError) as error:
        assert str(error).endswith(".")


@settings(deadline=None, print_blob=True, max_examples=300)
@given(st.text(max_size=1_200))
def test_random_text_is_taken_or_refused(text: str) -> None:
    _never_crashes(text)


@settings(deadline=None, print_blob=True, max_examples=500)
@given(st.lists(st.sampled_from(TOKENS), max_size=40), st.sampled_from(["", " "]))
def test_random_tokens_are_taken_or_refused(tokens: list[str], blank: str) -> None:
    _never_crashes(blank.join(tokens))


@settings(deadline=None, print_blob=True, max_examples=300)
@given(predicates, st.data())
def test_a_filter_that_lost_or_gained_a_character_is_taken_or_refused(node: Node, draw: st.DataObject) -> None:
    text = Writer(draw).predicate(node)
    at = draw.draw(st.integers(0, len(text)))
    gained = draw.draw(st.sampled_from(["", "'", "(", ")", "[", '"', "-", "0", "\x00", "\ud800"]))
    _never_crashes(text[:at] + gained + text[at + 1 :])
