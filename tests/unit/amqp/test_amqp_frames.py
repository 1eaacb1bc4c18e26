"""Message formats: read from the frames a peer sends, written into the frames the engine makes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pairbus.amqp.codec import decode, encode
from pairbus.amqp.frames import IncomingFormats, OutgoingFormats
from pairbus.amqp.message import BATCH_FORMAT
from pairbus.amqp.types import Described, UInt, ULong

BOUNDED = settings(max_examples=100, deadline=None, print_blob=True)
HEADER = b"AMQP\x00\x01\x00\x00"


def frame(channel: int, code: int, fields: list[Any], payload: bytes = b"") -> bytes:
    body = encode(Described(ULong(code), fields)) + payload
    return (len(body) + 8).to_bytes(4, "big") + b"\x02\x00" + channel.to_bytes(2, "big") + body


def attach(name: str, handle: int, *, peer_receives: bool = False, channel: int = 0) -> bytes:
    return frame(channel, 0x12, [name, UInt(handle), peer_receives])


def transfer(
    handle: int, message_format: int, *, more: bool = False, channel: int = 0, payload: bytes = b"payload"
) -> bytes:
    fields = [UInt(handle), UInt(1), b"tag", UInt(message_format), False, more]
    return frame(channel, 0x14, fields, payload)


def continuation(handle: int, *, more: bool) -> bytes:
    return frame(0, 0x14, [UInt(handle), None, None, None, None, more], b"rest")


def fed(reader: IncomingFormats, data: bytes, size: int) -> bytes:
    return b"".join(reader.feed(data[at : at + size]) for at in range(0, len(data), size))


@BOUNDED
@given(st.integers(1, 200))
def test_formats_are_read_however_the_bytes_arrive(size: int) -> None:
    data = HEADER + b"".join(
        (
            frame(0, 0x10, ["container"]),
            attach("one", 0),
            attach("two", 1, channel=3),
            attach("replies", 2, peer_receives=True),
            transfer(0, 0),
            transfer(1, BATCH_FORMAT, channel=3),
            transfer(0, BATCH_FORMAT, more=True),
            continuation(0, more=True),
            (8).to_bytes(4, "big") + b"\x02\x00\x00\x00",  # a heartbeat
            continuation(0, more=False),
            transfer(0, 7),
        )
    )
    reader = IncomingFormats(65_536)
    assert fed(reader, data, size) == data
    assert list(reader.formats("one")) == [0, BATCH_FORMAT, 7]
    assert list(reader.formats("two")) == [BATCH_FORMAT]
    assert list(reader.formats("replies")) == []


def test_a_handle_that_is_detached_may_be_used_again() -> None:
    reader = IncomingFormats(65_536)
    reader.feed(attach("old", 0) + transfer(0, 5, more=True) + frame(0, 0x16, [UInt(0), True]))
    reader.feed(attach("new", 0) + transfer(0, 6))
    assert list(reader.formats("new")) == [6]


def test_frames_beyond_the_limit_are_left_to_the_engine() -> None:
    reader = IncomingFormats(512)
    data = (513).to_bytes(4, "big") + b"\x02\x00\x00\x00" + bytes(20)
    assert reader.feed(data) == data
    assert reader.feed(b"and what follows") == b"and what follows"


@pytest.mark.parametrize(
    "broken",
    [
        frame(0, 0x14, []),
        frame(0, 0x14, ["not a handle"]),
        frame(0, 0x12, [None]),
        frame(0, 0x16, [None]),
        (16).to_bytes(4, "big") + b"\x02\x00\x00\x00\x00\x53\x14\xc0\xff\xff\x43\x43",
        (9).to_bytes(4, "big") + b"\x02\x00\x00\x00\x00",
    ],
)
def test_malformed_frames_are_passed_on(broken: bytes) -> None:
    reader = IncomingFormats(65_536)
    assert reader.feed(broken) == broken
    assert reader.feed(attach("one", 0) + transfer(0, 3)) == attach("one", 0) + transfer(0, 3)
    assert list(reader.formats("one")) == [3]


@BOUNDED
@given(st.integers(1, 100), st.binary(max_size=400))
def test_formats_are_written_into_the_first_frame_of_a_delivery(size: int, payload: bytes) -> None:
    writer = OutgoingFormats()
    for message_format in (BATCH_FORMAT, 0, BATCH_FORMAT):
        writer.note("ours", message_format)
    data = b"".join(
        (
            attach("ours", 4),
            transfer(4, 0, more=True, payload=payload),
            continuation(4, more=False),
            transfer(4, 0, payload=payload),
            transfer(4, 0, payload=payload),
        )
    )
    written = b"".join(writer.patch(data[at : at + size]) for at in range(0, len(data), size))
    reader = IncomingFormats(65_536)
    assert reader.feed(written) == written
    assert list(reader.formats("ours")) == [BATCH_FORMAT, 0, BATCH_FORMAT]


def test_a_patched_frame_differs_in_its_format_alone() -> None:
    writer = OutgoingFormats()
    writer.note("ours", BATCH_FORMAT)
    written = writer.patch(attach("ours", 4) + transfer(4, 0))
    assert written == attach("ours", 4) + transfer(4, BATCH_FORMAT)


def test_room_for_patches_is_taken_from_the_peers_frame_limit() -> None:
    opened = frame(0, 0x10, ["container", "host", UInt(65_536), UInt(10)])
    passed_on = IncomingFormats(65_536, room_for_patches=True).feed(HEADER + opened)
    value, end = decode(passed_on, 16)
    assert value.value == ["container", "host", 65_520, 10]
    assert end == len(passed_on)
    assert int.from_bytes(passed_on[8:12], "big") == len(passed_on) - 8
