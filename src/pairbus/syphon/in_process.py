"""A syphon inside an application (`enable_syphon=True`), on a thread with its own event loop; for sync and aio clients.

It also watches both clients of the pair (`PairWatch`). If one client is closed or fails permanently without its
partner, the partner has `PATIENCE_SECONDS` to be closed too. After that it is faulted: every further call raises
`PairedNamespaceFaultedError`, which names the lost partner and the cause. A faulted client can still be closed. Closing
the paired client closes both, so then nothing is faulted.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import threading
from collections.abc import Callable
from typing import Any

from pairbus.pairing.sdk import PairedNamespaceFaultedError, end_iteration
from pairbus.syphon.namespaces import Namespace
from pairbus.syphon.service import Syphon, SyphonState

log = logging.getLogger(__name__)

CLOSE_SECONDS = 30.0
PATIENCE_SECONDS = 5.0


class PairWatch:
    """Notices the end of either client of a pair, and faults the other one."""

    def __init__(self, paired: Any, patience: float = PATIENCE_SECONDS) -> None:
        self._paired = paired
        self.stop_syphon: Callable[[], None] = lambda: None
        self._patience = patience
        self._clients = {"primary": paired.primary, "secondary": paired.secondary}
        self._lock = threading.Lock()
        self._gone: dict[str, str] = {}
        self._timer: threading.Timer | None = None
        self._ended = False

    def begin(self) -> None:
        """Watch for the closing of either client."""
        for name, client in self._clients.items():
            client.close = self._watched(name, client.close)

    def end(self) -> None:
        """The whole pair is being closed: fault nothing from now on."""
        with self._lock:
            self._ended = True
            if self._timer is not None:
                self._timer.cancel()
        for client in self._clients.values():
            vars(client).pop("close", None)

    def failed(self, name: str, cause: str) -> None:
        """This client ("primary" or "secondary") is permanently lost."""
        with self._lock:
            if self._ended or name in self._gone:
                return
            self._gone[name] = cause
            if len(self._gone) == 1:
                self._timer = threading.Timer(self._patience, self._fault_survivor)
                self._timer.daemon = True
                self._timer.start()
            elif self._timer is not None:
                self._timer.cancel()
        self.stop_syphon()

    def _watched(self, name: str, close: Callable[[], Any]) -> Callable[[], Any]:
        @functools.wraps(close)
        def closed() -> Any:
            self.failed(name, "it was closed")
            return close()  # a coroutine, if it is an aio client

        return closed

    def _fault_survivor(self) -> None:
        with self._lock:
            if self._ended or len(self._gone) != 1:
                return
            ((partner, cause),) = self._gone.items()
        (survivor,) = (client for name, client in self._clients.items() if name != partner)
        # Existing senders and receivers are faulted with their client.
        for target in (survivor, *getattr(survivor, "_handlers", ())):
            _refuse_all(target, partner, cause)
        self._paired.fault(partner, cause)


def _refuse_all(target: Any, partner: str, cause: str) -> None:
    """Make every public method raise, except `close`."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise PairedNamespaceFaultedError(partner, cause)

    for name, _ in inspect.getmembers(type(target), inspect.isfunction):
        if not name.startswith("_") and name != "close":
            setattr(target, name, refuse)
    end_iteration(target, refuse)


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
            log.exception("the syphon of this process failed")

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def state(self) -> SyphonState:
        return self._syphon.state()

    def pause(self) -> None:
        self._syphon.pause()

    def resume(self) -> None:
        self._syphon.resume()

    def set_rate(self, per_second: float | None) -> None:
        """Change the limit of messages per second; None: no limit."""
        self._syphon.set_rate(per_second)

    def stop(self) -> None:
        """Finish the messages in hand; does not wait."""
        self._syphon.stop()

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Finish the messages in hand and end; waits for at most `timeout` seconds."""
        self._watch.end()
        self._syphon.stop()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)


def start_in_process(paired: Any) -> InProcessSyphon:
    """Start the syphon of a paired client, sync or aio. The paired client closes it."""
    options = paired.options
    loop = asyncio.get_running_loop() if inspect.iscoroutinefunction(paired.close) else None
    watch = PairWatch(paired)
    syphon = Syphon(
        Namespace.of(paired.primary, loop),
        Namespace.of(paired.secondary, loop),
        primary_name=paired.primary_name,
        queues=range(options.backlog_queue_count),
        backlog_time_to_live=options.backlog_time_to_live,
        retry_interval=options.syphon_retry_interval,
        send_timeout=options.send_timeout,
        rate=options.syphon_rate,
        ledger=options.ledger,
        state_dir=options.state_dir,
        on_namespace_lost=watch.failed,
    )
    watch.stop_syphon = syphon.stop
    running = InProcessSyphon(syphon, watch)
    running.start()
    return running
