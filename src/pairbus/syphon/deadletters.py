"""Dead letters of backlog queues: listing them, and resubmitting them once the cause is fixed.

A resubmitted message goes to the end of the backlog queue it was in, as it was before it was dead-lettered, and only
then leaves the dead-letter queue. A crash in between leaves it in both: nothing is lost, and the message id identifies
the copy. With a ledger, the resubmission is recorded before the message leaves, so that the audit knows it waits again.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any

from pairbus import envelope
from pairbus.ledger import LedgerWriter, Operation
from pairbus.syphon.amqp_transport import AmqpReceiver, AmqpTransport
from pairbus.syphon.backlog import DEAD_LETTERS, Waiting, describe, existing_queues, peek
from pairbus.syphon.deliveries import Delivery
from pairbus.syphon.namespaces import Namespace
from pairbus.syphon.outcomes import DurableRecords, Logbook
from pairbus.syphon.transport import ReceiverLostError, SendError

_DEAD_LETTER_PROPERTIES = ("DeadLetterReason", "DeadLetterErrorDescription")
_RECEIVE_LIMIT = 100
_EMPTY_SECONDS = 1.0


async def dead_letters(secondary: Namespace, primary_name: str) -> list[Waiting]:
    """The dead letters of all backlog queues of this primary, oldest first within a queue."""
    queues = await existing_queues(secondary, primary_name)
    return [letter for queue in queues async for letter in peek(secondary, queue + DEAD_LETTERS)]


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
            durable = DurableRecords(ledger) if ledger is not None else None
            logbook = Logbook(queue, "", secondary.host, ledger, durable=durable)
            try:
                await _resubmit(transport, receiver, numbers, done, logbook)
            finally:
                await receiver.close()
    except (SendError, ReceiverLostError) as error:
        raise RuntimeError(f"{len(done)} of {len(wanted)} dead letters were resubmitted, then: {error}.") from error
    finally:
        await transport.close()
    return done


async def _resubmit(
    transport: AmqpTransport, receiver: AmqpReceiver, numbers: set[int], done: list[Waiting], logbook: Logbook
) -> None:
    """Resubmit the dead letters with these numbers, and add them to `done`, also if a later one fails."""
    queue = logbook.queue
    others: list[Delivery] = []
    left = set(numbers)
    try:
        while left:
            started = time.monotonic()
            deliveries = await receiver.receive(_RECEIVE_LIMIT, _EMPTY_SECONDS)
            for delivery in deliveries:
                _record(logbook, Operation.RECEIVE, delivery, started, entity=queue + DEAD_LETTERS)
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
                        _record(logbook, Operation.RESUBMIT, delivery, started, error=error)
                        raise
                    _record(logbook, Operation.RESUBMIT, delivery, started)
                    sent.append(delivery)
            finally:
                others += ours[len(sent) :]
                await logbook.on_disk()
                await receiver.complete(sent)
                done += [describe(queue, delivery.message.raw) for delivery in sent]
    finally:
        await receiver.release(others + await receiver.quiet())


def _record(logbook: Logbook, operation: Operation, delivery: Delivery, started: float, **details: Any) -> None:
    message = delivery.message
    logbook.record(
        operation,
        [message.message_id if message.error is None else None],
        [message.size],
        destination=message.destination or None,
        seconds=time.monotonic() - started,
        **details,
    )
