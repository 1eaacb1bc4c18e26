"""The codec keeps values and types, agrees with two other codecs, and refuses malformed input cleanly."""

from __future__ import annotations

import math
import time
from typing import Any
from uuid import UUID

import pytest
from azure.servicebus._pyamqp._decode import decode_payload
from hypothesis import given, settings
from hypothesis import strategies as st
from proton import Data

from pairbus.amqp import types as t
from pairbus.amqp.codec import decode, encode, skip

BOUNDED = settings(max_examples=150, deadline=None, print_blob=True)


def ranged(kind: type[int], low: int, high: int) -> st.SearchStrategy[int]:
    return st.integers(low, high).map(kind)


scalars = st.one_of(
    st.none(),
    st.booleans(),
    ranged(t.UByte, 0, 2**8 - 1),
    ranged(t.UShort, 0, 2**16 - 1),
    ranged(t.UInt, 0, 2**32 - 1),
    ranged(t.ULong, 0, 2**64 - 1),
    ranged(t.Byte, -(2**7), 2**7 - 1),
    ranged(t.Short, -(2**15), 2**15 - 1),
    ranged(t.Int, -(2**31), 2**31 - 1),
    st.integers(-(2**63), 2**63 - 1),
    ranged(t.Timestamp, -(2**63), 2**63 - 1),
    st.floats(width=32, allow_nan=False).map(t.Float),
    st.floats(allow_nan=False),
    st.characters().map(t.Char),
    st.uuids(),
    st.binary(max_size=300),
    st.text(max_size=300),
    st.text(st.characters(max_codepoint=127), max_size=300).map(t.Symbol),
    st.binary(min_size=4, max_size=4).map(t.Decimal32),
    st.binary(min_size=8, max_size=8).map(t.Decimal64),
    st.binary(min_size=16, max_size=16).map(t.Decimal128),
)
arrays = st.one_of(
    st.lists(st.uuids(), max_size=20).map(lambda items: t.Array(0x98, items)),
    st.lists(ranged(t.Timestamp, 0, 2**60), max_size=80).map(lambda items: t.Array(0x83, items)),
    st.lists(st.text(max_size=20), max_size=20).map(lambda items: t.Array(0xB1, items)),
    st.lists(st.booleans(), max_size=20).map(lambda items: t.Array(0x56, items)),
    st.lists(st.lists(st.integers(-5, 5)), max_size=4).map(lambda items: t.Array(0xD0, items)),
    st.lists(st.uuids(), max_size=3).map(lambda items: t.Array(0xF0, [t.Array(0x98, items)])),
    st.lists(st.binary(max_size=9), max_size=3).map(
        lambda items: t.Array(0xB0, items, descriptor=t.Symbol("example:tag"))
    ),
)
values = st.recursive(
    st.one_of(scalars, arrays),
    lambda inner: st.one_of(
        st.lists(inner, max_size=6),
        st.dictionaries(st.text(max_size=9), inner, max_size=6),
        st.builds(t.Described, ranged(t.ULong, 0, 2**64 - 1), inner),
    ),
    max_leaves=20,
)


def typed(value: Any) -> Any:
    """The value with its types spelled out, since UInt(1) == 1 == True."""
    if isinstance(value, list):
        return [typed(item) for item in value]
    if isinstance(value, dict):
        return {key: typed(item) for key, item in value.items()}
    if isinstance(value, t.Described):
        return ("described", typed(value.descriptor), typed(value.value))
    if isinstance(value, t.Array):
        return ("array", value.code, typed(value.items), typed(value.descriptor))
    return (type(value), value)


@BOUNDED
@given(values)
def test_round_trip_keeps_value_and_type(value: Any) -> None:
    raw = encode(value)
    back, end = decode(raw)
    assert end == len(raw) == skip(raw, 0)
    assert typed(back) == typed(value)


@BOUNDED
@given(values)
def test_decoding_starts_anywhere_and_reads_memoryviews(value: Any) -> None:
    raw = encode(value)
    back, end = decode(memoryview(b"\x41" + raw + b"\x42"), 1)
    assert end == 1 + len(raw)
    assert typed(back) == typed(value)


@BOUNDED
@given(scalars)
def test_proton_reads_scalars_and_writes_them_back_the_same(value: Any) -> None:
    data = Data()
    raw = encode(value)
    assert data.decode(raw) == len(raw)
    back, _ = decode(data.encode())
    assert typed(back) == typed(value)


@BOUNDED
@given(values)
def test_proton_takes_every_compound_value(value: Any) -> None:
    data = Data()
    raw = encode(value)
    assert data.decode(raw) == len(raw)


@BOUNDED
@given(
    st.lists(st.one_of(st.text(max_size=300), st.binary(max_size=300), st.integers(-(2**63), 2**63 - 1), st.uuids()))
)
def test_the_sdk_reads_our_lists(items: list[Any]) -> None:
    raw = b"\x00\x53\x77" + encode(items)
    read: list[Any] = decode_payload(memoryview(raw)).value or []
    texts = [item.decode() if isinstance(ours, str) else item for item, ours in zip(read, items, strict=True)]
    assert texts == items


@BOUNDED
@given(st.binary(max_size=200))
def test_noise_is_a_value_or_a_decode_error(noise: bytes) -> None:
    try:
        _, end = decode(noise)
    except t.AmqpDecodeError:
        return
    assert end <= len(noise)


@BOUNDED
@given(values, st.data())
def test_a_cut_value_is_a_decode_error(value: Any, data: st.DataObject) -> None:
    raw = encode(value)
    cut = raw[: data.draw(st.integers(0, len(raw) - 1))]
    with pytest.raises(t.AmqpDecodeError):
        decode(cut)
    with pytest.raises(t.AmqpDecodeError):
        skip(cut, 0)


def test_nan_survives() -> None:
    back, _ = decode(encode(math.nan))
    assert math.isnan(back)


def test_depth_is_limited() -> None:
    nested: Any = 1
    for _ in range(t.MAX_DEPTH + 1):
        nested = [nested]
    with pytest.raises(t.AmqpDecodeError, match="nested deeper"):
        decode(encode(nested))
    with pytest.raises(t.AmqpDecodeError):
        decode(b"\x00" * 100_000)
    with pytest.raises(t.AmqpDecodeError):
        skip(b"\x00" * 100_000, 0)


NULLS = bytes.fromhex("F0 00000005 000186A0 40")
"""An array of 100,000 nulls, which take no bytes."""


def test_counts_are_limited_even_when_items_take_no_bytes() -> None:
    a_billion_nulls = b"\xf0" + (5).to_bytes(4, "big") + (10**9).to_bytes(4, "big") + b"\x40"
    with pytest.raises(t.AmqpDecodeError, match="limit"):
        decode(a_billion_nulls)
    for code in (b"\xd0", b"\xd1", b"\xf0"):
        with pytest.raises(t.AmqpDecodeError, match="claims"):
            decode(code + (5).to_bytes(4, "big") + (90_000).to_bytes(4, "big") + b"\x40")


@pytest.mark.parametrize("code", range(0x40, 0x46), ids=hex)
def test_many_arrays_of_items_without_bytes_cost_nothing(code: int) -> None:
    arrays = (NULLS[:-1] + bytes([code])) * 400
    with pytest.raises(t.AmqpDecodeError, match="claims 100000 items in 1 bytes"):
        decode(b"\xd0" + (len(arrays) + 4).to_bytes(4, "big") + (400).to_bytes(4, "big") + arrays)
    described = b"\x00" + encode(b"x" * 200) + bytes([code])
    inner = b"\xe0" + bytes([len(described) + 1, len(described)]) + described
    assert len(decode(inner)[0].items) <= len(inner)


def wide_map(keys: list[Any]) -> bytes:
    content = b"".join(encode(key) + b"\x40" for key in keys)
    return b"\xd1" + (len(content) + 4).to_bytes(4) + (2 * len(keys)).to_bytes(4) + content


def test_keys_made_to_collide_are_refused_at_once() -> None:
    uuids = [UUID(int=number * (2**61 - 1)) for number in range(1, 20_000)]
    assert len(set(map(hash, uuids))) == 1
    for keys in (uuids, [t.Described(t.ULong(1), key) for key in uuids], [*map(str, range(20_000)), *uuids]):
        began = time.process_time()
        with pytest.raises(t.AmqpDecodeError, match="same hash"):
            decode(wide_map(keys))
        assert time.process_time() - began < 2
    ordinary: list[Any] = [*range(-500, 500), *map(str, range(500)), *(UUID(int=number) for number in range(500, 1000))]
    assert list(decode(wide_map(ordinary))[0]) == ordinary


@pytest.mark.parametrize("key", [[], {}, t.Array(0x98, [])], ids=repr)
def test_a_key_that_cannot_be_looked_up_is_refused(key: Any) -> None:
    for keys in ([key], [key] * 100):
        with pytest.raises(t.AmqpDecodeError, match="a list or a map"):
            decode(wide_map(keys))


@pytest.mark.parametrize("point", [0xD800, 0xDFFF, 0x110000])
def test_half_a_surrogate_pair_is_not_a_character(point: int) -> None:
    with pytest.raises(t.AmqpDecodeError, match="not a character"):
        decode(b"\x73" + point.to_bytes(4, "big"))
    with pytest.raises(t.AmqpDecodeError, match="not valid text"):
        decode(b"\xa1\x03\xed\xa0\x80")


@pytest.mark.parametrize(
    "value",
    [t.UByte(256), t.UInt(-1), 2**63, t.ULong(2**64), t.Symbol("ä"), object(), t.Char("ab"), t.Float(1e300)],
)
def test_what_amqp_cannot_say_is_an_encode_error(value: Any) -> None:
    with pytest.raises(t.AmqpEncodeError):
        encode(value)


def test_equal_keys_are_refused() -> None:
    twice = encode(t.Symbol("a")) + encode(1)
    with pytest.raises(t.AmqpDecodeError, match="duplicate key"):
        decode(b"\xc1" + bytes([len(twice) * 2 + 1, 4]) + twice * 2)


def test_uuid_arrays_read_like_proton_writes_them() -> None:
    data = Data()
    data.put_array(False, Data.UUID)
    data.enter()
    data.put_uuid(UUID(int=7))
    data.exit()
    assert decode(data.encode())[0] == t.Array(0x98, [UUID(int=7)])
