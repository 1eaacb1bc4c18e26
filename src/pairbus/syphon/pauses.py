"""PURE. Pauses that grow while something keeps failing, and how fast messages may go."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Growth:
    """The n-th pause in a row is `first * factor ** (n - 1)` seconds, at most `longest`.

    Each is shortened by up to the share `jitter`, so that many pumps that failed together do not come back together.
    """

    first: float
    longest: float
    factor: float = 2.0
    jitter: float = 0.25

    def seconds(self, failures: int, draw: float) -> float:
        """`failures` counts from 1; `draw` is a random number from 0 to 1, given from outside."""
        steps = min(failures - 1, 64)
        return min(self.longest, self.first * self.factor**steps) * (1 - self.jitter * draw)


@dataclass(slots=True)
class Pause:
    """One thing left alone: since how many failures, until when, and why."""

    until: float
    failures: int
    cause: str

    @classmethod
    def after(cls, previous: Pause | None, growth: Growth, now: float, draw: float, cause: str) -> Pause:
        failures = previous.failures + 1 if previous is not None else 1
        return cls(now + growth.seconds(failures, draw), failures, cause)


class RateLimit:
    """At most `per_second` messages a second, in the long run; at most one second's worth at once."""

    def __init__(self, per_second: float | None) -> None:
        if per_second is not None and not 0 < per_second < math.inf:
            raise ValueError(f"rate is {per_second!r}; allowed: messages a second, more than 0, or None for no limit.")
        self.per_second = per_second
        self._tokens = max(1.0, per_second or 0.0)
        self._at = -math.inf

    def take(self, wanted: int, now: float) -> int:
        """How many of the wanted messages may go now."""
        if self.per_second is None:
            return wanted
        self._refill(self.per_second, now)
        granted = min(wanted, int(self._tokens))
        self._tokens -= granted
        return granted

    def give_back(self, unused: int) -> None:
        self._tokens += unused

    def next_at(self, now: float) -> float:
        """When the next message may go."""
        if self.per_second is None:
            return now
        self._refill(self.per_second, now)
        return now if self._tokens >= 1 else now + (1 - self._tokens) / self.per_second

    def _refill(self, per_second: float, now: float) -> None:
        if self._at > -math.inf:
            # A hair is added so that waiting until `next_at` is always enough, whatever floats do.
            earned = (now - self._at) * per_second + 1e-9
            self._tokens = min(max(1.0, per_second), self._tokens + earned)
        self._at = now
