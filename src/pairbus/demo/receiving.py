"""The receiving application of the demo: reads the primary, and knows nothing of pairing.

It counts a message when it has it in hand, before it completes it: if the answer to a completion is lost in a kill,
the message was delivered all the same, and if it comes again, that is a duplicate.
"""

from __future__ import annotations

import threading
from collections import Counter
from types import TracebackType
from typing import Self

from azure.servicebus import ServiceBusReceivedMessage, ServiceBusReceiver
from azure.servicebus.exceptions import ServiceBusError

from pairbus.ledger import LedgerWriter, Operation, Outcome
from pairbus.testing import EmbeddedNamespace

LONGEST_WAIT_SECONDS = 0.5
PAUSE_SECONDS = 0.2


class ReceivingApplication:
    """Receives and completes on a thread of its own, through outages."""

    def __init__(self, namespace: EmbeddedNamespace, queue: str, ledger: LedgerWriter) -> None:
        self._namespace = namespace
        self._queue = queue
        self._ledger = ledger
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="receiving application")
        self._seen: Counter[str] = Counter()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def message_ids(self) -> set[str]:
        """The messages that arrived."""
        return set(self._seen.copy())

    @property
    def duplicates(self) -> int:
        """Copies beyond the first."""
        counted = self._seen.copy()
        return counted.total() - len(counted)

    def _run(self) -> None:
        with self._namespace.client(retry_total=0) as client:
            while not self._stop.is_set():
                try:
                    with client.get_queue_receiver(self._queue, prefetch_count=100) as receiver:
                        while not self._stop.is_set():
                            for message in receiver.receive_messages(100, max_wait_time=LONGEST_WAIT_SECONDS):
                                self._take(receiver, message)
                except ServiceBusError:
                    self._stop.wait(PAUSE_SECONDS)  # an outage: it is over when a connection opens again

    def _take(self, receiver: ServiceBusReceiver, message: ServiceBusReceivedMessage) -> None:
        message_id = str(message.message_id)
        self._seen[message_id] += 1
        self._ledger.record(Operation.RECEIVE, self._namespace.name, self._queue, message_id=message_id)
        outcome = Outcome.UNKNOWN
        try:
            receiver.complete_message(message)
            outcome = Outcome.OK
        finally:
            self._ledger.record(
                Operation.COMPLETE, self._namespace.name, self._queue, outcome=outcome, message_id=message_id
            )
