"""The SDK's aio clients behind blocking calls, so that one test covers both the sync and the aio client.

    with sdk_client(namespace, "aio") as client:
        client.get_queue_sender("orders").send_messages(ServiceBusMessage("hello"))

Rules:
- Results have the types of the sync client. All calls of the aio client run on one event loop, in its own thread.
- Senders and receivers need no `with`: they are closed with the client, all at the same time (the SDK takes about a
  second for each).
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Literal, cast

from azure.servicebus import ServiceBusClient
from azure.servicebus.aio import ServiceBusClient as AioServiceBusClient

from pairbus.testing.namespace import EmbeddedNamespace

Face = Literal["sync", "aio"]
FACES: tuple[Face, ...] = ("sync", "aio")
CALL_TIMEOUT_SECONDS = 120.0
MOST_CLOSING_AT_ONCE = 16

Run = Callable[[Callable[[], Any]], Any]


@contextmanager
def sdk_client(namespace: EmbeddedNamespace, face: Face, **options: Any) -> Iterator[ServiceBusClient]:
    """Open a client of the namespace with the SDK's options; `connection_string` replaces the namespace's own."""
    text = options.pop("connection_string", namespace.connection_string)
    opened: list[_Facade] = []
    with _runner(face) as run:
        kind = ServiceBusClient if face == "sync" else AioServiceBusClient
        client = _Facade(run(lambda: kind.from_connection_string(text, **options)), run, opened)
        try:
            yield cast(ServiceBusClient, client)
        finally:
            with ThreadPoolExecutor(MOST_CLOSING_AT_ONCE) as closers:
                list(closers.map(lambda one: one.close(), opened))
            client.close()


@contextmanager
def _runner(face: Face) -> Iterator[Run]:
    if face == "sync":
        yield lambda call: call()
        return
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="aio client", daemon=True)
    thread.start()

    def run(call: Callable[[], Any]) -> Any:
        async def on_loop() -> Any:
            answer = call()
            return await answer if inspect.isawaitable(answer) else answer

        return asyncio.run_coroutine_threadsafe(on_loop(), loop).result(CALL_TIMEOUT_SECONDS)

    try:
        yield run
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(CALL_TIMEOUT_SECONDS)
        loop.close()


class _Facade:
    """An object of the SDK whose calls go through `run`. Its creations that must be closed go to `opened`."""

    def __init__(self, inner: Any, run: Run, opened: list[_Facade]) -> None:
        self._inner = inner
        self._run = run
        self._opened = opened

    def __repr__(self) -> str:
        return repr(self._inner)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found):
            return self._shown(found)

        def call(*positional: Any, **named: Any) -> Any:
            return self._shown(self._run(lambda: found(*map(_bare, positional), **named)))

        return call

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            super().__setattr__(name, value)
        else:
            setattr(self._inner, name, value)

    def __enter__(self) -> _Facade:
        enter = getattr(self._inner, "__enter__", None) or self._inner.__aenter__
        self._run(enter)
        return self

    def __exit__(self, *_reason: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Any]:
        if hasattr(self._inner, "__iter__"):
            yield from self._inner
            return
        while True:
            try:
                yield self._run(self._inner.__anext__)
            except StopAsyncIteration:
                return

    def _shown(self, value: Any) -> Any:
        kind = type(value).__name__
        if kind not in ("ServiceBusSender", "ServiceBusReceiver", "ServiceBusSession"):
            return value
        facade = _Facade(value, self._run, self._opened)
        if kind != "ServiceBusSession":
            self._opened.append(facade)
        return facade


def _bare(value: Any) -> Any:
    return value._inner if isinstance(value, _Facade) else value
