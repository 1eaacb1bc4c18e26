"""A paired client on two embedded namespaces. Sync and aio have the same blocking interface.

    with paired(pair, "aio", failover_interval=0) as client:
        sender = client.get_queue_sender("orders")
        sender.send_messages(ServiceBusMessage("hello"))

The aio client runs on an event loop in its own thread; every call waits for its result. The SDK's own retries are off
by default, so that a fault shows at once.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Literal, cast

from azure.servicebus import ServiceBusClient, TransportType
from azure.servicebus.aio import ServiceBusClient as AioServiceBusClient
from azure.servicebus.aio.management import (
    ServiceBusAdministrationClient as AioServiceBusAdministrationClient,
)
from azure.servicebus.management import ServiceBusAdministrationClient

import pairbus
import pairbus.aio
from pairbus.amqp.codec import decode
from pairbus.amqp.message import Sections
from pairbus.pairing.options import SendAvailabilityPairedNamespaceOptions
from pairbus.testing.namespace import EmbeddedNamespace, EmbeddedPair

Shell = Literal["sync", "aio"]
Wire = Literal["plain", "tls", "websockets"]
"""How the clients reach their namespaces; Azure offers only TLS, and web sockets over TLS."""
CALL_TIMEOUT_SECONDS = 120.0
Ends = list[dict[str, Any]]


class Blocking:
    """An object on another thread's event loop; its calls wait for their results."""

    def __init__(self, target: Any, loop: asyncio.AbstractEventLoop) -> None:
        self.target = target
        self.loop = loop

    def __repr__(self) -> str:
        return f"Blocking({self.target!r})"

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.target, name)
        if not callable(found):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            return self.submit(name, *args, **kwargs).result(CALL_TIMEOUT_SECONDS)

        return call

    def submit(self, name: str, *args: Any, **kwargs: Any) -> Future[Any]:
        """Start a call; cancelling the future cancels the call on the loop."""

        async def run() -> Any:
            result = getattr(self.target, name)(*args, **kwargs)
            if inspect.isawaitable(result):
                result = await result
            return Blocking(result, self.loop) if isinstance(result, pairbus.aio.PairedServiceBusSender) else result

        return asyncio.run_coroutine_threadsafe(run(), self.loop)

    def __enter__(self) -> Any:
        entered = self.submit("__aenter__").result(CALL_TIMEOUT_SECONDS)
        return entered if isinstance(entered, Blocking) else self

    def __exit__(self, *details: object) -> None:
        self.submit("__aexit__", *details).result(CALL_TIMEOUT_SECONDS)


@contextmanager
def paired(
    pair: EmbeddedPair,
    shell: Shell = "sync",
    *,
    wire: Wire = "plain",
    retry_total: int = 0,
    primary_port: int | None = None,
    **options: Any,
) -> Iterator[Any]:
    """Open a paired client with these pairing options, and close it at the end.

    `primary_port` is another port on this machine where the client looks for the primary.
    """
    options.setdefault("primary_name", pair.primary.name)
    options.setdefault("backlog_queue_count", 3)
    ends = [
        client_arguments(namespace, wire, port) | {"retry_total": retry_total}
        for namespace, port in ((pair.primary, primary_port), (pair.secondary, None))
    ]
    if shell == "sync":
        client = _sync(pair, ends, retry_total, options)
        try:
            yield client
        finally:
            client.close()
        return
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="paired aio client", daemon=True)
    thread.start()
    try:
        made = asyncio.run_coroutine_threadsafe(_aio(pair, ends, retry_total, options), loop)
        blocking = Blocking(made.result(CALL_TIMEOUT_SECONDS), loop)
        try:
            yield blocking
        finally:
            blocking.close()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def client_arguments(namespace: EmbeddedNamespace, wire: Wire, port: int | None = None) -> dict[str, Any]:
    """The arguments of `from_connection_string` for a client that reaches the namespace in this way."""
    port = port or namespace.port
    text = namespace.connection_string.replace(f":{namespace.port}", f":{port}")
    if wire == "plain":
        return {"conn_str": text}
    key = text.partition(";")[2].replace("UseDevelopmentEmulator=true", "")
    arguments = {
        "conn_str": f"Endpoint=sb://{namespace.name}.servicebus.windows.net/;{key}",
        "custom_endpoint_address": f"https://localhost:{port}",
        "connection_verify": namespace.ca_file,
    }
    return arguments if wire == "tls" else arguments | {"transport_type": TransportType.AmqpOverWebsocket}


def _sync(pair: EmbeddedPair, ends: Ends, retry_total: int, options: dict[str, Any]) -> pairbus.PairedServiceBusClient:
    primary, secondary = (ServiceBusClient.from_connection_string(**end) for end in ends)
    admin = ServiceBusAdministrationClient.from_connection_string(
        pair.secondary.connection_string, connection_verify=pair.secondary.ca_file, retry_total=retry_total
    )
    try:
        return pairbus.pair_namespace(primary, SendAvailabilityPairedNamespaceOptions(admin, secondary, **options))
    except BaseException:
        for one in (admin, secondary, primary):
            one.close()
        raise


async def _aio(
    pair: EmbeddedPair, ends: Ends, retry_total: int, options: dict[str, Any]
) -> pairbus.aio.PairedServiceBusClient:
    primary, secondary = (AioServiceBusClient.from_connection_string(**end) for end in ends)
    admin = AioServiceBusAdministrationClient.from_connection_string(
        pair.secondary.connection_string, connection_verify=pair.secondary.ca_file, retry_total=retry_total
    )
    try:
        return await pairbus.aio.pair_namespace(
            primary, SendAvailabilityPairedNamespaceOptions(admin, secondary, **options)
        )
    except BaseException:
        for one in (admin, secondary, primary):
            await one.close()
        raise


def raws(namespace: EmbeddedNamespace, path: str) -> list[bytes]:
    """The encoded messages of an entity of a namespace in this process, in order; nothing is consumed."""
    host = cast(Any, namespace)._host
    server, loop = host._server, host._loop

    async def look() -> list[bytes]:
        found: list[bytes] = server.broker.peek(path, 0, 100_000, None)
        return found

    return asyncio.run_coroutine_threadsafe(look(), loop).result(CALL_TIMEOUT_SECONDS)


def bodies(namespace: EmbeddedNamespace, path: str) -> list[str]:
    """The data bodies of an entity's messages, as text, in order; nothing is consumed."""
    found = []
    for raw in raws(namespace, path):
        section = Sections.split(raw).body
        content, _ = decode(section, 3)
        found.append(content.decode() if isinstance(content, bytes) else str(content))
    return found


def backlog_raws(client: Any, pair: EmbeddedPair) -> list[bytes]:
    """All messages in all backlog queues of a paired client, queue after queue."""
    queues = client.backlog_queues
    return [raw for queue in sorted({*queues.found, *queues.created}) for raw in raws(pair.secondary, queue)]


def backlog_bodies(client: Any, pair: EmbeddedPair) -> list[str]:
    """The bodies of all messages in all backlog queues of a paired client, queue after queue."""
    queues = client.backlog_queues
    return [body for queue in sorted({*queues.found, *queues.created}) for body in bodies(pair.secondary, queue)]
