"""PURE. One destination's messages in one pump, in their order.

A lane has at most one send under way, so a failure never lets a later message pass an earlier one. While its
destination is left alone, a lane keeps one message whole (to try with) and of the others nothing but their locks: they
do not come back to us and do not stand in the way of other destinations. When the destination takes the first one, the
others are released and come again, in order.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from pairbus.amqp.message import BATCH_ENTRY_BYTES
from pairbus.syphon.deliveries import Delivery, Item
from pairbus.syphon.pauses import Pause


@dataclass(slots=True)
class Lane:
    destination: str
    waiting: deque[Item] = field(default_factory=deque)
    under_way: tuple[Item, ...] = ()
    started_at: float = 0.0
    held: list[Delivery] = field(default_factory=list)
    pause: Pause | None = None
    missing_until: float = 0.0
    token_refusals: int = 0
    """How often in a row the primary did not accept our credential at all, and since when."""
    refused_since: float = 0.0
    most: int = 1_000_000
    """How many messages the next batch may have: fewer while a refused one is searched for."""
    one_session_each: bool = False
    """The destination refused a batch: perhaps because its messages had different sessions."""

    @property
    def empty(self) -> bool:
        return not (self.waiting or self.under_way or self.held)

    def stuck(self, now: float, after: float) -> bool:
        return bool(self.under_way) and now >= self.started_at + after

    def add(self, item: Item) -> None:
        """Put a message into its place: what was released, by us or by another syphon, may come after later ones."""
        later = []
        while self.waiting and self.waiting[-1].sequence_number > item.sequence_number:
            later.append(self.waiting.pop())
        self.waiting.append(item)
        self.waiting.extend(reversed(later))

    def cut(self, most: int, most_bytes: int) -> list[Item]:
        """Take the next batch off the front; at least one message."""
        items = [self.waiting.popleft()]
        size = items[0].size + BATCH_ENTRY_BYTES
        while self.waiting and len(items) < min(most, self.most):
            item = self.waiting[0]
            if self.one_session_each and item.session_id != items[0].session_id:
                break
            size += item.size + BATCH_ENTRY_BYTES
            if size > most_bytes:
                break
            items.append(self.waiting.popleft())
        return items

    def put_back(self, items: tuple[Item, ...]) -> None:
        self.waiting.extendleft(reversed(items))

    def hold_all_but_first(self) -> int:
        """Keep only the locks of what waits behind the first message; how many bytes that sets free."""
        freed = 0
        while len(self.waiting) > 1:
            item = self.waiting.pop()
            freed += item.size
            self.held.extend(item.deliveries)
            item.raw = b""
        for delivery in self.held:
            delivery.raw = b""
        return freed

    def take_all(self) -> list[Delivery]:
        """Everything that is not under way, lowest number first."""
        taken = [delivery for item in self.waiting for delivery in item.deliveries] + self.held
        self.waiting.clear()
        self.held = []
        return sorted(taken, key=lambda delivery: delivery.sequence_number)
