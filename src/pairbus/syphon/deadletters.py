"""Dead letters of backlog queues: listing them, and resubmitting them once the cause is fixed.

A resubmitted message goes to the end of the backlog queue it was in, as it was before it was dead-lettered, and only
then leaves the dead-letter queue. A crash in between leaves it in both: nothing is lost, and the message id identifies
the copy. With a ledger, the resubmission is recorded before the message leaves, so that the audit knows it waits again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pairbus import envelope
from pairbus.ledger import CompletedOperation, LedgerWriter, Operation, Role, Route, error_name, outcome_of
from pairbus.syphon.amqp_transport import AmqpReceiver, AmqpTransport
from pairbus.syphon.backlog import DEAD_LETTERS, Waiting, describe, existing_queues, peek_raws
from pairbus.syphon.deliveries import Delivery
from pairbus.syphon.namespaces import Namespace
from pairbus.syphon.transport import ReceiverLostError, SendError

_DEAD_LETTER_PROPERTIES = ("DeadLetterReason", "DeadLetterErrorDescription")
_RECEIVE_LIMIT = 100
_EMPTY_SECONDS = 1.0


async def dead_letters(secondary: Namespace, primary_name: str) -> list[Waiting]:
    """The dead letters of all backlog queues of this primary, oldest first within a queue."""
    transport = AmqpTransport(secondary, secondary)
    letters: list[Waiting] = []
    for queue in await existing_queues(secondary, primary_name):
        receiver = await transport.open_receiver(queue + DEAD_LETTERS)
        try:
            letters += [describe(queue, raw) async for raw in peek_raws(receiver)]
        finally:
            await receiver.close()
    return letters


async def resubmit(
    secondary: Namespace,
    primary_name: str,
    *,
    reasons: Collection[str] = (),
    message_ids: Collection[str] = (),
    dry_run: bool = False,
    ledger: LedgerWriter | None = None,
) -> list[Waiting]:
    """Resubmit all dead letters, or those with these reasons and these ids.

    A message that is dead-lettered again meanwhile stays where it is.
    """

    def is_chosen(letter: Waiting) -> bool:
        return (not reasons or letter.reason in reasons) and (not message_ids or letter.message_id in message_ids)

    wanted = [letter for letter in await dead_letters(secondary, primary_name) if is_chosen(letter)]
    if dry_run:
        return wanted
    done: list[Waiting] = []
    transport = AmqpTransport(secondary, secondary)
    try:
        for queue in sorted({letter.queue for letter in wanted}):
            numbers = {letter.sequence_number for letter in wanted if letter.queue == queue}
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
    """Records resubmissions, if there is a ledger."""

    ledger: LedgerWriter | None
    secondary: str
    queue: str

    def received(self, deliveries: Sequence[Delivery], seconds: float) -> None:
        for delivery in deliveries:
            self._record(Operation.RECEIVE, self.queue + DEAD_LETTERS, delivery, seconds, None)

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
        message = delivery.message
        self.ledger.record(
            CompletedOperation(
                operation,
                self.secondary,
                entity,
                [message.message_id if message.error is None else None],
                [message.size],
                outcome=outcome_of(error, in_doubt=error is not None and error.in_doubt),
                error=error_name(error),
                latency_us=round(seconds * 1e6),
                route=Route.SYPHON,
                destination=message.destination or None,
                role=Role.SYPHON,
            )
        )


async def _resubmit(
    transport: AmqpTransport,
    receiver: AmqpReceiver,
    queue: str,
    numbers: set[int],
    done: list[Waiting],
    records: _Records,
) -> None:
    """Resubmit the dead letters with these numbers, and add them to `done`, also if a later one fails."""
    others: list[Delivery] = []
    left = set(numbers)
    try:
        while left:
            started = time.monotonic()
            deliveries = await receiver.receive(_RECEIVE_LIMIT, _EMPTY_SECONDS)
            records.received(deliveries, time.monotonic() - started)
            if not deliveries:
                break  # other receivers hold the rest
            ours = [delivery for delivery in deliveries if delivery.sequence_number in left]
            others += [delivery for delivery in deliveries if delivery.sequence_number not in left]
            left -= {delivery.sequence_number for delivery in ours}
            sent: list[Delivery] = []
            try:
                for delivery in ours:
                    started = time.monotonic()
                    try:
                        await transport.send(queue, [envelope.unstamped(delivery.message.raw, _DEAD_LETTER_PROPERTIES)])
                    except SendError as error:
                        records.resubmitted(delivery, time.monotonic() - started, error)
                        raise
                    records.resubmitted(delivery, time.monotonic() - started, None)
                    sent.append(delivery)
            finally:
                others += ours[len(sent) :]
                await records.on_disk()
                await receiver.complete(sent)
                done += [describe(queue, delivery.message.raw) for delivery in sent]
    finally:
        await receiver.release(others + await receiver.quiet())
