"""The ledger and its tables: what recording costs, how the build grows, what a day more costs, how fast
fleets play.

    python benchmarks/bench_ledger.py                     a few minutes
    python benchmarks/bench_ledger.py --operations 2000000 20000000

Message ids are random, as real ones are. Where DuckDB is installed, it makes the same gold tables of the same silver
files, for a ratio; both must come to the same numbers.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import psutil
from pyspark.sql import SparkSession

from pairbus.costs import shipped_tariffs, tariff_for
from pairbus.ledger import CompletedOperation, LedgerLimits, LedgerWriter, Operation, Role, Route
from pairbus.pipeline import schemas
from pairbus.pipeline.build import Build, build
from pairbus.pipeline.fleet import FleetPlan, OutageKind, PairingChoice, play_run
from pairbus.pipeline.gold import Pricing
from pairbus.pipeline.session import local_session
from pairbus.pipeline.simulation import simulate
from pairbus.pipeline.store import Manifest, TableStore

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
                CompletedOperation(
                    Operation.SEND,
                    "contoso",
                    "orders",
                    message_ids=[ids[0]],
                    sizes=[1024],
                    latency_us=900,
                    route=Route.PRIMARY,
                )
            )

        def hundred() -> None:
            writer.record(
                CompletedOperation(Operation.SEND, "contoso", "orders", ids, latency_us=900, route=Route.PRIMARY)
            )

        say("record, one operation", f"{_best(one, 20_000):6.2f} us")
        say("record, a call with 100 messages", f"{_best(hundred, 1_000):6.2f} us")
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


def write_ledger(folder: Path, operations: int, first_day: int, days: int) -> int:
    """The ledger of `days` days: most messages go straight, one batch in ten through a backlog."""
    per_round = BATCH * ((DIVERTED_SHARE - 1) * OPERATIONS_PER_PLAIN + OPERATIONS_PER_DIVERTED)
    rounds = max(1, operations // per_round)
    # A hundred million operations have some 27 GB: more than a folder may have unless told so.
    limits = LedgerLimits(
        roll_bytes=64 * 1024 * 1024, roll_seconds=3600, pending_records=50_000, folder_bytes=256 * 1024**3
    )
    written, chance = 0, random.Random(first_day)
    with LedgerWriter(folder, limits=limits) as writer:
        for number in range(rounds):
            at = START + timedelta(days=first_day) + timedelta(days=days) * (number / rounds)
            at_us = int(at.timestamp() * 1_000_000)
            for batch in range(DIVERTED_SHARE):
                ids = [chance.randbytes(16).hex() for _ in range(BATCH)]
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
        writer.record(CompletedOperation(
            Operation.DIVERT, "fabrikam", queue, ids, sizes=sizes, route=Route.BACKLOG, destination=entity,
            episode=f"episode-{at_us}", at_us=at_us,
        ))  # fmt: skip
        writer.record(
            CompletedOperation(
                Operation.RECEIVE, "fabrikam", queue, ids, sizes=sizes, destination=entity, role=Role.SYPHON, at_us=back
            )
        )
        writer.record(CompletedOperation(
            Operation.RESTORE, "contoso", entity, ids, sizes=sizes, route=Route.SYPHON, source=queue,
            role=Role.SYPHON, at_us=back,
        ))  # fmt: skip
        writer.record(
            CompletedOperation(
                Operation.COMPLETE, "fabrikam", queue, ids, destination=entity, role=Role.SYPHON, at_us=back
            )
        )
    else:
        writer.record(
            CompletedOperation(
                Operation.SEND, "contoso", entity, ids, sizes=sizes, latency_us=900, route=Route.PRIMARY, at_us=at_us
            )
        )
    writer.record(
        CompletedOperation(Operation.RECEIVE, "contoso", entity, ids, sizes=sizes, role=Role.RECEIVER, at_us=at_us)
    )
    writer.record(CompletedOperation(Operation.COMPLETE, "contoso", entity, ids, role=Role.RECEIVER, at_us=at_us))


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
    # What ended children used is in their parents' sums.
    return float(sum(one.user + one.system + one.children_user + one.children_system for one in times))


def bench_build(spark: SparkSession, sizes: list[int]) -> None:
    warm = Path(tempfile.mkdtemp(prefix="pairbus-bench-"))
    write_ledger(warm / "ledger", 50_000, 0, 1)
    build(spark, warm / "ledger", warm / "tables")
    shutil.rmtree(warm)
    rates = []
    for size in sizes:
        folder = Path(tempfile.mkdtemp(prefix="pairbus-bench-"))
        days = 10
        written = write_ledger(folder / "ledger", size, 0, days)
        with measured() as whole:
            build(spark, folder / "ledger", folder / "tables")
        rates.append(written / whole["seconds"])
        say(
            f"build, {written:,} operations",
            f"{whole['seconds']:7.1f} s  {rates[-1]:9,.0f}/s  {whole['cpu']:6.1f} processor s  "
            f"peak {whole['peak'] / 2**20:,.0f} MiB",
        )
        bench_gold(spark, folder / "tables")
        more = write_ledger(folder / "ledger", size // days, days, 1)
        with measured() as day:
            build(spark, folder / "ledger", folder / "tables")
        say(
            f"  one day more, {more:,} operations",
            f"{day['seconds']:7.1f} s  {day['seconds'] / whole['seconds']:.2f} of the whole for {more / written:.2f}"
            f"  {day['cpu']:6.1f} processor s",
        )
        shutil.rmtree(folder)
    if len(rates) > 1:
        say("  rate of the largest against the smallest", f"{rates[-1] / rates[0]:.2f}")


def bench_gold(spark: SparkSession, tables: Path) -> None:
    """All gold tables of all of silver, which one batch holds, beside DuckDB when it is there."""
    store = TableStore(tables)
    silver = store.manifest().silver

    def on_spark() -> None:
        builder = Build(spark, store, Manifest(), 1, Pricing(), lookback_days=7)
        builder.manifest = replace(builder.manifest, silver=silver)
        builder.refresh(sorted(silver))

    with measured() as gold:
        on_spark()
    text = f"{gold['seconds']:7.1f} s  {gold['cpu']:6.1f} processor s"
    if importlib.util.find_spec("duckdb") is None:
        say("  gold from silver", f"{text}  (DuckDB is not installed)")
        return
    make_gold = importlib.import_module("duck_gold").make_gold
    begun = time.perf_counter()
    answer = make_gold(tables, tables.with_name("duck"), threads=len(os.sched_getaffinity(0)))
    seconds = time.perf_counter() - begun
    say("  gold from silver", f"{text}  DuckDB {seconds:.1f} s  ratio {gold['seconds'] / seconds:.1f}")
    assert answer == _numbers(spark, store), "DuckDB and Spark do not agree"


def _numbers(spark: SparkSession, store: TableStore) -> dict[str, list[tuple[object, ...]]]:
    """What both must agree on."""
    manifest = store.manifest()
    frames = {
        table.name: store.read(spark, table, manifest)
        for table in (schemas.OPERATIONS_DAILY, schemas.AUDIT, schemas.WAITING, schemas.AVAILABILITY)
    }
    return {
        name: sorted(tuple(row) for row in frames[name].selectExpr(*columns).collect())
        for name, columns in AGREED.items()
    }


AGREED = {
    "operations_daily": ["count(*)", "sum(operations)", "sum(billed)", "sum(latency_us_sum)", "max(latency_us_max)"],
    "audit": ["count(*)", "sum(accepted)", "sum(delivered)", "sum(waiting)", "sum(lost)", "sum(duplicates)"],
    "waiting": ["count(*)", "sum(messages)", "max(p99_seconds)", "max(max_seconds)"],
    "availability": ["count(*)", "sum(offered)", "sum(accepted)", "sum(accepted_by_primary)"],
}


def bench_simulation() -> None:
    tariff = tariff_for(shipped_tariffs(), "azure-usd", date(2026, 1, 1))
    plan = FleetPlan(clients=2_000, clients_per_outage=2_000, outages=(OutageKind("namespace", 3, 45),))
    outages, begun = 0, time.perf_counter()
    for run in range(3):
        outages += play_run(plan, PairingChoice(), tariff, run).outages
    seconds = time.perf_counter() - begun
    say("simulation, clients through an outage, one core", f"{plan.clients * outages / seconds:9,.0f}/s")


def bench_fleets(spark: SparkSession) -> None:
    """The same on Spark: all cores, the start of the Python workers included."""
    plan = FleetPlan(clients=2_000, clients_per_outage=2_000, runs=10, outages=(OutageKind("namespace", 3, 45),))
    with measured() as fleets:
        outages = sum(row["outages"] for row in simulate(spark, plan).select("outages").collect())
    say("simulation on Spark, all cores", f"{plan.clients * outages / fleets['seconds']:9,.0f}/s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--operations", type=int, nargs="+", default=[500_000, 2_000_000])
    parser.add_argument("--memory", default="2g", help="memory of Spark's driver")
    arguments = parser.parse_args()
    bench_recording()
    bench_simulation()
    spark = local_session("pairbus-bench", driver_memory=arguments.memory)
    try:
        bench_fleets(spark)
        bench_build(spark, arguments.operations)
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
