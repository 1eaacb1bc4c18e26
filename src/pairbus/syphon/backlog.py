"""The backlog queues of a primary: finding, counting, peeking and pruning them, without receiving a message."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass

from azure.core.exceptions import ResourceNotFoundError

from pairbus import envelope
from pairbus.amqp.message import read_facts, read_stamps
from pairbus.pairing.options import backlog_path
from pairbus.syphon.namespaces import Namespace, NamespaceError, administering

DEAD_LETTERS = "/$DeadLetterQueue"
PEEK_LIMIT = 100
_NAMES_SHOWN = 5


class NoBacklogError(NamespaceError):
    """The requested backlog queues do not exist."""


# --- finding and counting ---------------------------------------------------------------------------------


async def list_backlog_queues(secondary: Namespace, primary_name: str) -> list[str]:
    """The backlog queues of this primary that exist in the secondary, by number."""
    return (await _backlogs(secondary, primary_name)).get(primary_name.lower(), [])


async def _backlogs(secondary: Namespace, primary_name: str) -> dict[str, list[str]]:
    """The backlog queues of every primary in the secondary, by number; the names are in lower case."""
    pattern = re.compile("(.+)" + re.escape(backlog_path("-", 0)[1:-1]) + "(0|[1-9][0-9]*)", re.IGNORECASE)
    async with administering(secondary, f"Listing the backlog queues of {primary_name!r}") as admin:
        matches = [match async for queue in admin.list_queues() if (match := pattern.fullmatch(queue.name))]
    backlogs: dict[str, list[str]] = {}
    for match in sorted(matches, key=lambda match: int(match[2])):
        backlogs.setdefault(match[1].lower(), []).append(match[0])
    return backlogs


async def extra_queues(secondary: Namespace, primary_name: str, numbers: Iterable[int]) -> list[str]:
    """The existing backlog queues of this primary other than those with these numbers."""
    in_use = {backlog_path(primary_name, number).lower() for number in numbers}
    return [queue for queue in await list_backlog_queues(secondary, primary_name) if queue.lower() not in in_use]


async def existing_queues(secondary: Namespace, primary_name: str) -> list[str]:
    """The backlog queues of this primary; raises `NoBacklogError` if there are none, as the name may be wrong."""
    queues = await list_backlog_queues(secondary, primary_name)
    if not queues:
        raise await no_backlog(secondary, primary_name)
    return queues


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """The messages in a backlog queue and in its dead-letter queue."""

    waiting: int
    dead_letters: int


async def count_waiting(secondary: Namespace, queues: Iterable[str]) -> dict[str, QueueDepth]:
    """The depth of each of these queues; queues that do not exist are left out."""
    depths: dict[str, QueueDepth] = {}
    async with administering(secondary, "Counting the backlog") as admin:
        for queue in queues:
            with suppress(ResourceNotFoundError):
                counts = await admin.get_queue_runtime_properties(queue)
                depths[queue] = QueueDepth(counts.active_message_count or 0, counts.dead_letter_message_count or 0)
    return depths


async def no_backlog(secondary: Namespace, primary_name: str, numbers: Collection[int] = ()) -> NoBacklogError:
    """The error for backlog queues that do not exist. It names existing ones, if the credential may list them."""
    try:
        backlogs = await _backlogs(secondary, primary_name)
    except NamespaceError:
        backlogs = {}
    ours = [queue.rpartition("/")[2] for queue in backlogs.pop(primary_name.lower(), ())]
    # As the first queue of each spells it.
    others = [] if ours else sorted(queues[0].rsplit("/", 2)[0] for queues in backlogs.values())
    if ours and numbers:
        requested = _enumerated([str(number) for number in numbers])
        missing = f"queue {requested} does not exist" if len(numbers) == 1 else f"queues {requested} do not exist"
        there = "there is" if len(ours) == 1 else "there are"
        return NoBacklogError(f"Backlog {missing}; {there} {_enumerated(ours)}.")
    hint = f"; there are some of {_enumerated([repr(name) for name in others[:_NAMES_SHOWN]])}" if others else ""
    return NoBacklogError(f"No backlog queue of {primary_name!r} exists in the secondary{hint}.")


def _enumerated(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]


# --- peeking ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Waiting:
    """One message in a backlog queue or its dead-letter queue. `part` is like `2/3`: the second of three parts."""

    queue: str
    sequence_number: int
    message_id: str | None
    destination: str | None
    enqueued_ms: int | None
    size: int
    part: str | None
    reason: str | None = None
    description: str | None = None


@dataclass(frozen=True, slots=True)
class BacklogQueue:
    """The content of one backlog queue. Destinations and parts are counted in its `looked_at` oldest messages."""

    queue: str
    extra: bool
    active: int
    dead_letters: int
    oldest_enqueued_ms: int | None
    destinations: dict[str, int]
    parts: int
    looked_at: int


async def list_queues(
    secondary: Namespace, primary_name: str, numbers: Collection[int], look_at: int = 1000
) -> list[BacklogQueue]:
    """Describe all backlog queues of this primary; those without one of these numbers are extra."""
    in_use = {backlog_path(primary_name, number).lower() for number in numbers}
    described = []
    depths = await count_waiting(secondary, await existing_queues(secondary, primary_name))
    for queue, depth in depths.items():
        destinations: Counter[str] = Counter()
        parts = looked_at = 0
        oldest: int | None = None
        async for message in peek(secondary, queue, look_at):
            looked_at += 1
            oldest = message.enqueued_ms if oldest is None else oldest
            destinations[message.destination or "(none)"] += 1
            parts += message.part is not None
        described.append(
            BacklogQueue(
                queue,
                queue.lower() not in in_use,
                depth.waiting,
                depth.dead_letters,
                oldest,
                dict(destinations.most_common()),
                parts,
                looked_at,
            )
        )
    return described


async def peek(secondary: Namespace, path: str, count: float = math.inf) -> AsyncIterator[Waiting]:
    """The oldest messages of a backlog queue, or of its dead-letter queue if the path ends with `DEAD_LETTERS`."""
    from pairbus.syphon.amqp_transport import AmqpTransport

    receiver = await AmqpTransport(secondary, secondary).open_receiver(path)
    try:
        seen = from_number = 0
        while seen < count and (raws := await receiver.peek_raw(from_number, int(min(PEEK_LIMIT, count - seen)))):
            for raw in raws:
                yield describe(path.removesuffix(DEAD_LETTERS), raw)
            seen += len(raws)
            from_number = read_stamps(raws[-1]).sequence_number + 1
    finally:
        await receiver.close()


def describe(queue: str, raw: bytes) -> Waiting:
    """Describe a message in a backlog, as far as it can be read."""
    message = envelope.inspect(raw)
    part = message.part
    facts = read_facts(raw)
    properties = facts.application_properties
    return Waiting(
        queue,
        message.sequence_number,
        facts.message_key,
        message.destination or None,
        message.enqueued_ms or None,
        message.size,
        f"{part.number}/{part.count}" if part is not None else None,
        _text(properties.get("DeadLetterReason")),
        _text(properties.get("DeadLetterErrorDescription")),
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


# --- pruning ----------------------------------------------------------------------------------------------


async def prune(secondary: Namespace, primary_name: str, numbers: Collection[int], *, dry_run: bool) -> list[str]:
    """Delete the extra backlog queues that are empty, dead-letter queue included. Returns their paths."""
    in_use = {backlog_path(primary_name, number).lower() for number in numbers}
    pruned = []
    async with administering(secondary, "Deleting empty backlog queues") as admin:
        for queue in await existing_queues(secondary, primary_name):
            if queue.lower() in in_use:
                continue
            counts = await admin.get_queue_runtime_properties(queue)
            if counts.total_message_count or counts.dead_letter_message_count:
                continue
            if not dry_run:
                await admin.delete_queue(queue)
            pruned.append(queue)
    return pruned
