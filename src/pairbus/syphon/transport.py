"""How a pump reaches the two namespaces: one Protocol, two ways (`sdk_transport`, `amqp_transport`).

Rules for every transport:
- `send` returns only after the primary took the whole batch; otherwise it raises `SendError`. A cancelled send leaves
  nothing behind that could still go out.
- What settles is applied in the order of the calls. `complete`, `release` and `dead_letter` return the deliveries that
  could not be settled because their lock was gone: those come again. `complete_together` is one request to the
  service, so that dying cannot cut it in two.
- `ReceiverLostError` means: the locks we held may last, but not for us. The pump opens another receiver.
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

    `missing`: it does not exist. `unauthorized`: the secondary does not accept our credential.
    """

    def __init__(self, cause: str, *, missing: bool = False, unauthorized: bool = False) -> None:
        super().__init__(cause)
        self.missing = missing
        self.unauthorized = unauthorized


class BacklogReceiver(Protocol):
    """One backlog queue being received from."""

    async def receive(self, limit: int, wait: float) -> list[Delivery]:
        """Up to `limit` messages, as soon as there is one; none after `wait` seconds."""
        ...

    async def quiet(self) -> list[Delivery]:
        """Ask for nothing more, and hand over what came unasked."""
        ...

    async def complete(self, deliveries: Sequence[Delivery]) -> list[Delivery]: ...

    async def complete_together(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """Complete all of them or, whatever happens to us meanwhile, none."""
        ...

    async def release(self, deliveries: Sequence[Delivery]) -> list[Delivery]: ...

    async def dead_letter(self, letters: Sequence[DeadLetter]) -> list[Delivery]: ...

    async def renew(self, deliveries: Sequence[Delivery]) -> tuple[float, list[Delivery]]:
        """Renew the locks; when to do so again (on the loop's clock), and whose lock was gone."""
        ...

    async def peek(self, from_number: int, count: int) -> list[Peeked]:
        """What is in the queue from this number on, locked messages included."""
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
        """How many locks one pump can keep renewed."""
        ...

    async def open_receiver(self, queue: str) -> BacklogReceiver:
        """Raises `ReceiverLostError`."""
        ...

    async def send(self, destination: str, raws: Sequence[bytes]) -> None:
        """Send the messages as one batch. Raises `SendError`."""
        ...

    async def reachable(self) -> bool:
        """Whether the primary answers at all, whatever it says of its entities."""
        ...

    async def close(self) -> None: ...


def renew_after(now: float, locked_until: float | None) -> float:
    """The time on the loop's clock to renew a lock: halfway to `locked_until` (seconds since the epoch).

    The service's clock may differ from ours: if the lock seems longer than any lock can be, or already over, assume a
    short one.
    """
    left = locked_until - time.time() if locked_until is not None else -1.0
    return now + (left if 0 < left <= _LONGEST_LOCK_SECONDS else _ASSUMED_LOCK_SECONDS) / 2
