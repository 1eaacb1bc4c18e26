"""The ledger and its tables: what recording costs, how the build grows, what a day more costs, how fast
fleets play.

    python benchmarks/bench_ledger.py                     a few minutes
    python benchmarks/bench_ledger.py --operations 2000000 20000000

Where DuckDB is installed, it runs the two largest gold queries on the same silver files, for a ratio.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import psutil
from pyspark.sql import DataFrame, SparkSession

from pairbus.costs import shipped_tariffs, tariff_for
from pairbus.ledger import LedgerLimits, LedgerWriter, Operation, Role, Route
from pairbus.pipeline import gold, schemas
from pairbus.pipeline.audit import audit
from pairbus.pipeline.build import build
from pairbus.pipeline.fleet import FleetPlan, OutageKind, PairingChoice
from pairbus.pipeline.outages import play_run
from pairbus.pipeline.session import local_session
from pairbus.pipeline.store import TableStore

START = datetime(2026, 1, 1, tzinfo=UTC)
BATCH = 500
DIVERTED_SHARE = 10
"""One batch in this many goes through a backlog."""
OPERATIONS_PER_PLAIN, OPERATIONS_PER_DIVERTED = 3, 6


def say(what: str, value: str) -> None:
    print(f"{what:<58} {value}", flush=True)


def bench_recording() -> None:
    folder = Path(tempfile.mkdtemp(prefix="pairbus-bench-"))
    ids = [f"order-{i:09d}-0123456789abcdef" for i in range(100)]
    with LedgerWriter(folder, limits=LedgerLimits(pending_records=10_000_000)) as writer:

        def one() -> None:
            writer.record(
                Operation.SEND, "contoso", "orders", message_id=ids[0], size=1024, latency_us=900, route=Route.PRIMARY
            )

        def hundred() -> None:
            writer.record_batch(Operation.SEND, "contoso", "orders", ids, latency_us=900, route=Route.PRIMARY)

        say("record, one operation", f"{_best(one, 20_000):6.2f} us")
        say("record_batch, 100 operations", f"{_best(hundred, 1_000):6.2f} us")
    shutil.rmtree(folder)


def _best(action: Callable[[], None], times: int) -> float:
    """Microseconds for one call: the best of five rounds, with the flusher running beside."""
    rounds = []
    for _ in range(5):
        begun = time.perf_counter()
        for _ in range(times):
            action()
        rounds.append((time.perf_counter() - begun) / times * 1e6)
    return min(rounds)


def write_ledger(folder: Path, operations: int, first_day: int, days: int, label: str) -> int:
    """The ledger of `days` days: most messages go straight, one batch in ten through a backlog."""
    per_round = BATCH * ((DIVERTED_SHARE - 1) * OPERATIONS_PER_PLAIN + OPERATIONS_PER_DIVERTED)
    rounds = max(1, operations // per_round)
    limits = LedgerLimits(roll_bytes=64 * 1024 * 1024, roll_seconds=3600, pending_records=50_000)
    written = 0
    with LedgerWriter(folder, limits=limits) as writer:
        for number in range(rounds):
            at = START + timedelta(days=first_day) + timedelta(days=days) * (number / rounds)
            at_us = int(at.timestamp() * 1_000_000)
            for batch in range(DIVERTED_SHARE):
                ids = [f"{label}-{number:06d}-{batch}-{i:03d}-00000000-0000" for i in range(BATCH)]
                _write_batch(writer, ids, f"queue-{(number + batch) % 20}", at_us, diverted=batch == 0)
            written += per_round
            assert writer.flush(120)
        assert writer.unrecorded == 0
    return written


def _write_batch(writer: LedgerWriter, ids: list[str], entity: str, at_us: int, *, diverted: bool) -> None:
    sizes = [2_000] * len(ids)
    queue = "contoso/x-servicebus-transfer/3"
    if diverted:
        back = at_us + 600_000_000
        writer.record_batch(
            Operation.DIVERT, "fabrikam", queue, ids, sizes=sizes, route=Route.BACKLOG, destination=entity,
            episode=f"episode-{at_us}", at_us=at_us,
        )  # fmt: skip
        writer.record_batch(
            Operation.RECEIVE, "fabrikam", queue, ids, sizes=sizes, destination=entity, role=Role.SYPHON, at_us=back
        )
        writer.record_batch(
            Operation.RESTORE, "contoso", entity, ids, sizes=sizes, route=Route.SYPHON, source=queue,
            role=Role.SYPHON, at_us=back,
        )  # fmt: skip
        writer.record_batch(
            Operation.COMPLETE, "fabrikam", queue, ids, destination=entity, role=Role.SYPHON, at_us=back
        )
    else:
        writer.record_batch(
            Operation.SEND, "contoso", entity, ids, sizes=sizes, latency_us=900, route=Route.PRIMARY, at_us=at_us
        )
    writer.record_batch(Operation.RECEIVE, "contoso", entity, ids, sizes=sizes, role=Role.RECEIVER, at_us=at_us)
    writer.record_batch(Operation.COMPLETE, "contoso", entity, ids, role=Role.RECEIVER, at_us=at_us)


@contextmanager
def measured() -> Iterator[dict[str, float]]:
    """Seconds, processor seconds, and the peak memory of this process and its children (Java, Python workers)."""
    found = {"seconds": 0.0, "cpu": 0.0, "peak": 0.0}
    done = threading.Event()

    def watch() -> None:
        me = psutil.Process()
        while not done.wait(0.25):
            total = 0
            for process in [me, *me.children(recursive=True)]:
                try:
                    total += process.memory_info().rss
                except psutil.NoSuchProcess:
                    continue
            found["peak"] = max(found["peak"], total)

    watcher = threading.Thread(target=watch)
    watcher.start()
    begun, used = time.perf_counter(), _processor_seconds()
    try:
        yield found
    finally:
        found["seconds"] = time.perf_counter() - begun
        found["cpu"] = _processor_seconds() - used
        done.set()
        watcher.join()


def _processor_seconds() -> float:
    me = psutil.Process()
    times = [process.cpu_times() for process in (me, *me.children(recursive=True))]
    return float(sum(one.user + one.system for one in times))


def bench_build(spark: SparkSession, sizes: list[int]) -> None:
    warm = Path(tempfile.mkdtemp(prefix="pairbus-bench-"))
    write_ledger(warm / "ledger", 50_000, 0, 1, "warm")
    build(spark, warm / "ledger", warm / "tables")
    shutil.rmtree(warm)
    rates = []
    for size in sizes:
        folder = Path(tempfile.mkdtemp(prefix="pairbus-bench-"))
        days = 10
        written = write_ledger(folder / "ledger", size, 0, days, "history")
        with measured() as whole:
            build(spark, folder / "ledger", folder / "tables")
        rates.append(written / whole["seconds"])
        say(
            f"build, {written:,} operations",
            f"{whole['seconds']:7.1f} s  {rates[-1]:9,.0f}/s  {whole['cpu']:6.1f} processor s  "
            f"peak {whole['peak'] / 2**20:,.0f} MiB",
        )
        more = write_ledger(folder / "ledger", size // days, days, 1, "day")
        with measured() as day:
            build(spark, folder / "ledger", folder / "tables")
        say(
            f"  one day more, {more:,} operations",
            f"{day['seconds']:7.1f} s  {day['seconds'] / whole['seconds']:.2f} of the whole for {more / written:.2f}"
            f"  {day['cpu']:6.1f} processor s",
        )
        bench_queries(spark, folder / "tables")
        shutil.rmtree(folder)
    if len(rates) > 1:
        say("  rate of the largest against the smallest", f"{rates[-1] / rates[0]:.2f}")


DUCK_OPERATIONS = """
    select day, namespace, entity, "primary", target, role, operation, route, outcome,
           count(*), sum(billed), sum(bytes), sum(latency_us), max(latency_us)
    from silver group by all
"""
DUCK_AUDIT = """
    select verdict, count(*) from (
      select "primary", target, message_id,
        case when sum((outcome = 'ok' and operation in ('send', 'divert'))::int)
               > sum((outcome = 'ok' and operation in ('send', 'restore'))::int)
             then case when sum((outcome = 'ok' and on_backlog and operation = 'complete')::int) > 0
                       then 'lost' else 'waiting' end
             when sum((outcome = 'ok' and not on_backlog and operation = 'complete')::int) > 1
             then 'duplicated' else 'delivered' end as verdict
      from silver where message_id is not null group by all) group by all
"""


def bench_queries(spark: SparkSession, tables: Path) -> None:
    """The two largest gold queries over all of silver, beside DuckDB when it is there."""
    store = TableStore(tables)

    def records() -> DataFrame:
        return store.read_silver(spark, schemas.SILVER.schema, store.manifest())

    queries: dict[str, tuple[Callable[[], object], str]] = {
        "operations by day, entity, kind": (
            lambda: gold.operations_daily(records()).write.format("noop").mode("overwrite").save(),
            DUCK_OPERATIONS,
        ),
        "audit of every message": (
            lambda: audit(records()).groupBy("verdict").count().collect(),
            DUCK_AUDIT,
        ),
    }
    duck = importlib.util.find_spec("duckdb") is not None
    for name, (on_spark, sql) in queries.items():
        on_spark()
        seconds = _seconds(on_spark)
        if not duck:
            say(f"  {name}", f"{seconds:7.1f} s  (DuckDB is not installed)")
            continue
        connection = importlib.import_module("duckdb").connect()
        connection.execute("set threads to 2")
        source = f"read_parquet('{tables}/silver/*/*/*/*.parquet', hive_partitioning = true)"
        connection.execute(f"create view silver as select * from {source}")
        connection.execute(sql).fetchall()
        other = _seconds(lambda: connection.execute(sql).fetchall())  # noqa: B023 - called at once
        say(f"  {name}", f"{seconds:7.1f} s  DuckDB {other:.1f} s  ratio {seconds / other:.1f}")


def _seconds(action: Callable[[], object]) -> float:
    begun = time.perf_counter()
    action()
    return time.perf_counter() - begun


def bench_simulation() -> None:
    tariff = tariff_for(shipped_tariffs(), "azure-usd", date(2026, 1, 1))
    plan = FleetPlan(clients=2_000, clients_per_outage=2_000, outages=(OutageKind("namespace", 3, 45),))
    outages, begun = 0, time.perf_counter()
    for run in range(3):
        outages += play_run(plan, PairingChoice(), tariff, run).outages
    seconds = time.perf_counter() - begun
    say("simulation, clients through an outage, one core", f"{plan.clients * outages / seconds:9,.0f}/s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--operations", type=int, nargs="+", default=[500_000, 2_000_000])
    parser.add_argument("--memory", default="2g", help="memory of Spark's driver")
    arguments = parser.parse_args()
    bench_recording()
    bench_simulation()
    spark = local_session("pairbus-bench", driver_memory=arguments.memory)
    try:
        bench_build(spark, arguments.operations)
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
