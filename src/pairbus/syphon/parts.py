"""PURE. Joining messages that travel in parts.

Parts wait here, locked, until their siblings arrive. The siblings of a part are in the same backlog queue, close to it:
the sender sends them one after the other, and starts over with a fresh id if one fails. So a part is given up if it
stays alone for longer than any sender tries and its siblings are not in the queue: it is dead-lettered, like all its
siblings that arrived. If another syphon holds siblings, `sought` brings them together.

The parts of a message that is home leave the queue together or not at all (`Complete.part_of`): a part whose siblings
are gone would look like one that its sender gave up. If their completion failed, they are collected here again when
they are delivered again, and then completed instead of sent.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from pairbus import envelope
from pairbus.errors import PartError
from pairbus.syphon.deliveries import Delivery, Item
from pairbus.syphon.sequences import REMEMBERED


@dataclass(slots=True)
class _Assembly:
    destination: str
    count: int
    since: float
    enqueued_ms: int
    parts: dict[int, envelope.Part] = field(default_factory=dict)
    deliveries: dict[int, list[Delivery]] = field(default_factory=dict)
    """The deliveries of each part: more than one if it was delivered again."""
    checks: int = 0
    is_sought: bool = False

    @property
    def check_at(self) -> float:
        """When to look for the siblings: after 1, 4, 16 ... seconds."""
        return self.since + 4.0**self.checks

    @property
    def lowest(self) -> int:
        return min(delivery.sequence_number for delivery in self.everything())

    def everything(self) -> list[Delivery]:
        deliveries = [delivery for copies in self.deliveries.values() for delivery in copies]
        return sorted(deliveries, key=lambda delivery: delivery.sequence_number)


class PartsBin:
    """The incomplete messages of one pump, oldest first."""

    def __init__(self, patience: float, limit_bytes: int) -> None:
        self._patience = patience
        self._limit_bytes = limit_bytes
        self._assemblies: dict[str, _Assembly] = {}
        self._home: dict[str, bool] = {}
        """Messages that went home recently; True if their parts have left the queue."""
        self.size = 0

    def is_home(self, of: str) -> bool:
        return of in self._home

    def is_gone(self, of: str) -> bool:
        """Whether the message is home and its parts have left the queue, so that a further part is a copy."""
        return self._home.get(of, False)

    def add(self, delivery: Delivery, now: float) -> Item | None:
        """Add a part; returns the whole message if this was the last missing part.

        Raises `PartError` for a part whose count or destination differs from its siblings'.
        """
        message = delivery.message
        part = message.part
        assert part is not None
        assembly = self._assemblies.get(part.of)
        if assembly is None:
            assembly = _Assembly(message.destination, part.count, now, message.enqueued_ms)
            self._assemblies[part.of] = assembly
        if assembly.count != part.count or assembly.destination != message.destination:
            raise PartError(
                f"Part {part.number} of {part.count} for {message.destination!r} does not belong to the message of "
                f"{assembly.count} parts for {assembly.destination!r} with the same id."
            )
        delivery.drop_content()  # the assembly keeps the content of the part
        assembly.deliveries.setdefault(part.number, []).append(delivery)
        if part.number in assembly.parts:
            return None
        assembly.parts[part.number] = part
        self.size += len(part.content)
        if len(assembly.parts) < assembly.count:
            return None
        self._remove(part.of)
        return Item(
            assembly.destination,
            delivery.sequence_number,
            tuple(assembly.everything()),
            envelope.inspect(envelope.join(list(assembly.parts.values()))),
            assembly.enqueued_ms or None,
            part.of,
        )

    def went_home(self, of: str) -> list[Delivery]:
        """The destination took the joined message. Returns the further copies of its parts, which are useless now."""
        self._home[of] = False
        if len(self._home) > REMEMBERED:
            del self._home[next(iter(self._home))]
        return self._take(of)

    def gone(self, of: str) -> list[Delivery]:
        """The parts of a message that is home have left the queue. Returns the copies that arrived meanwhile."""
        self._home[of] = True
        return self._take(of)

    def _take(self, of: str) -> list[Delivery]:
        assembly = self._assemblies.get(of)
        if assembly is None:
            return []
        self._remove(of)
        return assembly.everything()

    def next_deadline(self) -> float | None:
        """When to look for missing parts next."""
        return min((each.check_at for each in self._assemblies.values() if not each.is_sought), default=None)

    def to_seek(self, now: float) -> list[tuple[str, int, int | None]]:
        """The messages whose missing parts should be looked for now: the shared id, our lowest sequence number and,
        once our patience is over, the latest time at which the sender may have stored a part.
        """
        if not self._assemblies:
            return []
        due = []
        for of, assembly in self._assemblies.items():
            if not assembly.is_sought and now >= assembly.check_at:
                assembly.is_sought = True
                assembly.checks += 1
                is_last = now >= assembly.since + self._patience
                due.append((of, assembly.lowest, self._latest_ms(assembly) if is_last else None))
        return due

    def _latest_ms(self, assembly: _Assembly) -> int:
        return max(delivery.enqueued_ms for delivery in assembly.everything()) + round(self._patience * 1000)

    def sought(
        self, of: str, elsewhere: Collection[int], *, is_last: bool
    ) -> tuple[list[Delivery], list[Delivery], str]:
        """Seeking found siblings with these sequence numbers, locked or not. Returns the deliveries to
        release, the deliveries to give up, and why. `is_last`: the search covered every place they could be.

        The receiver of the lowest number keeps its parts and waits. The others release theirs, so that one receiver
        gets them all.
        """
        assembly = self._assemblies.get(of)
        if assembly is None:
            return [], [], ""
        assembly.is_sought = False
        if elsewhere:
            if min(elsewhere) > assembly.lowest:
                return [], [], ""
            self._remove(of)
            return assembly.everything(), [], ""
        if not is_last:
            return [], [], ""
        self._remove(of)
        missing = sorted(set(range(1, assembly.count + 1)) - set(assembly.parts))
        numbers = ", ".join(map(str, missing[:20]))
        text = (
            f"Parts {numbers} of the {assembly.count} parts of this message are not in the backlog queue. The sender "
            "starts over after a failed part, so the message may have arrived under another id."
        )
        return [], assembly.everything(), text

    def overflow(self) -> list[Delivery]:
        """Remove the newest messages if the bin is too full."""
        dropped: list[Delivery] = []
        for of in reversed(list(self._assemblies)):
            if self.size <= self._limit_bytes or len(self._assemblies) == 1:
                break
            dropped.extend(self._take(of))
        return dropped

    def clear(self) -> list[Delivery]:
        """Remove everything."""
        return [delivery for of in list(self._assemblies) for delivery in self._take(of)]

    def drop(self, lost: set[int]) -> None:
        """Forget the deliveries with these sequence numbers: their locks are gone."""
        for of, assembly in list(self._assemblies.items()):
            for number, copies in list(assembly.deliveries.items()):
                left = [copy for copy in copies if copy.sequence_number not in lost]
                if left:
                    assembly.deliveries[number] = left
                else:
                    self.size -= len(assembly.parts.pop(number).content)
                    del assembly.deliveries[number]
            if not assembly.parts:
                del self._assemblies[of]

    def _remove(self, of: str) -> None:
        assembly = self._assemblies.pop(of)
        self.size -= sum(len(part.content) for part in assembly.parts.values())
