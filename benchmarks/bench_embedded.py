"""The embedded namespace: how fast it starts, how much it holds, how much it takes.

The server is a child process, the clients are raw AMQP connections of this process: an SDK would be the limit long
before the server is. Rates depend on the disk (each answer waits for it) and on who else uses the machine; the
server's processor time per message does not, so both are printed, and the rate a whole core would give.

    python benchmarks/bench_embedded.py [--quick] [--only start,sends,receives,fan-out,connections,entities]
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import resource
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
from tests.support.raw import BATCH_FORMAT, open_raw, raw_batch, raw_message

from pairbus.amqp.client import ClientConnection, SenderLink
from pairbus.embedded.broker import Broker
from pairbus.embedded.entities.descriptions import QueueDescription
from pairbus.embedded.errors import Limits
from pairbus.embedded.store import Store
from pairbus.testing import EmbeddedNamespace

BODY = b"x" * 1000
BATCH = 100
MEBIBYTE = 1 << 20
PATIENCE_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Run:
    """What was sent in how long, and what it cost the server."""

    messages: int
    seconds: float
    server_seconds: float

    @property
    def rate(self) -> float:
        return self.messages / self.seconds

    def columns(self) -> tuple[str, ...]:
        share = self.server_seconds / self.seconds
        each = self.server_seconds / max(self.messages, 1)
        return f"{self.rate:,.0f}/s", f"{share:.0%}", f"{each * 1e6:.0f} µs", f"{1 / each:,.0f}/s"


class Server:
    """Times and memory of the server's process."""

    def __init__(self, namespace: EmbeddedNamespace) -> None:
        self.namespace = namespace
        self._process = psutil.Process(namespace.pid)

    def memory(self) -> float:
        """Resident, in MiB."""
        return float(self._process.memory_info().rss) / MEBIBYTE

    def seconds(self) -> float:
        times = self._process.cpu_times()
        return float(times.user + times.system)


@contextmanager
def served(data: Path | None = None) -> Iterator[Server]:
    with EmbeddedNamespace("bench", data=data, process=True) as namespace:
        yield Server(namespace)


def table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    print(f"\n{title}")
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    for row in (head, *rows):
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        print("  " + "  ".join(cells).rstrip())


async def pour(
    server: Server, senders: Sequence[SenderLink], seconds: float, *, batch: int = 1, first: int = 0
) -> tuple[Run, int]:
    """Send from all senders at once, each with its window full, for so long; waits for the last answer."""
    done = 0
    names = itertools.count(first)
    failed: list[BaseException] = []

    def answered(answer: asyncio.Future[None]) -> None:
        nonlocal done
        error = answer.exception()
        if error is not None:
            failed.append(error)
        done += batch

    async def keep_sending(sender: SenderLink) -> None:
        pending: set[asyncio.Future[None]] = set()
        while time.monotonic() < end:
            await sender.room()
            if batch == 1:
                answer = sender.send(raw_message(f"{next(names)}", BODY))
            else:
                raws = [raw_message(f"{next(names)}", BODY) for _ in range(batch)]
                answer = sender.send(raw_batch(raws), message_format=BATCH_FORMAT)
            pending.add(answer)
            answer.add_done_callback(pending.discard)
            answer.add_done_callback(answered)
        if pending:
            await asyncio.wait(pending)

    spent, began = server.seconds(), time.monotonic()
    end = began + seconds
    await asyncio.gather(*map(keep_sending, senders))
    took = time.monotonic() - began
    if failed:
        raise failed[0]
    return Run(done, took, server.seconds() - spent), next(names)


_connections: dict[SenderLink, ClientConnection] = {}


async def open_senders(server: Server, address: str, count: int, window: int) -> list[SenderLink]:
    async def one() -> SenderLink:
        connection = await open_raw(server.namespace.connection_string)
        sender = await connection.open_sender(address, window=window)
        _connections[sender] = connection
        return sender

    return [await one() for _ in range(count)]


async def close_all(senders: Sequence[SenderLink]) -> None:
    for sender in senders:
        _connections.pop(sender).abort()


HEAD = ("", "messages", "server CPU", "CPU each", "a core's worth")


async def bench_start(quick: bool) -> None:
    rows = []
    with tempfile.TemporaryDirectory(prefix="pairbus-") as folder:
        for title in ("new data folder", "the same folder again"):
            began = time.monotonic()
            with served(Path(folder, "data")) as server:
                ready, spent = time.monotonic() - began, server.seconds()
                if title == "new data folder":
                    with server.namespace.admin() as admin:
                        admin.create_queue("orders")
                connection = await open_raw(server.namespace.connection_string)
                sender = await connection.open_sender("orders")
                await sender.send(raw_message("first", BODY))
                answered = time.monotonic() - began
                rows.append(
                    (title, f"{ready:.2f} s", f"{answered:.2f} s", f"{spent:.2f} s", f"{server.memory():.0f} MiB")
                )
                await connection.close()
    table(
        "Start (target: first answer < 1.5 s, idle < 80 MiB)",
        ("", "ready", "first answer", "CPU until ready", "memory"),
        rows,
    )


async def bench_sends(quick: bool) -> None:
    seconds = 1.5 if quick else 5.0
    rows = []
    first = 0
    with served() as server:
        with server.namespace.admin() as admin:
            admin.create_queue("orders", max_size_in_megabytes=5120)
        for connections, batch, window in (
            (1, 1, 1),
            (1, 1, 100),
            (8, 1, 1),
            (8, 1, 100),
            (1, BATCH, 4),
            (8, BATCH, 4),
        ):
            senders = await open_senders(server, "orders", connections, window)
            run, first = await pour(server, senders, seconds, batch=batch, first=first)
            await close_all(senders)
            what = "singles" if batch == 1 else f"batches of {batch}"
            rows.append((f"{connections} connection(s), {what}, {window} in flight each", *run.columns()))
        rows.append((f"(memory afterwards: {server.memory():.0f} MiB)", "", "", "", ""))
    table("Durable sends of 1 KB (targets with 8 connections: singles 3,000/s, batches 20,000/s)", HEAD, rows)


async def drain(server: Server, connections: int, count: int, *, delete: bool) -> Run:
    """Receive so many messages, completing them in groups as they come, or having them deleted."""
    opened = [await open_raw(server.namespace.connection_string) for _ in range(connections)]
    left = count

    async def keep_receiving(connection: ClientConnection) -> None:
        nonlocal left
        receiver = await connection.open_receiver("orders", credit=500, receive_and_delete=delete)
        while True:
            messages = await receiver.receive(100)
            if delete:
                for message in messages:
                    receiver.let_go(message)
            else:
                await receiver.settle(messages)
            left -= len(messages)
            if left <= 0:
                empty.set()

    empty = asyncio.Event()
    spent, began = server.seconds(), time.monotonic()
    tasks = [asyncio.create_task(keep_receiving(connection)) for connection in opened]
    async with asyncio.timeout(PATIENCE_SECONDS):
        await empty.wait()
    took = time.monotonic() - began
    for task in tasks:
        task.cancel()
    for connection in opened:
        connection.abort()
    return Run(count, took, server.seconds() - spent)


async def bench_receives(quick: bool) -> None:
    rows = []
    with served() as server:
        with server.namespace.admin() as admin:
            admin.create_queue("orders", max_size_in_megabytes=5120)
        for connections in (1, 8):
            for delete in (False, True):
                senders = await open_senders(server, "orders", 4, 4)
                poured, _ = await pour(server, senders, 0.5 if quick else 1.5, batch=BATCH)
                await close_all(senders)
                run = await drain(server, connections, poured.messages, delete=delete)
                what = "receive and delete" if delete else "receive and complete"
                rows.append((f"{connections} connection(s), {what}", *run.columns()))
    table("Receives of 1 KB", HEAD, rows)


async def bench_fan_out(quick: bool) -> None:
    rows = []
    with served() as server:
        with server.namespace.admin() as admin:
            for count in (1, 10, 100):
                admin.create_topic(f"fan-{count}", max_size_in_megabytes=5120)
                for number in range(count):
                    admin.create_subscription(f"fan-{count}", f"s{number}")
        for count in (1, 10, 100):
            senders = await open_senders(server, f"fan-{count}", 4, 50)
            run, _ = await pour(server, senders, 1.5 if quick else 4.0)
            await close_all(senders)
            rows.append((f"{count} subscription(s)", *run.columns(), f"{run.rate * count:,.0f}/s"))
    table("Fan-out: one topic, singles of 1 KB", (*HEAD, "copies"), rows)


async def bench_connections(quick: bool) -> None:
    count = 200 if quick else 1000
    with served() as server:
        with server.namespace.admin() as admin:
            admin.create_queue("orders")
        before, began, spent = server.memory(), time.monotonic(), server.seconds()
        senders: list[SenderLink] = []
        for _ in range(count // 50):
            found = await asyncio.gather(*(open_senders(server, "orders", 1, 1) for _ in range(50)))
            senders += [sender for one in found for sender in one]
        opening, cost = time.monotonic() - began, server.seconds() - spent
        grown = server.memory() - before
        run, _ = await pour(server, senders, 1.5 if quick else 5.0)
        table(
            f"{count:,} connections, each with a sender",
            ("", "opened", "server CPU each", "memory each"),
            [("", f"{count / opening:,.0f}/s", f"{cost / count * 1e3:.1f} ms", f"{grown / count * 1024:.0f} KiB")],
        )
        table("  all of them sending, one in flight each", HEAD, [("", *run.columns())])
        await close_all(senders)


async def bench_entities(quick: bool) -> None:
    count = 1_000 if quick else 10_000
    with tempfile.TemporaryDirectory(prefix="pairbus-") as folder:
        data = Path(folder, "data")
        data.mkdir(mode=0o700)
        broker = Broker(Store(data), limits=Limits())
        began = time.monotonic()
        for start in range(0, count, 500):
            await asyncio.gather(*(broker.create(QueueDescription(f"queue-{n}")) for n in range(start, start + 500)))
        making = time.monotonic() - began
        await broker.close()
        began = time.monotonic()
        with served(data) as server:
            ready = time.monotonic() - began
            idle = server.memory()
            connection = await open_raw(server.namespace.connection_string)
            senders = [await connection.open_sender(f"queue-{n * (count // 100)}", window=10) for n in range(100)]
            run, _ = await pour(server, senders, 1.5 if quick else 4.0)
            table(
                f"{count:,} queues",
                ("", "made", "start-up", "idle memory"),
                [("", f"{count / making:,.0f}/s", f"{ready:.2f} s", f"{idle:.0f} MiB")],
            )
            table("  sends to 100 of them over one connection", HEAD, [("", *run.columns())])
            connection.abort()


BENCHES: dict[str, Callable[[bool], Awaitable[None]]] = {
    "start": bench_start,
    "sends": bench_sends,
    "receives": bench_receives,
    "fan-out": bench_fan_out,
    "connections": bench_connections,
    "entities": bench_entities,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="shorter runs, fewer connections and entities")
    parser.add_argument("--only", default=",".join(BENCHES), help=f"some of {','.join(BENCHES)}")
    options = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    for name in options.only.split(","):
        if name not in BENCHES:
            parser.error(f"'{name}' is none of {', '.join(BENCHES)}")
        asyncio.run(_run(BENCHES[name], options.quick))


async def _run(bench: Callable[[bool], Awaitable[None]], quick: bool) -> None:
    await bench(quick)


if __name__ == "__main__":
    main()
