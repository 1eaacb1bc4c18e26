"""PURE. Why a message is dead-lettered: the reasons, and descriptions that name the cause.

| reason | cause |
|---|---|
| `DestinationMissing` | no `x-ms-path` |
| `AliasUnreadable` | an alias of a wrong type |
| `PartUnusable`, `PartMissing` | a part that fits no message, or whose siblings are not there |
| `MessageUnreadable` | not a valid AMQP message |
| `DestinationNotFound` | the destination does not exist |
| `MessageRefused` | the destination refused it for good |
| `TTLExpiredException` | "deduct": its own time was over |
"""

from __future__ import annotations

from collections.abc import Iterable

from pairbus import envelope
from pairbus.errors import AliasError, DestinationMissingError, EnvelopeError, PartError
from pairbus.syphon.deliveries import DeadLetter, Delivery, Item

UNREADABLE = (EnvelopeError, ValueError, ArithmeticError, LookupError, TypeError)
"""Whatever the bytes of one message can make a reader raise: it concerns that message and no other."""


def refused(item: Item, error: Exception) -> list[DeadLetter]:
    text = f"The destination {item.destination!r} refused the message for good: {error}"
    return [DeadLetter(delivery, "MessageRefused", text) for delivery in item.deliveries]


def unreadable(delivery: Delivery, error: Exception) -> DeadLetter:
    match error:
        case DestinationMissingError():
            reason = "DestinationMissing"
        case AliasError():
            reason = "AliasUnreadable"
        case PartError():
            reason = "PartUnusable"
        case _:
            reason = "MessageUnreadable"
    return DeadLetter(delivery, reason, str(error) or type(error).__name__)


def missing(deliveries: Iterable[Delivery], destination: str) -> list[DeadLetter]:
    text = f"The destination {destination!r} does not exist in the primary namespace."
    return [DeadLetter(delivery, "DestinationNotFound", text) for delivery in deliveries]


def expired_letters(item: Item, expired: envelope.Expired) -> list[DeadLetter]:
    text = f"The message's own time to live was over for {expired.late_ms} ms when it could have gone home."
    return [DeadLetter(delivery, "TTLExpiredException", text, expired=True) for delivery in item.deliveries]
