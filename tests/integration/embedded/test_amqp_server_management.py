"""Every operation of `entity/$management`, asked over the wire."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from tests.support.amqp_stage import BATCH_FORMAT, AmqpStage, batch, data_message, on_stage

from pairbus.amqp.client import ClientConnection, Received, Reply
from pairbus.amqp.codec import decode, encode
from pairbus.amqp.message import Sections, read_facts
from pairbus.amqp.types import Array, Described, Symbol, Timestamp, UInt, ULong

LATER_MS = 600_000


def connected(folder: Path, play: Callable[[AmqpStage, ClientConnection], Awaitable[None]]) -> None:
    async def with_connection(stage: AmqpStage) -> None:
        await play(stage, await stage.connect())

    on_stage(folder, with_connection)


def scheduled(at_ms: int) -> bytes:
    annotations = {Symbol("x-opt-scheduled-enqueue-time"): Timestamp(at_ms)}
    return b"\x00\x53\x72" + encode(annotations) + data_message(b"later")


def good(reply: Reply) -> Any:
    assert reply.is_good, f"{reply.status} {reply.description}"
    return reply.body


async def send(connection: ClientConnection, entity: str, *raws: bytes) -> None:
    sender = await connection.open_sender(entity)
    await sender.send(batch(list(raws)), message_format=BATCH_FORMAT)


def test_peek_shows_without_taking(tmp_path: Path) -> None:
    async def play(stage: AmqpStage, connection: ClientConnection) -> None:
        ask = {"from-sequence-number": 0, "message-count": 2}
        assert (await connection.manage("orders", "peek-message", ask)).status == 204
        await send(connection, "orders", *(data_message(b"x", message_id=str(number)) for number in range(3)))
        body = good(await connection.manage("orders", "peek-message", ask))
        assert [read_facts(entry["message"]).message_id for entry in body["messages"]] == ["0", "1"]
        assert stage.broker.counts("orders").active == 3

    connected(tmp_path, play)


def test_locks_are_renewed_and_messages_settled_by_their_tokens(tmp_path: Path) -> None:
    async def play(stage: AmqpStage, connection: ClientConnection) -> None:
        await send(connection, "orders", *[data_message(b"x")] * 4)
        receiver = await connection.open_receiver("orders")
        got: list[Received] = []
        while len(got) < 4:
            got += await receiver.receive(4)
        tokens = [message.lock_token for message in got]
        body = good(await connection.manage("orders", "renew-lock", {"lock-tokens": Array(0x98, tokens)}))
        assert body["expirations"] == Array(0x83, [Timestamp(stage.clock.now_ms() + 60_000)] * 4)
        # Without the link that received them, from another connection.
        other = await stage.connect()
        for status, token in zip(("completed", "abandoned", "defered", "suspended"), tokens, strict=True):
            request = {
                "disposition-status": status,
                "lock-tokens": Array(0x98, [token]),
                "deadletter-reason": "why",
                "deadletter-description": "because",
                "properties-to-modify": {"seen": True},
            }
            good(await other.manage("orders", "update-disposition", request))
        dead = await other.open_receiver("orders/$DeadLetterQueue")
        (letter,) = await dead.receive(1)
        properties = read_facts(letter.raw).application_properties
        assert properties["DeadLetterReason"] == "why"
        assert properties["DeadLetterErrorDescription"] == "because"
        assert [read_facts(raw).application_properties for raw in stage.broker.peek("orders", 0, 10, None)] == [
            {"seen": True},
            {"seen": True},
        ]

    connected(tmp_path, play)


def test_a_lost_lock_is_named(tmp_path: Path) -> None:
    async def play(stage: AmqpStage, connection: ClientConnection) -> None:
        lost = {"lock-tokens": Array(0x98, [uuid4()])}
        for operation, body in (
            ("renew-lock", lost),
            ("update-disposition", lost | {"disposition-status": "completed"}),
        ):
            reply = await connection.manage("orders", operation, body)
            assert (reply.status, reply.condition) == (410, "com.microsoft:message-lock-lost")

    connected(tmp_path, play)


def test_messages_are_scheduled_and_cancelled(tmp_path: Path) -> None:
    async def play(stage: AmqpStage, connection: ClientConnection) -> None:
        raw = scheduled(stage.clock.now_ms() + LATER_MS)
        request = {"messages": [{"message-id": "1", "message": raw}, {"message-id": "2", "message": raw}]}
        numbers = good(await connection.manage("events", "schedule-message", request))["sequence-numbers"]
        assert len(numbers.items) == 2
        good(
            await connection.manage(
                "events", "cancel-scheduled-message", {"sequence-numbers": Array(0x81, numbers.items[:1])}
            )
        )
        reply = await connection.manage(
            "events", "cancel-scheduled-message", {"sequence-numbers": Array(0x81, numbers.items[:1])}
        )
        assert reply.condition == "com.microsoft:message-not-found"

    connected(tmp_path, play)


@pytest.mark.parametrize("settle_mode", [0, 1])
def test_deferred_messages_come_by_their_numbers(tmp_path: Path, settle_mode: int) -> None:
    async def play(stage: AmqpStage, connection: ClientConnection) -> None:
        await send(connection, "orders", data_message(b"aside"))
        receiver = await connection.open_receiver("orders")
        (message,) = await receiver.receive(1)
        token = Array(0x98, [message.lock_token])
        good(
            await connection.manage(
                "orders", "update-disposition", {"disposition-status": "defered", "lock-tokens": token}
            )
        )
        request = {"sequence-numbers": Array(0x81, [1]), "receiver-settle-mode": UInt(settle_mode)}
        (entry,) = good(await connection.manage("orders", "receive-by-sequence-number", request))["messages"]
        assert decode(Sections.split(entry["message"]).body)[0].value == b"aside"
        assert isinstance(entry["lock-token"], UUID)
        again = await connection.manage("orders", "receive-by-sequence-number", request)
        assert again.condition == "com.microsoft:message-not-found"
        assert len(stage.broker.peek("orders", 0, 10, None)) == settle_mode

    connected(tmp_path, play)


def test_session_state_locks_and_listing(tmp_path: Path) -> None:
    async def play(stage: AmqpStage, connection: ClientConnection) -> None:
        ask = {"session-id": "s"}
        assert (await connection.manage("sessions", "renew-session-lock", ask)).condition == (
            "com.microsoft:session-lock-lost"
        )
        await send(connection, "sessions", data_message(b"x", session_id="s"), data_message(b"x", session_id="r"))
        await connection.open_receiver("sessions", session="s")
        assert good(await connection.manage("sessions", "get-session-state", ask)) == {"session-state": None}
        good(await connection.manage("sessions", "set-session-state", ask | {"session-state": b"half way"}))
        assert good(await connection.manage("sessions", "get-session-state", ask)) == {"session-state": b"half way"}
        body = good(await connection.manage("sessions", "renew-session-lock", ask))
        assert body == {"expiration": Timestamp(stage.clock.now_ms() + 60_000)}
        page = {"last-updated-time": Timestamp(253_402_300_800_000), "skip": 0, "top": 100}
        body = good(await connection.manage("sessions", "get-message-sessions", page))
        assert sorted(body["sessions-ids"].items) == ["r", "s"]
        reply = await connection.manage("sessions", "get-message-sessions", page | {"skip": 2})
        assert reply.status == 204

    connected(tmp_path, play)


def test_messages_are_deleted_in_bulk(tmp_path: Path) -> None:
    async def play(stage: AmqpStage, connection: ClientConnection) -> None:
        await send(connection, "orders", *[data_message(b"x")] * 5)
        request = {"message-count": 3, "enqueued-time-utc": Timestamp(stage.clock.now_ms() + 1)}
        assert good(await connection.manage("orders", "batch-delete-messages", request)) == {"message-count": 3}
        assert stage.broker.counts("orders").active == 2

    connected(tmp_path, play)


def test_rules_are_added_listed_and_removed(tmp_path: Path) -> None:
    async def play(stage: AmqpStage, connection: ClientConnection) -> None:
        entity = "events/Subscriptions/all"
        sql = {
            "rule-name": "sql",
            "rule-description": {
                "sql-filter": {"expression": "color = 'blue'"},
                "sql-rule-action": {"expression": "SET seen = 1"},
            },
        }
        correlation = {
            "rule-name": "correlation",
            "rule-description": {
                "correlation-filter": {"label": "urgent", "properties": {"size": 3, "large": ULong(2**64 - 1)}}
            },
        }
        good(await connection.manage(entity, "add-rule", sql))
        good(await connection.manage(entity, "add-rule", correlation))
        assert not (await connection.manage(entity, "add-rule", sql)).is_good
        body = good(await connection.manage(entity, "enumerate-rules", {"top": 10, "skip": 0}))
        found = {entry["rule-description"].value[2]: entry["rule-description"].value for entry in body["rules"]}
        assert set(found) == {"$Default", "correlation", "sql"}
        assert found["sql"][0] == Described(0x1370000006, ["color = 'blue'", 20])
        assert found["sql"][1] == Described(0x13700000006, ["SET seen = 1", 20])
        assert found["$Default"][0].descriptor == 0x1370000007
        assert found["correlation"][0].value[4] == "urgent"
        assert found["correlation"][0].value[8] == {"size": 3, "large": 2**64 - 1}
        good(await connection.manage(entity, "remove-rule", {"rule-name": "sql"}))
        missing = await connection.manage(entity, "remove-rule", {"rule-name": "sql"})
        assert missing.status == 404

    connected(tmp_path, play)


def rule_for(value: object) -> dict[str, Any]:
    return {"rule-name": "r", "rule-description": {"correlation-filter": {"properties": {"p": value}}}}


@pytest.mark.parametrize(
    ("entity", "operation", "body"),
    [
        ("orders", "no-such-operation", {}),
        ("orders", "peek-message", {}),
        ("orders", "peek-message", {"from-sequence-number": 0, "message-count": 0}),
        ("orders", "peek-message", {"from-sequence-number": "x", "message-count": 1}),
        ("orders", "renew-lock", {"lock-tokens": ["not a uuid"]}),
        ("orders", "update-disposition", {"disposition-status": "eaten", "lock-tokens": Array(0x98, [])}),
        ("orders", "schedule-message", {"messages": [{"message": "text"}]}),
        ("orders", "schedule-message", {"messages": [{"message": b"noise"}]}),
        ("orders", "set-session-state", {"session-id": "s", "session-state": 5}),
        ("orders", "batch-delete-messages", {"message-count": 4_001}),
        ("orders", "add-rule", {"rule-name": "r", "rule-description": {}}),
        ("events/Subscriptions/all", "add-rule", {"rule-name": "r", "rule-description": 5}),
        ("events/Subscriptions/all", "add-rule", {"rule-name": "r", "rule-description": {"sql-filter": {}}}),
        ("events/Subscriptions/all", "add-rule", rule_for(Timestamp(2**63 - 1))),
        ("events/Subscriptions/all", "add-rule", rule_for(Timestamp(-(2**63)))),
    ],
)
def test_bad_requests_are_refused_with_a_sentence(
    tmp_path: Path, entity: str, operation: str, body: dict[str, Any]
) -> None:
    async def play(stage: AmqpStage, connection: ClientConnection) -> None:
        reply = await connection.manage(entity, operation, body)
        assert 400 <= reply.status < 500
        assert reply.condition is not None
        assert reply.description.endswith(".")
        assert (
            await connection.manage(entity, "peek-message", {"from-sequence-number": 0, "message-count": 1})
        ).is_good

    connected(tmp_path, play)


def test_replies_find_their_requests(tmp_path: Path) -> None:
    async def play(stage: AmqpStage, connection: ClientConnection) -> None:
        await send(connection, "orders", *(data_message(b"x", message_id=str(number)) for number in range(20)))
        replies = await asyncio.gather(
            *(
                connection.manage("orders", "peek-message", {"from-sequence-number": number + 1, "message-count": 1})
                for number in range(20)
            )
        )
        found = [read_facts(good(reply)["messages"][0]["message"]).message_id for reply in replies]
        assert found == [str(number) for number in range(20)]

    connected(tmp_path, play)
