# Generated from ../_aio/client.py by scripts/generate_sync.py: change that file, not this one.
"""The paired client, which pairs two namespaces, and its senders.

A paired sender is the SDK's sender while its entity is healthy, and the way into the backlog while it is not.
`send_messages` prepares the message. `_deliver` routes it by the entity's state, sends it through the SDK's sender of
the primary, reports the result to the entity, and diverts the message if the entity says so.
"""

from __future__ import annotations

import datetime
import functools
import importlib
import itertools
import logging
import random
import warnings
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast
from weakref import WeakSet

from azure.core.exceptions import AzureError
from azure.servicebus import ServiceBusClient, ServiceBusMessageBatch, ServiceBusSender
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus import envelope, errors
from pairbus.failover import BUSY_PAUSE_SECONDS, NO_ERA, EntityState, Event, EventKind, Rotation, Verdict, verdict
from pairbus.ledger import CompletedOperation, Operation, Route, error_name, outcome_of
from pairbus.pairing import sdk
from pairbus.pairing._sync import runtime
from pairbus.pairing._sync.backlog import IN_DOUBT, Backlog, BacklogRoute, SpoolForwarder, ensure_queues
from pairbus.pairing._sync.entity import NotWantedError, SharedSender, TurnTimeoutError, WatchedEntity
from pairbus.pairing.observers import Observers, TransitionCallback, diverted_send, publish
from pairbus.pairing.options import (
    OPTION_NAMES,
    BacklogQueues,
    SendAvailabilityPairedNamespaceOptions,
    backlog_path,
    check_two_namespaces,
    recorded_name,
)

_log = logging.getLogger("pairbus.pairing")

_SHORTEST_TIMEOUT = 0.001

Options = SendAvailabilityPairedNamespaceOptions[ServiceBusAdministrationClient, ServiceBusClient]
T = TypeVar("T")


def pair_namespace(primary: ServiceBusClient, options: Options) -> PairedServiceBusClient:
    """Pair the primary namespace with the secondary of the options; returns when everything is ready.

    The primary need not be reachable. Raises PairingError if a backlog queue can be neither found nor created, and
    ValueError if both namespaces are the same.
    """
    check_two_namespaces(primary.fully_qualified_namespace, options.secondary.fully_qualified_namespace)
    name = options.name_of_primary(primary.fully_qualified_namespace)
    queues = [backlog_path(name, index) for index in range(options.backlog_queue_count)]
    found, created = ensure_queues(options.secondary_admin, queues, cast(float, options.send_timeout))
    paired = PairedServiceBusClient(primary, options, name, found, created)
    try:
        paired.start()
    except BaseException:
        paired.close()
        raise
    return paired


class PairedServiceBusClient(ServiceBusClient):
    """A `ServiceBusClient` of the primary whose senders survive an outage of that namespace.

    Receivers and everything else are the primary's own. `pair_namespace` and `from_connection_strings` create it;
    closing it closes the clients of both namespaces.
    """

    def __init__(
        self,
        primary: ServiceBusClient,
        options: Options,
        primary_name: str,
        found: tuple[str, ...],
        created: tuple[str, ...],
    ) -> None:
        # The SDK's __init__ is not called: this class has only its surface, the two clients inside do the work.
        self.options = options
        self.primary_name = primary_name
        self.fully_qualified_namespace = primary.fully_qualified_namespace
        self.send_timeout = cast(float, options.send_timeout)
        self._primary = primary
        self._found = found
        self._created = created
        self.guard = runtime.Guard()
        self.observers = Observers(
            recorded_name(primary.fully_qualified_namespace, primary_name),
            options.secondary.fully_qualified_namespace,
            options.ledger,
        )
        queues = [backlog_path(primary_name, index) for index in range(options.backlog_queue_count)]
        self.backlog = Backlog(
            Rotation(queues, cast(float, options.ping_primary_interval)),
            make_sender=options.secondary.get_queue_sender,
            random=random.Random().random,  # noqa: S311 - spreads load, keeps no secret
            guard=self.guard,
            observers=self.observers,
            has_spool=options.spool is not None,
        )
        self.spool: SpoolForwarder | None = None
        self._syphon: Any = None
        self._entities: dict[str, WatchedEntity] = {}
        self._senders: WeakSet[PairedServiceBusSender] = WeakSet()
        self._mutex = runtime.Mutex()
        self._backlog_numbers = itertools.count(-1, -1)
        self._fault: errors.PairbusError | None = None
        self._closing = runtime.Once()
        self._closed = False

    @classmethod
    def from_connection_strings(
        cls, primary: str, secondary: str, *, connection_verify: str | None = None, **options: Any
    ) -> PairedServiceBusClient:
        """Pair two namespaces by their connection strings.

        `connection_verify` is the path of a certificate authority that both clients trust; `options` are those of
        SendAvailabilityPairedNamespaceOptions.
        """
        unknown = sorted(set(options) - OPTION_NAMES)
        if unknown:
            raise TypeError(f"Unknown options: {', '.join(unknown)}. Known options: {', '.join(sorted(OPTION_NAMES))}.")
        trust: dict[str, Any] = {} if connection_verify is None else {"connection_verify": connection_verify}
        # Check the options before creating clients that would have to be closed again.
        SendAvailabilityPairedNamespaceOptions(None, None, **options)
        sdk.check_connection_string("primary", primary)
        sdk.check_connection_string("secondary", secondary)
        first = ServiceBusClient.from_connection_string(primary, **trust)
        second = ServiceBusClient.from_connection_string(secondary, **trust)
        admin = ServiceBusAdministrationClient.from_connection_string(secondary, **trust)
        try:
            return pair_namespace(first, SendAvailabilityPairedNamespaceOptions(admin, second, **options))
        except BaseException:
            admin.close()
            second.close()
            first.close()
            raise

    @classmethod
    def from_connection_string(cls, conn_str: str, **kwargs: Any) -> Self:
        """Refused: a pairing has two namespaces."""
        raise TypeError("A paired client needs two namespaces: use from_connection_strings(primary, secondary).")

    def __repr__(self) -> str:
        states = ", ".join(f"{name}: {entity.machine.state.value}" for name, entity in self._entities.items())
        return f"<PairedServiceBusClient {self.primary_name} [{states}]>"

    def __enter__(self) -> Self:
        self.check_usable()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start publishing, the spool's forwarder and the syphon."""
        self.observers.publish_through(publish(self))
        self.observers.paired(self._created, len(self.backlog.in_rotation))
        if self.options.spool is not None:
            self.spool = SpoolForwarder(
                self.options.spool,
                limit_bytes=self.options.spool_limit_bytes,
                backlog=self.backlog,
                state_of=self.state,
                policy=self.options.backlog_time_to_live,
                send_timeout=self.send_timeout,
                make_primary_sender=self._primary.get_queue_sender,
            )
            self.spool.start()
        if self.options.enable_syphon:
            # Imported here: an application without a syphon need not install its dependencies.
            self._syphon = importlib.import_module("pairbus.syphon").start_in_process(self)

    @property
    def primary(self) -> ServiceBusClient:
        """The SDK's client of the primary namespace."""
        return self._primary

    @property
    def secondary(self) -> ServiceBusClient:
        """The SDK's client of the secondary namespace."""
        return self.options.secondary

    @property
    def backlog_queues(self) -> BacklogQueues:
        """The backlog queues: existing ones, created ones, and those in rotation now."""
        return BacklogQueues(self._found, self._created, self.backlog.in_rotation)

    @property
    def syphon(self) -> Any:
        """The syphon of this process (`enable_syphon=True`), or None; it reports its state."""
        return self._syphon

    @property
    def watched_entities(self) -> list[WatchedEntity]:
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

    def get_queue_sender(
        self,
        queue_name: str,
        *,
        client_identifier: str | None = None,
        socket_timeout: float | None = None,
        **kwargs: Any,
    ) -> PairedServiceBusSender:
        """A paired sender for a queue of the primary; arguments as for the SDK's client."""
        kwargs |= {"client_identifier": client_identifier, "socket_timeout": socket_timeout}
        return self._paired(queue_name, lambda: self._primary.get_queue_sender(queue_name, **kwargs))

    def get_topic_sender(
        self,
        topic_name: str,
        *,
        client_identifier: str | None = None,
        socket_timeout: float | None = None,
        **kwargs: Any,
    ) -> PairedServiceBusSender:
        """A paired sender for a topic of the primary; arguments as for the SDK's client."""
        kwargs |= {"client_identifier": client_identifier, "socket_timeout": socket_timeout}
        return self._paired(topic_name, lambda: self._primary.get_topic_sender(topic_name, **kwargs))

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

    def close(self) -> None:
        """Close the ping tasks, the syphon, the spool and the clients of both namespaces.

        Closing runs to its end, even if its caller is cancelled or a step fails. A second call waits for the first.
        """
        self._closing.do(self._close_everything)

    def _close_everything(self) -> None:
        self._closed = True
        self.guard.close()
        with self._mutex:
            entities, senders = list(self._entities.values()), list(self._senders)
        steps: list[Callable[[], None]] = [entity.close for entity in entities]
        steps.append(functools.partial(_close_senders, senders))
        if self._syphon is not None:
            steps.append(functools.partial(runtime.in_thread, self._syphon.close))
        if self.spool is not None:
            steps.append(self.spool.close)
        steps += [self._primary.close, self.options.secondary.close, self.options.secondary_admin.close]
        failures: list[BaseException] = []
        for step in steps:
            try:
                step()
            except BaseException as error:  # the other steps must still run; the first error is raised at the end
                failures.append(error)
        self.observers.close()
        if failures:
            raise failures[0]

    def _paired(self, entity: str, make_sender: Any) -> PairedServiceBusSender:
        self.check_usable()
        sender = PairedServiceBusSender(self, self._watched(entity), make_sender)
        with self._mutex:
            self._senders.add(sender)
        return sender

    def _watched(self, entity: str) -> WatchedEntity:
        self.check_usable()

        def make_ping_sender() -> ServiceBusSender:
            # For the SDK's sender, a topic is a path like any other.
            return self._primary.get_queue_sender(entity)

        with self._mutex:
            watched = self._entities.get(entity.lower())
            if watched is None:
                watched = self._entities[entity.lower()] = WatchedEntity(
                    entity,
                    self.options.rules,
                    make_sender=make_ping_sender,
                    guard=self.guard,
                    observers=self.observers,
                    send_timeout=self.send_timeout,
                )
            return watched


def _close_senders(senders: Sequence[PairedServiceBusSender]) -> None:
    # All at once: the SDK is slow to close a link, and its clients would close them one by one.
    for outcome in runtime.all_of([sender.close for sender in senders]):
        if isinstance(outcome, BaseException):
            _log.debug("Closing a sender failed.", exc_info=outcome)


class PairedServiceBusSender(ServiceBusSender):
    """Sends to one queue or topic of the primary, or into the backlog while that entity is failed over.

    It has the surface of the SDK's sender. Many threads (sync) or tasks (aio) may use it at once: their sends take
    turns.
    """

    def __init__(
        self, client: PairedServiceBusClient, entity: WatchedEntity, make_sender: Callable[[], ServiceBusSender]
    ) -> None:
        # The SDK's __init__ is not called: this class has only its surface, the senders inside do the work.
        self._client = client
        self._entity = entity
        self._options = client.options
        self._send_timeout = client.send_timeout
        self._observers = client.observers
        self._tally = client.observers.tally(entity.name, Route.PRIMARY)
        self._primary = SharedSender(make_sender, client.guard)
        self._backlog = BacklogRoute(entity.name, client.backlog)
        self._closed = False
        rules = entity.machine.rules
        self._may_divert_at_once = rules.failover_interval == 0 or rules.divert_during_interval
        entity.adopt(self._primary)
        self.fully_qualified_namespace = client.fully_qualified_namespace
        self.entity_name = entity.name

    def __repr__(self) -> str:
        return f"<PairedServiceBusSender {self.entity_name} {self._entity.machine.state.value}>"

    def __str__(self) -> str:
        return f"Sender client id: {self.client_identifier}, entity: {self.entity_name}"

    @property
    def client_identifier(self) -> str:
        """The identifier of the SDK's sender for the primary."""
        return self._primary.sender.client_identifier

    @property
    def backlog_queue(self) -> str | None:
        """The backlog queue this sender stays with; None until it first needs one."""
        return self._backlog.queue

    def __enter__(self) -> Self:
        """Open the link to the primary, as the SDK's sender does.

        An error that counts is not raised: it changes the entity's state, and sends follow that.
        """
        self._check_usable()
        if self._entity.takes_sends():
            era = self._entity.machine.era
            try:
                self._open_primary()
            except (AzureError, OSError) as error:
                judged = self._verdict(error)
                if judged is Verdict.DOES_NOT_COUNT:
                    raise
                if judged is Verdict.COUNTS:
                    self._entity.handle(Event(EventKind.SEND_FAILED, _cause(error), era))
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the links to the primary and the backlog. Closing twice does nothing."""
        self._closed = True
        self._primary.close()
        self._backlog.close()

    def send_messages(
        self,
        message: sdk.Messages | ServiceBusMessageBatch,
        *,
        timeout: float | None = None,
        **kwargs: Any,
    ) -> None:
        """Send one message, several, or a batch; returns when they are accepted.

        The primary accepts them or, while the entity is failed over, a backlog queue or the spool does. `timeout`
        limits the whole send in seconds, in both namespaces.
        """
        self._check_usable(timeout, **kwargs)
        outgoing: Any = sdk.prepare(message)
        if sdk.count_of(outgoing) == 0:
            return

        def send(sender: ServiceBusSender, seconds: float) -> None:
            if type(outgoing) is list and not sdk.batch_limit(sender):
                # For a list the SDK would open the link itself, without a timeout.
                deadline = runtime.now() + seconds
                sdk.open_link(sender, seconds)
                seconds = max(deadline - runtime.now(), _SHORTEST_TIMEOUT)
            sender.send_messages(outgoing, timeout=seconds)

        self._deliver(Operation.SEND, outgoing, timeout, send, _nothing)

    def schedule_messages(
        self,
        messages: sdk.Messages,
        schedule_time_utc: datetime.datetime,
        *,
        timeout: float | None = None,
        **kwargs: Any,
    ) -> list[int]:
        """Send messages that appear at a later time; returns their sequence numbers at the primary.

        While the entity is failed over, the time travels with the messages through the backlog. The numbers are then
        negative: they are not the primary's, and the messages cannot be cancelled.
        """
        self._check_usable(timeout, **kwargs)
        outgoing: Any = sdk.prepare(messages)
        if isinstance(outgoing, list) and not outgoing:
            return []
        count = len(outgoing) if isinstance(outgoing, list) else 1

        def schedule(sender: ServiceBusSender, seconds: float) -> list[int]:
            return sender.schedule_messages(outgoing, schedule_time_utc, timeout=seconds)

        def backlog_numbers() -> list[int]:
            return [self._client.next_backlog_number() for _ in range(count)]

        return self._deliver(
            Operation.SCHEDULE, outgoing, timeout, schedule, backlog_numbers, scheduled=schedule_time_utc
        )

    def cancel_scheduled_messages(
        self,
        sequence_numbers: int | list[int],
        *,
        timeout: float | None = None,
        **kwargs: Any,
    ) -> None:
        """Cancel messages scheduled at the primary; raises ScheduledInBacklogError for numbers of the backlog."""
        self._check_usable(timeout, **kwargs)
        numbers = [sequence_numbers] if isinstance(sequence_numbers, int) else list(sequence_numbers)
        in_backlog = [number for number in numbers if number < 0]
        if in_backlog:
            raise sdk.ScheduledInBacklogError(in_backlog)

        def cancel(sender: ServiceBusSender, seconds: float) -> None:
            sender.cancel_scheduled_messages(sequence_numbers, timeout=seconds)

        started = runtime.now()
        deadline = started + (self._send_timeout if timeout is None else timeout)
        try:
            self._primary.use(deadline, cancel)
        except (AzureError, OSError) as error:
            self._observe_cancel(started, error)
            raise
        self._observe_cancel(started, None)

    def create_message_batch(self, max_size_in_bytes: int | None = None) -> ServiceBusMessageBatch:
        """Create a batch that leaves room for the properties its messages need in a backlog."""
        self._check_usable()
        limit = sdk.batch_limit(self._primary.sender) or self._entity.batch_limit_bytes
        if not limit and self._entity.takes_sends():
            era = self._entity.machine.era
            try:
                self._open_primary()
            except (AzureError, OSError) as error:
                self._after_failure(error, self._verdict(error), era)
            limit = sdk.batch_limit(self._primary.sender)
        if not limit:
            limit = self._backlog.limit_bytes(runtime.now() + self._send_timeout)
        if max_size_in_bytes is not None and max_size_in_bytes > limit:
            raise ValueError(
                f"max_size_in_bytes is {max_size_in_bytes}; allowed: at most {limit}, the limit of the link."
            )
        return sdk.PairedMessageBatch(self.entity_name, max_size_in_bytes or limit, limit, self._primary.sender)

    def _open_primary(self) -> None:
        try:
            self._primary.open(runtime.now() + self._send_timeout, self._entity.takes_sends)
        except NotWantedError:
            return
        self._entity.learn_limits(self._primary.sender)

    def _deliver(
        self,
        operation: Operation,
        outgoing: sdk.Outgoing,
        timeout: float | None,
        call: Callable[[ServiceBusSender, float], T],
        diverted: Callable[[], T],
        *,
        scheduled: datetime.datetime | None = None,
    ) -> T:
        """Return the result of the call on the primary, or `diverted()` once the messages are in a backlog."""
        entity, machine = self._entity, self._entity.machine
        started = runtime.now()
        deadline = started + (self._send_timeout if timeout is None else timeout)
        primary_error: BaseException | None = None
        while machine.route_to_primary:
            era = machine.era
            until = deadline if timeout is None else self._until(started, deadline)
            try:
                result = self._primary.use(until, call, entity.takes_sends)
            except NotWantedError:
                break
            except runtime.CANCELLED as error:
                self._observe(operation, outgoing, started, error)
                raise
            except (AzureError, OSError, ValueError, TypeError) as error:
                self._observe(operation, outgoing, started, error)
                judged = self._verdict(error)
                if judged is Verdict.COUNTS and not sdk.can_be_encoded(outgoing, error, self._primary.sender):
                    judged = Verdict.DOES_NOT_COUNT
                if judged is Verdict.BUSY:
                    started = runtime.now() + BUSY_PAUSE_SECONDS
                    if started >= deadline:
                        raise
                    runtime.Wake().wait(BUSY_PAUSE_SECONDS)
                    continue
                primary_error = error
                self._after_failure(error, judged, NO_ERA if isinstance(error, TurnTimeoutError) else era)
                break
            if machine.state is not EntityState.HEALTHY:
                entity.handle(Event(EventKind.SEND_SUCCEEDED, era=era))
            if not entity.message_limit_bytes:
                entity.learn_limits(self._primary.sender)
            if self._observers.in_detail:
                self._observe(operation, outgoing, started, None)
            elif self._tally is not None:
                self._tally.add(sdk.count_of(outgoing), runtime.now() - started)
            return result
        if timeout is None:
            deadline = runtime.now() + self._send_timeout
        elif primary_error is not None and runtime.now() >= deadline and self._client.spool is None:
            raise primary_error  # no time is left for a backlog queue
        if scheduled is not None:
            outgoing = sdk.schedule(outgoing, scheduled)
        self._divert(outgoing, deadline, primary_error)
        return diverted()

    def _until(self, started: float, deadline: float) -> float:
        """When an attempt on the primary must end, so that enough of the caller's time is left for the backlog.

        The primary gets all of the time if the entity cannot fail over before the deadline.
        """
        until = deadline - min((deadline - started) / 2, self._send_timeout)
        if self._may_divert_at_once:
            return until
        machine = self._entity.machine
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
        if not self._entity.handle(Event(EventKind.SEND_FAILED, _cause(error), era)).divert:
            raise error

    def _verdict(self, error: BaseException) -> Verdict:
        causes_failover = self._options.causes_failover
        judged = verdict(sdk.describe(error))
        if causes_failover is None:
            return judged
        if causes_failover(error):
            return Verdict.COUNTS
        return Verdict.DOES_NOT_COUNT if judged is Verdict.COUNTS else judged

    def _divert(self, outgoing: sdk.Outgoing, deadline: float, primary_error: BaseException | None) -> None:
        entity = self._entity
        if not entity.message_limit_bytes:
            entity.learn_limits(self._primary.sender)
        limit = entity.message_limit_bytes if sdk.is_single(outgoing) else entity.batch_limit_bytes
        raws = sdk.encode(outgoing, limit or sdk.LARGEST_MESSAGE_BYTES, self._primary.sender)
        with diverted_send(self.entity_name, len(raws)) as trace_parent:
            self._store(raws, deadline, primary_error, trace_parent)

    def _store(
        self, raws: Sequence[bytes], deadline: float, primary_error: BaseException | None, trace_parent: str | None
    ) -> None:
        """Put encoded messages into a backlog queue, or into the spool."""
        name = self.entity_name
        forms = [envelope.to_backlog(raw, name, trace_parent=trace_parent) for raw in raws]
        spool = self._client.spool
        if spool is not None and self._client.backlog.is_down and spool.depth:
            spool.store(name, forms)
            return
        try:
            self._backlog.send(forms, deadline, primary_error=primary_error, episode=self._entity.episode)
        except errors.BacklogUnavailableError:
            if spool is None:
                raise
            spool.store(name, forms)
        except errors.PartlyAcceptedError as error:
            if spool is None:
                raise
            try:
                spool.store(name, [forms[position] for position in error.rest])
            except errors.SpoolError as full:
                raise sdk.PartlyAcceptedError(error.accepted, error.rest, full) from full

    def _observe(
        self, operation: Operation, outgoing: sdk.Outgoing, started: float, error: BaseException | None
    ) -> None:
        observers = self._observers
        if not observers.watching:
            return
        in_doubt = isinstance(error, IN_DOUBT) and not isinstance(error, TurnTimeoutError)
        observers.sent(
            CompletedOperation(
                operation,
                observers.primary,
                self.entity_name,
                sdk.message_ids(outgoing) if observers.wants_ids else [None] * sdk.count_of(outgoing),
                sdk.sizes(outgoing, self._primary.sender) if observers.in_detail else None,
                outcome=outcome_of(error, in_doubt=in_doubt),
                error=error_name(error),
                latency_us=int((runtime.now() - started) * 1_000_000),
                route=Route.PRIMARY,
                episode=self._entity.episode,
            )
        )

    def _observe_cancel(self, started: float, error: BaseException | None) -> None:
        self._observers.record(
            CompletedOperation(
                Operation.CANCEL,
                self._observers.primary,
                self.entity_name,
                outcome=outcome_of(error),
                error=error_name(error),
                latency_us=int((runtime.now() - started) * 1_000_000),
                route=Route.PRIMARY,
            )
        )

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


def _nothing() -> None:
    return None


def _cause(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
