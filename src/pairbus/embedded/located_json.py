"""JSON whose every value knows its line, so that a complaint about a configuration can point at it.

Strict JSON, with two bounds: depth, and the size of the text. A key that appears twice in one object is an
error: one of the two would be lost.
"""

import json
from dataclasses import dataclass
from typing import NoReturn

MAX_TEXT_LENGTH = 4 * 1024 * 1024
MAX_DEPTH = 32
_BLANKS = " \t\n\r"

Scalar = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Node:
    """A value and the line it begins on; a member of an object has the line of its key."""

    value: "dict[str, Node] | list[Node] | Scalar"
    line: int


class LocatedError(Exception):
    """What is wrong, and on which line."""

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(f"line {line}: {problem}")


def parse(text: str) -> Node:
    if len(text) > MAX_TEXT_LENGTH:
        raise LocatedError(1, f"the text has {len(text)} characters, at most {MAX_TEXT_LENGTH} are allowed")
    reader = _Reader(text)
    node = reader.value(0)
    reader.skip_blanks()
    if reader.at < len(text):
        raise reader.error("expected the end of the text")
    return node


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self.at = 0
        self._line = 1
        self._counted = 0

    def error(self, problem: str) -> LocatedError:
        return LocatedError(self._current_line(), problem)

    def skip_blanks(self) -> None:
        while self.at < len(self._text) and self._text[self.at] in _BLANKS:
            self.at += 1

    def value(self, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise self.error(f"values are nested deeper than {MAX_DEPTH} levels")
        self.skip_blanks()
        line = self._current_line()
        match self._text[self.at : self.at + 1]:
            case "{":
                return Node(self._members(depth), line)
            case "[":
                return Node(self._items(depth), line)
            case _:
                return Node(self._scalar(), line)

    def _members(self, depth: int) -> dict[str, Node]:
        members: dict[str, Node] = {}
        self.at += 1
        if self._took("}"):
            return members
        while True:
            self.skip_blanks()
            if self._text[self.at : self.at + 1] != '"':
                raise self.error('expected a key in double quotes, or "}"')
            line = self._current_line()
            key = self._string()
            if key in members:
                raise LocatedError(line, f"the key '{key[:64]}' appears twice")
            if not self._took(":"):
                raise self.error(f"expected ':' behind the key '{key[:64]}'")
            members[key] = Node(self.value(depth + 1).value, line)
            if self._took("}"):
                return members
            if not self._took(","):
                raise self.error("expected ',' or '}'")

    def _items(self, depth: int) -> list[Node]:
        items: list[Node] = []
        self.at += 1
        if self._took("]"):
            return items
        while True:
            items.append(self.value(depth + 1))
            if self._took("]"):
                return items
            if not self._took(","):
                raise self.error("expected ',' or ']'")

    def _string(self) -> str:
        text = self._scalar()
        assert isinstance(text, str)
        return text

    def _scalar(self) -> Scalar:
        try:
            value, self.at = _DECODER.raw_decode(self._text, self.at)
        except json.JSONDecodeError as error:
            raise LocatedError(error.lineno, error.msg[0].lower() + error.msg[1:]) from None
        except ValueError as error:
            raise self.error(str(error)) from None
        if isinstance(value, str) and not _is_text(value):
            raise self.error("the text holds half of a surrogate pair, which is no character")
        scalar: Scalar = value
        return scalar

    def _took(self, mark: str) -> bool:
        self.skip_blanks()
        if self._text.startswith(mark, self.at):
            self.at += 1
            return True
        return False

    def _current_line(self) -> int:
        self._line += self._text.count("\n", self._counted, self.at)
        self._counted = self.at
        return self._line


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
