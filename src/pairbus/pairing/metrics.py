"""Prometheus metrics, when `prometheus_client` is installed; nothing at all when it is not.

| metric | type | labels | meaning |
|---|---|---|---|
| pairbus_sent_messages_total | counter | entity, route, outcome | messages of finished sends |
| pairbus_send_duration_seconds | histogram | route | time of one send call |
| pairbus_entity_state | gauge | entity | 0 healthy, 1 suspect, 2 failed over |
| pairbus_transitions_total | counter | entity, before, after | changes of state |
| pairbus_backlog_queues_in_rotation | gauge | namespace | backlog queues that may be used |
| pairbus_spooled_messages | gauge | namespace | messages waiting in the local journal |

`route` is primary, backlog, spool or ping; `outcome` is ok, failed or unknown (no answer came); `namespace` is the
primary's name as the ledger has it: its host if that begins with `primary_name`, else `primary_name`.
"""

from __future__ import annotations

import functools
import threading
from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate
from typing import TYPE_CHECKING

from pairbus.failover import EntityState

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

_LEVEL = {EntityState.HEALTHY: 0, EntityState.SUSPECT: 1, EntityState.FAILED_OVER: 2}
_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Tally:
    """What was sent to one entity by one route with one outcome."""

    __slots__ = ("_lock", "buckets", "messages", "seconds")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.messages = 0
        self.seconds = 0.0
        self.buckets = [0] * (len(_BOUNDS) + 1)

    def add(self, messages: int, seconds: float) -> None:
        """One send of so many messages, which took so long."""
        with self._lock:
            self.messages += messages
            self.seconds += seconds
            self.buckets[bisect_left(_BOUNDS, seconds)] += 1


class Metrics:
    """The process's metrics; all paired clients share them.

    A send only adds to numbers of ours; what Prometheus makes of them is built when it asks.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        from prometheus_client import REGISTRY

        self._lock = threading.Lock()
        self._tallies: dict[tuple[str, str, str], Tally] = {}
        self._states: dict[str, int] = {}
        self._transitions: dict[tuple[str, str, str], int] = {}
        self._rotation: dict[str, int] = {}
        self._spooled: dict[str, int] = {}
        (registry or REGISTRY).register(self)

    @staticmethod
    def if_installed() -> Metrics | None:
        return _shared()

    def tally(self, entity: str, route: str, outcome: str) -> Tally:
        """The one tally of these labels; a sender may keep it."""
        with self._lock:
            return self._tallies.setdefault((entity, str(route), str(outcome)), Tally())

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
        """What Prometheus asks for."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

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
            gauges = [
                ("pairbus_entity_state", "0 healthy, 1 suspect, 2 failed over.", "entity", dict(self._states)),
                (
                    "pairbus_backlog_queues_in_rotation",
                    "Backlog queues that may be used.",
                    "namespace",
                    dict(self._rotation),
                ),
                (
                    "pairbus_spooled_messages",
                    "Messages waiting in the local journal.",
                    "namespace",
                    dict(self._spooled),
                ),
            ]
        yield from (sent, duration, transitions)
        for name, text, label, values in gauges:
            gauge = GaugeMetricFamily(name, text, labels=(label,))
            for value, number in values.items():
                gauge.add_metric([value], number)
            yield gauge


@functools.cache
def _shared() -> Metrics | None:
    try:
        return Metrics()
    except ImportError:
        return None
