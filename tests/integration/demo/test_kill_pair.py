"""`kill -9` of either namespace of a pair, again and again, while an application sends through the pairing.

Whatever was accepted (the send returned) must be in the primary: directly, or through the backlog
and the syphon. It may arrive twice. The moments come from a seed, which is printed; `PAIRBUS_KILL_SEED` repeats it.
"""

from __future__ import annotations

import itertools
import os
import random
import threading

from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from pairbus import BacklogUnavailableError, SendAvailabilityPairedNamespaceOptions, pair_namespace
from pairbus.testing import EmbeddedPair, wait_until

ROUNDS = int(os.environ.get("PAIRBUS_KILL_ROUNDS", "20")) // 4
SEED = int(os.environ.get("PAIRBUS_KILL_SEED", random.SystemRandom().randrange(2**32)))
BACKLOG_QUEUES = 2
PATIENCE_SECONDS = 120.0


def test_what_was_accepted_arrives(pairbus_process_pair: EmbeddedPair) -> None:
    print(f"PAIRBUS_KILL_SEED={SEED}")
    moments = random.Random(SEED)
    primary, secondary = pairbus_process_pair.primary, pairbus_process_pair.secondary
    with primary.admin() as admin:
        admin.create_queue("orders")
    accepted: list[str] = []
    refused: list[str] = []
    unexpected: list[BaseException] = []
    over = threading.Event()
    options = SendAvailabilityPairedNamespaceOptions(
        secondary.admin(),
        secondary.client(retry_total=0),
        primary_name="contoso",
        backlog_queue_count=BACKLOG_QUEUES,
        failover_interval=0,
        ping_primary_interval=1,
        enable_syphon=True,
        send_timeout=10,
    )
    with (
        pair_namespace(primary.client(retry_total=0), options) as paired,
        secondary.admin() as standby,
        paired.get_queue_sender("orders") as sender,
    ):

        def send() -> None:
            try:
                for number in itertools.count():
                    if over.is_set():
                        return
                    name = f"order-{number}"
                    try:
                        sender.send_messages(ServiceBusMessage(name, message_id=name))
                        accepted.append(name)
                    except (ServiceBusError, BacklogUnavailableError):
                        refused.append(name)  # both are down, or it is in doubt: the caller knows, nothing is promised
            except BaseException as error:
                unexpected.append(error)

        def progress(count: int) -> None:
            goal = len(accepted) + count
            wait_until(lambda: unexpected or len(accepted) >= goal, PATIENCE_SECONDS, f"{count} more accepted")

        application = threading.Thread(target=send, name="sending application")
        application.start()
        try:
            for _ in range(ROUNDS):
                victim = primary if moments.random() < 0.7 else secondary
                progress(moments.randint(1, 40))
                victim.kill()
                progress(moments.randint(1, 40))  # the other one takes what is sent
                victim.start()
            progress(20)
        finally:
            over.set()
            application.join(PATIENCE_SECONDS)
        assert unexpected == []

        def is_home() -> bool:
            paths = (f"contoso/x-servicebus-transfer/{index}" for index in range(BACKLOG_QUEUES))
            return sum(standby.get_queue_runtime_properties(path).total_message_count or 0 for path in paths) == 0

        wait_until(is_home, PATIENCE_SECONDS, "the backlog to be empty")
    arrived: set[str] = set()
    with primary.client() as client, client.get_queue_receiver("orders") as receiver:
        number = 0
        while messages := receiver.peek_messages(1000, sequence_number=number):
            arrived.update(str(message.message_id) for message in messages)
            number = (messages[-1].sequence_number or 0) + 1
    assert set(accepted) - arrived == set(), "accepted and lost"
    assert arrived <= {*accepted, *refused}
