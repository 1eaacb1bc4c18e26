"""A session: it connects when needed, puts and renews tokens, and reuses its senders."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from tests.support.amqp_stage import AmqpStage, data_message, on_stage

from pairbus.amqp import session as session_module
from pairbus.amqp.client import SenderLink
from pairbus.amqp.conditions import NOT_FOUND
from pairbus.amqp.outcomes import LinkLostError, TokenRefusedError, TokenUnavailableError
from pairbus.amqp.session import AmqpEndpoint, AmqpSession


class CountedTokens:
    """Valid tokens of a stage, with any expiry claimed."""

    kind = "servicebus.windows.net:sastoken"

    def __init__(self, stage: AmqpStage, lifetime_s: float = 3600.0) -> None:
        self.stage = stage
        self.lifetime_s = lifetime_s
        self.audiences: list[str] = []
        self.error: Exception | None = None
        self.asked = asyncio.Event()

    async def token(self, audience: str) -> tuple[str, int]:
        self.audiences.append(audience)
        self.asked.set()
        if self.error is not None:
            raise self.error
        return self.stage.token(audience.removeprefix("sb://localhost/")), int(time.time() + self.lifetime_s)


def session_of(stage: AmqpStage, tokens: CountedTokens) -> AmqpSession:
    return AmqpSession(AmqpEndpoint("localhost", ("127.0.0.1", stage.port), None, tokens))


def test_one_connection_and_one_sender_serve_until_they_are_lost(tmp_path: Path) -> None:
    async def play(stage: AmqpStage) -> None:
        tokens = CountedTokens(stage)
        session = session_of(stage, tokens)
        connection = await session.connection("orders")
        sender = await session.sender("orders")
        assert await session.sender("orders") is sender
        await session.sender("orders-too")
        assert tokens.audiences == ["sb://localhost/orders", "sb://localhost/orders-too"]
        assert await session.connection() is connection
        assert session.is_idle
        assert "open" in repr(session)
        connection.abort()
        await connection.lost
        assert "closed" in repr(session)
        again = await session.sender("orders")
        assert again is not sender
        await again.send(data_message(b"x"))
        assert await session.connection() is not connection
        assert tokens.audiences.count("sb://localhost/orders") == 2
        await session.close()

    on_stage(tmp_path, play)


async def detached(sender: SenderLink) -> None:
    """Wait until the peer has confirmed the end of the link; `on_stage` limits the time."""
    while sender.is_open:
        await asyncio.sleep(0)


def test_a_detached_sender_is_replaced_on_the_same_connection(tmp_path: Path) -> None:
    async def play(stage: AmqpStage) -> None:
        session = session_of(stage, CountedTokens(stage))
        sender, connection = await session.sender("orders"), await session.connection()
        await sender.close()
        await detached(sender)
        again = await session.sender("orders")
        assert again is not sender
        await again.send(data_message(b"x"))
        assert await session.connection() is connection
        await session.close()

    on_stage(tmp_path, play)


def test_an_idle_sender_is_closed_when_there_are_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "_MAX_SENDERS", 1)

    async def play(stage: AmqpStage) -> None:
        session = session_of(stage, CountedTokens(stage))
        first = await session.sender("orders")
        second = await session.sender("orders-too")
        await detached(first)
        await second.send(data_message(b"x"))
        await (await session.sender("orders")).send(data_message(b"y"))
        await session.close()

    on_stage(tmp_path, play)


@pytest.mark.parametrize("end", ["close", "abort"])
def test_a_session_that_ends_while_it_connects_stays_closed(end: str, tmp_path: Path) -> None:
    async def play(stage: AmqpStage) -> None:
        session = session_of(stage, CountedTokens(stage))
        waiting = [asyncio.ensure_future(session.sender("orders")) for _ in range(2)]
        await asyncio.sleep(0)
        if end == "close":
            await session.close()
        else:
            session.abort()
        for outcome in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(outcome, LinkLostError)
        with pytest.raises(LinkLostError, match="closed"):
            await session.connection()
        assert "closed" in repr(session)

    on_stage(tmp_path, play)


def test_a_token_is_renewed_while_a_link_is_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "_TOKEN_RETRY_SECONDS", 0.01)

    async def play(stage: AmqpStage) -> None:
        tokens = CountedTokens(stage, lifetime_s=-1.0)
        session = session_of(stage, tokens)
        receiver = await session.open_receiver("orders")
        for _ in range(3):
            tokens.asked.clear()
            await tokens.asked.wait()
        tokens.error = TokenUnavailableError("no token today")
        for _ in range(2):  # a failed renewal is tried again
            tokens.asked.clear()
            await tokens.asked.wait()
        tokens.error = None
        (renewal,) = session._renewals.values()
        await receiver.close()
        await renewal  # ends with the last link
        await session.close()

    on_stage(tmp_path, play)


def test_errors_of_tokens_are_told_apart(tmp_path: Path) -> None:
    async def play(stage: AmqpStage) -> None:
        tokens = CountedTokens(stage)
        session = session_of(stage, tokens)
        with pytest.raises(TokenRefusedError) as missing:
            await session.sender("nowhere")
        assert missing.value.condition == NOT_FOUND
        tokens.error = TokenUnavailableError("no token today")
        with pytest.raises(TokenUnavailableError):
            await session.open_receiver("orders")
        tokens.error = None
        await session.open_receiver("orders")
        await session.close()

    on_stage(tmp_path, play)


def test_draining_withdraws_the_credit_and_hands_over_what_came(tmp_path: Path) -> None:
    async def play(stage: AmqpStage) -> None:
        session = session_of(stage, CountedTokens(stage))
        receiver = await session.open_receiver("orders")
        receiver.request(5)
        sender = await session.sender("orders")
        for body in (b"1", b"2"):
            await sender.send(data_message(body))
        (first,) = await receiver.receive(1)
        drained = await receiver.drain()
        assert receiver.link.credit == 0
        assert [message.raw[-1:] for message in (first, *drained)] == [b"1", b"2"]
        await sender.send(data_message(b"3"))
        assert await receiver.drain() == []
        receiver.request(1)
        assert len(await receiver.receive(5)) == 1
        await session.close()

    on_stage(tmp_path, play)
