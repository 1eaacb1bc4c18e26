"""Delivery ids that jump reach the engine in order, and are answered under the peer's own."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pairbus.amqp.codec import decode, encode
from pairbus.amqp.frames import DeliveryIds, IncomingFormats
from pairbus.amqp.types import Described, UInt, ULong, UShort

ATTACH, BEGIN, TRANSFER, DISPOSITION = 0x12, 0x11, 0x14, 0x15


def frame(code: int, *fields: Any, payload: bytes = b"", channel: int = 0) -> bytes:
    content = encode(Described(ULong(code), list(fields))) + payload
    return (len(content) + 8).to_bytes(4, "big") + b"\x02\x00" + channel.to_bytes(2, "big") + content


def transfer(number: int | None, *, handle: int = 0, more: bool = False, channel: int = 0) -> bytes:
    tag = b"" if number is None else number.to_bytes(4, "big")
    given_id = None if number is None else UInt(number)
    return frame(
        TRANSFER, UInt(handle), given_id, tag, UInt(0), False, more, payload=b"\x00\x53\x77\x40", channel=channel
    )


def read(data: bytes, code: int) -> list[list[Any]]:
    """The fields of all frames with this code."""
    found = []
    while data:
        size = int.from_bytes(data[:4], "big")
        described, end = decode(data, data[4] * 4)
        if described.descriptor == code:
            found.append([*described.value, data[end:size]])
        data = data[size:]
    return found


def seen_by_the_engine(numbers: DeliveryIds, data: bytes) -> list[Any]:
    fed = IncomingFormats(65_536, ids=numbers).feed(data)
    transfers = read(fed, TRANSFER)
    assert all(fields[-1] == b"\x00\x53\x77\x40" for fields in transfers)
    return [fields[1] for fields in transfers]


@settings(max_examples=50, deadline=None, print_blob=True)
@given(st.integers(0, 300), st.lists(st.integers(0, 70_000), max_size=30))
def test_ids_become_a_sequence_and_dispositions_carry_the_peers_own(first: int, others: list[int]) -> None:
    numbers = DeliveryIds()
    given_ids = [first, *others]
    engine_ids = seen_by_the_engine(numbers, b"".join(transfer(number) for number in given_ids))
    assert engine_ids == list(range(first, first + len(given_ids)))
    # One answer for all of them, as the engine likes to give, and cut in two on its way.
    answer = frame(DISPOSITION, True, UInt(first), UInt(first + len(others)), True, Described(ULong(0x24), []))
    restored = numbers.restore(answer[:11]) + numbers.restore(answer[11:])
    answered: list[int] = []
    for fields in read(restored, DISPOSITION):
        last = fields[1] if fields[2] is None else fields[2]
        answered.extend(range(fields[1], last + 1))
        assert (fields[0], fields[3]) == (True, True)
    assert answered == given_ids


def test_right_ids_pass_untouched() -> None:
    numbers = DeliveryIds()
    data = transfer(7) + transfer(8, more=True) + transfer(None) + transfer(9)
    assert IncomingFormats(65_536, ids=numbers).feed(data) == data
    answer = frame(DISPOSITION, True, UInt(7), UInt(9), True)
    assert numbers.restore(answer) == answer


def test_a_delivery_of_several_frames_keeps_the_number_it_was_given() -> None:
    data = transfer(0) + transfer(5, handle=1, more=True) + transfer(6, handle=2) + transfer(5, handle=1)
    assert seen_by_the_engine(DeliveryIds(), data) == [0, 1, 2, 1]


def test_sessions_are_numbered_apart_and_answered_on_their_own_channel() -> None:
    numbers = DeliveryIds()
    # The peer's channel 3 is the engine's channel 0.
    numbers.restore(frame(BEGIN, UShort(3), UInt(0), UInt(10), UInt(10)))
    data = transfer(0, channel=3) + transfer(4, channel=5) + transfer(2, channel=3) + transfer(5, channel=5)
    assert seen_by_the_engine(numbers, data) == [0, 4, 1, 5]
    restored = numbers.restore(frame(DISPOSITION, True, UInt(1), None, True))
    assert [fields[1] for fields in read(restored, DISPOSITION)] == [2]


def test_the_peers_dispositions_of_what_it_receives_are_left_alone() -> None:
    numbers = DeliveryIds()
    seen_by_the_engine(numbers, transfer(0) + transfer(2))
    ours = frame(DISPOSITION, False, UInt(1), None, True)
    assert numbers.restore(ours) == ours
