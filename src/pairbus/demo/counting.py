"""The result of the demo: what the senders and the census counted, and whether the ledger says the same.

A message is delivered when every destination that must have it has it. A loss, a message at the wrong destination, a
refused send or a contradiction by the ledger makes the demo fail.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from pairbus.demo.fleet import DemoDestination, Parcel
from pairbus.drill.census import Account, Census

if TYPE_CHECKING:
    from pairbus.pipeline.report import Summary

EVERYTHING_ARRIVED, SOMETHING_IS_WRONG = 0, 1
CENT = Decimal("0.01")


@dataclass(frozen=True, slots=True)
class DestinationCount:
    """The messages that were accepted for one destination, and those found there."""

    destination: str
    accepted: frozenset[str]
    """The accepted messages that this destination must get."""
    account: Account
    lost: frozenset[str] = frozenset()
    misdirected: frozenset[str] = frozenset()
    """Messages that this destination must not get."""

    @property
    def sentence(self) -> str:
        sign = "≠" if self.lost else "="
        text = (
            f"accepted {self.account.accepted:,} {sign} delivered {self.account.delivered:,}, "
            f"lost {self.account.lost:,}, duplicates {self.account.duplicates:,}"
        )
        return f"{text}, misdirected {len(self.misdirected):,}" if self.misdirected else text


def count(
    destination: DemoDestination, accepted: Iterable[Parcel], planned: Iterable[Parcel], seen: Counter[str]
) -> DestinationCount:
    """Count one destination; `planned` is everything that may have been sent, accepted or not."""
    ids = [parcel.message_id for parcel in accepted if destination.takes(parcel)]
    allowed = {parcel.message_id for parcel in planned if destination.takes(parcel)}
    account, lost = Census({destination.name: seen}).account(destination.name, ids)
    return DestinationCount(destination.name, frozenset(ids), account, frozenset(lost), frozenset(seen) - allowed)


@dataclass(frozen=True, slots=True)
class DemoResult:
    """All destinations together, in messages: one that two subscriptions get is one message."""

    accepted: frozenset[str]
    refused: int
    counts: tuple[DestinationCount, ...]

    @property
    def lost(self) -> frozenset[str]:
        return frozenset().union(*(part.lost for part in self.counts))

    @property
    def duplicates(self) -> int:
        return sum(part.account.duplicates for part in self.counts)

    @property
    def misdirected(self) -> int:
        return sum(len(part.misdirected) for part in self.counts)

    @property
    def delivered(self) -> int:
        """Messages that are where they must be. A message that no subscription selects must be nowhere."""
        return len(self.accepted - self.lost)

    @property
    def unselected(self) -> int:
        """Messages accepted by a topic that no subscription selects."""
        return len(self.accepted.difference(*(part.accepted for part in self.counts)))


@dataclass(frozen=True, slots=True)
class Cost:
    """What the demo would have cost: all operations, those that the pairing added, and the price of the latter."""

    billed: int
    added: int
    amount: Decimal
    currency: str

    @classmethod
    def of(cls, summary: Summary, pairing_cost: Sequence[dict[str, Any]], receives: int) -> Cost:
        """Add up the rows of the report's `pairing_cost`; `receives` are those that receivers would have made."""
        amount = sum((Decimal(row["amount"]) for row in pairing_cost), Decimal(0))
        currencies = {str(row["currency"]) for row in pairing_cost}
        added = sum(int(row["billed"]) for row in pairing_cost)
        return cls(summary.billed_operations + receives, added, amount, "/".join(sorted(currencies)))

    @property
    def sentence(self) -> str:
        # Fractions of a cent are shown to the last digit: rounding would make them look free.
        amount = f"{self.amount.quantize(CENT) if self.amount == self.amount.quantize(CENT) else self.amount:f}"
        return (
            f"it would have cost {self.billed:,} operations, {self.added:,} of them because of the outages, for "
            f"{amount} {self.currency}".rstrip()
            + " beyond the base charge"
        )


def conclude(say: Callable[[str], None], result: DemoResult, summary: Summary, cost: Cost) -> int:
    """Say the result and whether the ledger confirms it; return the exit code."""
    for part in result.counts:
        say(f"{part.destination}: {part.sentence}")
    counted = (len(result.accepted), result.delivered, len(result.lost))
    agrees = counted == (summary.accepted, summary.delivered, summary.lost + summary.waiting)
    if agrees:
        say(
            f"The ledger agrees: {summary.diverted:,} messages went through the backlog and {summary.restored:,} came "
            f"home; {summary.pings:,} pings."
        )
    else:
        say(f"The ledger disagrees: {summary.sentence}")
    unselected = f" ({result.unselected:,} of them matched no subscription's filter)" if result.unselected else ""
    extra = f", misdirected {result.misdirected:,}" if result.misdirected else ""
    extra += f", refused {result.refused:,}" if result.refused else ""
    say(
        f"Sent {len(result.accepted):,} messages: delivered {result.delivered:,}{unselected}, "
        f"lost {len(result.lost):,}, duplicated {result.duplicates:,}{extra}; {cost.sentence}."
    )
    good = agrees and not result.lost and not result.misdirected and not result.refused
    return EVERYTHING_ARRIVED if good else SOMETHING_IS_WRONG
