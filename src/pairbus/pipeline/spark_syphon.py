"""The syphon as a Spark job: for a backlog that one process would take too long to carry home.

    report = run_spark_syphon(Access(variable="PRIMARY"), Access(variable="SECONDARY"), spark=spark, once=True)

Rules:
- The queues are the state. The driver looks how deep they are and gives each that is not empty a task; a task pumps
  (receives, restores, sends, completes) with the pumps of the process syphon until its queue is empty or its time is
  over. Then the driver looks again.
- One pump per queue at a time, so that messages for one destination, and those of one session, keep their order. Deep
  queues go first: the last task to end is a short one.
- A task that fails, or whose executor is lost, has lost nothing: what it had not completed comes again when its locks
  end. The driver gives up only after `FAILURES_IN_A_ROW` rounds that failed and carried nothing.
- Executors record in the ledger's folder themselves, as every syphon does: the folder must be one they all can write.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from azure.core.exceptions import AzureError, ResourceNotFoundError
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pairbus.envelope import TimeToLivePolicy
from pairbus.ledger import LedgerWriter, Role
from pairbus.pairing.options import SendAvailabilityPairedNamespaceOptions, backlog_path, recorded_name
from pairbus.pipeline.servicebus.options import Access
from pairbus.pipeline.session import local_session
from pairbus.syphon.amqp_transport import AmqpTransport
from pairbus.syphon.namespaces import Namespace
from pairbus.syphon.outcomes import Logbook
from pairbus.syphon.pauses import Growth, RateLimit
from pairbus.syphon.pump import Pump, PumpOptions
from pairbus.syphon.rules import PumpRules
from pairbus.syphon.service import LONGEST_DESTINATION_PAUSE_SECONDS, list_backlog_queues

log = logging.getLogger(__name__)

TASK_SECONDS = 30.0
"""After this long a task finishes what it holds and ends, so that the driver can look again and say how far it is."""
IDLE_SECONDS = 10.0
FAILURES_IN_A_ROW = 5
RESULT = "queue string, restored long, dead_lettered long, expired long, bytes long, error string"


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
    ledger: str | None
    queues: tuple[str, ...] = ()
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
    the messages a second of each task.
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
    plan = SyphonPlan(
        ends[0],
        ends[1],
        name,
        backlog_time_to_live,
        retry_interval,
        send_timeout,
        rate,
        None if ledger is None else str(Path(ledger).absolute()),
    )
    own = spark is None
    session = spark or session_for(master, f"pairbus syphon {name}")
    try:
        job = _Job(session, plan, sorted(set(queues)), include_extra, on_progress, stop or threading.Event())
        return job.run(once=once)
    finally:
        if own:
            session.stop()


def session_for(master: str | None, name: str) -> SparkSession:
    """For this machine everything stays on loopback; for a cluster the settings are the cluster's."""
    here = master is None or master.startswith(("local", "spark://127.", "spark://localhost:"))
    if here:
        return local_session(name, settings={} if master is None else {"spark.master": master})
    return SparkSession.builder.appName(name).master(str(master)).getOrCreate()


def _access(given: Access | str, connection_verify: str | None) -> Access:
    return given if isinstance(given, Access) else Access(None, connection_verify, given)


def _namespace(access: Access) -> Namespace:
    return Namespace.parse(access.connection_string(), connection_verify=access.connection_verify)


class _Job:
    """The driver's side: look, plan, run a round, look again."""

    def __init__(
        self,
        spark: SparkSession,
        plan: SyphonPlan,
        numbers: list[int],
        include_extra: bool,
        on_progress: OnProgress | None,
        stop: threading.Event,
    ) -> None:
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
            depths = asyncio.run(self._depths())
            self.report.left = depths
            self.report.seconds = time.monotonic() - began
            if self._on_progress is not None:
                self._on_progress(self.report)
            waiting = sorted((one for one in depths if depths[one]), key=lambda one: -depths[one])
            if not waiting:
                if once:
                    break
                self._stop.wait(IDLE_SECONDS)
                continue
            failed, carried = self._round(waiting, sum(depths.values()))
            fruitless = fruitless + 1 if failed and not carried else 0
            if fruitless >= FAILURES_IN_A_ROW:
                raise SparkSyphonError(
                    f"{fruitless} rounds in a row failed and carried nothing; {sum(depths.values())} messages wait in "
                    f"{self._secondary.host}. The last error: {self.report.last_error}"
                )
            if failed and not carried:
                self._stop.wait(self._plan.retry_interval)
        self.report.seconds = time.monotonic() - began
        return self.report

    def _round(self, waiting: list[str], depth: int) -> tuple[bool, int]:
        """One job of Spark's: whether something failed, and how much was carried."""
        self.report.rounds += 1
        plan = self._plan
        description = (
            f"syphon {plan.primary_name}: round {self.report.rounds}, {depth} messages in {len(waiting)} queues"
        )
        work = _Work(replace(plan, queues=tuple(waiting)))
        with _described(self._spark, description):
            try:
                tasks = self._spark.range(0, len(waiting), 1, len(waiting))
                rows = tasks.mapInArrow(work, RESULT).collect()
            except (PySparkException, Py4JError) as error:
                # A task failed too often, or its executor was lost. The queues know how far it was.
                self.report.failures += 1
                self.report.last_error = _first_line(error)
                log.warning("a round failed", extra={"cause": self.report.last_error})
                return True, 0
        carried = 0
        for row in rows:
            self.report.restored += row.restored
            self.report.dead_lettered += row.dead_lettered
            self.report.expired += row.expired
            self.report.carried_bytes += row.bytes
            self.report.last_error = row.error or self.report.last_error
            carried += row.restored + row.dead_lettered
        return any(row.error for row in rows), carried

    async def _depths(self) -> dict[str, int]:
        """How many messages wait in each backlog queue; those that do not exist are left out."""
        queues = [backlog_path(self._plan.primary_name, number) for number in self._numbers]
        if self._include_extra:
            known = {queue.lower() for queue in queues}
            extra = await list_backlog_queues(self._secondary, self._plan.primary_name)
            queues += [queue for queue in extra if queue.lower() not in known]
        depths: dict[str, int] = {}
        async with self._secondary.administration() as admin:
            for queue in queues:
                try:
                    found = await admin.get_queue_runtime_properties(queue)
                except ResourceNotFoundError:
                    continue
                except (AzureError, OSError) as error:
                    raise SparkSyphonError(
                        f"How deep {queue!r} in {self._secondary.host} is could not be found out: {error}. Check that "
                        "the namespace answers and that the connection string may manage it."
                    ) from error
                depths[queue] = found.active_message_count or 0
        return depths


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


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if "Error" in line and not line.startswith(("at ", "File "))]
    return (told or lines or [type(error).__name__])[-1][:500]


class _Work:
    """What executors do with the number of a queue: carry it."""

    def __init__(self, plan: SyphonPlan) -> None:
        self._plan = plan

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                row = asyncio.run(carry(self._plan, self._plan.queues[number]))
                yield pa.RecordBatch.from_pylist([row], schema=_ARROW)


_ARROW = pa.schema(
    [
        ("queue", pa.string()),
        ("restored", pa.int64()),
        ("dead_lettered", pa.int64()),
        ("expired", pa.int64()),
        ("bytes", pa.int64()),
        ("error", pa.string()),
    ]
)


async def carry(plan: SyphonPlan, queue: str) -> dict[str, Any]:
    """Pump one backlog queue until it is empty or the time is over; what became of it."""
    primary, secondary = _namespace(plan.primary), _namespace(plan.secondary)
    ledger = LedgerWriter(plan.ledger, role=Role.SYPHON) if plan.ledger is not None else None
    logbook = Logbook(queue, recorded_name(primary.host, plan.primary_name), secondary.host, ledger)
    rules = PumpRules(
        policy=plan.backlog_time_to_live,
        destination_pauses=Growth(plan.retry_interval, LONGEST_DESTINATION_PAUSE_SECONDS),
    )
    options = PumpOptions(rules, retry_interval=plan.retry_interval, send_timeout=plan.send_timeout)
    transport = AmqpTransport(primary, secondary)
    pump = Pump(queue, transport, options, logbook, RateLimit(plan.rate))
    asyncio.get_running_loop().call_later(plan.seconds, pump.stop)
    try:
        await pump.run(once=True)
    finally:
        await transport.close()
        if ledger is not None:
            ledger.close()
    counts = logbook.counts
    return {
        "queue": queue,
        "restored": counts.restored,
        "dead_lettered": counts.dead_lettered,
        "expired": counts.expired,
        "bytes": counts.restored_bytes,
        "error": pump.last_error,
    }
