"""PURE. What a pump holds: deliveries from the backlog queue, and the messages they make up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(slots=True, eq=False)
class Delivery:
    """One message of a backlog queue, locked for us.

    `raw` is dropped (empty) while the message is only held: then nothing but its lock is needed. `handle` belongs to
    the transport. `renew_at` is the time, on the pump's clock, at which the lock should be renewed.
    `enqueued_ms` is when the queue stored it: with its number, that names the message.
    `destination` is empty as long as nobody could read it; `message_id` and `size` are noted only for records.
    """

    sequence_number: int
    raw: bytes
    handle: Any
    renew_at: float
    enqueued_ms: int = 0
    destination: str = ""
    message_id: str | None = None
    size: int = 0


@dataclass(slots=True, eq=False)
class Item:
    """One message on its way home: one delivery, or all the parts of a message that came in parts.

    `raw` is the backlog form. For a joined message, `enqueued_ms` says when its first part was stored and
    `part_of` what its parts had in common.
    """

    destination: str
    sequence_number: int
    deliveries: tuple[Delivery, ...]
    raw: bytes
    session_id: str | None = None
    enqueued_ms: int | None = None
    part_of: str | None = None

    @property
    def size(self) -> int:
        return len(self.raw)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A delivery that cannot go home, and why. `expired`: its own time was over."""

    delivery: Delivery
    reason: str
    description: str
    expired: bool = False


@dataclass(frozen=True, slots=True)
class Peeked:
    """A message seen in a backlog queue, whoever has it. What cannot be read is None, a size that is not known 0."""

    sequence_number: int
    destination: str | None
    part_of: str | None = None
    enqueued_ms: int = 0
    message_id: str | None = None
    size: int = 0
