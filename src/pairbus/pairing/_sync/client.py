# Generated from ../_aio/client.py by scripts/generate_sync.py: change that file, not this one.
"""Pairs two namespaces; the paired client hands out senders and closes everything."""

from __future__ import annotations

import functools
import importlib
import itertools
import logging
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self, cast
from weakref import WeakSet

from azure.servicebus import ServiceBusClient, ServiceBusSender
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus.errors import PairbusError
from pairbus.failover import EntityState, Event, EventKind, Rotation
from pairbus.pairing import sdk
from pairbus.pairing._sync import runtime
from pairbus.pairing._sync.backlog import Backlog, SpoolForwarder, ensure_queues
from pairbus.pairing._sync.entity import WatchedEntity
from pairbus.pairing._sync.sender import PairedServiceBusSender
from pairbus.pairing.observers import Observers, TransitionCallback, publish
from pairbus.pairing.options import (
    OPTION_NAMES,
    BacklogQueues,
    SendAvailabilityPairedNamespaceOptions,
    backlog_path,
    check_two_namespaces,
    recorded_name,
)

_log = logging.getLogger("pairbus.pairing")

Options = SendAvailabilityPairedNamespaceOptions[ServiceBusAdministrationClient, ServiceBusClient]


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
        self._fault: PairbusError | None = None
        self._closing = runtime.Once()
        self._closed = False

    @classmethod
    def from_connection_strings(
        cls,
        primary: str,
        secondary: str,
        *,
        connection_verify: str | None = None,
        **options: Any,
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
