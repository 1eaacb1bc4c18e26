"""The bytes of messages, each kept once. Subscriptions of a topic share a payload; it goes with its last entry."""

from collections.abc import Callable
from typing import Protocol

from pairbus.embedded.entities.message import Changes


class Shelf(Protocol):
    """Where payloads lie at hand."""

    def put(self, payload_id: int, raw: bytes) -> None: ...

    def get(self, payload_id: int) -> bytes: ...


class Payloads:
    def __init__(self, changes: Callable[[], Changes], shelf: Shelf) -> None:
        self._changes = changes
        self._shelf = shelf
        self._next_id = 1
        # Only payloads with more than one entry stand here.
        self._shares: dict[int, int] = {}

    def load_shares(self, shares: dict[int, int], next_id: int) -> None:
        self._shares = dict(shares)
        self._next_id = next_id

    def add(self, raw: bytes) -> int:
        payload_id = self._next_id
        self._next_id += 1
        self._changes().payloads.append((payload_id, raw))
        self._shelf.put(payload_id, raw)
        return payload_id

    def read(self, payload_id: int) -> bytes:
        return self._shelf.get(payload_id)

    def share(self, payload_id: int) -> None:
        self._shares[payload_id] = self._shares.get(payload_id, 1) + 1

    def drop(self, payload_id: int) -> bool:
        """One entry less points here; True when it was the last."""
        shares = self._shares.get(payload_id)
        if shares is None:
            self._changes().payload_drops.append(payload_id)
            return True
        if shares > 2:
            self._shares[payload_id] = shares - 1
        else:
            del self._shares[payload_id]
        return False
