"""Proton's own AMQP client does a round: plain links, tokens, management requests, sessions, transactions.

Nothing of the vendor's SDKs and nothing of ours is between the client and the wire, apart from the token's signature.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from uuid import UUID, uuid4

import pytest
from azure.servicebus.management import AccessRights, AuthorizationRule
from proton import (
    UNDESCRIBED,
    Array,
    Data,
    Delivery,
    Described,
    Message,
    ProtonException,
    int32,
    symbol,
    timestamp,
    uint,
)
from proton.handlers import TransactionHandler
from proton.reactor import AtMostOnce, Filter
from proton.utils import BlockingConnection, ConnectionClosed, LinkDetached, SendException
from tests.support.stage import Stage, stage

from pairbus.embedded.security import sign

TIMEOUT_SECONDS = 20
_ARRAY: Any = Array  # its annotations are narrower than what it takes


@pytest.fixture(name="stage", scope="module")
def _stage() -> Iterator[Stage]:
    with stage() as opened:
        yield opened


class Client:
    """A blocking connection that has put tokens, and asks management nodes."""

    def __init__(self, stage: Stage, *entities: str) -> None:
        self.stage = stage
        url = f"amqp://127.0.0.1:{stage.namespace.port}"
        self.connection: Any = BlockingConnection(url, timeout=TIMEOUT_SECONDS, allowed_mechs="ANONYMOUS")
        for entity in entities:
            reply = self.put_token(entity)
            assert reply.properties["status-code"] == 202, reply.properties

    def put_token(self, entity: str, *, key: str | None = None) -> Any:
        parts = dict(part.partition("=")[::2] for part in self.stage.namespace.connection_string.split(";"))
        audience = f"amqp://127.0.0.1:{self.stage.namespace.port}/{entity}"
        token = sign(audience, parts["SharedAccessKeyName"], key or parts["SharedAccessKey"], int(time.time()) + 600)
        properties = {"operation": "put-token", "type": "servicebus.windows.net:sastoken", "name": audience}
        return self.ask("$cbs", properties, token)

    def ask(self, node: str, properties: dict[str, Any], body: Any) -> Any:
        reply_to = f"replies-{uuid4()}"
        receiver = self.connection.create_receiver(node, name=reply_to, credit=1, options=_Target(reply_to))
        sender = self.connection.create_sender(node)
        request = Message(body=body, properties=properties, id=str(uuid4()), reply_to=reply_to)
        sender.send(request)
        reply = receiver.receive(TIMEOUT_SECONDS)
        assert reply.correlation_id == request.id
        for link in (sender, receiver):
            link.close()
        return reply

    def manage(self, entity: str, operation: str, body: dict[str, Any], status: int = 200) -> dict[str, Any]:
        reply = self.ask(f"{entity}/$management", {"operation": f"com.microsoft:{operation}"}, body)
        assert reply.properties["statusCode"] == status, reply.properties
        return dict(_copied(reply.body or {}))

    def sender(self, entity: str) -> Any:
        return self.connection.create_sender(entity, name=str(uuid4()))

    def receiver(self, entity: str, credit: int = 100, **options: Any) -> Any:
        return self.connection.create_receiver(entity, credit=credit, name=str(uuid4()), **options)

    def close(self) -> None:
        self.connection.close()


class _Target:
    """Names the reply link's target, as a request's reply-to refers to it."""

    def __init__(self, address: str) -> None:
        self._address = address

    def test(self, link: Any) -> bool:
        return bool(link.is_receiver)

    def apply(self, link: Any) -> None:
        link.target.address = self._address


def _session_filter(session_id: str | None) -> Filter:
    wanted: Any = {symbol("com.microsoft:session-filter"): session_id}
    return Filter(wanted)


@pytest.fixture
def queue(stage: Stage) -> str:
    return stage.queue()


@pytest.fixture
def client(stage: Stage, queue: str) -> Iterator[Client]:
    opened = Client(stage, queue)
    yield opened
    with suppress(LinkDetached):
        opened.close()


def test_plain_links_send_and_settle(stage: Stage, client: Client, queue: str) -> None:
    sender = client.sender(queue)
    for number in range(5):
        sender.send(Message(body={"number": number}, id=f"{number}", properties={"p": number}, durable=True))
    receiver = client.receiver(queue)
    messages = [receiver.receive(TIMEOUT_SECONDS) for _ in range(5)]
    assert [message.body["number"] for message in messages] == [0, 1, 2, 3, 4]
    assert messages[0].annotations[symbol("x-opt-sequence-number")] == 1
    assert isinstance(messages[0].instructions[symbol("x-opt-lock-token")], UUID)
    receiver.accept()
    receiver.reject()
    receiver.release(delivered=False)
    receiver.release(delivered=True)
    _until(client, lambda: stage.counts(queue)[:2] == (3, 1))
    again = [receiver.receive(TIMEOUT_SECONDS) for _ in range(2)]
    assert {message.id: message.delivery_count for message in again} == {"2": 0, "3": 1}


def test_settled_transfers_are_deleted_as_they_go(stage: Stage, client: Client, queue: str) -> None:
    client.sender(queue).send(Message(body="gone"))
    receiver = client.receiver(queue, options=AtMostOnce())
    assert receiver.receive(TIMEOUT_SECONDS).body == "gone"
    assert stage.counts(queue) == (0, 0, 0)


def test_large_and_refused_messages(stage: Stage, client: Client, queue: str) -> None:
    sender, receiver = client.sender(queue), client.receiver(queue)
    body = bytes(range(256)) * 900
    sender.send(Message(body=body))
    message = receiver.receive(TIMEOUT_SECONDS)  # a name for the message: its memory holds the body
    assert message.body == body
    with pytest.raises(SendException) as refused:
        sender.send(Message(body=b"x" * 400_000))
    assert refused.value.state == Delivery.REJECTED
    sender.send(Message(body="fine"))


def test_links_without_a_token_are_refused(stage: Stage, queue: str) -> None:
    client = Client(stage)
    with pytest.raises(LinkDetached, match="unauthorized-access"):
        client.sender(queue)
    assert client.put_token(queue, key="d3Jvbmc=").properties["status-code"] == 401
    assert client.put_token("nowhere").properties["status-code"] == 404
    with pytest.raises(LinkDetached, match="unauthorized-access"):
        client.receiver(queue)
    client.close()


def _logged_in(stage: Stage, name: str, key: str) -> Any:
    url = f"amqp://127.0.0.1:{stage.namespace.port}"
    secrets: dict[str, Any] = {"user": name, "password": key, "allowed_mechs": "PLAIN", "allow_insecure_mechs": True}
    return BlockingConnection(url, timeout=TIMEOUT_SECONDS, **secrets)


def test_a_name_and_key_instead_of_tokens(stage: Stage, queue: str) -> None:
    """SASL PLAIN, as clients that know nothing of tokens log in."""
    parts = dict(part.partition("=")[::2] for part in stage.namespace.connection_string.split(";"))
    root = _logged_in(stage, parts["SharedAccessKeyName"], parts["SharedAccessKey"])
    root.create_sender(queue).send(Message(body="plain"))
    assert root.create_receiver(queue, credit=1).receive(TIMEOUT_SECONDS).body == "plain"
    root.close()

    key = "a-key-that-may-send-0123456789012345678901="
    description = stage.admin.get_queue(queue)
    description.authorization_rules = [
        AuthorizationRule(key_name="sending", rights=[AccessRights.SEND], primary_key=key, secondary_key=key[::-1])
    ]
    stage.admin.update_queue(description)
    sending = _logged_in(stage, "sending", key)
    sender = sending.create_sender(queue)
    sender.send(Message(body="allowed"))
    with pytest.raises(LinkDetached, match="unauthorized-access"):
        sending.create_receiver(queue)
    description.authorization_rules = []
    stage.admin.update_queue(description)
    with pytest.raises((LinkDetached, ConnectionClosed), match="unauthorized-access"):
        sender.send(Message(body="the key is gone"))
    with pytest.raises(ProtonException, match=r"(?i)auth|sasl|closed"):
        _logged_in(stage, "sending", "wrong")


def test_peek_schedule_cancel_and_batch_delete(stage: Stage, client: Client, queue: str) -> None:
    at = timestamp(stage.clock.now_ms() + 60_000)
    later = Message(body="later", id="l", annotations={symbol("x-opt-scheduled-enqueue-time"): at})
    request = {"messages": [{"message-id": "l", "message": later.encode()}]}
    (number,) = client.manage(queue, "schedule-message", request)["sequence-numbers"]
    client.manage(queue, "cancel-scheduled-message", {"sequence-numbers": _longs([number])})
    sender = client.sender(queue)
    for body in range(6):
        sender.send(Message(body=body))
    peek = {"from-sequence-number": 1, "message-count": int32(3)}
    found = client.manage(queue, "peek-message", peek)["messages"]
    peeked = [Message() for _ in found]
    for message, entry in zip(peeked, found, strict=True):
        message.decode(entry["message"])
    assert [message.body for message in peeked] == [0, 1, 2]

    before = timestamp(stage.clock.now_ms() + 1)
    delete = {"message-count": int32(4), "enqueued-time-utc": before}
    assert client.manage(queue, "batch-delete-messages", delete)["message-count"] == 4
    assert stage.counts(queue) == (2, 0, 0)
    client.manage(queue, "peek-message", {"from-sequence-number": 100, "message-count": int32(3)}, status=204)
    client.manage(queue, "no-such-operation", {}, status=400)


def test_locks_over_management(stage: Stage, client: Client, queue: str) -> None:
    for body in ("a", "b", "c"):
        client.sender(queue).send(Message(body=body))
    receiver = client.receiver(queue)
    tokens = [receiver.receive(TIMEOUT_SECONDS).instructions[symbol("x-opt-lock-token")] for _ in range(3)]
    stage.clock.advance(30)
    ends = client.manage(queue, "renew-lock", {"lock-tokens": _uuids(tokens)})["expirations"]
    assert list(ends) == [stage.clock.now_ms() + 60_000] * 3
    receiver.close()
    client.manage(queue, "update-disposition", _disposition("completed", tokens[0]))
    client.manage(queue, "update-disposition", _disposition("defered", tokens[1]))
    dead = {"deadletter-reason": "r", "deadletter-description": "d"}
    client.manage(queue, "update-disposition", {**_disposition("suspended", tokens[2]), **dead})
    reply = client.manage(
        queue, "receive-by-sequence-number", {"sequence-numbers": _longs([2]), "receiver-settle-mode": uint(1)}
    )
    (entry,) = reply["messages"]
    client.manage(
        queue,
        "update-disposition",
        {**_disposition("abandoned", entry["lock-token"]), "properties-to-modify": {"tries": 1}},
    )
    client.manage(queue, "update-disposition", _disposition("completed", tokens[0]), status=410)
    assert stage.counts(queue)[1] == 1


def test_sessions(stage: Stage) -> None:
    queue = stage.queue(requires_session=True)
    client = Client(stage, queue)
    for session, body in (("a", 1), ("b", 2), ("a", 3)):
        client.sender(queue).send(Message(body=body, group_id=session))
    receiver = client.receiver(queue, options=_session_filter("a"))
    answered = receiver.link.remote_source.filter
    answered.rewind()
    answered.next()
    assert answered.get_dict() == {symbol("com.microsoft:session-filter"): "a"}
    assert [receiver.receive(TIMEOUT_SECONDS).body for _ in range(2)] == [1, 3]
    with pytest.raises(LinkDetached, match="session-cannot-be-locked"):
        client.receiver(queue, options=_session_filter("a"))
    client.manage(queue, "set-session-state", {"session-id": "a", "session-state": b"half"})
    assert client.manage(queue, "get-session-state", {"session-id": "a"})["session-state"] == b"half"
    end = client.manage(queue, "renew-session-lock", {"session-id": "a"})["expiration"]
    assert end == stage.clock.now_ms() + 60_000
    following = client.receiver(queue, options=_session_filter(None))
    assert following.receive(TIMEOUT_SECONDS).group_id == "b"
    listing = {"last-updated-time": timestamp(253_402_300_799_999), "skip": int32(0), "top": int32(10)}
    assert sorted(client.manage(queue, "get-message-sessions", listing)["sessions-ids"]) == ["a", "b"]
    client.close()


def test_rules_over_management_and_topics(stage: Stage) -> None:
    topic = stage.topic()
    stage.admin.create_subscription(topic, "s")
    path = f"{topic}/Subscriptions/s"
    client = Client(stage, topic, path)
    rule = {"sql-filter": {"expression": "n > 1"}, "sql-rule-action": {"expression": "SET m = n * 2"}}
    client.manage(path, "add-rule", {"rule-name": "r", "rule-description": rule})
    client.manage(path, "add-rule", {"rule-name": "r", "rule-description": rule}, status=409)
    client.manage(path, "remove-rule", {"rule-name": "$Default"})
    rules = client.manage(path, "enumerate-rules", {"skip": int32(0), "top": int32(10)})["rules"]
    assert len(rules) == 1 and isinstance(rules[0]["rule-description"], Described)
    for number in (1, 2):
        client.sender(topic).send(Message(body=number, properties={"n": number}))
    message = client.receiver(path).receive(TIMEOUT_SECONDS)
    assert (message.body, message.properties["m"]) == (2, 4)
    client.close()


class _Transactions(TransactionHandler):
    """Notes what the coordinator answers."""

    def __init__(self) -> None:
        self.declared: Any = None
        self.outcome: str | None = None

    def on_transaction_declared(self, event: Any) -> None:
        self.declared = event.transaction

    def on_transaction_committed(self, event: Any) -> None:
        self.outcome = "committed"

    def on_transaction_aborted(self, event: Any) -> None:
        self.outcome = "aborted"

    def on_transaction_commit_failed(self, event: Any) -> None:
        self.outcome = "failed"


def _transaction(client: Client) -> tuple[Any, _Transactions]:
    answers = _Transactions()
    client.connection.container.declare_transaction(client.connection.conn, answers)
    client.connection.wait(lambda: answers.declared is not None, TIMEOUT_SECONDS)
    return answers.declared, answers


@pytest.mark.parametrize("commits", [True, False])
def test_a_transaction_is_done_as_a_whole_or_not_at_all(
    stage: Stage, client: Client, queue: str, commits: bool
) -> None:
    target = stage.queue()
    client.put_token(target)
    client.sender(queue).send(Message(body="in"))
    receiver = client.receiver(queue)
    receiver.receive(TIMEOUT_SECONDS)
    (delivery,) = receiver.fetcher.unsettled
    sender = client.sender(target)

    transaction, answers = _transaction(client)
    sent = [transaction.send(sender.link, Message(body=number)) for number in range(3)]
    transaction.accept(delivery)
    client.connection.wait(lambda: all(one.remote_state for one in sent), TIMEOUT_SECONDS)
    assert (stage.counts(target)[0], stage.counts(queue)[0]) == (0, 1), "nothing shows before it is discharged"
    transaction.commit() if commits else transaction.abort()
    client.connection.wait(lambda: answers.outcome is not None, TIMEOUT_SECONDS)

    assert answers.outcome == ("committed" if commits else "aborted")
    expected = (3, 0) if commits else (0, 1)
    _until(client, lambda: (stage.counts(target)[0], stage.counts(queue)[0]) == expected)


def test_an_unfinished_transaction_goes_with_its_connection(stage: Stage, client: Client, queue: str) -> None:
    transaction, _ = _transaction(client)
    sent = transaction.send(client.sender(queue).link, Message(body="never"))
    client.connection.wait(lambda: bool(sent.remote_state), TIMEOUT_SECONDS)
    client.close()
    assert stage.counts(queue) == (0, 0, 0)


def _until(client: Client, condition: Any) -> None:
    """Waits while the client's own loop goes on."""
    client.connection.wait(condition, TIMEOUT_SECONDS)


def _copied(value: Any) -> Any:
    """A value that outlives its message.

    Proton's binding returns binary values as views of the message's C memory (`cproton.pn_data_get_binary`) and keeps
    nothing alive for them: once the message is collected, they show whatever is stored there next.
    """
    if isinstance(value, memoryview):
        return bytes(value)
    if isinstance(value, dict):
        return {_copied(key): _copied(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_copied(item) for item in value]
    return value


def _disposition(status: str, token: UUID) -> dict[str, Any]:
    return {"disposition-status": status, "lock-tokens": _uuids([token])}


def _uuids(values: list[UUID]) -> Any:
    return _ARRAY(UNDESCRIBED, Data.UUID, *values)


def _longs(values: list[int]) -> Any:
    return _ARRAY(UNDESCRIBED, Data.LONG, *values)
