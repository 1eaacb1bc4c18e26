"""Sets of sequence numbers as runs: `1-100,105-200` is exactly those 196 numbers.

Rules:
- Runs are sorted, do not touch, and both ends belong to them.
- A part of a stream's batch is a set of runs; its text in a checkpoint says exactly which messages it holds.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field

_END = 1 << 63


@dataclass(frozen=True, slots=True)
class Runs:
    """A set of sequence numbers."""

    pairs: tuple[tuple[int, int], ...] = ()
    _firsts: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_firsts", tuple(first for first, _ in self.pairs))

    @classmethod
    def of(cls, numbers: Iterable[int]) -> Runs:
        """Of numbers in any order."""
        pairs: list[tuple[int, int]] = []
        for number in sorted(set(numbers)):
            if pairs and pairs[-1][1] + 1 == number:
                pairs[-1] = (pairs[-1][0], number)
            else:
                pairs.append((number, number))
        return cls(tuple(pairs))

    @classmethod
    def parse(cls, text: str) -> Runs:
        """From `str(runs)`; ValueError for anything else."""
        pairs: list[tuple[int, int]] = []
        last = -2
        for piece in text.split(",") if text else ():
            first_text, dash, last_text = piece.partition("-")
            try:
                pair = (int(first_text), int(last_text if dash else first_text))
            except ValueError:
                raise ValueError(
                    f"{text!r} is not a set of sequence numbers; expected something like '1-100,105'."
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
        pairs: list[tuple[int, int]] = []
        for first, last in sorted([*self.pairs, *(pair for other in others for pair in other.pairs)]):
            if pairs and first <= pairs[-1][1] + 1:
                pairs[-1] = (pairs[-1][0], max(last, pairs[-1][1]))
            else:
                pairs.append((first, last))
        return Runs(tuple(pairs))

    def without(self, numbers: set[int]) -> Runs:
        """What remains when these are taken out."""
        return Runs.of(number for number in self if number not in numbers) if numbers else self

    def split(self, size: int) -> list[Runs]:
        """In order, into sets of `size` numbers; the last may be smaller."""
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
        """For people: the beginning of a long set, and its size."""
        text = str(Runs(self.pairs[:5]))
        return text if len(self.pairs) <= 5 else f"{text},… ({len(self)} in all)"


NextFrom = Callable[[int], Awaitable[int | None]]
"""The smallest number of an entity at or above the one given, None when there is none."""


async def first_and_last(next_from: NextFrom) -> tuple[int, int] | None:
    """The smallest and the largest number of an entity; None when it is empty.

    It looks at some 2·log2(largest - smallest) single messages: strides that double until nothing is there, then
    halves of what is left.
    """
    first = await next_from(0)
    if first is None:
        return None
    last, stride = first, 1
    above = _END
    while last + stride < above:
        found = await next_from(last + stride)
        if found is None:
            above = last + stride
        else:
            last, stride = found, stride * 2
    while above - last > 1:
        middle = last + (above - last) // 2
        found = await next_from(middle)
        if found is None:
            above = middle
        else:
            last = found
    return first, last


def slices(first: int, last: int, size: int, most: int) -> list[tuple[int, int]]:
    """The numbers from first to last in equal slices of about `size`, at most `most` of them."""
    span = last - first + 1
    count = min(most, -(-span // size))
    edges = [first + span * i // count for i in range(count + 1)]
    return [(edges[i], edges[i + 1] - 1) for i in range(count)]
