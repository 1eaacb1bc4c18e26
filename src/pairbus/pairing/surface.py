"""The parts of the paired client and its senders that never wait; the shells for asyncio and for threads share them."""

from __future__ import annotations

import itertools
import random
import threading
import time
import warnings
from collections import deque
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakSet

from pairbus import errors
from pairbus.failover.classification import Verdict, verdict
from pairbus.failover.rotation import Rotation
from pairbus.failover.states import Decision, EntityMachine, EntityState, Event, EventKind, FailoverRules, Transition
from pairbus.ledger import Operation, Route
from pairbus.pairing import sdk
from pairbus.pairing.observers import Observers, TransitionCallback, new_episode
from pairbus.pairing.options import BacklogQueues, SendAvailabilityPairedNamespaceOptions, backlog_path, recorded_name
from pairbus.pairing.queues import Backlog


class PairedClientSurface:
    """The state of a paired client, and what is asked of it without waiting."""

    def __init__(
        self,
        primary: Any,
        options: SendAvailabilityPairedNamespaceOptions[Any, Any],
        primary_name: str,
        found: tuple[str, ...],
        created: tuple[str, ...],
        guard: Any,
    ) -> None:
        self.options = options
        self.primary_name = primary_name
        self.fully_qualified_namespace: str = primary.fully_qualified_namespace
        self.send_timeout = cast(float, options.send_timeout)
        self.guard = guard
        self.observers = Observers(
            recorded_name(self.fully_qualified_namespace, primary_name),
            options.secondary.fully_qualified_namespace,
            options.ledger,
        )
        queues = [backlog_path(primary_name, index) for index in range(options.backlog_queue_count)]
        self.backlog = Backlog(
            Rotation(queues, cast(float, options.ping_primary_interval)),
            make_sender=lambda queue, entity: options.secondary.get_queue_sender(queue, **self.link_settings(entity)),
            random=random.Random().random,  # noqa: S311 - spreads load, keeps no secret
            guard=guard,
            observers=self.observers,
            has_spool=options.spool is not None,
        )
        self._primary: Any = primary
        self._found = found
        self._created = created
        self._syphon: Any = None
        self._entities: dict[str, Any] = {}
        self._senders: WeakSet[Any] = WeakSet()
        self._mutex = threading.Lock()
        self._backlog_numbers = itertools.count(-1, -1)
        self._fault: errors.PairbusError | None = None
        self._closed = False

    def _watched(self, entity: str) -> Any:
        raise NotImplementedError

    def __repr__(self) -> str:
        states = ", ".join(f"{name}: {entity.machine.state.value}" for name, entity in self._entities.items())
        return f"<PairedServiceBusClient {self.primary_name} [{states}]>"

    @property
    def backlog_queues(self) -> BacklogQueues:
        """The backlog queues: existing ones, created ones, and those in rotation now."""
        return BacklogQueues(self._found, self._created, self.backlog.in_rotation)

    @property
    def syphon(self) -> Any:
        """The syphon of this process (`enable_syphon=True`), or None; it reports its state."""
        return self._syphon

    @property
    def watched_entities(self) -> list[Any]:
        """Every entity with a sender, or whose state was overridden."""
        return list(self._entities.values())

    @property
    def is_faulted(self) -> bool:
        return self._fault is not None

    @property
    def is_closed(self) -> bool:
        return self._closed

    def state(self, entity: str) -> EntityState:
        """The state of a queue or topic of the primary; healthy if nothing has been sent to it."""
        watched = self._entities.get(entity.lower())
        return EntityState.HEALTHY if watched is None else watched.machine.state

    def mark_healthy(self, entity: str) -> None:
        """Send to the primary from now on, whatever happened before."""
        self._watched(entity).handle(Event(EventKind.MARK_HEALTHY, "mark_healthy"))

    def fail_over(self, entity: str) -> None:
        """Send to the backlog from now on, until pings succeed or mark_healthy is called."""
        self._watched(entity).handle(Event(EventKind.FAIL_OVER, "fail_over"))

    def on_transition(self, callback: TransitionCallback) -> None:
        """Call back for each change of an entity's state, from the thread or task that caused it."""
        self.observers.add_callback(callback)

    if not TYPE_CHECKING:  # an editor sees the SDK's own signatures

        def get_queue_receiver(self, *args: Any, **kwargs: Any) -> Any:
            self.check_usable()
            return self._primary.get_queue_receiver(*args, **kwargs)

        def get_subscription_receiver(self, *args: Any, **kwargs: Any) -> Any:
            self.check_usable()
            return self._primary.get_subscription_receiver(*args, **kwargs)

        def list_queue_sessions(self, *args: Any, **kwargs: Any) -> Any:
            self.check_usable()
            return self._primary.list_queue_sessions(*args, **kwargs)

        def list_subscription_sessions(self, *args: Any, **kwargs: Any) -> Any:
            self.check_usable()
            return self._primary.list_subscription_sessions(*args, **kwargs)

    def link_settings(self, entity: str) -> dict[str, Any]:
        """The arguments, such as socket_timeout, of the latest sender for this entity: for all links that serve it."""
        watched = self._entities.get(entity.lower())
        return {} if watched is None else watched.link_settings

    def next_backlog_number(self) -> int:
        """A sequence number for a message scheduled into the backlog: negative, so clearly not the primary's."""
        return next(self._backlog_numbers)

    def check_usable(self) -> None:
        """Raise if the client was faulted or closed."""
        if self._fault is not None:
            raise self._fault
        if self._closed:
            raise ValueError("The paired client has been closed. Pair the namespaces again.")

    def fault(self, partner: str, cause: str) -> None:
        """Refuse all further calls: the partner ("primary" or "secondary") is gone for good."""
        if self._fault is None and not self._closed:
            self._fault = sdk.PairedNamespaceFaultedError(partner, cause)


class PairedSenderSurface:
    """How a paired sender judges and records its sends."""

    _primary: Any
    _backlog: Any

    def __init__(self, client: Any, entity: Any) -> None:
        self.fully_qualified_namespace: str = client.fully_qualified_namespace
        self.entity_name: str = entity.name
        self._client = client
        self._entity = entity
        self._options: SendAvailabilityPairedNamespaceOptions[Any, Any] = client.options
        self._send_timeout: float = client.send_timeout
        self._observers: Observers = client.observers
        self._tally = self._observers.tally(entity.name, Route.PRIMARY)
        self._closed = False
        rules = entity.machine.rules
        self._may_divert_at_once: bool = rules.failover_interval == 0 or rules.divert_during_interval

    def __repr__(self) -> str:
        return f"<PairedServiceBusSender {self.entity_name} {self._entity.machine.state.value}>"

    def __str__(self) -> str:
        return f"Sender client id: {self.client_identifier}, entity: {self.entity_name}"

    @property
    def client_identifier(self) -> str:
        """The identifier of the SDK's sender for the primary."""
        return str(self._primary.sender.client_identifier)

    @property
    def backlog_queue(self) -> str | None:
        """The backlog queue this sender stays with; None until it first needs one."""
        return cast(str | None, self._backlog.queue)

    def _until(self, started: float, deadline: float) -> float:
        """When an attempt on the primary must end, so that enough of the caller's time is left for the backlog.

        The primary gets all of the time if the entity cannot fail over before the deadline.
        """
        share = deadline - started - min((deadline - started) / 2, self._send_timeout)
        until = started + max(share / 1.25, share - sdk.grace(share))  # the grace of this attempt ends with its share
        if self._may_divert_at_once:
            return until
        machine: EntityMachine = self._entity.machine
        fails_over_at = machine.next_deadline if machine.state is EntityState.SUSPECT else None
        if fails_over_at is None:
            fails_over_at = started + machine.rules.failover_interval
        if fails_over_at >= deadline:
            return deadline
        # An attempt that outlives the failover interval is diverted; one that ends before it raises.
        return max(until, min(fails_over_at, deadline - (deadline - started) / 4))

    def _after_failure(self, error: BaseException, judged: Verdict, era: int) -> None:
        """Report a failure to the entity; raise the error unless the message is to be diverted."""
        if judged is not Verdict.COUNTS or self._client.is_closed:
            raise error
        if not self._entity.handle(Event(EventKind.SEND_FAILED, sdk.cause(error), era)).divert:
            raise error

    def _verdict(self, error: BaseException) -> Verdict:
        causes_failover = self._options.causes_failover
        judged = verdict(sdk.describe(error))
        if causes_failover is None:
            return judged
        if causes_failover(error):
            return Verdict.COUNTS
        return Verdict.DOES_NOT_COUNT if judged is Verdict.COUNTS else judged

    def _new_batch(self, max_size_in_bytes: int | None, limit: int) -> sdk.PairedMessageBatch:
        if max_size_in_bytes is not None and max_size_in_bytes > limit:
            raise ValueError(
                f"max_size_in_bytes is {max_size_in_bytes}; allowed: at most {limit}, the limit of the link."
            )
        return sdk.PairedMessageBatch(self.entity_name, max_size_in_bytes or limit, limit, self._primary.sender)

    def _observe(
        self, operation: Operation, outgoing: sdk.Outgoing, started: float, error: BaseException | None
    ) -> None:
        observers = self._observers
        if not observers.watching:
            return
        observers.sent(
            observers.completed(
                operation,
                self.entity_name,
                time.monotonic() - started,
                error,
                in_doubt=sdk.is_in_doubt(error),
                message_ids=sdk.message_ids(outgoing) if observers.wants_ids else [None] * sdk.count_of(outgoing),
                sizes=sdk.sizes(outgoing, self._primary.sender) if observers.in_detail else None,
                route=Route.PRIMARY,
                episode=self._entity.episode,
            )
        )

    def _observe_cancel(self, started: float, error: BaseException | None) -> None:
        observers = self._observers
        seconds = time.monotonic() - started
        observers.record(observers.completed(Operation.CANCEL, self.entity_name, seconds, error, route=Route.PRIMARY))

    def _check_usable(self, timeout: float | None = None, **unsupported: Any) -> None:
        if unsupported:
            warnings.warn(f"Unsupported keyword args: {unsupported}", stacklevel=3)
        self._client.check_usable()
        if self._closed:
            raise ValueError(
                "The sender has been closed. Get a new one from the paired client with get_queue_sender or "
                "get_topic_sender."
            )
        if timeout is not None and timeout <= 0:
            raise ValueError(f"timeout is {timeout!r}; allowed: more than 0 seconds, or None.")


class EntityRecord:
    """One entity of the primary: its state, its limits and its senders."""

    _wake: Any

    def __init__(self, name: str, rules: FailoverRules, observers: Observers) -> None:
        self.name = name
        self.machine = EntityMachine(rules)
        self.episode: str | None = None
        self.link_settings: dict[str, Any] = {}
        self.message_limit_bytes = 0
        self.batch_limit_bytes = 0
        self._observers = observers
        self._senders: WeakSet[Any] = WeakSet()
        self._mutex = threading.Lock()
        self._unreported: deque[tuple[Transition, str]] = deque()
        self._reporting = False
        self._closed = False

    def _start_watching(self) -> None:
        """Start the watching task unless it runs; called with the mutex held."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<WatchedEntity {self.name} {self.machine.state.value}>"

    def takes_sends(self) -> bool:
        """Whether sends go to the primary now."""
        return self.machine.route_to_primary

    def learn_limits(self, sender: Any) -> None:
        """Keep the size limits that the service announced when a link of this entity was opened."""
        self.message_limit_bytes = sdk.message_limit(sender) or self.message_limit_bytes
        self.batch_limit_bytes = sdk.batch_limit(sender) or self.batch_limit_bytes

    def adopt(self, sender: Any) -> None:
        """Nudge the callers that wait for this sender when the entity changes its state."""
        with self._mutex:
            self._senders.add(sender)

    def apply(self, event: Event, now: float) -> Decision:
        """Apply an event of `now`, start the watching task if it is needed, and report the transitions."""
        senders: list[Any] = []
        with self._mutex:
            decision = self.machine.handle(event, now)
            if decision.transitions:
                senders = list(self._senders)
            for transition in decision.transitions:
                if self.episode is None:
                    self.episode = new_episode()
                self._unreported.append((transition, self.episode))
                if transition.after is EntityState.HEALTHY:
                    self.episode = None
            if self.machine.state is not EntityState.HEALTHY and not self._closed:
                self._start_watching()
        if decision.transitions:
            self._wake.set()
            for sender in senders:
                sender.nudge()
            self._report()
        return decision

    def _report(self) -> None:
        """Report transitions in the order they happened, whichever task or thread caused them."""
        while True:
            with self._mutex:
                if self._reporting or not self._unreported:
                    return
                transition, episode = self._unreported.popleft()
                self._reporting = True
            try:
                self._observers.transition(self.name, transition, episode)
            finally:
                self._reporting = False
