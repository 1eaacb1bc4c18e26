"""The syphon as a Spark job, for a backlog that one process would take too long to carry home.

    report = run_spark_syphon(Access(variable="PRIMARY"), Access(variable="SECONDARY"), spark=spark, once=True)

Rules:
- All state is in the queues. The driver reads their depths and deals the queues that are not empty to tasks, one task
  per core, so that all tasks have about the same amount of work. A task runs a `Syphon` on its queues until they are
  empty or its time is over. Then the driver looks again.
- One pump per queue at a time, so that messages for one destination, and messages of one session, keep their order.
- A task that fails or loses its executor loses no message: messages that were not completed are delivered again when
  their locks expire. The driver gives up after `FAILURES_IN_A_ROW` rounds that failed and carried nothing.
- Tasks return their records, and the driver puts them into the ledger: see `pairbus.pipeline.outcome_rows`.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import Row, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from pairbus.errors import UsageError
from pairbus.ledger import LedgerWriter
from pairbus.pairing.options import backlog_path
from pairbus.pipeline.outcome_rows import (
    MESSAGES_PER_TASK,
    DriversLedger,
    FileRow,
    Journal,
    journal_key,
    left_behind,
)
from pairbus.pipeline.servicebus.options import Access
from pairbus.pipeline.session import SPARK_ERRORS, cause_of, session_for
from pairbus.syphon.backlog import count_waiting, extra_queues
from pairbus.syphon.namespaces import (
    CredentialRefusedError,
    Namespace,
    NamespaceError,
    advice,
    describe_error,
    is_credential_refused,
)
from pairbus.syphon.pump import Side
from pairbus.syphon.service import Share, Syphon, SyphonOptions

log = logging.getLogger(__name__)

TASK_SECONDS = 30.0
"""After this time a task finishes the messages in hand and ends, so that the driver can look again."""
IDLE_SECONDS = 10.0
FAILURES_IN_A_ROW = 5
SLOTS_UNKNOWN = 100
"""The number of tasks if the session does not know the number of cores, as with Spark Connect."""
RESULT = pa.schema(
    [
        *((name, pa.int64()) for name in ("restored", "dead_lettered", "expired", "bytes")),
        *((name, pa.string()) for name in ("error", "refused", "file")),
        ("content", pa.binary()),
    ]
)
"""A task returns one row of counts, then one row per file of records."""


@dataclass(frozen=True, slots=True)
class SyphonPlan:
    """A round of work, as sent to the executors. Connection strings are not shown."""

    primary: Access
    secondary: Access
    options: SyphonOptions
    journal: str | None
    """The name of the folder on each executor's machine that keeps its records; None if nothing is recorded."""
    shares: tuple[Share, ...] = ()
    """The work of each task."""


@dataclass(slots=True)
class SparkSyphonReport:
    """The progress of the job. `left` is the depth of each backlog queue when the driver last looked."""

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


class SparkSyphonError(UsageError, RuntimeError):
    """The job makes no progress."""


def run_spark_syphon(
    primary: Access | str,
    secondary: Access | str,
    *,
    options: SyphonOptions | None = None,
    spark: SparkSession | None = None,
    master: str | None = None,
    once: bool = False,
    connection_verify: str | None = None,
    on_progress: OnProgress | None = None,
    stop: threading.Event | None = None,
    **settings: Any,
) -> SparkSyphonReport:
    """Carry until `stop` is set; with `once`, until the backlog queues are empty.

    Namespaces are connection strings, or `Access(variable=...)`, which each executor reads from its own environment.
    Without a session, one is created for `master` (default: all cores of this machine) and stopped at the end. The
    other keyword arguments are the fields of `SyphonOptions`; `rate` limits all tasks together. Executors cannot call
    back, so `on_carried`, `on_namespace_lost`, `transport`, `state_dir` and `now_ms` must keep their defaults, and
    `ledger` must be a folder.

    Raises `SparkSyphonError` if there is no progress, and `CredentialRefusedError` if the secondary does not let us
    count, or, with `once`, if all that is left waits for a namespace that refuses our credential.
    """
    options = replace(options, **settings) if options is not None else SyphonOptions(**settings)
    check_options(options)
    ends = [_access(namespace, connection_verify) for namespace in (primary, secondary)]
    hosts = [_namespace(access).host for access in ends]
    name = options.name_of_primary(hosts[0])
    records = None
    journal = None
    if isinstance(options.ledger, str | Path):
        records = DriversLedger(Path(options.ledger).absolute())
        journal = journal_key(socket.gethostname(), records.folder, hosts[1], name)
    plan = SyphonPlan(ends[0], ends[1], replace(options, primary_name=name, ledger=None), journal)
    session = spark or session_for(master, f"pairbus syphon {name}")
    try:
        check_settings(session.conf.get)
        job = _Job(session, plan, name, once, records, on_progress, stop or threading.Event())
        try:
            return job.run()
        finally:
            job.gather()
    finally:
        if spark is None:
            session.stop()


def check_options(options: SyphonOptions) -> None:
    """Raise ValueError for options that executors cannot use."""
    default = SyphonOptions()
    for name in ("transport", "on_carried", "on_namespace_lost", "state_dir", "now_ms"):
        if getattr(options, name) != getattr(default, name):
            raise ValueError(f"{name} is {getattr(options, name)!r}; a Spark syphon does not support this option.")
    if isinstance(options.ledger, LedgerWriter):
        raise ValueError("ledger is a LedgerWriter; a Spark syphon needs the folder of the ledger.")


def check_settings(setting: Callable[[str, str], str | None]) -> None:
    """Raise ValueError for a session that may start a second copy of a running task."""
    if (setting("spark.speculation", "false") or "").lower() == "true":
        raise ValueError(
            "spark.speculation is true; expected false: a second copy of a task would carry the same backlog queue at "
            "the same time, and messages would lose their order. Switch it off for this job."
        )


def _access(namespace: Access | str, connection_verify: str | None) -> Access:
    return namespace if isinstance(namespace, Access) else Access(None, connection_verify, namespace)


def _namespace(access: Access) -> Namespace:
    return Namespace.parse(access.connection_string(), connection_verify=access.connection_verify)


def deal(depths: Mapping[str, int], slots: int) -> list[tuple[str, ...]]:
    """Deal the queues that are not empty to at most `slots` tasks: deepest first, each to the least loaded task."""
    waiting = sorted((queue for queue in depths if depths[queue]), key=lambda queue: -depths[queue])
    hands: list[list[str]] = [[] for _ in range(min(slots, len(waiting)))]
    loads = [0] * len(hands)
    for queue in waiting:
        lightest = loads.index(min(loads))
        hands[lightest].append(queue)
        loads[lightest] += depths[queue]
    return [tuple(hand) for hand in hands]


async def backlog_depths(
    secondary: Namespace, primary_name: str, numbers: Collection[int], *, include_extra: bool
) -> dict[str, int]:
    """The number of messages in each existing backlog queue."""
    try:
        queues = [backlog_path(primary_name, number) for number in sorted(set(numbers))]
        if include_extra:
            queues += await extra_queues(secondary, primary_name, numbers)
        return {queue: depth.waiting for queue, depth in (await count_waiting(secondary, queues)).items()}
    except NamespaceError as failure:
        error = failure.__cause__ or failure
        if is_credential_refused(error):
            raise CredentialRefusedError(
                f"The secondary, {secondary.host}, refuses our credential ({describe_error(error)}). Check its "
                "connection string and the rights of its key: a Spark job reads queue depths, which needs Manage."
            ) from error
        raise SparkSyphonError(
            f"Cannot read the depths of the backlog queues of {primary_name!r} in {secondary.host}: "
            f"{describe_error(error)}. "
            + advice(error, "Check that the namespace answers and that the connection string may manage it.")
        ) from error


@dataclass(frozen=True, slots=True)
class _Round:
    """How a round ended. `refused_by`: the namespace whose refusal of our credential alone prevented all progress."""

    is_fruitless: bool
    refused_by: Side | None = None


@dataclass
class _Job:
    """The driver: read the depths, plan, run a round, repeat."""

    spark: SparkSession
    plan: SyphonPlan
    primary_name: str
    once: bool
    records: DriversLedger | None
    on_progress: OnProgress | None
    stop: threading.Event

    def __post_init__(self) -> None:
        self._secondary = _namespace(self.plan.secondary)
        self.report = SparkSyphonReport()

    def run(self) -> SparkSyphonReport:
        started = time.monotonic()
        options = self.plan.options
        fruitless = 0
        while not self.stop.is_set():
            depths = asyncio.run(
                backlog_depths(self._secondary, self.primary_name, options.queues, include_extra=options.include_extra)
            )
            self.report.left = depths
            self.report.seconds = time.monotonic() - started
            if self.on_progress is not None:
                self.on_progress(self.report)
            hands = deal(depths, self._slots())
            if not hands:
                if self.once:
                    break
                self.stop.wait(IDLE_SECONDS)
                continue
            ended = self._round(hands, sum(depths.values()))
            self.gather()
            if self.once and ended.refused_by is not None:
                side = ended.refused_by
                host = _namespace(self.plan.primary if side == "primary" else self.plan.secondary).host
                raise CredentialRefusedError(
                    f"The {side}, {host}, refuses our credential ({self.report.last_error}). Check its connection "
                    f"string and the rights of its key. {self.report.restored} messages are home; the others wait in "
                    "the backlog."
                )
            fruitless = fruitless + 1 if ended.is_fruitless else 0
            if fruitless >= FAILURES_IN_A_ROW:
                raise SparkSyphonError(
                    f"{fruitless} rounds in a row failed and carried nothing; {sum(depths.values())} messages wait in "
                    f"{self._secondary.host}. The last error: {self.report.last_error}"
                )
            if ended.is_fruitless:
                self.stop.wait(options.retry_interval)
        self.report.seconds = time.monotonic() - started
        return self.report

    def _round(self, hands: list[tuple[str, ...]], depth: int) -> _Round:
        """Run one Spark job."""
        self.report.rounds += 1
        limit = None if self.plan.journal is None else MESSAGES_PER_TASK
        shares = tuple(
            Share(queues, None if limit is None else -(-limit // len(queues)), TASK_SECONDS, gives_up=self.once)
            for queues in hands
        )
        rate = self.plan.options.rate
        options = replace(self.plan.options, rate=None if rate is None else rate / len(shares))
        description = f"round {self.report.rounds}, {depth} messages in {sum(map(len, hands))} queues"
        try:
            rows = self._run(
                len(shares), partial(_carry_shares, replace(self.plan, options=options, shares=shares)), description
            )
        except SPARK_ERRORS as error:
            # A task failed too often, or its executor was lost. The queues still have what was not completed.
            self.report.failures += 1
            self.report.last_error = cause_of(error)
            log.warning("a round failed", extra={"cause": self.report.last_error})
            return _Round(is_fruitless=True)
        self._store(rows)
        outcomes = [row for row in rows if row.file is None]
        for row in outcomes:
            self.report.restored += row.restored
            self.report.dead_lettered += row.dead_lettered
            self.report.expired += row.expired
            self.report.carried_bytes += row.bytes
            self.report.last_error = row.error or self.report.last_error
        carried = sum(row.restored + row.dead_lettered for row in outcomes)
        failed = [row.refused for row in outcomes if row.error]
        return _Round(
            is_fruitless=bool(failed) and not carried,
            refused_by=failed[0] if failed and all(failed) and not carried else None,
        )

    def _store(self, rows: Iterable[Row]) -> int:
        """Put the files among these rows into the ledger; returns how many are new."""
        if self.records is None:
            return 0
        return sum([self.records.store(FileRow(file=row.file, content=row.content)) for row in rows if row.file])

    def gather(self) -> None:
        """Let executors delete the files that are in the ledger, and collect those that killed tasks left behind."""
        records, journal = self.records, self.plan.journal
        if records is None or journal is None:
            return
        slots = self._slots()
        while True:
            stored = frozenset(records.stored)
            try:
                # One task per core, all at once, so that every executor gets one.
                rows = self._run(slots, partial(_return_files, journal, stored), "records of the executors")
            except SPARK_ERRORS as error:
                log.warning("the records of the executors could not be collected", extra={"cause": cause_of(error)})
                return
            records.stored -= stored
            if not self._store(rows):
                return

    def _slots(self) -> int:
        context = getattr(self.spark, "_sc", None)
        return SLOTS_UNKNOWN if context is None else max(1, context.defaultParallelism)

    def _run(self, tasks: int, work: ArrowWork, description: str) -> list[Row]:
        context = getattr(self.spark, "_sc", None)  # a Spark Connect session has no context for a job description
        if context is not None:
            context.setJobDescription(f"syphon {self.primary_name}: {description}")
        try:
            return self.spark.range(0, tasks, 1, tasks).mapInArrow(work, from_arrow_schema(RESULT)).collect()
        finally:
            if context is not None:
                context.setJobDescription(None)


def _carry_shares(plan: SyphonPlan, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The work of the executors in a round: carry the share with the number of the task."""
    for batch in batches:
        for number in batch.column(0).to_pylist():
            journal = None if plan.journal is None else Journal(plan.journal)
            try:
                yield _batch(asyncio.run(carry(plan, plan.shares[number], journal)))
            finally:
                files = [] if journal is None else journal.close()
            for row in files:
                yield _batch(row)


def _return_files(journal: str, stored: frozenset[str], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The work of the executors when records are gathered: delete the files that the driver has, return the rest."""
    for _ in batches:
        for row in left_behind(journal, stored):
            yield _batch(row)


def _batch(row: Mapping[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([dict(row)], schema=RESULT)


async def carry(plan: SyphonPlan, share: Share, journal: Journal | None) -> dict[str, Any]:
    """Run a syphon on this share of the backlog; returns the row of counts."""
    options = replace(plan.options, ledger=None if journal is None else journal.writer)
    syphon = Syphon(_namespace(plan.primary), _namespace(plan.secondary), options=options)
    queues = (await syphon.run_share(share)).queues
    error = next((queue.last_error for queue in queues if queue.last_error), None)
    refused, cause = syphon.given_up or (None, None)
    return {
        "restored": sum(queue.counts.restored for queue in queues),
        "dead_lettered": sum(queue.counts.dead_lettered for queue in queues),
        "expired": sum(queue.counts.expired for queue in queues),
        "bytes": sum(queue.counts.restored_bytes for queue in queues),
        "error": error if refused is None else cause,
        "refused": refused,
    }
