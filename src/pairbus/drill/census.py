"""Where every message is at the end: in its entity, dead-lettered, in the backlog, in the spool."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from azure.servicebus import ServiceBusSubQueue

from pairbus.amqp.message import read_facts
from pairbus.drill.result import MOST_LOST_SHOWN, Account
from pairbus.drill.scenario import Entity
from pairbus.drill.sending import SESSIONS, Sent
from pairbus.drill.stage import SUBSCRIPTION, Stage
from pairbus.pairing.options import backlog_path
from pairbus.spool import SpoolJournal
from pairbus.syphon.backlog import DEAD_LETTERS, peek
from pairbus.syphon.namespaces import Namespace

PEEK_AT_ONCE = 100
PLACES_AT_ONCE = 16
ALL = 10**9
READ_AT_ONCE = 1000
LARGEST_BYTES = 2**40


@dataclass(slots=True)
class Census:
    """The ids that were seen, by place."""

    delivered: dict[str, Counter[str]] = field(default_factory=dict)
    """Copies of each id, by entity."""
    dead_lettered: set[str] = field(default_factory=set)
    waiting: set[str] = field(default_factory=set)
    spooled: set[str] = field(default_factory=set)

    def account(self, entity: Entity, sent: Sent) -> tuple[Account, list[str]]:
        """What became of one entity's messages, and the ids of those that are nowhere.

        A message that is delivered and still on its way is there twice as soon as it is carried home, unless the entity
        detects that.
        """
        copies = self.delivered.get(entity.name, Counter())
        on_its_way = Counter() if entity.duplicate_detection else Counter([*self.waiting, *self.spooled])
        accepted = set(sent.accepted)
        lost = [
            one
            for one in sent.accepted
            if not (copies[one] or one in self.dead_lettered or one in self.waiting or one in self.spooled)
        ]
        return (
            Account(
                accepted=len(sent.accepted),
                refused=sent.refused,
                delivered=sum(1 for one in accepted if copies[one]),
                dead_lettered=len(accepted & self.dead_lettered),
                waiting=len(accepted & self.waiting),
                spooled=len(accepted & self.spooled),
                lost=len(lost),
                duplicates=sum(max(0, copies[one] + on_its_way[one] - 1) for one in accepted),
            ),
            lost[:MOST_LOST_SHOWN],
        )


def sum_of(accounts: Iterable[Account]) -> Account:
    """The account of all entities together."""
    together = list(accounts)
    return Account(*(sum(getattr(one, name) for one in together) for name in Account.__dataclass_fields__))


async def take_census(stage: Stage, entities: Iterable[Entity], queues: int, spool: Path | None) -> Census:
    """Looks everywhere. The paired client must be closed, and both namespaces must answer."""
    census = Census()
    places = asyncio.Semaphore(PLACES_AT_ONCE)

    async def look(found: AsyncIterator[str], put: Callable[[list[str]], None]) -> None:
        async with places:
            put([one async for one in found])

    secondary = stage.namespace("secondary")
    async with stage.namespace("primary").client() as client, asyncio.TaskGroup() as group:
        for entity in entities:
            copies = census.delivered[entity.name] = Counter()
            for receiver in _receivers(client, stage.path(entity.name), entity):
                group.create_task(look(_peek_all(receiver), copies.update))
            dead = _dead_letters(client, stage.path(entity.name), entity)
            group.create_task(look(_peek_all(dead), census.dead_lettered.update))
        for number in range(queues):
            path = backlog_path(stage.primary_name, number)
            group.create_task(look(_waiting(secondary, path), census.waiting.update))
            group.create_task(look(_waiting(secondary, path + DEAD_LETTERS), census.dead_lettered.update))
    if spool is not None:
        census.spooled.update(_in_spool(spool))
    return census


def _receivers(client: Any, path: str, entity: Entity) -> list[Any]:
    if entity.topic:
        return [client.get_subscription_receiver(path, SUBSCRIPTION)]
    if entity.sessions:
        return [client.get_queue_receiver(path, session_id=session) for session in SESSIONS]
    return [client.get_queue_receiver(path)]


def _dead_letters(client: Any, path: str, entity: Entity) -> Any:
    if entity.topic:
        return client.get_subscription_receiver(path, SUBSCRIPTION, sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    return client.get_queue_receiver(path, sub_queue=ServiceBusSubQueue.DEAD_LETTER)


async def _peek_all(receiver: Any) -> AsyncIterator[str]:
    async with receiver:
        number = 0
        while messages := await receiver.peek_messages(PEEK_AT_ONCE, sequence_number=number):
            for message in messages:
                yield str(message.message_id)
            number = messages[-1].sequence_number + 1


async def _waiting(secondary: Namespace, path: str) -> AsyncIterator[str]:
    async for found in peek(secondary, path, ALL):
        yield str(found.message_id)


def _in_spool(folder: Path) -> set[str]:
    """The ids in the journal."""
    journal = SpoolJournal(folder, limit_bytes=LARGEST_BYTES)
    found: set[str] = set()
    try:
        for entity in journal.entities():
            last = 0
            while entries := journal.oldest(entity, after=last, most=READ_AT_ONCE, most_bytes=LARGEST_BYTES):
                found.update(str(read_facts(entry.raw).message_key) for entry in entries)
                last = entries[-1].number
    finally:
        journal.close()
    return found
