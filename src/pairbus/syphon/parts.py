"""PURE. Joining messages that were carried in parts.

Parts wait here, locked, until their siblings are there. The siblings of a part stand in the same backlog queue, close
to it: the sender sent them one after the other and began again with a fresh id if one failed. So a part that stays
alone longer than any sender tries, and whose siblings are not in the queue, is given up: dead-lettered, like each of
its kind that is there. Siblings in the hands of another syphon come together: see `sought`.

The parts of a message that is home leave the queue together or not at all (`Complete.part_of`): a part whose siblings
are gone would look like one that its sender gave up. So if their completion failed, they are gathered here once more
when they come again, and completed instead of sent.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from pairbus import envelope
from pairbus.errors import PartError
from pairbus.syphon.deliveries import Delivery, Item
from pairbus.syphon.rules import REMEMBERED


@dataclass(slots=True)
class _Assembly:
    destination: str
    count: int
    since: float
    enqueued_ms: int | None
    parts: dict[int, envelope.Part] = field(default_factory=dict)
    deliveries: dict[int, list[Delivery]] = field(default_factory=dict)
    """Of each part the one that came first, and copies of it."""
    checks: int = 0
    sought: bool = False

    @property
    def check_at(self) -> float:
        """When to look for the siblings: after 1, 4, 16 ... seconds alone."""
        return self.since + 4.0**self.checks

    @property
    def lowest(self) -> int:
        return min(delivery.sequence_number for delivery in self.everything())

    def everything(self) -> list[Delivery]:
        found = [delivery for copies in self.deliveries.values() for delivery in copies]
        return sorted(found, key=lambda delivery: delivery.sequence_number)


class PartsBin:
    """The incomplete messages of one pump, oldest first."""

    def __init__(self, patience: float, limit_bytes: int) -> None:
        self._patience = patience
        self._limit_bytes = limit_bytes
        self._assemblies: dict[str, _Assembly] = {}
        self._home: dict[str, bool] = {}
        """Messages that went home lately; True: their parts are gone from the queue."""
        self.size = 0

    def is_home(self, of: str) -> bool:
        return of in self._home

    def is_gone(self, of: str) -> bool:
        """Whether the message is home and its parts have left the queue: what still comes is a copy."""
        return self._home.get(of, False)

    def add(self, message: envelope.BacklogMessage, delivery: Delivery, now: float) -> Item | None:
        """Take a part; the whole message if this was the last one missing. Raises `PartError` for a foreign count."""
        part = message.part
        assert part is not None
        found = self._assemblies.get(part.of)
        if found is None:
            found = _Assembly(message.destination, part.count, now, message.enqueued_ms)
            self._assemblies[part.of] = found
        if found.count != part.count or found.destination != message.destination:
            raise PartError(
                f"Part {part.number} of {part.count} for {message.destination!r} does not belong to the message of "
                f"{found.count} parts for {found.destination!r} that has the same id."
            )
        delivery.raw = b""  # the part's content is kept, not the message around it
        found.deliveries.setdefault(part.number, []).append(delivery)
        if part.number in found.parts:
            return None
        found.parts[part.number] = part
        self.size += len(part.content)
        if len(found.parts) < found.count:
            return None
        self._remove(part.of)
        return Item(
            found.destination,
            delivery.sequence_number,
            tuple(found.everything()),
            envelope.join(list(found.parts.values())),
            enqueued_ms=found.enqueued_ms,
            part_of=part.of,
        )

    def went_home(self, of: str) -> list[Delivery]:
        """The joined message was taken by its destination: more copies of its parts are of no use to anyone."""
        self._home[of] = False
        if len(self._home) > REMEMBERED:
            del self._home[next(iter(self._home))]
        return self._take(of)

    def gone(self, of: str) -> list[Delivery]:
        """The parts of a message that is home have left the queue; copies that came meanwhile may leave too."""
        self._home[of] = True
        return self._take(of)

    def _take(self, of: str) -> list[Delivery]:
        found = self._assemblies.get(of)
        if found is None:
            return []
        self._remove(of)
        return found.everything()

    def next_deadline(self) -> float | None:
        """When an incomplete message will have to be looked after."""
        return min((one.check_at for one in self._assemblies.values() if not one.sought), default=None)

    def to_seek(self, now: float) -> list[tuple[str, int, int | None]]:
        """Messages whose missing parts should be looked for, the lowest number we have of each, and, once our patience
        is over, the time up to which the sender may have stored the last of them.
        """
        due = [(of, one) for of, one in self._assemblies.items() if not one.sought and now >= one.check_at]
        for _, one in due:
            one.sought = True
            one.checks += 1
        return [
            (of, one.lowest, self._latest_ms(one) if now >= one.since + self._patience else None) for of, one in due
        ]

    def _latest_ms(self, one: _Assembly) -> int:
        return max(delivery.enqueued_ms for delivery in one.everything()) + round(self._patience * 1000)

    def sought(self, of: str, elsewhere: Collection[int], *, last: bool) -> tuple[list[Delivery], list[Delivery], str]:
        """Siblings are in the queue under these numbers, in other hands or in nobody's. What to release, what to give
        up, and why. `last`: it was looked wherever they could be.

        Whoever has the first one keeps it and waits; the others let go, so that all parts come into one hand.
        """
        one = self._assemblies.get(of)
        if one is None:
            return [], [], ""
        one.sought = False
        if elsewhere:
            if min(elsewhere) > one.lowest:
                return [], [], ""
            self._remove(of)
            return one.everything(), [], ""
        if not last:
            return [], [], ""
        self._remove(of)
        missing = sorted(set(range(1, one.count + 1)) - set(one.parts))
        return [], one.everything(), _lonely(one, missing)

    def overflow(self) -> list[Delivery]:
        """Take out the messages that do not fit into the bin: the newest ones."""
        dropped: list[Delivery] = []
        for of in reversed(list(self._assemblies)):
            if self.size <= self._limit_bytes or len(self._assemblies) == 1:
                break
            dropped.extend(self._assemblies[of].everything())
            self._remove(of)
        return dropped

    def clear(self) -> list[Delivery]:
        """Take everything out."""
        taken = [delivery for one in self._assemblies.values() for delivery in one.everything()]
        self._assemblies.clear()
        self.size = 0
        return taken

    def drop(self, lost: set[int]) -> None:
        """Forget the deliveries with these sequence numbers: their locks are gone."""
        for of, one in list(self._assemblies.items()):
            for number, copies in list(one.deliveries.items()):
                left = [copy for copy in copies if copy.sequence_number not in lost]
                if left:
                    one.deliveries[number] = left
                else:
                    self.size -= len(one.parts.pop(number).content)
                    del one.deliveries[number]
            if not one.parts:
                del self._assemblies[of]

    def _remove(self, of: str) -> None:
        one = self._assemblies.pop(of)
        self.size -= sum(len(part.content) for part in one.parts.values())


def _lonely(one: _Assembly, missing: list[int]) -> str:
    numbers = ", ".join(map(str, missing[:20]))
    return (
        f"Of the {one.count} parts of this message the numbers {numbers} are not in the backlog queue. "
        "The sender began again if it was told of the failure; this part is kept here."
    )
