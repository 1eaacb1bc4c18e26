"""PURE. The messages of a batch as their destination gets them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pairbus import envelope
from pairbus.syphon import letters
from pairbus.syphon.deliveries import DeadLetter, Item


@dataclass(frozen=True, slots=True)
class RestoredBatch:
    """What can go, with its restored form, and what cannot, with the reason."""

    items: tuple[Item, ...]
    raws: tuple[bytes, ...]
    stay: tuple[Item, ...]
    dead: tuple[DeadLetter, ...]


def restored(batch: Sequence[Item], policy: envelope.TimeToLivePolicy, now_ms: int) -> RestoredBatch:
    items: list[Item] = []
    raws: list[bytes] = []
    stay: list[Item] = []
    dead: list[DeadLetter] = []
    for item in batch:
        try:
            found = envelope.restore(item.raw, now_ms=now_ms, policy=policy, enqueued_ms=item.enqueued_ms)
        except letters.UNREADABLE as error:
            stay.append(item)
            dead += [letters.unreadable(one, error) for one in item.deliveries]
            continue
        if isinstance(found, envelope.Expired):
            stay.append(item)
            dead += letters.expired_letters(item, found)
            continue
        items.append(item)
        raws.append(found.raw)
    return RestoredBatch(tuple(items), tuple(raws), tuple(stay), tuple(dead))
