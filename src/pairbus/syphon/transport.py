"""The pump's access to both namespaces: one Protocol with two implementations, `sdk_transport` and `amqp_transport`.

Rules for every transport:
- `send` returns only after the primary took the whole batch; otherwise it raises `SendError`. After a cancelled send,
  nothing may still go out.
- Settlements apply in the order of the calls. `complete`, `release` and `dead_letter` return the deliveries whose lock
  was lost: those come again. `complete_together` is a single request to the service, so a crash cannot split it.
- After `ReceiverLostError` our locks may still last, but we cannot use them. The pump opens another receiver.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

from pairbus.syphon.deliveries import DeadLetter, Delivery, Peeked

LONG_RECEIVE_SECONDS = 15 * 60.0
_ASSUMED_LOCK_SECONDS = 20.0
_LONGEST_LOCK_SECONDS = 310.0


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
        ...

    async def quiet(self) -> list[Delivery]:
        """Stop requesting messages and return those that arrived unrequested."""
        ...

    async def complete(self, deliveries: Sequence[Delivery]) -> list[Delivery]: ...

    async def complete_together(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """Complete all of them or none, even if this process dies meanwhile."""
        ...

    async def release(self, deliveries: Sequence[Delivery]) -> list[Delivery]: ...

    async def dead_letter(self, letters: Sequence[DeadLetter]) -> list[Delivery]: ...

    async def renew(self, deliveries: Sequence[Delivery]) -> tuple[float, list[Delivery]]:
        """Renew the locks. Return the time to renew again, on the loop's clock, and the deliveries without a lock."""
        ...

    async def peek(self, from_number: int, count: int) -> list[Peeked]:
        """Return messages from this sequence number on, including locked ones."""
        ...

    async def close(self) -> None: ...


class Transport(Protocol):
    """Both namespaces, for all pumps of a process."""

    @property
    def overlapping(self) -> bool:
        """Whether a receiver can settle while it waits for messages."""
        ...

    @property
    def held_messages(self) -> int:
        """The number of locks that one pump can keep renewed."""
        ...

    async def open_receiver(self, queue: str) -> BacklogReceiver:
        """Raises `ReceiverLostError`."""
        ...

    async def send(self, destination: str, raws: Sequence[bytes]) -> None:
        """Send the messages as one batch. Raises `SendError`."""
        ...

    async def reachable(self) -> bool:
        """Whether the primary answers at all, whatever the state of its entities."""
        ...

    async def close(self) -> None: ...


def renew_after(now: float, locked_until: float | None) -> float:
    """Return the time to renew a lock: half of its remaining life after `now`. `locked_until` is in epoch seconds.

    The service's clock may differ from ours. If the lock seems to be over, or longer than any lock can be, assume a
    short one.
    """
    left = locked_until - time.time() if locked_until is not None else -1.0
    return now + (left if 0 < left <= _LONGEST_LOCK_SECONDS else _ASSUMED_LOCK_SECONDS) / 2
