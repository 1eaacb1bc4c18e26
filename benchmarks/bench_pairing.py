"""Paired sends against bare SDK sends, as ratios of one run.

Targets: healthy path at least 0.97 of the bare sender's rate (singles, batches of 100, sync and aio); failed-over path
at least 0.90 of a bare send to a queue of the secondary. The two sides take turns in rounds of a fraction of a second,
and each goes first as often as the other; the ratio is the median of the ratios of the rounds, so that a machine that
slows down slows both. The verdict is by the clock. Beside it stands the same ratio by the CPU time of this process:
what pairing adds, whatever the server and the network take.

    python benchmarks/bench_pairing.py [--seconds 20]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from azure.servicebus import ServiceBusMessage

import pairbus
import pairbus.aio
from pairbus.testing.namespace import EmbeddedPair, embedded_pair

BODY = b"x" * 1024
ROUND_MESSAGES = {"single": 50, "batch": 500}
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


class Race:
    """The rounds of both sides, as they are run."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until = 0.0
        self._rounds: tuple[list[Speed], list[Speed]] = ([], [])

    def turns(self) -> Iterator[int]:
        """Whose turn it is: 0 for the bare side, 1 for the paired one. The first two rounds only warm up."""
        yield from (0, 1)
        for rounds in self._rounds:
            rounds.clear()
        self._until = time.perf_counter() + self._seconds
        first = 0
        while time.perf_counter() < self._until:
            yield first
            yield 1 - first
            first = 1 - first

    def note(self, side: int, speed: Speed) -> None:
        self._rounds[side].append(speed)

    def rate(self, side: int) -> float:
        return statistics.median(one[0] for one in self._rounds[side])

    def ratio(self, *, by_cpu: bool) -> float:
        bare, paired = self._rounds
        return statistics.median(two[by_cpu] / one[by_cpu] for one, two in zip(bare, paired, strict=True))


def report(shell: str, path: str, kind: str, race: Race) -> None:
    ratio = race.ratio(by_cpu=False)
    verdict = "ok" if ratio >= TARGETS[path] else f"below {TARGETS[path]:.2f}"
    print(
        f"{shell:5} {path:12} {kind:7} bare {race.rate(0):7.0f}/s  paired {race.rate(1):7.0f}/s  "
        f"ratio {ratio:5.3f}  by CPU {race.ratio(by_cpu=True):5.3f}  {verdict}",
        flush=True,
    )


def sync_bench(pair: EmbeddedPair, options: dict[str, Any], seconds: float) -> None:
    client = pairbus.PairedServiceBusClient.from_connection_strings(
        pair.primary.connection_string, pair.secondary.connection_string, **options
    )
    sender = client.get_queue_sender("paired")
    for path, bare_client in (("healthy", client.primary), ("failed over", client.secondary)):
        sides = (bare_client.get_queue_sender("bare"), sender)
        if path == "failed over":
            client.fail_over("paired")
        for kind in ROUND_MESSAGES:
            race = Race(seconds)
            for side in race.turns():
                race.note(side, sync_round(sides[side], kind))
            report("sync", path, kind, race)
    client.close()


async def aio_bench(pair: EmbeddedPair, options: dict[str, Any], seconds: float) -> None:
    client = await pairbus.aio.PairedServiceBusClient.from_connection_strings(
        pair.primary.connection_string, pair.secondary.connection_string, **options
    )
    sender = client.get_queue_sender("paired")
    for path, bare_client in (("healthy", client.primary), ("failed over", client.secondary)):
        sides = (bare_client.get_queue_sender("bare"), sender)
        if path == "failed over":
            client.fail_over("paired")
        for kind in ROUND_MESSAGES:
            race = Race(seconds)
            for side in race.turns():
                race.note(side, await aio_round(sides[side], kind))
            report("aio", path, kind, race)
    await client.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=20, help="per line of the report")
    parser.add_argument("--ledger", action="store_true", help="record every operation in a ledger")
    chosen = parser.parse_args()
    with TemporaryDirectory() as folder, embedded_pair(process=True) as pair:
        for namespace in (pair.primary, pair.secondary):
            with namespace.admin() as admin:
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
