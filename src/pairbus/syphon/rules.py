"""PURE. What a pump may hold, and how patient it is."""

from __future__ import annotations

from dataclasses import dataclass

from pairbus import envelope
from pairbus.syphon.pauses import Growth

RECEIVE_AT_MOST = 100
PEEK_AT_MOST = 100
MISSING_FOR_SECONDS = 30.0
"""How long a destination that does not exist is taken for missing without asking again."""
REMEMBERED = 4096
"""How many messages that are home a pump remembers, to complete them should they come again."""

_DESTINATION_PAUSES = Growth(first=1.0, longest=120.0)
_PRIMARY_PAUSES = Growth(first=1.0, longest=60.0)
_TURN_PAUSES = Growth(first=0.05, longest=15.0)


@dataclass(frozen=True, slots=True)
class PumpRules:
    """Times are seconds, sizes bytes."""

    policy: envelope.TimeToLivePolicy = "restore"
    batch_messages: int = 100
    batch_bytes: int = 255_000
    in_hand_messages: int = 400
    in_hand_bytes: int = 16 << 20
    parts_bytes: int = 16 << 20
    held_messages: int = 10_000
    stuck_after: float = 2.0
    part_patience: float = 60.0
    destination_pauses: Growth = _DESTINATION_PAUSES
    primary_pauses: Growth = _PRIMARY_PAUSES
    turn_pauses: Growth = _TURN_PAUSES
