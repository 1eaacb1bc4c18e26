"""Asking a node and getting its reply: `$cbs` and `entity/$management`, from the client's side.

Many requests may be under way at once; replies are told apart by their correlation id.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

from pairbus.amqp.codec import decode, encode
from pairbus.amqp.message import Sections, read_facts
from pairbus.amqp.outcomes import AmqpError, LinkLostError
from pairbus.amqp.types import AmqpDecodeError, Described

if TYPE_CHECKING:
    from pairbus.amqp.client import Received, ReceiverLink, SenderLink

REPLY_CREDIT = 50


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    description: str
    condition: str | None
    body: Any

    @property
    def is_good(self) -> bool:
        return 200 <= self.status < 300

    def error(self) -> AmqpError:
        return AmqpError(self.condition or "amqp:internal-error", self.description)


class Exchange:
    """The two links to one node."""

    def __init__(self, sender: SenderLink, receiver: ReceiverLink, reply_address: str) -> None:
        self._sender = sender
        self._receiver = receiver
        self._reply_address = reply_address
        self._waiting: dict[UUID, asyncio.Future[Reply]] = {}
        self._reading = asyncio.get_running_loop().create_task(self._read())

    @property
    def is_open(self) -> bool:
        return not self._reading.done()

    async def ask(self, properties: dict[str, Any], body: Any, *, seconds: float) -> Reply:
        """Send a request and wait for its reply; TimeoutError after ``seconds``, LinkLostError when the link ends."""
        message_id = uuid4()
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting[message_id] = future
        raw = b"".join(
            (
                b"\x00\x53\x73",
                encode([message_id, None, None, None, self._reply_address]),
                b"\x00\x53\x74",
                encode(properties),
                b"\x00\x53\x77",
                encode(body),
            )
        )
        try:
            async with asyncio.timeout(seconds):
                await self._sender.send(raw)
                return await future
        finally:
            self._waiting.pop(message_id, None)
            if not future.done():
                future.cancel()

    async def close(self) -> None:
        self._reading.cancel()
        await self._sender.close()
        await self._receiver.close()

    async def _read(self) -> None:
        try:
            while True:
                for message in await self._receiver.receive(REPLY_CREDIT):
                    self._receiver.let_go(message)
                    self._take(message)
        except LinkLostError as lost:
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(lost)

    def _take(self, message: Received) -> None:
        try:
            facts = read_facts(message.raw)
            properties = {str(key): value for key, value in facts.application_properties.items()}
            section = decode(Sections.split(message.raw).body)[0]
        except AmqpDecodeError:
            return
        future = self._waiting.get(facts.correlation_id) if isinstance(facts.correlation_id, UUID) else None
        if future is None or future.done():
            return
        status = properties.get("statusCode", properties.get("status-code"))
        description = properties.get("statusDescription", properties.get("status-description"))
        condition = properties.get("errorCondition")
        future.set_result(
            Reply(
                int(status) if isinstance(status, int) else 0,
                str(description or ""),
                None if condition is None else str(condition),
                section.value if isinstance(section, Described) else None,
            )
        )
