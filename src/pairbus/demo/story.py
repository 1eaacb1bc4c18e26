"""The story, in the order in which it happens.

Ctrl-C takes effect between two steps, not inside one: a participant that is half started cannot be stopped cleanly.
"""

from __future__ import annotations

import logging
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from azure.core.exceptions import AzureError
from azure.servicebus.management import ServiceBusAdministrationClient, SqlRuleFilter

from pairbus import EntityState, PairedServiceBusClient, SendAvailabilityPairedNamespaceOptions, pair_namespace
from pairbus.demo.counting import Cost, DemoResult, conclude, count
from pairbus.demo.display import DemoStatus, EntityStatus, Narrator, QuietNarrator, in_background, narrator
from pairbus.demo.fleet import CARTS, DESTINATIONS, ENTITIES, ORDERS, PRICES, Receivers, SenderFleet
from pairbus.ledger import LedgerWriter, Role
from pairbus.testing import EmbeddedPair, embedded_pair, wait_until

if TYPE_CHECKING:
    from pairbus.pipeline.report import Report

BACKLOG_QUEUES = 2
LOCK_SECONDS = 10
MEASURE_EVERY_SECONDS = 1.0
PATIENCE_SECONDS = 120.0
SPARK_SECONDS = 300.0
FORCED_INTERRUPT = 3
OUTPUT = "demo-output"
REPORT = "report.html"

T = TypeVar("T")


class SparkLateError(RuntimeError):
    """Spark did not start in time; the text is one sentence."""


@contextmanager
def deferred_interrupts() -> Iterator[None]:
    """Raise a KeyboardInterrupt that comes meanwhile at the end. For the main thread, and for short steps.

    The third Ctrl-C interrupts at once, whatever is left behind. Ctrl-C also reaches child processes, so a step that
    fails after it fails because of it.
    """
    interrupts = 0

    def defer(number: int, frame: FrameType | None) -> None:
        nonlocal interrupts
        interrupts += 1
        if interrupts >= FORCED_INTERRUPT:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, defer)
    try:
        yield
    except Exception as error:
        if interrupts:
            raise KeyboardInterrupt from error
        raise
    finally:
        signal.signal(signal.SIGINT, before)
    if interrupts:
        raise KeyboardInterrupt


def enter(stack: ExitStack, manager: AbstractContextManager[T]) -> T:
    """Like `stack.enter_context`, but an interrupt finds the manager either not entered or on the stack."""
    with deferred_interrupts():
        return stack.enter_context(manager)


@dataclass(frozen=True, slots=True)
class Script:
    """How many messages every sender sends in each act, and how fast."""

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


def run(plan: Script, *, keep: bool = False, quiet: bool = False, output: Path = Path(OUTPUT)) -> int:
    """Play the story and return the exit code: 0 if every accepted message was delivered.

    The report stays in `output`; with `keep`, so do the namespaces, the ledger and the tables. With `quiet`, only the
    result is printed.
    """
    logging.basicConfig(level=logging.CRITICAL)  # the narrator says what matters
    result_voice = narrator()
    voice: Narrator = QuietNarrator() if quiet else result_voice
    output.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        spark = enter(stack, _spark_in_background())
        folder = _folder(output, keep, stack)
        ledger, tables, page = folder / "ledger", folder / "ledger-tables", output / REPORT
        voice.say("Starting two namespaces as processes: contoso (primary) and contoso-standby (secondary).")
        with ExitStack() as running:
            pair = enter(running, embedded_pair(folder, process=True))
            result = _Play(voice, pair, ledger, plan, spark).run()
        voice.say("Building the tables from the ledger (Spark).")
        report = _report(_started(spark), ledger, tables)
        voice.say("Writing the report.")
        _write(report, page)
    code = conclude(result_voice.say, result, report.summary, Cost.of(report.summary, report.pairing_cost))
    result_voice.say(f"The report is {page.absolute()}")
    if keep:
        result_voice.say(
            f"Kept: {folder.absolute()} (pairbus ledger report {ledger}; pairbus serve contoso --data {folder}/contoso)"
        )
    return code


def _folder(output: Path, keep: bool, stack: ExitStack) -> Path:
    """The folder of the namespaces and the ledger: temporary, or kept under a name of its own."""
    if keep:
        return Path(tempfile.mkdtemp(prefix=time.strftime("%Y-%m-%d-%H%M%S-"), dir=output))
    return Path(enter(stack, tempfile.TemporaryDirectory(prefix="pairbus-demo-")))


class _Play:
    """The participants and the acts."""

    def __init__(self, voice: Narrator, pair: EmbeddedPair, ledger: Path, plan: Script, spark: Future[Any]) -> None:
        self._voice = voice
        self._pair = pair
        self._ledger = ledger
        self._plan = plan
        self._spark = spark
        self._backlog: int | None = None

    def run(self) -> DemoResult:
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
            # Without the SDK's own retries, which take eleven seconds, an outage is noticed at once.
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
            fleet = SenderFleet(self._paired, self._plan.seed, self._plan.senders, self._plan.pause_seconds)
            self._fleet = enter(stack, fleet)
            enter(stack, self._measuring(standby))
            enter(stack, self._voice.watching(self._status))
            self._quiet()
            self._first_outage()
            self._second_outage()
            self._drain()
            self._wait_for_receivers()
            with deferred_interrupts():
                stack.close()
        return self._result()

    def _quiet(self) -> None:
        self._say(f"{self._fleet.size} senders send to the primary, {len(DESTINATIONS)} receivers read from it.")
        self._allow(self._plan.quiet)
        self._sent_all()

    def _first_outage(self) -> None:
        """The primary is killed while the senders send, and comes back."""
        before = self._plan.first_outage // 4
        self._allow(before)
        self._wait(lambda: self._fleet.left <= self._fleet.size * before // 2, "the senders")
        pid = self._pair.primary.pid
        with deferred_interrupts():
            self._pair.primary.kill()
        self._say(f"Killed the primary (process {pid}) with -9; the senders continue.")
        self._allow(self._plan.first_outage - before)
        self._sent_all()
        self._say(f"No application noticed: {self._depth()} messages wait in the backlog on the secondary.")
        with deferred_interrupts():
            self._pair.primary.restart()
        self._say("Restarted the primary; once a second, a ping for each entity checks whether it is back.")
        self._all_healthy()

    def _second_outage(self) -> None:
        """One entity fails, the others work."""
        self._pair.primary.fault("refuse", entity=PRICES)
        self._say(f"Second outage: '{PRICES}' refuses every link, '{ORDERS}' and '{CARTS}' work.")
        self._allow(self._plan.second_outage)
        self._sent_all()
        self._say(f"{self._depth()} messages wait in the backlog now.")
        self._pair.primary.clear_faults()
        self._say(f"Repaired '{PRICES}'.")
        self._all_healthy()

    def _drain(self) -> None:
        """The syphon runs as a Spark job, while the senders continue."""
        if not self._spark.done():
            self._say("Waiting for Spark, which started in the background.")
        spark = _started(self._spark)
        self._allow(self._plan.draining)
        self._say("The Spark syphon carries the backlog home; the senders continue, to the primary.")
        from pairbus.pipeline import Access, run_spark_syphon

        primary, secondary = (
            Access(None, namespace.ca_file, namespace.connection_string)
            for namespace in (self._pair.primary, self._pair.secondary)
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

    def _wait_for_receivers(self) -> None:
        self._sent_all()
        self._say("Waiting until every receiver has its messages.")
        self._wait(lambda: not self._result().lost, "every message to arrive")
        # Duplicates count too, and a copy that was locked when the primary died comes late: wait for empty queues.
        with self._pair.primary.admin() as admin:
            self._wait(lambda: not _left_over(admin), "the receivers' queues to be empty")
        self._say("Closing the applications and the namespaces.")

    def _sent_all(self) -> None:
        self._wait(lambda: self._fleet.left == 0, "the senders")

    def _all_healthy(self) -> None:
        self._wait(
            lambda: all(self._paired.state(entity) is EntityState.HEALTHY for entity in ENTITIES),
            "every entity to be healthy",
        )

    # An interrupt inside one of these could leave a lock that other threads wait for.

    def _say(self, sentence: str) -> None:
        with deferred_interrupts():
            self._voice.say(sentence)

    def _allow(self, more: int) -> None:
        with deferred_interrupts():
            self._fleet.allow(more)

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        """Wait, and continue after the deadline: the result will say what is missing."""

        def check() -> bool:
            with deferred_interrupts():
                return condition()

        try:
            wait_until(check, PATIENCE_SECONDS, what)
        except TimeoutError as error:
            self._say(str(error))

    def _result(self) -> DemoResult:
        accepted, planned = self._fleet.accepted, list(self._fleet.planned())
        counts = (count(target, accepted, planned, self._receivers.seen(target)) for target in DESTINATIONS)
        return DemoResult(frozenset(parcel.message_id for parcel in accepted), len(self._fleet.refused), tuple(counts))

    def _status(self) -> DemoStatus:
        sent = Counter(parcel.entity for parcel in self._fleet.accepted)
        entities = (
            EntityStatus(
                entity,
                self._paired.state(entity),
                sent[entity],
                tuple(
                    (target.name, len(self._receivers.seen(target)))
                    for target in DESTINATIONS
                    if target.entity == entity
                ),
            )
            for entity in ENTITIES
        )
        return DemoStatus(tuple(entities), self._backlog)

    def _depth(self) -> str:
        with deferred_interrupts():
            self._backlog = _backlog_depth(self._standby, self._paired)
        return f"{self._backlog:,}"

    @contextmanager
    def _measuring(self, standby: ServiceBusAdministrationClient) -> Iterator[None]:
        """Measure the depth of the backlog regularly, on a thread of its own: the display must not wait."""
        self._standby = standby

        def measure(stop: threading.Event) -> None:
            with self._pair.secondary.admin() as admin:
                while not stop.wait(MEASURE_EVERY_SECONDS):
                    try:
                        self._backlog = _backlog_depth(admin, self._paired)
                    except AzureError:
                        self._backlog = None

        with in_background("depth of the backlog", measure):
            yield


def _create_entities(admin: ServiceBusAdministrationClient) -> None:
    # Short locks: a message that a receiver held when the primary died comes again soon. Duplicate detection: a send
    # that was in doubt and went to the backlog arrives once.
    settings: dict[str, Any] = {"lock_duration": timedelta(seconds=LOCK_SECONDS)}
    admin.create_queue(ORDERS, requires_duplicate_detection=True, **settings)
    admin.create_queue(CARTS, requires_duplicate_detection=True, requires_session=True, **settings)
    admin.create_topic(PRICES, requires_duplicate_detection=True)
    for target in DESTINATIONS:
        if target.subscription is not None and target.sql_filter is not None:
            admin.create_subscription(target.entity, target.subscription, **settings)
            admin.create_rule(target.entity, target.subscription, "selected", filter=SqlRuleFilter(target.sql_filter))
            admin.delete_rule(target.entity, target.subscription, "$Default")


def _backlog_depth(admin: ServiceBusAdministrationClient, paired: PairedServiceBusClient) -> int:
    queues = paired.backlog_queues
    return sum(
        admin.get_queue_runtime_properties(path).active_message_count or 0 for path in {*queues.found, *queues.created}
    )


def _left_over(admin: ServiceBusAdministrationClient) -> int:
    """How many messages the receivers have not completed, dead letters included."""
    counts = (
        admin.get_queue_runtime_properties(target.entity)
        if target.subscription is None
        else admin.get_subscription_runtime_properties(target.entity, target.subscription)
        for target in DESTINATIONS
    )
    return sum((part.active_message_count or 0) + (part.dead_letter_message_count or 0) for part in counts)


def _started(spark: Future[Any]) -> Any:
    """The Spark session; wait for it, but not forever."""
    if not wait([spark], SPARK_SECONDS).done:
        raise SparkLateError(f"Spark did not start within {SPARK_SECONDS:g} s: check that 'java -version' works.")
    return spark.result()


@contextmanager
def _spark_in_background() -> Iterator[Future[Any]]:
    """Start a Spark session, which takes ten seconds, while the story begins. An interrupt does not wait for it."""
    from pairbus.pipeline.java import kill_spark

    session: Future[Any] = Future()

    def start(folder: str) -> None:
        from pairbus.pipeline.session import local_session  # importing it takes a second

        # The tables are small: fewer tasks finish sooner.
        settings = {"spark.sql.shuffle.partitions": "2", "spark.local.dir": folder}
        try:
            session.set_result(local_session("pairbus demo", settings=settings))
        except BaseException as error:
            session.set_exception(error)

    with tempfile.TemporaryDirectory(prefix="pairbus-demo-spark-", ignore_cleanup_errors=True) as folder:
        threading.Thread(target=start, args=(folder,), name="start of Spark", daemon=True).start()
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


def _write(report: Report, page: Path) -> None:
    from pairbus.pipeline.page import html_page

    page.write_text(html_page(report), encoding="utf-8")
