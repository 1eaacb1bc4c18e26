"""Tokens and rights over AMQP: who may open which link, and for how long."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from proton.utils import BlockingConnection
from tests.support.amqp_stage import AmqpStage, data_message, on_stage

from pairbus.amqp.client import ClientConnection
from pairbus.amqp.outcomes import LinkLostError, TokenRefusedError
from pairbus.embedded.entities.descriptions import AuthorizationRule, QueueDescription
from pairbus.embedded.security import LOGIN_MS, Authority
from pairbus.testing.clock import ManualClock


def test_without_a_token_no_link_opens(tmp_path: Path) -> None:
    async def play(stage: AmqpStage) -> None:
        connection = await ClientConnection.open("127.0.0.1", stage.port)
        for opening in (
            connection.open_sender("orders"),
            connection.open_receiver("orders"),
            connection.open_sender("orders/$management"),
        ):
            with pytest.raises(LinkLostError) as refused:
                await opening
            assert refused.value.condition == "amqp:unauthorized-access"

    on_stage(tmp_path, play)


def test_before_a_token_few_bytes_of_unfinished_messages_are_kept(tmp_path: Path) -> None:
    async def play(stage: AmqpStage) -> None:
        connection = await ClientConnection.open("127.0.0.1", stage.port)
        sender = await connection.open_sender("$cbs")
        sent = sender.send(data_message(b"x" * 1_000_000))
        assert (await connection.lost).condition == "amqp:resource-limit-exceeded"
        with pytest.raises(LinkLostError):
            await sent

    on_stage(tmp_path, play)


def test_bad_tokens_are_refused(tmp_path: Path) -> None:
    async def play(stage: AmqpStage) -> None:
        connection = await ClientConnection.open("127.0.0.1", stage.port)
        for token, audience, status in (
            (stage.token(key="d3Jvbmc="), "sb://localhost/orders", 401),
            (stage.token(key_name="unknown"), "sb://localhost/orders", 401),
            (stage.token(seconds=-1), "sb://localhost/orders", 401),
            (stage.token("orders"), "sb://localhost/orders-too", 401),
            (stage.token(), "sb://localhost/nowhere", 404),
            ("nonsense", "sb://localhost/orders", 401),
        ):
            with pytest.raises(TokenRefusedError) as refused:
                await connection.put_token(token, audience)
            assert refused.value.status == status

    on_stage(tmp_path, play)


def test_rights_are_checked_for_each_link(tmp_path: Path) -> None:
    async def play(stage: AmqpStage) -> None:
        sender, listener = await stage.connect(key_name="sender"), await stage.connect(key_name="listener")
        await (await sender.open_sender("orders")).send(data_message(b"x"))
        await listener.open_receiver("orders")
        for opening in (sender.open_receiver("orders"), listener.open_sender("orders")):
            with pytest.raises(LinkLostError) as refused:
                await opening
            assert refused.value.condition == "amqp:unauthorized-access"
        peek = {"from-sequence-number": 0, "message-count": 1}
        assert (await listener.manage("orders", "peek-message", peek)).is_good
        reply = await sender.manage("orders", "peek-message", peek)
        assert (reply.status, reply.condition) == (401, "amqp:unauthorized-access")

    on_stage(tmp_path, play)


def test_a_token_opens_only_its_own_entity(tmp_path: Path) -> None:
    async def play(stage: AmqpStage) -> None:
        connection = await stage.connect("orders")
        await connection.open_sender("orders")
        with pytest.raises(LinkLostError) as refused:
            await connection.open_sender("orders-too")
        assert refused.value.condition == "amqp:unauthorized-access"

    on_stage(tmp_path, play)


def test_links_end_with_their_token_unless_it_is_renewed(tmp_path: Path) -> None:
    async def play(stage: AmqpStage) -> None:
        assert isinstance(stage.clock, ManualClock)
        stays, goes = await stage.connect(seconds=60), await stage.connect(seconds=60)
        kept, lost = await stays.open_receiver("orders"), await goes.open_receiver("orders")
        stage.clock.advance(50)
        await stays.put_token(stage.token(seconds=60), "sb://localhost/")
        stage.clock.advance(20)
        with pytest.raises(LinkLostError) as ended:
            await lost.receive(1)
        assert ended.value.condition == "amqp:unauthorized-access"
        await (await stays.open_sender("orders")).send(data_message(b"x"))
        assert len(await kept.receive(1)) == 1

    on_stage(tmp_path, play)


def test_a_link_whose_token_ended_takes_no_message_more(tmp_path: Path) -> None:
    async def play(stage: AmqpStage) -> None:
        assert isinstance(stage.clock, ManualClock)
        connection = await stage.connect(seconds=60)
        receiver = await connection.open_receiver("orders", receive_and_delete=True)
        sender = await connection.open_sender("orders")
        await sender.send(data_message(b"before"))
        assert len(await receiver.receive(1)) == 1
        stage.clock.advance(70)
        # The client has not even heard of it yet.
        stage.broker.send("orders", [data_message(b"after")], lambda _: None)
        late = sender.send(data_message(b"too late"))
        with pytest.raises(LinkLostError):
            await late
        assert stage.broker.counts("orders").active == 1

    on_stage(tmp_path, play)


@pytest.mark.parametrize("change", ["remove", "replace"])
def test_connections_end_with_their_key(tmp_path: Path, change: str) -> None:
    async def play(stage: AmqpStage) -> None:
        goes, stays, both = await stage.connect(key_name="sender"), await stage.connect(), await stage.connect()
        await both.put_token(stage.token("orders-too", "sender"), "sb://localhost/orders-too")
        lost, kept = await goes.open_sender("orders"), await stays.open_sender("orders")
        lost_too, kept_too = await both.open_sender("orders-too"), await both.open_receiver("orders")
        rules = [
            rule for rule in stage.broker.authorization_rules() if rule.key_name != "sender" or change == "replace"
        ]
        rules = [
            replace(rule, primary_key="x", secondary_key="y") if rule.key_name == "sender" else rule for rule in rules
        ]
        await stage.broker.set_authorization_rules(tuple(rules))
        with pytest.raises(LinkLostError) as ended:
            await lost.send(data_message(b"x"))
        assert ended.value.condition == "amqp:unauthorized-access"
        assert (await goes.lost).condition == "amqp:unauthorized-access"
        await kept.send(data_message(b"x"))
        assert len(await kept_too.receive(1)) == 1
        await lost_too.send(data_message(b"x"))  # the token for the whole namespace still allows it

    on_stage(tmp_path, play)


def test_rights_from_a_key_of_an_entity_end_with_the_entity(tmp_path: Path) -> None:
    async def play(stage: AmqpStage) -> None:
        key = stage.broker.authorization_rules()[0].primary_key
        own = AuthorizationRule("own", frozenset({"Send"}), key, key, 0, 0)
        await stage.broker.create(QueueDescription("mine", authorization_rules=(own,)))
        connection = await stage.connect("mine", "own")
        await connection.open_sender("mine")
        await stage.broker.delete("mine")
        await stage.broker.create(QueueDescription("mine"))
        assert (await connection.lost).condition == "amqp:unauthorized-access"

    on_stage(tmp_path, play)


def test_a_login_is_checked_again_after_an_hour(tmp_path: Path) -> None:
    async def play(stage: AmqpStage) -> None:
        assert isinstance(stage.clock, ManualClock)
        rule = next(rule for rule in stage.broker.authorization_rules() if rule.key_name == "listener")
        (grant,) = Authority(stage.broker).login("listener", rule.primary_key, stage.clock.now_ms())
        assert grant.expires_ms == stage.clock.now_ms() + LOGIN_MS
        login: dict[str, Any] = {
            "user": "listener",
            "password": rule.primary_key,
            "allowed_mechs": "PLAIN",
            "allow_insecure_mechs": True,
        }
        url = f"amqp://127.0.0.1:{stage.port}"
        connection = await asyncio.to_thread(BlockingConnection, url, timeout=20, **login)
        receiver = await asyncio.to_thread(connection.create_receiver, "orders", credit=1)
        stage.clock.advance(LOGIN_MS // 1000 + 1)
        stage.broker.send("orders", [data_message(b"later")], lambda _: None)
        assert (await asyncio.to_thread(receiver.receive, 20)).body == b"later"
        await asyncio.to_thread(connection.close)

    on_stage(tmp_path, play)
