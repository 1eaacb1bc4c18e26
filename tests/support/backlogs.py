"""Fills backlog queues without a pairing, and reads entities until they are empty."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch, ServiceBusReceivedMessage, ServiceBusReceiveMode

from pairbus import envelope
from pairbus.amqp.message import BATCH_ENTRY_BYTES
from pairbus.pairing.options import BACKLOG_QUEUE_SETTINGS, backlog_path
from pairbus.pairing.sdk import RawBatch
from pairbus.testing.namespace import EmbeddedNamespace

LARGEST_BATCH_BYTES = 200_000


def encoded(message: ServiceBusMessage) -> bytes:
    """The message as the SDK puts it on the wire."""
    batch = ServiceBusMessageBatch(max_size_in_bytes=2**31)
    batch.add_message(message)
    return bytes(cast(Any, batch)._message[5][0])


def backlog_form(message: ServiceBusMessage, destination: str) -> bytes:
    """The message as a paired sender would put it into a backlog queue."""
    return envelope.to_backlog(encoded(message), destination)


def make_backlog(secondary: EmbeddedNamespace, primary_name: str, count: int = 1) -> list[str]:
    """Create backlog queues with the names and settings of a pairing."""
    queues = [backlog_path(primary_name, number) for number in range(count)]
    with secondary.admin() as admin:
        for queue in queues:
            admin.create_queue(queue, **BACKLOG_QUEUE_SETTINGS)
    return queues


def put(
    namespace: EmbeddedNamespace, entity: str, raws: Iterable[bytes], batch_bytes: int = LARGEST_BATCH_BYTES
) -> None:
    """Send encoded messages as they are, in order, over one connection."""
    with namespace.client() as client, client.get_queue_sender(entity) as sender:
        batch: list[bytes] = []
        size = 0
        for raw in raws:
            if batch and size + len(raw) > batch_bytes:
                sender.send_messages(RawBatch(batch, sender))
                batch, size = [], 0
            batch.append(raw)
            size += len(raw) + BATCH_ENTRY_BYTES
        if batch:
            sender.send_messages(RawBatch(batch, sender))


def take(receiver: Any, count: int, wait: float = 15.0) -> list[ServiceBusReceivedMessage]:
    """Take `count` messages from a receive-and-delete receiver; fewer if none arrives for `wait` seconds."""
    messages: list[ServiceBusReceivedMessage] = []
    while len(messages) < count:
        more = receiver.receive_messages(max_message_count=count - len(messages), max_wait_time=wait)
        if not more:
            break
        messages += more
    return messages


def take_from(
    namespace: EmbeddedNamespace, queue: str, count: int, *, wait: float = 15.0, **options: Any
) -> list[ServiceBusReceivedMessage]:
    """Receive and delete `count` messages of a queue; `options` are the SDK's (a session, a sub-queue)."""
    mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    with namespace.client() as client, client.get_queue_receiver(queue, receive_mode=mode, **options) as receiver:
        return take(receiver, count, wait)


def ids(messages: Sequence[ServiceBusReceivedMessage]) -> list[str | None]:
    return [message.message_id for message in messages]
