"""One AMQP 1.0 connection: Proton's engine (connection, transport, collector) inside an ``asyncio.Protocol``.

The way of the bytes: socket → SASL → frames looked at → Proton → events → the owner; and back through ``flush``, once
per turn of the loop. The same class serves both sides: a server answers what the peer opens, a client opens first.

Rules
- Everything runs on one loop. The owner is called synchronously and may answer now or later: `Incoming` and `Outgoing`
  deliveries stay valid handles for ever, but once their link or connection is gone their methods do nothing.
- Memory is bounded against a hostile peer: frames, links, sessions and messages have limits, a peer that does not
  read is not read from either, and one that is silent longer than the idle timeout, or does not open in time, is cut.
- The objects of the engine are C pointers here, not Proton's Python wrappers: the wrappers cost several times what
  the engine does. A pointer is never used after its link or connection was freed; `Link._impl` is None from then on.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from typing import Any, cast

from cproton import ffi, lib

from pairbus.amqp.contract import EngineLimits, EngineOwner
from pairbus.amqp.frames import IncomingFormats, OutgoingFormats
from pairbus.amqp.links import Incoming, Link, Outgoing
from pairbus.amqp.native import read_condition, write_condition, write_data
from pairbus.amqp.numbering import DeliveryNumbers
from pairbus.amqp.outcomes import AmqpError, LinkLostError
from pairbus.amqp.sasl import Login, SaslError, SaslExchange

__all__ = ["Engine", "EngineLimits", "EngineOwner", "Incoming", "Link", "Outgoing"]


_PN_EOS = -1


class Engine(asyncio.Protocol):
    def __init__(
        self,
        owner: EngineOwner,
        *,
        server: bool,
        container_id: str,
        hostname: str = "",
        limits: EngineLimits = EngineLimits(),  # noqa: B008 - frozen
        login: Login | None = None,
    ) -> None:
        self.owner = owner
        self.limits = limits
        self.lost = False
        self.unfinished_bytes = 0
        self._server = server
        self._socket: asyncio.Transport | None = None
        self._sasl: SaslExchange | None = SaslExchange(server=server, login=login)
        self._numbers = DeliveryNumbers() if server else None
        self._incoming_formats = IncomingFormats(limits.max_frame, room_for_patches=not server, numbers=self._numbers)
        self._outgoing_formats = OutgoingFormats() if not server else None
        self._links: dict[Any, Link] = {}
        self._sessions: set[Any] = set()
        self._flush_due = False
        self._paused = False
        self._eof = False
        self._holds = 0
        self._timer: asyncio.TimerHandle | None = None
        self._open_timer: asyncio.TimerHandle | None = None
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

    # --- asyncio.Protocol ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._socket = cast(asyncio.Transport, transport)
        self._socket.set_write_buffer_limits(high=self.limits.write_buffer)
        self._loop = asyncio.get_running_loop()
        self._open_timer = self._loop.call_later(self.limits.open_timeout, self._open_timed_out)
        if self._sasl is not None:
            self._write(self._sasl.start())

    def data_received(self, data: bytes) -> None:
        if self.lost:
            return
        if self._sasl is not None:
            try:
                self._write(self._sasl.feed(data))
            except SaslError as error:
                self._write(error.reply)
                self._end(AmqpError("amqp:connection:framing-error", str(error)))
                return
            if not self._sasl.done:
                return
            data = self._sasl.rest
            self._sasl = None
            if not self._server:
                lib.pn_connection_open(self._connection)
        data = self._incoming_formats.feed(data)
        push = lib.pn_transport_push
        while data:
            taken = push(self._transport, data, len(data))
            if taken < 0:
                break
            self._dispatch()
            data = data[taken:] if taken < len(data) else b""
        self._dispatch()
        self.flush()

    def eof_received(self) -> bool:
        if not self.lost:
            self._eof = True
            lib.pn_transport_close_tail(self._transport)
            self._dispatch()
            self.flush()
        return False

    def pause_writing(self) -> None:
        self._paused = True
        self.hold_reading()
        self.owner.writing_paused(True)

    def resume_writing(self) -> None:
        self._paused = False
        self.release_reading()
        self.flush()
        if not self.lost:
            self.owner.writing_paused(False)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.lost:
            return
        self.lost = True
        for timer in (self._timer, self._open_timer):
            if timer is not None:
                timer.cancel()
        error = self._error or AmqpError("amqp:connection:forced", str(exc) if exc else "the connection ended")
        for link in list(self._links.values()):
            if link.announced:
                self.owner.link_closed(link, error)
            link.forget()
        self._links.clear()
        self._sessions.clear()
        self.owner.connection_lost(error)
        lib.pn_transport_unbind(self._transport)
        lib.pn_connection_release(self._connection)
        lib.pn_collector_release(self._collector)
        lib.pn_decref(self._transport)
        lib.pn_decref(self._connection)
        lib.pn_collector_free(self._collector)
        del self._transport, self._connection, self._collector

    # --- for the owner ------------------------------------------------------------------------------------

    @property
    def writing_is_paused(self) -> bool:
        return self._paused

    def hold_reading(self) -> None:
        """Stop reading from the peer until as many calls of `release_reading` came."""
        self._holds += 1
        if self._holds == 1 and self._socket is not None and not self._socket.is_closing():
            self._socket.pause_reading()

    def release_reading(self) -> None:
        self._holds -= 1
        if self._holds == 0 and self._socket is not None and not self._socket.is_closing():
            self._socket.resume_reading()

    def close(self, error: AmqpError | None = None) -> None:
        """Close the connection in the protocol's own way; `connection_lost` follows."""
        if self.lost:
            return
        if error is not None:
            self._error = error
            write_condition(lib.pn_connection_condition(self._connection), error)
        lib.pn_connection_close(self._connection)
        self.schedule_flush()
        # A peer that never answers the close must not keep the connection.
        self._loop.call_later(5.0, self.abort)

    def abort(self) -> None:
        """Cut the connection without a word, as a broken network would."""
        if self._socket is not None and not self.lost:
            self._socket.abort()

    def new_session(self) -> Any:
        self._require_connection()
        session = lib.pn_session(self._connection)
        lib.pn_session_set_incoming_capacity(session, self.limits.session_window)
        lib.pn_session_open(session)
        self._sessions.add(session)
        self.schedule_flush()
        return session

    def new_link(self, session: Any, name: str, *, sender: bool) -> Link:
        """A link of ours, to be given its source and target and opened; LinkLostError if its session is gone."""
        self._require_connection()
        if not self.has_session(session):
            raise LinkLostError(AmqpError("amqp:session:errant-link", "the session ended"))
        impl = (lib.pn_sender if sender else lib.pn_receiver)(session, name.encode())
        link = Link(self, impl, name, is_sender=sender, formats=deque())
        link.announced = True
        self._links[impl] = link
        return link

    def has_session(self, session: Any) -> bool:
        """Whether a session is still there: peers may end one and leave the connection open."""
        return session in self._sessions

    def _require_connection(self) -> None:
        if self.lost:
            raise LinkLostError(self._error or AmqpError("amqp:connection:forced", "the connection ended"))

    def note_format(self, link: Link, message_format: int) -> None:
        if self._outgoing_formats is not None:
            self._outgoing_formats.note(link.name, message_format)

    def set_properties(self, properties: dict[Any, Any]) -> None:
        write_data(lib.pn_connection_properties(self._connection), properties)

    @property
    def remote_container(self) -> str:
        found = lib.pn_connection_remote_container(self._connection)
        return "" if found == ffi.NULL else ffi.string(found).decode("utf-8", "replace")

    def schedule_flush(self) -> None:
        """Send what is waiting at the end of this turn of the loop: one write for many answers."""
        if not self._flush_due and not self.lost:
            self._flush_due = True
            self._loop.call_soon(self._flush_now)

    def _flush_now(self) -> None:
        self._flush_due = False
        if not self.lost:
            self._dispatch()
            self.flush()

    def flush(self) -> None:
        if self._sasl is not None:
            return
        transport = self._transport
        while not self._paused and not self.lost:
            pending = lib.pn_transport_pending(transport)
            if pending <= 0:
                if pending == _PN_EOS:
                    self._end(None)
                return
            head = _take(transport, pending)
            if self._outgoing_formats is not None:
                head = self._outgoing_formats.patch(head)
            elif self._numbers is not None:
                head = self._numbers.restore(head)
            self._write(head)

    # --- inside -------------------------------------------------------------------------------------------

    def _write(self, data: bytes) -> None:
        if data and self._socket is not None and not self._socket.is_closing():
            self._socket.write(data)

    def _end(self, error: AmqpError | None) -> None:
        self._error = self._error or error
        if self._socket is not None:
            self._socket.close()

    def _open_timed_out(self) -> None:
        self._error = AmqpError("amqp:resource-limit-exceeded", "the connection was not opened in time")
        self.abort()

    def _tick(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.lost:
            return
        now_ms = int(self._loop.time() * 1000)
        next_ms = lib.pn_transport_tick(self._transport, now_ms)
        self._dispatch()
        self.flush()
        if next_ms > 0 and not self.lost:
            self._timer = self._loop.call_later(max(next_ms - now_ms, 1) / 1000, self._tick)

    def _dispatch(self) -> None:
        collector = self._collector
        peek, pop, event_type = lib.pn_collector_peek, lib.pn_collector_pop, lib.pn_event_type
        while True:
            event = peek(collector)
            if event == ffi.NULL:
                return
            kind = event_type(event)
            if kind == _DELIVERY:
                self._on_delivery(lib.pn_event_delivery(event))
            else:
                react = _REACTIONS.get(kind)
                if react is not None:
                    react(self, event)
            pop(collector)

    def _on_delivery(self, impl: Any) -> None:
        link = self._links.get(lib.pn_delivery_link(impl))
        if link is None:
            return
        if link.is_sender:
            delivery = link.outgoing.get(impl)
            if delivery is not None and lib.pn_delivery_updated(impl):
                self.owner.delivery_updated(link, delivery)
        elif lib.pn_delivery_readable(impl) or lib.pn_delivery_aborted(impl):
            self._on_incoming(link, impl)
        elif link.proposed and lib.pn_delivery_settled(impl):
            answered = link.proposed.pop(impl, None)
            if answered is not None:
                state = answered.state
                answered.forget()
                self.owner.outcome_confirmed(link, answered, state)

    def _on_incoming(self, link: Link, impl: Any) -> None:
        if lib.pn_delivery_aborted(impl):
            link.drop_partial()
            lib.pn_delivery_settle(impl)
            return
        pending = lib.pn_delivery_pending(impl)
        raw = link.read(pending) if pending else b""
        if lib.pn_delivery_partial(impl):
            link.keep_partial(raw, self.limits.max_message)
            if self.unfinished_bytes > max(self.limits.max_unfinished, 2 * self.limits.max_message):
                self._cut_hoarder()
            return
        lib.pn_link_advance(link.impl)
        message_format = link.formats.popleft() if link.formats else 0
        delivery = Incoming(link, impl)
        if link.partial_size:
            size = link.partial_size + len(raw)
            whole = link.take_partial(raw)
            if whole is None or size > self.limits.max_message:
                self.owner.message_too_large(link, delivery, size)
                return
            raw = whole
        self.owner.message_received(link, delivery, raw, message_format)

    def _cut_hoarder(self) -> None:
        """The peer began many messages and finished few."""
        if self._error is None:
            held = self.unfinished_bytes
            self.close(AmqpError("amqp:resource-limit-exceeded", f"{held} bytes of unfinished messages are too many"))
            self.hold_reading()

    def _on_connection_open(self, event: Any) -> None:
        if self._open_timer is not None:
            self._open_timer.cancel()
            self._open_timer = None
        if self._server:
            lib.pn_connection_open(self._connection)
        self.owner.connection_opened()
        self._loop.call_soon(self._tick)

    def _on_connection_close(self, event: Any) -> None:
        self._error = self._error or read_condition(lib.pn_connection_remote_condition(self._connection))
        lib.pn_connection_close(self._connection)

    def _on_session_open(self, event: Any) -> None:
        session = lib.pn_event_session(event)
        if session in self._sessions:
            return
        self._sessions.add(session)
        lib.pn_session_set_incoming_capacity(session, self.limits.session_window)
        lib.pn_session_open(session)

    def _on_session_close(self, event: Any) -> None:
        session = lib.pn_event_session(event)
        error = read_condition(lib.pn_session_remote_condition(session))
        for link in [link for link in self._links.values() if lib.pn_link_session(link.impl) == session]:
            self._drop_link(link, error)
        self._sessions.discard(session)
        lib.pn_session_close(session)
        lib.pn_session_free(session)

    def _on_link_open(self, event: Any) -> None:
        impl = lib.pn_event_link(event)
        link = self._links.get(impl)
        if link is None:
            given = lib.pn_link_name(impl)
            if given == ffi.NULL:
                self.close(AmqpError("amqp:invalid-field", "A link must have a name."))
                return
            name = ffi.string(given).decode("utf-8", "replace")
            sender = bool(lib.pn_link_is_sender(impl))
            formats = deque() if sender else self._incoming_formats.formats(name)
            link = Link(self, impl, name, is_sender=sender, formats=formats)
            self._links[impl] = link
            if len(self._links) > self.limits.max_links:
                error = AmqpError(
                    "amqp:resource-limit-exceeded",
                    f"a connection may have {self.limits.max_links} links at most; close some or open another",
                )
                if len(self._links) > 2 * self.limits.max_links:
                    # A refused link costs memory until the peer detaches it, too.
                    self.close(error)
                link.refuse(error)
                return
        elif not link.is_sender:
            link.formats = self._incoming_formats.formats(link.name)
        link.announced = True
        self.owner.link_opened(link)

    def _on_link_close(self, event: Any) -> None:
        impl = lib.pn_event_link(event)
        link = self._links.get(impl)
        if link is not None:
            self._drop_link(link, read_condition(lib.pn_link_remote_condition(impl)))

    def _drop_link(self, link: Link, error: AmqpError | None) -> None:
        impl = link.impl
        if link.announced:
            self.owner.link_closed(link, error)
        self._links.pop(impl, None)
        if not link.is_sender:
            self._incoming_formats.forget(link.name)
        link.forget()
        lib.pn_link_close(impl)
        lib.pn_link_free(impl)

    def _on_link_flow(self, event: Any) -> None:
        link = self._links.get(lib.pn_event_link(event))
        if link is not None and link.announced and (link.is_sender or not self._server):
            self.owner.credit_changed(link)

    def _on_input_ended(self, event: Any) -> None:
        """The engine takes no more: the peer closed or vanished, or sent something it cannot make sense of.

        Only for some of the last does it say so itself.
        """
        if self._eof or lib.pn_connection_state(self._connection) & lib.PN_REMOTE_CLOSED:
            return
        if self._error is None:
            self.close(AmqpError("amqp:decode-error", "A frame could not be understood."))

    def _on_transport_error(self, event: Any) -> None:
        self._error = self._error or read_condition(lib.pn_transport_condition(self._transport))


def _take(transport: Any, pending: int) -> bytes:
    """Take what the engine wants to send out of it, a buffer full at most."""
    size = min(pending, _CHUNK)
    buffer = _buffers.of_this_thread
    taken = lib.pn_transport_peek(transport, buffer, size)
    lib.pn_transport_pop(transport, taken)
    return bytes(ffi.buffer(buffer, taken))


_CHUNK = 131_072


class _Buffers(threading.local):
    """One buffer for each thread: the engine is called without the interpreter's lock."""

    def __init__(self) -> None:
        self.of_this_thread = ffi.new("char[]", _CHUNK)


_buffers = _Buffers()
_DELIVERY = lib.PN_DELIVERY
_REACTIONS = {
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
