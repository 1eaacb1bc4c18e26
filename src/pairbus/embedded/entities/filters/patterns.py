"""LIKE: `%` stands for any run of characters, `_` for exactly one, all else for itself (case counts).

A pattern is cut at its `%` into pieces of fixed length. The first and the last piece sit at the ends of the text, the
others are looked for from left to right, each at its first place after the previous one: no later place could help, so
nothing is ever tried twice. A piece without `_` is found by `str.find`; one with `_` by a bit mask per character
(bit i: the piece takes this character at i), one step per character of the text. There is no pattern that makes
matching more than linear in the text.
"""

from collections.abc import Callable
from functools import lru_cache

LONGEST_PATTERN = 1_024


class PatternError(ValueError):
    """The pattern means nothing; the text says why."""


class _Piece:
    """A run of characters, some of them `_` (None here)."""

    __slots__ = ("_any", "_masks", "_text", "length")

    def __init__(self, characters: list[str | None]) -> None:
        self.length = len(characters)
        self._text: str | None = None
        self._masks: dict[str, int] = {}
        self._any = 0
        literal = [character for character in characters if character is not None]
        if len(literal) == self.length:
            self._text = "".join(literal)
            return
        for index, character in enumerate(characters):
            if character is None:
                self._any |= 1 << index
        for character in set(literal):
            own = sum(1 << index for index, held in enumerate(characters) if held == character)
            self._masks[character] = own | self._any

    def is_at(self, text: str, start: int) -> bool:
        if self._text is not None:
            return text.startswith(self._text, start)
        return start + self.length <= len(text) and self.find(text, start, start + self.length) == start

    def find(self, text: str, start: int, end: int) -> int:
        """The first place of the piece in text[start:end], or -1."""
        if self._text is not None:
            return text.find(self._text, start, end)
        reached, last = 0, 1 << (self.length - 1)
        masks, wild = self._masks, self._any
        for index in range(start, end):
            reached = ((reached << 1) | 1) & masks.get(text[index], wild)
            if reached & last:
                return index - self.length + 1
        return -1


@lru_cache(maxsize=256)
def compile_pattern(pattern: str, escape: str | None = None) -> Callable[[str], bool]:
    """A test for texts. `escape` before any character makes it stand for itself."""
    if len(pattern) > LONGEST_PATTERN:
        raise PatternError(f"a pattern may have {LONGEST_PATTERN} characters, this one has {len(pattern)}")
    if escape is not None and len(escape) != 1:
        raise PatternError(f"the escape must be one character, this one has {len(escape)}")
    pieces = [_Piece(characters) for characters in _cut(pattern, escape)]
    if len(pieces) == 1:
        only = pieces[0]
        return lambda text: len(text) == only.length and only.is_at(text, 0)
    first, *middle, last = pieces
    fixed = first.length + last.length
    middle = [piece for piece in middle if piece.length]

    def test(text: str) -> bool:
        end = len(text) - last.length
        if len(text) < fixed or not first.is_at(text, 0) or not last.is_at(text, end):
            return False
        start = first.length
        for piece in middle:
            found = piece.find(text, start, end)
            if found < 0:
                return False
            start = found + piece.length
        return True

    return test


def _cut(pattern: str, escape: str | None) -> list[list[str | None]]:
    pieces: list[list[str | None]] = [[]]
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            escaped = next(characters, None)
            if escaped is None:
                raise PatternError("the pattern ends with the escape character and nothing after it")
            pieces[-1].append(escaped)
        elif character == "%":
            pieces.append([])
        elif character == "_":
            pieces[-1].append(None)
        else:
            pieces[-1].append(character)
    return pieces
