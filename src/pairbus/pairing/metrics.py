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
host of the primary.
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


class Metrics:
    """The process's metrics; all paired clients share them.

    A send only adds to numbers of ours; what Prometheus makes of them is built when it asks.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        from prometheus_client import REGISTRY

        self._lock = threading.Lock()
        self._sent: dict[tuple[str, str, str], int] = {}
        self._durations: dict[str, list[int]] = {}
        self._seconds: dict[str, float] = {}
        self._states: dict[str, int] = {}
        self._transitions: dict[tuple[str, str, str], int] = {}
        self._rotation: dict[str, int] = {}
        self._spooled: dict[str, int] = {}
        (registry or REGISTRY).register(self)

    @staticmethod
    def if_installed() -> Metrics | None:
        return _shared()

    def sent(self, entity: str, route: str, outcome: str, messages: int, seconds: float) -> None:
        key = (entity, route, outcome)
        with self._lock:
            self._sent[key] = self._sent.get(key, 0) + messages
            buckets = self._durations.get(route)
            if buckets is None:
                buckets = self._durations[route] = [0] * (len(_BOUNDS) + 1)
            buckets[bisect_left(_BOUNDS, seconds)] += 1
            self._seconds[route] = self._seconds.get(route, 0.0) + seconds

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
            for key, count in self._sent.items():
                sent.add_metric([str(label) for label in key], count)
            for route, buckets in self._durations.items():
                cumulative = [float(total) for total in accumulate(buckets)]
                duration.add_metric([str(route)], list(zip(bounds, cumulative, strict=True)), self._seconds[route])
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
