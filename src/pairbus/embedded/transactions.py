"""Transactions: operations that are checked when they come and happen together, or not at all, at the end."""

from collections.abc import Callable
from dataclasses import dataclass, field

from pairbus.embedded.errors import QuotaExceededError, TransactionUnknownError
from pairbus.embedded.limits import Limits


@dataclass(frozen=True, slots=True)
class Step:
    """One operation of a transaction: `check` raises if it cannot happen any more, `apply` does it."""

    check: Callable[[], None]
    apply: Callable[[], None]


@dataclass(slots=True)
class _Transaction:
    steps: list[Step] = field(default_factory=list)


class Transactions:
    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._open: dict[bytes, _Transaction] = {}
        self._last = 0

    def begin(self) -> bytes:
        if len(self._open) >= self._limits.max_transactions:
            raise QuotaExceededError(f"{len(self._open)} transactions are open, the most there may be.")
        self._last += 1
        identifier = self._last.to_bytes(8, "big")
        self._open[identifier] = _Transaction()
        return identifier

    def add(self, identifier: bytes, step: Step) -> None:
        transaction = self._get(identifier)
        if len(transaction.steps) >= self._limits.max_transaction_operations:
            raise QuotaExceededError(f"The transaction has {len(transaction.steps)} operations, the most it may have.")
        step.check()
        transaction.steps.append(step)

    def discharge(self, identifier: bytes, *, fail: bool) -> None:
        """Ends the transaction. Every step is checked again before the first is applied."""
        transaction = self._get(identifier)
        del self._open[identifier]
        if fail:
            return
        for step in transaction.steps:
            step.check()
        for step in transaction.steps:
            step.apply()

    def abandon(self, identifier: bytes) -> None:
        """The controller is gone: nothing of it happens."""
        self._open.pop(identifier, None)

    def _get(self, identifier: bytes) -> _Transaction:
        transaction = self._open.get(identifier)
        if transaction is None:
            raise TransactionUnknownError(f"There is no open transaction {identifier.hex()}.")
        return transaction
