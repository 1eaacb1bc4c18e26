"""PURE. What a pump settled lately, so that it knows it again should the settlement be lost.

A number alone does not name a message: a backlog queue that was deleted and made again counts from 1. The number and
the time at which the queue stored the message do.
"""

from __future__ import annotations

from pairbus.syphon.deliveries import Delivery, Peeked
from pairbus.syphon.rules import REMEMBERED


class SettledLately:
    """The last `REMEMBERED` messages that left our hands for good, home or not."""

    def __init__(self) -> None:
        self._settled: dict[int, tuple[int, bool]] = {}

    def note(self, delivery: Delivery, *, home: bool) -> None:
        """`home`: should it come again, it need only be completed."""
        self._settled[delivery.sequence_number] = (delivery.enqueued_ms, home)
        if len(self._settled) > REMEMBERED:
            del self._settled[next(iter(self._settled))]

    def is_home(self, delivery: Delivery) -> bool:
        return self._settled.get(delivery.sequence_number) == (delivery.enqueued_ms, True)

    def has(self, seen: Peeked) -> bool:
        found = self._settled.get(seen.sequence_number)
        return found is not None and found[0] == seen.enqueued_ms
