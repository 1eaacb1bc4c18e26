"""Everything that watches a paired client: callbacks, the log, the ledger, metrics, traces and the published state.

The client, its senders and its entities call `Observers`. Metrics need `prometheus_client`, traces `opentelemetry`, and
the published state a folder; without them there is nothing to pay for.

| metric | type | labels | meaning |
|---|---|---|---|
| pairbus_sent_messages_total | counter | entity, route, outcome | messages of finished sends |
| pairbus_send_duration_seconds | histogram | route | time of one send call |
| pairbus_entity_state | gauge | entity | 0 healthy, 1 suspect, 2 failed over |
| pairbus_transitions_total | counter | entity, before, after | changes of state |
| pairbus_backlog_queues_in_rotation | gauge | namespace | backlog queues that may be used |
| pairbus_spooled_messages | gauge | namespace | messages waiting in the local journal |

`route` is primary, backlog, spool or ping; `outcome` is ok, failed or unknown (no answer came); `namespace` is the
primary's name as in the ledger: its host if that begins with `primary_name`, else `primary_name`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import logging
import os
import re
import threading
import time
import uuid
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pairbus.errors import PairbusError
from pairbus.failover.states import EntityState, EventKind, Transition
from pairbus.ledger import CompletedOperation, LedgerWriter, Operation, Outcome, Route, error_name, outcome_of

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

    from pairbus.publishing import Publisher
    from pairbus.publishing.records import PairReport, Ping, RequestedAction

_log = logging.getLogger("pairbus.pairing")


@dataclass(frozen=True, slots=True)
class TransitionEvent:
    """An entity changed its state.

    `cause` is the error that counted, "ping", or the method that overrode the state; `episode` stays the same from the
    first suspicion until the entity is healthy again.
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
    """The observers of one paired client.

    `watching` is False if there are none; `in_detail` is False if numbers are enough; `wants_ids` is True if message
    ids are recorded.
    """

    def __init__(self, primary: str, secondary: str, ledger: Path | str | LedgerWriter | None) -> None:
        self.primary = primary
        self.secondary = secondary
        self.metrics = shared_metrics()
        self._callbacks: list[TransitionCallback] = []
        self._owns_ledger = isinstance(ledger, Path | str)
        self.ledger = LedgerWriter(ledger) if isinstance(ledger, Path | str) else ledger
        self.published: PublishedPair | None = None
        self.wants_ids = self.in_detail = self.ledger is not None
        self.watching = self.in_detail or self.metrics is not None

    def publish_through(self, published: PublishedPair | None) -> None:
        self.published = published
        self.in_detail = self.in_detail or published is not None
        self.watching = self.watching or published is not None

    def add_callback(self, callback: TransitionCallback) -> None:
        self._callbacks.append(callback)

    def close(self) -> None:
        if self.published is not None:
            self.published.close()
        if self._owns_ledger and self.ledger is not None:
            self.ledger.close()

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

    def completed(
        self,
        operation: Operation,
        entity: str,
        seconds: float,
        error: BaseException | None,
        *,
        in_doubt: bool = False,
        namespace: str | None = None,
        **fields: Any,
    ) -> CompletedOperation:
        """The operation that has just ended, at the primary unless another namespace is named."""
        return CompletedOperation(
            operation,
            namespace or self.primary,
            entity,
            outcome=outcome_of(error, in_doubt=in_doubt),
            error=error_name(error),
            latency_us=int(seconds * 1_000_000),
            **fields,
        )

    def tally(self, entity: str, route: Route) -> SendTally | None:
        """The tally of successful sends on this route, for senders to keep; None without metrics."""
        return None if self.metrics is None else self.metrics.tally(entity, route, Outcome.OK)

    def transition(self, entity: str, change: Transition, episode: str) -> None:
        """Log, count and record a change of state, and call the callbacks in the order they were added."""
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

    def paired(self, created: Sequence[str], in_rotation: int) -> None:
        if self.metrics is not None:
            self.metrics.rotation(self.primary, in_rotation)
        for queue in created:
            self.record(CompletedOperation(Operation.CREATE, self.secondary, queue))

    def pulled(self, queue: str, error: BaseException, left: int) -> None:
        _log.warning("Backlog queue %s is pulled from the rotation, %d left: %s", queue, left, type(error).__name__)
        if self.metrics is not None:
            self.metrics.rotation(self.primary, left)

    def taken_down(self, error: BaseException) -> None:
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


def new_episode() -> str:
    return uuid.uuid4().hex


# Metrics

_LEVEL = {EntityState.HEALTHY: 0, EntityState.SUSPECT: 1, EntityState.FAILED_OVER: 2}
_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class SendTally:
    """The sends to one entity by one route with one outcome."""

    __slots__ = ("_lock", "buckets", "messages", "seconds")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.messages = 0
        self.seconds = 0.0
        self.buckets = [0] * (len(_BOUNDS) + 1)

    def add(self, messages: int, seconds: float) -> None:
        """Count one send and its duration."""
        with self._lock:
            self.messages += messages
            self.seconds += seconds
            self.buckets[bisect_left(_BOUNDS, seconds)] += 1


class Metrics:
    """The Prometheus metrics of the process, shared by all paired clients.

    A send only adds to our own numbers; Prometheus's values are built from them when it collects.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        from prometheus_client import REGISTRY

        self._lock = threading.Lock()
        self._tallies: dict[tuple[str, str, str], SendTally] = {}
        self._states: dict[str, int] = {}
        self._transitions: dict[tuple[str, str, str], int] = {}
        self._rotation: dict[str, int] = {}
        self._spooled: dict[str, int] = {}
        (registry or REGISTRY).register(self)

    def tally(self, entity: str, route: str, outcome: str) -> SendTally:
        """The tally with these labels; a sender may keep it."""
        with self._lock:
            return self._tallies.setdefault((entity, str(route), str(outcome)), SendTally())

    def transition(self, entity: str, before: EntityState, after: EntityState) -> None:
        key = (entity, before.value, after.value)
        with self._lock:
            self._transitions[key] = self._transitions.get(key, 0) + 1
            self._states[entity] = _LEVEL[after]

    def rotation(self, namespace: str, queues: int) -> None:
        self._rotation[namespace] = queues

    def spool_depth(self, namespace: str, messages: int) -> None:
        self._spooled[namespace] = messages

    def collect(self) -> Iterator[Metric]:
        """Called by Prometheus."""
        from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

        sent = CounterMetricFamily(
            "pairbus_sent_messages", "Messages of finished sends.", labels=("entity", "route", "outcome")
        )
        duration = HistogramMetricFamily("pairbus_send_duration_seconds", "Time of one send call.", labels=("route",))
        transitions = CounterMetricFamily(
            "pairbus_transitions", "Changes of entity state.", labels=("entity", "before", "after")
        )
        bounds = [*map(str, _BOUNDS), "+Inf"]
        with self._lock:
            buckets: dict[str, list[int]] = {}
            seconds: dict[str, float] = {}
            for (entity, route, outcome), tally in self._tallies.items():
                if any(tally.buckets):
                    sent.add_metric([entity, route, outcome], tally.messages)
                    before = buckets.get(route, [0] * len(tally.buckets))
                    buckets[route] = [old + new for old, new in zip(before, tally.buckets, strict=True)]
                    seconds[route] = seconds.get(route, 0.0) + tally.seconds
            for route, counts in buckets.items():
                cumulative = [float(total) for total in accumulate(counts)]
                duration.add_metric([route], list(zip(bounds, cumulative, strict=True)), seconds[route])
            for key, count in self._transitions.items():
                transitions.add_metric(key, count)
            states, rotation, spooled = dict(self._states), dict(self._rotation), dict(self._spooled)
        yield from (sent, duration, transitions)
        yield _gauge("pairbus_entity_state", "0 healthy, 1 suspect, 2 failed over.", "entity", states)
        yield _gauge("pairbus_backlog_queues_in_rotation", "Backlog queues that may be used.", "namespace", rotation)
        yield _gauge("pairbus_spooled_messages", "Messages waiting in the local journal.", "namespace", spooled)


def _gauge(name: str, text: str, label: str, values: Mapping[str, int]) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    gauge = GaugeMetricFamily(name, text, labels=(label,))
    for value, number in values.items():
        gauge.add_metric([value], number)
    return gauge


@functools.cache
def shared_metrics() -> Metrics | None:
    """The metrics of the process; None if `prometheus_client` is not installed."""
    try:
        return Metrics()
    except ImportError:
        return None


# Traces: a diverted send is a span, `pairbus divert`. Its context (a W3C trace parent) travels with the messages until
# they go home, and the syphon's span, `pairbus restore`, links to the spans of all messages it carried.

MAX_LINKS = 128
_NOT_TRACED = contextlib.nullcontext(None)
_TRACE_PARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")


def is_tracing() -> bool:
    """Whether `opentelemetry` is installed and the application has set a provider."""
    api = _trace_api()
    return api is not None and not isinstance(api.get_tracer_provider(), api.ProxyTracerProvider)


def diverted_send(entity: str, count: int) -> contextlib.AbstractContextManager[str | None]:
    """A span around a diverted send; yields the trace parent for its messages, or None."""
    return _divert_span(_trace_api(), entity, count) if is_tracing() else _NOT_TRACED


def restored_send(
    entity: str, count: int, trace_parents: Iterable[str | None], seconds: float, error: str | None
) -> None:
    """Add a span for a send home that has just ended, linked to the diverted sends of its messages."""
    api = _trace_api()
    contexts = {parent: _span_context(api, parent) for parent in trace_parents if parent is not None}
    links = [api.Link(context) for context in contexts.values() if context is not None][:MAX_LINKS]
    ended_ns = time.time_ns()
    span = api.get_tracer("pairbus").start_span(
        "pairbus restore",
        kind=api.SpanKind.PRODUCER,
        attributes=_span_attributes(entity, count, "syphon"),
        links=links,
        start_time=ended_ns - round(seconds * 1e9),
    )
    if error is not None:
        span.set_attribute("error.type", error)
        span.set_status(api.StatusCode.ERROR)
    span.end(ended_ns)


@contextlib.contextmanager
def _divert_span(api: Any, entity: str, count: int) -> Iterator[str | None]:
    tracer = api.get_tracer("pairbus")
    attributes = _span_attributes(entity, count, "backlog")
    with tracer.start_as_current_span("pairbus divert", kind=api.SpanKind.PRODUCER, attributes=attributes) as span:
        context = span.get_span_context()
        if not context.is_valid:
            yield None
            return
        flags = int(context.trace_flags)
        yield f"00-{context.trace_id:032x}-{context.span_id:016x}-{flags:02x}"


def _span_attributes(entity: str, count: int, route: str) -> dict[str, Any]:
    return {
        "messaging.system": "servicebus",
        "messaging.operation.type": "send",
        "messaging.destination.name": entity,
        "messaging.batch.message_count": count,
        "pairbus.route": route,
    }


def _span_context(api: Any, trace_parent: str) -> Any:
    match = _TRACE_PARENT.fullmatch(trace_parent)
    if match is None:
        return None
    trace_id, span_id, flags = (int(part, 16) for part in match.groups())
    return api.SpanContext(trace_id, span_id, is_remote=True, trace_flags=api.TraceFlags(flags))


@functools.cache
def _trace_api() -> Any:
    try:
        from opentelemetry import trace
    except ImportError:
        return None
    return trace


# The published state

_LOOP_TIMEOUT_SECONDS = 5.0
MOST_ENTITIES = 200


def publish(client: Any) -> PublishedPair | None:
    """Begin to publish the client if a folder is set; otherwise nothing is loaded.

    Call this where the client lives: requests to an aio client run on the loop of this call.
    """
    folder = client.options.state_dir
    if folder is None and not os.environ.get("PAIRBUS_STATE_DIR"):
        return None
    from pairbus.publishing import join

    publisher = join(folder)
    if publisher is None:
        return None
    try:
        pair = PublishedPair(client, publisher)
    except BaseException:
        publisher.withdraw()
        raise
    publisher.add(pair)
    return pair


class PublishedPair:
    """A paired client, sync or aio, as its process publishes it. Called from any thread."""

    def __init__(self, client: Any, publisher: Publisher) -> None:
        self.key = publisher.new_key("pair")
        self._client = client
        self._publisher = publisher
        self._call_client = _caller_on_this_loop() if inspect.iscoroutinefunction(client.close) else _call_directly
        self._primary: str = client.observers.primary
        self._secondary: str = client.observers.secondary
        self._since: dict[str, tuple[float, str]] = {}
        self._pings: dict[str, Ping] = {}

    def count(self, completed: CompletedOperation) -> None:
        self._publisher.tally.count(self._primary, completed)

    def transition(self, event: TransitionEvent) -> None:
        from pairbus.publishing.records import TransitionReport

        at, cause = event.at.timestamp(), event.cause.partition(":")[0]
        self._since[event.entity] = (at, cause)
        self._publisher.transition(
            TransitionReport(
                at=at,
                primary=self._primary,
                entity=event.entity,
                before=event.before.value,
                after=event.after.value,
                reason=event.reason.name.lower(),
                cause=cause,
                episode=event.episode,
                source=self.key,
            )
        )

    def pinged(self, completed: CompletedOperation) -> None:
        from pairbus.publishing.records import Ping

        self._pings[completed.entity] = Ping(time.time(), completed.error is None, completed.error or "")

    def describe(self) -> PairReport:
        from pairbus.publishing.records import EntityReport, PairReport

        client = self._client
        now, monotonic_now = time.time(), time.monotonic()
        entities = []
        watched_entities = sorted(
            client.watched_entities, key=lambda entity: entity.machine.state is EntityState.HEALTHY
        )
        for watched in watched_entities[:MOST_ENTITIES]:
            since, cause = self._since.setdefault(watched.name, (now, ""))
            machine = watched.machine
            state, deadline = machine.state, machine.next_deadline
            entities.append(
                EntityReport(
                    name=watched.name,
                    state=state.value,
                    since=since,
                    cause=cause if state is not EntityState.HEALTHY else "",
                    deadline=None if deadline is None else now + deadline - monotonic_now,
                    ping=self._pings.get(watched.name),
                )
            )
        options = client.options
        return PairReport(
            key=self.key,
            primary=self._primary,
            secondary=self._secondary,
            primary_name=client.primary_name,
            entities=entities,
            backlog_queues=options.backlog_queue_count,
            in_rotation=len(client.backlog.in_rotation),
            failover_interval=options.failover_interval,
            ping_interval=options.ping_primary_interval,
            spooled=None if client.spool is None else client.spool.depth,
            faulted=client.is_faulted,
            more_entities=max(0, len(watched_entities) - MOST_ENTITIES),
        )

    def apply(self, action: RequestedAction, entity: str) -> str:
        """Carry out a request; returns the answer or raises RequestRefusedError."""
        from pairbus.publishing import RequestRefusedError
        from pairbus.publishing.records import RequestedAction

        overrides = {
            RequestedAction.FAIL_OVER: self._client.fail_over,
            RequestedAction.MARK_HEALTHY: self._client.mark_healthy,
        }
        if action not in overrides:
            raise RequestRefusedError("A paired client can only fail over an entity or mark it healthy.")
        if entity.lower() not in {watched.name.lower() for watched in self._client.watched_entities}:
            raise RequestRefusedError(f"This client does not send to {entity[:100]!r}.")
        try:
            self._call_client(lambda: overrides[action](entity))
        except TimeoutError:
            raise RequestRefusedError("The client's event loop did not answer; it may still carry this out.") from None
        except (PairbusError, RuntimeError, ValueError) as error:
            raise RequestRefusedError(f"The client can no longer be used ({type(error).__name__}).") from None
        return f"{entity} is {self._client.state(entity).value}."

    def close(self) -> None:
        self._publisher.leave(self)


def _call_directly(call: Callable[[], None]) -> None:
    call()


def _caller_on_this_loop() -> Callable[[Callable[[], None]], None]:
    """A function that makes a call on this loop, from any other thread; raises TimeoutError if the loop is stuck."""
    loop = asyncio.get_running_loop()

    def call_on_loop(call: Callable[[], None]) -> None:
        async def inside() -> None:
            call()

        asyncio.run_coroutine_threadsafe(inside(), loop).result(_LOOP_TIMEOUT_SECONDS)

    return call_on_loop
