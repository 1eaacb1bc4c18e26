"""A syphon inside an application (`enable_syphon=True`): on a thread and an event loop of its own, sync and aio alike.

It also watches over the pair: see `watch`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

from pairbus.syphon.namespaces import Namespace
from pairbus.syphon.service import Syphon, SyphonState
from pairbus.syphon.watch import PairWatch

log = logging.getLogger(__name__)

CLOSE_SECONDS = 30.0


class InProcessSyphon:
    """A running syphon and the thread it runs on."""

    def __init__(self, syphon: Syphon, watch: PairWatch) -> None:
        self._syphon = syphon
        self._watch = watch
        self._thread = threading.Thread(target=self._run, name="pairbus-syphon", daemon=True)

    def __repr__(self) -> str:
        return f"<InProcessSyphon {self._syphon!r}>"

    def start(self) -> None:
        self._watch.begin()
        self._thread.start()

    def _run(self) -> None:
        try:
            asyncio.run(self._syphon.run())
        except Exception:  # the outermost frame of the thread
            log.exception("the syphon of this process ended")

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def state(self) -> SyphonState:
        return self._syphon.state()

    def pause(self) -> None:
        self._syphon.pause()

    def resume(self) -> None:
        self._syphon.resume()

    def stop(self) -> None:
        """Tell the syphon to finish what it holds; do not wait for it."""
        self._syphon.stop()

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Finish what is at hand and end; returns after `timeout` seconds at the latest."""
        self._watch.end()
        self._syphon.stop()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)


def start_in_process(paired: Any) -> InProcessSyphon:
    """Start the syphon of a paired client, sync or aio; the paired client closes it."""
    options = paired.options
    primary, secondary = Namespace.of(paired.primary), Namespace.of(paired.secondary)
    watch = PairWatch(paired)
    syphon = Syphon(
        primary,
        secondary,
        primary_name=paired.primary_name,
        queues=range(options.backlog_queue_count),
        transport="amqp" if primary.plain_amqp and secondary.plain_amqp else "sdk",
        backlog_time_to_live=options.backlog_time_to_live,
        retry_interval=options.syphon_retry_interval,
        send_timeout=options.send_timeout,
        ledger=options.ledger,
        state_dir=options.state_dir,
        on_namespace_lost=watch.failed,
    )
    watch.stop_syphon = syphon.stop
    running = InProcessSyphon(syphon, watch)
    running.start()
    return running
