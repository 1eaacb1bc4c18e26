"""The story, in the order in which it happens.

Ctrl-C cancels the story between two steps, and everything that was started is stopped.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from azure.core.exceptions import AzureError
from azure.servicebus.management import SqlRuleFilter

from pairbus import EntityState
from pairbus.aio import SendAvailabilityPairedNamespaceOptions, pair_namespace
from pairbus.demo.counting import Cost, DemoResult, conclude, count
from pairbus.demo.display import DemoStatus, EntityStatus, Narrator, PlainNarrator, narrator
from pairbus.demo.fleet import CARTS, DESTINATIONS, ENTITIES, ORDERS, PRICES, parcel
from pairbus.drill.census import Census, Destination, take_census
from pairbus.drill.scenario import FaultAction, SendAction
from pairbus.drill.senders import Senders
from pairbus.drill.stage import EmbeddedStage, embedded_stage
from pairbus.errors import UsageError
from pairbus.pairing.options import backlog_path
from pairbus.syphon.backlog import count_waiting
from pairbus.syphon.namespaces import NamespaceError

BACKLOG_QUEUES = 2
MEASURE_EVERY_SECONDS = 1.0
SHOW_EVERY_SECONDS = 0.25
POLL_SECONDS = 0.05
PATIENCE_SECONDS = 120.0
SPARK_SECONDS = 300.0
OUTPUT = "demo-output"
REPORT = "report.html"


class SparkLateError(UsageError):
    """Spark did not start in time; the text is one sentence."""


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
    rate: float = 15.0
    """Messages per second of one sender."""


def script(*, fast: bool, seed: int) -> Script:
    if fast:
        return Script(seed, quiet=10, first_outage=20, second_outage=10, draining=5, rate=30.0)
    return Script(seed)


def run(plan: Script, *, keep: bool = False, quiet: bool = False, output: Path = Path(OUTPUT)) -> int:
    """Play the story and return the exit code: 0 if every accepted message was delivered.

    The report stays in `output`; with `keep`, so do the namespaces, the ledger and the tables. With `quiet`, only the
    result is printed.
    """
    logging.basicConfig(level=logging.CRITICAL)  # the narrator says what matters
    result_voice = narrator()
    voice = PlainNarrator(None) if quiet else result_voice
    with ExitStack() as stack:
        spark = stack.enter_context(_spark_in_background())
        if keep:
            folder = Path(tempfile.mkdtemp(prefix=time.strftime("%Y-%m-%d-%H%M%S-"), dir=output))
        else:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pairbus-demo-")))
        ledger, tables, page = folder / "ledger", folder / "ledger-tables", output / REPORT
        voice.say("Starting two namespaces as processes: contoso (primary) and contoso-standby (secondary).")
        result = asyncio.run(_play(voice, folder, ledger, plan, spark))
        voice.say("Building the tables from the ledger (Spark).")
        from pairbus.pipeline.build import build
        from pairbus.pipeline.page import html_page
        from pairbus.pipeline.report import report as make_report

        build(spark.result(), ledger, tables)
        report = make_report(spark.result(), tables)
        voice.say("Writing the report.")
        page.write_text(html_page(report), encoding="utf-8")
    receives = sum(part.account.delivered + part.account.duplicates for part in result.counts)
    cost = Cost.of(report.summary, report.pairing_cost, receives)
    code = conclude(result_voice.say, result, report.summary, cost)
    result_voice.say(f"The report is {page.absolute()}")
    if keep:
        result_voice.say(
            f"Kept: {folder.absolute()} (pairbus ledger report {ledger}; pairbus serve contoso --data {folder}/contoso)"
        )
    return code


async def _play(voice: Narrator, folder: Path, ledger: Path, plan: Script, spark: Future[Any]) -> DemoResult:
    async with embedded_stage(folder) as stage:
        voice.say(
            "Creating a queue (orders), a topic with two filtered subscriptions (prices: europe, large) and a queue "
            "with sessions (carts) on the primary."
        )
        await _create_entities(stage)
        primary, secondary = stage.namespace("primary"), stage.namespace("secondary")
        # Without the SDK's own retries, which take eleven seconds, an outage is noticed at once.
        options = SendAvailabilityPairedNamespaceOptions(
            secondary.administration(),
            secondary.client(),
            primary_name=stage.primary_name,
            backlog_queue_count=BACKLOG_QUEUES,
            failover_interval=0,
            ping_primary_interval=1,
            ledger=ledger,
        )
        async with await pair_namespace(primary.client(retry_total=0), options) as paired:
            paired.on_transition(
                lambda event: voice.say(
                    f"'{event.entity}' is {event.after.value} now ({event.cause.partition(':')[0]})."
                )
            )
            senders = Senders(
                paired,
                {entity.name: entity.name for entity in ENTITIES},
                lambda entity, number, _: parcel(plan.seed, entity, number).as_message(),
            )
            story = _Story(voice, stage, paired, senders, plan)
            async with story.watching():
                await story.quiet()
                await story.first_outage()
                await story.second_outage()
                await story.drain(spark, ledger)
        voice.say("Looking for every message.")
        places = [
            Destination(target.name, target.entity, target.subscription, target.entity == CARTS)
            for target in DESTINATIONS
        ]
        census = await take_census(stage, places, BACKLOG_QUEUES, None)
        voice.say("Closing the namespaces.")
        return _result(senders, census, plan.seed)


class _Story:
    """The acts."""

    def __init__(self, voice: Narrator, stage: EmbeddedStage, paired: Any, senders: Senders, plan: Script) -> None:
        self._voice = voice
        self._stage = stage
        self._paired = paired
        self._senders = senders
        self._plan = plan
        self._backlog: int | None = None
        self._arrived: dict[str, int] = {}

    async def quiet(self) -> None:
        self._voice.say(f"{self._plan.senders * len(ENTITIES)} senders send to the primary.")
        await self._send(self._plan.quiet)

    async def first_outage(self) -> None:
        """The primary is killed while the senders send, and comes back."""
        async with asyncio.TaskGroup() as group:
            sending = group.create_task(self._send(self._plan.first_outage))
            eighth = self._plan.first_outage * self._plan.senders * len(ENTITIES) // 8
            goal = self._senders.accepted(None) + eighth
            await self._wait(lambda: self._senders.accepted(None) >= goal or sending.done(), "the senders")
            await self._stage.kill("primary")
            self._voice.say("Killed the primary's process with -9; the senders continue.")
        depth = await self._depth()
        self._voice.say(f"No application noticed: {depth:,} messages wait in the backlog on the secondary.")
        await self._stage.restart("primary")
        self._voice.say("Restarted the primary; once a second, a ping for each entity checks whether it is back.")
        await self._all_healthy()

    async def second_outage(self) -> None:
        """One entity fails, the others work."""
        await self._stage.fault(FaultAction("refuse", entity=PRICES))
        self._voice.say(f"Second outage: '{PRICES}' refuses every link, '{ORDERS}' and '{CARTS}' work.")
        await self._send(self._plan.second_outage)
        self._voice.say(f"{await self._depth():,} messages wait in the backlog now.")
        await self._stage.clear("primary", None)
        self._voice.say(f"Repaired '{PRICES}'.")
        await self._all_healthy()

    async def drain(self, starting: Future[Any], ledger: Path) -> None:
        """The syphon runs as a Spark job, while the senders continue."""
        if not starting.done():
            self._voice.say("Waiting for Spark, which started in the background.")
        spark = await _started(starting)
        self._voice.say("The Spark syphon carries the backlog home; the senders continue, to the primary.")
        from pairbus.pipeline import Access, run_spark_syphon
        from pairbus.pipeline.java import kill_spark

        primary, secondary = (
            Access(None, namespace.connection_verify, namespace._connection_string)
            for namespace in (self._stage.namespace("primary"), self._stage.namespace("secondary"))
        )

        def carry() -> Any:
            return run_spark_syphon(
                primary,
                secondary,
                spark=spark,
                once=True,
                primary_name=self._stage.primary_name,
                queues=range(BACKLOG_QUEUES),
                ledger=ledger,
            )

        try:
            carried, _ = await asyncio.gather(asyncio.to_thread(carry), self._send(self._plan.draining))
        except asyncio.CancelledError:
            kill_spark()  # the loop waits for its threads
            raise
        self._voice.say(f"The syphon has carried {carried.restored:,} messages home in {carried.seconds:.1f} s.")

    async def _send(self, each: int) -> None:
        """Every sender sends this many messages."""
        senders, rate = self._plan.senders, self._plan.rate
        sends = (
            self._senders.send(entity, SendAction(entity.name, each * senders, rate * senders, senders))
            for entity in ENTITIES
        )
        await asyncio.gather(*sends)

    async def _all_healthy(self) -> None:
        await self._wait(
            lambda: all(self._paired.state(entity.name) is EntityState.HEALTHY for entity in ENTITIES),
            "every entity to be healthy",
        )

    async def _wait(self, condition: Callable[[], bool], what: str) -> None:
        """Wait, and continue after the deadline: the result will say what is missing."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            if time.monotonic() >= deadline:
                self._voice.say(f"Waited {PATIENCE_SECONDS:g} s for {what}.")
                return
            await asyncio.sleep(POLL_SECONDS)

    async def _depth(self) -> int:
        queues = [backlog_path(self._stage.primary_name, number) for number in range(BACKLOG_QUEUES)]
        depths = await count_waiting(self._stage.namespace("secondary"), queues)
        self._backlog = sum(depth.waiting for depth in depths.values())
        return self._backlog

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Measure and show the status regularly. The display does not wait for a measurement."""
        with self._voice.watching():
            watch = asyncio.gather(self._show(), self._measure())
            try:
                yield
            finally:
                watch.cancel()
                await asyncio.gather(watch, return_exceptions=True)

    async def _show(self) -> None:
        while True:
            self._voice.show(self._status())
            await asyncio.sleep(SHOW_EVERY_SECONDS)

    async def _measure(self) -> None:
        async with self._stage.namespace("primary").administration(retry_total=0) as admin:
            while True:
                await asyncio.sleep(MEASURE_EVERY_SECONDS)
                try:
                    await self._depth()
                except (NamespaceError, OSError):
                    self._backlog = None
                try:
                    for target in DESTINATIONS:
                        runtime: Awaitable[Any] = (
                            admin.get_queue_runtime_properties(target.entity)
                            if target.subscription is None
                            else admin.get_subscription_runtime_properties(target.entity, target.subscription)
                        )
                        self._arrived[target.name] = (await runtime).active_message_count or 0
                except (AzureError, OSError):
                    continue  # the primary is down: the last counts stay

    def _status(self) -> DemoStatus:
        def arrived(entity: str) -> tuple[tuple[str, int], ...]:
            names = (target.name for target in DESTINATIONS if target.entity == entity)
            return tuple((name, self._arrived.get(name, 0)) for name in names)

        names = [entity.name for entity in ENTITIES]
        entities = (
            EntityStatus(name, self._paired.state(name), self._senders.accepted(name), arrived(name)) for name in names
        )
        return DemoStatus(tuple(entities), self._backlog)


async def _create_entities(stage: EmbeddedStage) -> None:
    async with stage.namespace("primary").administration() as admin:
        await admin.create_queue(ORDERS, requires_duplicate_detection=True)
        await admin.create_queue(CARTS, requires_duplicate_detection=True, requires_session=True)
        await admin.create_topic(PRICES, requires_duplicate_detection=True)
        for target in DESTINATIONS:
            if target.subscription is not None:
                place = (target.entity, target.subscription)
                await admin.create_subscription(*place)
                await admin.create_rule(*place, "selected", filter=SqlRuleFilter(target.sql_filter))
                await admin.delete_rule(*place, "$Default")


def _result(senders: Senders, census: Census, seed: int) -> DemoResult:
    """Compare the accepted messages with those found. Every number that was begun may have been sent."""
    sent = [parcel(seed, entity, number) for entity in ENTITIES for number in range(1, senders.begun(entity.name) + 1)]
    ids = frozenset(name for entity in ENTITIES for name in senders.sent[entity.name].accepted)
    accepted = [each for each in sent if each.message_id in ids]
    counts = (count(target, accepted, sent, census.delivered[target.name]) for target in DESTINATIONS)
    return DemoResult(ids, senders.refused(None), tuple(counts))


async def _started(spark: Future[Any]) -> Any:
    """The Spark session; wait for it, but not forever."""
    try:
        async with asyncio.timeout(SPARK_SECONDS):
            return await asyncio.wrap_future(spark)
    except TimeoutError:
        raise SparkLateError(
            f"Spark did not start within {SPARK_SECONDS:g} s: check that 'java -version' works."
        ) from None


@contextmanager
def _spark_in_background() -> Iterator[Future[Any]]:
    """Start a Spark session, which takes ten seconds, while the story begins. An interrupt does not wait for it."""
    from pairbus.pipeline.java import kill_spark

    session: Future[Any] = Future()
    session.set_running_or_notify_cancel()  # waiting for it must not cancel it

    def start(folder: str) -> None:
        from pairbus.pipeline.session import local_session  # importing it takes a second
        from pairbus.pipeline.small_tables import SMALL_TABLES

        settings = {**SMALL_TABLES, "spark.local.dir": folder}
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
