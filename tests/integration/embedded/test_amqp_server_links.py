"""Sending to and receiving from the embedded namespace over AMQP, with the real broker behind it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import UUID

import pytest
from tests.support.amqp_stage import BATCH_FORMAT, AmqpStage, batch, data_message, on_stage

from pairbus.amqp.client import ClientConnection
from pairbus.amqp.codec import decode
from pairbus.amqp.engine import EngineLimits
from pairbus.amqp.message import Sections, read_facts
from pairbus.amqp.outcomes import Accepted, AmqpError, LinkLostError, Modified, RefusedError, Rejected, Released, State
from pairbus.testing.clock import ManualClock


def advance(stage: AmqpStage, seconds: float) -> None:
    assert isinstance(stage.clock, ManualClock)
    stage.clock.advance(seconds)


def test_single_and_batched_messages_arrive_in_order(tmp_path: Path) -> None:
    async def play(stage: AmqpStage) -> None:
        connection = await stage.connect()
        sender = await connection.open_sender("orders")
        await sender.send(data_message(b"0", message_id="first"))
        messages = [data_message(b"%d" % number) for number in range(1, 6)]
        await sender.send(batch(messages), message_format=BATCH_FORMAT)
        receiver = await connection.open_receiver("amqps://localhost:1234/orders")
        got: list[bytes] = []
        while len(got) < 6:
            for message in await receiver.receive(10):
                got.append(decode(Sections.split(message.raw).body)[0].value)
                assert await receiver.settle([message]) == [None]
        assert got == [b"0", b"1", b"2", b"3", b"4", b"5"]
        assert stage.broker.counts("orders").active == 0
        await connection.close()

    on_stage(tmp_path, play)


def test_a_message_of_many_frames_arrives_whole(tmp_path: Path) -> None:
    async def play(stage: AmqpStage) -> None:
        connection = await stage.connect()
        sender = await connection.open_sender("orders")
        body = bytes(range(256)) * 1000
        await sender.send(data_message(body))
        receiver = await connection.open_receiver("orders", receive_and_delete=True)
        (message,) = await receiver.receive(1)
        assert decode(Sections.split(message.raw).body)[0].value == body
        assert stage.broker.counts("orders").active == 0

    on_stage(tmp_path, play)


@pytest.mark.parametrize(
    ("raw", "message_format", "condition"),
    [
        (data_message(b"x" * 262_144), 0, "amqp:link:message-size-exceeded"),
        (data_message(b"x" * 3_000_000), 0, "amqp:link:message-size-exceeded"),
        (batch([data_message(b"x" * 100_000)] * 3), BATCH_FORMAT, "amqp:link:message-size-exceeded"),
        (b"not a message", 0, "com.microsoft:argument-error"),
        (b"\x00\x53\x77\x40", BATCH_FORMAT, "com.microsoft:argument-error"),
        (batch([b"not a message"]), BATCH_FORMAT, "com.microsoft:argument-error"),
        (batch([b"\x00\x53\x75\xa0\x00"] * 4_501), BATCH_FORMAT, "com.microsoft:argument-error"),
    ],
    ids=["large", "very large", "large batch", "noise", "no batch", "noise in a batch", "too many in a batch"],
)
def test_what_cannot_be_taken_is_refused_and_the_link_goes_on(
    tmp_path: Path, raw: bytes, message_format: int, condition: str
) -> None:
    async def play(stage: AmqpStage) -> None:
        connection = await stage.connect()
        sender = await connection.open_sender("orders")
        with pytest.raises(RefusedError) as refused:
            await sender.send(raw, message_format=message_format)
        assert refused.value.condition == condition
        assert refused.value.error.description
        assert refused.value.error.info, "clients read three fields of an error"
        await sender.send(data_message(b"good"))
        assert stage.broker.counts("orders").active == 1

    on_stage(tmp_path, play)


@pytest.mark.parametrize(
    ("address", "sending", "condition"),
    [
        ("nowhere", True, "amqp:not-found"),
        ("nowhere", False, "amqp:not-found"),
        ("events/Subscriptions/all", True, "amqp:not-allowed"),
        ("orders/$DeadLetterQueue", True, "amqp:not-allowed"),
        ("sessions", False, "amqp:not-allowed"),
        ("nowhere/$management", True, "amqp:not-found"),
    ],
)
def test_links_that_lead_nowhere_are_refused_with_the_reason(
    tmp_path: Path, address: str, sending: bool, condition: str
) -> None:
    async def play(stage: AmqpStage) -> None:
        connection = await stage.connect()
        with pytest.raises(LinkLostError) as refused:
            await (connection.open_sender(address) if sending else connection.open_receiver(address))
        assert refused.value.condition == condition
        await connection.open_sender("orders")

    on_stage(tmp_path, play)


SETTLEMENTS: list[tuple[State, str, int]] = [
    (Accepted(), "gone", 0),
    (Released(), "back", 0),
    (Modified(delivery_failed=True), "back", 1),
    (Modified(delivery_failed=True, undeliverable_here=True), "deferred", 0),
    (
        Rejected(AmqpError("com.microsoft:dead-letter", "", {"DeadLetterReason": "why"})),
        "dead-lettered",
        0,
    ),
]


@pytest.mark.parametrize(("state", "fate", "delivery_count"), SETTLEMENTS, ids=[row[1] for row in SETTLEMENTS])
def test_each_outcome_does_its_work_and_is_echoed(tmp_path: Path, state: State, fate: str, delivery_count: int) -> None:
    async def play(stage: AmqpStage) -> None:
        connection = await stage.connect()
        sender = await connection.open_sender("orders")
        await sender.send(data_message(b"x"))
        receiver = await connection.open_receiver("orders", credit=1)
        (message,) = await receiver.receive(1)
        assert await receiver.settle([message], state) == [None]
        if fate == "back":
            (again,) = await receiver.receive(1)
            assert again.tag != message.tag
            header = decode(Sections.split(again.raw).header)[0].value
            assert header[4] == delivery_count
        elif fate == "dead-lettered":
            dead = await connection.open_receiver("orders/$DeadLetterQueue")
            (letter,) = await dead.receive(1)
            assert read_facts(letter.raw).application_properties["DeadLetterReason"] == "why"
        else:
            assert stage.broker.counts("orders").active == 0
            assert len(stage.broker.peek("orders", 0, 10, None)) == (1 if fate == "deferred" else 0)

    on_stage(tmp_path, play)


def test_the_delivery_tag_is_the_lock_token(tmp_path: Path) -> None:
    async def play(stage: AmqpStage) -> None:
        connection = await stage.connect()
        await (await connection.open_sender("orders")).send(data_message(b"x"))
        receiver = await connection.open_receiver("orders")
        (message,) = await receiver.receive(1)
        assert len(message.tag) == 16
        annotations = decode(Sections.split(message.raw).delivery_annotations)[0].value
        assert annotations["x-opt-lock-token"] == UUID(bytes_le=message.tag) == message.lock_token

    on_stage(tmp_path, play)


def test_settling_after_the_lock_ended_is_refused_as_lock_lost(tmp_path: Path) -> None:
    async def play(stage: AmqpStage) -> None:
        connection = await stage.connect()
        await (await connection.open_sender("orders")).send(data_message(b"x"))
        receiver = await connection.open_receiver("orders", credit=1)
        (message,) = await receiver.receive(1)
        advance(stage, 61)
        (reason,) = await receiver.settle([message])
        assert reason is not None
        assert reason.condition == "com.microsoft:message-lock-lost"

    on_stage(tmp_path, play)


def test_a_receiver_gets_no_more_than_its_credit(tmp_path: Path) -> None:
    async def play(stage: AmqpStage) -> None:
        connection = await stage.connect()
        sender = await connection.open_sender("orders")
        await sender.send(batch([data_message(b"%d" % number) for number in range(50)]), message_format=BATCH_FORMAT)
        few = await connection.open_receiver("orders", credit=4)
        many = await connection.open_receiver("orders", credit=500)
        got = 0
        while got < 46:
            got += len(await many.receive(100))
        assert len(await few.receive(100)) == 4
        assert got == 46

    on_stage(tmp_path, play)


@pytest.mark.parametrize("session_window", [65_536, 1 << 20])
def test_large_messages_flow_through_small_session_windows(tmp_path: Path, session_window: int) -> None:
    async def play(stage: AmqpStage) -> None:
        connection = await ClientConnection.open(
            "127.0.0.1", stage.port, limits=EngineLimits(session_window=session_window)
        )
        await connection.put_token(stage.token(), "sb://localhost/")
        sender = await connection.open_sender("orders")
        sent = [sender.send(data_message(b"x" * 250_000)) for _ in range(60)]
        receiver = await connection.open_receiver("orders", credit=1_000)
        got = 0
        while got < 60:
            messages = await receiver.receive(100)
            got += len(messages)
            assert set(await receiver.settle(messages)) == {None}
        await asyncio.gather(*sent)

    on_stage(tmp_path, play)


def test_a_drain_gives_the_credit_back(tmp_path: Path) -> None:
    async def play(stage: AmqpStage) -> None:
        connection = await stage.connect()
        sender = await connection.open_sender("orders")
        await sender.send(batch([data_message(b"x")] * 3), message_format=BATCH_FORMAT)
        receiver = await connection.open_receiver("orders", credit=1)
        got = len(await receiver.receive(1))
        receiver.link.drain(10)
        while got < 3:
            got += len(await receiver.receive(10))
        # The peer has given back what it did not use when our own count of it is nil.
        while receiver.link.credit:
            await connection.manage("orders", "peek-message", {"from-sequence-number": 0, "message-count": 1})
        await sender.send(data_message(b"later"))
        receiver.link.grant(1)
        assert len(await receiver.receive(10)) == 1

    on_stage(tmp_path, play)


def test_sessions_are_accepted_by_name_and_as_available(tmp_path: Path) -> None:
    async def play(stage: AmqpStage) -> None:
        connection = await stage.connect()
        sender = await connection.open_sender("sessions")
        with pytest.raises(RefusedError) as refused:
            await sender.send(data_message(b"no session"))
        assert refused.value.condition == "amqp:not-allowed"
        await sender.send(data_message(b"x", session_id="blue"))
        receiver = await connection.open_receiver("sessions", next_session=True)
        assert receiver.session_id == "blue"
        ticks = receiver.link.remote_properties["com.microsoft:locked-until-utc"]
        assert (ticks - 621_355_968_000_000_000) // 10_000 == stage.clock.now_ms() + 60_000
        with pytest.raises(LinkLostError) as locked:
            await connection.open_receiver("sessions", session="blue")
        assert locked.value.condition == "com.microsoft:session-cannot-be-locked"
        (message,) = await receiver.receive(1)
        assert await receiver.settle([message]) == [None]
        other = await connection.open_receiver("sessions", session="")
        assert other.session_id == ""

    on_stage(tmp_path, play)


def test_waiting_for_a_session_ends_with_one_or_with_a_timeout(tmp_path: Path) -> None:
    async def play(stage: AmqpStage) -> None:
        connection = await stage.connect()
        sender = await connection.open_sender("sessions")
        waiting = asyncio.create_task(connection.open_receiver("sessions", next_session=True, wait_ms=10_000))
        # The connection goes on while the attach waits.
        reply = await connection.manage("sessions", "get-message-sessions", {})
        assert reply.status == 204
        advance(stage, 11)
        with pytest.raises(LinkLostError) as timed_out:
            await waiting
        assert timed_out.value.condition == "com.microsoft:timeout"
        waiting = asyncio.create_task(connection.open_receiver("sessions", next_session=True, wait_ms=10_000))
        await sender.send(data_message(b"x", session_id="s"))
        assert (await waiting).session_id == "s"

    on_stage(tmp_path, play)


def test_a_session_is_free_when_its_link_is_gone(tmp_path: Path) -> None:
    async def play(stage: AmqpStage) -> None:
        first, second = await stage.connect(), await stage.connect()
        await first.open_receiver("sessions", session="s")
        first.abort()
        await first.lost
        while True:
            try:
                receiver = await second.open_receiver("sessions", session="s")
            except LinkLostError:
                continue
            break
        assert receiver.session_id == "s"

    on_stage(tmp_path, play)


def test_a_deleted_entity_ends_its_links(tmp_path: Path) -> None:
    async def play(stage: AmqpStage) -> None:
        connection = await stage.connect()
        receiver = await connection.open_receiver("orders")
        await stage.broker.delete("orders")
        with pytest.raises(LinkLostError) as ended:
            await receiver.receive(1)
        assert ended.value.condition == "amqp:not-found"

    on_stage(tmp_path, play)
