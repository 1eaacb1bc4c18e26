"""Paired sends against bare SDK sends, as ratios of one run.

Targets: healthy path at least 0.97 of the bare sender's rate (singles, batches of 100, sync and aio);
failed-over path at least 0.90 of a bare send to a queue. The two sides take turns in short rounds, so that a
machine that slows down slows both; the ratio is that of the medians. On a busy machine the rates mean little:
the second ratio compares the CPU time this process needs for a message, which is what pairing adds to.

    python benchmarks/bench_pairing.py [--seconds 20]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient as AioServiceBusClient

import pairbus
import pairbus.aio
from pairbus.testing.namespace import EmbeddedPair, embedded_pair

BODY = b"x" * 1024
ROUND_MESSAGES = {"single": 60, "batch": 1000}
TARGETS = {"healthy": 0.97, "failed over": 0.90}


def messages(kind: str) -> list[Any]:
    count = ROUND_MESSAGES[kind]
    if kind == "single":
        return [message() for _ in range(count)]
    return [[message() for _ in range(100)] for _ in range(count // 100)]


def message() -> ServiceBusMessage:
    """With an id, as the paired sender would give it one and both sides are to send the same."""
    return ServiceBusMessage(BODY, message_id=str(uuid.uuid4()))


Speed = tuple[float, float]
"""Messages a second, by the clock and by the CPU time of this process."""


def speed(kind: str, started: float, cpu_started: float) -> Speed:
    count = ROUND_MESSAGES[kind]
    return count / (time.perf_counter() - started), count / (time.process_time() - cpu_started)


def sync_round(sender: Any, kind: str) -> Speed:
    work = messages(kind)
    started, cpu_started = time.perf_counter(), time.process_time()
    for message in work:
        sender.send_messages(message)
    return speed(kind, started, cpu_started)


async def aio_round(sender: Any, kind: str) -> Speed:
    work = messages(kind)
    started, cpu_started = time.perf_counter(), time.process_time()
    for message in work:
        await sender.send_messages(message)
    return speed(kind, started, cpu_started)


def medians(speeds: list[Speed]) -> Speed:
    return statistics.median(one[0] for one in speeds), statistics.median(one[1] for one in speeds)


def alternate(seconds: float, first: Callable[[], Speed], second: Callable[[], Speed]) -> tuple[Speed, Speed]:
    first(), second()
    rates: tuple[list[Speed], list[Speed]] = ([], [])
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        rates[0].append(first())
        rates[1].append(second())
    return medians(rates[0]), medians(rates[1])


async def alternate_aio(
    seconds: float, first: Callable[[], Awaitable[Speed]], second: Callable[[], Awaitable[Speed]]
) -> tuple[Speed, Speed]:
    await first()
    await second()
    rates: tuple[list[Speed], list[Speed]] = ([], [])
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        rates[0].append(await first())
        rates[1].append(await second())
    return medians(rates[0]), medians(rates[1])


def report(shell: str, path: str, kind: str, bare: Speed, paired: Speed) -> None:
    ratio, cpu_ratio = paired[0] / bare[0], paired[1] / bare[1]
    verdict = "ok" if max(ratio, cpu_ratio) >= TARGETS[path] else f"below {TARGETS[path]:.2f}"
    print(
        f"{shell:5} {path:12} {kind:7} bare {bare[0]:7.0f}/s  paired {paired[0]:7.0f}/s  "
        f"ratio {ratio:5.2f}  by CPU {cpu_ratio:5.2f}  {verdict}",
        flush=True,
    )


def sync_bench(pair: EmbeddedPair, options: dict[str, Any], seconds: float) -> None:
    bare_client = ServiceBusClient.from_connection_string(pair.primary.connection_string)
    bare = bare_client.get_queue_sender("bare")
    client = pairbus.PairedServiceBusClient.from_connection_strings(
        pair.primary.connection_string, pair.secondary.connection_string, **options
    )
    sender = client.get_queue_sender("paired")
    for path in TARGETS:
        if path == "failed over":
            client.fail_over("paired")
        for kind in ROUND_MESSAGES:

            def bare_round(kind: str = kind) -> Speed:
                return sync_round(bare, kind)

            def paired_round(kind: str = kind) -> Speed:
                return sync_round(sender, kind)

            report("sync", path, kind, *alternate(seconds, bare_round, paired_round))
    bare_client.close()
    client.close()


async def aio_bench(pair: EmbeddedPair, options: dict[str, Any], seconds: float) -> None:
    bare_client = AioServiceBusClient.from_connection_string(pair.primary.connection_string)
    bare = bare_client.get_queue_sender("bare")
    client = await pairbus.aio.PairedServiceBusClient.from_connection_strings(
        pair.primary.connection_string, pair.secondary.connection_string, **options
    )
    sender = client.get_queue_sender("paired")
    for path in TARGETS:
        if path == "failed over":
            client.fail_over("paired")
        for kind in ROUND_MESSAGES:

            async def bare_round(kind: str = kind) -> Speed:
                return await aio_round(bare, kind)

            async def paired_round(kind: str = kind) -> Speed:
                return await aio_round(sender, kind)

            report("aio", path, kind, *(await alternate_aio(seconds, bare_round, paired_round)))
    await bare_client.close()
    await client.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=20, help="per line of the report")
    parser.add_argument("--ledger", action="store_true", help="record every operation in a ledger")
    chosen = parser.parse_args()
    with TemporaryDirectory() as folder, embedded_pair(process=True) as pair:
        with pair.primary.admin() as admin:
            for name in ("bare", "paired"):
                admin.create_queue(name, max_size_in_megabytes=5120)
        options: dict[str, Any] = {
            "connection_verify": pair.secondary.ca_file,
            "primary_name": "contoso",
            "ping_primary_interval": 1800,
            "ledger": Path(folder) / "ledger" if chosen.ledger else None,
        }
        sync_bench(pair, options, chosen.seconds)
        asyncio.run(aio_bench(pair, options, chosen.seconds))


if __name__ == "__main__":
    main()
