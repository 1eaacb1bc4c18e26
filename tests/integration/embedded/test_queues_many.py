"""Many of everything: what other local namespaces limit to a handful."""

from __future__ import annotations

import asyncio
import os
import resource
from itertools import islice
from pathlib import Path

import pytest
from tests.support.raw import open_raw, raw_message

from pairbus.embedded.broker import Broker
from pairbus.embedded.entities.descriptions import QueueDescription
from pairbus.embedded.errors import QuotaExceededError
from pairbus.embedded.server import EmbeddedServer
from pairbus.embedded.store import Store
from pairbus.testing import EmbeddedNamespace

CONNECTIONS = 1_000
ENTITIES = 10_000
NAMESPACES = 100
AT_ONCE = 50


@pytest.fixture(autouse=True)
def _enough_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2 * CONNECTIONS:
        why = f"a process may have {hard} files open here: too few for {CONNECTIONS} connections"
        if os.environ.get("CI") == "true":
            pytest.fail(why)
        pytest.skip(why)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * CONNECTIONS), hard))


def test_a_thousand_connections_send_at_the_same_time() -> None:
    async def run(connection_string: str) -> None:
        opened = []
        senders = []
        for _ in range(CONNECTIONS // AT_ONCE):
            connections = await asyncio.gather(*(open_raw(connection_string) for _ in range(AT_ONCE)))
            opened += connections
            senders += await asyncio.gather(*(connection.open_sender("orders") for connection in connections))
        await asyncio.gather(*(sender.send(raw_message(f"{number}")) for number, sender in enumerate(senders)))
        for connection in opened:
            connection.abort()

    with EmbeddedNamespace("contoso", process=True) as namespace, namespace.admin() as admin:
        admin.create_queue("orders")
        asyncio.run(run(namespace.connection_string))
        assert admin.get_queue_runtime_properties("orders").active_message_count == CONNECTIONS


def test_ten_thousand_queues_and_not_one_more(tmp_path: Path) -> None:
    async def fill() -> None:
        broker = Broker(Store(tmp_path))
        for start in range(0, ENTITIES, 500):
            await asyncio.gather(*(broker.create(QueueDescription(f"queue-{n:05}")) for n in range(start, start + 500)))
        with pytest.raises(QuotaExceededError):
            await broker.create(QueueDescription("one-too-many"))
        await broker.close()

    async def use(connection_string: str) -> None:
        connection = await open_raw(connection_string)
        for number in range(0, ENTITIES, ENTITIES // 20):
            sender = await connection.open_sender(f"queue-{number:05}")
            await sender.send(raw_message("here"))
        await connection.close()

    asyncio.run(fill())
    with EmbeddedNamespace("contoso", data=tmp_path) as namespace, namespace.admin() as admin:
        asyncio.run(use(namespace.connection_string))
        names = [queue.name for queue in islice(admin.list_queues(), 250)]
        assert names == [f"queue-{number:05}" for number in range(250)]
        assert admin.get_queue_runtime_properties("queue-09500").active_message_count == 1


def test_a_hundred_namespaces_in_one_process(tmp_path: Path) -> None:
    async def run() -> None:
        servers = [EmbeddedServer(f"namespace-{number}", tmp_path / str(number)) for number in range(NAMESPACES)]
        try:
            for server in servers:
                await server.start()
                await server.broker.create(QueueDescription("orders"))
            assert len({server.port for server in servers}) == NAMESPACES
            connections = await asyncio.gather(*(open_raw(server.connection_string) for server in servers))
            senders = await asyncio.gather(*(connection.open_sender("orders") for connection in connections))
            await asyncio.gather(*(sender.send(raw_message("hello")) for sender in senders))
            assert {server.broker.counts("orders").active for server in servers} == {1}
            for connection in connections:
                connection.abort()
        finally:
            for server in servers:
                await server.stop()

    asyncio.run(run())
