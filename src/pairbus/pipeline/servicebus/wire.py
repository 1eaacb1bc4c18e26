"""A namespace as the connector talks to it: raw AMQP on a thread of its own, called from the synchronous code of
Spark.

Rules:
- One `Wire` per process and namespace, kept for the next task of the same Python worker; it reconnects by itself.
- A call that fails because the connection broke, or because the service is busy, is tried again until
  `RETRY_SECONDS` are over. What is refused for good (no such entity, no right) is raised at once as `WireError`.
- The loop's thread runs all the time, so that a connection stays alive between calls.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from pairbus.amqp.client import AmqpClientError, ClientConnection, LinkLostError, RefusedError, TokenRefusedError
from pairbus.amqp.conditions import CONNECTION_FORCED, INVALID_FIELD, NOT_FOUND, Blame, meaning
from pairbus.amqp.engine import EngineLimits
from pairbus.amqp.outcomes import AmqpError
from pairbus.amqp.types import Int
from pairbus.pipeline.servicebus.options import Access
from pairbus.syphon.namespaces import Namespace, TokenSource, is_untrusted

RETRY_SECONDS = 60.0
CALL_SECONDS = 60.0
PEEK_AT_MOST = 1_000
_PAUSES = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_TOKEN_MARGIN_SECONDS = 120
_LIMITS = EngineLimits(max_message=128 << 20)

T = TypeVar("T")


class WireError(Exception):
    """The namespace refused something for good, or could not be used for too long."""

    def __init__(self, condition: str, text: str) -> None:
        super().__init__(condition, text)
        self.condition = condition

    @property
    def is_refusal(self) -> bool:
        """Of this request, or of one message in it: another may be taken."""
        known = meaning(self.condition)
        return known.is_final and known.blame in (Blame.MESSAGE, Blame.REQUEST)

    def __str__(self) -> str:
        return str(self.args[1])

    @property
    def is_missing(self) -> bool:
        """The entity does not exist."""
        return self.condition == NOT_FOUND


class Wire:
    """A connection to one namespace, made when it is first needed."""

    def __init__(self, access: Access) -> None:
        verify = access.connection_verify
        if verify is not None and not Path(verify).is_file():
            raise WireError(
                INVALID_FIELD,
                f"connectionVerify names {verify!r}, which is no file on {socket.gethostname()}: give the file of the "
                "certificate's authority, on the driver and on every executor.",
            )
        self._namespace = Namespace.parse(access.connection_string(), connection_verify=verify)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="servicebus wire", daemon=True)
        self._thread.start()
        self._connection: ClientConnection | None = None
        self._tokens: TokenSource | None = None
        self._proven: dict[str, float] = {}
        self._connecting = asyncio.Lock()

    @property
    def namespace(self) -> Namespace:
        return self._namespace

    @property
    def host(self) -> str:
        return self._namespace.host

    # --- from the synchronous side ------------------------------------------------------------------------

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run it on the wire's loop and wait."""
        return self.begin(work).result()

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run it on the wire's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        async def end() -> None:
            if self._connection is not None:
                await self._connection.close()

        self.begin(end()).result(CALL_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # --- on the loop --------------------------------------------------------------------------------------

    async def connection(self, entity: str) -> ClientConnection:
        """An open connection on which the right to use the entity was proven."""
        async with self._connecting:
            connection = self._connection
            if connection is None or connection.lost.done():
                host, port = self._namespace.address
                connection = await ClientConnection.open(
                    host, port, hostname=self._namespace.hostname, tls=self._tls(), limits=_LIMITS
                )
                self._connection, self._proven = connection, {}
            if self._proven.get(entity, 0.0) < time.time() + _TOKEN_MARGIN_SECONDS:
                if self._tokens is None:
                    self._tokens = self._namespace.tokens()
                audience = f"sb://{self._namespace.host}/{entity}"
                token, ends = await self._tokens.token(audience)
                try:
                    await connection.put_token(token, audience, token_type=self._tokens.kind)
                except TokenRefusedError as error:
                    if error.status != 404:
                        raise
                    raise RefusedError(AmqpError(NOT_FOUND, error.error.description)) from error
                self._proven[entity] = ends
            return connection

    def _tls(self) -> ssl.SSLContext | None:
        if not self._namespace.tls:
            return None
        return ssl.create_default_context(cafile=self._namespace.connection_verify)

    async def persistently(
        self, entity: str, work: Callable[[ClientConnection], Awaitable[T]], seconds: float = RETRY_SECONDS
    ) -> T:
        """Do the work on a connection, again after what may pass; `WireError` when it does not."""
        deadline = self._loop.time() + seconds
        attempt = 0
        while True:
            try:
                async with asyncio.timeout(CALL_SECONDS):
                    return await work(await self.connection(entity))
            except (AmqpClientError, OSError, TimeoutError) as error:
                condition = error.condition if isinstance(error, AmqpClientError) else CONNECTION_FORCED
                if isinstance(error, TimeoutError) and self._connection is not None:
                    self._connection.abort()  # nobody answers on it: the next attempt takes a new one
                self._check(entity, error, condition)
                pause = _PAUSES[min(attempt, len(_PAUSES) - 1)]
                if self._loop.time() + pause > deadline:
                    raise WireError(
                        condition,
                        f"{entity!r} in {self.host} could not be used for {seconds:g} s; the last error was: "
                        f"{str(error) or type(error).__name__}.",
                    ) from error
                attempt += 1
                await asyncio.sleep(pause)

    def _check(self, entity: str, error: Exception, condition: str) -> None:
        """Raise what will not pass."""
        if is_untrusted(error):
            raise WireError(
                condition,
                f"The certificate of {self.host} is not trusted: {error}. Give the file of its authority as "
                "connectionVerify; for a local namespace that is ca.pem in its folder.",
            ) from error
        if isinstance(error, TokenRefusedError):
            raise WireError(
                condition,
                f"{self.host} does not let this connection string use {entity!r}. Check the key and its rights (Listen "
                f"to read, Send to write). The namespace says: {error}",
            ) from error
        if condition == NOT_FOUND:
            raise WireError(condition, f"{entity!r} does not exist in {self.host}: {error}") from error
        if isinstance(error, RefusedError | LinkLostError) and meaning(condition).is_final:
            raise WireError(condition, f"{entity!r} in {self.host} refused: {error}") from error

    async def peek(self, entity: str, first: int, count: int) -> list[bytes]:
        """Up to `count` encoded messages from the sequence number `first` on; nothing is locked or counted."""

        async def ask(connection: ClientConnection) -> list[bytes]:
            body = {"from-sequence-number": first, "message-count": Int(min(count, PEEK_AT_MOST))}
            reply = await connection.manage(entity, "peek-message", body)
            if reply.status == 204:
                return []
            if not reply.is_good:
                raise RefusedError(reply.error())
            return [one["message"] for one in reply.body["messages"]]

        return await self.persistently(entity, ask)


_wires: dict[tuple[int, Access], Wire] = {}


def wire_for(access: Access) -> Wire:
    """The wire of this process; a forked child makes its own."""
    key = (os.getpid(), access)
    found = _wires.get(key)
    if found is None:
        found = _wires[key] = Wire(access)
    return found
