"""PURE. Reads and patches AMQP frames on their way into and out of Proton.

OASIS AMQP 1.0, part 2: 2.3 framing, 2.7.5 transfer, 2.7.6 disposition, 2.8.11 message format.

Message formats. Proton neither reports nor sets the message format of a transfer, which tells a batch from a single
message. Formats of incoming deliveries are noted here, per link and in order. Outgoing transfers get theirs patched in.

Delivery ids. The specification numbers the deliveries of a session consecutively, and Proton ends a connection whose
ids jump. Threads of the Python SDK (its lock renewer, for example) take an id and write the frame without holding one
lock for both, so ids arrive swapped or duplicated. The service accepts that. Here a delivery with an unexpected id gets
the expected one before Proton sees it, and the answer gets the peer's own id back.

Link credit. Proton keeps it in 32 bits with a sign, so a peer's credit above `MAX_CREDIT` is lowered to that.

Malformed frames pass through unchanged. Proton refuses them.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from pairbus.amqp.codec import decode, encode, skip
from pairbus.amqp.types import AmqpDecodeError, Described, UInt

_u32 = struct.Struct(">I").unpack_from
_head = struct.Struct(">IBBH").unpack_from
_PROTOCOL = 0x414D5150  # "AMQP": a protocol header where a frame has its size

_OPEN, _BEGIN, _ATTACH, _FLOW, _TRANSFER, _DISPOSITION, _DETACH, _END = range(0x10, 0x18)
MAX_CREDIT = 2**31 - 1
_PATCH_ROOM = 16
_MAX_RENAMED = 10_000
_WRAP = 0xFFFFFFFF


@dataclass(slots=True)
class _Track:
    """The message formats of a link's deliveries, oldest first; whether a delivery is incomplete."""

    name: str
    formats: deque[int] = field(default_factory=deque)
    in_delivery: bool = False


_Correct = Callable[[bytes, int, int, tuple[int, int, int]], bytes | None]
"""Takes data, a frame's channel and code, and the offsets of the frame, of its list and of its end. Returns the bytes
that replace the frame, or None to leave it as it is."""


class FrameCutter:
    """Cuts a stream into whole frames. Keeps at most one incomplete frame."""

    def __init__(self, max_frame: int) -> None:
        self._max_frame = max_frame
        self._rest = b""
        self._broken = False

    def rewrite(self, data: bytes, correct: _Correct) -> bytes:
        """The whole frames, corrected. Malformed frames stay as they are: Proton refuses them."""
        data, frames = self._cut(data)
        parts: list[bytes] = []
        done = 0
        for channel, start, body, end in frames:
            code, fields_at = _code_at(data, body, end)
            try:
                corrected = correct(data, channel, code, (start, fields_at, end))
            except (AmqpDecodeError, IndexError, TypeError, ValueError, struct.error):
                continue
            if corrected is not None:
                parts += (data[done:start], corrected)
                done = end
        return b"".join((*parts, data[done:])) if parts else data

    def _cut(self, data: bytes) -> tuple[bytes, list[tuple[int, int, int, int]]]:
        """The whole frames, and (channel, start, body, end) of each AMQP frame that has a body."""
        if self._rest:
            data = self._rest + data
            self._rest = b""
        frames: list[tuple[int, int, int, int]] = []
        if self._broken:
            return data, frames
        pos, length = 0, len(data)
        while length - pos >= 8:
            size, offset, kind, channel = _head(data, pos)
            if size == _PROTOCOL:
                size = 8
            elif size < 8 or size > self._max_frame or offset < 2:
                self._broken = True
                return data, frames
            elif pos + size > length:
                break
            elif kind == 0 and size > offset * 4:
                frames.append((channel, pos, pos + offset * 4, pos + size))
            pos += size
        if pos == length:
            return data, frames
        self._rest = data[pos:]
        return data[:pos], frames


def _code_at(data: bytes, body: int, end: int) -> tuple[int, int]:
    """The code of the performative and the offset of its list; (0, 0) if it has an unusual form."""
    if end - body > 3 and data[body] == 0:
        if data[body + 1] == 0x53:
            return data[body + 2], body + 3
        if data[body + 1] == 0x80 and end - body > 10:
            return int.from_bytes(data[body + 2 : body + 10], "big"), body + 10
    return 0, 0


def _number_at(data: bytes, pos: int) -> int:
    """The uint at ``pos``, in any of its encodings; -1 if there is none."""
    code = data[pos]
    if code == 0x43:
        return 0
    if code == 0x52:
        return data[pos + 1]
    if code == 0x70:
        return int(_u32(data, pos + 1)[0])
    return -1


def _list_at(data: bytes, pos: int) -> tuple[int, int]:
    """The number of fields of a performative, and the offset of the first one."""
    code = data[pos]
    if code == 0xC0:
        return data[pos + 2], pos + 3
    if code == 0xD0:
        return _u32(data, pos + 5)[0], pos + 9
    return 0, pos + 1


def _transfer_fields(data: bytes, pos: int) -> tuple[int, int, bool]:
    """The handle of a transfer, the offset of its message format (0 if absent), and whether more frames follow."""
    count, pos = _list_at(data, pos)
    if not count:
        return -1, 0, False
    handle = _number_at(data, pos)
    pos = skip(data, pos)
    format_at, more = 0, False
    if count > 3:
        pos = skip(data, skip(data, pos))
        format_at = pos
        if count > 5:
            pos = skip(data, skip(data, pos))
            more = data[pos] == 0x41 or (data[pos] == 0x56 and data[pos + 1] == 1)
    return handle, format_at, more


class IncomingFormats:
    """Notes the message formats of the deliveries on the peer's sending links."""

    def __init__(self, max_frame: int, *, room_for_patches: bool = False, ids: DeliveryIds | None = None) -> None:
        self._ids = ids
        self._cutter = FrameCutter(max_frame)
        self._by_handle: dict[tuple[int, int], _Track] = {}
        self._by_name: dict[str, _Track] = {}
        self._room = room_for_patches

    def feed(self, data: bytes) -> bytes:
        """Return what to push into Proton: whole frames, corrected."""
        return self._cutter.rewrite(data, self._correct)

    def _correct(self, data: bytes, channel: int, code: int, frame: tuple[int, int, int]) -> bytes | None:
        start, fields_at, end = frame
        if code == _TRANSFER:
            more = self._transfer(channel, data, fields_at)
            return None if self._ids is None else self._ids.transfer(channel, data, frame, more)
        if code == _FLOW:
            return _with_limited_credit(data, start, fields_at, end)
        if code == _OPEN and self._room:
            return _with_smaller_frames(data[start:end])
        if code == _ATTACH:
            self._attach(channel, data, fields_at)
        elif code == _DETACH:
            self._by_handle.pop((channel, int(decode(data, fields_at)[0][0])), None)
        elif code == _END:
            for key in [key for key in self._by_handle if key[0] == channel]:
                del self._by_handle[key]
            if self._ids is not None:
                self._ids.forget(channel)
        return None

    def formats(self, link_name: str) -> deque[int]:
        """The message formats on the peer's sending link of this name. The caller removes one per delivery."""
        track = self._by_name.get(link_name)
        return track.formats if track is not None else deque()

    def forget(self, link_name: str) -> None:
        self._by_name.pop(link_name, None)

    def _transfer(self, channel: int, data: bytes, pos: int) -> bool:
        """Note the message format. Returns whether more frames of the delivery follow."""
        handle, format_at, more = _transfer_fields(data, pos)
        track = self._by_handle.get((channel, handle))
        if track is not None:
            if not track.in_delivery:
                track.formats.append(max(_number_at(data, format_at), 0) if format_at else 0)
            track.in_delivery = more
        return more

    def _attach(self, channel: int, data: bytes, pos: int) -> None:
        fields = decode(data, pos)[0]
        name, handle, peer_receives = fields[0], int(fields[1]), fields[2]
        if not peer_receives:
            self._by_handle[channel, handle] = self._by_name[name] = _Track(name)


class OutgoingFormats:
    """Writes message formats into the transfers that Proton produces."""

    def __init__(self) -> None:
        self._cutter = FrameCutter(2**31)
        self._by_handle: dict[tuple[int, int], _Track] = {}
        self._by_name: dict[str, _Track] = {}

    def note(self, link_name: str, message_format: int) -> None:
        """Set the message format of the next delivery on our link. Call it for every delivery."""
        self._by_name.setdefault(link_name, _Track(link_name)).formats.append(message_format)

    def patch(self, data: bytes) -> bytes:
        return self._cutter.rewrite(data, self._correct)

    def _correct(self, data: bytes, channel: int, code: int, frame: tuple[int, int, int]) -> bytes | None:
        start, pos, end = frame
        if code == _ATTACH:
            name, handle, we_receive = decode(data, pos)[0][:3]
            if not we_receive:
                self._by_handle[channel, int(handle)] = self._by_name.setdefault(name, _Track(name))
        elif code == _TRANSFER:
            handle, format_at, more = _transfer_fields(data, pos)
            track = self._by_handle.get((channel, handle))
            if track is None:
                return None
            is_first, track.in_delivery = not track.in_delivery, more
            message_format = track.formats.popleft() if is_first and track.formats else 0
            if message_format and format_at:
                return _with_field(data, start, pos, format_at, end, message_format)
        return None


def _with_field(data: bytes, start: int, pos: int, field_at: int, end: int, number: int) -> bytes:
    """Return a frame with another uint at ``field_at`` of its list, which starts at ``pos``."""
    after = skip(data, field_at)
    value = b"\x70" + number.to_bytes(4, "big")
    grown = len(value) - (after - field_at)
    size = (end - start + grown).to_bytes(4, "big")
    if data[pos] == 0xC0 and data[pos + 1] + grown < 256:
        listed = b"\xc0" + bytes((data[pos + 1] + grown,)) + data[pos + 2 : field_at]
    elif data[pos] == 0xC0:
        # The size includes the count, which is three bytes longer in the long form.
        listed = struct.pack(">BII", 0xD0, data[pos + 1] + grown + 3, data[pos + 2]) + data[pos + 3 : field_at]
        size = (end - start + grown + 6).to_bytes(4, "big")
    else:
        listed = b"\xd0" + (_u32(data, pos + 1)[0] + grown).to_bytes(4, "big") + data[pos + 5 : field_at]
    return b"".join((size, data[start + 4 : pos], listed, value, data[after:end]))


def _with_limited_credit(data: bytes, start: int, pos: int, end: int) -> bytes | None:
    """Return a flow frame with the highest credit that Proton can keep, or None if the peer's credit is lower."""
    count, field_at = _list_at(data, pos)
    if count < 7:
        return None
    for _ in range(6):
        field_at = skip(data, field_at)
    if _number_at(data, field_at) <= MAX_CREDIT:
        return None
    return _with_field(data, start, pos, field_at, end, MAX_CREDIT)


def _with_smaller_frames(frame: bytes) -> bytes:
    """Return the peer's open with a slightly lower frame limit, so that patched transfers still fit."""
    body = frame[4] * 4
    opened, _ = decode(frame, body)
    fields = list(opened.value) + [None] * (3 - len(opened.value))
    limit = fields[2] if fields[2] is not None else 0xFFFFFFFF
    fields[2] = UInt(max(int(limit) - _PATCH_ROOM, 512 - _PATCH_ROOM))
    content = frame[8:body] + encode(Described(opened.descriptor, fields))
    return (len(content) + 8).to_bytes(4, "big") + frame[4:8] + content


# --- delivery ids ------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _SessionIds:
    """Delivery ids in one session of the peer."""

    expected: int = -1
    peer_ids: dict[int, int] = field(default_factory=dict)
    """The peer's own id for every delivery that got another."""
    begun: dict[int, int] = field(default_factory=dict)
    """The id of the incomplete delivery on each link handle."""


class DeliveryIds:
    """Corrects the delivery ids of incoming transfers and restores the peer's ids in outgoing dispositions."""

    def __init__(self) -> None:
        self._sessions: dict[int, _SessionIds] = {}
        self._peer_channel: dict[int, int] = {}
        self._cutter = FrameCutter(2**31)

    def forget(self, channel: int) -> None:
        self._sessions.pop(channel, None)

    def transfer(self, channel: int, data: bytes, frame: tuple[int, int, int], more: bool) -> bytes | None:
        """Return the corrected frame, or None if it is correct. ``frame`` is its start, its list and its end."""
        start, pos, end = frame
        handle_at = _list_at(data, pos)[1]
        handle, id_at = _number_at(data, handle_at), skip(data, handle_at)
        peer_id = _number_at(data, id_at)
        session = self._sessions.get(channel)
        if session is None:
            session = self._sessions[channel] = _SessionIds()
        begun = session.begun.get(handle)
        if begun is not None:
            if not more:
                del session.begun[handle]
            return None if peer_id in (-1, begun) else _with_field(data, start, pos, id_at, end, begun)
        if peer_id < 0:
            return None  # the first frame of a delivery needs an id: Proton refuses it
        expected = peer_id if session.expected < 0 else session.expected
        session.expected = (expected + 1) & _WRAP
        if more:
            session.begun[handle] = expected
        if peer_id == expected:
            return None
        session.peer_ids[expected] = peer_id
        if len(session.peer_ids) > _MAX_RENAMED:
            del session.peer_ids[next(iter(session.peer_ids))]
        return _with_field(data, start, pos, id_at, end, expected)

    def restore(self, data: bytes) -> bytes:
        """Return the whole frames that Proton wrote, with the peer's own ids in the dispositions."""
        return self._cutter.rewrite(data, self._correct)

    def _correct(self, data: bytes, channel: int, code: int, frame: tuple[int, int, int]) -> bytes | None:
        if code == _BEGIN:
            fields = decode(data, frame[1])[0]
            if fields and fields[0] is not None:
                self._peer_channel[channel] = int(fields[0])
        elif code == _DISPOSITION:
            session = self._sessions.get(self._peer_channel.get(channel, channel))
            if session is not None and session.peer_ids:
                return _renamed(data, frame, session.peer_ids)
        return None


def _renamed(data: bytes, frame: tuple[int, int, int], peer_ids: dict[int, int]) -> bytes | None:
    start, pos, _ = frame
    is_receiver, first, *rest = decode(data, pos)[0]
    last = first if not rest or rest[0] is None else rest[0]
    if not is_receiver or peer_ids.keys().isdisjoint(range(first, last + 1)):
        return None
    frames = []
    for delivery_id in range(first, last + 1):
        fields = [True, UInt(peer_ids.pop(delivery_id, delivery_id)), None, *rest[1:]]
        content = data[start + 8 : pos] + encode(fields)
        frames.append((len(content) + 8).to_bytes(4, "big") + data[start + 4 : start + 8] + content)
    return b"".join(frames)
