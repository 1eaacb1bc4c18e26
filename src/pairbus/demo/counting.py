"""The accounts of the story: what those who took part saw, and whether the ledger says the same.

Nothing is taken on trust: a message counts as delivered when every destination that must have it has it. A loss, a
message where it does not belong, a refused send or a contradiction by the ledger makes the demo fail.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from pairbus.demo.parcels import Destination, Parcel

if TYPE_CHECKING:
    from pairbus.pipeline.report import Summary

EVERYTHING_ARRIVED, SOMETHING_IS_WRONG = 0, 1
PENNY = Decimal("0.01")


@dataclass(frozen=True, slots=True)
class Count:
    """What was seen with their own eyes by the senders and by the receiver of one destination."""

    destination: str
    accepted: frozenset[str]
    """The messages that were accepted and that this destination must get."""
    delivered: frozenset[str]
    duplicates: int = 0
    """Copies beyond the first."""
    misdirected: frozenset[str] = frozenset()
    """Messages that this destination must not get."""

    @property
    def lost(self) -> frozenset[str]:
        return self.accepted - self.delivered

    @property
    def sentence(self) -> str:
        arrived = len(self.accepted & self.delivered)
        sign = "=" if not self.lost else "≠"
        said = (
            f"accepted {len(self.accepted):,} {sign} delivered {arrived:,}, "
            f"lost {len(self.lost):,}, duplicates {self.duplicates:,}"
        )
        return f"{said}, misdirected {len(self.misdirected):,}" if self.misdirected else said


def count(destination: Destination, accepted: Iterable[Parcel], planned: Iterable[Parcel], seen: Counter[str]) -> Count:
    """The account of one destination; `planned` is all that may have been sent, accepted or not."""
    allowed = {parcel.message_id for parcel in planned if destination.takes(parcel)}
    return Count(
        destination.name,
        frozenset(parcel.message_id for parcel in accepted if destination.takes(parcel)),
        frozenset(seen),
        duplicates=seen.total() - len(seen),
        misdirected=frozenset(seen) - allowed,
    )


@dataclass(frozen=True, slots=True)
class Result:
    """The accounts of all destinations together, in messages: one that two subscriptions get is one message."""

    accepted: frozenset[str]
    refused: int
    counts: tuple[Count, ...]

    @property
    def lost(self) -> frozenset[str]:
        return frozenset().union(*(one.lost for one in self.counts))

    @property
    def duplicates(self) -> int:
        return sum(one.duplicates for one in self.counts)

    @property
    def misdirected(self) -> int:
        return sum(len(one.misdirected) for one in self.counts)

    @property
    def delivered(self) -> int:
        """Those that are where they must be; one that no subscription asked for must be nowhere."""
        return len(self.accepted - self.lost)

    @property
    def unwanted(self) -> int:
        """Accepted by a topic none of whose subscriptions asked for them."""
        return len(self.accepted.difference(*(one.accepted for one in self.counts)))


@dataclass(frozen=True, slots=True)
class Cost:
    """What the story would have cost: operations in all, those that the pairing added, and the price of these."""

    billed: int
    added: int
    amount: Decimal
    currency: str

    @classmethod
    def of(cls, summary: Summary, pairing_cost: Sequence[dict[str, Any]]) -> Cost:
        """From the tables: the rows of `pairing_cost` as the report has them."""
        amount = sum((Decimal(row["amount"]) for row in pairing_cost), Decimal(0))
        currencies = {str(row["currency"]) for row in pairing_cost}
        added = sum(int(row["billed"]) for row in pairing_cost)
        return cls(summary.billed_operations, added, amount, "/".join(sorted(currencies)))

    @property
    def sentence(self) -> str:
        # What is less than a penny is shown to the last digit: nothing is rounded to look free.
        amount = f"{self.amount.quantize(PENNY) if self.amount == self.amount.quantize(PENNY) else self.amount:f}"
        return (
            f"it would have cost {self.billed:,} operations, {self.added:,} of them because of the outages, for "
            f"{amount} {self.currency}".rstrip()
            + " beyond the base charge"
        )


def conclude(say: Callable[[str], None], result: Result, summary: Summary, cost: Cost) -> int:
    """Says the result and whether the ledger confirms it; returns the exit code."""
    for one in result.counts:
        say(f"{one.destination}: {one.sentence}")
    counted = (len(result.accepted), result.delivered, len(result.lost))
    told = (summary.accepted, summary.delivered, summary.lost + summary.waiting)
    agrees = counted == told
    if agrees:
        say(
            f"The ledger agrees: {summary.diverted:,} messages went through the backlog and {summary.restored:,} came "
            f"home; {summary.pings:,} pings."
        )
    else:
        say(f"The ledger disagrees: {summary.sentence}")
    nobodys = f" ({result.unwanted:,} of them matched no subscription's filter)" if result.unwanted else ""
    extra = f", misdirected {result.misdirected:,}" if result.misdirected else ""
    extra += f", refused {result.refused:,}" if result.refused else ""
    say(
        f"Sent {len(result.accepted):,} messages: delivered {result.delivered:,}{nobodys}, lost {len(result.lost):,}, "
        f"duplicated {result.duplicates:,}{extra}; {cost.sentence}."
    )
    good = agrees and not result.lost and not result.misdirected and not result.refused
    return EVERYTHING_ARRIVED if good else SOMETHING_IS_WRONG
