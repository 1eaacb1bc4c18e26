"""Watching over the two clients of a pair: what one of them suffers, the other learns within 5 seconds.

If one client is closed or fails for good without its partner, the partner gets `PATIENCE_SECONDS` to be closed too.
After that it is faulted: every further call raises `PairedNamespaceFaultedError`, which names the partner that is gone
and the cause. A faulted client can be closed. Closing the paired client closes both, so nothing is faulted then.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterable
from typing import Any

from pairbus.pairing.sdk import PairedNamespaceFaultedError

PATIENCE_SECONDS = 5.0
_ENTRANCES = (
    "get_queue_sender",
    "get_queue_receiver",
    "get_topic_sender",
    "get_subscription_receiver",
    "list_queue_sessions",
    "list_subscription_sessions",
)
_CALLS = (
    "send_messages",
    "create_message_batch",
    "schedule_messages",
    "cancel_scheduled_messages",
    "receive_messages",
    "receive_deferred_messages",
    "peek_messages",
    "complete_message",
    "abandon_message",
    "defer_message",
    "dead_letter_message",
    "renew_message_lock",
    "delete_messages",
)
"""What the SDK's senders and receivers can be asked; those that exist already are faulted with their client."""


class PairWatch:
    """Notices the end of either client of a paired client and sees to the other."""

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
        """Listen for the closing of either client."""
        for name, client in self._clients.items():
            client.close = self._listening(name, client.close)

    def end(self) -> None:
        """The pair is being closed as a whole: nobody is faulted any more."""
        with self._lock:
            self._ended = True
            if self._timer is not None:
                self._timer.cancel()
        for client in self._clients.values():
            vars(client).pop("close", None)

    def failed(self, name: str, cause: str) -> None:
        """This client ("primary" or "secondary") is gone for good."""
        with self._lock:
            if self._ended or name in self._gone:
                return
            self._gone[name] = cause
            if len(self._gone) == 1:
                self._timer = threading.Timer(self._patience, self._fault_the_other)
                self._timer.daemon = True
                self._timer.start()
            elif self._timer is not None:
                self._timer.cancel()
        self.stop_syphon()

    def _listening(self, name: str, close: Callable[[], Any]) -> Callable[[], Any]:
        if inspect.iscoroutinefunction(close):

            @functools.wraps(close)
            async def closed_aio() -> None:
                self.failed(name, "it was closed")
                await close()

            return closed_aio

        @functools.wraps(close)
        def closed() -> None:
            self.failed(name, "it was closed")
            close()

        return closed

    def _fault_the_other(self) -> None:
        with self._lock:
            if self._ended or len(self._gone) != 1:
                return
            ((partner, cause),) = self._gone.items()
        (survivor,) = (client for name, client in self._clients.items() if name != partner)
        _refuse_all(survivor, _ENTRANCES, partner, cause)
        for handler in list(getattr(survivor, "_handlers", ())):
            _refuse_all(handler, _CALLS, partner, cause)
        self._paired.fault(partner, cause)


def _refuse_all(target: Any, calls: Iterable[str], partner: str, cause: str) -> None:
    for call in calls:
        if hasattr(target, call):
            setattr(target, call, _refusing(partner, cause))


def _refusing(partner: str, cause: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise PairedNamespaceFaultedError(partner, cause)

    return refuse
