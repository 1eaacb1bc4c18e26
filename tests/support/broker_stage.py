"""A broker on a real disk, with a clock that the test controls and no network in between."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pairbus.amqp.codec import encode
from pairbus.amqp.message import read_facts
from pairbus.amqp.types import Symbol, Timestamp
from pairbus.embedded.broker import Broker, MessageDelivery, ReceiveMode, Receiver
from pairbus.embedded.entities.message import Settlement
from pairbus.embedded.errors import BrokerError
from pairbus.embedded.store import Store
from pairbus.testing.clock import ManualClock

__all__ = ["Inbox", "answered", "opened", "raw", "run", "send", "settle"]


def raw(message_id: str = "m", *, session_id: str | None = None, body: bytes = b"x", at_ms: int | None = None) -> bytes:
    annotations = (
        b"" if at_ms is None else b"\x00\x53\x72" + encode({Symbol("x-opt-scheduled-enqueue-time"): Timestamp(at_ms)})
    )
    properties = b"\x00\x53\x73" + encode([message_id, *[None] * 9, session_id])
    return annotations + properties + b"\x00\x53\x75" + encode(body)


def run(test: Callable[..., Coroutine[Any, Any, None]], folder: Path) -> None:
    async def main() -> None:
        async with opened(folder) as (broker, clock):
            await test(broker, clock)

    asyncio.run(main())


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[tuple[Broker, ManualClock]]:
    clock = ManualClock()
    broker = Broker(Store(folder), clock)
    try:
        yield broker, clock
    finally:
        await broker.close()


async def answered(call: Callable[[Callable[[Any], None]], object]) -> Any:
    """Return the value that an operation passes to its callback; raise it if it is an error."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    call(future.set_result)
    value = await asyncio.wait_for(future, 10)
    if isinstance(value, BrokerError):
        raise value
    return value


async def send(broker: Broker, path: str, *raws: bytes, txn: bytes | None = None) -> None:
    await answered(lambda done: broker.send(path, raws, done, txn=txn))


async def settle(
    broker: Broker, path: str, delivery: MessageDelivery, outcome: Settlement, txn: bytes | None = None
) -> None:
    await answered(lambda done: broker.settle(path, [delivery.lock_token], outcome, done, txn=txn))


class Inbox:
    """A receiver that keeps its deliveries."""

    def __init__(self, broker: Broker, path: str, mode: ReceiveMode = ReceiveMode.PEEK_LOCK, credit: int = 100) -> None:
        self.got: list[MessageDelivery] = []
        self.errors: list[BrokerError] = []
        self.receiver: Receiver = broker.open_receiver(path, mode, self.got.append, self.errors.append)
        self.receiver.set_credit(credit)

    @property
    def ids(self) -> list[object]:
        return [read_facts(delivery.raw).message_id for delivery in self.got]
