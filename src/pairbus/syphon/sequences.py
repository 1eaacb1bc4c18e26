"""PURE. Which messages of a backlog queue may still come before the ones at hand.

A queue numbers its messages in the order they were stored. A pump that holds every number up to the one it wants to
send, or knows that the missing ones are gone, keeps the order by sending in the order of numbers. It cannot know when
another syphon took some of them, or when it released some itself. So:

- A number that was skipped is a *gap*: nobody knows yet. Peeking tells whether a message is there, and for whom.
- A number that is in the queue but not in our hands is *open*. Nothing of the same destination with a higher number
  may be sent until it came to us or is gone.

Numbers of a partitioned queue carry the partition in their upper 16 bits; each partition has an order of its own.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

_PARTITION_SHIFT = 48


class SequenceGuard:
    def __init__(self) -> None:
        self._next: dict[int, int] = {}
        self._gaps: list[tuple[int, int]] = []
        self._open: dict[str, set[int]] = {}
        self._heaps: dict[str, list[int]] = {}

    def __repr__(self) -> str:
        count = sum(map(len, self._open.values()))
        return f"<SequenceGuard open={count} gaps={self._gaps}>"

    def arrived(self, number: int, destination: str) -> None:
        """This message is in our hands now."""
        numbers = self._open.get(destination)
        if numbers is not None:
            numbers.discard(number)
            if not numbers:
                del self._open[destination], self._heaps[destination]
        self.seen(number)

    def seen(self, number: int) -> None:
        """A message with this number exists; everything before it that was not seen is a gap."""
        partition = number >> _PARTITION_SHIFT
        expected = self._next.get(partition, partition << _PARTITION_SHIFT)
        if number < expected:
            return
        if number > expected:
            self._gaps.append((expected, number))
        self._next[partition] = number + 1

    def released(self, number: int, destination: str) -> None:
        """This message is out of our hands and still in the queue."""
        self._open.setdefault(destination, set()).add(number)
        heapq.heappush(self._heaps.setdefault(destination, []), number)

    def next_gap(self, below: int) -> tuple[int, int] | None:
        """The lowest gap that lies before the number `below` in its partition."""
        partition = below >> _PARTITION_SHIFT
        gaps = [gap for gap in self._gaps if gap[0] < below and gap[0] >> _PARTITION_SHIFT == partition]
        return min(gaps, default=None)

    def looked_at(self, gap: tuple[int, int], up_to: int, found: Iterable[tuple[int, str | None]]) -> None:
        """Peeking showed what is in the gap before the number `up_to`: these messages, none of them ours.

        One without a readable destination stands in nobody's way.
        """
        low, high = gap
        self._gaps = [one for one in self._gaps if one != gap]
        if up_to < high:
            self._gaps.append((up_to, high))
        for number, destination in found:
            if low <= number < min(up_to, high) and destination is not None:
                self.released(number, destination)

    def lowest_open(self, destination: str) -> int | None:
        """The lowest number of this destination that is in the queue and not in our hands."""
        numbers = self._open.get(destination)
        if numbers is None:
            return None
        heap = self._heaps[destination]
        while heap[0] not in numbers:
            heapq.heappop(heap)
        return heap[0]

    def doubt(self) -> None:
        """Time has passed: what was open may be gone. Ask again before relying on it."""
        by_partition: dict[int, list[int]] = {}
        for numbers in self._open.values():
            for number in numbers:
                by_partition.setdefault(number >> _PARTITION_SHIFT, []).append(number)
        self._open.clear()
        self._heaps.clear()
        for numbers_of_one in by_partition.values():
            gap = (min(numbers_of_one), max(numbers_of_one) + 1)
            self._gaps = [one for one in self._gaps if not (gap[0] <= one[0] and one[1] <= gap[1])]
            self._gaps.append(gap)

    def forget(self) -> None:
        """Nothing is in our hands any more and everything may have changed."""
        self._next.clear()
        self._gaps.clear()
        self._open.clear()
        self._heaps.clear()
