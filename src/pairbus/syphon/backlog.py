"""Looking into a backlog without touching it, and removing queues that nobody uses."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass

from pairbus import envelope
from pairbus.amqp.codec import decode
from pairbus.amqp.message import Sections, read_facts, read_stamps
from pairbus.amqp.types import AmqpDecodeError
from pairbus.errors import EnvelopeError
from pairbus.pairing.options import backlog_path
from pairbus.syphon.amqp_transport import AmqpReceiver, AmqpTransport
from pairbus.syphon.namespaces import Namespace, NamespaceError, administering
from pairbus.syphon.service import list_backlog_queues

DEAD_LETTERS = "/$DeadLetterQueue"
PEEK_AT_MOST = 100
_NAMES_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Waiting:
    """One message in a backlog queue or its dead-letter queue."""

    queue: str
    sequence_number: int
    message_id: str | None
    destination: str | None
    enqueued_ms: int | None
    size: int
    part: str | None
    """`2/3`: the second of three parts."""
    reason: str | None = None
    description: str | None = None


@dataclass(frozen=True, slots=True)
class BacklogQueue:
    """One backlog queue: what is in it, as far as it was looked into."""

    queue: str
    extra: bool
    active: int
    dead_letters: int
    oldest_enqueued_ms: int | None
    destinations: dict[str, int]
    parts: int
    looked_at: int
    """Destinations and parts were counted in so many messages, from the oldest on."""


class NoBacklogError(NamespaceError):
    """The backlog queues that were asked for do not exist."""


async def existing_queues(secondary: Namespace, primary_name: str) -> list[str]:
    """The backlog queues of this primary; raises `NoBacklogError` if there is none: the name may be a wrong one."""
    found = await list_backlog_queues(secondary, primary_name)
    if not found:
        raise await no_backlog(secondary, primary_name)
    return found


async def no_backlog(secondary: Namespace, primary_name: str, numbers: Collection[int] = ()) -> NoBacklogError:
    """Why none of these backlog queues exists, with those that do, if we may ask the administration for them."""
    try:
        ours = [queue.rpartition("/")[2] for queue in await list_backlog_queues(secondary, primary_name)]
        others = [] if ours else await _names_in_use(secondary)
    except NamespaceError:
        ours, others = [], []
    if ours and numbers:
        which = _together([str(number) for number in numbers])
        said = f"queue {which} does not exist" if len(numbers) == 1 else f"queues {which} do not exist"
        there = "there is" if len(ours) == 1 else "there are"
        return NoBacklogError(f"Backlog {said}; {there} {_together(ours)}.")
    hint = f"; there are some of {_together([repr(name) for name in others[:_NAMES_SHOWN]])}" if others else ""
    return NoBacklogError(f"No backlog queue of {primary_name!r} exists in the secondary{hint}.")


async def _names_in_use(secondary: Namespace) -> list[str]:
    """The primaries that have backlog queues in this secondary."""
    path = re.compile("(.+)" + re.escape(backlog_path("-", 0)[1:-1]) + "[0-9]+", re.IGNORECASE)
    async with administering(secondary, "Listing the backlog queues") as admin:
        found = {match[1] async for queue in admin.list_queues() if (match := path.fullmatch(queue.name))}
    return sorted(found)


def _together(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]


async def list_queues(
    secondary: Namespace, primary_name: str, numbers: Collection[int], look_at: int = 1000
) -> list[BacklogQueue]:
    """Every backlog queue of this primary; `numbers` are those in use, the others are extra."""
    in_use = {backlog_path(primary_name, number).lower() for number in numbers}
    found = []
    async with administering(secondary, "Counting the backlog") as admin:
        for queue in await existing_queues(secondary, primary_name):
            counts = await admin.get_queue_runtime_properties(queue)
            destinations: Counter[str] = Counter()
            parts = looked_at = 0
            oldest: int | None = None
            async for message in peek(secondary, queue, look_at):
                looked_at += 1
                oldest = message.enqueued_ms if oldest is None else oldest
                destinations[message.destination or "(none)"] += 1
                parts += message.part is not None
            found.append(
                BacklogQueue(
                    queue,
                    queue.lower() not in in_use,
                    counts.active_message_count or 0,
                    counts.dead_letter_message_count or 0,
                    oldest,
                    dict(destinations.most_common()),
                    parts,
                    looked_at,
                )
            )
    return found


async def peek(secondary: Namespace, path: str, count: int, from_number: int = 0) -> AsyncIterator[Waiting]:
    """The oldest messages of a backlog queue (or, with `DEAD_LETTERS` at its end, of its dead-letter queue)."""
    receiver = await AmqpTransport(secondary, secondary).open_receiver(path)
    try:
        async for raw in peek_raws(receiver, count, from_number):
            yield describe(path.removesuffix(DEAD_LETTERS), raw)
    finally:
        await receiver.close()


async def peek_raws(receiver: AmqpReceiver, count: float = math.inf, from_number: int = 0) -> AsyncIterator[bytes]:
    """So many messages, or all of them, from the oldest on."""
    seen = 0
    while seen < count:
        raws = await receiver.peek_raw(from_number, int(min(PEEK_AT_MOST, count - seen)))
        if not raws:
            return
        for raw in raws:
            yield raw
        seen += len(raws)
        from_number = read_stamps(raws[-1]).sequence_number + 1


def describe(queue: str, raw: bytes) -> Waiting:
    """What a message in a backlog says about itself, as far as it can be read."""
    destination = part = None
    enqueued: int | None = None
    try:
        message = envelope.read(raw)
        destination, enqueued = message.destination, message.enqueued_ms
        part = f"{message.part.number}/{message.part.count}" if message.part is not None else None
    except (EnvelopeError, AmqpDecodeError):
        enqueued = _enqueued_ms(raw)
    facts = read_facts(raw)
    properties = facts.application_properties
    return Waiting(
        queue,
        read_stamps(raw).sequence_number,
        facts.message_key,
        destination,
        int(enqueued) if enqueued is not None else None,
        len(raw),
        part,
        _text(properties.get("DeadLetterReason")),
        _text(properties.get("DeadLetterErrorDescription")),
    )


async def prune(secondary: Namespace, primary_name: str, numbers: Collection[int], *, dry_run: bool) -> list[str]:
    """Delete the extra backlog queues that are empty, dead-letter queue included; which they are."""
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


def _enqueued_ms(raw: bytes) -> int | None:
    section = Sections.split(raw).message_annotations
    found = decode(section, 3)[0] if section else {}
    return found.get("x-opt-enqueued-time")


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
