"""The syphon as a Spark job: for a backlog that one process would take too long to carry home.

    report = run_spark_syphon(Access(variable="PRIMARY"), Access(variable="SECONDARY"), spark=spark, once=True)

Rules:
- The queues are the state. The driver looks how deep they are and deals those that are not empty to tasks, one for each
  core, so that all tasks have about as much to do; a task pumps its queues (receives, restores, sends, completes) with
  the pumps of the process syphon until they are empty or its time is over. Then the driver looks again.
- One pump per queue at a time, so that messages for one destination, and those of one session, keep their order.
- A task that fails, or whose executor is lost, has lost nothing: what it had not completed comes again when its locks
  end. The driver gives up only after `FAILURES_IN_A_ROW` rounds that failed and carried nothing.
- Tasks return what they recorded, and the driver puts it into the ledger: see `pairbus.pipeline.outcome_rows`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from azure.core.exceptions import AzureError, ResourceNotFoundError
from pyspark.sql import Row, SparkSession

from pairbus.envelope import TimeToLivePolicy
from pairbus.pairing.options import SendAvailabilityPairedNamespaceOptions, backlog_path, recorded_name
from pairbus.pipeline.failures import SPARK_ERRORS, cause_of
from pairbus.pipeline.outcome_rows import (
    SHARE,
    DriversLedger,
    FileRow,
    Journal,
    journal_key,
    left_behind,
)
from pairbus.pipeline.servicebus.options import Access
from pairbus.pipeline.session import cluster_session, local_session
from pairbus.syphon.amqp_transport import AmqpTransport
from pairbus.syphon.durable_records import DurableRecords
from pairbus.syphon.namespaces import (
    CredentialRefusedError,
    Namespace,
    advice,
    describe_error,
    is_credential_refused,
)
from pairbus.syphon.outcomes import Logbook
from pairbus.syphon.pauses import Growth, RateLimit
from pairbus.syphon.pump import Pump, PumpOptions
from pairbus.syphon.refusals import Side, refusing
from pairbus.syphon.rules import PumpRules
from pairbus.syphon.service import LONGEST_DESTINATION_PAUSE_SECONDS, list_backlog_queues

log = logging.getLogger(__name__)

TASK_SECONDS = 30.0
"""After this long a task finishes what it holds and ends, so that the driver can look again and say how far it is."""
IDLE_SECONDS = 10.0
FAILURES_IN_A_ROW = 5
SLOTS_UNKNOWN = 100
"""Tasks at once when the session, one of Spark Connect, does not say how many cores there are."""
RESULT = (
    "restored long, dead_lettered long, expired long, bytes long, error string, refused string, file string, "
    "content binary"
)
"""A task returns one row of counts, then a row for each file of records."""


@dataclass(frozen=True, slots=True)
class SyphonPlan:
    """What executors need to know. Connection strings are not shown."""

    primary: Access
    secondary: Access
    primary_name: str
    backlog_time_to_live: TimeToLivePolicy
    retry_interval: float
    send_timeout: float
    rate: float | None
    journal: str | None
    """Names the folder on each executor's machine that its records wait in; none: nothing is recorded."""
    once: bool = False
    """A task ends when all that is left to it waits for a namespace that refuses our credential."""
    tasks: tuple[tuple[str, ...], ...] = ()
    """The queues of each task."""
    seconds: float = TASK_SECONDS


@dataclass(slots=True)
class SparkSyphonReport:
    """How far the job is. `left` is what each backlog queue held when the driver last looked."""

    rounds: int = 0
    restored: int = 0
    dead_lettered: int = 0
    expired: int = 0
    carried_bytes: int = 0
    failures: int = 0
    seconds: float = 0.0
    left: dict[str, int] = field(default_factory=dict)
    last_error: str | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


OnProgress = Callable[[SparkSyphonReport], None]
ArrowWork = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class SparkSyphonError(RuntimeError):
    """The job makes no headway."""


def run_spark_syphon(
    primary: Access | str,
    secondary: Access | str,
    *,
    spark: SparkSession | None = None,
    master: str | None = None,
    once: bool = False,
    primary_name: str | None = None,
    queues: Collection[int] = range(10),
    include_extra: bool = False,
    backlog_time_to_live: TimeToLivePolicy = "restore",
    retry_interval: float = 1.0,
    send_timeout: float = 60.0,
    rate: float | None = None,
    ledger: Path | str | None = None,
    connection_verify: str | None = None,
    on_progress: OnProgress | None = None,
    stop: threading.Event | None = None,
) -> SparkSyphonReport:
    """Carry until `stop` is set; with `once`, until the backlog queues are empty.

    Namespaces are connection strings, or `Access(variable=...)`: then each executor reads its own environment. Without
    a session one is made for `master` (all cores of this machine unless given) and stopped at the end. `rate` limits
    the messages a second of all tasks together.

    Raises `SparkSyphonError` when it makes no headway, and `CredentialRefusedError` when the secondary does not let us
    count, or, with `once`, when all that is left waits for a namespace that refuses our credential.
    """
    ends = [_access(one, connection_verify) for one in (primary, secondary)]
    # The options of a pairing that a syphon shares with it have the same ranges.
    options: SendAvailabilityPairedNamespaceOptions[None, None] = SendAvailabilityPairedNamespaceOptions(
        None,
        None,
        primary_name=primary_name,
        backlog_time_to_live=backlog_time_to_live,
        syphon_retry_interval=retry_interval,
        send_timeout=send_timeout,
    )
    name = options.name_of_primary(_namespace(ends[0]).host)
    records = None if ledger is None else DriversLedger(Path(ledger).absolute())
    standby = _namespace(ends[1]).host
    plan = SyphonPlan(
        ends[0],
        ends[1],
        name,
        backlog_time_to_live,
        retry_interval,
        send_timeout,
        rate,
        None if records is None else journal_key(socket.gethostname(), records.folder, standby, name),
        once,
    )
    own = spark is None
    session = spark or session_for(master, f"pairbus syphon {name}")
    try:
        check_settings(session.conf.get)
        job = _Job(session, plan, sorted(set(queues)), include_extra, records, on_progress, stop or threading.Event())
        try:
            return job.run(once=once)
        finally:
            job.gather()
    finally:
        if own:
            session.stop()


def check_settings(setting: Callable[[str, str], str | None]) -> None:
    """ValueError for a session that would start a task a second time while it runs."""
    if (setting("spark.speculation", "false") or "").lower() == "true":
        raise ValueError(
            "spark.speculation is true; expected false: a second copy of a task would carry the same backlog queue at "
            "the same time, and messages would lose their order. Switch it off for this job."
        )


def session_for(master: str | None, name: str) -> SparkSession:
    """For this machine everything stays on loopback; for a cluster the settings are the cluster's."""
    here = master is None or master.startswith(("local", "spark://127.", "spark://localhost:"))
    if here:
        return local_session(name, settings={} if master is None else {"spark.master": master})
    return cluster_session(str(master), name)


def _access(given: Access | str, connection_verify: str | None) -> Access:
    return given if isinstance(given, Access) else Access(None, connection_verify, given)


def _namespace(access: Access) -> Namespace:
    return Namespace.parse(access.connection_string(), connection_verify=access.connection_verify)


def deal(depths: Mapping[str, int], slots: int) -> list[tuple[str, ...]]:
    """The queues that hold something, for at most so many tasks: deepest first, each to whoever has least to do."""
    waiting = sorted((queue for queue in depths if depths[queue]), key=lambda queue: -depths[queue])
    hands: list[list[str]] = [[] for _ in range(min(slots, len(waiting)))]
    loads = [0] * len(hands)
    for queue in waiting:
        lightest = loads.index(min(loads))
        hands[lightest].append(queue)
        loads[lightest] += depths[queue]
    return [tuple(hand) for hand in hands]


async def backlog_depths(
    secondary: Namespace, primary_name: str, numbers: Iterable[int], *, include_extra: bool
) -> dict[str, int]:
    """How many messages wait in each backlog queue; those that do not exist are left out."""
    depths: dict[str, int] = {}
    async with secondary.administration() as admin:

        async def add(queue: str) -> None:
            with contextlib.suppress(ResourceNotFoundError):
                depths[queue] = (await admin.get_queue_runtime_properties(queue)).active_message_count or 0

        queues = [backlog_path(primary_name, number) for number in numbers]
        queue = ""
        try:
            for queue in queues:
                await add(queue)
            if include_extra:
                known = {queue.lower() for queue in queues}
                for queue in await list_backlog_queues(secondary, primary_name):
                    if queue.lower() not in known:
                        await add(queue)
        except (AzureError, OSError) as error:
            if is_credential_refused(error):
                raise CredentialRefusedError(
                    f"The secondary, {secondary.host}, refuses our credential ({describe_error(error)}). Check its "
                    "connection string and the rights of its key: a Spark job counts what waits, which needs Manage."
                ) from error
            raise SparkSyphonError(
                f"How deep {queue!r} in {secondary.host} is could not be found out: {describe_error(error)}. "
                + advice(error, "Check that the namespace answers and that the connection string may manage it.")
            ) from error
    return depths


@dataclass(frozen=True, slots=True)
class _Round:
    """How a round ended. `refused`: who refuses our credential, if that alone kept all from being carried."""

    fruitless: bool
    refused: Side | None = None


class _Job:
    """The driver's side: look, plan, run a round, look again."""

    def __init__(
        self,
        spark: SparkSession,
        plan: SyphonPlan,
        numbers: list[int],
        include_extra: bool,
        records: DriversLedger | None,
        on_progress: OnProgress | None,
        stop: threading.Event,
    ) -> None:
        self._records = records
        self._spark = spark
        self._plan = plan
        self._numbers = numbers
        self._include_extra = include_extra
        self._on_progress = on_progress
        self._stop = stop
        self._secondary = _namespace(plan.secondary)
        self.report = SparkSyphonReport()

    def run(self, *, once: bool) -> SparkSyphonReport:
        began = time.monotonic()
        fruitless = 0
        while not self._stop.is_set():
            depths = asyncio.run(
                backlog_depths(
                    self._secondary, self._plan.primary_name, self._numbers, include_extra=self._include_extra
                )
            )
            self.report.left = depths
            self.report.seconds = time.monotonic() - began
            if self._on_progress is not None:
                self._on_progress(self.report)
            tasks = deal(depths, self._slots())
            if not tasks:
                if once:
                    break
                self._stop.wait(IDLE_SECONDS)
                continue
            done = self._round(tasks, sum(depths.values()))
            self.gather()
            if once and done.refused is not None:
                host = _namespace(self._plan.primary if done.refused == "primary" else self._plan.secondary).host
                raise CredentialRefusedError(
                    f"The {done.refused}, {host}, refuses our credential ({self.report.last_error}). Check its "
                    f"connection string and the rights of its key. {self.report.restored} messages are home; the "
                    "others wait in the backlog."
                )
            fruitless = fruitless + 1 if done.fruitless else 0
            if fruitless >= FAILURES_IN_A_ROW:
                raise SparkSyphonError(
                    f"{fruitless} rounds in a row failed and carried nothing; {sum(depths.values())} messages wait in "
                    f"{self._secondary.host}. The last error: {self.report.last_error}"
                )
            if done.fruitless:
                self._stop.wait(self._plan.retry_interval)
        self.report.seconds = time.monotonic() - began
        return self.report

    def _round(self, tasks: list[tuple[str, ...]], depth: int) -> _Round:
        """One job of Spark's."""
        self.report.rounds += 1
        rate = None if self._plan.rate is None else self._plan.rate / len(tasks)
        work = _Carrying(replace(self._plan, tasks=tuple(tasks), rate=rate))
        description = f"round {self.report.rounds}, {depth} messages in {sum(map(len, tasks))} queues"
        try:
            rows = self._run(len(tasks), work, description)
        except SPARK_ERRORS as error:
            # A task failed too often, or its executor was lost. The queues know how far it was.
            self.report.failures += 1
            self.report.last_error = cause_of(error)
            log.warning("a round failed", extra={"cause": self.report.last_error})
            return _Round(fruitless=True)
        self._store(rows)
        outcomes = [row for row in rows if row.file is None]
        carried = 0
        for row in outcomes:
            self.report.restored += row.restored
            self.report.dead_lettered += row.dead_lettered
            self.report.expired += row.expired
            self.report.carried_bytes += row.bytes
            self.report.last_error = row.error or self.report.last_error
            carried += row.restored + row.dead_lettered
        failed = [row.refused for row in outcomes if row.error]
        return _Round(
            fruitless=bool(failed) and not carried,
            refused=failed[0] if failed and all(failed) and not carried else None,
        )

    def _store(self, rows: Iterable[Row]) -> int:
        """Put the files among these rows into the ledger; how many are new to it."""
        if self._records is None:
            return 0
        return sum([self._records.store(FileRow(file=row.file, content=row.content)) for row in rows if row.file])

    def gather(self) -> None:
        """Let executors delete what is in the ledger, and hand over what no task has: killed ones left it."""
        records, journal = self._records, self._plan.journal
        if records is None or journal is None:
            return
        slots = self._slots()
        while True:
            stored = frozenset(records.stored)
            try:
                # As many tasks as there are cores, at once: so every executor gets one.
                rows = self._run(slots, _Gathering(journal, stored), "records of the executors")
            except SPARK_ERRORS as error:
                log.warning("records could not be gathered", extra={"cause": cause_of(error)})
                return
            records.stored -= stored
            if not self._store(rows):
                return

    def _slots(self) -> int:
        context = getattr(self._spark, "_sc", None)
        return SLOTS_UNKNOWN if context is None else max(1, context.defaultParallelism)

    def _run(self, tasks: int, work: ArrowWork, description: str) -> list[Row]:
        with _described(self._spark, f"syphon {self._plan.primary_name}: {description}"):
            return self._spark.range(0, tasks, 1, tasks).mapInArrow(work, RESULT).collect()


@contextlib.contextmanager
def _described(spark: SparkSession, description: str) -> Iterator[None]:
    """What the Spark UI shows of a job. A session of Spark Connect has no context to say it to."""
    context = getattr(spark, "_sc", None)
    if context is not None:
        context.setJobDescription(description)
    try:
        yield
    finally:
        if context is not None:
            context.setJobDescription(None)


class _Carrying:
    """What executors do with the number of a task: carry its queues."""

    def __init__(self, plan: SyphonPlan) -> None:
        self._plan = plan

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                plan = self._plan
                journal = None if plan.journal is None else Journal(plan.journal)
                try:
                    yield _batch(asyncio.run(carry(plan, plan.tasks[number], journal)))
                finally:
                    files = [] if journal is None else journal.close()
                for row in files:
                    yield _batch(row)


class _Gathering:
    """What executors do when records are gathered: delete what the driver has, hand over the rest."""

    def __init__(self, journal: str, stored: frozenset[str]) -> None:
        self._journal = journal
        self._stored = stored

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            for row in left_behind(self._journal, self._stored):
                yield _batch(row)


_ARROW = pa.schema(
    [
        ("restored", pa.int64()),
        ("dead_lettered", pa.int64()),
        ("expired", pa.int64()),
        ("bytes", pa.int64()),
        ("error", pa.string()),
        ("refused", pa.string()),
        ("file", pa.string()),
        ("content", pa.binary()),
    ]
)


def _batch(row: Mapping[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([dict(row)], schema=_ARROW)


async def carry(plan: SyphonPlan, queues: Sequence[str], journal: Journal | None) -> dict[str, Any]:
    """Pump these queues until they are empty or the task's share or time is over; what became of their messages."""
    primary, secondary = _namespace(plan.primary), _namespace(plan.secondary)
    ledger = None if journal is None else journal.writer
    durable = None if ledger is None else DurableRecords(ledger)
    rules = PumpRules(
        policy=plan.backlog_time_to_live,
        destination_pauses=Growth(plan.retry_interval, LONGEST_DESTINATION_PAUSE_SECONDS),
    )
    given_up: dict[str, str] = {}

    def give_up() -> None:
        unfinished = [pump for pump in pumps if not pump.drained]
        side = refusing(unfinished)
        if plan.once and side is not None and not given_up:
            cause = next((pump.last_error for pump in unfinished if pump.last_error), "no right to use it")
            given_up.update(refused=side, error=cause)
            for pump in pumps:
                asyncio.get_running_loop().call_soon(pump.stop)

    options = PumpOptions(rules, retry_interval=plan.retry_interval, send_timeout=plan.send_timeout, on_refused=give_up)
    transport = AmqpTransport(primary, secondary)
    rate = RateLimit(plan.rate)
    share = None if ledger is None else -(-SHARE // len(queues))
    name = recorded_name(primary.host, plan.primary_name)
    pumps = [
        Pump(queue, transport, options, Logbook(queue, name, secondary.host, ledger, durable=durable), rate, share)
        for queue in queues
    ]
    for pump in pumps:
        asyncio.get_running_loop().call_later(plan.seconds, pump.stop)
    try:
        async with asyncio.TaskGroup() as group:
            for pump in pumps:
                group.create_task(pump.run(once=True), name=f"pump {pump.queue}")
    finally:
        await transport.close()
    counts = [pump.logbook.counts for pump in pumps]
    return {
        "restored": sum(one.restored for one in counts),
        "dead_lettered": sum(one.dead_lettered for one in counts),
        "expired": sum(one.expired for one in counts),
        "bytes": sum(one.restored_bytes for one in counts),
        "error": next((pump.last_error for pump in pumps if pump.last_error), None),
        **given_up,
    }
