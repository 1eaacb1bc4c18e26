"""Hostile administration requests against a server in a child process: refused in HTTP, with little memory."""

from __future__ import annotations

import http.client
import socket
import time
from collections.abc import Iterator
from contextlib import suppress

import psutil
import pytest
from tests.support.raw import say_no_more

from pairbus.embedded.security import sign
from pairbus.testing import EmbeddedNamespace

MEBIBYTE = 1 << 20
ENTRY = b'<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">%s</content></entry>'
RULE = (
    b'<RuleDescription xmlns:i="http://www.w3.org/2001/XMLSchema-instance"><Filter i:type="SqlFilter">'
    b"<SqlExpression>%s</SqlExpression></Filter></RuleDescription>"
)
LAUGHS = b"<!DOCTYPE entry [%s]>" % b"".join(
    b'<!ENTITY e%d "%s">' % (n + 1, b"&e%d;" % n * 20) for n in range(1, 12)
) + ENTRY.replace(b"%s", b"&e12;")


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedNamespace]:
    with EmbeddedNamespace("contoso", process=True) as namespace:
        with namespace.admin() as admin:
            admin.create_topic("orders")
            admin.create_subscription("orders", "all")
        yield namespace


@pytest.fixture(autouse=True)
def _bounded_and_alive(server: EmbeddedNamespace) -> Iterator[None]:
    process = psutil.Process(server.pid)
    before = process.memory_info().rss
    yield
    assert _ask(server, "GET", "/$pairbus/health")[0] == 200
    assert process.memory_info().rss - before < 60 * MEBIBYTE


def _ask(server: EmbeddedNamespace, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    parts = dict(part.partition("=")[::2] for part in server.connection_string.split(";"))
    token = sign("http://127.0.0.1/", parts["SharedAccessKeyName"], parts["SharedAccessKey"], int(time.time()) + 600)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        connection.request(method, path, body, {"Authorization": token})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@pytest.mark.parametrize(
    "body",
    [
        b"<a>" * 100_000,
        b"<a>" * 40_000 + b"</a>" * 40_000,
        LAUGHS,
        b'<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/hostname">]>' + ENTRY % b"&x;",
        ENTRY % (b"<Q>" + b"<x/>" * 50_000 + b"</Q>"),
        ENTRY % (b"<Q " + b" ".join(b'a%d="1"' % n for n in range(20_000)) + b"/>"),
        b"\xff\xfe" + b"\0" * 1000,
        ENTRY % b"<QueueDescription><LockDuration>P" + b"9" * 100_000 + b"D</LockDuration></QueueDescription>",
    ],
    ids=["unclosed", "deep", "laughs", "external", "wide", "attributes", "nulls", "digits"],
)
def test_hostile_documents(server: EmbeddedNamespace, body: bytes) -> None:
    status, said = _ask(server, "PUT", "/new-queue?api-version=2021-05", body)
    assert status == 400 and b"<Error><Code>400" in said.replace(b"\n", b"")


@pytest.mark.parametrize("length", [1025, 5_000, 500_000])
def test_filters_that_are_too_long(server: EmbeddedNamespace, length: int) -> None:
    expression = (b"a = 1 OR " * length)[: length - 5] + b"b = 2"
    path = "/orders/Subscriptions/all/Rules/long?api-version=2021-05"
    status, said = _ask(server, "PUT", path, ENTRY % (RULE % expression))
    assert status == 400 and b"1024" in said, said[:300]


@pytest.mark.parametrize(
    "name", ["q" * 261, "%00", "a%0Ab", "%2e%2e", "a" * 7000, "q%3Fx%23y", "%ff%fe", "a//b", "a%2f..%2fb", "-", "q%20"]
)
def test_impossible_names(server: EmbeddedNamespace, name: str) -> None:
    status, _ = _ask(server, "PUT", f"/{name}", ENTRY % b"<QueueDescription/>")
    assert 400 <= status < 500, status


def test_a_body_without_end(server: EmbeddedNamespace) -> None:
    """Chunk after chunk: the server keeps none of it."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(b"PUT /q HTTP/1.1\r\nHost: h\r\nAuthorization: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        chunk = b"10000\r\n" + b"x" * 65_536 + b"\r\n"
        with suppress(ConnectionError):
            for _ in range(1000):
                connection.sendall(chunk)
        with suppress(ConnectionError):
            assert connection.recv(1000).startswith(b"HTTP/1.1 4")


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x00" * 200,
        b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"".join(b"h%d: v\r\n" % n for n in range(50_000)) + b"\r\n",
        b"PUT / HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
        b"\x16\x03\x01\xff\xff" + b"\xff" * 500,
    ],
    ids=["version", "nulls", "long path", "headers", "negative length", "broken TLS"],
)
def test_what_is_not_http(server: EmbeddedNamespace, said: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        heard = b""
        try:
            connection.sendall(said)
            say_no_more(connection)
            while more := connection.recv(65_536):
                heard += more
        except ConnectionError:
            return
    assert not heard or heard[:1] == b"\x15" or heard.startswith((b"HTTP/1.1 4", b"HTTP/1.0 4"))
