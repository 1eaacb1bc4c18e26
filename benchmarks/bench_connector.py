"""The Spark connector and the syphon on Spark, as ratios within one run.

    bench_connector.py [--only syphon,reading,streaming,growth,drains] [--messages 20000] [--rounds 3]
                       [--growth 10000,100000]

Both namespaces run in processes of their own, so on a small machine they compete with what is measured: for the syphon,
the processor time of each side is printed too, and how much of the machine was idle. The start of the Spark session is
printed by itself and counted nowhere. A million messages are `--only growth,drains --growth 10000,100000,1000000`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from pyspark.sql import SparkSession
from tests.support.raw import flood, raw_message

from pairbus import envelope
from pairbus.pairing.options import backlog_path
from pairbus.pipeline import Access, ServiceBusDataSource, run_spark_syphon
from pairbus.pipeline.session import local_session
from pairbus.syphon import Syphon
from pairbus.testing import EmbeddedNamespace, EmbeddedPair, embedded_pair

QUEUES = 10
BODY = b"x" * 1000
PARTS = ("syphon", "reading", "streaming", "growth", "drains")


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


# --- the syphon -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Effort:
    """How long a drain took, and the processor seconds of the two namespaces and of who carried."""

    seconds: float
    primary: float
    secondary: float
    carrying: float

    def told(self, what: str, messages: int) -> str:
        each = 1e6 / messages
        idle = 1 - (self.primary + self.secondary + self.carrying) / (self.seconds * (os.cpu_count() or 1))
        return (
            f"{what:<24}{messages / self.seconds:8.0f} messages/s   processor time a message: primary "
            f"{self.primary * each:3.0f} µs, secondary {self.secondary * each:3.0f} µs, carrying "
            f"{self.carrying * each:3.0f} µs; machine idle {max(0.0, idle):3.0%}"
        )


class Drains:
    """A pair whose backlog is filled and drained again and again."""

    def __init__(self, pair: EmbeddedPair, spark: SparkSession) -> None:
        self._pair = pair
        self._spark = spark
        self._made = 0
        with pair.secondary.admin() as admin:
            for number in range(QUEUES):
                admin.create_queue(backlog_path("contoso", number))

    def _fill(self, messages: int) -> None:
        self._made += 1
        destination = f"orders-{self._made}"
        with self._pair.primary.admin() as admin:
            admin.create_queue(destination, max_size_in_megabytes=5120)
        for number in range(QUEUES):

            def make(index: int, number: int = number) -> bytes:
                return envelope.to_backlog(raw_message(f"{destination}-{number}-{index}", BODY), destination)

            flood(self._pair.secondary, backlog_path("contoso", number), messages // QUEUES, make=make)

    def by_spark(self, messages: int, ledger: Path | None = None) -> Effort:
        ends = [Access(None, one.ca_file, one.connection_string) for one in (self._pair.primary, self._pair.secondary)]
        return self._measure(
            messages,
            lambda: run_spark_syphon(
                *ends, spark=self._spark, once=True, primary_name="contoso", retry_interval=1.0, ledger=ledger
            ),
        )

    def by_process(self, messages: int) -> Effort:
        syphon = Syphon(
            self._pair.primary.connection_string,
            self._pair.secondary.connection_string,
            primary_name="contoso",
            connection_verify=self._pair.secondary.ca_file,
        )
        return self._measure(messages, lambda: syphon.run_blocking(once=True))

    def _measure(self, messages: int, drain: Callable[[], object]) -> Effort:
        self._fill(messages)
        servers = self._pair.primary.pid, self._pair.secondary.pid
        before = [processor_seconds([pid]) for pid in servers] + [processor_seconds(ours(servers))]
        took = seconds(drain)
        after = [processor_seconds([pid]) for pid in servers] + [processor_seconds(ours(servers))]
        return Effort(took, *(late - early for early, late in zip(before, after, strict=True)))


def ours(servers: tuple[int, int]) -> list[int]:
    """This process, Spark's, and its workers."""
    own = psutil.Process()
    return [own.pid, *(one.pid for one in own.children(recursive=True) if one.pid not in servers)]


def processor_seconds(pids: list[int]) -> float:
    total = 0.0
    for pid in pids:
        with suppress(psutil.Error):
            times = psutil.Process(pid).cpu_times()
            total += times.user + times.system
    return total


@contextmanager
def drains(spark: SparkSession) -> Iterator[Drains]:
    with embedded_pair(process=True) as pair:
        opened = Drains(pair, spark)
        opened.by_spark(500)  # Python workers start, classes are loaded
        yield opened


def bench_syphon(spark: SparkSession, start_seconds: float, messages: int, rounds: int) -> None:
    with drains(spark) as both, tempfile.TemporaryDirectory() as folder:
        efforts = [(both.by_process(messages), both.by_spark(messages)) for _ in range(rounds)]
        recorded = both.by_spark(messages, Path(folder))
    efforts.sort(key=lambda one: one[0].seconds / one[1].seconds)
    one, two = efforts[len(efforts) // 2]
    ratio = statistics.median(first.seconds / second.seconds for first, second in efforts)
    print(one.told("syphon, one process", messages))
    print(two.told("syphon, Spark local[2]", messages))
    print(recorded.told("the same with a ledger", messages))
    print(f"Spark local[2] carries {ratio:.2f} x what one process does (goal 1.5), the median of {rounds} rounds")
    gain = (one.seconds - two.seconds) / messages
    if gain > 0:
        print(f"starting Spark ({start_seconds:.0f} s) pays off from {start_seconds / gain:,.0f} messages on")
    else:
        print("starting Spark does not pay off on this machine")
    carrying = one.carrying / two.carrying
    print(f"a core that only carries: one process {messages / one.carrying:,.0f} messages/s", end="")
    print(f", each core of Spark's {messages / two.carrying:,.0f} ({carrying:.2f} x)")


# --- reading ----------------------------------------------------------------------------------------------


def bench_reading(spark: SparkSession, namespace: EmbeddedNamespace, messages: int) -> None:
    def by_sdk() -> None:
        with namespace.client() as client, client.get_queue_receiver("orders") as receiver:
            number = 0
            while found := receiver.peek_messages(max_message_count=250, sequence_number=number):
                number = (found[-1].sequence_number or 0) + 1

    def by_spark(queue: str) -> None:
        reader = spark.read.format("servicebus").option("connectionString", namespace.connection_string)
        table = reader.option("queue", queue).option("messagesPerPartition", messages // 2).load()
        table.write.format("noop").mode("append").save()

    by_spark("orders")  # Python workers start, classes are loaded
    asked = seconds(lambda: by_spark("empty"))
    sdk, ours = seconds(by_sdk), seconds(lambda: by_spark("orders"))
    print(f"peek loop of the SDK    {messages / sdk:10.0f} messages/s")
    print(f"batch read              {messages / ours:10.0f} messages/s   {sdk / ours:.2f} x the SDK", end="")
    print(f"; without the {asked:.1f} s that any query takes {sdk / max(0.01, ours - asked):.2f} x")


def bench_streaming(spark: SparkSession, namespace: EmbeddedNamespace, messages: int) -> None:
    first = 0.0
    for share in (20, 10, 4, 1):
        with namespace.admin() as admin:
            admin.create_queue(f"stream-{share}")
        flood(namespace, f"stream-{share}", messages, size=len(BODY))
        with tempfile.TemporaryDirectory() as folder:
            stream = (
                spark.readStream.format("servicebus")
                .options(connectionString=namespace.connection_string, queue=f"stream-{share}")
                .option("maxMessagesPerTrigger", messages // share)
                .load()
                .writeStream.format("parquet")
                .option("checkpointLocation", str(Path(folder) / "checkpoint"))
                .trigger(availableNow=True)
            )
            took = seconds(lambda stream=stream, folder=folder: stream.start(folder + "/table").awaitTermination())  # type: ignore[misc]
        first = first or took
        print(f"stream, batches of {messages // share:>7,} {messages / took:7.0f} messages/s   {first / took:.2f} x")


def bench_growth(spark: SparkSession, namespace: EmbeddedNamespace, sizes: list[int]) -> None:
    there, least = 0, 0.0
    with namespace.admin() as admin:
        admin.create_queue("growing")
    reader = spark.read.format("servicebus").option("connectionString", namespace.connection_string)
    for size in sizes:
        flood(namespace, "growing", size - there, size=100)
        there = size
        took = seconds(lambda: reader.option("queue", "growing").load().write.format("noop").mode("append").save())
        least = least or took / size
        told = f"{took / size * 1e6:7.1f} µs a message   {took / size / least:.2f} x the first"
        print(f"batch read of {size:>9,}  {told}", flush=True)


def bench_drains(spark: SparkSession, sizes: list[int]) -> None:
    least = 0.0
    with drains(spark) as both:
        for size in sizes:
            took = both.by_spark(size).seconds
            least = least or took / size
            told = f"{took / size * 1e6:7.1f} µs a message   {took / size / least:.2f} x the first"
            print(f"Spark syphon, {size:>9,}  {told}", flush=True)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--only", default=",".join(PARTS))
    options.add_argument("--messages", type=int, default=20_000)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--growth", default="10000,100000")
    given = options.parse_args()
    wanted = given.only.split(",")
    if not set(wanted) <= set(PARTS):
        options.error(f"--only is {given.only!r}; allowed: {', '.join(PARTS)}, with commas.")
    began = time.perf_counter()
    spark = local_session("benchmark", cores=2)
    start_seconds = time.perf_counter() - began
    print(f"start of the session: {start_seconds:.1f} s")
    spark.dataSource.register(ServiceBusDataSource)
    sizes = [int(size) for size in given.growth.split(",")]
    if "syphon" in wanted:
        bench_syphon(spark, start_seconds, given.messages, given.rounds)
    with EmbeddedNamespace("contoso", process=True) as namespace:
        with namespace.admin() as admin:
            for name in ("orders", "empty"):
                admin.create_queue(name)
        flood(namespace, "orders", given.messages, size=len(BODY))
        if "reading" in wanted:
            bench_reading(spark, namespace, given.messages)
        if "streaming" in wanted:
            bench_streaming(spark, namespace, given.messages)
        if "growth" in wanted:
            bench_growth(spark, namespace, sizes)
    if "drains" in wanted:
        bench_drains(spark, sizes)
    spark.stop()


if __name__ == "__main__":
    main()
