"""Where every message is at the end: in its entity, dead-lettered, in the backlog, in the spool, or nowhere."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from azure.servicebus import ServiceBusSubQueue

from pairbus.drill.senders import SESSIONS
from pairbus.drill.stage import Stage
from pairbus.pairing.options import backlog_path
from pairbus.spool import look_into
from pairbus.syphon.backlog import DEAD_LETTERS, peek
from pairbus.syphon.namespaces import Namespace

PEEK_BATCH = 100
MAX_PARALLEL_LOOKS = 16


@dataclass(frozen=True, slots=True)
class Account:
    """What became of the messages of one entity, or of all entities. `lost` messages are nowhere."""

    accepted: int = 0
    refused: int = 0
    delivered: int = 0
    dead_lettered: int = 0
    waiting: int = 0
    spooled: int = 0
    lost: int = 0
    duplicates: int = 0

    @classmethod
    def sum_of(cls, accounts: Iterable[Account]) -> Account:
        columns = zip(*(tuple(getattr(account, name) for name in FIELDS) for account in accounts), strict=True)
        return cls(*map(sum, columns))


FIELDS = tuple(Account.__dataclass_fields__)


@dataclass(slots=True)
class Census:
    """The message ids that were seen, by place."""

    delivered: dict[str, Counter[str]] = field(default_factory=dict)
    """How many copies of each id there are, by entity."""
    dead_lettered: set[str] = field(default_factory=set)
    waiting: set[str] = field(default_factory=set)
    spooled: set[str] = field(default_factory=set)

    def account(
        self, name: str, accepted: Collection[str], *, refused: int = 0, detects_duplicates: bool = False
    ) -> tuple[Account, list[str]]:
        """What became of the messages accepted for one entity, and the ids that are nowhere.

        A message that is both delivered and still on its way will be there twice, unless the entity detects duplicates.
        """
        copies = self.delivered.get(name, Counter())
        on_the_way = Counter() if detects_duplicates else Counter([*self.waiting, *self.spooled])
        elsewhere = self.dead_lettered | self.waiting | self.spooled
        ids = set(accepted)
        lost = [message_id for message_id in accepted if not copies[message_id] and message_id not in elsewhere]
        account = Account(
            accepted=len(accepted),
            refused=refused,
            delivered=sum(1 for message_id in ids if copies[message_id]),
            dead_lettered=len(ids & self.dead_lettered),
            waiting=len(ids & self.waiting),
            spooled=len(ids & self.spooled),
            lost=len(lost),
            duplicates=sum(max(0, copies[message_id] + on_the_way[message_id] - 1) for message_id in ids),
        )
        return account, lost


@dataclass(frozen=True, slots=True)
class Destination:
    """Where messages arrive: a queue, or a subscription of a topic. `name` is its key in the census."""

    name: str
    path: str
    subscription: str | None = None
    sessions: bool = False

    def receivers(self, client: Any) -> list[Any]:
        """A receiver, or one for each session."""
        if self.sessions:
            return [client.get_queue_receiver(self.path, session_id=session) for session in SESSIONS]
        return [self._receiver(client)]

    def dead_letters(self, client: Any) -> Any:
        return self._receiver(client, sub_queue=ServiceBusSubQueue.DEAD_LETTER)

    def _receiver(self, client: Any, **options: Any) -> Any:
        if self.subscription is not None:
            return client.get_subscription_receiver(self.path, self.subscription, **options)
        return client.get_queue_receiver(self.path, **options)


async def take_census(stage: Stage, destinations: Iterable[Destination], queues: int, spool: Path | None) -> Census:
    """Look everywhere. The paired client must be closed, and both namespaces must answer."""
    census = Census()
    slots = asyncio.Semaphore(MAX_PARALLEL_LOOKS)

    async def look(ids: AsyncIterator[str], add: Callable[[list[str]], None]) -> None:
        async with slots:
            add([message_id async for message_id in ids])

    secondary = stage.namespace("secondary")
    async with stage.namespace("primary").client() as client, asyncio.TaskGroup() as group:
        for destination in destinations:
            copies = census.delivered[destination.name] = Counter()
            for receiver in destination.receivers(client):
                group.create_task(look(_peek_all(receiver), copies.update))
            group.create_task(look(_peek_all(destination.dead_letters(client)), census.dead_lettered.update))
        for number in range(queues):
            path = backlog_path(stage.primary_name, number)
            group.create_task(look(_peek_backlog(secondary, path), census.waiting.update))
            group.create_task(look(_peek_backlog(secondary, path + DEAD_LETTERS), census.dead_lettered.update))
    if spool is not None:
        census.spooled.update(_read_spool(spool))
    return census


async def _peek_all(receiver: Any) -> AsyncIterator[str]:
    async with receiver:
        number = 0
        while messages := await receiver.peek_messages(PEEK_BATCH, sequence_number=number):
            for message in messages:
                yield str(message.message_id)
            number = messages[-1].sequence_number + 1


async def _peek_backlog(secondary: Namespace, path: str) -> AsyncIterator[str]:
    async for message in peek(secondary, path):
        yield str(message.message_id)


def _read_spool(folder: Path) -> set[str]:
    """The ids of all messages in the spool, also of those that are set aside."""
    return {str(message.message_id) for message in look_into(folder)}
