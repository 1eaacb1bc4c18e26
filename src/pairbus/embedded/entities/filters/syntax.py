"""Parses the text of a filter or an action to a tree, or reports in one sentence what is wrong and where.

The grammar is `rules.lark`. Positions count characters from 1, as editors do. Parentheses leave no trace in the tree;
operators of one precedence (`a AND b AND c`, `a + b - c`) form one flat node.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, cast

from lark import Lark, Token, Transformer, v_args
from lark.exceptions import UnexpectedCharacters, UnexpectedToken

from pairbus.embedded.entities.descriptions import MAX_EXPRESSION_LENGTH
from pairbus.embedded.entities.filters.views import SystemProperty, find_system_property
from pairbus.embedded.errors import InvalidError

LARGEST_INTEGER = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Constant:
    """NULL, a boolean, a string, a 64 bit integer or a double. 2**63 is allowed only because -2**63 is."""

    position: int
    value: bool | str | int | float | None


@dataclass(frozen=True, slots=True)
class Parameter:
    position: int
    name: str


@dataclass(frozen=True, slots=True)
class Property:
    """A property of the message: the system property `system`, or if that is None the application property `name`."""

    position: int
    name: str
    system: SystemProperty | None


@dataclass(frozen=True, slots=True)
class NewId:
    """`newid()`: a new UUID at every evaluation."""

    position: int


@dataclass(frozen=True, slots=True)
class NamedProperty:
    """`property(name)` or `p(name)`: the application property whose name is computed."""

    position: int
    name: "Expression"


@dataclass(frozen=True, slots=True)
class Signed:
    position: int
    sign: str
    operand: "Expression"


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Operators of one precedence, evaluated from left to right."""

    position: int
    first: "Expression"
    rest: "tuple[tuple[str, Expression], ...]"


Expression = Constant | Parameter | Property | NewId | NamedProperty | Signed | Arithmetic


@dataclass(frozen=True, slots=True)
class Compare:
    position: int
    operator: str
    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True)
class IsNull:
    position: int
    property: Property
    negated: bool


@dataclass(frozen=True, slots=True)
class Exists:
    position: int
    property: Property


@dataclass(frozen=True, slots=True)
class InList:
    position: int
    left: Expression
    choices: tuple[Expression, ...]
    negated: bool


@dataclass(frozen=True, slots=True)
class Like:
    position: int
    left: Expression
    pattern: Expression
    escape: Expression | None
    negated: bool


@dataclass(frozen=True, slots=True)
class Not:
    position: int
    operand: "Predicate"


@dataclass(frozen=True, slots=True)
class AndOr:
    """Predicates joined with `AND` or `OR`."""

    position: int
    operator: Literal["AND", "OR"]
    parts: "tuple[Predicate, ...]"


Predicate = Compare | IsNull | Exists | InList | Like | Not | AndOr


@dataclass(frozen=True, slots=True)
class SetProperty:
    property: Property
    expression: Expression


@dataclass(frozen=True, slots=True)
class RemoveProperty:
    property: Property


Statement = SetProperty | RemoveProperty


def parse_filter(expression: str) -> Predicate:
    return cast(Predicate, _parse(expression, "filter"))


def parse_action(expression: str) -> tuple[Statement, ...]:
    return cast(tuple[Statement, ...], _parse(expression, "action"))


def invalid(kind: str, position: int, problem: str) -> InvalidError:
    """The error for an expression; `kind` is "filter" or "action"."""
    return InvalidError(f"The SQL {kind} is not valid at character {position}: {problem}.")


def _parse(expression: str, kind: str) -> object:
    if len(expression) > MAX_EXPRESSION_LENGTH:
        raise InvalidError(
            f"The SQL {kind} has {len(expression)} characters. At most {MAX_EXPRESSION_LENGTH} are allowed."
        )
    try:
        return _parser().parse(expression, start=kind)
    except UnexpectedToken as error:
        position, found = _found(error, expression)
        raise invalid(kind, position, f"found {found}, expected {_expected(error.accepts)}") from None
    except UnexpectedCharacters as error:
        at = cast(int, error.pos_in_stream)
        raise invalid(kind, at + 1, _unreadable(expression, at)) from None
    except _MistakeError as mistake:
        raise invalid(kind, mistake.position, mistake.problem) from None


def _found(error: Any, expression: str) -> tuple[int, str]:
    token = cast(Token, error.token)
    if token.type == "$END":
        return len(expression) + 1, "the end"
    return cast(int, token.start_pos) + 1, _quoted(str(token))


def _quoted(text: str) -> str:
    return repr(text) if len(text) <= 24 else f"{text[:24]!r}..."


_OPERAND = "a value or a property"
_ARITHMETIC = "an arithmetic operator"
_COMPARISON = "a comparison"
_NAME = "a property name"
_WORDS = {
    "$END": "the end",
    "COMMA": "a comma",
    "COMPARISON": _COMPARISON,
    "DELIMITED": _NAME,
    "EQUAL": _COMPARISON,
    "FACTOR": _ARITHMETIC,
    "IDENTIFIER": _NAME,
    "LPAR": "'('",
    "QUOTED": _NAME,
    "RPAR": "')'",
    "SEMICOLON": "a semicolon",
    "SIGN": _ARITHMETIC,
}


def _expected(terminals: set[str]) -> str:
    """The words for what the grammar expects here. Terminals that start a condition or an operand share one."""
    if "EXISTS" in terminals:
        return "a condition, as in color = 'red'"
    if "STRING" in terminals:
        words = {_OPERAND}
    elif terminals == {"EQUAL"}:
        words = {"'='"}
    else:
        words = {_WORDS.get(name, name.lstrip("_")) for name in terminals}
    listed = sorted(words, key=str.lower)
    return listed[0] if len(listed) == 1 else f"{', '.join(listed[:-1])} or {listed[-1]}"


def _unreadable(expression: str, at: int) -> str:
    match expression[at]:
        case "'":
            return "the string that starts here has no closing '"
        case "[":
            return "the property name that starts here is empty or has no closing ]"
        case '"':
            return 'the property name that starts here is empty or has no closing "'
        case "@":
            return "expected a parameter's name after @"
        case "_":
            return "a property name that does not start with a letter must be in brackets, as in [_name]"
        case digit if digit.isdecimal():
            return "the number that starts here is followed by a letter"
        case character:
            return f"expected {_OPERAND} or an operator, found {character!r}"


class _MistakeError(Exception):
    """A mistake that the grammar does not detect. `_parse` turns it into a sentence."""

    def __init__(self, position: int, problem: str) -> None:
        super().__init__(problem)
        self.position = position
        self.problem = problem


def _at(token: Token) -> int:
    return cast(int, token.start_pos) + 1


def _regular(token: Token) -> str:
    """The terminal's pattern allows a few characters (², ½) that are neither letters nor decimal digits."""
    name = str(token)
    if not all(character.isalpha() or character.isdecimal() or character == "_" for character in name):
        raise _MistakeError(_at(token), f"a property name like {_quoted(name)} must be in brackets, as in [name]")
    return name


def _name(token: Token) -> str:
    match token.type:
        case "DELIMITED":
            return token[1:-1].replace("]]", "]")
        case "QUOTED":
            return token[1:-1].replace('""', '"')
        case _:
            return _regular(token)


def _integer(token: Token, base: int) -> Constant:
    value = int(token, base)
    if value > LARGEST_INTEGER + 1:
        raise _MistakeError(_at(token), f"{_quoted(str(token))} is larger than a 64 bit integer, {LARGEST_INTEGER}")
    return Constant(_at(token), value)


def _position(node: Any) -> int:
    return cast(int, node.position)


def _junction(operator: Literal["AND", "OR"], parts: tuple[Predicate, ...]) -> AndOr:
    return AndOr(_position(parts[0]), operator, parts)


@v_args(inline=True)
class _Builder(Transformer[Token, object]):
    """Builds nodes bottom-up while the parser reduces, so nesting causes no recursion."""

    def filter(self, predicate: Predicate) -> Predicate:
        return predicate

    def action(self, *statements: Statement) -> tuple[Statement, ...]:
        return statements

    def set_property(self, _set: Token, target: Property, expression: Expression) -> SetProperty:
        _check_writable(target)
        return SetProperty(target, expression)

    def remove_property(self, _remove: Token, target: Property) -> RemoveProperty:
        _check_writable(target)
        return RemoveProperty(target)

    def disjunction(self, *parts: Predicate) -> AndOr:
        return _junction("OR", parts)

    def conjunction(self, *parts: Predicate) -> AndOr:
        return _junction("AND", parts)

    def negation(self, token: Token, operand: Predicate) -> Not:
        return Not(_at(token), operand)

    def comparison(self, left: Expression, operator: Token, right: Expression) -> Compare:
        return Compare(_at(operator), "<>" if operator == "!=" else str(operator), left, right)

    def equality(self, left: Expression, right: Expression) -> Compare:
        return Compare(_position(left), "=", left, right)

    def is_null(self, tested: Property, _null: Token) -> IsNull:
        return IsNull(tested.position, tested, False)

    def is_not_null(self, tested: Property, _not: Token, _null: Token) -> IsNull:
        return IsNull(tested.position, tested, True)

    def membership(self, left: Expression, *choices: Expression) -> InList:
        return InList(_position(left), left, choices, False)

    def non_membership(self, left: Expression, _not: Token, *choices: Expression) -> InList:
        return InList(_position(left), left, choices, True)

    def like(self, left: Expression, pattern: Expression, escape: Expression | None) -> Like:
        return Like(_position(left), left, pattern, escape, False)

    def not_like(self, left: Expression, _not: Token, pattern: Expression, escape: Expression | None) -> Like:
        return Like(_position(left), left, pattern, escape, True)

    def exists(self, token: Token, tested: Property) -> Exists:
        return Exists(_at(token), tested)

    def group(self, inner: Predicate | Expression) -> Predicate | Expression:
        return inner

    def chain(self, first: Expression, *rest: Any) -> Arithmetic:
        pairs = tuple((str(rest[i]), rest[i + 1]) for i in range(0, len(rest), 2))
        return Arithmetic(_position(first), first, pairs)

    def signed(self, sign: Token, operand: Expression) -> Expression:
        if sign == "-" and type(operand) is Constant and type(operand.value) is int:
            return Constant(_at(sign), -operand.value)
        return Signed(_at(sign), str(sign), operand)

    def call(self, name: Token, argument: Expression | None) -> NewId | NamedProperty:
        match name.lower():
            case "newid" if argument is None:
                return NewId(_at(name))
            case "p" | "property" if argument is not None:
                return NamedProperty(_at(name), argument)
            case "newid":
                raise _MistakeError(_position(argument), "newid() takes no argument")
            case "p" | "property":
                raise _MistakeError(_at(name), f"{name}() needs the name of a property, as in {name}('color')")
            case _:
                raise _MistakeError(
                    _at(name), f"{_quoted(str(name))} is not a function, expected newid(), property(name) or p(name)"
                )

    def parameter(self, token: Token) -> Parameter:
        return Parameter(_at(token), str(token))

    def text(self, token: Token) -> Constant:
        return Constant(_at(token), token[1:-1].replace("''", "'"))

    def integer(self, token: Token) -> Constant:
        return _integer(token, 10)

    def hexadecimal(self, token: Token) -> Constant:
        return _integer(token, 16)

    def real(self, token: Token) -> Constant:
        value = float(token)
        if value == float("inf"):
            raise _MistakeError(_at(token), f"{_quoted(str(token))} is larger than a double")
        return Constant(_at(token), value)

    def true(self, token: Token) -> Constant:
        return Constant(_at(token), True)

    def false(self, token: Token) -> Constant:
        return Constant(_at(token), False)

    def null(self, token: Token) -> Constant:
        return Constant(_at(token), None)

    def unscoped(self, token: Token) -> Property:
        return Property(_at(token), _regular(token), None)

    def delimited(self, token: Token) -> Property:
        return Property(_at(token), _name(token), None)

    def scoped(self, scope: Token, token: Token) -> Property:
        name = _name(token)
        match scope.lower():
            case "user":
                return Property(_at(scope), name, None)
            case "sys":
                system = find_system_property(name)
                if system is None:
                    raise _MistakeError(_at(token), f"the service has no system property {_quoted(name)}")
                return Property(_at(scope), system.name, system)
            case _:
                raise _MistakeError(
                    _at(scope),
                    f"expected the scope sys or user before the dot, found {_quoted(str(scope))}"
                    " (a name that contains a dot must be in brackets)",
                )


def _check_writable(target: Property) -> None:
    if target.system is not None and not target.system.writable:
        raise _MistakeError(target.position, f"sys.{target.name} belongs to the service and cannot be changed")


@cache
def _parser() -> Lark:
    """Built on first use: it takes tens of milliseconds, and many namespaces have no SQL rules."""
    return Lark.open_from_package(
        __package__,
        "rules.lark",
        parser="lalr",
        lexer="basic",
        start=["filter", "action"],
        maybe_placeholders=True,
        transformer=_Builder(),
    )
