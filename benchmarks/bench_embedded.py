"""The embedded namespace: start, idle memory, and durable sends a second with the server's share of a core.

The server runs in a process of its own. Rates come from the project's own AMQP client, which is light enough not to
be the limit, and from the SDK, which is what applications see. A single send waits for its acknowledgement before
the next one; a batch of 100 is one send.

    .venv/bin/python benchmarks/bench_embedded.py [--seconds 3]
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable

import psutil
from azure.servicebus import ServiceBusMessage

from pairbus.amqp.client import ClientConnection, Sender
from pairbus.amqp.encoding import encode
from pairbus.embedded.security import sign
from pairbus.testing import EmbeddedNamespace

QUEUE = "load"
BODY = b"x" * 1024
BATCH = 100
BATCH_FORMAT = 0x80013700
MIB = 1024 * 1024


def data_section(content: bytes) -> bytes:
    return b"\x00\x53\x75" + encode(content)


SINGLE = data_section(BODY)
BATCHED = data_section(SINGLE) * BATCH


async def opened_sender(namespace: EmbeddedNamespace) -> tuple[ClientConnection, Sender]:
    parts = dict(part.partition("=")[::2] for part in namespace.connection_string.split(";"))
    connection = await ClientConnection.open("127.0.0.1", namespace.port)
    audience = f"sb://127.0.0.1:{namespace.port}/{QUEUE}"
    expires = int(time.time()) + 3600
    token = sign(audience, parts["SharedAccessKeyName"], parts["SharedAccessKey"], expires)
    await connection.put_token(token, audience)
    return connection, await connection.open_sender(QUEUE)


async def send_for(sender: Sender, seconds: float, batch: int) -> int:
    raw, message_format = (BATCHED, BATCH_FORMAT) if batch > 1 else (SINGLE, 0)
    end = time.perf_counter() + seconds
    sent = 0
    while time.perf_counter() < end:
        await sender.room()
        await sender.send(raw, message_format=message_format)
        sent += batch
    return sent


async def engine_rate(namespace: EmbeddedNamespace, connections: int, batch: int, seconds: float) -> float:
    opened = [await opened_sender(namespace) for _ in range(connections)]
    started = time.perf_counter()
    sent = sum(await asyncio.gather(*(send_for(sender, seconds, batch) for _, sender in opened)))
    took = time.perf_counter() - started
    for connection, _ in opened:
        await connection.close()
    return sent / took


def sdk_rate(namespace: EmbeddedNamespace, batch: int, seconds: float) -> float:
    with namespace.client() as client, client.get_queue_sender(QUEUE) as sender:
        sender.send_messages(ServiceBusMessage(BODY))
        started = time.perf_counter()
        sent = 0
        while time.perf_counter() - started < seconds:
            if batch == 1:
                sender.send_messages(ServiceBusMessage(BODY))
            else:
                sender.send_messages([ServiceBusMessage(BODY) for _ in range(batch)])
            sent += batch
        return sent / (time.perf_counter() - started)


def show(label: str, namespace: EmbeddedNamespace, measure: Callable[[], float]) -> None:
    process = psutil.Process(namespace.pid)
    before, started = process.cpu_times(), time.perf_counter()
    rate = measure()
    after, took = process.cpu_times(), time.perf_counter() - started
    share = (after.user + after.system - before.user - before.system) / took
    print(f"{label:<46} {rate:>9,.0f} messages/s   server {share:>4.0%} of a core")


def main() -> None:
    parser = argparse.ArgumentParser(description="Rates of the embedded namespace.")
    parser.add_argument("--seconds", type=float, default=3.0, help="per measurement")
    seconds: float = parser.parse_args().seconds

    started = time.perf_counter()
    with EmbeddedNamespace("bench", process=True) as namespace:
        ready = time.perf_counter() - started
        idle = psutil.Process(namespace.pid).memory_info().rss / MIB
        with namespace.admin() as admin:
            admin.create_queue(QUEUE, max_size_in_megabytes=5120)

        async def first_send() -> None:
            connection, sender = await opened_sender(namespace)
            await sender.send(SINGLE)
            await connection.close()

        asyncio.run(first_send())
        answered = time.perf_counter() - started
        print(f"{'start to ready':<46} {ready:>9.2f} s   (target: first send answered within 1.5 s)")
        print(f"{'start to a queue and its first send answered':<46} {answered:>9.2f} s")
        print(f"{'idle memory':<46} {idle:>9.0f} MiB (target: below 80)")
        for connections in (1, 8):
            for batch in (1, BATCH):
                label = f"engine, {connections} connection(s), {'singles' if batch == 1 else f'batches of {batch}'}"

                def measure(connections: int = connections, batch: int = batch) -> float:
                    return asyncio.run(engine_rate(namespace, connections, batch, seconds))

                show(label, namespace, measure)
        show("SDK, 1 connection, singles", namespace, lambda: sdk_rate(namespace, 1, seconds))
        show(f"SDK, 1 connection, batches of {BATCH}", namespace, lambda: sdk_rate(namespace, BATCH, seconds))


if __name__ == "__main__":
    main()
