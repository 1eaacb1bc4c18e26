"""The Spark connector and the syphon on Spark, as ratios within one run.

    python benchmarks/bench_connector.py [--messages 20000] [--growth 10000,100000,1000000]

Both namespaces run in processes of their own, so on two cores they compete with what is measured. The start of the
Spark session is printed by itself and counted nowhere.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

from pairbus import envelope
from pairbus.pairing.options import backlog_path
from pairbus.pipeline.servicebus import ServiceBusDataSource
from pairbus.pipeline.servicebus.options import Access
from pairbus.pipeline.session import local_session
from pairbus.pipeline.spark_syphon import run_spark_syphon
from pairbus.syphon import Syphon
from pairbus.testing import EmbeddedNamespace, EmbeddedPair, embedded_pair
from pairbus.testing.flooding import flood
from pairbus.testing.raw import raw_message

QUEUES = 10
BODY = b"x" * 1000


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def fill(pair: EmbeddedPair, destination: str, messages: int) -> None:
    for number in range(QUEUES):

        def make(index: int, number: int = number) -> bytes:
            return envelope.to_backlog(raw_message(f"{destination}-{number}-{index}", BODY), destination)

        flood(pair.secondary, backlog_path("contoso", number), messages // QUEUES, make=make)


def bench_syphon(spark: SparkSession, start_seconds: float, messages: int) -> None:
    with embedded_pair(process=True) as pair:
        with pair.primary.admin() as admin:
            for name in ("warm", "by-process", "by-spark"):
                admin.create_queue(name)
        with pair.secondary.admin() as admin:
            for number in range(QUEUES):
                admin.create_queue(backlog_path("contoso", number))
        primary = Access(None, pair.primary.ca_file, pair.primary.connection_string)
        secondary = Access(None, pair.secondary.ca_file, pair.secondary.connection_string)

        def by_spark() -> None:
            run_spark_syphon(primary, secondary, spark=spark, once=True, primary_name="contoso")

        def by_process() -> None:
            Syphon(
                pair.primary.connection_string,
                pair.secondary.connection_string,
                primary_name="contoso",
                connection_verify=pair.secondary.ca_file,
            ).run_blocking(once=True)

        fill(pair, "warm", 200)
        by_spark()
        fill(pair, "by-process", messages)
        one = seconds(by_process)
        fill(pair, "by-spark", messages)
        two = seconds(by_spark)
        print(f"syphon, one process     {messages / one:10.0f} messages/s")
        print(f"syphon, Spark local[2]  {messages / two:10.0f} messages/s   {one / two:.2f} x the process (goal 1.5)")
        gain = one / messages - two / messages
        if gain > 0:
            print(f"starting Spark ({start_seconds:.0f} s) pays off from {start_seconds / gain:,.0f} messages on")
        else:
            print("starting Spark does not pay off on this machine")


def bench_reading(spark: SparkSession, namespace: EmbeddedNamespace, messages: int) -> None:
    def by_sdk() -> None:
        with namespace.client() as client, client.get_queue_receiver("orders") as receiver:
            number = 0
            while found := receiver.peek_messages(max_message_count=250, sequence_number=number):
                number = (found[-1].sequence_number or 0) + 1

    reader = spark.read.format("servicebus").option("connectionString", namespace.connection_string)
    table = reader.option("queue", "orders").option("messagesPerPartition", messages // 2)
    table.load().limit(1).count()
    sdk = seconds(by_sdk)
    ours = seconds(lambda: table.load().write.format("noop").mode("append").save())
    print(f"peek loop of the SDK    {messages / sdk:10.0f} messages/s")
    print(f"batch read              {messages / ours:10.0f} messages/s   {sdk / ours:.2f} x the SDK")


def bench_streaming(spark: SparkSession, namespace: EmbeddedNamespace, messages: int) -> None:
    first = 0.0
    for share in (10, 4, 1):
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
        print(
            f"batch read of {size:>9,}  {took / size * 1e6:7.1f} µs a message   {took / size / least:.2f} x the first"
        )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--messages", type=int, default=20_000)
    options.add_argument("--growth", default="10000,100000,1000000")
    given = options.parse_args()
    began = time.perf_counter()
    spark = local_session("benchmark", cores=2)
    start_seconds = time.perf_counter() - began
    print(f"start of the session: {start_seconds:.1f} s")
    spark.dataSource.register(ServiceBusDataSource)
    bench_syphon(spark, start_seconds, given.messages)
    with EmbeddedNamespace("contoso", process=True) as namespace:
        with namespace.admin() as admin:
            admin.create_queue("orders")
        flood(namespace, "orders", given.messages, size=len(BODY))
        bench_reading(spark, namespace, given.messages)
        bench_streaming(spark, namespace, given.messages)
        bench_growth(spark, namespace, [int(size) for size in given.growth.split(",")])
    spark.stop()


if __name__ == "__main__":
    main()
