"""A syphon inside an application goes the way the application's clients go."""

from __future__ import annotations

import ssl
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, TransportType
from azure.servicebus.aio import ServiceBusClient as AioServiceBusClient

from pairbus.syphon import Namespace

CONNECTION = "Endpoint=sb://contoso.servicebus.windows.net/;SharedAccessKeyName=n;SharedAccessKey=c2VjcmV0"


@pytest.mark.parametrize("client_type", [ServiceBusClient, AioServiceBusClient])
@pytest.mark.parametrize(
    "way",
    [
        {"transport_type": TransportType.AmqpOverWebsocket},
        {"http_proxy": {"proxy_hostname": "proxy.example", "proxy_port": 3128}},
        {"custom_endpoint_address": "https://gateway.example:8443"},
        {"ssl_context": ssl.create_default_context()},
    ],
    ids=lambda way: next(iter(way)),
)
def test_a_client_that_does_not_connect_directly_is_followed(client_type: Any, way: dict[str, Any]) -> None:
    theirs = client_type.from_connection_string(CONNECTION, **way)
    found = Namespace.of(theirs)
    assert not found.plain_amqp, "raw AMQP would go another way: the SDK carries"
    ours = found.client()
    assert ours._config.transport_type == theirs._config.transport_type
    assert ours._config.http_proxy == theirs._config.http_proxy
    assert ours._config.custom_endpoint_address == theirs._config.custom_endpoint_address
    assert ours._config.ssl_context is theirs._config.ssl_context
    assert "c2VjcmV0" not in repr(found)


@pytest.mark.parametrize("client_type", [ServiceBusClient, AioServiceBusClient])
def test_a_client_that_connects_directly_leaves_the_way_free(client_type: Any) -> None:
    assert Namespace.of(client_type.from_connection_string(CONNECTION)).plain_amqp
