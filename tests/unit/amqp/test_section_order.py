"""Messages whose sections come in the wrong order: sorted on arrival, or refused."""

import time
from itertools import permutations

import pytest

from pairbus.amqp.codec import encode
from pairbus.amqp.message import SectionOrderError, Sections, in_standard_order, read_facts
from pairbus.amqp.types import AmqpDecodeError, Symbol
from pairbus.embedded.entities.message import IncomingMessage

HEADER = b"\x00\x53\x70" + encode([True])
DELIVERY_ANNOTATIONS = b"\x00\x53\x71" + encode({Symbol("hop"): 1})
PROPERTIES = b"\x00\x53\x73" + encode(["id"])
DATA = b"\x00\x53\x75" + encode(b"one") + b"\x00\x53\x75" + encode(b"two")
FOOTER = b"\x00\x53\x78" + encode({Symbol("end"): 1})


@pytest.mark.parametrize("order", list(permutations((HEADER, DELIVERY_ANNOTATIONS, PROPERTIES, DATA, FOOTER))))
def test_any_order_arrives_as_the_standard_one(order: tuple[bytes, ...]) -> None:
    arrived = IncomingMessage.from_raw(b"".join(order))
    assert arrived.raw == HEADER + DELIVERY_ANNOTATIONS + PROPERTIES + DATA + FOOTER
    assert arrived.facts.message_id == "id"
    assert Sections.split(arrived.raw).body == DATA


def test_delivery_annotations_last_as_the_python_sdk_writes_them() -> None:
    raw = PROPERTIES + DATA + DELIVERY_ANNOTATIONS
    with pytest.raises(SectionOrderError):
        read_facts(raw)
    assert in_standard_order(raw) == DELIVERY_ANNOTATIONS + PROPERTIES + DATA


@pytest.mark.parametrize(
    "raw",
    [
        PROPERTIES + DATA + PROPERTIES,
        DATA + FOOTER + DATA,
        HEADER + HEADER,
        DATA + b"\x00\x53\x77" + encode(1) + HEADER,
    ],
)
def test_a_section_that_comes_twice_or_a_mixed_body_is_refused(raw: bytes) -> None:
    with pytest.raises(AmqpDecodeError):
        IncomingMessage.from_raw(raw)


def test_a_body_of_very_many_sections_is_sorted_in_no_time() -> None:
    raw = b"\x00\x53\x75\xa0\x00" * 200_000
    began = time.process_time()
    assert in_standard_order(raw + DELIVERY_ANNOTATIONS) == DELIVERY_ANNOTATIONS + raw
    assert time.process_time() - began < 1
