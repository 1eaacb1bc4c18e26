"""PURE. The pump's access to both namespaces, and how a failed send is classified.

Rules for every transport:
- `send` returns only after the primary took the whole batch; otherwise it raises `SendError`. After a cancelled send,
  nothing may still go out.
- A receiver can settle while it waits for messages. Settlements apply in the order of the calls. `complete`, `release`
  and `dead_letter` return the deliveries whose lock was lost: those come again. `complete_together` is a single request
  to the service, so a crash cannot split it.
- After `ReceiverLostError` our locks may still last, but we cannot use them. The pump opens another receiver.

A message is dead-lettered only if the service refused that message. Anything that may pass (the primary is down, full
or busy, the entity is disabled, no answer came, a right is missing) pauses the destination and settles nothing.

| failure of a send | meaning | the pump |
|---|---|---|
| `REFUSED` | the destination will never take this message | finds the message in its batch and dead-letters it |
| `MISSING` | the destination does not exist | dead-letters the messages for it |
| `UNAVAILABLE` | the service answered: not now | pauses the destination |
| `UNREACHABLE` | nobody answered | checks the primary, then pauses the destination or everything |
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

from pairbus.amqp.conditions import NOT_FOUND, TOO_LARGE, Blame, meaning
from pairbus.syphon.deliveries import DeadLetter, Delivery, Peeked


class SendFailure(StrEnum):
    REFUSED = "refused"
    MISSING = "missing"
    UNAVAILABLE = "unavailable"
    UNREACHABLE = "unreachable"


_FAILURES = {Blame.MESSAGE: SendFailure.REFUSED, Blame.CONNECTION: SendFailure.UNREACHABLE}


def failure_of_send(condition: str) -> SendFailure:
    """Classify the AMQP condition that a message was rejected with."""
    if condition == NOT_FOUND:
        return SendFailure.MISSING
    return _FAILURES.get(meaning(condition).blame, SendFailure.UNAVAILABLE)


def failure_of_link(condition: str) -> SendFailure:
    """Classify the condition that a link was refused or closed with. Of these, only a size is about a message."""
    failure = failure_of_send(condition)
    return SendFailure.UNAVAILABLE if failure is SendFailure.REFUSED and condition != TOO_LARGE else failure


class SendError(Exception):
    """The primary did not take a send, as far as we know.

    `in_doubt`: no answer came, so the primary may have taken it. `token_refused`: the primary does not accept our
    credential at all; if False, an unauthorized send may be a missing right on one entity.
    """

    def __init__(
        self,
        failure: SendFailure,
        condition: str,
        description: str = "",
        *,
        in_doubt: bool = False,
        token_refused: bool = False,
    ) -> None:
        super().__init__(f"{condition}: {description}" if description else condition)
        self.failure = failure
        self.condition = condition
        self.description = description
        self.in_doubt = in_doubt
        self.token_refused = token_refused


class ReceiverLostError(Exception):
    """The backlog queue cannot be received from any more.

    `missing`: the queue does not exist. `unauthorized`: the secondary does not accept our credential.
    """

    def __init__(self, cause: str, *, missing: bool = False, unauthorized: bool = False) -> None:
        super().__init__(cause)
        self.missing = missing
        self.unauthorized = unauthorized


class BacklogReceiver(Protocol):
    """A receiver of one backlog queue."""

    async def receive(self, limit: int, wait: float) -> list[Delivery]:
        """Wait up to `wait` seconds for a message, then return up to `limit`."""

    async def quiet(self) -> list[Delivery]:
        """Stop requesting messages and return those that arrived unrequested."""

    async def complete(self, deliveries: Sequence[Delivery]) -> list[Delivery]: ...

    async def complete_together(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """Complete all of them or none, even if this process dies meanwhile."""

    async def release(self, deliveries: Sequence[Delivery]) -> list[Delivery]: ...

    async def dead_letter(self, letters: Sequence[DeadLetter]) -> list[Delivery]: ...

    async def renew(self, deliveries: Sequence[Delivery]) -> tuple[float, list[Delivery]]:
        """Renew the locks. Return the time to renew again, on the loop's clock, and the deliveries without a lock."""

    async def peek(self, from_number: int, count: int) -> list[Peeked]:
        """Return messages from this sequence number on, including locked ones."""

    async def close(self) -> None: ...


class Transport(Protocol):
    """Both namespaces, for all pumps of a process."""

    async def open_receiver(self, queue: str) -> BacklogReceiver:
        """Raises `ReceiverLostError`."""

    async def send(self, destination: str, raws: Sequence[bytes]) -> None:
        """Send the messages as one batch. Raises `SendError`."""

    async def reachable(self) -> bool:
        """Whether the primary answers at all, whatever the state of its entities."""

    async def close(self) -> None: ...
