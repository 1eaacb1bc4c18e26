"""What a paired client tells about itself: transitions to callbacks and the log, everything to the ledger and
the metrics.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pairbus.failover import EntityState, EventKind, Transition
from pairbus.ledger import CompletedOperation, LedgerWriter, Operation, Outcome, Route
from pairbus.pairing.metrics import Metrics, Tally

if TYPE_CHECKING:
    from pairbus.pairing.publishing import PublishedPair

_log = logging.getLogger("pairbus.pairing")


@dataclass(frozen=True, slots=True)
class TransitionEvent:
    """An entity changed its state.

    `cause` is the error that counted, the class of what brought the ping home, or who overrode the state;
    `episode` is the same from the first suspicion until the entity is healthy again.
    """

    entity: str
    before: EntityState
    after: EntityState
    reason: EventKind
    cause: str
    at: datetime
    episode: str

    def __str__(self) -> str:
        because = f" ({self.cause})" if self.cause else ""
        return f"{self.entity}: {self.before.value} -> {self.after.value}, {self.reason.value}{because}"


TransitionCallback = Callable[[TransitionEvent], None]


class Observers:
    """Everyone who is told what a paired client does.

    `watching` is False when there is nobody; `in_detail` is False when nobody wants more than numbers; `wants_ids` is
    True when message ids are recorded.
    """

    def __init__(self, primary: str, secondary: str, ledger: Path | str | LedgerWriter | None) -> None:
        self.primary = primary
        self.secondary = secondary
        self.metrics = Metrics.if_installed()
        self._callbacks: list[TransitionCallback] = []
        self._own_ledger = isinstance(ledger, Path | str)
        self.ledger = _writer(ledger)
        self.published: PublishedPair | None = None
        self.wants_ids = self.in_detail = self.ledger is not None
        self.watching = self.in_detail or self.metrics is not None

    def publish_through(self, published: PublishedPair | None) -> None:
        self.published = published
        self.in_detail = self.in_detail or published is not None
        self.watching = self.watching or published is not None

    def paired(self, created: Sequence[str], in_rotation: int) -> None:
        """The pairing is ready: these backlog queues were created, so many are in rotation."""
        if self.metrics is not None:
            self.metrics.rotation(self.primary, in_rotation)
        for queue in created:
            self.record(CompletedOperation(Operation.CREATE, self.secondary, queue))

    def record(self, completed: CompletedOperation) -> None:
        """Count an operation in the published state and write it to the ledger."""
        if self.published is not None:
            self.published.count(completed)
        if self.ledger is not None:
            self.ledger.record(completed)

    def sent(self, completed: CompletedOperation) -> None:
        """Record an operation that carried messages, and measure it."""
        if self.metrics is not None:
            label = "ping" if completed.operation is Operation.PING else str(completed.route)
            tally = self.metrics.tally(completed.target, label, completed.outcome)
            tally.add(len(completed.message_ids), completed.latency_us / 1_000_000)
        self.record(completed)

    def pinged(self, completed: CompletedOperation) -> None:
        """Record a ping of a failed-over entity, delivered or not."""
        if self.published is not None:
            self.published.pinged(completed)
        self.sent(completed)

    def add_callback(self, callback: TransitionCallback) -> None:
        self._callbacks.append(callback)

    def transition(self, entity: str, change: Transition, episode: str) -> None:
        """Log, count and record a change of state, and tell the callbacks, in the order they were added."""
        event = TransitionEvent(
            entity, change.before, change.after, change.event, change.cause, datetime.now(UTC), episode
        )
        level = logging.INFO if change.after is EntityState.HEALTHY else logging.WARNING
        _log.log(level, "%s", event)
        if self.metrics is not None:
            self.metrics.transition(entity, change.before, change.after)
        if self.published is not None:
            self.published.transition(event)
        if self.ledger is not None:
            self.ledger.record(
                CompletedOperation(
                    Operation.TRANSITION,
                    self.primary,
                    entity,
                    state_from=change.before.value,
                    state_to=change.after.value,
                    cause=change.cause.partition(":")[0] or change.event.name.lower(),
                    episode=episode,
                )
            )
        for callback in self._callbacks:
            try:
                callback(event)
            except Exception:  # a user's callback must not decide where messages go
                _log.exception("A transition callback failed for %s.", event)

    def tally(self, entity: str, route: Route) -> Tally | None:
        """Where successful sends of this kind are counted, for one who makes many of them; None without metrics."""
        return None if self.metrics is None else self.metrics.tally(entity, route, Outcome.OK)

    def pulled(self, queue: str, error: BaseException, left: int) -> None:
        _log.warning("Backlog queue %s is pulled from the rotation, %d left: %s", queue, left, type(error).__name__)
        if self.metrics is not None:
            self.metrics.rotation(self.primary, left)

    def taken_down(self, error: BaseException) -> None:
        """No backlog queue can be reached; told once, until one takes messages again."""
        _log.warning("No backlog queue can be reached, messages go to the spool: %s", type(error).__name__)
        if self.metrics is not None:
            self.metrics.rotation(self.primary, 0)

    def put_back(self, queue: str, left: int) -> None:
        _log.info("Backlog queue %s is back in the rotation.", queue)
        if self.metrics is not None:
            self.metrics.rotation(self.primary, left)

    def spool_depth(self, messages: int) -> None:
        if self.metrics is not None:
            self.metrics.spool_depth(self.primary, messages)

    def close(self) -> None:
        if self.published is not None:
            self.published.close()
        if self._own_ledger and self.ledger is not None:
            self.ledger.close()


def new_episode() -> str:
    return uuid.uuid4().hex


def _writer(ledger: Path | str | LedgerWriter | None) -> LedgerWriter | None:
    if ledger is None:
        return None
    return LedgerWriter(ledger) if isinstance(ledger, Path | str) else ledger
