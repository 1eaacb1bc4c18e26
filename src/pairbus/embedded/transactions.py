"""Transactions: operations that are checked when they come and happen together, or not at all, at the end."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from pairbus.embedded.errors import Limits, MessageLockLostError, QuotaExceededError, TransactionUnknownError


@dataclass(frozen=True, slots=True)
class Step:
    """One operation of a transaction: `check` raises if it cannot happen any more, `apply` does it.

    An `apply` whose `check` passed at the same time does not raise, whatever other steps did before it: that is why a
    transaction settles each message (by its lock token) once.
    """

    check: Callable[[int], None]
    apply: Callable[[int], None]
    lock_tokens: frozenset[bytes] = frozenset()


@dataclass(slots=True)
class _Transaction:
    steps: list[Step] = field(default_factory=list)
    lock_tokens: set[bytes] = field(default_factory=set)


class Transactions:
    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._open: dict[bytes, _Transaction] = {}

    def begin(self) -> bytes:
        if len(self._open) >= self._limits.max_transactions:
            raise QuotaExceededError(f"{len(self._open)} transactions are open, the most there may be.")
        # Not to be guessed: whoever names a transaction may end it.
        identifier = secrets.token_bytes(16)
        self._open[identifier] = _Transaction()
        return identifier

    def add(self, identifier: bytes, step: Step, now: int) -> None:
        transaction = self._get(identifier)
        if len(transaction.steps) >= self._limits.max_transaction_operations:
            raise QuotaExceededError(f"The transaction has {len(transaction.steps)} operations, the most it may have.")
        if not transaction.lock_tokens.isdisjoint(step.lock_tokens):
            raise MessageLockLostError("The message is settled in this transaction already.")
        step.check(now)
        transaction.steps.append(step)
        transaction.lock_tokens |= step.lock_tokens

    def discharge(self, identifier: bytes, now: int, *, fail: bool) -> None:
        """Ends the transaction. Every step is checked again, at one moment, before the first is applied."""
        transaction = self._get(identifier)
        del self._open[identifier]
        if fail:
            return
        for step in transaction.steps:
            step.check(now)
        for step in transaction.steps:
            step.apply(now)

    def abandon(self, identifier: bytes) -> None:
        """The controller is gone: nothing of it happens."""
        self._open.pop(identifier, None)

    def _get(self, identifier: bytes) -> _Transaction:
        transaction = self._open.get(identifier)
        if transaction is None:
            raise TransactionUnknownError(f"There is no open transaction {identifier.hex()}.")
        return transaction
