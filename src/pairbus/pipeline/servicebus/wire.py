"""The connector's connection to a namespace: an AMQP session on a thread of its own, for Spark's synchronous code.

Rules:
- There is one `Wire` per process and namespace. It is kept for the next task of the same Python worker.
- An operation that fails because the connection broke or the service is busy is retried for `RETRY_SECONDS`. A final
  refusal, such as a missing entity or right, is raised at once as `WireError`.
- The thread's loop always runs, so the connection stays alive between calls.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from azure.core.exceptions import AzureError

from pairbus.amqp.conditions import CONNECTION_FORCED, INVALID_FIELD, NOT_FOUND, UNAUTHORIZED, Blame, meaning
from pairbus.amqp.engine import EngineLimits
from pairbus.amqp.outcomes import AmqpClientError, RefusedError, TokenRefusedError
from pairbus.amqp.session import AmqpSession
from pairbus.amqp.types import Int
from pairbus.errors import UsageError
from pairbus.pipeline.servicebus.options import Access, Entities
from pairbus.syphon.namespaces import Namespace, describe_error, is_credential_refused, is_untrusted

RETRY_SECONDS = 60.0
CALL_SECONDS = 60.0
MAX_PEEK = 1_000
_PAUSES = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_LIMITS = EngineLimits(max_message=128 << 20)

T = TypeVar("T")


class WireError(UsageError):
    """The namespace gave a final refusal, or could not be used for too long."""

    def __init__(self, condition: str, text: str) -> None:
        super().__init__(condition, text)
        self.condition = condition

    def __str__(self) -> str:
        return str(self.args[1])

    @property
    def is_refusal(self) -> bool:
        """Whether only this request, or one message in it, was refused: another one may be accepted."""
        known = meaning(self.condition)
        return known.is_final and known.blame in (Blame.MESSAGE, Blame.REQUEST)

    @property
    def is_missing(self) -> bool:
        """Whether the entity does not exist."""
        return self.condition == NOT_FOUND


class Wire:
    def __init__(self, access: Access) -> None:
        verify = access.connection_verify
        if verify is not None and not Path(verify).is_file():
            raise WireError(
                INVALID_FIELD,
                f"connectionVerify is {verify!r}, but there is no such file on {socket.gethostname()}. Give the file "
                "of the certificate's authority, on the driver and on every executor.",
            )
        self._namespace = Namespace.parse(access.connection_string(), connection_verify=verify)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="servicebus wire", daemon=True)
        self._thread.start()
        self._session: AmqpSession | None = None

    @property
    def host(self) -> str:
        return self._namespace.host

    # --- for synchronous code -----------------------------------------------------------------------------

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the wire's loop and wait for its result."""
        return self.start(work).result()

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine on the wire's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        if self._session is not None:
            self.start(self._session.close()).result(CALL_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # --- on the loop --------------------------------------------------------------------------------------

    @property
    def session(self) -> AmqpSession:
        if self._session is None:
            self._session = AmqpSession(self._namespace.endpoint(), limits=_LIMITS)
        return self._session

    async def retry(
        self, entity: str, work: Callable[[AmqpSession], Awaitable[T]], retry_seconds: float = RETRY_SECONDS
    ) -> T:
        """Run `work` until it succeeds. Raises `WireError` on a final refusal, or when the time is over."""
        deadline = self._loop.time() + retry_seconds
        attempt = 0
        session: AmqpSession | None = None
        while True:
            try:
                session = self.session
                async with asyncio.timeout(CALL_SECONDS):
                    return await work(session)
            except (AmqpClientError, OSError, TimeoutError) as error:
                condition = error.condition if isinstance(error, AmqpClientError) else CONNECTION_FORCED
                if isinstance(error, TimeoutError) and session is not None:
                    session.abort()  # the peer does not answer: the next attempt needs a new connection
                    if self._session is session:
                        self._session = None
                self._raise_if_final(entity, error, condition)
                pause = _PAUSES[min(attempt, len(_PAUSES) - 1)]
                if self._loop.time() + pause > deadline:
                    raise WireError(
                        condition,
                        f"{entity!r} in {self.host} could not be used for {retry_seconds:g} s. Last error: "
                        f"{str(error) or type(error).__name__}.",
                    ) from error
                attempt += 1
                await asyncio.sleep(pause)

    def _raise_if_final(self, entity: str, error: Exception, condition: str) -> None:
        if is_untrusted(error):
            raise WireError(
                condition,
                f"The certificate of {self.host} is not trusted: {error}. Give the file of its authority as "
                "connectionVerify. For a local namespace that is ca.pem in its folder.",
            ) from error
        if condition == NOT_FOUND:
            raise WireError(condition, f"{entity!r} does not exist in {self.host}: {error}") from error
        if isinstance(error, TokenRefusedError):
            raise WireError(
                condition,
                f"{self.host} does not let this connection string use {entity!r}. Check the key and its rights "
                f"(Listen to read, Send to write). The namespace says: {error}",
            ) from error
        if isinstance(error, AmqpClientError) and meaning(condition).is_final:
            raise WireError(condition, f"{entity!r} in {self.host} refused: {error}") from error

    async def peek(self, entity: str, first: int, count: int) -> list[bytes]:
        """Return up to `count` encoded messages from sequence number `first` on. Nothing is locked or counted."""

        async def request(session: AmqpSession) -> list[bytes]:
            connection = await session.connection(entity)
            body = {"from-sequence-number": first, "message-count": Int(min(count, MAX_PEEK))}
            reply = await connection.manage(entity, "peek-message", body)
            if reply.status == 204:
                return []
            if not reply.is_good:
                raise RefusedError(reply.error())
            return [entry["message"] for entry in reply.body["messages"]]

        return await self.retry(entity, request)

    async def resolve(self, entities: Entities) -> tuple[str, ...]:
        """Return the paths to read. A pattern is resolved by the administration, in alphabetical order."""
        if entities.pattern is None:
            return entities.named
        pattern = re.compile(entities.pattern, re.IGNORECASE)
        try:
            async with self._namespace.administration() as admin:
                names = [queue.name async for queue in admin.list_queues() if pattern.fullmatch(queue.name)]
        except (AzureError, OSError) as error:
            raise WireError(
                UNAUTHORIZED if is_credential_refused(error) else CONNECTION_FORCED,
                f"Cannot list the queues of {self.host} for queuePattern {entities.pattern!r}: "
                f"{describe_error(error)}. The connection string needs the Manage right. If the namespace has its own "
                "certificate, give it as connectionVerify.",
            ) from error
        return tuple(entities.path(name) for name in sorted(names))


_wires: dict[tuple[int, Access], Wire] = {}


def wire_for(access: Access) -> Wire:
    """Return this process's wire. A forked child makes its own."""
    key = (os.getpid(), access)
    wire = _wires.get(key)
    if wire is None:
        wire = _wires[key] = Wire(access)
    return wire
