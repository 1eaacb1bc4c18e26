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
from typing import TYPE_CHECKING

from pairbus.failover import EntityState

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_LEVEL = {EntityState.HEALTHY: 0, EntityState.SUSPECT: 1, EntityState.FAILED_OVER: 2}


class Metrics:
    """The process's metrics; all paired clients share them."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        from prometheus_client import REGISTRY, Counter, Gauge, Histogram

        to = registry or REGISTRY
        self._sent = Counter(
            "pairbus_sent_messages", "Messages of finished sends.", ("entity", "route", "outcome"), registry=to
        )
        self._duration = Histogram("pairbus_send_duration_seconds", "Time of one send call.", ("route",), registry=to)
        self._state = Gauge("pairbus_entity_state", "0 healthy, 1 suspect, 2 failed over.", ("entity",), registry=to)
        self._transitions = Counter(
            "pairbus_transitions", "Changes of entity state.", ("entity", "before", "after"), registry=to
        )
        self._rotation = Gauge(
            "pairbus_backlog_queues_in_rotation", "Backlog queues that may be used.", ("namespace",), registry=to
        )
        self._spooled = Gauge(
            "pairbus_spooled_messages", "Messages waiting in the local journal.", ("namespace",), registry=to
        )
        self._sent_child = functools.lru_cache(maxsize=1024)(self._sent.labels)
        self._duration_child = functools.lru_cache(maxsize=16)(self._duration.labels)

    @staticmethod
    def if_installed() -> Metrics | None:
        return _shared()

    def sent(self, entity: str, route: str, outcome: str, messages: int, seconds: float) -> None:
        self._sent_child(entity, route, outcome).inc(messages)
        self._duration_child(route).observe(seconds)

    def transition(self, entity: str, before: EntityState, after: EntityState) -> None:
        self._transitions.labels(entity, before.value, after.value).inc()
        self._state.labels(entity).set(_LEVEL[after])

    def rotation(self, namespace: str, queues: int) -> None:
        self._rotation.labels(namespace).set(queues)

    def spool_depth(self, namespace: str, messages: int) -> None:
        self._spooled.labels(namespace).set(messages)


@functools.cache
def _shared() -> Metrics | None:
    try:
        return Metrics()
    except ImportError:
        return None
