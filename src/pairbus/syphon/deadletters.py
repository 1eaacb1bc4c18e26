"""Dead letters of backlog queues: what they are, and sending them on their way again once the cause is mended.

A resubmitted message goes to the end of the backlog queue it was in, as it was before it was dead-lettered, and only
then leaves the dead-letter queue. Dying in between leaves it in both: nothing is lost, and its id tells.
"""

from __future__ import annotations

from collections.abc import Collection

from pairbus import envelope
from pairbus.syphon.amqp_transport import AmqpReceiver, AmqpTransport
from pairbus.syphon.backlog import DEAD_LETTERS, Waiting, describe, peek_raws
from pairbus.syphon.deliveries import Delivery
from pairbus.syphon.namespaces import Namespace
from pairbus.syphon.service import list_backlog_queues
from pairbus.syphon.transport import ReceiverLostError
from pairbus.syphon.verdicts import SendError

_STAMPS = ("DeadLetterReason", "DeadLetterErrorDescription")
_AT_ONCE = 100
_EMPTY_SECONDS = 1.0


async def dead_letters(secondary: Namespace, primary_name: str) -> list[Waiting]:
    """The dead letters of all backlog queues of this primary, oldest first within a queue."""
    transport = AmqpTransport(secondary, secondary)
    found: list[Waiting] = []
    for queue in await list_backlog_queues(secondary, primary_name):
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
            try:
                await _resubmit(transport, receiver, queue, numbers, done)
            finally:
                await receiver.close()
    except (SendError, ReceiverLostError) as error:
        raise RuntimeError(f"{len(done)} of {len(wanted)} dead letters were resubmitted, then: {error}.") from error
    finally:
        await transport.close()
    return done


async def _resubmit(
    transport: AmqpTransport, receiver: AmqpReceiver, queue: str, numbers: set[int], done: list[Waiting]
) -> None:
    """What was sent leaves the dead-letter queue, and is noted in `done`, also when something fails after it."""
    others: list[Delivery] = []
    left = set(numbers)
    try:
        while left:
            deliveries = await receiver.receive(_AT_ONCE, _EMPTY_SECONDS)
            if not deliveries:
                break  # the rest is in other hands
            ours = [one for one in deliveries if one.sequence_number in left]
            others += [one for one in deliveries if one.sequence_number not in left]
            left -= {one.sequence_number for one in ours}
            sent: list[Delivery] = []
            try:
                for one in ours:
                    await transport.send(queue, [envelope.unstamped(one.raw, _STAMPS)])
                    sent.append(one)
            finally:
                others += ours[len(sent) :]
                await receiver.complete(sent)
                done += [describe(queue, one.raw) for one in sent]
    finally:
        await receiver.release(others + await receiver.quiet())
