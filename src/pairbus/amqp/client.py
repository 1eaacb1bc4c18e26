"""An AMQP client that carries encoded messages without decoding them.

Rules
- Before a link is opened, a token for its entity is put to `$cbs`. `session` supplies the tokens.
- `SenderLink.send` does not wait: its future completes when the peer settles. `SenderLink.room` waits for the window.
- `ReceiverLink` holds at most `credit` unsettled messages, however fast the peer sends.
- `ReceiverLink.settle` is confirmed by the peer: its future completes when the outcome was applied, or fails.
- When a link or the connection ends, all of its futures fail. Nothing waits forever.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

from pairbus.amqp.codec import decode
from pairbus.amqp.engine import (
    ConnectionLost,
    ConnectionOpened,
    CreditChanged,
    DeliveryUpdated,
    Engine,
    EngineLimits,
    Event,
    LinkClosed,
    LinkOpened,
    MessageReceived,
    MessageTooLarge,
    OutcomeConfirmed,
)
from pairbus.amqp.links import IncomingDelivery, Link, OutgoingDelivery
from pairbus.amqp.message import Sections, read_facts, value_message
from pairbus.amqp.outcomes import (
    Accepted,
    AmqpError,
    LinkLostError,
    RefusedError,
    Rejected,
    State,
    TokenRefusedError,
)
from pairbus.amqp.protocol import AmqpProtocol
from pairbus.amqp.types import AmqpDecodeError, Described, Symbol, UInt

if TYPE_CHECKING:
    from pairbus.amqp.websocket import WebSocketRoute

DEFAULT_WINDOW = 300
DEFAULT_CREDIT = 300
OPEN_TIMEOUT = 30.0
DRAIN_TIMEOUT = 5.0
REPLY_CREDIT = 50
SAS_TOKEN = "servicebus.windows.net:sastoken"  # noqa: S105 - the name of a type


@dataclass(frozen=True, slots=True)
class Received:
    """An encoded message. ``tag`` is the lock token of a peek-lock delivery."""

    raw: bytes
    tag: bytes
    delivery: IncomingDelivery

    @property
    def lock_token(self) -> UUID:
        return UUID(bytes_le=self.tag)


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply of `$cbs` or `entity/$management` to a request."""

    status: int
    description: str
    condition: str | None
    body: Any

    @property
    def is_good(self) -> bool:
        return 200 <= self.status < 300

    def error(self) -> AmqpError:
        return AmqpError(self.condition or "amqp:internal-error", self.description)


class ClientConnection:
    """One connection to a namespace, made by `ClientConnection.open`."""

    def __init__(self, hostname: str, container_id: str, limits: EngineLimits) -> None:
        self._loop = asyncio.get_running_loop()
        self.engine = Engine(server=False, container_id=container_id, hostname=hostname, limits=limits)
        self.protocol = AmqpProtocol(self.engine, self)
        self.lost: asyncio.Future[AmqpError] = self._loop.create_future()
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._session: Any = None
        self._nodes: dict[str, NodeLinks] = {}
        self._nodes_lock = asyncio.Lock()

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        *,
        hostname: str = "",
        tls: ssl.SSLContext | None = None,
        web_socket: WebSocketRoute | None = None,
        limits: EngineLimits = EngineLimits(),  # noqa: B008 - frozen
        timeout: float = OPEN_TIMEOUT,  # noqa: ASYNC109 - one limit for connecting and opening
    ) -> ClientConnection:
        """Connect and open. Raises OSError, TimeoutError or LinkLostError."""
        connection = cls(hostname or host, f"pairbus-{uuid4()}", limits)
        try:
            async with asyncio.timeout(timeout):
                if web_socket is not None:
                    from pairbus.amqp.websocket import connect

                    await connect(web_socket, tls, connection.protocol)
                else:
                    await connection._loop.create_connection(lambda: connection.protocol, host, port, ssl=tls)
                await connection._opened
        except BaseException:
            connection.abort()
            raise
        return connection

    async def put_token(self, token: str, audience: str, *, token_type: str = SAS_TOKEN) -> None:
        """Put a token for ``audience``. Raises TokenRefusedError if the peer does not accept it."""
        node_links = await self._node("$cbs")
        properties = {"operation": "put-token", "type": token_type, "name": audience}
        reply = await node_links.request(properties, token, seconds=OPEN_TIMEOUT)
        if not reply.is_good:
            raise TokenRefusedError(reply.status, reply.description)

    async def manage(
        self, entity: str, operation: str, body: dict[str, Any], *, seconds: float = OPEN_TIMEOUT
    ) -> Reply:
        """Send a management request, such as ``renew-lock``, and return the reply, good or bad."""
        node_links = await self._node(f"{entity}/$management")
        properties = {
            "operation": f"com.microsoft:{operation}",
            "type": "entity-mgmt",
            "com.microsoft:server-timeout": UInt(int(seconds * 1000)),
        }
        return await node_links.request(properties, body, seconds=seconds)

    async def _node(self, node: str) -> NodeLinks:
        async with self._nodes_lock:
            links = self._nodes.get(node)
            if links is None or not links.is_open:
                replies = f"replies-{uuid4()}"
                sender = await self.open_sender(node)
                receiver = await self.open_receiver(node, credit=REPLY_CREDIT, target=replies)
                links = self._nodes[node] = NodeLinks(sender, receiver, replies)
            return links

    async def open_sender(
        self,
        address: str,
        *,
        window: int = DEFAULT_WINDOW,
        timeout: float = OPEN_TIMEOUT,  # noqa: ASYNC109
    ) -> SenderLink:
        name = f"{address[:128]}-{uuid4()}"
        sender = SenderLink(self._new_link(name, sender=True), window)
        sender.link.open(source=name, target=address)
        await self._attached(sender, timeout)
        return sender

    async def open_receiver(
        self,
        address: str,
        *,
        credit: int = DEFAULT_CREDIT,
        receive_and_delete: bool = False,
        session: str | None = None,
        next_session: bool = False,
        wait_ms: int | None = None,
        target: str | None = None,
        timeout: float = OPEN_TIMEOUT,  # noqa: ASYNC109
    ) -> ReceiverLink:
        """Open a receiving link. ``session`` or ``next_session`` accept a session, waiting at most ``wait_ms``.

        With a ``credit`` of 0 nothing arrives before ``ReceiverLink.grant`` or ``ReceiverLink.request``.
        """
        name = f"{address[:128]}-{uuid4()}"
        receiver = ReceiverLink(self._new_link(name, sender=False), credit)
        accepts_session = session is not None or next_session
        receiver.link.open(
            source=address,
            target=target or name,
            source_filter={Symbol("com.microsoft:session-filter"): session} if accepts_session else None,
            properties={Symbol("com.microsoft:timeout"): UInt(wait_ms)} if wait_ms is not None else None,
            settled=receive_and_delete,
            second=not receive_and_delete,
        )
        await self._attached(receiver, timeout)
        return receiver

    def _new_link(self, name: str, *, sender: bool) -> Link:
        if not self.engine.has_session(self._session):
            self._session = self.engine.new_session()
        return self.engine.new_link(self._session, name, sender=sender)

    async def _attached(self, end: SenderLink | ReceiverLink, timeout: float) -> None:  # noqa: ASYNC109
        try:
            async with asyncio.timeout(timeout):
                await end.opened
        except BaseException:
            end.link.close()
            raise

    async def close(self) -> None:
        """Close the connection and wait until it has ended."""
        if not self.engine.lost:
            self.protocol.close()
            await self.lost

    def abort(self) -> None:
        """Cut the connection, as a broken network would."""
        self.protocol.abort()

    # --- events of the engine -----------------------------------------------------------------------------

    def handle(self, event: Event) -> None:
        # One message means one event: isinstance is several times faster here than a class pattern.
        if isinstance(event, MessageReceived):
            if isinstance(event.link.context, ReceiverLink):
                event.link.context.received(event.delivery, event.raw)
            return
        if isinstance(event, DeliveryUpdated):
            if isinstance(event.link.context, SenderLink):
                event.link.context.settled(event.delivery)
            return
        if isinstance(event, OutcomeConfirmed):
            if isinstance(event.link.context, ReceiverLink):
                event.link.context.confirmed(event.delivery, event.state)
            return
        match event:
            case CreditChanged(link):
                if isinstance(link.context, SenderLink):
                    link.context.make_room()
                elif isinstance(link.context, ReceiverLink):
                    link.context.credit_returned()
            case LinkOpened(link):
                self._link_opened(link)
            case LinkClosed(link, error):
                if link.context is not None:
                    link.context.ended(error or AmqpError("amqp:link:detach-forced", "the peer closed the link"))
            case MessageTooLarge(_, delivery, size):
                problem = AmqpError("amqp:link:message-size-exceeded", f"a message of {size} bytes")
                delivery.settle(Rejected(problem))
            case ConnectionOpened():
                if not self._opened.done():
                    self._opened.set_result(None)
            case ConnectionLost(reason):
                if not self.lost.done():
                    self.lost.set_result(reason)
                if not self._opened.done():
                    self._opened.set_exception(LinkLostError(reason))
                    _mark_retrieved(self._opened)

    def _link_opened(self, link: Link) -> None:
        end: SenderLink | ReceiverLink | None = link.context
        if end is None:
            link.refuse(AmqpError("amqp:not-allowed", "This client opens all links."))
        elif not (link.remote_target if link.is_sender else link.remote_source).is_null:
            end.attached()
        # A null terminus is a refusal: a detach with the reason follows.

    def writing_paused(self, paused: bool) -> None:
        return


class ClientLink:
    """One end of a link: ``opened`` completes when the peer has attached, ``ended`` is called when the link is gone."""

    def __init__(self, link: Link) -> None:
        self.link = link
        link.context = self
        self._loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[None] = self._loop.create_future()
        self._error: AmqpError | None = None

    @property
    def is_open(self) -> bool:
        return self._error is None

    async def close(self) -> None:
        self.link.close()

    def _fail(self, error: AmqpError, waiting: dict[Any, asyncio.Future[None]]) -> None:
        self._error = error
        lost = LinkLostError(error)
        for future in (self.opened, *waiting.values()):
            if not future.done():
                future.set_exception(lost)
                _mark_retrieved(future)
        waiting.clear()


class SenderLink(ClientLink):
    """A sending link with a window of unsettled messages."""

    def __init__(self, link: Link, window: int) -> None:
        super().__init__(link)
        self.max_message_size = 0
        self.max_batch_size = 0
        self._window = window
        self._sent = 0
        self._waiting: dict[OutgoingDelivery, asyncio.Future[None]] = {}
        self._room: deque[asyncio.Future[None]] = deque()

    @property
    def in_flight(self) -> int:
        return len(self._waiting)

    def send(self, raw: bytes, *, message_format: int = 0) -> asyncio.Future[None]:
        """Send now. The future completes when the peer accepts, or fails with RefusedError or LinkLostError."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._sent += 1
        tag = self._sent.to_bytes(8, "big")
        delivery = self.link.send(tag, raw, message_format=message_format) if self._error is None else None
        if delivery is None:
            future.set_exception(LinkLostError(self._error or AmqpError("amqp:link:detach-forced", "the link ended")))
            return future
        self._waiting[delivery] = future
        return future

    async def room(self) -> None:
        """Wait until one more message fits the window and the peer's credit."""
        while self._error is None and (len(self._waiting) >= self._window or self.link.credit <= 0):
            future: asyncio.Future[None] = self._loop.create_future()
            self._room.append(future)
            await future
        if self._error is not None:
            raise LinkLostError(self._error)

    def attached(self) -> None:
        properties = self.link.remote_properties
        self.max_message_size = self.link.remote_max_message_size
        batch = properties.get("com.microsoft:max-message-batch-size")
        self.max_batch_size = int(batch) if isinstance(batch, int) else self.max_message_size
        if not self.opened.done():
            self.opened.set_result(None)

    def settled(self, delivery: OutgoingDelivery) -> None:
        state = delivery.state
        if state is None and not delivery.settled:
            return
        future = self._waiting.pop(delivery, None)
        delivery.settle()
        if future is not None and not future.done():
            if state is None or isinstance(state, Accepted):
                future.set_result(None)
            elif isinstance(state, Rejected):
                future.set_exception(RefusedError(state.error or AmqpError("amqp:internal-error", "rejected")))
            else:
                future.set_exception(RefusedError(AmqpError("amqp:internal-error", f"answered with {state}")))
        self.make_room()

    def make_room(self) -> None:
        while self._room:
            future = self._room.popleft()
            if not future.done():
                future.set_result(None)

    def ended(self, error: AmqpError) -> None:
        self._fail(error, self._waiting)
        self.make_room()


class ReceiverLink(ClientLink):
    """A receiving link that buffers messages.

    With a fixed credit, settling a message lets the next one come. With a credit of 0 the caller grants credit.
    """

    def __init__(self, link: Link, credit: int) -> None:
        super().__init__(link)
        self.session_id: str | None = None
        self._credit = credit
        self._given_back = 0
        self._ready: deque[Received] = deque()
        self._arrival = asyncio.Event()
        self._credit_used = asyncio.Event()
        self._settling: dict[IncomingDelivery, asyncio.Future[None]] = {}

    async def receive(self, max_count: int) -> list[Received]:
        """Wait for a message, then return up to ``max_count``. Raises LinkLostError when the link has ended.

        Cancelling loses nothing, so ``asyncio.timeout`` is a safe time limit.
        """
        while not self._ready:
            if self._error is not None:
                raise LinkLostError(self._error)
            self._arrival.clear()
            await self._arrival.wait()
        return [self._ready.popleft() for _ in range(min(max_count, len(self._ready)))]

    def settle(
        self, messages: Sequence[Received], state: State | None = None
    ) -> asyncio.Future[list[AmqpError | None]]:
        """Apply one outcome to messages. The result holds None or an error for each; it fails when the link ends."""
        outcome = state if state is not None else Accepted()
        futures = [self._settle_one(message, outcome) for message in messages]
        return asyncio.ensure_future(_collect(futures))

    def _settle_one(self, message: Received, state: State) -> asyncio.Future[None]:
        future: asyncio.Future[None] = self._loop.create_future()
        self._give_back(1)
        if self._error is not None:
            future.set_exception(LinkLostError(self._error))
        elif message.delivery.settled:
            message.delivery.settle(state)
            future.set_result(None)
        else:
            self._settling[message.delivery] = future
            message.delivery.propose(state)
        return future

    def let_go(self, message: Received) -> None:
        """Settle a message locally, without waiting for the peer."""
        message.delivery.settle()
        self._give_back(1)

    def _give_back(self, count: int) -> None:
        self._given_back += count
        if self._credit and self._given_back * 4 >= self._credit:
            self.link.grant(self._given_back)
            self._given_back = 0

    def grant(self, count: int) -> None:
        """Let the peer send ``count`` more messages."""
        self.link.grant(count)

    def request(self, limit: int) -> None:
        """Let the peer send until ``limit`` messages are buffered or on their way."""
        missing = limit - len(self._ready) - self.link.credit
        if missing > 0:
            self.link.grant(missing)

    async def drain(self) -> list[Received]:
        """Withdraw the unused credit and return the messages that arrived meanwhile."""
        if self.link.credit > 0 and self._error is None:
            self.link.drain(0)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DRAIN_TIMEOUT):
                    while self.link.credit > 0 and self._error is None:
                        self._credit_used.clear()
                        await self._credit_used.wait()
        drained = list(self._ready)
        self._ready.clear()
        return drained

    def attached(self) -> None:
        for key, value in self.link.remote_source.filter.items():
            if str(key) == "com.microsoft:session-filter":
                self.session_id = None if value is None else str(value)
        if not self.opened.done():
            self.opened.set_result(None)
            if self._credit:
                self.link.grant(self._credit)

    def received(self, delivery: IncomingDelivery, raw: bytes) -> None:
        self._ready.append(Received(raw, delivery.tag, delivery))
        self._arrival.set()
        self._credit_used.set()

    def credit_returned(self) -> None:
        self._credit_used.set()

    def confirmed(self, delivery: IncomingDelivery, state: State | None) -> None:
        future = self._settling.pop(delivery, None)
        if future is None or future.done():
            return
        if isinstance(state, Rejected) and state.error is not None:
            future.set_exception(RefusedError(state.error))
        else:
            future.set_result(None)

    def ended(self, error: AmqpError) -> None:
        self._fail(error, self._settling)
        self._arrival.set()
        self._credit_used.set()


async def _collect(futures: list[asyncio.Future[None]]) -> list[AmqpError | None]:
    reasons: list[AmqpError | None] = []
    lost: LinkLostError | None = None
    for future in futures:
        try:
            await future
        except RefusedError as error:
            reasons.append(error.error)
        except LinkLostError as error:
            lost = error
        else:
            reasons.append(None)
    if lost is not None:
        raise lost
    return reasons


def _mark_retrieved(future: asyncio.Future[Any]) -> None:
    """Keep asyncio from logging that nobody retrieved this future's error."""
    if not future.done():
        future.add_done_callback(_mark_retrieved)
    elif not future.cancelled():
        future.exception()


class NodeLinks:
    """The two links to a node that answers requests. Replies are matched by their correlation id."""

    def __init__(self, sender: SenderLink, receiver: ReceiverLink, reply_address: str) -> None:
        self._sender = sender
        self._receiver = receiver
        self._reply_address = reply_address
        self._waiting: dict[UUID, asyncio.Future[Reply]] = {}
        self._reading = asyncio.get_running_loop().create_task(self._read())

    @property
    def is_open(self) -> bool:
        return not self._reading.done()

    async def request(self, properties: dict[str, Any], body: Any, *, seconds: float) -> Reply:
        """Send a request and wait for the reply. Raises TimeoutError after ``seconds``, or LinkLostError."""
        message_id = uuid4()
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting[message_id] = future
        raw = value_message([message_id, None, None, None, self._reply_address], properties, body)
        try:
            async with asyncio.timeout(seconds):
                await self._sender.send(raw)
                return await future
        finally:
            self._waiting.pop(message_id, None)
            if not future.done():
                future.cancel()

    async def _read(self) -> None:
        try:
            while True:
                for message in await self._receiver.receive(REPLY_CREDIT):
                    self._receiver.let_go(message)
                    self._match(message)
        except LinkLostError as lost:
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(lost)

    def _match(self, message: Received) -> None:
        try:
            facts = read_facts(message.raw)
            properties = {str(key): value for key, value in facts.application_properties.items()}
            section = decode(Sections.split(message.raw).body)[0]
        except AmqpDecodeError:
            return
        future = self._waiting.get(facts.correlation_id) if isinstance(facts.correlation_id, UUID) else None
        if future is None or future.done():
            return
        status = properties.get("statusCode", properties.get("status-code"))
        description = properties.get("statusDescription", properties.get("status-description"))
        condition = properties.get("errorCondition")
        future.set_result(
            Reply(
                int(status) if isinstance(status, int) else 0,
                str(description or ""),
                None if condition is None else str(condition),
                section.value if isinstance(section, Described) else None,
            )
        )
