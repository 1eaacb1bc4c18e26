"""One client's connection to the embedded namespace: which links it may open, and what happens on them.

- A client proves its rights with tokens put to `$cbs`, or with a key at login (SASL PLAIN). A link needs its right,
  Send or Listen, when it opens. When the token expires, the link is detached and the client reconnects with a new one.
  When keys change, all tokens and logins are checked again: links that lost their right are detached, and a connection
  without any right left is closed.
- A refused attach is answered with an empty terminus and a detach that carries the error.
- Before the first valid token only `$cbs` is open, for a few links with small messages.
- The bytes a client has sent and the broker has not stored are bounded, for each connection and for all together: above
  a bound the client is not read from. Above the bound of unfinished messages, the connection that holds most is closed.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass

from pairbus.amqp.engine import (
    ConnectionLost,
    CreditChanged,
    DeliveryUpdated,
    Engine,
    EngineLimits,
    Event,
    LinkClosed,
    LinkOpened,
    MessageReceived,
    MessageTooLarge,
    UnfinishedBudget,
)
from pairbus.amqp.links import Link
from pairbus.amqp.outcomes import AmqpError
from pairbus.amqp.protocol import AmqpProtocol
from pairbus.embedded.admission import Admission
from pairbus.embedded.amqp.links import BUSY, FAULT_ACTIVE, LinkEnd, ReceivingLink, SendingLink, amqp_error
from pairbus.embedded.amqp.management import CbsLink, CoordinatorLink, ManagementLink, ReplyLink
from pairbus.embedded.broker import Broker
from pairbus.embedded.clock import Alarm
from pairbus.embedded.errors import BrokerError, Limits, UnauthorizedError
from pairbus.embedded.faults import Fault, FaultSwitchboard
from pairbus.embedded.security import Authority, Grant, address_path

MAX_GRANTS = 1_000
MAX_UNSTORED_BYTES = 16 << 20
MAX_UNSTORED_TOGETHER = 256 << 20
MAX_UNFINISHED_TOGETHER = 256 << 20
UNPROVEN_UNFINISHED_BYTES = 64 << 10
UNPROVEN_LINKS = 32
CONTAINER_ID = "pairbus"

CBS_NODE = "$cbs"
_MANAGEMENT_SUFFIX = "/$management"


@dataclass(slots=True)
class Services:
    """Shared by all connections of a namespace."""

    broker: Broker
    faults: FaultSwitchboard
    authority: Authority
    limits: Limits
    engine_limits: EngineLimits
    admission: Admission
    budget: UnfinishedBudget
    unstored_bytes: int = 0


def amqp_protocol_factory(
    broker: Broker,
    faults: FaultSwitchboard,
    authority: Authority,
    limits: Limits,
    engine_limits: EngineLimits | None = None,
    admission: Admission | None = None,
) -> Callable[[], asyncio.Protocol]:
    """A factory for a listener: one protocol per connection to the namespace."""
    if engine_limits is None:
        engine_limits = EngineLimits(max_message=4 * max(limits.max_message_bytes, limits.max_batch_bytes) + 65_536)
    admission = admission or Admission(limits.max_connections, limits.unproven_seconds)
    budget = UnfinishedBudget(MAX_UNFINISHED_TOGETHER)
    services = Services(broker, faults, authority, limits, engine_limits, admission, budget)

    def connect() -> asyncio.Protocol:
        fault = faults.fault_of(None)
        if fault is not None and fault.mode == "refuse":
            return _RefusingProtocol()
        return ServerConnection(services).protocol

    return connect


class _RefusingProtocol(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.abort()


class ServerConnection:
    def __init__(self, services: Services) -> None:
        self.broker = services.broker
        self.faults = services.faults
        self.limits = services.limits
        self.reply_links: list[ReplyLink] = []
        limits = services.engine_limits
        engine = Engine(
            server=True, container_id=CONTAINER_ID, limits=limits, login=self._login, budget=services.budget
        )
        self._proven_limits = engine.unfinished_limit, engine.link_limit
        engine.unfinished_limit, engine.link_limit = UNPROVEN_UNFINISHED_BYTES, min(UNPROVEN_LINKS, limits.max_links)
        self.protocol = AmqpProtocol(engine, self)
        self._authority = services.authority
        self._services = services
        self._grants: dict[str, Grant] = {}
        self._tokens: dict[str, tuple[str, str]] = {}
        self._key: tuple[str, str] | None = None
        self._expiry: Alarm | None = None
        self._links: set[Link] = set()
        self._unstored_bytes = 0
        self._holds_reading = False
        self.faults.listen(self._faults_changed)
        self.broker.rules_listeners.add(self._check_keys)

    # --- events of the engine -----------------------------------------------------------------------------

    def handle(self, event: Event) -> None:
        # One message means one event: isinstance is several times faster here than a class pattern.
        if isinstance(event, MessageReceived):
            if event.link.context is not None:
                event.link.context.received(event.delivery, event.raw, event.message_format)
            return
        if isinstance(event, DeliveryUpdated):
            if event.link.context is not None:
                event.link.context.updated(event.delivery)
            return
        match event:
            case CreditChanged(link):
                if link.context is not None:
                    link.context.credit_changed()
            case LinkOpened(link):
                self._link_opened(link)
            case LinkClosed(link):
                self._links.discard(link)
                end: LinkEnd | None = link.context
                if end is not None:
                    link.context = None
                    end.closed()
            case MessageTooLarge(link, delivery, size):
                if link.context is not None:
                    link.context.too_large(delivery, size)
            case ConnectionLost():
                self.faults.unlisten(self._faults_changed)
                self.broker.rules_listeners.discard(self._check_keys)
                if self._expiry is not None:
                    self._expiry.cancel()

    def writing_paused(self, paused: bool) -> None:
        for link in list(self._links):
            if link.context is not None:
                link.context.credit_changed()

    def abort(self) -> None:
        self.protocol.abort()

    # --- links --------------------------------------------------------------------------------------------

    def _link_opened(self, link: Link) -> None:
        self._links.add(link)
        path = _link_path(link)
        if not _is_cbs(path):
            # Tokens are accepted whatever the fault: a client meets the fault at its entity.
            fault = self.faults.fault_of(path)
            if fault is not None and self._apply_attach_fault(fault, link):
                return
        self._open(link)

    def _open(self, link: Link) -> None:
        if not link.alive:
            return
        try:
            end = self._end_for(link)
            link.context = end
            end.open()
        except BrokerError as error:
            self.refuse(link, amqp_error(error))

    def _end_for(
        self, link: Link
    ) -> SendingLink | ReceivingLink | ReplyLink | CbsLink | ManagementLink | CoordinatorLink:
        if not link.is_sender and link.remote_target.is_coordinator:
            if not any(grant.expires_ms > self.broker.clock.now_ms() for grant in self._grants.values()):
                raise UnauthorizedError("Unauthorized access. Put a token to '$cbs' before you declare transactions.")
            return CoordinatorLink(self, link)
        path = _link_path(link)
        if _is_cbs(path):
            return ReplyLink(self, link, "$cbs") if link.is_sender else CbsLink(self, link)
        entity = _managed_entity(path)
        if entity is not None:
            self._require_any(path)
            self.broker.check_exists(entity)
            node = path.lower()
            return ReplyLink(self, link, node) if link.is_sender else ManagementLink(self, link, node, entity)
        if link.is_sender:
            self.require(path, "Listen")
            return ReceivingLink(self, link, path)
        self.require(path, "Send")
        self.broker.check_sendable(path)
        return SendingLink(self, link, path)

    def refuse(self, link: Link, error: AmqpError) -> None:
        link.context = None
        link.refuse(error)

    def reply(self, node: str, reply_to: str | None, raw: bytes) -> None:
        """Send a reply on the link the request names, or else on the node's latest reply link."""
        links = [end for end in reversed(self.reply_links) if end.path == node]
        named = [end for end in links if reply_to is not None and end.address == reply_to]
        for end in (named or links)[:1]:
            end.send(raw)

    # --- the client's rights ------------------------------------------------------------------------------

    def put_token(self, token: str, audience: str) -> None:
        """Accept a token for an audience. Raises UnauthorizedError if it is not valid."""
        grant = self._authority.check(token, audience, self.broker.clock.now_ms())
        path = address_path(audience)
        entity = _managed_entity(path)
        entity = path if entity is None else entity
        if entity and not _is_cbs(entity):
            self.broker.check_exists(entity)
        if len(self._grants) >= MAX_GRANTS and grant.scope not in self._grants:
            raise UnauthorizedError(f"A connection can hold at most {MAX_GRANTS} tokens. Open another connection.")
        self._grants[grant.scope] = grant
        self._tokens[grant.scope] = token, audience
        self._proven()
        self._watch_expiry()

    def _login(self, name: str, key: str) -> bool:
        """A client that logs in with a key has the rights of the key for as long as the key is valid."""
        self._key = name, key
        self._grants |= self._login_grants()
        if self._grants:
            self._proven()
            self._watch_expiry()
        return bool(self._grants)

    def _login_grants(self) -> dict[str, Grant]:
        if self._key is None:
            return {}
        grants = self._authority.login(*self._key, self.broker.clock.now_ms())
        return {grant.scope: grant for grant in itertools.islice(grants, MAX_GRANTS)}

    def _proven(self) -> None:
        self._services.admission.set_proven(self.protocol.transport, True)
        self.protocol.engine.unfinished_limit, self.protocol.engine.link_limit = self._proven_limits

    def _allows(self, path: str, right: str) -> bool:
        now_ms = self.broker.clock.now_ms()
        return any(grant.expires_ms > now_ms and grant.allows(path, right) for grant in self._grants.values())

    def require(self, path: str, right: str) -> None:
        if not self._allows(path, right):
            raise UnauthorizedError(
                f"Unauthorized access. '{right}' claim(s) are required to perform this operation on '{path[:256]}'."
            )

    def _require_any(self, path: str) -> None:
        if not self._allows(path, "Send") and not self._allows(path, "Listen"):
            self.require(path, "Manage")

    def _watch_expiry(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
        soonest = min(grant.expires_ms for grant in self._grants.values())
        self._expiry = self.broker.clock.call_at(soonest, self._expire)

    def _expire(self) -> None:
        self._expiry = None
        self._check_again(AmqpError("amqp:unauthorized-access", "ExpiredToken: The token has expired."))

    def _check_keys(self) -> None:
        if self._grants:
            error = AmqpError("amqp:unauthorized-access", "InvalidSignature: The key was removed or replaced.")
            self._check_again(error)
            if not self._grants:
                self.protocol.close(error)

    def _check_again(self, error: AmqpError) -> None:
        """Keep the rights that the client's key and tokens give now, and detach the links that need others."""
        now_ms = self.broker.clock.now_ms()
        self._grants = self._login_grants()
        for scope, (token, audience) in list(self._tokens.items()):
            try:
                self._grants[scope] = self._authority.check(token, audience, now_ms)
            except UnauthorizedError:
                del self._tokens[scope]
        for link in list(self._links):
            end: LinkEnd | None = link.context
            if end is not None and end.right is not None and not self._allows(end.path, end.right):
                # Closed at once: the client may never answer the detach.
                link.context = None
                end.closed()
                link.close(error)
        if self._grants:
            self._watch_expiry()
        else:
            self._services.admission.set_proven(self.protocol.transport, False)

    # --- backpressure -------------------------------------------------------------------------------------

    def storing(self, size: int) -> None:
        """The broker has been given `size` bytes to store."""
        self._unstored_bytes += size
        self._services.unstored_bytes += size
        too_many = self._unstored_bytes > MAX_UNSTORED_BYTES or self._services.unstored_bytes > MAX_UNSTORED_TOGETHER
        if too_many and not self._holds_reading:
            self._holds_reading = True
            self.protocol.hold_reading()

    def stored(self, size: int) -> None:
        self._unstored_bytes -= size
        self._services.unstored_bytes -= size
        few = self._unstored_bytes <= MAX_UNSTORED_BYTES // 2 and self._services.unstored_bytes <= MAX_UNSTORED_TOGETHER
        if self._holds_reading and (few or not self._unstored_bytes):
            self._holds_reading = False
            self.protocol.release_reading()

    # --- faults -------------------------------------------------------------------------------------------

    def _apply_attach_fault(self, fault: Fault, link: Link) -> bool:
        """Return False if the link is to be opened as usual."""
        match fault.mode:
            case "refuse" if fault.entity is None:
                self.abort()
            case "refuse":
                self.refuse(
                    link,
                    AmqpError("amqp:internal-error", "The entity is not available at the moment. Try again later."),
                )
            case "error":
                self.refuse(link, AmqpError(fault.condition or "amqp:internal-error", FAULT_ACTIVE))
            case "throttle" if fault.rate == 0:
                self.refuse(link, BUSY)
            case "slow":
                asyncio.get_running_loop().call_later((fault.delay_ms or 0) / 1000, self._open, link)
            case _:
                return False
        return True

    def _faults_changed(self) -> None:
        fault = self.faults.fault_of(None)
        if fault is not None and fault.mode == "refuse":
            self.abort()
            return
        for link in list(self._links):
            end: LinkEnd | None = link.context
            if end is not None:
                end.faults_changed()
                refused = self.faults.fault_of(end.path) if end.path else None
                if refused is not None and refused.mode == "refuse":
                    self.abort()
                    return


def _link_path(link: Link) -> str:
    return address_path((link.remote_source if link.is_sender else link.remote_target).address or "")


def _is_cbs(path: str) -> bool:
    return path.lower() == CBS_NODE


def _managed_entity(path: str) -> str | None:
    """The entity that a management address is about, or None if the path is not a management address.

    The namespace's own `$management` is about the empty entity.
    """
    if path.lower() == _MANAGEMENT_SUFFIX[1:]:
        return ""
    return path[: -len(_MANAGEMENT_SUFFIX)] if path.lower().endswith(_MANAGEMENT_SUFFIX) else None
