"""The messages of one task on their way out."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future

from pairbus.amqp.client import ClientConnection, LinkLostError, SenderLink
from pairbus.amqp.message import BATCH_FORMAT, join_batch
from pairbus.pipeline.servicebus.sending import Outgoing
from pairbus.pipeline.servicebus.wire import Wire, WireError

TRANSFERS_UNDER_WAY = 16
_SECTION_BYTES = 8
"""What a message of a batch costs beyond its own size."""
_ENVELOPE_BYTES = 512
"""What a batch costs: it names its first message's id, session and partition key."""


class WriteError(RuntimeError):
    """A row could not be sent."""


class Outbox:
    """Fills transfers, each for one destination and up to the link's limit, and keeps some of them under way."""

    def __init__(self, wire: Wire, retry_seconds: float) -> None:
        self._wire = wire
        self._retry_seconds = retry_seconds
        self._filling: dict[str, list[Outgoing]] = {}
        self._sizes: dict[str, int] = {}
        self._limits: dict[str, int] = {}
        self._links: dict[str, tuple[ClientConnection, SenderLink]] = {}
        self._opening = asyncio.Lock()
        self._under_way: deque[Future[None]] = deque()

    def add(self, message: Outgoing) -> None:
        entity = message.entity
        if entity not in self._limits:
            self._limits[entity] = self._wire.call(self._limit(message)) - _ENVELOPE_BYTES
            self._filling[entity], self._sizes[entity] = [], 0
        size = len(message.raw) + _SECTION_BYTES
        if self._sizes[entity] + size > self._limits[entity]:
            self._send(entity)
        self._filling[entity].append(message)
        self._sizes[entity] += size

    def finish(self) -> None:
        """Send what is left, and wait for every answer."""
        for entity in list(self._filling):
            self._send(entity)
        while self._under_way:
            self._under_way.popleft().result()
        self._wire.call(self._close())

    def _send(self, entity: str) -> None:
        batch, self._filling[entity], self._sizes[entity] = self._filling[entity], [], 0
        if not batch:
            return
        while len(self._under_way) >= TRANSFERS_UNDER_WAY:
            self._under_way.popleft().result()
        self._under_way.append(self._wire.begin(self._deliver(entity, batch)))

    # --- on the wire's loop -------------------------------------------------------------------------------

    async def _limit(self, message: Outgoing) -> int:
        async def limit(connection: ClientConnection) -> int:
            return (await self._sender(connection, message.entity)).max_batch_size

        try:
            return await self._wire.persistently(message.entity, limit, self._retry_seconds)
        except WireError as error:
            raise _failed(message, error) from error

    async def _deliver(self, entity: str, batch: Sequence[Outgoing]) -> None:
        try:
            await self._transfer(entity, [one.raw for one in batch])
        except WireError as error:
            if len(batch) == 1 or not error.is_refusal:
                raise _failed(batch[0], error) from error
            for one in batch:
                await self._deliver(entity, [one])

    async def _transfer(self, entity: str, raws: list[bytes]) -> None:
        async def send(connection: ClientConnection) -> None:
            sender = await self._sender(connection, entity)
            try:
                await sender.room()
                if len(raws) == 1:
                    await sender.send(raws[0])
                else:
                    await sender.send(join_batch(raws), message_format=BATCH_FORMAT)
            except LinkLostError:
                self._forget(entity, sender)
                raise

        await self._wire.persistently(entity, send, self._retry_seconds)

    async def _sender(self, connection: ClientConnection, entity: str) -> SenderLink:
        async with self._opening:
            found = self._links.get(entity)
            if found is None or found[0] is not connection:
                found = self._links[entity] = (connection, await connection.open_sender(entity))
            return found[1]

    def _forget(self, entity: str, sender: SenderLink) -> None:
        if entity in self._links and self._links[entity][1] is sender:
            del self._links[entity]

    async def _close(self) -> None:
        for _, sender in self._links.values():
            await sender.close()
        self._links.clear()


def _failed(message: Outgoing, error: WireError) -> WriteError:
    return WriteError(
        f"Row {message.row} of its partition (message id {message.message_id!r}, to {message.entity!r}) could not be "
        f"sent: {error}"
    )
