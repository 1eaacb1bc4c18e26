"""PURE. What a pump knows about the sequence numbers of its backlog queue: order, and messages settled recently.

A queue numbers its messages in the order it stored them. A pump keeps the order by sending in the order of numbers,
provided it holds all numbers up to the one it wants to send or knows that the missing ones are gone. It does not know
that if another syphon took some of them, or if it released some itself. So:

- A number that was skipped is in a *gap*: its message may exist. Peeking shows whether it does, and for which
  destination.
- A number that is in the queue but not in our hands is *open*. No message for the same destination with a higher number
  may be sent until the open one arrives or is gone.

The numbers of a partitioned queue carry the partition in their upper 16 bits; each partition has its own order.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterable

from pairbus.syphon.deliveries import Delivery, Peeked

REMEMBERED = 4096
"""How many settled messages a pump remembers, to recognize them if they are delivered again."""
_PARTITION_SHIFT = 48


class SequenceGuard:
    """Knows which messages of a backlog queue may still come before the ones in our hands."""

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
        """A message with this number exists. Unseen numbers before it become a gap."""
        partition = number >> _PARTITION_SHIFT
        expected = self._next.get(partition, partition << _PARTITION_SHIFT)
        if number < expected:
            return
        if number > expected:
            self._gaps.append((expected, number))
        self._next[partition] = number + 1

    def released(self, number: int, destination: str) -> None:
        """This message is no longer in our hands but still in the queue."""
        self._open.setdefault(destination, set()).add(number)
        heapq.heappush(self._heaps.setdefault(destination, []), number)

    def next_gap(self, below: int) -> tuple[int, int] | None:
        """The lowest gap before the number `below` in its partition."""
        if not self._gaps:
            return None
        partition = below >> _PARTITION_SHIFT
        gaps = [gap for gap in self._gaps if gap[0] < below and gap[0] >> _PARTITION_SHIFT == partition]
        return min(gaps, default=None)

    def looked_at(self, gap: tuple[int, int], up_to: int, foreign: Iterable[tuple[int, str | None]]) -> None:
        """Peeking showed the foreign messages (number and destination) of the gap up to the number `up_to`.

        A message without a readable destination blocks nothing.
        """
        low, high = gap
        self._gaps = [other for other in self._gaps if other != gap]
        if up_to < high:
            self._gaps.append((up_to, high))
        for number, destination in foreign:
            if low <= number < min(up_to, high) and destination is not None:
                self.released(number, destination)

    def lowest_open(self, destination: str) -> int | None:
        """The lowest number for this destination that is in the queue and not in our hands."""
        numbers = self._open.get(destination)
        if numbers is None:
            return None
        heap = self._heaps[destination]
        while heap[0] not in numbers:
            heapq.heappop(heap)
        return heap[0]

    def recheck_open(self) -> None:
        """Turn open numbers back into gaps: after some time they may be gone."""
        by_partition: dict[int, list[int]] = {}
        for numbers in self._open.values():
            for number in numbers:
                by_partition.setdefault(number >> _PARTITION_SHIFT, []).append(number)
        self._open.clear()
        self._heaps.clear()
        for numbers_of_partition in by_partition.values():
            gap = (min(numbers_of_partition), max(numbers_of_partition) + 1)
            self._gaps = [other for other in self._gaps if not (gap[0] <= other[0] and other[1] <= gap[1])]
            self._gaps.append(gap)

    def forget(self) -> None:
        """Start over: our hands are empty and everything may have changed."""
        self._next.clear()
        self._gaps.clear()
        self._open.clear()
        self._heaps.clear()


class SettledMessages:
    """The last `REMEMBERED` messages that a pump settled, in case a settlement is lost.

    A number alone does not identify a message: a queue that is deleted and created again counts from 1. The number
    together with the time the queue stored the message does.
    """

    def __init__(self) -> None:
        self._settled: OrderedDict[int, tuple[int, bool]] = OrderedDict()

    def add(self, delivery: Delivery, *, is_home: bool) -> None:
        """`is_home`: if it is delivered again, it only needs to be completed."""
        self._settled[delivery.sequence_number] = (delivery.enqueued_ms, is_home)
        if len(self._settled) > REMEMBERED:
            self._settled.popitem(last=False)

    def is_home(self, delivery: Delivery) -> bool:
        return self._settled.get(delivery.sequence_number) == (delivery.enqueued_ms, True)

    def __contains__(self, peeked: Peeked) -> bool:
        settled = self._settled.get(peeked.sequence_number)
        return settled is not None and settled[0] == peeked.enqueued_ms
