"""Transactions: operations that are checked as they arrive and applied together, or not at all, at the end."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from pairbus.embedded.errors import Limits, MessageLockLostError, QuotaExceededError, TransactionUnknownError


@dataclass(frozen=True, slots=True)
class TransactionStep:
    """One operation of a transaction: `check` raises if it is no longer possible, `apply` performs it.

    An `apply` whose `check` passed at the same time never raises, whatever the steps before it did. This is why a
    transaction may settle each message (by its lock token) only once.
    """

    check: Callable[[int], None]
    apply: Callable[[int], None]
    lock_tokens: frozenset[bytes] = frozenset()


@dataclass(slots=True)
class _Transaction:
    steps: list[TransactionStep] = field(default_factory=list)
    lock_tokens: set[bytes] = field(default_factory=set)


class Transactions:
    """The open transactions of a namespace."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._open: dict[bytes, _Transaction] = {}

    def begin(self) -> bytes:
        if len(self._open) >= self._limits.max_transactions:
            raise QuotaExceededError(f"{len(self._open)} transactions are open, which is the maximum. End some first.")
        # Unguessable: anyone who knows the id can end the transaction.
        transaction_id = secrets.token_bytes(16)
        self._open[transaction_id] = _Transaction()
        return transaction_id

    def add(self, transaction_id: bytes, step: TransactionStep, now: int) -> None:
        transaction = self._get(transaction_id)
        if len(transaction.steps) >= self._limits.max_transaction_operations:
            raise QuotaExceededError(
                f"The transaction has {len(transaction.steps)} operations, which is the maximum. Commit it first."
            )
        if not transaction.lock_tokens.isdisjoint(step.lock_tokens):
            raise MessageLockLostError("The message has already been settled in this transaction.")
        step.check(now)
        transaction.steps.append(step)
        transaction.lock_tokens |= step.lock_tokens

    def discharge(self, transaction_id: bytes, now: int, *, fail: bool) -> None:
        """End the transaction. All steps are checked again, at the same time, before the first one is applied."""
        transaction = self._get(transaction_id)
        del self._open[transaction_id]
        if fail:
            return
        for step in transaction.steps:
            step.check(now)
        for step in transaction.steps:
            step.apply(now)

    def _get(self, transaction_id: bytes) -> _Transaction:
        transaction = self._open.get(transaction_id)
        if transaction is None:
            raise TransactionUnknownError(f"There is no open transaction {transaction_id.hex()}.")
        return transaction
