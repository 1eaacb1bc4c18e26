"""PURE. Decides which backlog queue takes the next message.

Rules
- A queue that failed is pulled: no sender of the paired client picks it again for `rest_seconds`.
- While at least one queue is not pulled, a pulled one is never picked.
- While all are pulled (the secondary is away), they are tried earlier, so that sends use it soon after it is back: one
  queue per send, after a second, then after two, and so on up to `rest_seconds`.
- The caller brings the random number; nothing here is random.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

_FIRST_PROBE_SECONDS = 1.0
_MOST_DOUBLINGS = 10


@dataclass(slots=True)
class Rotation:
    """The backlog queues of one paired client."""

    queues: Sequence[str]
    rest_seconds: float
    _pulled_until: dict[str, float] = field(default_factory=dict)
    _probes: int = 0
    _probe_at: float = 0.0

    @property
    def is_whole(self) -> bool:
        """No queue has failed since its last success."""
        return not self._pulled_until

    def pick(self, fraction: float, now: float, *, without: Collection[str] = ()) -> str | None:
        """Pick a queue by `fraction` (0 <= fraction < 1), except those in `without`; None if no queue is left."""
        queues = self.queues
        if without or not self.is_whole:
            queues = [queue for queue in queues if queue not in without and self.may_use(queue, now)]
            if not queues and not without and self._may_probe(now):
                queues = self.queues
                self._schedule_probe(now)
        return queues[min(int(fraction * len(queues)), len(queues) - 1)] if queues else None

    def may_use(self, queue: str, now: float) -> bool:
        until = self._pulled_until.get(queue)
        return until is None or now >= until

    def has_other(self, queue: str, now: float) -> bool:
        """Whether a queue besides this one may be used now."""
        return any(other != queue and self.may_use(other, now) for other in self.queues)

    def pull(self, queue: str, now: float) -> bool:
        """Take a queue that failed out of the rotation; True if it was in."""
        was_in = self.may_use(queue, now)
        self._pulled_until[queue] = now + self.rest_seconds
        if was_in:
            self._probes = 0
            self._schedule_probe(now)
        self._probe_at = max(self._probe_at, now + min(_FIRST_PROBE_SECONDS, self.rest_seconds))
        return was_in

    def _schedule_probe(self, now: float) -> None:
        self._probe_at = now + min(_FIRST_PROBE_SECONDS * 2**self._probes, self.rest_seconds)
        self._probes = min(self._probes + 1, _MOST_DOUBLINGS)

    def _may_probe(self, now: float) -> bool:
        return now >= self._probe_at and len(self._pulled_until) == len(self.queues)

    def put_back(self, queue: str) -> bool:
        """Put a queue that took a send back into the rotation; True if it was out."""
        self._probes = 0
        return self._pulled_until.pop(queue, None) is not None

    def in_rotation(self, now: float) -> tuple[str, ...]:
        return tuple(queue for queue in self.queues if self.may_use(queue, now))

    def next_return(self, now: float) -> float | None:
        """When the next pulled queue may be used again; None if none is pulled."""
        soonest = min((until for until in self._pulled_until.values() if until > now), default=None)
        if soonest is None or self.in_rotation(now):
            return soonest
        return min(soonest, max(self._probe_at, now))
