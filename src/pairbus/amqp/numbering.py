"""Delivery ids as a peer should have sent them.

The standard numbers a session's deliveries one after the other, and the engine ends a connection whose numbers jump.
The Python SDK's threads (its lock renewer's, for one) take numbers and write frames without holding one lock for both,
so numbers arrive swapped or twice. The service does not mind. Here a delivery that comes with an unexpected number
is given the expected one before the engine sees it, and the answer to it is given the peer's number back.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from pairbus.amqp.codec import decode, encode, skip
from pairbus.amqp.frames import FrameCutter, code_at, number_at, with_field
from pairbus.amqp.types import AmqpDecodeError, Described, UInt

_BEGIN, _DISPOSITION, _END = 0x11, 0x15, 0x17
_MAX_RENAMED = 10_000
_WRAP = 0xFFFFFFFF


@dataclass(slots=True)
class _Numbers:
    """One session of the peer's: the number that is due, the peer's own number of each delivery that had another."""

    due: int = -1
    theirs: dict[int, int] = field(default_factory=dict)
    # By link: the number under which a delivery of several frames was begun.
    begun: dict[int, int] = field(default_factory=dict)


class DeliveryNumbers:
    """Corrects the numbers of incoming transfers; `restore` puts the peer's own into outgoing dispositions."""

    def __init__(self) -> None:
        self._sessions: dict[int, _Numbers] = {}
        self._peer_channel: dict[int, int] = {}
        self._cutter = FrameCutter(2**31)

    def forget(self, channel: int) -> None:
        self._sessions.pop(channel, None)

    def transfer(self, channel: int, data: bytes, frame: tuple[int, int, int], more: bool) -> bytes | None:
        """The corrected frame, or None when it is right as it is. `frame` is where it starts, its list, its end."""
        start, pos, end = frame
        handle_at = pos + (3 if data[pos] == 0xC0 else 9)
        handle, id_at = number_at(data, handle_at), skip(data, handle_at)
        given = number_at(data, id_at)
        session = self._sessions.get(channel)
        if session is None:
            session = self._sessions[channel] = _Numbers()
        begun = session.begun.get(handle)
        if begun is not None:
            if not more:
                del session.begun[handle]
            return None if given in (-1, begun) else with_field(data, start, pos, id_at, end, begun)
        if given < 0:
            return None  # a delivery must begin with a number: the engine says so
        expected = given if session.due < 0 else session.due
        session.due = (expected + 1) & _WRAP
        if more:
            session.begun[handle] = expected
        if given == expected:
            return None
        session.theirs[expected] = given
        if len(session.theirs) > _MAX_RENAMED:
            del session.theirs[next(iter(session.theirs))]
        return with_field(data, start, pos, id_at, end, expected)

    def restore(self, data: bytes) -> bytes:
        """Whole frames of what the engine wrote, dispositions in the peer's own numbers."""
        data, frames = self._cutter.cut(data)
        parts: list[bytes] = []
        done = 0
        for channel, start, body, end in frames:
            code = code_at(data, body, end)[0]
            if code == _BEGIN:
                self._begin(channel, data, body)
            elif code == _DISPOSITION:
                session = self._sessions.get(self._peer_channel.get(channel, channel))
                if session is not None and session.theirs:
                    parts += (data[done:start], _renamed(data, start, body, end, session.theirs))
                    done = end
        if not parts:
            return data
        parts.append(data[done:])
        return b"".join(parts)

    def _begin(self, channel: int, data: bytes, body: int) -> None:
        fields = decode(data, body)[0].value
        if fields and fields[0] is not None:
            self._peer_channel[channel] = int(fields[0])


def _renamed(data: bytes, start: int, body: int, end: int, theirs: dict[int, int]) -> bytes:
    try:
        disposition = decode(data, body)[0]
        is_receiver, first, *rest = disposition.value
    except (AmqpDecodeError, ValueError, struct.error):
        return data[start:end]
    last = first if not rest or rest[0] is None else rest[0]
    if not is_receiver or theirs.keys().isdisjoint(range(first, last + 1)):
        return data[start:end]
    frames = []
    for number in range(first, last + 1):
        fields = [True, UInt(theirs.pop(number, number)), None, *rest[1:]]
        content = data[start + 8 : body] + encode(Described(disposition.descriptor, fields))
        frames.append((len(content) + 8).to_bytes(4, "big") + data[start + 4 : start + 8] + content)
    return b"".join(frames)
