"""What every kind of link of a client has in common: it is told what the engine hears, and it answers errors alike."""

from __future__ import annotations

from typing import Protocol

from pairbus.amqp.links import IncomingDelivery, OutgoingDelivery
from pairbus.amqp.outcomes import AmqpError
from pairbus.embedded.errors import BrokerError


class LinkEnd(Protocol):
    """Our end of one link. `path` and `right` say what the client needs to be allowed to for it to stay open."""

    path: str
    right: str | None

    def received(self, delivery: IncomingDelivery, raw: bytes, message_format: int) -> None: ...
    def received_too_much(self, delivery: IncomingDelivery, size: int) -> None: ...
    def updated(self, delivery: OutgoingDelivery) -> None: ...
    def credit_changed(self) -> None: ...
    def faults_changed(self) -> None: ...
    def closed(self) -> None: ...


def amqp_error(error: BrokerError) -> AmqpError:
    return AmqpError(error.condition, error.description)


class QuietEnd:
    """An end that ignores what does not concern it."""

    path: str = ""
    right: str | None = None

    def received(self, delivery: IncomingDelivery, raw: bytes, message_format: int) -> None:
        delivery.settle()

    def received_too_much(self, delivery: IncomingDelivery, size: int) -> None:
        delivery.settle()

    def updated(self, delivery: OutgoingDelivery) -> None:
        delivery.settle()

    def credit_changed(self) -> None:
        return

    def faults_changed(self) -> None:
        return

    def closed(self) -> None:
        return
