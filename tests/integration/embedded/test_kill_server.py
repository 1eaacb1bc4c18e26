"""`kill -9` at random moments, under load, with the SDK's clients reconnecting.

A server in a child process is killed again and again while single messages and batches are sent, received and
completed. At the end the accounts must agree:

- every message whose send was acknowledged was delivered;
- no message came back after its completion was acknowledged;
- a batch in doubt (sent, no answer) is there as a whole or not at all;
- no sequence number was given twice, and none went backwards over a restart.

Each round's moment is a number of events (sends begun, sends acknowledged, completions begun) drawn from a seed,
which is printed. The outcome does not depend on it: with any seed the accounts must agree. `PAIRBUS_KILL_SEED`
repeats a seed, `PAIRBUS_KILL_ROUNDS` sets the number of kills, over all servers.
"""

from __future__ import annotations

import itertools
import math
import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus.exceptions import ServiceBusError
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus.testing import EmbeddedNamespace, wait_until

SERVERS = 3
ROUNDS = int(os.environ.get("PAIRBUS_KILL_ROUNDS", "18"))
SEED = int(os.environ.get("PAIRBUS_KILL_SEED", random.SystemRandom().randrange(2**32)))
BATCH = 10
QUEUE = "orders"
EVENTS = ("send begun", "send acknowledged", "batch begun", "batch acknowledged", "completion begun")
MAX_IN_FLIGHT = 100
PATIENCE_SECONDS = 60.0


class Account:
    """What the clients were told, kept by the test: the only truth the server is measured against."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self._events: Counter[str] = Counter()
        self.acknowledged: set[str] = set()
        self.batches_in_doubt: list[list[str]] = []
        self.completed: set[str] = set()
        self.completions_in_doubt: set[str] = set()
        self.delivered: set[str] = set()
        self.came_back: list[str] = []
        self.number_of: dict[str, int] = {}
        self.renumbered: list[tuple[str, int, int]] = []
        self.unexpected: list[BaseException] = []

    @property
    def in_flight(self) -> int:
        return len(self.acknowledged) - len(self.completed)

    def note(self, event: str) -> None:
        with self.changed:
            self._events[event] += 1
            self.changed.notify_all()

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        with self.changed:
            met = self.changed.wait_for(lambda: condition() or bool(self.unexpected), PATIENCE_SECONDS)
        if self.unexpected:
            raise AssertionError("a client failed in a way that no kill explains") from self.unexpected[0]
        assert met, f"waited {PATIENCE_SECONDS} s for {what}; events so far: {dict(self._events)}"

    def wait_for_events(self, event: str, count: int) -> None:
        goal = self._events[event] + count
        self.wait_for(lambda: self._events[event] >= goal, f"{count} x {event}")

    def receive(self, message: ServiceBusReceivedMessage) -> str:
        name = str(message)
        number = message.sequence_number
        assert number is not None
        if name in self.completed:
            self.came_back.append(name)
        if self.number_of.setdefault(name, number) != number:
            self.renumbered.append((name, self.number_of[name], number))
        self.delivered.add(name)
        return name


class Crowd:
    """Client threads that go on through outages: they wait for the server instead of hammering at it."""

    def __init__(self, server: EmbeddedNamespace, account: Account) -> None:
        self.server = server
        self.account = account
        self.up = threading.Event()
        self.done_sending = threading.Event()
        self.done = threading.Event()

    def send_singles(self) -> None:
        with self._client() as client, client.get_queue_sender(QUEUE) as sender:
            for number in itertools.count():
                if not self._may_send():
                    return
                name = f"single-{number}"
                self.account.note("send begun")
                try:
                    sender.send_messages(ServiceBusMessage(name, message_id=name))
                except ServiceBusError:
                    continue  # in doubt: it may be there, and it was not acknowledged
                self.account.acknowledged.add(name)
                self.account.note("send acknowledged")

    def send_batches(self) -> None:
        with self._client() as client, client.get_queue_sender(QUEUE) as sender:
            for number in itertools.count():
                if not self._may_send():
                    return
                names = [f"batch-{number}-{part}" for part in range(BATCH)]
                self.account.note("batch begun")
                try:
                    sender.send_messages([ServiceBusMessage(name, message_id=name) for name in names])
                except ServiceBusError:
                    self.account.batches_in_doubt.append(names)
                    continue
                self.account.acknowledged.update(names)
                self.account.note("batch acknowledged")

    def receive_and_complete(self) -> None:
        with self._client() as client:
            while self._may_go_on(self.done):
                try:
                    with client.get_queue_receiver(QUEUE, prefetch_count=20) as receiver:
                        while self._may_go_on(self.done):
                            for message in receiver.receive_messages(20, max_wait_time=1):
                                name = self.account.receive(message)
                                self.account.note("completion begun")
                                self.account.completions_in_doubt.add(name)
                                receiver.complete_message(message)
                                self.account.completions_in_doubt.discard(name)
                                self.account.completed.add(name)
                                self.account.note("completion acknowledged")
                except ServiceBusError:
                    continue  # the link broke; what it held is locked no more and comes again

    def _may_send(self) -> bool:
        """Waits for the server and for the receiver: what is in the queue must be drained at the end."""
        with self.account.changed:
            self.account.changed.wait_for(
                lambda: self.done_sending.is_set() or self.account.in_flight < MAX_IN_FLIGHT, PATIENCE_SECONDS
            )
        return self._may_go_on(self.done_sending)

    def _may_go_on(self, over: threading.Event) -> bool:
        self.up.wait(PATIENCE_SECONDS)
        return not over.is_set()

    def _client(self) -> ServiceBusClient:
        return self.server.client(retry_total=0)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        jobs = (self.send_singles, self.send_batches, self.receive_and_complete)
        threads = [threading.Thread(target=self._watched, args=(job,), name=job.__name__) for job in jobs]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            for event in (self.done_sending, self.done, self.up):
                event.set()
            for thread in threads:
                thread.join(PATIENCE_SECONDS)
            assert not any(thread.is_alive() for thread in threads), "a client hangs"

    def _watched(self, job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:
            self.account.unexpected.append(error)
            self.account.note("client failed")


@pytest.mark.parametrize("server_number", range(SERVERS))
def test_nothing_acknowledged_is_lost_and_nothing_settled_comes_back(tmp_path: Path, server_number: int) -> None:
    print(f"PAIRBUS_KILL_SEED={SEED} PAIRBUS_KILL_ROUNDS={ROUNDS}")
    moments = random.Random(f"{SEED}/{server_number}")
    account = Account()
    with EmbeddedNamespace("contoso", data=tmp_path / "contoso", process=True) as server:
        with server.admin() as admin:
            admin.create_queue(QUEUE, max_delivery_count=2000)
        crowd = Crowd(server, account)
        crowd.up.set()
        with crowd.at_work():
            for _ in range(math.ceil(ROUNDS / SERVERS)):
                account.wait_for_events(moments.choice(EVENTS), moments.randint(1, 15))
                crowd.up.clear()
                server.kill()
                server.start()
                crowd.up.set()
            crowd.done_sending.set()
            with server.admin() as admin:
                wait_until(lambda: is_empty(admin), PATIENCE_SECONDS, "the queue to be empty")

    assert account.unexpected == []
    assert account.acknowledged - account.delivered == set(), "acknowledged and lost"
    assert account.came_back == [], "settled, and delivered again"
    assert account.acknowledged - account.completed - account.completions_in_doubt == set(), "gone by itself"
    for batch in account.batches_in_doubt:
        present = [name for name in batch if name in account.delivered]
        assert present in ([], batch), "half a batch"
    assert account.renumbered == []
    assert len(set(account.number_of.values())) == len(account.number_of), "a sequence number was given twice"
    in_order = sorted((name for name in account.number_of if name.startswith("single-")), key=send_order)
    numbers = [account.number_of[name] for name in in_order]
    assert numbers == sorted(numbers), "sequence numbers went backwards"


def is_empty(admin: ServiceBusAdministrationClient) -> bool:
    return admin.get_queue_runtime_properties(QUEUE).total_message_count == 0


def send_order(name: str) -> int:
    return int(name.rpartition("-")[2])
