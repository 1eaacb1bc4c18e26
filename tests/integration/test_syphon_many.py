"""Two syphons at once, senders that keep sending, a primary that flaps: nothing lost, order kept, load shared.

`PAIRBUS_DRAIN_MESSAGES` makes the story longer: `make soak` drains 100,000.
"""

from __future__ import annotations

import itertools
import os
import resource
import threading
from collections import Counter

import pytest
from azure.servicebus import ServiceBusMessage

from pairbus.syphon import Syphon
from pairbus.testing import embedded_pair, wait_until
from pairbus.testing.backlogs import backlog_form, ids, make_backlog, put, take_from

MESSAGES = int(os.environ.get("PAIRBUS_DRAIN_MESSAGES", "3000"))
QUEUES = 4
SENDERS = 2
PATIENCE_SECONDS = max(240, MESSAGES // 50)


@pytest.mark.timeout(PATIENCE_SECONDS * 2)
def test_two_syphons_drain_while_senders_send_and_the_primary_flaps() -> None:
    destinations = [f"queue{number}" for number in range(6)]
    share = MESSAGES // (QUEUES * SENDERS)
    with embedded_pair() as pair:
        with pair.primary.admin() as admin:
            for name in destinations:
                admin.create_queue(name, requires_duplicate_detection=True)
        backlog = make_backlog(pair.secondary, "contoso", QUEUES)

        def send(queue: int, sender: int) -> None:
            """One sender stays with one backlog queue; its messages carry their place in its own order."""
            numbers = iter(range(share))
            while piece := list(itertools.islice(numbers, 50)):
                names = [(f"{queue}.{sender}.{n}", destinations[(n + sender) % len(destinations)]) for n in piece]
                forms = [backlog_form(ServiceBusMessage(b"x" * 300, message_id=name), to) for name, to in names]
                put(pair.secondary, backlog[queue], forms)

        senders = [
            threading.Thread(target=send, args=pair_of) for pair_of in itertools.product(range(QUEUES), range(SENDERS))
        ]
        syphons = [
            Syphon(
                pair.primary.connection_string,
                pair.secondary.connection_string,
                primary_name="contoso",
                queues=range(QUEUES),
            )
            for _ in range(2)
        ]
        carriers = [threading.Thread(target=syphon.run_blocking, daemon=True) for syphon in syphons]
        for thread in (*senders, *carriers):
            thread.start()
        wait_until(lambda: sum(one.state().restored for one in syphons) > MESSAGES // 10, PATIENCE_SECONDS)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        pair.primary.fault("drop", entity=destinations[0], duration=2)
        pair.primary.fault("error", entity=destinations[1], condition="com.microsoft:server-busy", duration=2)
        for thread in senders:
            thread.join(PATIENCE_SECONDS)
        pair.primary.fault("refuse", duration=2)
        with pair.secondary.admin() as admin:

            def waiting() -> int:
                return sum(admin.get_queue_runtime_properties(queue).total_message_count or 0 for queue in backlog)

            wait_until(lambda: waiting() == 0, PATIENCE_SECONDS, "the backlog to be empty")
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        for syphon in syphons:
            syphon.stop()
        for thread in carriers:
            thread.join(60)
        home = {
            name: [str(one) for one in ids(take_from(pair.primary, name, MESSAGES, wait=3))] for name in destinations
        }
    total = Counter(name for names in home.values() for name in names)
    assert total == Counter(f"{q}.{s}.{n}" for q in range(QUEUES) for s in range(SENDERS) for n in range(share))
    for names in home.values():
        for queue, sender in itertools.product(range(QUEUES), range(SENDERS)):
            places = [int(name.split(".")[2]) for name in names if name.startswith(f"{queue}.{sender}.")]
            assert places == sorted(places), "the order of one sender within a destination is kept"
    assert all(syphon.state().restored for syphon in syphons), "both had a share"
    assert grown < 100 * 1024, "memory stays flat (KiB, both namespaces included)"
