"""One client's connection to the embedded namespace: which links it may open, and what becomes of them.

Rules
- A client proves who it is by tokens put to `$cbs`, before it opens a link. Each link needs its right (Send or Listen)
  when it is opened, and loses its standing when the token ends: it is detached then, and the client comes back with a
  fresh one.
- A refused attach is answered with an empty terminus and a detach that carries the error.
- What a client has sent and the broker has not yet stored is bounded: beyond the bound it is not read from.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

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
)
from pairbus.amqp.links import Link
from pairbus.amqp.outcomes import AmqpError
from pairbus.amqp.protocol import AmqpProtocol
from pairbus.embedded.amqp.addresses import is_cbs, managed_entity, path_of
from pairbus.embedded.amqp.ends import LinkEnd, amqp_error
from pairbus.embedded.amqp.management import CbsLink, CoordinatorLink, ManagementLink, ReplyLink
from pairbus.embedded.amqp.receiving import ReceivingLink
from pairbus.embedded.amqp.sending import SendingLink
from pairbus.embedded.broker import Broker
from pairbus.embedded.clock import Alarm
from pairbus.embedded.errors import BrokerError, Limits, UnauthorizedError
from pairbus.embedded.faults import SERVER_BUSY, Fault, FaultSwitchboard
from pairbus.embedded.security import Grant

MAX_GRANTS = 1_000
MAX_UNSTORED_BYTES = 16 << 20
CONTAINER_ID = "pairbus"


class TokenCheck(Protocol):
    def check(self, token: str, audience: str, now_ms: int) -> Grant: ...
    def login(self, name: str, key: str) -> Iterable[Grant]: ...


@dataclass(frozen=True, slots=True)
class Services:
    """What every connection of one namespace shares."""

    broker: Broker
    faults: FaultSwitchboard
    authority: TokenCheck
    limits: Limits
    engine_limits: EngineLimits


class ServerConnection:
    def __init__(self, services: Services) -> None:
        self.broker = services.broker
        self.faults = services.faults
        self.limits = services.limits
        self.reply_links: list[ReplyLink] = []
        engine = Engine(server=True, container_id=CONTAINER_ID, limits=services.engine_limits, login=self._login)
        self.protocol = AmqpProtocol(engine, self)
        self._authority = services.authority
        self._grants: dict[str, Grant] = {}
        self._expiry: Alarm | None = None
        self._links: set[Link] = set()
        self._unstored_bytes = 0
        self._holds_reading = False
        self.faults.listen(self._faults_changed)

    # --- events of the engine -----------------------------------------------------------------------------

    def handle(self, event: Event) -> None:
        match event:
            case MessageReceived(link, delivery, raw, message_format):
                if link.context is not None:
                    link.context.received(delivery, raw, message_format)
            case DeliveryUpdated(link, sent):
                if link.context is not None:
                    link.context.updated(sent)
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
                    link.context.received_too_much(delivery, size)
            case ConnectionLost():
                self.faults.unlisten(self._faults_changed)
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
        path = self._path(link)
        if not is_cbs(path):
            # Tokens are accepted whatever the fault: a client meets the fault at its entity.
            fault = self.faults.fault_of(path)
            if fault is not None and self._faulty_attach(fault, link):
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
            return CoordinatorLink(self, link)
        path = self._path(link)
        if is_cbs(path):
            return ReplyLink(self, link, "$cbs") if link.is_sender else CbsLink(self, link)
        entity = managed_entity(path)
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

    @staticmethod
    def _path(link: Link) -> str:
        return path_of((link.remote_source if link.is_sender else link.remote_target).address)

    def refuse(self, link: Link, error: AmqpError) -> None:
        link.context = None
        link.refuse(error)

    def reply(self, node: str, reply_to: str | None, raw: bytes) -> None:
        """Send a reply on the link the request names, else on the node's latest one."""
        for end in reversed(self.reply_links):
            if end.path == node and (reply_to is None or end.address == reply_to):
                end.send(raw)
                return
        for end in reversed(self.reply_links):
            if end.path == node:
                end.send(raw)
                return

    # --- what the client may do ---------------------------------------------------------------------------

    def put_token(self, token: str, audience: str) -> None:
        """Take a token for an audience; UnauthorizedError if it is not good."""
        grant = self._authority.check(token, audience, self.broker.clock.now_ms())
        path = path_of(audience)
        entity = managed_entity(path)
        entity = path if entity is None else entity
        if entity and not is_cbs(entity):
            self.broker.check_exists(entity)
        if len(self._grants) >= MAX_GRANTS and grant.scope not in self._grants:
            raise UnauthorizedError(f"A connection may hold {MAX_GRANTS} tokens at most. Open another connection.")
        self._grants[grant.scope] = grant
        self._watch_expiry()

    def _login(self, name: str, key: str) -> bool:
        """A client that gives its key at once holds what the key allows, as long as it stays."""
        for grant in itertools.islice(self._authority.login(name, key), MAX_GRANTS):
            self._grants[grant.scope] = grant
        return bool(self._grants)

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
        now_ms = self.broker.clock.now_ms()
        ended = [scope for scope, grant in self._grants.items() if grant.expires_ms <= now_ms]
        for scope in ended:
            del self._grants[scope]
        if ended:
            for link in list(self._links):
                end: LinkEnd | None = link.context
                if end is not None and end.right is not None and not self._allows(end.path, end.right):
                    # Ended here and now: the client may never answer the detach.
                    link.context = None
                    end.closed()
                    link.close(AmqpError("amqp:unauthorized-access", "ExpiredToken: The token has expired."))
        if self._grants:
            self._watch_expiry()

    # --- how much may be under way ------------------------------------------------------------------------

    def takes(self, size: int) -> None:
        """The broker was given so many bytes to store."""
        self._unstored_bytes += size
        if self._unstored_bytes > MAX_UNSTORED_BYTES and not self._holds_reading:
            self._holds_reading = True
            self.protocol.hold_reading()

    def took(self, size: int) -> None:
        self._unstored_bytes -= size
        if self._holds_reading and self._unstored_bytes <= MAX_UNSTORED_BYTES // 2:
            self._holds_reading = False
            self.protocol.release_reading()

    # --- faults -------------------------------------------------------------------------------------------

    def _faulty_attach(self, fault: Fault, link: Link) -> bool:
        """Do what the fault says to a new link; False if it is to be opened as usual."""
        match fault.mode:
            case "refuse" if fault.entity is None:
                self.abort()
            case "refuse":
                self.refuse(link, AmqpError("amqp:internal-error", "The entity cannot be reached at the moment."))
            case "error":
                self.refuse(link, AmqpError(fault.condition or "amqp:internal-error", "A fault was switched on."))
            case "throttle" if fault.rate == 0:
                self.refuse(link, AmqpError(SERVER_BUSY, "The server is busy. Wait 10 seconds and try again."))
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
