"""PURE. A stream's position, as written to its checkpoint.

    {"v": 1, "entities": {"orders": {"next": 1201, "until": 1700000000000, "parts": ["1001-1100", "1101-1200"]}}}

Rules:
- `parts` are the messages of this batch, one set of sequence numbers for each task. A repeated batch reads exactly
  these messages in the same partitions, whatever arrived or left meanwhile.
- Numbers below `next` are never read again. `until` is the latest enqueued time that was read: a younger message below
  `next` belongs to a recreated entity and is never removed.
- An offset without parts has nothing left to remove. So the offset after the last batch differs from that of the last
  batch, and Spark runs one more, empty, batch, which starts by removing the messages of the last one.
- `left` are messages of earlier batches that could not be removed because another receiver held them. That may be an
  earlier process of ours that died.
- `missing` counts messages that another consumer took after we read and before we removed them. When a restart repeats
  a removal, messages that are gone do not count: the earlier process may have removed them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

VERSION = 1


Pairs = tuple[tuple[int, int], ...]
"""The first and last number of each run, in order."""


def joined(pairs: Iterable[tuple[int, int]]) -> Pairs:
    """The same numbers in as few runs as possible."""
    runs: list[tuple[int, int]] = []
    for first, last in sorted(pairs):
        if runs and first <= runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], max(last, runs[-1][1]))
        else:
            runs.append((first, last))
    return tuple(runs)


@dataclass(frozen=True, slots=True)
class Runs:
    """A set of sequence numbers, as sorted runs that do not touch: `1-100,105-200` holds 196 numbers."""

    pairs: Pairs = ()
    _firsts: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_firsts", tuple(first for first, _ in self.pairs))

    @classmethod
    def of(cls, numbers: Iterable[int]) -> Runs:
        """Collect numbers in any order."""
        return cls(joined((number, number) for number in numbers))

    @classmethod
    def parse(cls, text: str) -> Runs:
        """Parse `str(runs)`. Raises ValueError for any other text."""
        pairs: list[tuple[int, int]] = []
        last = -2
        for piece in text.split(",") if text else ():
            first_text, dash, last_text = piece.partition("-")
            try:
                pair = (int(first_text), int(last_text if dash else first_text))
            except ValueError:
                raise ValueError(
                    f"{text!r} is not a set of sequence numbers. Expected something like '1-100,105'."
                ) from None
            if pair[0] > pair[1] or pair[0] <= last + 1:
                raise ValueError(f"The sequence numbers {text!r} are not in order.")
            pairs.append(pair)
            last = pair[1]
        return cls(tuple(pairs))

    def __str__(self) -> str:
        return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in self.pairs)

    def __len__(self) -> int:
        return sum(last - first + 1 for first, last in self.pairs)

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self._firsts, number) - 1
        return at >= 0 and number <= self.pairs[at][1]

    def __iter__(self) -> Iterator[int]:
        for first, last in self.pairs:
            yield from range(first, last + 1)

    @property
    def first(self) -> int:
        return self.pairs[0][0]

    @property
    def last(self) -> int:
        return self.pairs[-1][1]

    def union(self, others: Iterable[Runs]) -> Runs:
        return Runs(joined(pair for runs in (self, *others) for pair in runs.pairs))

    def without(self, numbers: set[int]) -> Runs:
        """Return the set without these numbers."""
        return Runs.of(number for number in self if number not in numbers) if numbers else self

    def split(self, size: int) -> list[Runs]:
        """Split in order into sets of `size` numbers. The last set may be smaller."""
        parts: list[Runs] = []
        pairs: list[tuple[int, int]] = []
        room = size
        for first, last in self.pairs:
            while first <= last:
                until = min(last, first + room - 1)
                pairs.append((first, until))
                room -= until - first + 1
                first = until + 1
                if not room:
                    parts.append(Runs(tuple(pairs)))
                    pairs, room = [], size
        if pairs:
            parts.append(Runs(tuple(pairs)))
        return parts

    def short(self) -> str:
        """Return text for people: the beginning of a long set, and its size."""
        text = str(Runs(self.pairs[:5]))
        return text if len(self.pairs) <= 5 else f"{text},… ({len(self)} in total)"


@dataclass(frozen=True, slots=True)
class Position:
    """A stream's position in one entity."""

    next: int = 0
    until_ms: int = 0
    parts: tuple[Runs, ...] = ()
    left: Runs = Runs()
    missing: int = 0

    @property
    def runs(self) -> Runs:
        """All messages of this batch."""
        return Runs().union(self.parts)

    def to_json(self) -> dict[str, Any]:
        text: dict[str, Any] = {"next": self.next, "until": self.until_ms}
        if self.parts:
            text["parts"] = [str(part) for part in self.parts]
        if self.left.pairs:
            text["left"] = str(self.left)
        if self.missing:
            text["missing"] = self.missing
        return text

    @classmethod
    def from_json(cls, text: Mapping[str, Any]) -> Position:
        parts = tuple(Runs.parse(part) for part in text.get("parts", ()))
        left, missing = Runs.parse(text.get("left", "")), int(text.get("missing", 0))
        return cls(int(text["next"]), int(text["until"]), parts, left, missing)


@dataclass(frozen=True, slots=True)
class Offset:
    """A stream's position in all of its entities."""

    entities: Mapping[str, Position] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "v": VERSION,
            "entities": {name: position.to_json() for name, position in sorted(self.entities.items())},
        }

    @classmethod
    def from_json(cls, text: Mapping[str, Any]) -> Offset:
        try:
            version, entities = text.get("v"), text.get("entities")
            if version == VERSION and entities is not None:
                return cls({name: Position.from_json(position) for name, position in entities.items()})
        except (AttributeError, KeyError, OverflowError, TypeError) as error:
            raise ValueError(f"The checkpoint's offset is damaged ({error!r}). Start with a new checkpoint.") from None
        raise ValueError(
            f"The checkpoint's offset has version {version!r}, but this connector supports version {VERSION}. Use "
            "the connector that wrote it, or start with a new checkpoint."
        )
