"""Health and metrics of a running syphon over HTTP, on loopback.

`/health` answers 200 while every pump reaches its backlog queue, otherwise 503, with the state as JSON. `/metrics`
answers in the text format of Prometheus. Every request must name this machine in `Host`, so that no web page can read
either through a name of its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import fields

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from pairbus.loopback import is_loopback, names_this_machine
from pairbus.syphon.outcomes import Counts
from pairbus.syphon.service import QueueState, Syphon

_LOST = ("connecting", "missing")
_GAUGES: dict[str, tuple[str, Callable[[QueueState], float]]] = {
    "in_hand": ("messages in hand", lambda queue: queue.in_hand),
    "held": ("locked messages of paused destinations", lambda queue: queue.held),
    "queue_up": ("1: the backlog queue is reachable", lambda queue: queue.state not in _LOST),
}


class SyphonCollector(Collector):
    """The state of a syphon as metrics, read on each scrape."""

    def __init__(self, syphon: Syphon) -> None:
        self._syphon = syphon

    def collect(self) -> Iterator[Metric]:
        state = self._syphon.state()
        for field in fields(Counts):
            counter = CounterMetricFamily(
                f"pairbus_syphon_{field.name}", f"{field.name.replace('_', ' ')} since the start", labels=["queue"]
            )
            for queue in state.queues:
                counter.add_metric([queue.queue], getattr(queue.counts, field.name))
            yield counter
        for name, (text, measure) in _GAUGES.items():
            gauge = GaugeMetricFamily(f"pairbus_syphon_{name}", text, labels=["queue"])
            for queue in state.queues:
                gauge.add_metric([queue.queue], measure(queue))
            yield gauge
        paused = GaugeMetricFamily(
            "pairbus_syphon_destination_pause_seconds",
            "seconds until a paused destination is tried again",
            labels=["queue", "destination"],
        )
        for queue in state.queues:
            for destination in queue.paused:
                paused.add_metric([queue.queue, destination.destination], destination.seconds_left)
        yield paused


@contextlib.asynccontextmanager
async def health_and_metrics(syphon: Syphon, host: str, port: int) -> AsyncIterator[int]:
    """Serve while the context lasts; yields the port. Raises OSError if the port is in use."""
    if not is_loopback(host):
        raise ValueError(f"The address {host!r} is not a loopback address; use 127.0.0.1, ::1 or localhost.")
    registry = CollectorRegistry()
    registry.register(SyphonCollector(syphon))

    async def health(_: web.Request) -> web.Response:
        state = syphon.state()
        healthy = state.state != "stopped" and all(queue.state not in _LOST for queue in state.queues)
        return web.json_response({"healthy": healthy, **state.as_dict()}, status=200 if healthy else 503)

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    @web.middleware
    async def guard(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if not names_this_machine(request.headers.get("Host", "")):
            return web.Response(status=421, text="Ask for localhost or 127.0.0.1.")
        return await handler(request)

    app = web.Application(middlewares=[guard])
    app.add_routes([web.get("/health", health), web.get("/metrics", metrics)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()
