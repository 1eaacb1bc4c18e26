"""A namespace behind a plain AMQP listener in this process and event loop, for tests of the wire protocol.

Nothing is faked: the broker writes to a real folder. There is no administration endpoint and no TLS; tests that need
them start a whole server.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from pairbus.amqp.client import ClientConnection
from pairbus.amqp.codec import encode
from pairbus.amqp.engine import EngineLimits
from pairbus.amqp.message import BATCH_FORMAT
from pairbus.embedded.amqp.connection import amqp_protocol_factory
from pairbus.embedded.broker import Broker
from pairbus.embedded.clock import Clock
from pairbus.embedded.entities.descriptions import (
    AuthorizationRule,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from pairbus.embedded.errors import Limits
from pairbus.embedded.faults import FaultSwitchboard
from pairbus.embedded.security import Authority, sign
from pairbus.embedded.store import Store
from pairbus.testing.clock import ManualClock

__all__ = ["BATCH_FORMAT", "AmqpStage", "amqp_stage", "batch", "data_message", "on_stage"]

PLAY_SECONDS = 60.0
"""A deadline for tests that hang; they normally take much less."""

_KEYS = {
    "root": frozenset({"Manage", "Send", "Listen"}),
    "sender": frozenset({"Send"}),
    "listener": frozenset({"Listen"}),
}
_KEY = "a2V5IG9mIGEgdGVzdCwgb3BlbnMgbm90aGluZyByZWFs"


@dataclass(frozen=True, slots=True)
class AmqpStage:
    broker: Broker
    faults: FaultSwitchboard
    clock: ManualClock | Clock
    port: int

    def token(self, audience: str = "", key_name: str = "root", *, key: str = _KEY, seconds: int = 3600) -> str:
        return sign(f"sb://localhost/{audience}", key_name, key, self.clock.now_ms() // 1000 + seconds)

    async def connect(self, audience: str = "", key_name: str = "root", *, seconds: int = 3600) -> ClientConnection:
        """Connect with the rights of a key: `root`, `sender` or `listener`."""
        connection = await ClientConnection.open("127.0.0.1", self.port)
        await connection.put_token(self.token(audience, key_name, seconds=seconds), f"sb://localhost/{audience}")
        return connection


@asynccontextmanager
async def amqp_stage(
    folder: Path, *, clock: Clock | None = None, limits: Limits | None = None, engine_limits: EngineLimits | None = None
) -> AsyncIterator[AmqpStage]:
    """Serve the namespace in `folder` on a free port. The default clock stands still."""
    used_clock = clock or ManualClock()
    used_limits = limits or Limits()
    broker = Broker(Store(folder), used_clock, used_limits)
    rules = tuple(AuthorizationRule(name, rights, _KEY, _KEY, 0, 0) for name, rights in _KEYS.items())
    await broker.set_authorization_rules(rules)
    faults = FaultSwitchboard(used_clock)
    factory = amqp_protocol_factory(broker, faults, Authority(broker), used_limits, engine_limits)
    server = await asyncio.get_running_loop().create_server(factory, "127.0.0.1", 0)
    try:
        yield AmqpStage(broker, faults, used_clock, server.sockets[0].getsockname()[1])
    finally:
        server.close()
        await broker.close()


def on_stage(
    folder: Path, play: Callable[[AmqpStage], Awaitable[None]], engine_limits: EngineLimits | None = None
) -> None:
    """Run `play` on a new loop and a stage with the queues `orders`, `orders-too` and `sessions` (which requires
    sessions), and the topic `events` with its subscription `all`.
    """

    async def run() -> None:
        async with asyncio.timeout(PLAY_SECONDS), amqp_stage(folder, engine_limits=engine_limits) as stage:
            for name in ("orders", "orders-too"):
                await stage.broker.create(QueueDescription(name))
            await stage.broker.create(QueueDescription("sessions", requires_session=True))
            await stage.broker.create(TopicDescription("events"))
            await stage.broker.create(SubscriptionDescription("events", "all"))
            await play(stage)

    asyncio.run(run())


def data_message(body: bytes, *, message_id: str | None = None, session_id: str | None = None) -> bytes:
    """An encoded message with one data section."""
    fields = [message_id, None, None, None, None, None, None, None, None, None, session_id]
    return b"\x00\x53\x73" + encode(fields) + b"\x00\x53\x75" + encode(body)


def batch(messages: list[bytes]) -> bytes:
    """Many messages as the payload of one transfer in `BATCH_FORMAT`."""
    return b"".join(b"\x00\x53\x75" + encode(message) for message in messages)
