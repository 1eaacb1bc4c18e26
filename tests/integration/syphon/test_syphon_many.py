"""Two syphons at once, senders that keep sending, a primary that flaps: nothing lost, order kept, load shared.

Everything is a process of its own: both namespaces and both syphons, so that the memory of each syphon can be watched.
Destinations are queues, topics and queues with sessions, all with duplicate detection, so that what was in doubt when
the primary flapped comes once. `PAIRBUS_DRAIN_MESSAGES` makes the story longer: `make soak` drains 100,000.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode
from tests.support.backlogs import backlog_form, ids, make_backlog, put, take

from pairbus.syphon.control import ControlSocketError, ask
from pairbus.testing import EmbeddedPair, embedded_pair, wait_until

MESSAGES = int(os.environ.get("PAIRBUS_DRAIN_MESSAGES", "4000"))
QUEUES = 4
SENDERS = 2
SESSIONS = ("red", "blue")
PLAIN = [f"queue{number}" for number in range(10)]
TOPICS = [f"topic{number}" for number in range(4)]
SESSIONED = [f"sessions{number}" for number in range(6)]
DESTINATIONS = [*PLAIN, *TOPICS, *SESSIONED]
PATIENCE_SECONDS = max(240, MESSAGES // 40)
FLAT_KIB = 32 * 1024
SEND_BYTES = 25_000
"""Senders send small batches, so that they are still sending when the syphons carry."""


class Carrier:
    """`pairbus syphon` in a process of its own."""

    def __init__(self, pair: EmbeddedPair, folder: Path) -> None:
        self._control = folder / "control"
        environment = {
            **os.environ,
            "PAIRBUS_PRIMARY": pair.primary.connection_string,
            "PAIRBUS_SECONDARY": pair.secondary.connection_string,
        }
        command = [sys.executable, "-m", "pairbus.cli", "syphon", "--primary-name", "contoso", "--json"]
        options = ["--queues", f"0-{QUEUES - 1}", "--control", str(self._control)]
        self._process = subprocess.Popen([*command, *options], env=environment, stdout=subprocess.PIPE, text=True)

    @property
    def runs(self) -> bool:
        try:
            return bool(ask(self._control, "state")["state"] == "running")
        except ControlSocketError:
            return False

    def restored(self) -> int:
        return int(ask(self._control, "state")["restored"])

    def resident_kib(self) -> int:
        status = Path(f"/proc/{self._process.pid}/status").read_text(encoding="utf-8")
        (line,) = [line for line in status.splitlines() if line.startswith("VmRSS:")]
        return int(line.split()[1])

    def stop(self) -> dict[str, Any]:
        """End it in order; its last word."""
        self._process.terminate()
        told, _ = self._process.communicate(timeout=60)
        assert self._process.returncode == 0
        report: dict[str, Any] = json.loads(told)
        return report

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextmanager
def carrying(pair: EmbeddedPair, folder: Path) -> Iterator[list[Carrier]]:
    carriers = []
    try:
        for number in range(2):
            (folder / f"{number}").mkdir()
            carriers.append(Carrier(pair, folder / f"{number}"))
        wait_until(lambda: all(carrier.runs for carrier in carriers), what="both syphons to run")
        yield carriers
    finally:
        for carrier in carriers:
            carrier.kill()


def make_destinations(pair: EmbeddedPair) -> None:
    with pair.primary.admin() as admin:
        for name in PLAIN:
            admin.create_queue(name, requires_duplicate_detection=True)
        for name in SESSIONED:
            admin.create_queue(name, requires_duplicate_detection=True, requires_session=True)
        for name in TOPICS:
            admin.create_topic(name, requires_duplicate_detection=True)
            admin.create_subscription(name, "all")


def place_of(n: int, sender: int) -> tuple[str, str | None]:
    """Where the n-th message of a sender belongs: destination, and session if that has sessions."""
    to = DESTINATIONS[(n + sender) % len(DESTINATIONS)]
    return to, SESSIONS[n // len(DESTINATIONS) % 2] if to in SESSIONED else None


def read_empty(pair: EmbeddedPair, expected: Counter[tuple[str, str | None]]) -> dict[str, list[str]]:
    """Everything that came home: by destination, and for queues with sessions by session. Nothing more is there."""
    mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    home: dict[str, list[str]] = {}
    with pair.primary.client() as client:
        for (name, session), count in expected.items():
            receiver: Any
            if name in TOPICS:
                receiver = client.get_subscription_receiver(name, "all", receive_mode=mode)
            else:
                receiver = client.get_queue_receiver(name, receive_mode=mode, session_id=session)
            with receiver:
                home[f"{name}/{session}"] = [str(one) for one in ids(take(receiver, count))]
    with pair.primary.admin() as admin:
        left = [admin.get_queue_runtime_properties(name).total_message_count for name in (*PLAIN, *SESSIONED)]
        left += [admin.get_subscription_runtime_properties(name, "all").total_message_count for name in TOPICS]
    assert not any(left), "nothing came twice"
    return home


@pytest.mark.timeout(PATIENCE_SECONDS * 2)
def test_two_syphons_drain_while_senders_send_and_the_primary_flaps(tmp_path: Path) -> None:
    share = MESSAGES // (QUEUES * SENDERS)
    with embedded_pair(process=True) as pair:
        make_destinations(pair)
        backlog = make_backlog(pair.secondary, "contoso", QUEUES)

        def send(queue: int, sender: int) -> None:
            """One sender stays with one backlog queue; its messages carry their place in its own order."""

            def forms() -> Iterator[bytes]:
                for n in range(share):
                    to, session = place_of(n, sender)
                    message = ServiceBusMessage(b"x" * 300, message_id=f"{queue}.{sender}.{n}", session_id=session)
                    yield backlog_form(message, to)

            put(pair.secondary, backlog[queue], forms(), batch_bytes=SEND_BYTES)

        senders = [threading.Thread(target=send, args=one) for one in itertools.product(range(QUEUES), range(SENDERS))]
        with carrying(pair, tmp_path) as carriers:

            def restored() -> int:
                return sum(carrier.restored() for carrier in carriers)

            for thread in senders:
                thread.start()
            wait_until(lambda: restored() > MESSAGES // 10, PATIENCE_SECONDS, "a tenth to be home")
            early = [carrier.resident_kib() for carrier in carriers]
            pair.primary.fault("drop", entity=PLAIN[0], duration=2)
            pair.primary.fault("error", entity=TOPICS[0], condition="com.microsoft:server-busy", duration=2)
            pair.primary.fault("refuse", entity=SESSIONED[0], duration=2)
            wait_until(lambda: restored() > MESSAGES // 2, PATIENCE_SECONDS, "half of it to be home")
            pair.primary.fault("refuse", duration=2)
            for thread in senders:
                thread.join(PATIENCE_SECONDS)
            with pair.secondary.admin() as admin:

                def waiting() -> int:
                    return sum(admin.get_queue_runtime_properties(queue).total_message_count or 0 for queue in backlog)

                wait_until(lambda: waiting() == 0, PATIENCE_SECONDS, "the backlog to be empty")
            late = [carrier.resident_kib() for carrier in carriers]
            reports = [carrier.stop() for carrier in carriers]
        places = Counter(place_of(n, sender) for _ in range(QUEUES) for sender in range(SENDERS) for n in range(share))
        home = read_empty(pair, places)
    total = Counter(name for names in home.values() for name in names)
    expected = Counter(f"{q}.{s}.{n}" for q in range(QUEUES) for s in range(SENDERS) for n in range(share))
    assert total == expected, "nothing lost, nothing twice"
    for names in home.values():
        for queue, sender in itertools.product(range(QUEUES), range(SENDERS)):
            order = [int(name.split(".")[2]) for name in names if name.startswith(f"{queue}.{sender}.")]
            assert order == sorted(order), "the order of one sender within a destination is kept"
    assert not any(report["dead_lettered"] for report in reports)
    shares = [report["restored"] for report in reports]
    print(f"restored by each: {shares}; memory, KiB: {early} when a tenth was home, {late} at the end")
    assert all(after - before < FLAT_KIB for before, after in zip(early, late, strict=True)), "memory stays flat"
