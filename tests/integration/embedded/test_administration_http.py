"""The administration endpoint from below the SDKs: strict Atom, bounds, tokens, and the control routes."""

import contextlib
import http.client
import json
import socket
import sqlite3
import ssl
import threading
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pairbus.embedded.security import sign
from pairbus.testing import EmbeddedNamespace

ATOM = "{http://www.w3.org/2005/Atom}"
SERVICE_BUS = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
VERSION = "api-version=2021-05"


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def xml(self) -> ET.Element:
        return ET.fromstring(self.body)

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@pytest.fixture(scope="module")
def namespace() -> Iterator[EmbeddedNamespace]:
    with EmbeddedNamespace("contoso") as running:
        yield running


@pytest.fixture(autouse=True)
def clean(namespace: EmbeddedNamespace) -> Iterator[None]:
    yield
    namespace.clear_faults()
    with namespace.admin() as admin:
        for queue in list(admin.list_queues()):
            admin.delete_queue(queue.name)
        for topic in list(admin.list_topics()):
            admin.delete_topic(topic.name)


def key_of(namespace: EmbeddedNamespace) -> str:
    return namespace.connection_string.partition("SharedAccessKey=")[2].partition(";")[0]


def token(namespace: EmbeddedNamespace, resource: str = "https://localhost/", expires_in_s: int = 60) -> str:
    return sign(resource, "RootManageSharedAccessKey", key_of(namespace), int(time.time()) + expires_in_s)


def ask(
    namespace: EmbeddedNamespace,
    method: str,
    path: str,
    body: bytes | None = None,
    *,
    authorization: str | None = "",
    **headers: str,
) -> Answer:
    """One request over plain HTTP; `authorization=None` sends no token."""
    connection = http.client.HTTPConnection("127.0.0.1", namespace.port, timeout=30)
    try:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if authorization is not None:
            sent["Authorization"] = authorization or token(namespace)
        connection.request(method, path, body=body, headers=sent)
        answer = connection.getresponse()
        return Answer(answer.status, dict(answer.getheaders()), answer.read())
    finally:
        connection.close()


def entry(content: str) -> bytes:
    return (
        f'<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">{content}</content></entry>'
    ).encode()


def description(kind: str, settings_xml: str = "") -> bytes:
    return entry(f'<{kind} xmlns="{SERVICE_BUS}">{settings_xml}</{kind}>')


QUEUE = description("QueueDescription")


def test_an_entry_is_strict_atom(namespace: EmbeddedNamespace) -> None:
    created = ask(namespace, "PUT", f"/a%2Fb?{VERSION}", QUEUE, Host="namespace.example:1")
    assert created.status == 201
    assert created.headers["Content-Type"] == "application/atom+xml;type=entry;charset=utf-8"
    found = ask(namespace, "GET", f"/a/b?{VERSION}", Host="namespace.example:1")
    assert found.status == 200
    root = found.xml
    assert root.tag == f"{ATOM}entry"
    assert root.findtext(f"{ATOM}id") == f"https://namespace.example:1/a/b?{VERSION}"
    assert root.findtext(f"{ATOM}title") == "a/b"
    assert "<ns0:" not in found.text
    content = root.find(f"{ATOM}content")
    assert content is not None
    assert [element.tag for element in content] == [f"{{{SERVICE_BUS}}}QueueDescription"]
    names = {element.tag.rpartition("}")[2] for element in content[0]}
    assert names >= {
        "LockDuration",
        "MaxSizeInMegabytes",
        "RequiresDuplicateDetection",
        "RequiresSession",
        "DefaultMessageTimeToLive",
        "DeadLetteringOnMessageExpiration",
        "DuplicateDetectionHistoryTimeWindow",
        "MaxDeliveryCount",
        "EnableBatchedOperations",
        "SizeInBytes",
        "MessageCount",
        "IsAnonymousAccessible",
        "AuthorizationRules",
        "Status",
        "CreatedAt",
        "UpdatedAt",
        "AccessedAt",
        "SupportOrdering",
        "CountDetails",
        "AutoDeleteOnIdle",
        "EnablePartitioning",
        "EntityAvailabilityStatus",
        "EnableExpress",
        "MaxMessageSizeInKilobytes",
    }
    assert found.text.count("xmlns:d2p1=") == 1


def test_a_feed_has_a_second_link_only_when_there_is_a_next_page(namespace: EmbeddedNamespace) -> None:
    for number in range(3):
        ask(namespace, "PUT", f"/q{number}?{VERSION}", QUEUE)
    first = ask(namespace, "GET", f"/$Resources/queues?$skip=0&$top=2&{VERSION}").xml
    links = [link.attrib for link in first.findall(f"{ATOM}link")]
    assert [link["rel"] for link in links] == ["self", "next"]
    assert "$skip=2&$top=2" in links[1]["href"]
    assert len(first.findall(f"{ATOM}entry")) == 2
    last = ask(namespace, "GET", f"/$Resources/Queues?$skip=2&$top=2&{VERSION}").xml
    assert len(last.findall(f"{ATOM}link")) == 1
    assert [found.findtext(f"{ATOM}title") for found in last.findall(f"{ATOM}entry")] == ["q2"]
    assert len(ask(namespace, "GET", f"/$Resources/queues?{VERSION}").xml.findall(f"{ATOM}entry")) == 3
    beyond = ask(namespace, "GET", f"/$Resources/queues?$skip=100&$top=2&{VERSION}").xml
    assert beyond.findall(f"{ATOM}entry") == []


@pytest.mark.parametrize("query", ["$skip=-1", "$top=-1", "$top=x", "$skip=%F0", "$top=99999999999", "$filter=x"])
def test_bad_paging_is_refused(namespace: EmbeddedNamespace, query: str) -> None:
    assert ask(namespace, "GET", f"/$Resources/queues?{query}&{VERSION}").status == 400


def test_lists_are_filtered_by_the_beginning_of_names(namespace: EmbeddedNamespace) -> None:
    for name in ("alpha", "Albatross", "beta"):
        ask(namespace, "PUT", f"/{name}?{VERSION}", QUEUE)
    query = "$filter=" + quote("startswith(path, 'al') eq true")
    feed = ask(namespace, "GET", f"/$Resources/queues?{query}&{VERSION}").xml
    assert sorted(str(found.findtext(f"{ATOM}title")) for found in feed.findall(f"{ATOM}entry")) == [
        "Albatross",
        "alpha",
    ]


def test_an_update_needs_the_current_etag_or_a_star(namespace: EmbeddedNamespace) -> None:
    created = ask(namespace, "PUT", f"/q?{VERSION}", QUEUE)
    etag = created.headers["ETag"]
    change = description("QueueDescription", "<MaxDeliveryCount>3</MaxDeliveryCount>")
    assert ask(namespace, "PUT", f"/q?{VERSION}", change, If_Match='"1"').status == 412
    assert ask(namespace, "PUT", f"/q?{VERSION}", change, If_Match=etag).status == 200
    assert ask(namespace, "PUT", f"/q?{VERSION}", change, If_Match="*").status == 200
    assert ask(namespace, "PUT", f"/q?{VERSION}", change).status == 409
    assert ask(namespace, "PUT", f"/none?{VERSION}", change, If_Match="*").status == 404
    topic = description("TopicDescription")
    assert ask(namespace, "PUT", f"/q?{VERSION}", topic, If_Match="*").status == 400


def test_an_error_body_names_code_and_detail(namespace: EmbeddedNamespace) -> None:
    refused = ask(
        namespace, "PUT", f"/q?{VERSION}", description("QueueDescription", "<LockDuration>PT9M</LockDuration>")
    )
    assert refused.status == 400
    assert refused.xml.findtext("Code") == "400"
    assert str(refused.xml.findtext("Detail")).startswith("SubCode=40000. LockDuration is PT9M")
    missing = ask(namespace, "GET", f"/none?{VERSION}")
    assert (missing.status, missing.xml.findtext("Code")) == (404, "404")


@pytest.mark.parametrize(
    ("authorization", "words"),
    [
        (None, "MissingToken"),
        ("Bearer abc", "MalformedToken"),
        ("SharedAccessSignature sr=x&sig=y&se=99999999999&skn=RootManageSharedAccessKey", "InvalidSignature"),
    ],
)
def test_no_token_no_answer(namespace: EmbeddedNamespace, authorization: str | None, words: str) -> None:
    for path in ("/q", "/$Resources/queues", "/$namespaceinfo", "/t/Subscriptions/s/Rules/r"):
        refused = ask(namespace, "GET", f"{path}?{VERSION}", authorization=authorization)
        assert refused.status == 401
        assert words in refused.text


def test_expired_and_foreign_tokens_are_refused(namespace: EmbeddedNamespace) -> None:
    expired = token(namespace, expires_in_s=-1)
    assert "ExpiredToken" in ask(namespace, "GET", f"/q?{VERSION}", authorization=expired).text
    foreign = token(namespace, "https://localhost/other")
    assert "InvalidAudience" in ask(namespace, "GET", f"/q?{VERSION}", authorization=foreign).text


DEEP = b"<a>" * 5_000
MANY = b"<entry>" + b"<a/>" * 20_000
BOMB = b'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><entry>&b;</entry>'
EXTERNAL = b'<?xml version="1.0"?><!DOCTYPE x SYSTEM "file:///etc/passwd"><entry/>'


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not xml",
        b"<entry>",
        b"\x00\x01\xff",
        DEEP,
        MANY,
        BOMB,
        EXTERNAL,
        b"<?xml version='1.0' encoding='no-such'?><entry/>",
        b"<feed/>",
        entry(""),
        entry("<A/><B/>"),
        entry("<Unknown/>"),
        description("QueueDescription", "<MaxDeliveryCount>many</MaxDeliveryCount>"),
        description("QueueDescription", "<MaxDeliveryCount>" + "9" * 5_000 + "</MaxDeliveryCount>"),
        description("QueueDescription", "<RequiresSession>perhaps</RequiresSession>"),
        description("QueueDescription", "<AuthorizationRules><AuthorizationRule/></AuthorizationRules>"),
    ],
    ids=lambda body: body[:40],
)
def test_bad_bodies_are_refused(namespace: EmbeddedNamespace, body: bytes) -> None:
    refused = ask(namespace, "PUT", f"/q?{VERSION}", body)
    assert refused.status == 400
    assert refused.xml.findtext("Code") == "400"
    assert ask(namespace, "GET", f"/q?{VERSION}").status == 404


def test_a_huge_body_is_refused(namespace: EmbeddedNamespace) -> None:
    body = description("QueueDescription", f"<UserMetadata>{'x' * 2_000_000}</UserMetadata>")
    # The server may hang up before it has read everything, which is a refusal too.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        assert ask(namespace, "PUT", f"/q?{VERSION}", body).status == 400
    assert ask(namespace, "GET", f"/q?{VERSION}").status == 404


@settings(deadline=None, print_blob=True, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200) | st.text(alphabet="<>/!?=\"'& entrycontQuDsipx:", max_size=80).map(str.encode))
def test_no_body_crashes_the_endpoint(namespace: EmbeddedNamespace, body: bytes) -> None:
    assert ask(namespace, "PUT", f"/q?{VERSION}", body).status == 400


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 400),
        ("PUT", "/", 400),
        ("GET", "/" + "q" * 2_000, 400),
        ("GET", "/$other", 404),
        ("GET", "/$Resources/other", 404),
        ("POST", "/q", 400),
        ("PUT", "/$Resources/queues", 400),
        ("DELETE", "/$namespaceinfo", 400),
        ("GET", "/q?api-version=latest", 400),
        ("GET", "/t/Subscriptions", 404),
        ("GET", "/t/subscriptions/s/rules", 404),
        ("GET", "/%00", 404),
        ("GET", "/$pairbus/none", 404),
    ],
)
def test_what_cannot_be_asked(namespace: EmbeddedNamespace, method: str, path: str, status: int) -> None:
    suffix = "" if "?" in path else f"?{VERSION}"
    assert ask(namespace, method, path + suffix, b"").status == status


def test_health_is_open_over_http_and_https(namespace: EmbeddedNamespace) -> None:
    plain = ask(namespace, "GET", "/$pairbus/health", authorization=None)
    assert (plain.status, plain.json) == (200, {"status": "ok", "name": "contoso"})
    trusted = ssl.create_default_context(cafile=namespace.ca_file)
    for host in ("localhost", "127.0.0.1"):
        connection = http.client.HTTPSConnection(host, namespace.port, timeout=30, context=trusted)
        connection.request("GET", "/$pairbus/health")
        assert connection.getresponse().status == 200
        connection.close()


def test_health_says_that_the_disk_refuses(tmp_path: Path) -> None:
    with EmbeddedNamespace("contoso", data=tmp_path) as running, running.admin() as admin:
        admin.create_queue("q")
        with contextlib.closing(sqlite3.connect(tmp_path / "namespace.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")  # longer than the writer waits for the lock
            creating = threading.Thread(target=admin.create_queue, args=("another",))
            creating.start()
            deadline = time.monotonic() + 30
            while (answer := ask(running, "GET", "/$pairbus/health", authorization=None)).status == 200:
                assert time.monotonic() < deadline
                time.sleep(0.1)
            assert (answer.status, answer.json) == (503, {"status": "failing", "name": "contoso"})
            other.execute("ROLLBACK")
        creating.join()
        assert ask(running, "GET", "/$pairbus/health", authorization=None).status == 200


@pytest.mark.parametrize(
    "said", [b"GET / HTTP/9.9\r\n\r\n", b"GET * HTTP/1.1\r\n\r\n", b"PUT /q HTTP/1.1\r\nContent-Length: -5\r\n\r\n"]
)
def test_malformed_http_is_answered_without_a_traceback(
    namespace: EmbeddedNamespace, caplog: pytest.LogCaptureFixture, said: bytes
) -> None:
    with socket.create_connection(("127.0.0.1", namespace.port), timeout=30) as connection:
        connection.sendall(said)
        assert connection.recv(12) == b"HTTP/1.0 400"
    assert not caplog.records


def test_an_untrusted_certificate_is_the_clients_to_refuse(namespace: EmbeddedNamespace) -> None:
    connection = http.client.HTTPSConnection("localhost", namespace.port, context=ssl.create_default_context())
    with pytest.raises(ssl.SSLCertVerificationError):
        connection.request("GET", "/$pairbus/health")
    assert ask(namespace, "GET", "/$pairbus/health").status == 200


def test_faults_are_set_listed_and_cleared_with_manage_only(namespace: EmbeddedNamespace) -> None:
    assert ask(namespace, "GET", "/$pairbus/faults", authorization=None).status == 401
    body = b'{"mode": "slow", "entity": "orders", "delay_ms": 5, "for_ms": 60000}'
    assert ask(namespace, "PUT", "/$pairbus/faults", body).status == 200
    (fault,) = ask(namespace, "GET", "/$pairbus/faults").json["faults"]
    assert fault.pop("for_ms") <= 60_000
    assert fault == {"mode": "slow", "entity": "orders", "delay_ms": 5}
    assert ask(namespace, "DELETE", "/$pairbus/faults?entity=other").status == 200
    assert len(ask(namespace, "GET", "/$pairbus/faults").json["faults"]) == 1
    assert ask(namespace, "DELETE", "/$pairbus/faults?entity=orders").status == 200
    assert ask(namespace, "GET", "/$pairbus/faults").json == {"faults": []}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"mode": "explode"}',
        b'{"mode": "hang", "x": 1}',
        b'{"mode": "hang", "for_ms": -1}',
        b"[" * 100_000,
        b'{"mode": 5}',
        b'{"mode": "slow", "delay_ms": "x"}',
        b'{"mode": "hang", "entity": 5}',
    ],
    ids=lambda body: body[:40],
)
def test_bad_faults_are_refused_with_a_sentence(namespace: EmbeddedNamespace, body: bytes) -> None:
    refused = ask(namespace, "PUT", "/$pairbus/faults", body)
    assert refused.status == 400
    assert refused.text.endswith(".")
    assert ask(namespace, "GET", "/$pairbus/faults").json == {"faults": []}


def test_the_namespaces_fault_reaches_the_administration_but_not_the_control(namespace: EmbeddedNamespace) -> None:
    namespace.fault("error", condition="com.microsoft:server-busy")
    assert ask(namespace, "GET", f"/$namespaceinfo?{VERSION}").status == 503
    namespace.fault("refuse")
    with pytest.raises((http.client.HTTPException, ConnectionError)):
        ask(namespace, "GET", f"/$namespaceinfo?{VERSION}")
    namespace.clear_faults()
    namespace.fault("error", entity="orders", condition="com.microsoft:server-busy")
    assert ask(namespace, "GET", f"/$namespaceinfo?{VERSION}").status == 200


def test_a_hanging_administration_answers_when_the_fault_ends(namespace: EmbeddedNamespace) -> None:
    namespace.fault("hang")
    connection = http.client.HTTPConnection("127.0.0.1", namespace.port, timeout=30)
    connection.request("GET", f"/$namespaceinfo?{VERSION}", headers={"Authorization": token(namespace)})
    connection.sock.settimeout(0.2)
    with pytest.raises(TimeoutError):
        connection.sock.recv(1, socket.MSG_PEEK)
    connection.sock.settimeout(30)
    namespace.clear_faults()
    assert connection.getresponse().status == 200
    connection.close()


def test_keys_of_the_namespace_are_made_used_and_removed(namespace: EmbeddedNamespace) -> None:
    path = "/$pairbus/authorization-rules"
    assert ask(namespace, "PUT", f"{path}/reader", b'{"rights": ["Listen"], "primary_key": "the-key"}').status == 200
    rules = ask(namespace, "GET", path).json["rules"]
    assert {"key_name": "reader", "rights": ["Listen"]} in rules
    reader = sign("https://localhost/", "reader", "the-key", int(time.time()) + 60)
    refused = ask(namespace, "GET", f"/$namespaceinfo?{VERSION}", authorization=reader)
    assert (refused.status, "MissingClaim" in refused.text) == (401, True)
    assert ask(namespace, "GET", path, authorization=reader).status == 401
    assert ask(namespace, "DELETE", f"{path}/reader").status == 200
    assert ask(namespace, "DELETE", f"{path}/reader").status == 404
    assert ask(namespace, "DELETE", f"{path}/RootManageSharedAccessKey").status == 400
    assert ask(namespace, "PUT", f"{path}/x", b'{"rights": ["Fly"]}').status == 400
    gone = ask(namespace, "GET", f"/$namespaceinfo?{VERSION}", authorization=reader)
    assert "InvalidSignature" in gone.text
