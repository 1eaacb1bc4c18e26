"""A syphon inside an application goes the way the application's clients go."""

from __future__ import annotations

import ssl
import subprocess
import sys
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, TransportType
from azure.servicebus.aio import ServiceBusClient as AioServiceBusClient

from pairbus.amqp.websocket import PATH, WebSocketRoute
from pairbus.syphon import Namespace

CONNECTION = "Endpoint=sb://contoso.servicebus.windows.net/;SharedAccessKeyName=n;SharedAccessKey=c2VjcmV0"


@pytest.mark.parametrize("client_type", [ServiceBusClient, AioServiceBusClient])
@pytest.mark.parametrize(
    ("way", "url", "proxy"),
    [
        ({"transport_type": TransportType.AmqpOverWebsocket}, "wss://contoso.servicebus.windows.net:443", None),
        (
            {"http_proxy": {"proxy_hostname": "proxy.example", "proxy_port": 3128}},
            "wss://contoso.servicebus.windows.net:443",
            "http://proxy.example:3128",
        ),
        ({"custom_endpoint_address": "https://gateway.example:8443"}, "wss://gateway.example:8443", None),
        ({"custom_endpoint_address": "gateway.example"}, "wss://gateway.example:443", None),
    ],
)
def test_the_web_socket_of_a_client_is_used(client_type: Any, way: dict[str, Any], url: str, proxy: str | None) -> None:
    found = Namespace.of(client_type.from_connection_string(CONNECTION, **way))
    assert found.endpoint().web_socket == WebSocketRoute(url + PATH, proxy)
    assert "c2VjcmV0" not in repr(found)


def test_the_password_of_a_proxy_is_used_and_not_shown() -> None:
    proxy = {"proxy_hostname": "http://proxy.example", "proxy_port": 3128, "username": "me", "password": "hid@den"}
    route = Namespace.of(ServiceBusClient.from_connection_string(CONNECTION, http_proxy=proxy)).endpoint().web_socket
    assert route is not None
    assert route.proxy == "http://me:hid%40den@proxy.example:3128"
    assert "hid" not in repr(route)


@pytest.mark.parametrize("client_type", [ServiceBusClient, AioServiceBusClient])
def test_a_gateway_and_a_tls_context_are_used_for_plain_amqp_too(client_type: Any) -> None:
    context = ssl.create_default_context()
    gateway = {"custom_endpoint_address": "sb://gateway.example", "transport_type": TransportType.Amqp}
    client = client_type.from_connection_string(CONNECTION, ssl_context=context, **gateway)
    endpoint = Namespace.of(client).endpoint()
    assert (endpoint.address, endpoint.tls, endpoint.web_socket) == (("gateway.example", 5671), context, None)
    assert endpoint.host == "contoso.servicebus.windows.net", "the name that tokens and the service use"


@pytest.mark.parametrize("client_type", [ServiceBusClient, AioServiceBusClient])
def test_a_client_that_connects_directly_is_followed(client_type: Any) -> None:
    endpoint = Namespace.of(client_type.from_connection_string(CONNECTION)).endpoint()
    assert (endpoint.address, endpoint.web_socket) == (("contoso.servicebus.windows.net", 5671), None)


def test_a_syphon_without_its_packages_names_the_extra() -> None:
    program = "import sys; sys.modules['aiohttp'] = None; import pairbus.syphon; pairbus.syphon.start_in_process"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ImportError: The syphon needs packages that are not installed (")
    assert last.endswith("): pip install 'pairbus[syphon]'.")
