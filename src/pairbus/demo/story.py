"""The story, in the order in which it happens."""

from __future__ import annotations

import logging
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from azure.core.exceptions import AzureError
from azure.servicebus.management import ServiceBusAdministrationClient, SqlRuleFilter

from pairbus import EntityState, PairedServiceBusClient, SendAvailabilityPairedNamespaceOptions, pair_namespace
from pairbus.demo.background import in_background
from pairbus.demo.counting import Cost, Result, conclude, count
from pairbus.demo.display import Affairs, Narrator, QuietNarrator, Standing, narrator
from pairbus.demo.interrupts import deferred_interrupts, enter
from pairbus.demo.parcels import CARTS, DESTINATIONS, ENTITIES, ORDERS, PRICES
from pairbus.demo.receiving import Receivers
from pairbus.demo.sending import Fleet
from pairbus.ledger import LedgerWriter, Role
from pairbus.testing import EmbeddedPair, embedded_pair, wait_until

if TYPE_CHECKING:
    from pairbus.pipeline.report import Report

BACKLOG_QUEUES = 2
LOCK_SECONDS = 10
MEASURED_EVERY_SECONDS = 1.0
PATIENCE_SECONDS = 120.0
SPARK_SECONDS = 300.0
OUTPUT = "demo-output"
REPORT = "report.html"


class SparkLateError(RuntimeError):
    """Spark does not start; one sentence."""


@dataclass(frozen=True, slots=True)
class Script:
    """How much is sent in each act by every sender, and how fast."""

    seed: int = 1
    senders: int = 2
    """For each entity."""
    quiet: int = 40
    first_outage: int = 80
    second_outage: int = 40
    draining: int = 20
    pause_seconds: float = 0.05


def script(*, fast: bool, seed: int) -> Script:
    if fast:
        return Script(seed, quiet=10, first_outage=20, second_outage=10, draining=5, pause_seconds=0.02)
    return Script(seed)


def tell(plan: Script, *, keep: bool = False, quiet: bool = False, output: Path = Path(OUTPUT)) -> int:
    """Plays the story and returns the exit code: 0 if everything that was accepted was delivered.

    The report stays in `output`; with `keep` the namespaces, the ledger and the tables do too. With `quiet` only the
    result is said.
    """
    logging.basicConfig(level=logging.CRITICAL)  # the narrator says what matters
    result_voice = narrator()
    voice: Narrator = QuietNarrator() if quiet else result_voice
    output.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        spark = enter(stack, _spark_aside())
        folder = _folder(output, keep, stack)
        ledger, tables, page = folder / "ledger", folder / "ledger-tables", output / REPORT
        voice.say("Starting two namespaces as processes: contoso (primary) and contoso-standby (secondary).")
        with ExitStack() as running:
            pair = enter(running, embedded_pair(folder, process=True))
            result = _Stage(voice, pair, ledger, plan, spark).play()
        voice.say("Building the tables from the ledger (Spark).")
        told = _report(_started(spark), ledger, tables)
        voice.say("Writing the report.")
        _write(told, page)
    code = conclude(result_voice.say, result, told.summary, Cost.of(told.summary, told.pairing_cost))
    result_voice.say(f"The report is {page.absolute()}")
    if keep:
        result_voice.say(
            f"Kept: {folder.absolute()} (pairbus ledger report {ledger}; pairbus serve contoso --data {folder}/contoso)"
        )
    return code


def _folder(output: Path, keep: bool, stack: ExitStack) -> Path:
    """Where the namespaces and the ledger live: for the story only, or kept under a name of its own."""
    if keep:
        return Path(tempfile.mkdtemp(prefix=time.strftime("%Y-%m-%d-%H%M%S-"), dir=output))
    return Path(enter(stack, tempfile.TemporaryDirectory(prefix="pairbus-demo-")))


class _Stage:
    """Everybody who takes part, and the acts."""

    def __init__(self, voice: Narrator, pair: EmbeddedPair, ledger: Path, plan: Script, spark: Future[Any]) -> None:
        self._voice = voice
        self._pair = pair
        self._ledger = ledger
        self._plan = plan
        self._spark = spark
        self._backlog: int | None = None

    def play(self) -> Result:
        primary, secondary = self._pair.primary, self._pair.secondary
        self._say(
            "Creating a queue (orders), a topic with two filtered subscriptions (prices: europe, large) and a queue "
            "with sessions (carts) on the primary."
        )
        with primary.admin() as admin:
            _create_entities(admin)
        with ExitStack() as stack:
            standby = enter(stack, secondary.admin())
            receipts = enter(stack, LedgerWriter(self._ledger, role=Role.RECEIVER))
            self._receivers = enter(stack, Receivers(primary, DESTINATIONS, receipts))
            # Without the SDK's own retries an outage is noticed at once, and not after its eleven seconds of patience.
            options = SendAvailabilityPairedNamespaceOptions(
                secondary.admin(),
                secondary.client(),
                primary_name=primary.name,
                backlog_queue_count=BACKLOG_QUEUES,
                failover_interval=0,
                ping_primary_interval=1,
                ledger=self._ledger,
            )
            self._paired = enter(stack, pair_namespace(primary.client(retry_total=0), options))
            self._paired.on_transition(
                lambda event: self._voice.say(
                    f"'{event.entity}' is {event.after.value} now ({event.cause.partition(':')[0]})."
                )
            )
            fleet = Fleet(self._paired, self._plan.seed, self._plan.senders, self._plan.pause_seconds)
            self._fleet = enter(stack, fleet)
            enter(stack, self._measuring(standby))
            enter(stack, self._voice.watching(self._affairs))
            self._quiet()
            self._first_outage()
            self._second_outage()
            self._drain()
            self._wait_for_the_last()
            with deferred_interrupts():
                stack.close()
        return self._result()

    def _quiet(self) -> None:
        self._say(f"{self._fleet.size} senders send to the primary, {len(DESTINATIONS)} receivers read from it.")
        self._allow(self._plan.quiet)
        self._sent_all()

    def _first_outage(self) -> None:
        """The whole primary dies in the middle of the sends, and comes back."""
        before = self._plan.first_outage // 4
        self._allow(before)
        self._wait(lambda: self._fleet.left <= self._fleet.size * before // 2, "the senders")
        pid = self._pair.primary.pid
        with deferred_interrupts():
            self._pair.primary.kill()
        self._say(f"Killed the primary (process {pid}) with -9; the senders send on.")
        self._allow(self._plan.first_outage - before)
        self._sent_all()
        self._say(f"Nobody noticed: {self._depth()} messages wait in the backlog on the secondary.")
        with deferred_interrupts():
            self._pair.primary.restart()
        self._say("Restarted the primary; a ping for each entity finds out, once a second.")
        self._all_healthy()

    def _second_outage(self) -> None:
        """One entity fails, the others do not notice."""
        self._pair.primary.fault("refuse", entity=PRICES)
        self._say(f"Second outage: '{PRICES}' refuses every link, '{ORDERS}' and '{CARTS}' work.")
        self._allow(self._plan.second_outage)
        self._sent_all()
        self._say(f"{self._depth()} messages wait in the backlog now.")
        self._pair.primary.clear_faults()
        self._say(f"Mended '{PRICES}'.")
        self._all_healthy()

    def _drain(self) -> None:
        """The syphon as a Spark job, while the senders go on."""
        if not self._spark.done():
            self._say("Waiting for Spark, which has been starting meanwhile.")
        spark = _started(self._spark)
        self._allow(self._plan.draining)
        self._say("The Spark syphon carries the backlog home; the senders go on, to the primary.")
        from pairbus.pipeline import Access, run_spark_syphon

        primary, secondary = (
            Access(None, one.ca_file, one.connection_string) for one in (self._pair.primary, self._pair.secondary)
        )
        carried = run_spark_syphon(
            primary,
            secondary,
            spark=spark,
            once=True,
            primary_name=self._pair.primary.name,
            queues=range(BACKLOG_QUEUES),
            ledger=self._ledger,
        )
        self._say(f"The syphon has carried {carried.restored:,} messages home in {carried.seconds:.1f} s.")

    def _wait_for_the_last(self) -> None:
        self._sent_all()
        self._say("Waiting until every receiver has what it must get.")
        self._wait(lambda: not self._result().lost, "every message to arrive")
        # A second copy counts too, also one whose lock the kill left behind: who counts too early counts none.
        with self._pair.primary.admin() as admin:
            self._wait(lambda: not _left_over(admin), "the queues of the receivers to be empty")
        self._say("Closing the applications and the namespaces.")

    def _sent_all(self) -> None:
        self._wait(lambda: self._fleet.left == 0, "the senders")

    def _all_healthy(self) -> None:
        self._wait(
            lambda: all(self._paired.state(entity) is EntityState.HEALTHY for entity in ENTITIES),
            "every entity to be healthy",
        )

    # An interrupt inside one of these could leave a lock that others wait for.

    def _say(self, sentence: str) -> None:
        with deferred_interrupts():
            self._voice.say(sentence)

    def _allow(self, more: int) -> None:
        with deferred_interrupts():
            self._fleet.allow(more)

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        """Goes on after the deadline: the accounts say what is missing."""

        def ask() -> bool:
            with deferred_interrupts():
                return condition()

        try:
            wait_until(ask, PATIENCE_SECONDS, what)
        except TimeoutError as error:
            self._say(str(error))

    def _result(self) -> Result:
        accepted, planned = self._fleet.accepted, list(self._fleet.planned())
        counts = tuple(count(one, accepted, planned, self._receivers.seen(one)) for one in DESTINATIONS)
        return Result(frozenset(parcel.message_id for parcel in accepted), len(self._fleet.refused), counts)

    def _affairs(self) -> Affairs:
        sent = Counter(parcel.entity for parcel in self._fleet.accepted)
        standings = (
            Standing(
                entity,
                self._paired.state(entity),
                sent[entity],
                tuple((one.name, len(self._receivers.seen(one))) for one in DESTINATIONS if one.entity == entity),
            )
            for entity in ENTITIES
        )
        return Affairs(tuple(standings), self._backlog)

    def _depth(self) -> str:
        with deferred_interrupts():
            self._backlog = _backlog_depth(self._standby, self._paired)
        return f"{self._backlog:,}"

    @contextmanager
    def _measuring(self, standby: ServiceBusAdministrationClient) -> Iterator[None]:
        """Asks for the depth of the backlog now and then, on a thread of its own: the display does not wait."""
        self._standby = standby

        def measure(stop: threading.Event) -> None:
            with self._pair.secondary.admin() as admin:
                while not stop.wait(MEASURED_EVERY_SECONDS):
                    try:
                        self._backlog = _backlog_depth(admin, self._paired)
                    except AzureError:
                        self._backlog = None

        with in_background("depth of the backlog", measure):
            yield


def _create_entities(admin: ServiceBusAdministrationClient) -> None:
    # Short locks: what a receiver held when the primary died comes again soon. Equal ids are merged: a send that was
    # in doubt and went to the backlog arrives once.
    settings: dict[str, Any] = {"lock_duration": timedelta(seconds=LOCK_SECONDS)}
    admin.create_queue(ORDERS, requires_duplicate_detection=True, **settings)
    admin.create_queue(CARTS, requires_duplicate_detection=True, requires_session=True, **settings)
    admin.create_topic(PRICES, requires_duplicate_detection=True)
    for one in DESTINATIONS:
        if one.subscription is not None and one.sql_filter is not None:
            admin.create_subscription(one.entity, one.subscription, **settings)
            admin.create_rule(one.entity, one.subscription, "selected", filter=SqlRuleFilter(one.sql_filter))
            admin.delete_rule(one.entity, one.subscription, "$Default")


def _backlog_depth(admin: ServiceBusAdministrationClient, paired: PairedServiceBusClient) -> int:
    queues = paired.backlog_queues
    return sum(
        admin.get_queue_runtime_properties(path).active_message_count or 0 for path in {*queues.found, *queues.created}
    )


def _left_over(admin: ServiceBusAdministrationClient) -> int:
    """What receivers have not completed, dead letters included, which nobody will."""
    counts = (
        admin.get_queue_runtime_properties(one.entity)
        if one.subscription is None
        else admin.get_subscription_runtime_properties(one.entity, one.subscription)
        for one in DESTINATIONS
    )
    return sum((one.active_message_count or 0) + (one.dead_letter_message_count or 0) for one in counts)


def _started(spark: Future[Any]) -> Any:
    """The session, for which nobody waits for ever."""
    if not wait([spark], SPARK_SECONDS).done:
        raise SparkLateError(f"Spark did not start within {SPARK_SECONDS:g} s: see whether 'java -version' answers.")
    return spark.result()


@contextmanager
def _spark_aside() -> Iterator[Future[Any]]:
    """A Spark session that starts while the story goes on: it takes ten seconds by itself.

    Whoever interrupts the story does not wait for it.
    """
    from pairbus.pipeline.java import kill_spark

    session: Future[Any] = Future()

    def start(folder: str) -> None:
        from pairbus.pipeline.session import local_session  # takes a second by itself

        # Small tables: the fewer tasks, the sooner they are done.
        settings = {"spark.sql.shuffle.partitions": "2", "spark.local.dir": folder}
        try:
            session.set_result(local_session("pairbus demo", settings=settings))
        except BaseException as error:
            session.set_exception(error)

    with tempfile.TemporaryDirectory(prefix="pairbus-demo-spark-", ignore_cleanup_errors=True) as folder:
        threading.Thread(target=start, args=(folder,), name="Spark's start", daemon=True).start()
        try:
            yield session
            session.result().stop()
        except BaseException:
            kill_spark()
            raise


def _report(spark: Any, ledger: Path, tables: Path) -> Report:
    from pairbus.pipeline.build import build
    from pairbus.pipeline.report import report

    build(spark, ledger, tables)
    return report(spark, tables)


def _write(told: Report, page: Path) -> None:
    from pairbus.pipeline.page import html_page

    page.write_text(html_page(told), encoding="utf-8")
