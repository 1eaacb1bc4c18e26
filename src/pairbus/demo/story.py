"""The story, in the order in which it happens."""

from __future__ import annotations

import itertools
import logging
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from azure.servicebus import ServiceBusMessage
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus import EntityState, SendAvailabilityPairedNamespaceOptions, pair_namespace
from pairbus.demo.receiving import ReceivingApplication
from pairbus.ledger import LedgerWriter, Role
from pairbus.testing import EmbeddedPair, embedded_pair, wait_until

if TYPE_CHECKING:
    from pairbus.pipeline.report import Summary

QUEUE = "orders"
PRIMARY_NAME = "contoso"
MESSAGES_PER_ACT = 200
BACKLOG_QUEUES = 2
PATIENCE_SECONDS = 90.0

EVERYTHING_ARRIVED, SOMETHING_IS_WRONG = 0, 1


@dataclass(frozen=True, slots=True)
class Count:
    """What the two applications saw with their own eyes."""

    accepted: frozenset[str]
    delivered: frozenset[str]
    duplicates: int

    @property
    def lost(self) -> frozenset[str]:
        return self.accepted - self.delivered

    @property
    def sentence(self) -> str:
        arrived = len(self.accepted & self.delivered)
        sign = "=" if not self.lost else "≠"
        return (
            f"accepted {len(self.accepted):,} {sign} delivered {arrived:,}, "
            f"lost {len(self.lost):,}, duplicates {self.duplicates:,}"
        )


def tell() -> int:
    """Plays the story and returns the exit code: 0 if everything that was accepted was delivered."""
    logging.basicConfig(level=logging.ERROR)  # the narrator says what matters
    narrator = Narrator()
    with tempfile.TemporaryDirectory(prefix="pairbus-demo-") as folder, _spark_aside() as spark:
        ledger = Path(folder, "ledger")
        narrator.say("Starting two namespaces as processes: contoso (primary) and contoso-standby (secondary).")
        with embedded_pair(Path(folder), process=True) as pair:
            count = _survive_an_outage(narrator, pair, ledger)
        narrator.say("Asking the ledger what became of every message (a Spark job).")
        summary = _ask(ledger, spark.result())
    return conclude(narrator, count, summary)


def _survive_an_outage(narrator: Narrator, pair: EmbeddedPair, ledger: Path) -> Count:
    primary, secondary = pair.primary, pair.secondary
    with primary.admin() as admin:
        admin.create_queue(QUEUE, requires_duplicate_detection=True)
    accepted: list[str] = []
    with (
        secondary.admin() as standby,
        LedgerWriter(ledger, role=Role.RECEIVER) as receipts,
        ReceivingApplication(primary, QUEUE, receipts) as receiver,
        # Without the SDK's own retries an outage is noticed at once, and not after its eleven seconds of patience.
        pair_namespace(
            primary.client(retry_total=0),
            SendAvailabilityPairedNamespaceOptions(
                standby,
                secondary.client(),
                primary_name=PRIMARY_NAME,
                backlog_queue_count=BACKLOG_QUEUES,
                failover_interval=0,
                ping_primary_interval=1,
                enable_syphon=True,
                ledger=ledger,
            ),
        ) as paired,
        paired.get_queue_sender(QUEUE) as sender,
    ):
        paired.on_transition(lambda event: narrator.say(f"'{event.entity}' is {event.after.value} now."))
        numbers = itertools.count(1)

        def send_some() -> None:
            for number in itertools.islice(numbers, MESSAGES_PER_ACT):
                message_id = f"order-{number}"
                sender.send_messages(ServiceBusMessage(f"order {number}", message_id=message_id))
                accepted.append(message_id)

        send_some()
        narrator.say(f"Sent {MESSAGES_PER_ACT} messages to '{QUEUE}' on the primary.")

        primary.kill()
        narrator.say("Killed the primary with -9; the application sends on.")
        send_some()
        narrator.say(
            f"Sent {MESSAGES_PER_ACT} more, and nobody noticed: "
            f"{_backlog_depth(standby)} messages wait in the backlog on the secondary."
        )

        primary.restart()
        narrator.say("Restarted the primary.")
        wait_until(lambda: paired.state(QUEUE) is EntityState.HEALTHY, PATIENCE_SECONDS, "the entity to recover")
        send_some()
        narrator.say(f"Sent {MESSAGES_PER_ACT} more, to the primary again.")

        _carry_home(narrator, receiver, standby, frozenset(accepted))
    return Count(frozenset(accepted), frozenset(receiver.message_ids), receiver.duplicates)


def _carry_home(
    narrator: Narrator,
    receiver: ReceivingApplication,
    standby: ServiceBusAdministrationClient,
    accepted: frozenset[str],
) -> None:
    try:
        wait_until(
            lambda: accepted <= receiver.message_ids and _backlog_depth(standby) == 0,
            PATIENCE_SECONDS,
            "the syphon to carry the backlog home",
        )
    except TimeoutError as error:
        narrator.say(str(error))  # the count below says what is missing
    else:
        narrator.say("The syphon has carried the backlog home.")


def _backlog_depth(standby: ServiceBusAdministrationClient) -> int:
    paths = (f"{PRIMARY_NAME}/x-servicebus-transfer/{index}" for index in range(BACKLOG_QUEUES))
    return sum(standby.get_queue_runtime_properties(path).active_message_count or 0 for path in paths)


@contextmanager
def _spark_aside() -> Iterator[Future[Any]]:
    """A Spark session that starts while the story goes on: it takes ten seconds by itself.

    Whoever interrupts the story does not wait for it: its thread and its Java process end with this one.
    """
    session: Future[Any] = Future()

    def start() -> None:
        from pairbus.pipeline.session import local_session

        try:
            session.set_result(local_session("pairbus demo"))
        except BaseException as error:
            session.set_exception(error)

    threading.Thread(target=start, name="Spark's start", daemon=True).start()
    yield session
    session.result().stop()


def _ask(ledger: Path, spark: Any) -> Summary:
    from pairbus.pipeline.report import summarise

    return summarise(spark, ledger)


def conclude(narrator: Narrator, count: Count, summary: Summary) -> int:
    """Says the result and whether the ledger confirms it; anything missing or contradicted is a failure."""
    narrator.say(count.sentence)
    counted = (len(count.accepted), len(count.accepted & count.delivered), len(count.lost))
    told = (summary.accepted, summary.delivered, summary.lost + summary.waiting)
    if counted != told:
        narrator.say(f"The ledger disagrees: {summary.sentence}")
        return SOMETHING_IS_WRONG
    narrator.say(
        f"The ledger agrees: {summary.diverted:,} messages went through the backlog and {summary.restored:,} came "
        f"home; {summary.pings:,} pings; {summary.billed_operations:,} operations would have been billed."
    )
    return SOMETHING_IS_WRONG if count.lost else EVERYTHING_ARRIVED


class Narrator:
    """Says what happens, with the seconds since the story began."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def say(self, sentence: str) -> None:
        sys.stdout.write(f"{time.monotonic() - self._began:6.1f} s  {sentence}\n")
        sys.stdout.flush()
