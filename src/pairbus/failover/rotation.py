"""Which backlog queue takes the next message.

Rules
- A queue that failed is pulled: it is not picked again for `rest_seconds`, by any sender of the paired
  client.
- While at least one queue is not pulled, a pulled one is never picked.
- The choice is the caller's random number, made into a choice here: nothing here is random.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Rotation:
    """The backlog queues of one paired client."""

    queues: Sequence[str]
    rest_seconds: float
    _pulled_until: dict[str, float] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        """No queue has failed since its last success."""
        return not self._pulled_until

    def pick(self, fraction: float, now: float, *, without: Collection[str] = ()) -> str | None:
        """A queue that may be tried now, chosen by `fraction` (0 <= fraction < 1); None if there is none.

        `without` names the queues that this very send has already tried.
        """
        if self.is_whole and not without:
            return self.queues[min(int(fraction * len(self.queues)), len(self.queues) - 1)]
        free = [queue for queue in self.queues if queue not in without and self.may_use(queue, now)]
        if not free:
            return None
        return free[min(int(fraction * len(free)), len(free) - 1)]

    def may_use(self, queue: str, now: float) -> bool:
        until = self._pulled_until.get(queue)
        return until is None or now >= until

    def has_other(self, queue: str, now: float) -> bool:
        """Whether a queue besides this one may be tried now."""
        return any(other != queue and self.may_use(other, now) for other in self.queues)

    def pull(self, queue: str, now: float) -> bool:
        """Take the queue out of the rotation; True if it was in."""
        was_in = self.may_use(queue, now)
        self._pulled_until[queue] = now + self.rest_seconds
        return was_in

    def put_back(self, queue: str) -> bool:
        """A send to the queue succeeded; True if it had been pulled before."""
        return self._pulled_until.pop(queue, None) is not None

    def in_rotation(self, now: float) -> tuple[str, ...]:
        return tuple(queue for queue in self.queues if self.may_use(queue, now))

    def pulled(self, now: float) -> tuple[str, ...]:
        return tuple(queue for queue in self.queues if not self.may_use(queue, now))

    def next_return(self, now: float) -> float | None:
        """When the next pulled queue may be tried again; None if none is pulled."""
        waiting = [until for until in self._pulled_until.values() if until > now]
        return min(waiting, default=None)
