"""When to renew a lock: at half of what is left of it."""

from __future__ import annotations

import time

_ASSUMED_SECONDS = 20.0
_LONGEST_SECONDS = 310.0


def renew_after(now: float, locked_until: float | None) -> float:
    """When (on the loop's clock) to renew a lock that ends at `locked_until` (seconds since the epoch).

    The service's clock and ours may differ. An end that cannot be, because no lock is that long, says that they do.
    """
    left = locked_until - time.time() if locked_until is not None else -1.0
    return now + (left if 0 < left <= _LONGEST_SECONDS else _ASSUMED_SECONDS) / 2
