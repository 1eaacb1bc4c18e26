"""Dead letters of backlog queues: what they are, and sending them on their way again once the cause is mended.

A resubmitted message goes to the end of the backlog queue it was in, as it was before it was dead-lettered, and only
then leaves the dead-letter queue. Dying in between leaves it in both: nothing is lost, and its id tells. With a
ledger it is recorded before it leaves, so that the audit knows it waits again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pairbus import envelope
from pairbus.amqp.message import message_key
from pairbus.amqp.types import AmqpDecodeError
from pairbus.errors import EnvelopeError
from pairbus.ledger import CompletedOperation, LedgerWriter, Operation, Role, Route, error_name, outcome_of
from pairbus.syphon.amqp_transport import AmqpReceiver, AmqpTransport
from pairbus.syphon.backlog import DEAD_LETTERS, Waiting, describe, existing_queues, peek_raws
from pairbus.syphon.deliveries import Delivery
from pairbus.syphon.namespaces import Namespace
from pairbus.syphon.send_errors import SendError
from pairbus.syphon.transport import ReceiverLostError

_STAMPS = ("DeadLetterReason", "DeadLetterErrorDescription")
_AT_ONCE = 100
_EMPTY_SECONDS = 1.0


async def dead_letters(secondary: Namespace, primary_name: str) -> list[Waiting]:
    """The dead letters of all backlog queues of this primary, oldest first within a queue."""
    transport = AmqpTransport(secondary, secondary)
    found: list[Waiting] = []
    for queue in await existing_queues(secondary, primary_name):
        receiver = await transport.open_receiver(queue + DEAD_LETTERS)
        try:
            found += [describe(queue, raw) async for raw in peek_raws(receiver)]
        finally:
            await receiver.close()
    return found


async def resubmit(
    secondary: Namespace,
    primary_name: str,
    *,
    reasons: Collection[str] = (),
    message_ids: Collection[str] = (),
    dry_run: bool = False,
    ledger: LedgerWriter | None = None,
) -> list[Waiting]:
    """Send dead letters on their way again: all of them, or those with these reasons and these ids.

    Only what is dead now: a message that is dead-lettered again meanwhile stays where it is.
    """

    def chosen(one: Waiting) -> bool:
        return (not reasons or one.reason in reasons) and (not message_ids or one.message_id in message_ids)

    wanted = [one for one in await dead_letters(secondary, primary_name) if chosen(one)]
    if dry_run:
        return wanted
    done: list[Waiting] = []
    transport = AmqpTransport(secondary, secondary)
    try:
        for queue in sorted({one.queue for one in wanted}):
            numbers = {one.sequence_number for one in wanted if one.queue == queue}
            receiver = await transport.open_receiver(queue + DEAD_LETTERS)
            records = _Records(ledger, secondary.host, queue)
            try:
                await _resubmit(transport, receiver, queue, numbers, done, records)
            finally:
                await receiver.close()
    except (SendError, ReceiverLostError) as error:
        raise RuntimeError(f"{len(done)} of {len(wanted)} dead letters were resubmitted, then: {error}.") from error
    finally:
        await transport.close()
    return done


@dataclass(frozen=True, slots=True)
class _Records:
    """What the ledger is told, if there is one. A message in parts is told once, with its first part."""

    ledger: LedgerWriter | None
    secondary: str
    queue: str

    def received(self, deliveries: Sequence[Delivery], seconds: float) -> None:
        for one in deliveries:
            self._record(Operation.RECEIVE, self.queue + DEAD_LETTERS, one, seconds, None)

    def resubmitted(self, delivery: Delivery, seconds: float, error: SendError | None) -> None:
        self._record(Operation.RESUBMIT, self.queue, delivery, seconds, error)

    async def on_disk(self) -> None:
        if self.ledger is not None:
            await asyncio.to_thread(self.ledger.flush)

    def _record(
        self, operation: Operation, entity: str, delivery: Delivery, seconds: float, error: SendError | None
    ) -> None:
        if self.ledger is None:
            return
        destination, message_id = _told(delivery.raw)
        self.ledger.record(
            CompletedOperation(
                operation,
                self.secondary,
                entity,
                [message_id],
                [len(delivery.raw)],
                outcome=outcome_of(error, in_doubt=error is not None and error.in_doubt),
                error=error_name(error),
                latency_us=round(seconds * 1e6),
                route=Route.SYPHON,
                destination=destination,
                role=Role.SYPHON,
            )
        )


def _told(raw: bytes) -> tuple[str | None, str | None]:
    """Destination and id of the message; no id for a part that is not the first."""
    try:
        message = envelope.read(raw)
        if message.part is None:
            return message.destination, message_key(raw)
        return message.destination, message_key(message.part.content) if message.part.number == 1 else None
    except (EnvelopeError, AmqpDecodeError, IndexError):
        return None, None


async def _resubmit(
    transport: AmqpTransport,
    receiver: AmqpReceiver,
    queue: str,
    numbers: set[int],
    done: list[Waiting],
    records: _Records,
) -> None:
    """What was sent leaves the dead-letter queue, and is noted in `done`, also when something fails after it."""
    others: list[Delivery] = []
    left = set(numbers)
    try:
        while left:
            started = time.monotonic()
            deliveries = await receiver.receive(_AT_ONCE, _EMPTY_SECONDS)
            records.received(deliveries, time.monotonic() - started)
            if not deliveries:
                break  # the rest is in other hands
            ours = [one for one in deliveries if one.sequence_number in left]
            others += [one for one in deliveries if one.sequence_number not in left]
            left -= {one.sequence_number for one in ours}
            sent: list[Delivery] = []
            try:
                for one in ours:
                    started = time.monotonic()
                    try:
                        await transport.send(queue, [envelope.unstamped(one.raw, _STAMPS)])
                    except SendError as error:
                        records.resubmitted(one, time.monotonic() - started, error)
                        raise
                    records.resubmitted(one, time.monotonic() - started, None)
                    sent.append(one)
            finally:
                others += ours[len(sent) :]
                await records.on_disk()
                await receiver.complete(sent)
                done += [describe(queue, one.raw) for one in sent]
    finally:
        await receiver.release(others + await receiver.quiet())
