"""Looking ahead: which messages the next batch of a stream will hold.

The driver peeks forward and notes numbers and sizes, nothing else. The limits of a batch are exact, except that one
message is always taken: a message larger than the limit would stop the stream for ever.
"""

from __future__ import annotations

from dataclasses import dataclass

from pairbus.amqp.message import read_stamps
from pairbus.pipeline.servicebus.messages import ACTIVE
from pairbus.pipeline.servicebus.ranges import Runs
from pairbus.pipeline.servicebus.wire import PEEK_AT_MOST, Wire

MOST_RUNS = 2_000
"""A batch ends after so many runs of numbers: its text in the checkpoint stays small, however many gaps there are."""
_UNLIMITED = 1 << 62


@dataclass(slots=True)
class Budget:
    """How much a batch may still take."""

    messages: int
    size: int

    @classmethod
    def unlimited(cls) -> Budget:
        return cls(_UNLIMITED, _UNLIMITED)

    def share(self, entities_left: int) -> Budget:
        """A fair share for the next of so many entities."""
        return Budget(-(-self.messages // entities_left), -(-self.size // entities_left))

    def spend(self, messages: int, size: int) -> None:
        self.messages = max(0, self.messages - messages)
        self.size = max(0, self.size - size)


@dataclass(frozen=True, slots=True)
class Seen:
    """Active messages ahead; `looked` is the number from which the next look may begin."""

    runs: Runs
    size: int
    until_ms: int
    looked: int


async def look(wire: Wire, entity: str, first: int, last: int | None, budget: Budget) -> Seen:
    """The active messages from number `first` on, up to `last` and as many as the budget allows."""
    pairs: list[list[int]] = []
    count = size = until_ms = 0
    number = first
    while budget.messages > count:
        raws = await wire.peek(entity, number, min(PEEK_AT_MOST, budget.messages - count))
        for raw in raws:
            seen = read_stamps(raw)
            if last is not None and seen.sequence_number > last:
                return Seen(_runs(pairs), size, until_ms, number)
            if seen.state == ACTIVE:
                new_run = not pairs or pairs[-1][1] + 1 != seen.sequence_number
                if count and (size + len(raw) > budget.size or (new_run and len(pairs) >= MOST_RUNS)):
                    return Seen(_runs(pairs), size, until_ms, number)
                if new_run:
                    pairs.append([seen.sequence_number, seen.sequence_number])
                else:
                    pairs[-1][1] = seen.sequence_number
                count += 1
                size += len(raw)
                until_ms = max(until_ms, seen.enqueued_ms)
            number = seen.sequence_number + 1
        if not raws:
            break
    return Seen(_runs(pairs), size, until_ms, number)


def _runs(pairs: list[list[int]]) -> Runs:
    return Runs(tuple((first, last) for first, last in pairs))


async def low_numbers(wire: Wire, entity: str, below: int, until_ms: int) -> tuple[Runs, Runs]:
    """Active messages at the entity's head whose numbers are below this one: those up to a time, and younger ones."""
    seen = [read_stamps(raw) for raw in await wire.peek(entity, 0, PEEK_AT_MOST)]
    low = [one for one in seen if one.state == ACTIVE and one.sequence_number < below]
    old = Runs.of(one.sequence_number for one in low if one.enqueued_ms <= until_ms)
    return old, Runs.of(one.sequence_number for one in low if one.enqueued_ms > until_ms)
