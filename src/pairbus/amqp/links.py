"""PURE. Links and deliveries of one connection: thin handles on Proton's C objects.

OASIS AMQP 1.0, part 2: 2.6.3 establishing a link, 2.6.7 flow control, 2.6.12 transferring a message; part 3: 3.4
delivery state, 3.5 sources and targets.

A handle outlives its C object. Once the link or the connection is gone its methods do nothing, so a late answer (the
broker's, after the disk) needs no care. A delivery is answered at most once.

Ownership of memory, for all code that calls Proton
- Bytes are copied at the border, both ways and at once. Proton copies its arguments before a call returns. Whatever it
  returns (`char *`, `pn_bytes_t`, a filled buffer) becomes `bytes` or `str` before the next call of Proton. No cdata
  buffer and no memoryview of C memory is stored, returned or passed on.
- A pointer to a C object lives in exactly one handle (`Link.impl`, `_impl` of a delivery) or table of the engine.
  Deliveries belong to their link: a handle checks `link.alive` before it uses its pointer, and drops the pointer when
  it settles. `Link.release` drops the link's own pointer before the engine frees the link.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cproton import ffi, lib

from pairbus.amqp.codec import decode, encode
from pairbus.amqp.outcomes import (
    ACCEPTED,
    DECLARED,
    MODIFIED,
    REJECTED,
    RELEASED,
    TRANSACTIONAL,
    Accepted,
    AmqpError,
    Declared,
    Modified,
    Rejected,
    Released,
    State,
    Transactional,
    outcome_from_value,
    outcome_value,
    text_map,
)
from pairbus.amqp.types import Symbol

if TYPE_CHECKING:
    from pairbus.amqp.engine import Engine

_ACCEPTED = Accepted()
_RELEASED = Released()
SMALL_BUFFER_BYTES = 4_096

_CHARS = ffi.typeof("char[]")
_allocate = ffi.new_allocator(should_clear_after_alloc=False)


def new_buffer(size: int) -> Any:
    """Allocate a C array that Python frees. Two engines never share one: they may run in two threads."""
    return _allocate(_CHARS, size)


class _Delivery:
    """A handle on a delivery. Once it is settled, or its link is gone, its methods do nothing."""

    __slots__ = ("_impl", "link")

    def __init__(self, link: Link, impl: Any) -> None:
        self.link = link
        self._impl = impl

    @property
    def settled(self) -> bool:
        """The peer has settled: it does not wait for an answer."""
        return self._impl is not None and self.link.impl is not None and bool(lib.pn_delivery_settled(self._impl))

    @property
    def state(self) -> State | None:
        """The peer's state: the outcome it requests or has applied, or the transaction its transfer belongs to."""
        return read_state(self._impl) if self._is_live() else None

    def _is_live(self) -> bool:
        return self._impl is not None and self.link.impl is not None

    def _take(self) -> Any:
        """The C object, which this handle drops, or None if it is gone."""
        impl, self._impl = self._impl, None
        return impl if self.link.impl is not None else None


class IncomingDelivery(_Delivery):
    """A message from the peer that waits for our answer."""

    __slots__ = ()

    @property
    def in_transaction(self) -> bool:
        return self._is_live() and int(lib.pn_delivery_remote_state(self._impl)) == TRANSACTIONAL

    @property
    def tag(self) -> bytes:
        tag = lib.pn_delivery_tag(self._impl) if self._is_live() else None
        return ffi.unpack(tag.start, tag.size) if tag is not None and tag.size else b""

    def propose(self, state: State) -> None:
        """Ask the peer to apply an outcome. `OutcomeConfirmed` follows."""
        if not self._is_live():
            return
        write_state(self._impl, state)
        self.link.proposed[self._impl] = self
        self.link.engine.wake()

    def confirm(self) -> State | None:
        """Settle, because the peer has settled. Returns the outcome the peer applied."""
        state = self.state
        impl = self._take()
        if impl is not None:
            lib.pn_delivery_settle(impl)
        return state

    def settle(self, state: State = _ACCEPTED) -> None:
        """Answer the peer. Later calls do nothing."""
        impl = self._take()
        if impl is None:
            return
        self.link.proposed.pop(impl, None)
        if state is _ACCEPTED:
            lib.pn_delivery_update(impl, ACCEPTED)
        else:
            write_state(impl, state)
        lib.pn_delivery_settle(impl)
        self.link.engine.wake()


class OutgoingDelivery(_Delivery):
    """A message we sent that at least one side has not settled. ``context`` belongs to the caller."""

    __slots__ = ("context", "tag")

    def __init__(self, link: Link, impl: Any, tag: bytes, context: Any) -> None:
        super().__init__(link, impl)
        self.tag = tag
        self.context = context

    def settle(self, state: State | None = None) -> None:
        """Forget the delivery and tell the peer which outcome was applied."""
        impl = self._take()
        if impl is None:
            return
        self.link.outgoing.pop(impl, None)
        if state is not None:
            write_state(impl, state)
        lib.pn_delivery_settle(impl)
        self.link.engine.wake()


class Link:
    """One link. ``context`` belongs to the caller. ``announced``: `LinkOpened` was raised, `LinkClosed` will be.

    ``closing``: we have detached it. Messages that still arrive are dropped.
    """

    __slots__ = (
        "_partial",
        "announced",
        "closing",
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
        self.outgoing: dict[Any, OutgoingDelivery] = {}
        self.proposed: dict[Any, IncomingDelivery] = {}
        self.closing = False
        self.partial_size = 0
        self._partial: bytearray | None = bytearray()

    def __repr__(self) -> str:
        return f"<Link {self.name} {'sender' if self.is_sender else 'receiver'} {'open' if self.alive else 'gone'}>"

    @property
    def alive(self) -> bool:
        return self.impl is not None

    def release(self) -> None:
        """Drop the C object, which is about to be freed. The handle does nothing from here on."""
        self.impl = None
        self.announced = False
        self.outgoing.clear()
        self.proposed.clear()
        self.drop_partial()

    # --- the peer's attach --------------------------------------------------------------------------------

    @property
    def remote_source(self) -> Terminus:
        return read_terminus(lib.pn_link_remote_source(self.impl))

    @property
    def remote_target(self) -> Terminus:
        return read_terminus(lib.pn_link_remote_target(self.impl))

    @property
    def remote_properties(self) -> dict[str, Any]:
        data = lib.pn_link_remote_properties(self.impl)
        return text_map(read_data(data)) if data != ffi.NULL else {}

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
        """Answer the peer's attach with its own source, target and settle modes."""
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
        self.engine.wake()

    def refuse(self, error: AmqpError) -> None:
        """Answer the peer's attach with an empty terminus on our side, then detach with the error."""
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
        """Attach our own link. ``settled``: the sender settles before it sends; ``second``: outcomes are echoed."""
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
        self.engine.wake()

    def close(self, error: AmqpError | None = None) -> None:
        """Detach. The link ends when the peer detaches, too."""
        if self.impl is None:
            return
        if error is not None:
            write_condition(lib.pn_link_condition(self.impl), error)
        lib.pn_link_close(self.impl)
        self.closing = True
        self.drop_partial()
        self.engine.wake()

    # --- receiving ----------------------------------------------------------------------------------------

    def grant(self, credit: int) -> None:
        """Let the peer send ``credit`` more messages."""
        if self.impl is not None:
            lib.pn_link_flow(self.impl, credit)
            self.engine.wake()

    @property
    def credit(self) -> int:
        """How many messages the sending side may still send."""
        return int(lib.pn_link_credit(self.impl)) if self.impl is not None else 0

    def read(self, pending: int) -> bytes:
        buffer = self.engine.small_buffer if pending <= SMALL_BUFFER_BYTES else new_buffer(pending)
        taken = lib.pn_link_recv(self.impl, buffer, pending)
        return ffi.unpack(buffer, taken) if taken > 0 else b""

    def keep_partial(self, raw: bytes, limit: int) -> None:
        """Keep part of a message. Above ``limit`` bytes only the size is counted."""
        self.partial_size += len(raw)
        if self.partial_size > limit:
            self._discount_partial()
            self._partial = None
        elif self._partial is not None:
            self._partial += raw
            self.engine.count_unfinished(len(raw))

    def take_partial(self, last: bytes) -> bytes | None:
        """The whole message, or None if it was too large to keep."""
        partial = self._partial
        self.drop_partial()
        return bytes(partial + last) if partial is not None else None

    def drop_partial(self) -> None:
        self._discount_partial()
        self._partial = bytearray()
        self.partial_size = 0

    def _discount_partial(self) -> None:
        if self._partial:
            self.engine.count_unfinished(-len(self._partial))

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
    ) -> OutgoingDelivery | None:
        """Send a message. Returns the delivery to settle later, or None if it is settled or the link is gone."""
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
            sent = OutgoingDelivery(self, delivery, tag, context)
            self.outgoing[delivery] = sent
        else:
            lib.pn_delivery_settle(delivery)
        lib.pn_link_advance(impl)
        self.engine.wake()
        return sent

    @property
    def draining(self) -> bool:
        return self.impl is not None and bool(lib.pn_link_get_drain(self.impl))

    def drained(self) -> None:
        """Give the remaining credit back: there is nothing more to send."""
        if self.impl is not None:
            lib.pn_link_drained(self.impl)
            self.engine.wake()

    def drain(self, credit: int) -> None:
        """Ask the sending peer for up to ``credit`` more messages; it gives back the credit it cannot use."""
        if self.impl is not None:
            lib.pn_link_drain(self.impl, credit)
            self.engine.wake()

    @property
    def queued_bytes(self) -> int:
        """Bytes in this link's session that Proton has not yet turned into frames."""
        return int(lib.pn_session_outgoing_bytes(lib.pn_link_session(self.impl))) if self.impl is not None else 0


# --- values in and out of Proton ------------------------------------------------------------------------------
# Everything goes through our own codec, which keeps types exactly. Proton's Python wrappers lose some.


def write_data(data: Any, value: Any) -> None:
    raw = encode(value)
    lib.pn_data_clear(data)
    lib.pn_data_decode(data, raw, len(raw))


def read_data(data: Any) -> Any:
    """The value in one of Proton's data objects, or None."""
    size = lib.pn_data_encoded_size(data)
    if size <= 0:
        return None
    buffer = new_buffer(size)
    taken = lib.pn_data_encode(data, buffer, size)
    return decode(ffi.unpack(buffer, taken))[0] if taken > 0 else None


def write_condition(condition: Any, error: AmqpError) -> None:
    lib.pn_condition_clear(condition)
    lib.pn_condition_set_name(condition, error.condition.encode("ascii", "replace"))
    lib.pn_condition_set_description(condition, error.description.replace("\0", " ").encode())
    write_data(lib.pn_condition_info(condition), error.wire_info())


def read_condition(condition: Any) -> AmqpError | None:
    if not lib.pn_condition_is_set(condition):
        return None
    name = ffi.string(lib.pn_condition_get_name(condition)).decode("ascii", "replace")
    text = lib.pn_condition_get_description(condition)
    description = "" if text == ffi.NULL else ffi.string(text).decode("utf-8", "replace")
    return AmqpError(name, description, text_map(read_data(lib.pn_condition_info(condition))))


@dataclass(frozen=True, slots=True)
class Terminus:
    """A source or a target as the peer wrote it."""

    address: str | None
    is_null: bool = False
    is_coordinator: bool = False
    filter: dict[Any, Any] = field(default_factory=dict)


def read_terminus(impl: Any) -> Terminus:
    kind = lib.pn_terminus_get_type(impl)
    address = lib.pn_terminus_get_address(impl)
    text = None if address == ffi.NULL else ffi.string(address).decode("utf-8", "replace")
    filters = read_data(lib.pn_terminus_filter(impl)) if kind == lib.PN_SOURCE else None
    return Terminus(
        text,
        is_null=kind == lib.PN_UNSPECIFIED,
        is_coordinator=kind == lib.PN_COORDINATOR,
        filter=filters if isinstance(filters, dict) else {},
    )


def write_state(impl: Any, state: State) -> None:
    local = lib.pn_delivery_local(impl)
    if isinstance(state, Rejected):
        if state.error is not None:
            write_condition(lib.pn_disposition_condition(local), state.error)
    elif isinstance(state, Modified):
        lib.pn_disposition_set_failed(local, state.delivery_failed)
        lib.pn_disposition_set_undeliverable(local, state.undeliverable_here)
        if state.annotations:
            annotations = {Symbol(key): value for key, value in state.annotations.items()}
            write_data(lib.pn_disposition_annotations(local), annotations)
    elif isinstance(state, Declared):
        write_data(lib.pn_disposition_data(local), [state.txn])
    elif isinstance(state, Transactional):
        write_data(lib.pn_disposition_data(local), [state.txn, outcome_value(state.outcome)])
    lib.pn_delivery_update(impl, state.code)


def read_state(impl: Any) -> State | None:
    """The state the peer gave a delivery; None if there is none, or if it is unknown."""
    remote = lib.pn_delivery_remote(impl)
    code = lib.pn_disposition_type(remote)
    if code == ACCEPTED:
        return _ACCEPTED
    if code == RELEASED:
        return _RELEASED
    if code == REJECTED:
        return Rejected(read_condition(lib.pn_disposition_condition(remote)))
    if code == MODIFIED:
        return Modified(
            bool(lib.pn_disposition_is_failed(remote)),
            bool(lib.pn_disposition_is_undeliverable(remote)),
            text_map(read_data(lib.pn_disposition_annotations(remote))),
        )
    if code in (DECLARED, TRANSACTIONAL):
        fields = read_data(lib.pn_disposition_data(remote))
        if isinstance(fields, list) and fields and isinstance(fields[0], bytes):
            if code == DECLARED:
                return Declared(fields[0])
            return Transactional(fields[0], outcome_from_value(fields[1]) if len(fields) > 1 else None)
    return None
