"""Filling an entity of an embedded namespace quickly: raw batches, no SDK between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tests.support.raw import BATCH_FORMAT, open_raw, raw_batch, raw_message

from pairbus.testing.namespace import EmbeddedNamespace

BATCH = 200
UNDER_WAY = 50


def flood(
    namespace: EmbeddedNamespace,
    entity: str,
    count: int,
    *,
    size: int = 100,
    make: Callable[[int], bytes] | None = None,
) -> None:
    """Send so many messages; their ids are `m0`, `m1`, ... and their bodies `size` bytes, unless `make` makes them."""
    body = b"x" * size
    encoded = make or (lambda number: raw_message(f"m{number}", body))
    asyncio.run(_flood(namespace.connection_string, entity, count, encoded))


async def _flood(connection_string: str, entity: str, count: int, make: Callable[[int], bytes]) -> None:
    connection = await open_raw(connection_string, entity)
    sender = await connection.open_sender(entity)
    answers: list[asyncio.Future[None]] = []
    for first in range(0, count, BATCH):
        await sender.room()
        raw = raw_batch(make(number) for number in range(first, min(count, first + BATCH)))
        answers.append(sender.send(raw, message_format=BATCH_FORMAT))
        if len(answers) >= UNDER_WAY:
            await answers.pop(0)
    for answer in answers:
        await answer
    await connection.close()
