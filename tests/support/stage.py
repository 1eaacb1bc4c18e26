"""A namespace whose clock the test controls, and the operations that most tests need."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import count
from typing import Any

from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage, ServiceBusReceiver
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus.embedded.errors import Limits
from pairbus.testing.clock import ManualClock
from pairbus.testing.namespace import EmbeddedNamespace

_NUMBERS = count(1)
ARRIVAL_SECONDS = 20.0


class Stage:
    """A running namespace, its clock (which stands still) and its administration client."""

    def __init__(self, namespace: EmbeddedNamespace, clock: ManualClock, admin: ServiceBusAdministrationClient) -> None:
        self.namespace = namespace
        self.clock = clock
        self.admin = admin

    def queue(self, **description: Any) -> str:
        """Create a queue with a unique name."""
        name = f"queue-{next(_NUMBERS)}"
        self.admin.create_queue(name, **description)
        return name

    def topic(self, **description: Any) -> str:
        name = f"topic-{next(_NUMBERS)}"
        self.admin.create_topic(name, **description)
        return name

    def utc(self, seconds: float = 0) -> datetime:
        """The namespace's time, `seconds` from now."""
        return datetime.fromtimestamp(self.clock.now_ms() / 1000 + seconds, UTC)

    def counts(self, queue: str) -> tuple[int, int, int]:
        """Active, dead-lettered and scheduled messages, as the service counts them."""
        found = self.admin.get_queue_runtime_properties(queue)
        return (
            found.active_message_count or 0,
            found.dead_letter_message_count or 0,
            found.scheduled_message_count or 0,
        )

    def subscription_counts(self, topic: str, subscription: str) -> tuple[int, int]:
        found = self.admin.get_subscription_runtime_properties(topic, subscription)
        return found.active_message_count or 0, found.dead_letter_message_count or 0


@contextmanager
def stage(limits: Limits | None = None) -> Iterator[Stage]:
    # The SDK compares locks with its own clock: time stands still, but at the present.
    clock = ManualClock(int(time.time() * 1000))
    with EmbeddedNamespace("contoso", clock=clock, limits=limits) as namespace, namespace.admin() as admin:
        yield Stage(namespace, clock, admin)


def receive(receiver: ServiceBusReceiver, number: int) -> list[ServiceBusReceivedMessage]:
    """Receive `count` messages in as many calls as it takes; fewer if no more arrive."""
    found: list[ServiceBusReceivedMessage] = []
    while len(found) < number:
        more = receiver.receive_messages(number - len(found), max_wait_time=ARRIVAL_SECONDS)
        if not more:
            break
        found += more
    return found


def receive_one(receiver: ServiceBusReceiver) -> ServiceBusReceivedMessage:
    (message,) = receive(receiver, 1)
    return message


def texts(messages: Iterable[ServiceBusMessage]) -> list[str]:
    return [str(message) for message in messages]
