# Generated from ../_aio/entity.py by scripts/generate_sync.py: change that file, not this one.
"""One entity of the primary, watched: its state, its timer, and its pings.

While the entity is healthy there is no task. When it leaves that state one task starts, waits for the end of
the failover interval, then sends the pings, and ends when the entity is healthy again.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from weakref import WeakSet

from azure.servicebus import ServiceBusMessage, ServiceBusSender

from pairbus.failover import Action, Decision, EntityMachine, EntityState, Event, EventKind, FailoverRules, Transition
from pairbus.ledger import CompletedOperation, Operation, Route, error_name, outcome_of
from pairbus.pairing import sdk
from pairbus.pairing._sync import runtime
from pairbus.pairing._sync.link import Link
from pairbus.pairing.events import Observers, new_episode

_log = logging.getLogger("pairbus.pairing")

_SHORTEST_PING_TIMEOUT = 10.0
_PAUSE_AFTER_FAILURE_SECONDS = 1.0


class WatchedEntity:
    """The state of one entity and the task that watches it while it is not healthy."""

    def __init__(
        self,
        name: str,
        rules: FailoverRules,
        *,
        make_sender: Callable[[], ServiceBusSender],
        guard: runtime.Guard,
        observers: Observers,
        send_timeout: float,
    ) -> None:
        self.name = name
        self.machine = EntityMachine(rules)
        self.episode: str | None = None
        self.message_limit_bytes = 0
        self.batch_limit_bytes = 0
        self._make_sender = make_sender
        self._guard = guard
        self._observers = observers
        self._ping_timeout = min(send_timeout, max(rules.ping_interval, _SHORTEST_PING_TIMEOUT))
        self._links: WeakSet[Link] = WeakSet()
        self._mutex = runtime.Mutex()
        self._wake = runtime.Wake()
        self._watch: runtime.Job | None = None
        self._untold: deque[tuple[Transition, str]] = deque()
        self._telling = False
        self._closed = False

    def __repr__(self) -> str:
        return f"<WatchedEntity {self.name} {self.machine.state.value}>"

    def takes_sends(self) -> bool:
        """Whether sends go to the primary now."""
        return self.machine.route_to_primary

    def learn_limits(self, sender: ServiceBusSender) -> None:
        """Keep what the service said when a link of this entity was opened: it outlives the link."""
        self.message_limit_bytes = sdk.message_limit(sender) or self.message_limit_bytes
        self.batch_limit_bytes = sdk.batch_limit(sender) or self.batch_limit_bytes

    def adopt(self, link: Link) -> None:
        """Callers waiting for their turn on this link learn when the entity is failed over."""
        with self._mutex:
            self._links.add(link)

    def tell(self, event: Event) -> Decision:
        """Apply what happened, see to the watching task, and report the transitions."""
        links: list[Link] = []
        with self._mutex:
            decision = self.machine.handle(event, runtime.now())
            if decision.transitions:
                links = list(self._links)
            for transition in decision.transitions:
                if self.episode is None:
                    self.episode = new_episode()
                self._untold.append((transition, self.episode))
                if transition.after is EntityState.HEALTHY:
                    self.episode = None
            if self.machine.state is not EntityState.HEALTHY and self._watch is None and not self._closed:
                self._watch = runtime.Job(f"pairbus-watch-{self.name}", self._watch_until_healthy)
        if decision.transitions:
            self._wake.set()
            for link in links:
                link.nudge()
            self._report()
        return decision

    def close(self) -> None:
        with self._mutex:
            self._closed = True
            watch = self._watch
        self._wake.set()
        if watch is not None:
            watch.stop()

    def _report(self) -> None:
        """Report transitions in the order they happened, whoever brought them about."""
        while True:
            with self._mutex:
                if self._telling or not self._untold:
                    return
                transition, episode = self._untold.popleft()
                self._telling = True
            try:
                self._observers.transition(self.name, transition, episode)
            finally:
                self._telling = False

    def _watch_until_healthy(self) -> None:
        while True:
            with self._mutex:
                if self._closed or self.machine.state is EntityState.HEALTHY:
                    self._watch = None
                    return
            try:
                self._watch_once()
            except Exception:  # the outermost loop: without it nobody would ever ping the entity again
                _log.exception("Watching %s failed; it goes on.", self.name)
                self._wake.wait(_PAUSE_AFTER_FAILURE_SECONDS)

    def _watch_once(self) -> None:
        """Wait for the next deadline, or do what is due."""
        with self._mutex:
            deadline = self.machine.next_deadline
        if deadline is not None:
            remaining = deadline - runtime.now()
            if remaining > 0:
                self._wake.wait(remaining)
                return
        decision = self.tell(Event(EventKind.DEADLINE))
        if decision.action is Action.SEND_PING:
            self._ping(self.machine.era)

    def _ping(self, era: int) -> None:
        link = Link(self._make_sender, self._guard)
        message = sdk.ping()
        started = runtime.now()
        try:
            failure = self._attempt(link, message, started + self._ping_timeout)
            if self._closed:
                return
            try:
                self._observers.pinged(
                    CompletedOperation(
                        Operation.PING,
                        self._observers.primary,
                        self.name,
                        [message.message_id],
                        outcome=outcome_of(failure),
                        error=error_name(failure),
                        latency_us=int((runtime.now() - started) * 1_000_000),
                        route=Route.PRIMARY,
                        episode=self.episode,
                    )
                )
            finally:  # the state must learn how the ping ended, whatever becomes of the records
                if failure is None:
                    self.tell(Event(EventKind.PING_SUCCEEDED, "ping", era))
                else:
                    self.tell(Event(EventKind.PING_FAILED, type(failure).__name__, era))
        finally:
            try:
                link.close()
            except Exception:  # the ping's connection is of no further use, whatever its end was like
                _log.debug("Closing the connection of a ping to %s failed.", self.name, exc_info=True)

    def _attempt(self, link: Link, message: ServiceBusMessage, deadline: float) -> Exception | None:
        def send(sender: ServiceBusSender, seconds: float) -> None:
            sender.send_messages(message, timeout=seconds)

        try:
            link.use(deadline, send)
        except Exception as error:  # whatever it is, this ping was not delivered and the next one is due
            return error
        return None
