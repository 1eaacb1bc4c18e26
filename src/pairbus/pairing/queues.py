"""What a backlog queue is made of, and how one that exists differs from that."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

LARGEST_TIME_SPAN = "P10675199DT2H48M5.4775807S"
_LARGEST = timedelta(days=10675199, hours=2, minutes=48, seconds=5, microseconds=477580)

SETTINGS: dict[str, Any] = {
    "max_size_in_megabytes": 5120,
    "max_delivery_count": 2147483647,
    "default_message_time_to_live": LARGEST_TIME_SPAN,
    "auto_delete_on_idle": LARGEST_TIME_SPAN,
    "lock_duration": timedelta(minutes=1),
    "dead_lettering_on_message_expiration": True,
    "enable_batched_operations": True,
}
"""The settings a missing backlog queue is created with; everything else is the service's default."""


@dataclass(frozen=True, slots=True)
class BacklogQueues:
    """The backlog queues of a pairing: those it found, those it created, and those in rotation now."""

    found: tuple[str, ...]
    created: tuple[str, ...]
    in_rotation: tuple[str, ...]


def differences(properties: Any) -> dict[str, Any]:
    """The settings of an existing queue that are not those of `SETTINGS`, with the queue's own values."""
    return {
        name: getattr(properties, name)
        for name, wanted in SETTINGS.items()
        if not _same(getattr(properties, name), wanted)
    }


def _same(actual: Any, wanted: Any) -> bool:
    return bool(_comparable(actual) == _comparable(wanted))


def _comparable(value: Any) -> Any:
    # The service prints the largest time span with seven digits; the SDK's timedelta keeps six of them.
    if value == LARGEST_TIME_SPAN:
        return _LARGEST
    if isinstance(value, timedelta) and value >= timedelta(days=10675199):
        return _LARGEST
    return value
