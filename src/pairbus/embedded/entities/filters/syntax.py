"""Parses the text of a filter or an action, or reports in one sentence what is wrong and where.

The grammar is `rules.lark`. Positions count characters from 1, as editors do.
"""

from typing import Any, cast

from lark import Lark, Token
from lark.exceptions import UnexpectedCharacters, UnexpectedToken

from pairbus.embedded.entities.descriptions import MAX_EXPRESSION_LENGTH
from pairbus.embedded.errors import InvalidError


def parse(parser: Lark, expression: str, kind: str) -> Any:
    """The result of the parser for an expression; `kind` is "filter" or "action"."""
    if len(expression) > MAX_EXPRESSION_LENGTH:
        raise InvalidError(
            f"The SQL {kind} has {len(expression)} characters. At most {MAX_EXPRESSION_LENGTH} are allowed."
        )
    try:
        return parser.parse(expression, start=kind)
    except UnexpectedToken as error:
        position, found = _found(error, expression)
        raise invalid(kind, position, f"found {found}, expected {_expected(error.accepts)}") from None
    except UnexpectedCharacters as error:
        at = cast(int, error.pos_in_stream)
        raise invalid(kind, at + 1, _unreadable(expression[at])) from None


def invalid(kind: str, position: int, problem: str) -> InvalidError:
    """The error for an expression; `kind` is "filter" or "action"."""
    return InvalidError(f"The SQL {kind} is not valid at character {position}: {problem}.")


def position_of(token: Token) -> int:
    return cast(int, token.start_pos) + 1


def quoted(text: str) -> str:
    return repr(text) if len(text) <= 24 else f"{text[:24]!r}..."


def _found(error: Any, expression: str) -> tuple[int, str]:
    token = cast(Token, error.token)
    if token.type == "$END":
        return len(expression) + 1, "the end"
    return position_of(token), quoted(str(token))


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


_UNREADABLE = {
    "'": "the string that starts here has no closing '",
    "[": "the property name that starts here is empty or has no closing ]",
    '"': 'the property name that starts here is empty or has no closing "',
    "@": "expected a parameter's name after @",
    "_": "a property name that does not start with a letter must be in brackets, as in [_name]",
}


def _unreadable(character: str) -> str:
    if character.isdecimal():
        return "the number that starts here is followed by a letter"
    return _UNREADABLE.get(character, f"expected {_OPERAND} or an operator, found {character!r}")
