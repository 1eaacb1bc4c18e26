"""PURE. The messages a pump holds: deliveries from the backlog queue, and the items they make up.

Reasons for dead-lettering:

| reason | cause |
|---|---|
| `DestinationMissing` | no `x-ms-path` |
| `AliasUnreadable` | an alias of a wrong type |
| `PartUnusable`, `PartMissing` | a part that fits no message, or whose siblings are gone |
| `MessageUnreadable` | not a valid AMQP message |
| `DestinationNotFound` | the destination does not exist |
| `MessageRefused` | the destination refused it permanently |
| `TTLExpiredException` | policy "deduct": its time to live is over |
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pairbus import envelope
from pairbus.envelope import BacklogMessage
from pairbus.errors import AliasError, DestinationMissingError, PartError


class Delivery:
    """One message of a backlog queue, locked by us.

    `handle` belongs to the transport. `renew_at` is the time, on the pump's clock, to renew the lock. Together,
    `sequence_number` and `enqueued_ms` (the time the queue stored the message) identify the message.
    """

    __slots__ = ("enqueued_ms", "handle", "message", "renew_at", "sequence_number")

    def __init__(self, message: BacklogMessage, handle: Any, renew_at: float) -> None:
        self.message = message
        self.handle = handle
        self.renew_at = renew_at
        self.sequence_number = message.sequence_number
        self.enqueued_ms = message.enqueued_ms

    def __repr__(self) -> str:
        return f"<Delivery {self.sequence_number} for {self.message.destination!r}>"

    def drop_content(self) -> None:
        """Keep only the lock, and what the records need."""
        if self.message.raw:
            self.message = self.message.without_content()


@dataclass(slots=True, eq=False)
class Item:
    """One message on its way home: one delivery, or all parts of a message that travelled in parts.

    For a joined message, `enqueued_ms` is the time its first part was stored, and `part_of` the id its parts share.
    """

    destination: str
    sequence_number: int
    deliveries: tuple[Delivery, ...]
    message: BacklogMessage
    enqueued_ms: int | None = None
    part_of: str | None = None


@dataclass(frozen=True, slots=True)
class Peeked:
    """A message seen in a backlog queue, locked or not. `destination` is None if it is unreadable."""

    sequence_number: int
    destination: str | None
    part_of: str | None = None
    enqueued_ms: int = 0
    message_id: str | None = None
    size: int = 0

    @classmethod
    def of(cls, message: BacklogMessage) -> Peeked:
        return cls(
            message.sequence_number,
            message.destination or None,
            message.part.of if message.part is not None else None,
            message.enqueued_ms,
            message.message_id,
            message.size,
        )


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A delivery that cannot go home, and why. `expired`: its time to live is over."""

    delivery: Delivery
    reason: str
    description: str
    expired: bool = False


_REASONS: dict[type[Exception], str] = {
    DestinationMissingError: "DestinationMissing",
    AliasError: "AliasUnreadable",
    PartError: "PartUnusable",
}


def unreadable(delivery: Delivery, error: Exception) -> DeadLetter:
    reason = _REASONS.get(type(error), "MessageUnreadable")
    return DeadLetter(delivery, reason, str(error) or type(error).__name__)


def refused(item: Item, error: Exception) -> list[DeadLetter]:
    text = f"The destination {item.destination!r} refused the message permanently: {error}"
    return [DeadLetter(delivery, "MessageRefused", text) for delivery in item.deliveries]


def destination_not_found(deliveries: Iterable[Delivery], destination: str) -> list[DeadLetter]:
    text = f"The destination {destination!r} does not exist in the primary namespace."
    return [DeadLetter(delivery, "DestinationNotFound", text) for delivery in deliveries]


def _expired(item: Item, expired: envelope.Expired) -> list[DeadLetter]:
    text = f"The message's time to live ended {expired.late_ms} ms before it could be sent home."
    return [DeadLetter(delivery, "TTLExpiredException", text, expired=True) for delivery in item.deliveries]


@dataclass(frozen=True, slots=True)
class RestoredBatch:
    """The items that can be sent with their restored messages, and the items that cannot with their dead letters."""

    items: tuple[Item, ...]
    raws: tuple[bytes, ...]
    failed: tuple[Item, ...]
    dead_letters: tuple[DeadLetter, ...]


def restore_batch(batch: Sequence[Item], policy: envelope.TimeToLivePolicy, now_ms: int) -> RestoredBatch:
    items: list[Item] = []
    raws: list[bytes] = []
    failed: list[Item] = []
    dead_letters: list[DeadLetter] = []
    for item in batch:
        try:
            outcome = envelope.restore(item.message, now_ms=now_ms, policy=policy, enqueued_ms=item.enqueued_ms)
        except envelope.UNREADABLE as error:
            failed.append(item)
            dead_letters += [unreadable(delivery, error) for delivery in item.deliveries]
            continue
        if isinstance(outcome, envelope.Expired):
            failed.append(item)
            dead_letters += _expired(item, outcome)
            continue
        items.append(item)
        raws.append(outcome.raw)
    return RestoredBatch(tuple(items), tuple(raws), tuple(failed), tuple(dead_letters))
