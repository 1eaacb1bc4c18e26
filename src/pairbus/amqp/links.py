"""Links and deliveries of one connection, as thin handles on the engine's C objects.

A handle outlives what it stands for: after its link or connection is gone its methods do nothing, so that an answer
which comes late (the broker's, after the disk) needs no care. A delivery is answered at most once.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from cproton import ffi, lib

from pairbus.amqp.native import Terminus, read_data, read_state, read_terminus, write_condition, write_data, write_state
from pairbus.amqp.outcomes import ACCEPTED, TRANSACTIONAL, Accepted, AmqpError, State

if TYPE_CHECKING:
    from pairbus.amqp.engine import Engine

_CHUNK = 65_536
_ACCEPTED = Accepted()


class Incoming:
    """A message the peer sent us, waiting for our answer."""

    __slots__ = ("_impl", "link")

    def __init__(self, link: Link, impl: Any) -> None:
        self.link = link
        self._impl = impl

    @property
    def settled(self) -> bool:
        """The peer does not wait for an answer."""
        return self._impl is not None and self.link.alive and bool(lib.pn_delivery_settled(self._impl))

    @property
    def state(self) -> State | None:
        """The state that came with the transfer: a transaction it belongs to."""
        return read_state(self._impl) if self._impl is not None and self.link.alive else None

    @property
    def in_transaction(self) -> bool:
        if self._impl is None or not self.link.alive:
            return False
        return int(lib.pn_delivery_remote_state(self._impl)) == TRANSACTIONAL

    @property
    def tag(self) -> bytes:
        if self._impl is None or not self.link.alive:
            return b""
        tag = lib.pn_delivery_tag(self._impl)
        return bytes(ffi.buffer(tag.start, tag.size))

    def propose(self, state: State) -> None:
        """Ask the peer to apply an outcome; the owner is told when it has (`outcome_confirmed`)."""
        if self._impl is None or not self.link.alive:
            return
        write_state(self._impl, state)
        self.link.proposed[self._impl] = self
        self.link.engine.schedule_flush()

    def forget(self) -> None:
        """The peer has settled: nothing is left to say."""
        impl, self._impl = self._impl, None
        if impl is not None and self.link.alive:
            lib.pn_delivery_settle(impl)

    def settle(self, state: State = _ACCEPTED) -> None:
        """Answer, once. Later calls, and calls after the link is gone, do nothing."""
        impl, self._impl = self._impl, None
        if impl is None or not self.link.alive:
            return
        self.link.proposed.pop(impl, None)
        if state is _ACCEPTED:
            lib.pn_delivery_update(impl, ACCEPTED)
        else:
            write_state(impl, state)
        lib.pn_delivery_settle(impl)
        self.link.engine.schedule_flush()


class Outgoing:
    """A message we sent and the peer has not settled, or not been told that it is settled."""

    __slots__ = ("_impl", "context", "link", "tag")

    def __init__(self, link: Link, impl: Any, tag: bytes, context: Any) -> None:
        self.link = link
        self._impl = impl
        self.tag = tag
        self.context = context

    @property
    def state(self) -> State | None:
        """The outcome the peer wants or gave."""
        return read_state(self._impl) if self._impl is not None and self.link.alive else None

    @property
    def remotely_settled(self) -> bool:
        return self._impl is not None and self.link.alive and bool(lib.pn_delivery_settled(self._impl))

    def settle(self, state: State | None = None) -> None:
        """Forget the delivery, telling the peer the outcome that was applied."""
        impl, self._impl = self._impl, None
        if impl is None or not self.link.alive:
            return
        self.link.outgoing.pop(impl, None)
        if state is not None:
            write_state(impl, state)
        lib.pn_delivery_settle(impl)
        self.link.engine.schedule_flush()


class Link:
    """One link. ``context`` is the owner's. ``announced``: the owner knows of it, and is told when it ends."""

    __slots__ = (
        "_partial",
        "announced",
        "context",
        "engine",
        "formats",
        "impl",
        "is_sender",
        "name",
        "outgoing",
        "partial_size",
        "proposed",
    )

    def __init__(self, engine: Engine, impl: Any, name: str, *, is_sender: bool, formats: deque[int]) -> None:
        self.engine = engine
        self.impl = impl
        self.name = name
        self.is_sender = is_sender
        self.formats = formats
        self.announced = False
        self.context: Any = None
        self.outgoing: dict[Any, Outgoing] = {}
        self.proposed: dict[Any, Incoming] = {}
        self.partial_size = 0
        self._partial: list[bytes] | None = []

    def __repr__(self) -> str:
        return f"<Link {self.name} {'sender' if self.is_sender else 'receiver'} {'open' if self.alive else 'gone'}>"

    @property
    def alive(self) -> bool:
        return self.impl is not None

    def forget(self) -> None:
        """The C object goes away: from here on this handle does nothing."""
        self.impl = None
        self.announced = False
        self.outgoing.clear()
        self.proposed.clear()
        self.drop_partial()

    # --- what the peer asked for --------------------------------------------------------------------------

    @property
    def remote_source(self) -> Terminus:
        return read_terminus(lib.pn_link_remote_source(self.impl))

    @property
    def remote_target(self) -> Terminus:
        return read_terminus(lib.pn_link_remote_target(self.impl))

    @property
    def remote_properties(self) -> dict[str, Any]:
        data = lib.pn_link_remote_properties(self.impl)
        found = read_data(data) if data != ffi.NULL else None
        return {str(key): value for key, value in found.items()} if isinstance(found, dict) else {}

    @property
    def remote_sends_settled(self) -> bool:
        return int(lib.pn_link_remote_snd_settle_mode(self.impl)) == int(lib.PN_SND_SETTLED)

    @property
    def remote_max_message_size(self) -> int:
        return int(lib.pn_link_remote_max_message_size(self.impl))

    # --- opening and closing ------------------------------------------------------------------------------

    def accept(
        self,
        *,
        properties: dict[Any, Any] | None = None,
        max_message_size: int = 0,
        source_filter: dict[Any, Any] | None = None,
    ) -> None:
        """Answer the peer's attach: its own source, target and settle modes, plus what is given here."""
        impl = self.impl
        if impl is None:
            return
        lib.pn_terminus_copy(lib.pn_link_source(impl), lib.pn_link_remote_source(impl))
        lib.pn_terminus_copy(lib.pn_link_target(impl), lib.pn_link_remote_target(impl))
        lib.pn_link_set_snd_settle_mode(impl, lib.pn_link_remote_snd_settle_mode(impl))
        lib.pn_link_set_rcv_settle_mode(impl, lib.pn_link_remote_rcv_settle_mode(impl))
        if source_filter is not None:
            write_data(lib.pn_terminus_filter(lib.pn_link_source(impl)), source_filter)
        if properties:
            write_data(lib.pn_link_properties(impl), properties)
        if max_message_size:
            lib.pn_link_set_max_message_size(impl, max_message_size)
        lib.pn_link_open(impl)
        self.engine.schedule_flush()

    def refuse(self, error: AmqpError) -> None:
        """Answer the peer's attach with no source or target at all, and detach with the reason."""
        if self.impl is None:
            return
        ours = lib.pn_link_source(self.impl) if self.is_sender else lib.pn_link_target(self.impl)
        theirs = lib.pn_link_target(self.impl) if self.is_sender else lib.pn_link_source(self.impl)
        copied = lib.pn_link_remote_target(self.impl) if self.is_sender else lib.pn_link_remote_source(self.impl)
        lib.pn_terminus_copy(theirs, copied)
        lib.pn_terminus_set_type(ours, lib.PN_UNSPECIFIED)
        lib.pn_link_open(self.impl)
        self.close(error)

    def open(
        self,
        *,
        source: str | None,
        target: str | None,
        source_filter: dict[Any, Any] | None = None,
        properties: dict[Any, Any] | None = None,
        settled: bool = False,
        second: bool = False,
        coordinator: bool = False,
    ) -> None:
        """Attach a link of ours. ``settled``: the sender settles before sending; ``second``: outcomes are echoed."""
        impl = self.impl
        for terminus, kind, address in (
            (lib.pn_link_source(impl), lib.PN_SOURCE, source),
            (lib.pn_link_target(impl), lib.PN_COORDINATOR if coordinator else lib.PN_TARGET, target),
        ):
            lib.pn_terminus_set_type(terminus, kind)
            lib.pn_terminus_set_address(terminus, ffi.NULL if address is None else address.encode())
        if source_filter is not None:
            write_data(lib.pn_terminus_filter(lib.pn_link_source(impl)), source_filter)
        if properties:
            write_data(lib.pn_link_properties(impl), properties)
        lib.pn_link_set_snd_settle_mode(impl, lib.PN_SND_SETTLED if settled else lib.PN_SND_UNSETTLED)
        lib.pn_link_set_rcv_settle_mode(impl, lib.PN_RCV_SECOND if second else lib.PN_RCV_FIRST)
        lib.pn_link_open(impl)
        self.engine.schedule_flush()

    def close(self, error: AmqpError | None = None) -> None:
        """Detach. The peer's own detach ends the link."""
        if self.impl is None:
            return
        if error is not None:
            write_condition(lib.pn_link_condition(self.impl), error)
        lib.pn_link_close(self.impl)
        self.engine.schedule_flush()

    # --- receiving ----------------------------------------------------------------------------------------

    def grant(self, credit: int) -> None:
        """Let the peer send so many more messages."""
        if self.impl is not None:
            lib.pn_link_flow(self.impl, credit)
            self.engine.schedule_flush()

    @property
    def credit(self) -> int:
        """On our sending link: how many messages the peer still wants. On a receiving one: what it may still send."""
        return int(lib.pn_link_credit(self.impl)) if self.impl is not None else 0

    def read(self, pending: int) -> bytes:
        buffer = ffi.new("char[]", pending) if pending > _CHUNK else _buffers.of_this_thread
        taken = lib.pn_link_recv(self.impl, buffer, pending)
        return bytes(ffi.buffer(buffer, taken)) if taken > 0 else b""

    def keep_partial(self, raw: bytes, limit: int) -> None:
        """Part of a message. Beyond the limit only its size is counted."""
        self.partial_size += len(raw)
        if self.partial_size > limit:
            self._let_parts_go()
            self._partial = None
        elif self._partial is not None and raw:
            self._partial.append(raw)
            self.engine.unfinished_bytes += len(raw)

    def take_partial(self, last: bytes) -> bytes | None:
        parts = self._partial
        self.drop_partial()
        return b"".join((*parts, last)) if parts is not None else None

    def drop_partial(self) -> None:
        self._let_parts_go()
        self._partial = []
        self.partial_size = 0

    def _let_parts_go(self) -> None:
        if self._partial:
            self.engine.unfinished_bytes -= sum(map(len, self._partial))

    # --- sending ------------------------------------------------------------------------------------------

    def send(
        self,
        tag: bytes,
        raw: bytes,
        *,
        settled: bool = False,
        message_format: int = 0,
        state: State | None = None,
        context: Any = None,
    ) -> Outgoing | None:
        """Send one message; the delivery to be settled later, or None if it is settled already."""
        impl = self.impl
        if impl is None:
            return None
        delivery = lib.pn_delivery(impl, (len(tag), ffi.from_buffer(tag)))
        self.engine.note_format(self, message_format)
        if state is not None:
            write_state(delivery, state)
        lib.pn_link_send(impl, raw, len(raw))
        sent = None
        if not settled:
            sent = Outgoing(self, delivery, tag, context)
            self.outgoing[delivery] = sent
        else:
            lib.pn_delivery_settle(delivery)
        lib.pn_link_advance(impl)
        self.engine.schedule_flush()
        return sent

    @property
    def draining(self) -> bool:
        return self.impl is not None and bool(lib.pn_link_get_drain(self.impl))

    def drained(self) -> None:
        """Give back the credit that is left: there is nothing more to send."""
        if self.impl is not None:
            lib.pn_link_drained(self.impl)
            self.engine.schedule_flush()

    def drain(self, credit: int) -> None:
        """On a receiving link: ask the peer to send what it has, up to ``credit`` more, and give the rest back."""
        if self.impl is not None:
            lib.pn_link_drain(self.impl, credit)
            self.engine.schedule_flush()

    @property
    def queued_bytes(self) -> int:
        """What this link's session holds that was not yet taken by the connection."""
        return int(lib.pn_session_outgoing_bytes(lib.pn_link_session(self.impl))) if self.impl is not None else 0


class _Buffers(threading.local):
    """One buffer for each thread: the engine is called without the interpreter's lock."""

    def __init__(self) -> None:
        self.of_this_thread = ffi.new("char[]", _CHUNK)


_buffers = _Buffers()
