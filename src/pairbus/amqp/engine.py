"""PURE. One AMQP 1.0 connection without IO: bytes and the time in, events and bytes out.

OASIS AMQP 1.0, part 2: 2.2 version negotiation, 2.4 connections (2.4.5 idle timeout), 2.5 sessions, 2.6 links; Proton
implements the protocol itself. Bytes pass through `sasl`, then `frames`, then Proton, which reports events.

- `receive_data(data, now)` takes the peer's bytes and returns events. `data_to_send()` returns bytes for the peer.
- Times are seconds on a monotonic clock of the caller. At `next_deadline` the caller calls `handle_timeout(now)`.
- Handles (`Link`, deliveries) may be used at any time. When they leave something to send, the engine calls `wake`.
- `finished`: close the connection, everything was sent. `aborted`: cut the connection now.
- A hostile peer cannot make memory grow without limit: frames, sessions, links and unfinished messages have limits
  (`EngineLimits`). A peer that is silent for the idle timeout, or does not open in time, is cut.

`protocol` runs an engine in asyncio, for servers and clients. Proton's C objects are used directly, without its Python
wrappers; `links` states the rules for their memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf
from typing import Any

from cproton import ffi, lib

from pairbus.amqp.frames import DeliveryIds, IncomingFormats, OutgoingFormats
from pairbus.amqp.links import (
    SMALL_BUFFER_BYTES,
    IncomingDelivery,
    Link,
    OutgoingDelivery,
    new_buffer,
    read_condition,
    write_condition,
)
from pairbus.amqp.outcomes import AmqpError, LinkLostError, State
from pairbus.amqp.sasl import Login, SaslError, SaslExchange

CLOSE_TIMEOUT_S = 5.0
"""A peer that does not answer our close within this time is cut."""
_CHUNK_BYTES = 131_072
_PN_EOS = -1


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """How much one peer may use. Sizes are bytes, times seconds."""

    max_frame: int = 65_536
    max_sessions: int = 256
    max_links: int = 2_048
    max_message: int = 1_100_000
    max_unfinished: int = 32 << 20
    write_buffer: int = 1 << 20
    session_window: int = 8 << 20
    idle_timeout: float = 240.0
    open_timeout: float = 30.0


class UnfinishedBudget:
    """What the unfinished messages of many connections may use together.

    Above `limit` bytes the connection that holds most of them is closed, so those who hold little go on.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.total = 0
        self._holders: set[Engine] = set()

    def count(self, engine: Engine, size: int, now: float) -> None:
        self.total += size
        (self._holders.add if engine.unfinished_bytes else self._holders.discard)(engine)
        if size > 0 and self.total > self.limit:
            max(self._holders, key=lambda holder: holder.unfinished_bytes).cut_hoarder(now)


# --- events ---------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class ConnectionOpened:
    """Both sides have opened the connection."""


@dataclass(slots=True)
class ConnectionLost:
    """The connection is gone. No event follows."""

    error: AmqpError


@dataclass(slots=True)
class LinkOpened:
    """The peer attached: to its own link, which must be accepted or refused now or later, or in answer to ours."""

    link: Link


@dataclass(slots=True)
class LinkClosed:
    link: Link
    error: AmqpError | None


@dataclass(slots=True)
class MessageReceived:
    link: Link
    delivery: IncomingDelivery
    raw: bytes
    message_format: int


@dataclass(slots=True)
class MessageTooLarge:
    """A message exceeded `EngineLimits.max_message`. Its bytes were dropped."""

    link: Link
    delivery: IncomingDelivery
    size: int


@dataclass(slots=True)
class DeliveryUpdated:
    """The peer changed the state of a message we sent, or settled it."""

    link: Link
    delivery: OutgoingDelivery


@dataclass(slots=True)
class OutcomeConfirmed:
    """The peer applied the outcome we proposed for its message, or another one."""

    link: Link
    delivery: IncomingDelivery
    state: State | None


@dataclass(slots=True)
class CreditChanged:
    link: Link


Event = (
    ConnectionOpened
    | ConnectionLost
    | LinkOpened
    | LinkClosed
    | MessageReceived
    | MessageTooLarge
    | DeliveryUpdated
    | OutcomeConfirmed
    | CreditChanged
)


class Engine:
    """The state of one connection, on the server's or the client's side."""

    def __init__(
        self,
        *,
        server: bool,
        container_id: str,
        hostname: str = "",
        limits: EngineLimits = EngineLimits(),  # noqa: B008 - frozen
        login: Login | None = None,
        budget: UnfinishedBudget | None = None,
    ) -> None:
        self.limits = limits
        self.wake: Callable[[], None] = lambda: None
        self.lost = False
        self.finished = False
        self.aborted = False
        self.next_deadline: float | None = None
        self.unfinished_bytes = 0
        self.unfinished_limit = max(limits.max_unfinished, 2 * limits.max_message)
        self.link_limit = limits.max_links
        self._budget = budget
        self.small_buffer = new_buffer(SMALL_BUFFER_BYTES)
        self._server = server
        self._sasl: SaslExchange | None = SaslExchange(server=server, login=login)
        self._sasl_output = b""
        self._ids = DeliveryIds() if server else None
        self._incoming_formats = IncomingFormats(limits.max_frame, room_for_patches=not server, ids=self._ids)
        self._outgoing_formats = OutgoingFormats() if not server else None
        self._links: dict[Any, Link] = {}
        self._sessions: set[Any] = set()
        self._closed_links: deque[LinkClosed] = deque()
        self._now = 0.0
        self._open_deadline = self._close_deadline = self._tick_deadline = inf
        self._input_ended = False
        self._ignores_input = False
        self._error: AmqpError | None = None
        self._transport = lib.pn_transport()
        self._connection = lib.pn_connection()
        self._collector = lib.pn_collector()
        if server:
            lib.pn_transport_set_server(self._transport)
        lib.pn_transport_set_max_frame(self._transport, limits.max_frame)
        lib.pn_transport_set_channel_max(self._transport, limits.max_sessions - 1)
        lib.pn_transport_set_idle_timeout(self._transport, int(limits.idle_timeout * 1000))
        lib.pn_connection_set_container(self._connection, container_id.encode())
        if hostname:
            lib.pn_connection_set_hostname(self._connection, hostname.encode())
        lib.pn_connection_collect(self._connection, self._collector)
        lib.pn_transport_bind(self._transport, self._connection)

    # --- for the IO around it -----------------------------------------------------------------------------

    def start(self, now: float) -> None:
        """Begin: the bytes can flow now. A client has something to send."""
        self._now = now
        if self._sasl is not None:
            self._sasl_output += self._sasl.start()
        self._set_deadlines(opened_by=now + self.limits.open_timeout)

    def receive_data(self, data: bytes, now: float) -> Iterator[Event]:
        """Take bytes of the peer. Handle each event before you ask for the next; those left over come next time."""
        self._now = now
        if not self.lost and not self._ignores_input:
            if self._sasl is not None:
                data = self._receive_sasl(self._sasl, data)
            self._push(data)
        return self.events()

    def receive_eof(self, now: float) -> Iterator[Event]:
        """The peer will send nothing more."""
        self._now = now
        if not self.lost:
            self._input_ended = True
            lib.pn_transport_close_tail(self._transport)
        return self.events()

    def handle_timeout(self, now: float) -> Iterator[Event]:
        """Do what is due by now. Calling it early is harmless."""
        self._now = now
        if not self.lost:
            if now >= self._open_deadline:
                self._error = AmqpError("amqp:resource-limit-exceeded", "the connection was not opened in time")
                self.aborted = True
            elif now >= self._close_deadline:
                self.aborted = True
            elif now >= self._tick_deadline:
                now_ms = int(now * 1000)
                next_ms = lib.pn_transport_tick(self._transport, now_ms)
                self._set_deadlines(tick=now + max(next_ms - now_ms, 1) / 1000 if next_ms > 0 else inf)
            if self.aborted:
                self._set_deadlines(opened_by=inf, closed_by=inf, tick=inf)
        return self.events()

    def events(self) -> Iterator[Event]:
        """The events that nobody has taken yet."""
        peek, pop, event_type, null = lib.pn_collector_peek, lib.pn_collector_pop, lib.pn_event_type, ffi.NULL
        while not self.lost:
            if self._closed_links:
                yield self._closed_links.popleft()
                continue
            proton_event = peek(self._collector)
            if proton_event == null:
                return
            kind = event_type(proton_event)
            if kind == _DELIVERY:
                event = self._on_delivery(lib.pn_event_delivery(proton_event))
            else:
                react = _REACTIONS.get(kind)
                event = react(self, proton_event) if react is not None else None
            pop(self._collector)
            if event is not None:
                yield event

    def data_to_send(self) -> bytes:
        """The next bytes for the peer, at most one chunk; ``b""`` if there are none now. May set `finished`."""
        if self._sasl_output:
            handshake, self._sasl_output = self._sasl_output, b""
            return handshake
        while self._sasl is None and not self.lost:
            pending = lib.pn_transport_pending(self._transport)
            if pending <= 0:
                self.finished = self.finished or pending == _PN_EOS
                break
            size = min(pending, _CHUNK_BYTES)
            buffer = new_buffer(size)
            taken = lib.pn_transport_peek(self._transport, buffer, size)
            data: bytes = ffi.unpack(buffer, taken)
            lib.pn_transport_pop(self._transport, taken)
            if self._outgoing_formats is not None:
                data = self._outgoing_formats.patch(data)
            elif self._ids is not None:
                data = self._ids.restore(data)
            if data:
                return data
        return b""

    def connection_lost(self, reason: str = "") -> list[Event]:
        """The connection is gone: free everything. Returns the last events."""
        if self.lost:
            return []
        self.lost = True
        self.next_deadline = None
        error = self._error or AmqpError("amqp:connection:forced", reason or "the connection ended")
        events: list[Event] = [*self._closed_links]
        for link in self._links.values():
            if link.announced:
                events.append(LinkClosed(link, error))
            link.release()
        self._links.clear()
        self._sessions.clear()
        lib.pn_transport_unbind(self._transport)
        lib.pn_connection_release(self._connection)
        lib.pn_collector_release(self._collector)
        lib.pn_decref(self._transport)
        lib.pn_decref(self._connection)
        lib.pn_collector_free(self._collector)
        del self._transport, self._connection, self._collector
        return [*events, ConnectionLost(error)]

    # --- for the application ------------------------------------------------------------------------------

    def close(self, now: float, error: AmqpError | None = None) -> None:
        """Close as the protocol provides (2.4.3). The peer has `CLOSE_TIMEOUT_S` to answer."""
        if self.lost:
            return
        if error is not None:
            self._error = error
            write_condition(lib.pn_connection_condition(self._connection), error)
        lib.pn_connection_close(self._connection)
        self._set_deadlines(closed_by=min(self._close_deadline, now + CLOSE_TIMEOUT_S))
        self.wake()

    def new_session(self) -> Any:
        self._require_connection()
        session = lib.pn_session(self._connection)
        lib.pn_session_set_incoming_capacity(session, self.limits.session_window)
        lib.pn_session_open(session)
        self._sessions.add(session)
        self.wake()
        return session

    def has_session(self, session: Any) -> bool:
        """Whether a session is still open: a peer may end a session and keep the connection."""
        return session in self._sessions

    def new_link(self, session: Any, name: str, *, sender: bool) -> Link:
        """Create a link of ours, to be opened with `Link.open`. Raises LinkLostError if its session has ended."""
        self._require_connection()
        if not self.has_session(session):
            raise LinkLostError(AmqpError("amqp:session:errant-link", "the session ended"))
        impl = (lib.pn_sender if sender else lib.pn_receiver)(session, name.encode())
        link = Link(self, impl, name, is_sender=sender, formats=deque())
        link.announced = True
        self._links[impl] = link
        return link

    def note_format(self, link: Link, message_format: int) -> None:
        if self._outgoing_formats is not None:
            self._outgoing_formats.note(link.name, message_format)

    # --- inside -------------------------------------------------------------------------------------------

    def _receive_sasl(self, sasl: SaslExchange, data: bytes) -> bytes:
        """Go on with the SASL exchange. Returns the bytes that belong to AMQP, once it is over."""
        try:
            self._sasl_output += sasl.feed(data)
        except SaslError as error:
            self._sasl_output += error.reply
            self._error = self._error or AmqpError("amqp:connection:framing-error", str(error))
            self._ignores_input = self.finished = True
            return b""
        if not sasl.done:
            return b""
        self._sasl = None
        if not self._server:
            lib.pn_connection_open(self._connection)
        return sasl.rest

    def _push(self, data: bytes) -> None:
        data = self._incoming_formats.feed(data) if data else data
        while data:
            taken = lib.pn_transport_push(self._transport, data, len(data))
            if taken <= 0:
                return
            data = data[taken:] if taken < len(data) else b""

    def _set_deadlines(
        self, *, opened_by: float | None = None, closed_by: float | None = None, tick: float | None = None
    ) -> None:
        self._open_deadline = self._open_deadline if opened_by is None else opened_by
        self._close_deadline = self._close_deadline if closed_by is None else closed_by
        self._tick_deadline = self._tick_deadline if tick is None else tick
        soonest = min(self._open_deadline, self._close_deadline, self._tick_deadline)
        self.next_deadline = None if soonest == inf else soonest

    def _require_connection(self) -> None:
        if self.lost:
            raise LinkLostError(self._error or AmqpError("amqp:connection:forced", "the connection ended"))

    def _on_delivery(self, impl: Any) -> Event | None:
        link = self._links.get(lib.pn_delivery_link(impl))
        if link is None:
            return None
        if link.is_sender:
            outgoing = link.outgoing.get(impl)
            if outgoing is not None and lib.pn_delivery_updated(impl):
                return DeliveryUpdated(link, outgoing)
        elif lib.pn_delivery_readable(impl) or lib.pn_delivery_aborted(impl):
            return self._on_incoming(link, impl)
        elif link.proposed and lib.pn_delivery_settled(impl):
            proposed = link.proposed.pop(impl, None)
            if proposed is not None:
                return OutcomeConfirmed(link, proposed, proposed.confirm())
        return None

    def _on_incoming(self, link: Link, impl: Any) -> Event | None:
        if lib.pn_delivery_aborted(impl):
            if lib.pn_link_current(link.impl) == impl:  # the first of its events
                link.drop_partial()
                if link.formats:
                    link.formats.popleft()
                lib.pn_delivery_settle(impl)
            return None
        pending = lib.pn_delivery_pending(impl)
        raw = link.read(pending) if pending else b""
        if link.closing:
            if not lib.pn_delivery_partial(impl):
                lib.pn_link_advance(link.impl)
                lib.pn_delivery_settle(impl)
            return None
        if lib.pn_delivery_partial(impl):
            link.keep_partial(raw, self.limits.max_message)
            return None
        lib.pn_link_advance(link.impl)
        message_format = link.formats.popleft() if link.formats else 0
        delivery = IncomingDelivery(link, impl)
        if link.partial_size:
            size = link.partial_size + len(raw)
            whole = link.take_partial(raw)
            if whole is None or size > self.limits.max_message:
                return MessageTooLarge(link, delivery, size)
            raw = whole
        return MessageReceived(link, delivery, raw, message_format)

    def count_unfinished(self, size: int) -> None:
        self.unfinished_bytes += size
        if self._budget is not None:
            self._budget.count(self, size, self._now)
        if size > 0 and self.unfinished_bytes > self.unfinished_limit:
            self.cut_hoarder(self._now)

    def cut_hoarder(self, now: float) -> None:
        """The peer has begun too many messages without finishing them."""
        if self._error is None:
            held = self.unfinished_bytes
            error = AmqpError("amqp:resource-limit-exceeded", f"{held} bytes of unfinished messages are too many")
            self.close(now, error)
            self._ignores_input = True
        for link in self._links.values():
            link.drop_partial()

    def _on_connection_open(self, event: Any) -> Event:
        if self._server:
            lib.pn_connection_open(self._connection)
        self._set_deadlines(opened_by=inf, tick=self._now)
        return ConnectionOpened()

    def _on_connection_close(self, event: Any) -> None:
        self._error = self._error or read_condition(lib.pn_connection_remote_condition(self._connection))
        lib.pn_connection_close(self._connection)

    def _on_session_open(self, event: Any) -> None:
        session = lib.pn_event_session(event)
        if session not in self._sessions:
            self._sessions.add(session)
            lib.pn_session_set_incoming_capacity(session, self.limits.session_window)
            lib.pn_session_open(session)

    def _on_session_close(self, event: Any) -> None:
        session = lib.pn_event_session(event)
        error = read_condition(lib.pn_session_remote_condition(session))
        for link in [link for link in self._links.values() if lib.pn_link_session(link.impl) == session]:
            closed = self._drop_link(link, error)
            if closed is not None:
                self._closed_links.append(closed)
        self._sessions.discard(session)
        lib.pn_session_close(session)
        lib.pn_session_free(session)

    def _on_link_open(self, event: Any) -> Event | None:
        impl = lib.pn_event_link(event)
        link = self._links.get(impl)
        if link is None:
            link = self._new_remote_link(impl)
            if link is None:
                return None
        elif not link.is_sender:
            link.formats = self._incoming_formats.formats(link.name)
        link.announced = True
        return LinkOpened(link)

    def _new_remote_link(self, impl: Any) -> Link | None:
        """The handle of a link the peer opens; None if it was refused."""
        raw_name = lib.pn_link_name(impl)
        if raw_name == ffi.NULL:
            self.close(self._now, AmqpError("amqp:invalid-field", "A link must have a name."))
            return None
        name = ffi.string(raw_name).decode("utf-8", "replace")
        sender = bool(lib.pn_link_is_sender(impl))
        formats = deque() if sender else self._incoming_formats.formats(name)
        link = self._links[impl] = Link(self, impl, name, is_sender=sender, formats=formats)
        limit = self.link_limit
        if len(self._links) <= limit:
            return link
        error = AmqpError(
            "amqp:resource-limit-exceeded", f"a connection may have {limit} links at most; close some or open another"
        )
        if len(self._links) > 2 * limit:
            # A refused link uses memory until the peer detaches it.
            self.close(self._now, error)
        link.refuse(error)
        return None

    def _on_link_close(self, event: Any) -> Event | None:
        impl = lib.pn_event_link(event)
        link = self._links.get(impl)
        return self._drop_link(link, read_condition(lib.pn_link_remote_condition(impl))) if link is not None else None

    def _drop_link(self, link: Link, error: AmqpError | None) -> LinkClosed | None:
        impl, announced = link.impl, link.announced
        self._links.pop(impl, None)
        if not link.is_sender:
            self._incoming_formats.forget(link.name)
        link.release()
        lib.pn_link_close(impl)
        lib.pn_link_free(impl)
        return LinkClosed(link, error) if announced else None

    def _on_link_flow(self, event: Any) -> Event | None:
        link = self._links.get(lib.pn_event_link(event))
        if link is not None and link.announced and (link.is_sender or not self._server):
            return CreditChanged(link)
        return None

    def _on_input_ended(self, event: Any) -> None:
        """Proton takes no more input: the peer closed or vanished, or sent something malformed.

        For malformed input Proton does not always set an error itself.
        """
        if self._input_ended or lib.pn_connection_state(self._connection) & lib.PN_REMOTE_CLOSED:
            return
        if self._error is None:
            self.close(self._now, AmqpError("amqp:decode-error", "A frame could not be understood."))

    def _on_transport_error(self, event: Any) -> None:
        self._error = self._error or read_condition(lib.pn_transport_condition(self._transport))


_DELIVERY = lib.PN_DELIVERY
_REACTIONS: dict[Any, Callable[[Engine, Any], Event | None]] = {
    lib.PN_CONNECTION_REMOTE_OPEN: Engine._on_connection_open,
    lib.PN_CONNECTION_REMOTE_CLOSE: Engine._on_connection_close,
    lib.PN_SESSION_REMOTE_OPEN: Engine._on_session_open,
    lib.PN_SESSION_REMOTE_CLOSE: Engine._on_session_close,
    lib.PN_LINK_REMOTE_OPEN: Engine._on_link_open,
    lib.PN_LINK_REMOTE_CLOSE: Engine._on_link_close,
    lib.PN_LINK_REMOTE_DETACH: Engine._on_link_close,
    lib.PN_LINK_FLOW: Engine._on_link_flow,
    lib.PN_TRANSPORT_ERROR: Engine._on_transport_error,
    lib.PN_TRANSPORT_TAIL_CLOSED: Engine._on_input_ended,
}
