"""The applications of the demo: what they send and where it must arrive, the senders, and the receivers.

- The seed alone decides what is sent. The story decides how far the senders may go (`SenderFleet.allow`); senders and
  receivers know nothing of outages.
- Each subscription's filter exists twice: as SQL for the namespace, and as a Python function for the story. The two
  share nothing but their meaning.
- A receiver counts a message before it completes it. If a kill swallows the answer to the completion, the message was
  delivered all the same; if it comes again, that is a duplicate.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from azure.servicebus import (
    NEXT_AVAILABLE_SESSION,
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceivedMessage,
    ServiceBusReceiver,
)
from azure.servicebus.exceptions import ServiceBusError

from pairbus import PairbusError, PairedServiceBusClient, PairedServiceBusSender
from pairbus.ledger import CompletedOperation, LedgerWriter, Operation, Outcome
from pairbus.testing import EmbeddedNamespace

ORDERS, PRICES, CARTS = "orders", "prices", "carts"
ENTITIES = (ORDERS, PRICES, CARTS)
REGIONS = ("africa", "america", "asia", "europe")
SESSIONS = ("cart-1", "cart-2", "cart-3", "cart-4")
MAX_AMOUNT = 1_000
RECEIVE_SECONDS = 0.5
RETRY_SECONDS = 0.2


# --- messages and destinations ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Parcel:
    """One message of the demo."""

    message_id: str
    entity: str
    region: str
    amount: int
    session: str | None

    def as_message(self) -> ServiceBusMessage:
        return ServiceBusMessage(
            f"{self.entity}: {self.amount} in {self.region}",
            message_id=self.message_id,
            session_id=self.session,
            application_properties={"region": self.region, "amount": self.amount},
        )


def parcels(seed: int, entity: str, sender: int) -> Iterator[Parcel]:
    """The endless messages of one sender; the same for the same seed."""
    chance = random.Random(f"{seed} {entity} {sender}")  # noqa: S311 - a demo, not a secret
    for number in itertools.count(1):
        region, amount, session = chance.choice(REGIONS), chance.randint(1, MAX_AMOUNT), chance.choice(SESSIONS)
        yield Parcel(f"{entity}-{sender}-{number}", entity, region, amount, session if entity == CARTS else None)


@dataclass(frozen=True, slots=True)
class Destination:
    """A queue, or a subscription with its filter."""

    entity: str
    subscription: str | None = None
    sql_filter: str | None = None
    selects: Callable[[Parcel], bool] = lambda parcel: True
    has_sessions: bool = False

    @property
    def path(self) -> str:
        return self.entity if self.subscription is None else f"{self.entity}/Subscriptions/{self.subscription}"

    @property
    def name(self) -> str:
        return self.entity if self.subscription is None else f"{self.entity}/{self.subscription}"

    def takes(self, parcel: Parcel) -> bool:
        return parcel.entity == self.entity and self.selects(parcel)


DESTINATIONS = (
    Destination(ORDERS),
    Destination(PRICES, "europe", "region = 'europe'", lambda parcel: parcel.region == "europe"),
    Destination(PRICES, "large", "amount >= 600", lambda parcel: parcel.amount >= 600),
    Destination(CARTS, has_sessions=True),
)


# --- applications -------------------------------------------------------------------------------------------


class _Threads:
    """Threads that run as long as the context is open."""

    def __init__(self, threads: Sequence[threading.Thread]) -> None:
        self._stop = threading.Event()
        self._threads = threads

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._wake()
        for thread in self._threads:
            thread.join()

    def _wake(self) -> None:
        """Wake threads that wait for something else than `_stop`."""


class SenderFleet(_Threads):
    """Senders on threads of their own, `senders` for each entity, on one paired client."""

    def __init__(self, paired: PairedServiceBusClient, seed: int, senders: int, pause_seconds: float) -> None:
        self._paired = paired
        self._seed = seed
        self._pause_seconds = pause_seconds
        self._turn = threading.Condition()
        self._allowed = 0
        self._done = {(entity, number): 0 for entity in ENTITIES for number in range(1, senders + 1)}
        self._accepted: list[Parcel] = []
        self._refused: list[Parcel] = []
        self._failure: BaseException | None = None
        super().__init__(
            [threading.Thread(target=self._run, args=key, name=f"sender {key[1]} of {key[0]}") for key in self._done]
        )

    @property
    def size(self) -> int:
        return len(self._threads)

    def allow(self, more: int) -> None:
        """Let every sender send this many more messages."""
        with self._turn:
            self._allowed += more
            self._turn.notify_all()

    @property
    def left(self) -> int:
        """How many allowed messages have not been sent yet."""
        with self._turn:
            if self._failure is not None:
                raise self._failure
            return sum(self._allowed - done for done in self._done.values())

    @property
    def accepted(self) -> list[Parcel]:
        """Messages whose send returned: these must arrive."""
        with self._turn:
            return list(self._accepted)

    @property
    def refused(self) -> list[Parcel]:
        """Messages whose send raised: the sender knows, and may try again. None is expected."""
        with self._turn:
            return list(self._refused)

    def planned(self) -> Iterator[Parcel]:
        """All messages that the fleet was allowed to send."""
        for entity, number in self._done:
            yield from itertools.islice(parcels(self._seed, entity, number), self._allowed)

    def _wake(self) -> None:
        with self._turn:
            self._turn.notify_all()

    def _run(self, entity: str, number: int) -> None:
        open_sender = self._paired.get_topic_sender if entity == PRICES else self._paired.get_queue_sender
        try:
            with open_sender(entity) as sender:
                for parcel in parcels(self._seed, entity, number):
                    if not self._may_send(entity, number):
                        return
                    self._send(sender, parcel, (entity, number))
                    self._stop.wait(self._pause_seconds)
        except BaseException as error:  # the story must learn of it, and not wait for this sender
            with self._turn:
                self._failure = error

    def _may_send(self, entity: str, number: int) -> bool:
        with self._turn:
            self._turn.wait_for(lambda: self._stop.is_set() or self._done[entity, number] < self._allowed)
            return not self._stop.is_set()

    def _send(self, sender: PairedServiceBusSender, parcel: Parcel, key: tuple[str, int]) -> None:
        results = self._accepted
        try:
            sender.send_messages(parcel.as_message())
        except (PairbusError, ServiceBusError):
            results = self._refused
        with self._turn:
            results.append(parcel)
            self._done[key] += 1


class Receivers(_Threads):
    """One receiver for each destination, on a thread of its own. They read the primary, through outages."""

    def __init__(self, namespace: EmbeddedNamespace, destinations: Sequence[Destination], ledger: LedgerWriter) -> None:
        self._namespace = namespace
        self._ledger = ledger
        self._seen: dict[str, Counter[str]] = {destination.name: Counter() for destination in destinations}
        super().__init__(
            [
                threading.Thread(target=self._run, args=(destination,), name=f"receiver of {destination.name}")
                for destination in destinations
            ]
        )

    def seen(self, destination: Destination) -> Counter[str]:
        """The ids that arrived, and how often each did."""
        return self._seen[destination.name].copy()

    def _run(self, destination: Destination) -> None:
        with self._namespace.client(retry_total=0) as client:
            while not self._stop.is_set():
                try:
                    with _open_receiver(client, destination) as receiver:
                        self._read(receiver, destination)
                except ServiceBusError:
                    # An outage, which ends when a connection opens again; or no session has a message.
                    self._stop.wait(RETRY_SECONDS)

    def _read(self, receiver: ServiceBusReceiver, destination: Destination) -> None:
        """Read until stopped; a session only until it is empty, because others may have messages."""
        while not self._stop.is_set():
            messages = receiver.receive_messages(100, max_wait_time=RECEIVE_SECONDS)
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


def _open_receiver(client: ServiceBusClient, destination: Destination) -> ServiceBusReceiver:
    if destination.subscription is not None:
        return client.get_subscription_receiver(destination.entity, destination.subscription, prefetch_count=100)
    if destination.has_sessions:
        return client.get_queue_receiver(
            destination.entity, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=RECEIVE_SECONDS
        )
    return client.get_queue_receiver(destination.entity, prefetch_count=100)
