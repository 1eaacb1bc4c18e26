"""A session with a namespace over raw AMQP: one connection, the tokens put on it, and its links.

Rules
- The connection opens on first use, and again on the next use after it was lost. Its links do not survive it. A session
  that was closed or aborted does not connect again, not even for a coroutine that is waiting for the connection.
- A token for an entity is put before the entity is used. While a link to the entity is open, the token is renewed in
  the background; if that fails, the service closes the link when the old token expires.
- Senders stay open for the next use, at most `_MAX_SENDERS` of them: an idle one is closed for a new one.
- Nothing is retried here. Operations raise `AmqpClientError`, `TokenUnavailableError`, OSError or TimeoutError.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pairbus.amqp.client import OPEN_TIMEOUT, ClientConnection, ReceiverLink, SenderLink
from pairbus.amqp.conditions import CONNECTION_FORCED
from pairbus.amqp.engine import EngineLimits
from pairbus.amqp.outcomes import AmqpClientError, AmqpError, LinkLostError, TokenUnavailableError

if TYPE_CHECKING:
    from pairbus.amqp.websocket import WebSocketRoute

log = logging.getLogger(__name__)

_CLOSE_SECONDS = 5.0
_MAX_SENDERS = 500
_TOKEN_MARGIN_SECONDS = 120.0
_TOKEN_RETRY_SECONDS = 30.0
_TOKEN_SHARE_USED = 0.8
"""A token is renewed when this share of its remaining life has passed."""


class TokenSource(Protocol):
    """Tokens for the entities of one namespace."""

    @property
    def kind(self) -> str:
        """The token type that `$cbs` expects."""
        ...

    async def token(self, audience: str) -> tuple[str, int]:
        """Return a token and its expiry in seconds since the epoch. Raises `TokenUnavailableError`."""
        ...


@dataclass(frozen=True, slots=True)
class AmqpEndpoint:
    """How to connect to a namespace. `host` includes the port if it is not the service's own; no `tls` means plain.

    `address` is that of the namespace, or of a gateway to it.
    """

    host: str
    address: tuple[str, int]
    tls: ssl.SSLContext | None
    tokens: TokenSource
    web_socket: WebSocketRoute | None = None


class AmqpSession:
    def __init__(
        self,
        endpoint: AmqpEndpoint,
        *,
        limits: EngineLimits = EngineLimits(),  # noqa: B008 - frozen
        open_timeout_s: float = OPEN_TIMEOUT,
    ) -> None:
        self._endpoint = endpoint
        self._limits = limits
        self._open_timeout_s = open_timeout_s
        self._connection: ClientConnection | None = None
        self._is_closed = False
        self._connecting = asyncio.Lock()
        self._opening_sender = asyncio.Lock()
        self._tokens_expire_at: dict[str, int] = {}
        self._senders: dict[str, SenderLink] = {}
        self._links: dict[str, list[SenderLink | ReceiverLink]] = {}
        self._renewals: dict[str, asyncio.Task[None]] = {}

    def __repr__(self) -> str:
        is_open = self._connection is not None and not self._connection.lost.done()
        return f"<AmqpSession with {self._endpoint.host}, {'open' if is_open else 'closed'}>"

    @property
    def is_idle(self) -> bool:
        """No sender is being opened, and none waits for an answer."""
        return not self._opening_sender.locked() and not any(sender.in_flight for sender in self._senders.values())

    async def connection(self, entity: str | None = None) -> ClientConnection:
        """Return an open connection that holds a valid token for `entity`."""
        async with self._connecting:
            self._require_open()
            connection = self._connection
            if connection is None or connection.lost.done():
                self._forget_links()
                host, port = self._endpoint.address
                connection = self._connection = await ClientConnection.open(
                    host,
                    port,
                    hostname=self._endpoint.host.rpartition(":")[0] or self._endpoint.host,
                    tls=self._endpoint.tls,
                    web_socket=self._endpoint.web_socket,
                    limits=self._limits,
                    timeout=self._open_timeout_s,
                )
                if self._is_closed:  # while it was connecting
                    connection.abort()
                    self._require_open()
            if entity is not None and self._tokens_expire_at.get(entity, 0) < time.time() + _TOKEN_MARGIN_SECONDS:
                await self._put_token(connection, entity)
            return connection

    async def sender(self, entity: str) -> SenderLink:
        """Return the session's link to send to `entity`, opened if necessary."""
        async with self._opening_sender:
            sender = self._senders.get(entity)
            if sender is None or not sender.is_open:
                connection = await self.connection(entity)
                sender = await connection.open_sender(entity, timeout=self._open_timeout_s)
                if len(self._senders) >= _MAX_SENDERS:
                    await self._close_idle_sender()
                self._senders[entity] = sender
                self._renew_token_for(connection, entity, sender)
            return sender

    async def open_receiver(self, entity: str, *, session_id: str | None = None) -> ReceiverLink:
        """Open a link without credit: nothing arrives before `grant` or `request`. The caller closes it."""
        connection = await self.connection(entity)
        receiver = await connection.open_receiver(entity, credit=0, session=session_id, timeout=self._open_timeout_s)
        self._renew_token_for(connection, entity, receiver)
        return receiver

    def abort(self) -> None:
        """Close without waiting for the peer. Whatever is in flight fails."""
        self._is_closed = True
        self._forget_links()
        if self._connection is not None:
            self._connection.abort()

    async def close(self) -> None:
        self._is_closed = True
        self._forget_links()
        if self._connection is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await self._connection.close()

    def _require_open(self) -> None:
        if self._is_closed:
            raise LinkLostError(AmqpError(CONNECTION_FORCED, "the session was closed"))

    async def _close_idle_sender(self) -> None:
        for entity, sender in self._senders.items():
            if not sender.in_flight:
                del self._senders[entity]
                await sender.close()
                return

    def _forget_links(self) -> None:
        for renewal in self._renewals.values():
            renewal.cancel()
        for remembered in (self._renewals, self._links, self._senders, self._tokens_expire_at):
            remembered.clear()

    async def _put_token(self, connection: ClientConnection, entity: str) -> None:
        audience = f"sb://{self._endpoint.host}/{entity}"
        token, expires_at = await self._endpoint.tokens.token(audience)
        await connection.put_token(token, audience, token_type=self._endpoint.tokens.kind)
        self._tokens_expire_at[entity] = expires_at

    def _renew_token_for(self, connection: ClientConnection, entity: str, link: SenderLink | ReceiverLink) -> None:
        self._links[entity] = [other for other in self._links.get(entity, ()) if other.is_open] + [link]
        renewal = self._renewals.get(entity)
        if renewal is None or renewal.done():
            self._renewals[entity] = asyncio.ensure_future(self._keep_renewing(connection, entity))

    async def _keep_renewing(self, connection: ClientConnection, entity: str) -> None:
        while True:
            left = self._tokens_expire_at.get(entity, 0) - time.time()
            await asyncio.sleep(max(_TOKEN_RETRY_SECONDS, left * _TOKEN_SHARE_USED))
            if not any(link.is_open for link in self._links.get(entity, ())):
                return
            try:
                await self._put_token(connection, entity)
            except (AmqpClientError, TokenUnavailableError, OSError, TimeoutError) as error:
                log.warning("cannot renew a token", extra={"entity": entity, "cause": str(error)})
