"""The SASL exchange, both sides against each other and against peers that do it wrong."""

from __future__ import annotations

import pytest

from pairbus.amqp.codec import encode
from pairbus.amqp.sasl import AMQP_HEADER, SASL_HEADER, SaslError, SaslExchange
from pairbus.amqp.types import Described, Symbol, UByte, ULong


def init(mechanism: str) -> bytes:
    body = encode(Described(ULong(0x41), [Symbol(mechanism)]))
    return (len(body) + 8).to_bytes(4, "big") + b"\x02\x01\x00\x00" + body


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_client_and_server_agree_however_the_bytes_arrive(size: int) -> None:
    client, server = SaslExchange(server=False), SaslExchange(server=True)
    to_server, to_client = client.start(), server.start()
    for at in range(0, len(to_server), size):
        to_client += server.feed(to_server[at : at + size])
    for at in range(0, len(to_client), size):
        assert client.feed(to_client[at : at + size]) == b""
    assert server.done
    assert client.done


def test_what_follows_the_exchange_belongs_to_amqp() -> None:
    server = SaslExchange(server=True)
    server.feed(SASL_HEADER + init("ANONYMOUS") + AMQP_HEADER + b"more")
    assert server.rest == AMQP_HEADER + b"more"


@pytest.mark.parametrize("mechanism", ["ANONYMOUS", "MSSBCBS", "EXTERNAL"])
def test_mechanisms_that_prove_nothing_are_accepted(mechanism: str) -> None:
    server = SaslExchange(server=True)
    assert server.feed(SASL_HEADER + init(mechanism)).startswith(SASL_HEADER)
    assert server.done


def test_another_mechanism_is_refused_with_an_outcome() -> None:
    server = SaslExchange(server=True)
    with pytest.raises(SaslError) as refused:
        server.feed(SASL_HEADER + init("PLAIN"))
    assert refused.value.reply.endswith(encode(Described(ULong(0x44), [UByte(1)])))


def test_a_peer_may_skip_sasl() -> None:
    server = SaslExchange(server=True)
    assert server.feed(AMQP_HEADER) == b""
    assert server.done
    assert server.rest == AMQP_HEADER


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n",
        SASL_HEADER + b"\x00\x00\x00\x01\x02\x01\x00\x00",
        SASL_HEADER + b"\x7f\xff\xff\xff\x02\x01\x00\x00",
        SASL_HEADER + b"\x00\x00\x00\x0c\x02\x01\x00\x00\xff\xff\xff\xff",
        SASL_HEADER + b"\x00\x00\x00\x0c\x02\x00\x00\x00\x00\x53\x41\x45",
    ],
)
def test_what_is_not_sasl_is_an_error(data: bytes) -> None:
    with pytest.raises(SaslError):
        SaslExchange(server=True).feed(data)


def test_a_client_that_is_refused_says_so() -> None:
    client = SaslExchange(server=False)
    body = encode(Described(ULong(0x44), [1]))
    with pytest.raises(SaslError, match="refused"):
        client.feed(SASL_HEADER + (len(body) + 8).to_bytes(4, "big") + b"\x02\x01\x00\x00" + body)


def test_arrays_of_items_without_bytes_are_refused_before_anything_is_proven() -> None:
    nulls = bytes.fromhex("F0 00000005 000186A0 40") * 400
    body = b"\x00\x53\x41\xd0" + (len(nulls) + 4).to_bytes(4) + (400).to_bytes(4) + nulls
    frame = (len(body) + 8).to_bytes(4) + b"\x02\x01\x00\x00" + body
    with pytest.raises(SaslError, match="claims 100000 items in 1 bytes"):
        SaslExchange(server=True).feed(SASL_HEADER + frame)
