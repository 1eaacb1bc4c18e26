"""The namespace's own ledger: what its broker did, each operation once, and nothing that did not happen."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.broker_stage import Inbox, answered, raw, send, settle

from pairbus.amqp.codec import encode
from pairbus.amqp.types import Symbol
from pairbus.embedded.entities.descriptions import QueueDescription, SubscriptionDescription, TopicDescription
from pairbus.embedded.entities.message import (
    AbandonMessage,
    CompleteMessage,
    DeadLetterMessage,
    DeferMessage,
    ReleaseMessage,
)
from pairbus.embedded.errors import BrokerError, Limits
from pairbus.embedded.receivers import MessageDelivery, ReceiveMode
from pairbus.embedded.recording import RecordingBroker
from pairbus.embedded.store import Store
from pairbus.ledger import LedgerWriter, Role, closed_files
from pairbus.testing import ManualClock

PING = (
    b"\x00\x53\x73"
    + encode(["p", None, None, None, None, None, Symbol("application/vnd.ms-servicebus-ping")])
    + b"\x00\x53\x75"
    + encode(b"")
)


def recorded(folder: Path, work: Callable[[RecordingBroker, ManualClock], Awaitable[None]]) -> list[dict[str, Any]]:
    """What the ledger says about some work on a broker with a queue "q"."""

    async def main() -> None:
        clock = ManualClock()
        with LedgerWriter(folder / "ledger", role=Role.NAMESPACE) as ledger:
            ledger.address = "127.0.0.1:5672"
            broker = RecordingBroker(Store(folder), clock, Limits(), "contoso", ledger)
            try:
                await broker.create(QueueDescription("q"))
                await work(broker, clock)
            finally:
                await broker.close()

    asyncio.run(main())
    lines = [json.loads(line) for path in closed_files(folder / "ledger") for line in path.read_text().splitlines()]
    found = [line for line in lines if not line["operation"].startswith("ledger-")]
    assert {(line["namespace"], line["role"], line["address"]) for line in found} == {
        ("contoso", "namespace", "127.0.0.1:5672")
    }
    return found


def told(lines: list[dict[str, Any]]) -> Counter[tuple[str, str, str | None]]:
    return Counter((line["operation"], line["entity"], line.get("message_id")) for line in lines)


def test_a_message_is_recorded_from_its_send_to_its_settlement(tmp_path: Path) -> None:
    async def work(broker: RecordingBroker, clock: ManualClock) -> None:
        await send(broker, "q", raw("a", body=b"x" * 1000), raw("b"))
        inbox = Inbox(broker, "q")
        await asyncio.sleep(0)
        await answered(lambda done: broker.schedule("q", [raw("s", at_ms=clock.now_ms() + 60_000)], done))
        await settle(broker, "q", inbox.got[0], CompleteMessage())
        await settle(broker, "q", inbox.got[1], DeadLetterMessage("why"))

    lines = recorded(tmp_path, work)
    assert told(lines) == {
        ("create", "q", None): 1,
        ("send", "q", "a"): 1,
        ("send", "q", "b"): 1,
        ("receive", "q", "a"): 1,
        ("receive", "q", "b"): 1,
        ("schedule", "q", "s"): 1,
        ("complete", "q", "a"): 1,
        ("dead-letter", "q", "b"): 1,
    }
    sent = next(line for line in lines if line["operation"] == "send" and line["message_id"] == "a")
    assert sent["bytes"] == len(raw("a", body=b"x" * 1000))
    assert all(line.get("outcome", "ok") == "ok" for line in lines)


def test_every_other_operation_on_messages(tmp_path: Path) -> None:
    async def work(broker: RecordingBroker, clock: ManualClock) -> None:
        await send(broker, "q", *(raw(name) for name in ("abandoned", "deferred", "released")))
        inbox = Inbox(broker, "q", credit=3)
        await asyncio.sleep(0)
        held = {str(name): delivery for name, delivery in zip(inbox.ids, inbox.got, strict=True)}
        number = held["deferred"].sequence_number
        await settle(broker, "q", held["deferred"], DeferMessage())
        await answered(lambda done: broker.receive_deferred("q", [number], ReceiveMode.RECEIVE_AND_DELETE, None, done))
        await settle(broker, "q", held["abandoned"], AbandonMessage())
        await settle(broker, "q", held["released"], ReleaseMessage())
        assert len(broker.peek("q", 1, 10, None)) == 2
        assert await answered(lambda done: broker.delete_batch("q", 10, 2**60, done)) == 2
        later = [raw("later", at_ms=clock.now_ms() + 60_000)]
        numbers = await answered(lambda done: broker.schedule("q", later, done))
        await answered(lambda done: broker.cancel_scheduled("q", numbers, done))
        Inbox(broker, "q", ReceiveMode.RECEIVE_AND_DELETE)
        await send(broker, "q", raw("gone"))
        await send(broker, "q", PING)

    wanted: dict[tuple[str, str, str | None], int] = {
        ("create", "q", None): 1,
        **{("send", "q", name): 1 for name in ("abandoned", "deferred", "released", "gone")},
        **{("receive", "q", name): 1 for name in ("abandoned", "released", "gone")},
        ("receive", "q", "deferred"): 2,
        ("defer", "q", "deferred"): 1,
        ("complete", "q", "deferred"): 1,
        ("abandon", "q", "abandoned"): 1,
        ("abandon", "q", "released"): 1,
        ("peek", "q", "abandoned"): 1,
        ("peek", "q", "released"): 1,
        ("complete", "q", None): 2,
        ("schedule", "q", "later"): 1,
        ("cancel", "q", None): 1,
        ("complete", "q", "gone"): 1,
        ("ping", "q", "p"): 1,
    }
    assert told(recorded(tmp_path, work)) == wanted


def test_topics_sessions_and_backlog_queues(tmp_path: Path) -> None:
    backlog = "contoso/x-servicebus-transfer/0"

    async def work(broker: RecordingBroker, clock: ManualClock) -> None:
        await broker.create(TopicDescription("t"))
        await broker.create(SubscriptionDescription("t", "s"))
        await broker.create(QueueDescription("sessions", requires_session=True))
        await broker.create(QueueDescription(backlog))
        Inbox(broker, "t/Subscriptions/s")
        await send(broker, "t", raw("published"))
        await send(broker, backlog, raw("diverted"))
        await send(broker, "sessions", raw("one", session_id="1"))
        mode = ReceiveMode.PEEK_LOCK
        deliveries: list[MessageDelivery] = []
        session = await answered(
            lambda done: broker.accept_session("sessions", "1", mode, deliveries.append, print, done, 1000)
        )
        session.set_credit(1)
        await asyncio.sleep(0)

    wanted: dict[tuple[str, str, str | None], int] = {
        **{("create", name, None): 1 for name in ("q", "t", "t/Subscriptions/s", "sessions", backlog)},
        ("send", "t", "published"): 1,
        ("receive", "t/Subscriptions/s", "published"): 1,
        ("divert", backlog, "diverted"): 1,
        ("send", "sessions", "one"): 1,
        ("receive", "sessions", "one"): 1,
    }
    assert told(recorded(tmp_path, work)) == wanted


def test_what_was_refused_is_recorded_as_failed(tmp_path: Path) -> None:
    async def work(broker: RecordingBroker, clock: ManualClock) -> None:
        with pytest.raises(BrokerError):
            await send(broker, "nowhere", raw("lost"))
        with pytest.raises(BrokerError):
            await send(broker, "q", b"no message")
        await send(broker, "q", raw("late"))
        inbox = Inbox(broker, "q", credit=1)
        await asyncio.sleep(0)
        clock.advance(61)
        with pytest.raises(BrokerError):
            await settle(broker, "q", inbox.got[0], CompleteMessage())

    failed = [line for line in recorded(tmp_path, work) if line.get("outcome") == "failed"]
    assert [(line["operation"], line.get("message_id"), line["error"]) for line in failed] == [
        ("send", "lost", "EntityNotFoundError"),
        ("send", None, "InvalidError"),
        ("complete", None, "MessageLockLostError"),
    ]


@pytest.mark.parametrize(("ending", "expected"), [("commit", 1), ("roll back", 0)])
def test_a_transaction_is_recorded_when_it_is_committed(tmp_path: Path, ending: str, expected: int) -> None:
    async def work(broker: RecordingBroker, clock: ManualClock) -> None:
        await send(broker, "q", raw("before"))
        inbox = Inbox(broker, "q", credit=1)
        await asyncio.sleep(0)
        txn = broker.begin_transaction()
        await send(broker, "q", raw("inside"), txn=txn)
        await settle(broker, "q", inbox.got[0], CompleteMessage(), txn=txn)
        await answered(lambda done: broker.discharge(txn, ending == "roll back", done))

    counts = told(recorded(tmp_path, work))
    assert (counts["send", "q", "inside"], counts["complete", "q", "before"]) == (expected, expected)
