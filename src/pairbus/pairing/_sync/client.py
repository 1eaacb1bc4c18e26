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
import logging
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from azure.core.exceptions import AzureError
from azure.servicebus import ServiceBusClient, ServiceBusMessageBatch, ServiceBusSender
from azure.servicebus.exceptions import MessagingEntityNotFoundError
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus import envelope, errors
from pairbus.failover.classification import BUSY_PAUSE_SECONDS, Verdict
from pairbus.failover.states import NO_ERA, EntityState, Event, EventKind
from pairbus.ledger import Operation
from pairbus.pairing import sdk
from pairbus.pairing._sync import runtime
from pairbus.pairing._sync.backlog import BacklogRoute, SpoolForwarder, ensure_queues
from pairbus.pairing._sync.entity import SharedSender, WatchedEntity
from pairbus.pairing.observers import diverted_send, publish
from pairbus.pairing.options import (
    SendAvailabilityPairedNamespaceOptions,
    backlog_path,
    check_options,
    check_two_namespaces,
)
from pairbus.pairing.queues import keeps_from_pairing
from pairbus.pairing.surface import PairedClientSurface, PairedSenderSurface

_log = logging.getLogger("pairbus.pairing")

_SHORTEST_TIMEOUT = 0.001

Options = SendAvailabilityPairedNamespaceOptions[ServiceBusAdministrationClient, ServiceBusClient]
T = TypeVar("T")


def pair_namespace(primary: ServiceBusClient, options: Options) -> PairedServiceBusClient:
    """Pair the primary namespace with the secondary of the options; returns when everything is ready.

    The primary need not be reachable. Raises PairingError if a backlog queue can be neither found nor created, or if no
    link to it can be opened, and ValueError if both namespaces are the same. Where the backlog queues exist, the
    secondary's credential needs only the rights to send and listen.
    """
    check_two_namespaces(primary.fully_qualified_namespace, options.secondary.fully_qualified_namespace)
    name = options.name_of_primary(primary.fully_qualified_namespace)
    queues = [backlog_path(name, index) for index in range(options.backlog_queue_count)]
    created, unknown = ensure_queues(options.secondary_admin, queues, cast(float, options.send_timeout))
    found = tuple(queue for queue in queues if queue not in created)
    paired = PairedServiceBusClient(primary, options, name, found, created)
    try:
        paired.check_links(unknown)
        paired.start()
    except BaseException:
        paired.close()
        raise
    return paired


class PairedServiceBusClient(PairedClientSurface, ServiceBusClient):
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
        PairedClientSurface.__init__(self, primary, options, primary_name, found, created, runtime.Guard())
        self._primary: ServiceBusClient = primary
        self.spool: SpoolForwarder | None = None
        self._entities: dict[str, WatchedEntity] = {}
        self._closing = runtime.Once()
        self._checks: list[runtime.Job] = []

    @classmethod
    def from_connection_strings(
        cls, primary: str, secondary: str, *, connection_verify: str | None = None, **options: Any
    ) -> PairedServiceBusClient:
        """Pair two namespaces by their connection strings.

        `connection_verify` is the path of a certificate authority that both clients trust; `options` are those of
        SendAvailabilityPairedNamespaceOptions.
        """
        # Checked before creating clients that would have to be closed again.
        check_options(options)
        sdk.check_connection_string("primary", primary)
        sdk.check_connection_string("secondary", secondary)
        trust: dict[str, Any] = {} if connection_verify is None else {"connection_verify": connection_verify}
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

    def __enter__(self) -> Self:
        self.check_usable()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def check_links(self, unknown: Mapping[str, Exception]) -> None:
        """Open a link to one backlog queue, and to each that could not be looked up; raises PairingError."""
        queues = list(unknown) or [backlog_path(self.primary_name, 0)]
        links = [SharedSender(functools.partial(self.backlog.make_sender, queue, ""), self.guard) for queue in queues]
        deadline = runtime.now() + self.send_timeout
        outcomes = runtime.all_of([functools.partial(link.open, deadline) for link in links])
        self._checks = [runtime.Job("pairbus-closing", functools.partial(_close_quietly, link)) for link in links]
        for queue, outcome in zip(queues, outcomes, strict=True):
            if isinstance(outcome, BaseException) and (queue in unknown or keeps_from_pairing(outcome)):
                cause = unknown.get(queue) if isinstance(outcome, MessagingEntityNotFoundError) else None
                raise errors.PairingError(queue, cause or outcome) from (cause or outcome)

    def start(self) -> None:
        """Start publishing, the spool's forwarder and the syphon."""
        self.observers.publish_through(publish(self))
        self.observers.paired(self._created, len(self.backlog.in_rotation))
        if self.options.spool is not None:
            self.spool = SpoolForwarder(self.options, self.backlog, self.state, self._send_home)
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
        return cast(ServiceBusClient, self.options.secondary)

    def get_queue_sender(
        self,
        queue_name: str,
        *,
        client_identifier: str | None = None,
        socket_timeout: float | None = None,
        **kwargs: Any,
    ) -> PairedServiceBusSender:
        """A paired sender for a queue of the primary; arguments as for the SDK's client."""
        kwargs |= {"socket_timeout": socket_timeout}
        make = functools.partial(self._primary.get_queue_sender, queue_name, client_identifier=client_identifier)
        return self._paired(queue_name, functools.partial(make, **kwargs), kwargs)

    def get_topic_sender(
        self,
        topic_name: str,
        *,
        client_identifier: str | None = None,
        socket_timeout: float | None = None,
        **kwargs: Any,
    ) -> PairedServiceBusSender:
        """A paired sender for a topic of the primary; arguments as for the SDK's client."""
        kwargs |= {"socket_timeout": socket_timeout}
        make = functools.partial(self._primary.get_topic_sender, topic_name, client_identifier=client_identifier)
        return self._paired(topic_name, functools.partial(make, **kwargs), kwargs)

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
        steps += [check.finish for check in self._checks]
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

    def _paired(self, entity: str, make_sender: Any, link_settings: dict[str, Any]) -> PairedServiceBusSender:
        watched = self._watched(entity)
        watched.link_settings = link_settings
        sender = PairedServiceBusSender(self, watched, make_sender)
        with self._mutex:
            self._senders.add(sender)
        return sender

    def _watched(self, entity: str) -> WatchedEntity:
        self.check_usable()
        with self._mutex:
            watched = self._entities.get(entity.lower())
            if watched is None:
                watched = self._entities[entity.lower()] = WatchedEntity(
                    entity,
                    self.options.rules,
                    make_sender=functools.partial(self._send_home, entity),
                    guard=self.guard,
                    observers=self.observers,
                    send_timeout=self.send_timeout,
                )
            return watched

    def _send_home(self, entity: str) -> ServiceBusSender:
        """The SDK's sender for pings and for the spool, for which a topic is a path like any other."""
        return self._primary.get_queue_sender(entity, **self.link_settings(entity))


def _close_quietly(link: SharedSender) -> None:
    try:
        link.close()
    except Exception:  # this link has served its purpose
        _log.debug("Closing the link of a check failed.", exc_info=True)


def _close_senders(senders: Sequence[PairedServiceBusSender]) -> None:
    # All at once: the SDK is slow to close a link, and its clients would close them one by one.
    for outcome in runtime.all_of([sender.close for sender in senders]):
        if isinstance(outcome, BaseException):
            _log.debug("Closing a sender failed.", exc_info=outcome)


class PairedServiceBusSender(PairedSenderSurface, ServiceBusSender):  # type: ignore[misc]
    """Sends to one queue or topic of the primary, or into the backlog while that entity is failed over.

    It has the surface of the SDK's sender. Many threads (sync) or tasks (aio) may use it at once: their sends take
    turns.
    """

    def __init__(
        self, client: PairedServiceBusClient, entity: WatchedEntity, make_sender: Callable[[], ServiceBusSender]
    ) -> None:
        # The SDK's __init__ is not called: this class has only its surface, the senders inside do the work.
        PairedSenderSurface.__init__(self, client, entity)
        self._primary: SharedSender = SharedSender(make_sender, client.guard)
        self._backlog: BacklogRoute = BacklogRoute(entity.name, client.backlog)
        entity.adopt(self._primary)

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
                    self._entity.handle(Event(EventKind.SEND_FAILED, sdk.cause(error), era))
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
        count = sdk.count_of(outgoing)
        if not count:
            return

        def send(sender: ServiceBusSender, seconds: float) -> None:
            if type(outgoing) is list and not sdk.batch_limit(sender):
                # For a list the SDK would open the link itself, without a timeout.
                deadline = runtime.now() + seconds
                sdk.open_link(sender, seconds)
                seconds = max(deadline - runtime.now(), _SHORTEST_TIMEOUT)
            sender.send_messages(outgoing, timeout=seconds)

        self._deliver(Operation.SEND, outgoing, count, timeout, send, _nothing)

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
            Operation.SCHEDULE, outgoing, count, timeout, schedule, backlog_numbers, scheduled=schedule_time_utc
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
        sdk.refuse_backlog_numbers(sequence_numbers)

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
        return self._new_batch(max_size_in_bytes, limit)

    def _open_primary(self) -> None:
        try:
            self._primary.open(runtime.now() + self._send_timeout, self._entity.takes_sends)
        except sdk.NotWantedError:
            return
        self._entity.learn_limits(self._primary.sender)

    def _deliver(
        self,
        operation: Operation,
        outgoing: sdk.Outgoing,
        count: int,
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
                result = self._primary.use(
                    until, call, entity.takes_sends, functools.partial(self._observe, operation, outgoing, started)
                )
            except sdk.NotWantedError:
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
                self._after_failure(error, judged, NO_ERA if isinstance(error, sdk.TurnTimeoutError) else era)
                break
            if machine.state is not EntityState.HEALTHY:
                entity.handle(Event(EventKind.SEND_SUCCEEDED, era=era))
            if not entity.message_limit_bytes:
                entity.learn_limits(self._primary.sender)
            if self._observers.in_detail:
                self._observe(operation, outgoing, started, None)
            elif self._tally is not None:
                self._tally.add(count, runtime.now() - started)
            return result
        if timeout is None:
            deadline = runtime.now() + self._send_timeout
        elif primary_error is not None and runtime.now() >= deadline and self._client.spool is None:
            raise primary_error  # no time is left for a backlog queue
        if scheduled is not None:
            outgoing = sdk.schedule(outgoing, scheduled)
        self._divert(outgoing, deadline, primary_error)
        return diverted()

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
            # A message that the queues refuse must not look accepted: the spool could only set it aside.
            if spool is None or not isinstance(error.cause, errors.BacklogUnavailableError):
                raise
            try:
                spool.store(name, [forms[position] for position in error.rest])
            except errors.SpoolError as full:
                raise sdk.PartlyAcceptedError(error.accepted, error.rest, full) from full


def _nothing() -> None:
    return None
