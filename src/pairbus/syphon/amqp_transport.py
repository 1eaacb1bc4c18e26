"""The fast way: raw AMQP sections over the engine. Bodies are never decoded.

- One connection for each backlog queue, one for each destination: what breaks one leaves the others alone.
- Credit is what the pump asked for, at most 100: that is the prefetch. Settlements travel in ranges and are confirmed
  by the service; nobody waits for one before the next.
- Tokens are the SDK's (see `namespaces`), put again before they end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import time
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import certifi
from azure.core.exceptions import AzureError

from pairbus import envelope
from pairbus.amqp.client import (
    AmqpClientError,
    ClientConnection,
    LinkLostError,
    Received,
    ReceiverLink,
    RefusedError,
    SenderLink,
    TokenRefusedError,
)
from pairbus.amqp.conditions import UNAUTHORIZED
from pairbus.amqp.message import BATCH_FORMAT, join_batch
from pairbus.amqp.outcomes import Accepted, AmqpError, Rejected, Released, State
from pairbus.amqp.types import Array, Int
from pairbus.syphon.deliveries import DeadLetter, Delivery, Peeked
from pairbus.syphon.namespaces import Namespace, TokenSource
from pairbus.syphon.send_errors import SendError, SendFailure, failure_of_link, failure_of_send
from pairbus.syphon.transport import ReceiverLostError, renew_after

log = logging.getLogger(__name__)

_OPEN_SECONDS = 20.0
_CLOSE_SECONDS = 5.0
_DRAIN_SECONDS = 5.0
_SENDERS_AT_MOST = 200
_RENEW_AT_MOST = 500
_TOKEN_RETRY_SECONDS = 30.0
_UUID_ARRAY = 0x98
_Reasons = asyncio.Future[list[AmqpError | None]]
_Settling = tuple[list[Delivery], list[Delivery], _Reasons]
_RELEASED = Released()
_ACCEPTED = Accepted()


class _Door:
    """One namespace: opens connections and keeps their tokens fresh."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._tokens: TokenSource = namespace.tokens()
        self._tls = _tls_context(namespace) if namespace.tls else None

    async def open(self, path: str | None) -> tuple[ClientConnection, asyncio.Task[None] | None]:
        """A connection that may use the entity `path`, and the task that keeps it so."""
        host, port = self._namespace.address
        connection = await ClientConnection.open(
            host, port, hostname=self._namespace.hostname, tls=self._tls, timeout=_OPEN_SECONDS
        )
        if path is None:
            return connection, None
        try:
            ends_at = await self._put(connection, path)
        except BaseException:
            connection.abort()
            raise
        return connection, asyncio.ensure_future(self._keep(connection, path, ends_at))

    async def _put(self, connection: ClientConnection, path: str) -> int:
        audience = f"sb://{self._namespace.host}/{path}"
        token, ends_at = await self._tokens.token(audience)
        await connection.put_token(token, audience, token_type=self._tokens.kind)
        return ends_at

    async def _keep(self, connection: ClientConnection, path: str, ends_at: int) -> None:
        while True:
            await asyncio.sleep(max(_TOKEN_RETRY_SECONDS, (ends_at - time.time()) * 0.8))
            try:
                ends_at = await self._put(connection, path)
            except (AmqpClientError, AzureError, OSError, TimeoutError) as error:
                # Tried again, until the service ends the link because the old token ended: that is handled where the
                # link is used.
                log.warning("a token could not be renewed", extra={"entity": path, "cause": str(error)})


class AmqpTransport:
    overlapping = True
    held_messages = 10_000

    def __init__(self, primary: Namespace, secondary: Namespace) -> None:
        self._primary = _Door(primary)
        self._secondary = _Door(secondary)
        self._homes: dict[str, _Home] = {}

    async def open_receiver(self, queue: str) -> AmqpReceiver:
        try:
            connection, keeping = await self._secondary.open(queue)
        except (AmqpClientError, AzureError, OSError, TimeoutError) as error:
            raise _lost(error) from error
        try:
            link = _CreditedReceiver(
                connection.engine.new_link(connection._session, f"{queue}-{id(connection)}", sender=False)
            )
            link.link.open(source=queue, target=f"syphon-{id(connection)}", second=True)
            await connection._attached(link, _OPEN_SECONDS)
        except (AmqpClientError, OSError, TimeoutError) as error:
            await _end(connection, keeping)
            raise _lost(error) from error
        except BaseException:
            connection.abort()
            raise
        return AmqpReceiver(queue, connection, link, keeping)

    async def send(self, destination: str, raws: Sequence[bytes]) -> None:
        home = self._homes.get(destination)
        if home is None:
            home = self._homes[destination] = _Home(self._primary, destination)
            if len(self._homes) > _SENDERS_AT_MOST:
                await self._close_an_idle_home()
        try:
            await home.send(raws)
        except SendError:
            if home.broken:
                await self._drop(destination, home)
            raise
        except asyncio.CancelledError:
            # No answer came: what is under way on this link must not surprise us later.
            home.abort()
            self._forget(destination, home)
            raise

    async def _close_an_idle_home(self) -> None:
        for destination, home in self._homes.items():
            if home.idle:
                await self._drop(destination, home)
                return

    async def _drop(self, destination: str, home: _Home) -> None:
        self._forget(destination, home)
        await home.close()

    def _forget(self, destination: str, home: _Home) -> None:
        if self._homes.get(destination) is home:
            del self._homes[destination]

    async def reachable(self) -> bool:
        try:
            connection, _ = await self._primary.open(None)
        except (AmqpClientError, OSError, TimeoutError):
            return False
        await _end(connection, None)
        return True

    async def close(self) -> None:
        homes, self._homes = list(self._homes.values()), {}
        for home in homes:
            await home.close()


class _Home:
    """The way to one destination, opened when it is first needed."""

    def __init__(self, door: _Door, destination: str) -> None:
        self._door = door
        self._destination = destination
        self._opening = asyncio.Lock()
        self._connection: ClientConnection | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._sender: SenderLink | None = None
        self.broken = False

    @property
    def idle(self) -> bool:
        return not self._opening.locked() and (self._sender is None or self._sender.in_flight == 0)

    async def send(self, raws: Sequence[bytes]) -> None:
        in_doubt = False
        try:
            sender = await self._open()
            in_doubt = True
            if len(raws) == 1:
                await sender.send(raws[0])
            else:
                await sender.send(join_batch(raws), message_format=BATCH_FORMAT)
        except RefusedError as error:
            raise SendError(failure_of_send(error.condition), error.condition, error.error.description) from error
        except TokenRefusedError as error:
            self.broken = True
            verdict = SendFailure.MISSING if error.status == 404 else SendFailure.UNAVAILABLE
            refused = error.status == 401
            raise SendError(verdict, error.condition, error.error.description, token_refused=refused) from error
        except LinkLostError as error:
            self.broken = True
            raise SendError(
                failure_of_link(error.condition), error.condition, error.error.description, in_doubt=in_doubt
            ) from error
        except AzureError as error:
            self.broken = True  # the credential gave no token: nobody asked the primary
            raise SendError(SendFailure.UNAVAILABLE, f"client:{type(error).__name__}", str(error)) from error
        except (OSError, TimeoutError) as error:
            self.broken = True
            raise SendError(
                SendFailure.UNREACHABLE, "amqp:connection:forced", str(error) or "no answer", in_doubt=in_doubt
            ) from error

    async def _open(self) -> SenderLink:
        async with self._opening:
            if self._sender is None:
                self._connection, self._keeping = await self._door.open(self._destination)
                self._sender = await self._connection.open_sender(self._destination, timeout=_OPEN_SECONDS)
            return self._sender

    def abort(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
        if self._connection is not None:
            self._connection.abort()

    async def close(self) -> None:
        if self._connection is not None:
            await _end(self._connection, self._keeping)


class _CreditedReceiver(ReceiverLink):
    """A receiving link that is given exactly the credit asked for."""

    def __init__(self, link: Any) -> None:
        super().__init__(link, 0)
        self._silent = asyncio.Event()

    def _give_back(self, count: int) -> None:
        return None

    def ask(self, limit: int) -> None:
        """Let the peer send until `limit` messages are here or on their way."""
        more = limit - len(self._ready) - self.link.credit
        if more > 0:
            self.link.grant(more)

    async def silence(self) -> list[Received]:
        """Take the credit back; what came meanwhile."""
        if self.link.credit > 0 and self._error is None:
            self._silent.clear()
            self.link.drain(0)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_DRAIN_SECONDS):
                    while self.link.credit > 0 and self._error is None:
                        await self._silent.wait()
                        self._silent.clear()
        taken = list(self._ready)
        self._ready.clear()
        return taken

    def credit_given_back(self) -> None:
        self._silent.set()

    def ended(self, error: AmqpError) -> None:
        super().ended(error)
        self._silent.set()


class AmqpReceiver:
    def __init__(
        self, queue: str, connection: ClientConnection, link: _CreditedReceiver, keeping: asyncio.Task[None] | None
    ) -> None:
        self._queue = queue
        self._connection = connection
        self._link = link
        self._keeping = keeping

    async def receive(self, limit: int, wait: float) -> list[Delivery]:
        self._link.ask(limit)
        try:
            async with asyncio.timeout(wait):
                received = await self._link.receive(limit)
        except TimeoutError:
            return []
        except LinkLostError as error:
            raise _lost(error) from error
        self._link.ask(limit)  # the prefetch: more may come while these are carried
        return _deliveries(received)

    async def quiet(self) -> list[Delivery]:
        return _deliveries(await self._link.silence())

    async def complete(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        return await self._settle(deliveries, _ACCEPTED)

    async def complete_together(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        tokens = [UUID(bytes_le=one.handle.tag) for one in deliveries]
        body = {"disposition-status": "completed", "lock-tokens": Array(_UUID_ARRAY, tokens)}
        reply = await self._manage("update-disposition", body)
        if not reply.is_good:
            return list(deliveries)
        for one in deliveries:
            if one.handle.delivery.link is self._link.link:
                self._link.let_go(one.handle)  # the link still waits for its settlement
        return []

    async def release(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        return await self._settle(deliveries, _RELEASED)

    async def dead_letter(self, letters: Sequence[DeadLetter]) -> list[Delivery]:
        settling = [self._begin([letter.delivery], _dead(letter)) for letter in letters]
        return [one for letter in settling for one in await self._end(*letter)]

    async def _settle(self, deliveries: Sequence[Delivery], state: State) -> list[Delivery]:
        return await self._end(*self._begin(deliveries, state))

    def _begin(self, deliveries: Sequence[Delivery], state: State) -> _Settling:
        # Deliveries of an earlier link are nobody's any more: their locks run out and they come again.
        ours = [one for one in deliveries if one.handle.delivery.link is self._link.link]
        strangers = [one for one in deliveries if one not in ours] if len(ours) < len(deliveries) else []
        return ours, strangers, self._link.settle([one.handle for one in ours], state)

    async def _end(self, ours: list[Delivery], strangers: list[Delivery], reasons: _Reasons) -> list[Delivery]:
        """The deliveries that could not be settled."""
        try:
            return strangers + [one for one, reason in zip(ours, await reasons, strict=True) if reason is not None]
        except LinkLostError as error:
            raise _lost(error) from error

    async def renew(self, deliveries: Sequence[Delivery]) -> tuple[float, list[Delivery]]:
        lost: list[Delivery] = []
        again_at = renew_after(asyncio.get_running_loop().time(), None)
        for start in range(0, len(deliveries), _RENEW_AT_MOST):
            again_at = await self._renew(list(deliveries[start : start + _RENEW_AT_MOST]), lost, again_at)
        return again_at, lost

    async def _renew(self, deliveries: list[Delivery], lost: list[Delivery], again_at: float) -> float:
        """Renew together; if one lock among them is gone, find it by halving."""
        tokens = [UUID(bytes_le=one.handle.tag) for one in deliveries]
        reply = await self._manage("renew-lock", {"lock-tokens": Array(_UUID_ARRAY, tokens)})
        if reply.is_good:
            found = reply.body.get("expirations")
            until = found.items[-1] if isinstance(found, Array) and found.items else found[-1] if found else None
            return renew_after(asyncio.get_running_loop().time(), until / 1000 if until is not None else None)
        if len(deliveries) == 1:
            lost.extend(deliveries)
            return again_at
        half = len(deliveries) // 2
        again_at = await self._renew(deliveries[:half], lost, again_at)
        return await self._renew(deliveries[half:], lost, again_at)

    async def peek(self, from_number: int, count: int) -> list[Peeked]:
        return [Peeked.of(envelope.inspect(raw)) for raw in await self.peek_raw(from_number, count)]

    async def peek_raw(self, from_number: int, count: int) -> list[bytes]:
        """The messages from this number on, whole."""
        reply = await self._manage("peek-message", {"from-sequence-number": from_number, "message-count": Int(count)})
        if not reply.is_good:
            raise ReceiverLostError(f"peeking failed: {reply.error()}")
        return [one["message"] for one in (reply.body or {}).get("messages", [])]

    async def _manage(self, operation: str, body: dict[str, Any]) -> Any:
        try:
            return await self._connection.manage(self._queue, operation, body)
        except (AmqpClientError, TimeoutError) as error:
            raise _lost(error) from error

    async def close(self) -> None:
        await _end(self._connection, self._keeping)


def _deliveries(received: Sequence[Received]) -> list[Delivery]:
    now = asyncio.get_running_loop().time()
    deliveries = []
    for one in received:
        message = envelope.inspect(one.raw)
        until = message.locked_until_ms / 1000 if message.locked_until_ms is not None else None
        deliveries.append(Delivery(message, one, renew_after(now, until)))
    return deliveries


def _dead(letter: DeadLetter) -> Rejected:
    text = letter.description[:4096]
    info = {"DeadLetterReason": letter.reason, "DeadLetterErrorDescription": text}
    return Rejected(AmqpError("com.microsoft:dead-letter", text, info))


def _lost(error: Exception) -> ReceiverLostError:
    condition = error.condition if isinstance(error, AmqpClientError) else ""
    missing = condition == "amqp:not-found" or (isinstance(error, TokenRefusedError) and error.status == 404)
    return ReceiverLostError(
        f"{type(error).__name__}: {error}", missing=missing, unauthorized=condition == UNAUTHORIZED and not missing
    )


async def _end(connection: ClientConnection, keeping: asyncio.Task[None] | None) -> None:
    if keeping is not None:
        keeping.cancel()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_CLOSE_SECONDS):
            await connection.close()


def _tls_context(namespace: Namespace) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=namespace.connection_verify or certifi.where())
