"""A paired client on two embedded namespaces. Sync and aio have the same blocking interface.

    with paired(pair, "aio", failover_interval=0) as client:
        sender = client.get_queue_sender("orders")
        sender.send_messages(ServiceBusMessage("hello"))

The aio client runs on an event loop in its own thread; every call waits for its result. The SDK's own retries are off
by default, so that a fault shows at once.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, cast

import aiohttp
from azure.core.credentials import AccessToken
from azure.servicebus import ServiceBusClient, TransportType
from azure.servicebus._base_handler import ServiceBusSharedKeyCredential
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
"""How clients reach their namespaces: plain AMQP, AMQP over TLS with a TokenCredential, or web sockets over TLS."""

_default_wire: ContextVar[Wire] = ContextVar("wire", default="plain")


@contextmanager
def default_wire(wire: Wire) -> Iterator[None]:
    """Let `paired` connect in this way meanwhile."""
    before = _default_wire.set(wire)
    try:
        yield
    finally:
        _default_wire.reset(before)


CALL_TIMEOUT_SECONDS = 120.0
Ends = list[dict[str, Any]]
_kept_loops: list[asyncio.AbstractEventLoop] = []


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
    wire: Wire | None = None,
    retry_total: int = 0,
    primary_port: int | None = None,
    **options: Any,
) -> Iterator[Any]:
    """Open a paired client with these pairing options, and close it at the end.

    `primary_port` is another port on this machine where the client looks for the primary.
    """
    wire = wire or _default_wire.get()
    options.setdefault("primary_name", pair.primary.name)
    options.setdefault("backlog_queue_count", 3)
    ends = [
        client_arguments(namespace, shell, wire, port) | {"retry_total": retry_total}
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
            if wire == "websockets":
                asyncio.run_coroutine_threadsafe(_settle(), loop).result(CALL_TIMEOUT_SECONDS)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        if wire == "websockets":
            _kept_loops.append(loop)  # what the SDK leaves of a broken web socket complains if its loop is closed
        else:
            loop.close()


async def _settle() -> None:
    """Close the sessions of web sockets that the SDK left open when they broke."""
    loop = asyncio.get_running_loop()
    for one in gc.get_objects():
        if isinstance(one, aiohttp.ClientSession) and not one.closed and one._loop is loop:
            await one.close()


def client_arguments(namespace: EmbeddedNamespace, shell: Shell, wire: Wire, port: int | None = None) -> dict[str, Any]:
    """The arguments of a client that reaches the namespace in this way."""
    port = port or namespace.port
    if wire == "plain":
        return {"conn_str": namespace.connection_string.replace(f":{namespace.port}", f":{port}")}
    host = f"{namespace.name}.servicebus.windows.net"
    arguments = {"custom_endpoint_address": f"https://localhost:{port}", "connection_verify": namespace.ca_file}
    parts = dict(part.partition("=")[::2] for part in namespace.connection_string.split(";"))
    name, key = parts["SharedAccessKeyName"], parts["SharedAccessKey"]
    if wire == "tls":
        tokens = Tokens(host, name, key) if shell == "sync" else AioTokens(host, name, key)
        direct = {"transport_type": TransportType.Amqp}  # for an endpoint of its own, the SDK prefers web sockets
        return arguments | direct | {"fully_qualified_namespace": host, "credential": tokens}
    text = f"Endpoint=sb://{host}/;SharedAccessKeyName={name};SharedAccessKey={key}"
    return arguments | {"conn_str": text, "transport_type": TransportType.AmqpOverWebsocket}


class Tokens:
    """A TokenCredential: it gets a scope that names no namespace, and makes tokens for one namespace."""

    def __init__(self, host: str, key_name: str, key: str) -> None:
        self._resource = f"sb://{host}/"
        self._signer = ServiceBusSharedKeyCredential(key_name, key)

    def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        assert scopes == ("https://servicebus.azure.net//.default",)
        return self._signer.get_token(self._resource)


class AioTokens(Tokens):
    """The same for asyncio; as those of azure-identity, it belongs to the first loop that uses it."""

    _loop: asyncio.AbstractEventLoop | None = None

    async def get_token(self, *scopes: str, **_: Any) -> AccessToken:  # type: ignore[override]
        self._loop = self._loop or asyncio.get_running_loop()
        if self._loop is not asyncio.get_running_loop():
            raise RuntimeError("attached to a different loop")
        return super().get_token(*scopes)

    async def close(self) -> None:
        return None


def _client(kind: Any, arguments: dict[str, Any]) -> Any:
    return kind.from_connection_string(**arguments) if "conn_str" in arguments else kind(**arguments)


def _sync(pair: EmbeddedPair, ends: Ends, retry_total: int, options: dict[str, Any]) -> pairbus.PairedServiceBusClient:
    primary, secondary = (_client(ServiceBusClient, end) for end in ends)
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
    primary, secondary = (_client(AioServiceBusClient, end) for end in ends)
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


def in_background(call: Callable[[], Any]) -> tuple[threading.Thread, list[BaseException | None]]:
    """Make the call on a thread; the list gets its error, or None."""
    outcome: list[BaseException | None] = []

    def run() -> None:
        try:
            call()
            outcome.append(None)
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, outcome


def is_sending(sender: Any) -> bool:
    """Whether a send of this paired sender to the primary is under way."""
    target = getattr(sender, "target", sender)
    return bool(target._primary._turn._taken)
