"""The receiving applications of the demo: they read the primary, and know nothing of pairing.

They count a message when they have it in hand, before they complete it: if the answer to a completion is lost in a
kill, the message was delivered all the same, and if it comes again, that is a duplicate.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from azure.servicebus import (
    NEXT_AVAILABLE_SESSION,
    ServiceBusClient,
    ServiceBusReceivedMessage,
    ServiceBusReceiver,
)
from azure.servicebus.exceptions import ServiceBusError

from pairbus.demo.parcels import Destination
from pairbus.ledger import CompletedOperation, LedgerWriter, Operation, Outcome
from pairbus.testing import EmbeddedNamespace

LONGEST_WAIT_SECONDS = 0.5
PAUSE_SECONDS = 0.2


class Receivers:
    """One receiver for each destination, on a thread of its own, through outages."""

    def __init__(self, namespace: EmbeddedNamespace, destinations: Sequence[Destination], ledger: LedgerWriter) -> None:
        self._namespace = namespace
        self._ledger = ledger
        self._stop = threading.Event()
        self._seen: dict[str, Counter[str]] = {destination.name: Counter() for destination in destinations}
        self._threads = [
            threading.Thread(target=self._run, args=(destination,), name=f"receiver of {destination.name}")
            for destination in destinations
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def seen(self, destination: Destination) -> Counter[str]:
        """The ids that arrived, and how often each."""
        return self._seen[destination.name].copy()

    def _run(self, destination: Destination) -> None:
        with self._namespace.client(retry_total=0) as client:
            while not self._stop.is_set():
                try:
                    with _open(client, destination) as receiver:
                        self._read(receiver, destination)
                except ServiceBusError:
                    # An outage, over when a connection opens again; or no session has a message.
                    self._stop.wait(PAUSE_SECONDS)

    def _read(self, receiver: ServiceBusReceiver, destination: Destination) -> None:
        """Until told to stop; of a session, until it is empty: others may have more."""
        while not self._stop.is_set():
            messages = receiver.receive_messages(100, max_wait_time=LONGEST_WAIT_SECONDS)
            for message in messages:
                self._take(receiver, message, destination)
            if not messages and destination.has_sessions:
                return

    def _take(self, receiver: ServiceBusReceiver, message: ServiceBusReceivedMessage, destination: Destination) -> None:
        message_id, name, path = str(message.message_id), self._namespace.name, destination.path
        self._seen[destination.name][message_id] += 1
        self._ledger.record(CompletedOperation(Operation.RECEIVE, name, path, [message_id]))
        outcome = Outcome.UNKNOWN
        try:
            receiver.complete_message(message)
            outcome = Outcome.OK
        finally:
            self._ledger.record(CompletedOperation(Operation.COMPLETE, name, path, [message_id], outcome=outcome))


def _open(client: ServiceBusClient, destination: Destination) -> ServiceBusReceiver:
    if destination.subscription is not None:
        return client.get_subscription_receiver(destination.entity, destination.subscription, prefetch_count=100)
    if destination.has_sessions:
        return client.get_queue_receiver(
            destination.entity, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=LONGEST_WAIT_SECONDS
        )
    return client.get_queue_receiver(destination.entity, prefetch_count=100)
