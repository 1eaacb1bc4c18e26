"""What today has cost so far, and what an outage costs for each hour that it lasts. PURE.

The rules are those of `pairbus.costs`: what is billed, and prices in steps for each namespace and month. In which step
today's operations fall is decided by how many the month had before, which only the user knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from pairbus.costs import Plan, Tariff, added_amount, units
from pairbus.costs.billing import TRANSIT_OPERATIONS
from pairbus.ledger.records import Operation, Outcome
from pairbus.publishing.records import Count, PairReport

SECONDS_PER_HOUR = 3600


@dataclass(frozen=True, slots=True)
class Prices:
    """The tariff and plan, and how many operations each namespace had in the month before today."""

    tariff: Tariff
    plan: Plan
    month_operations: int = 0

    @property
    def included(self) -> int:
        """Operations of a month that cost nothing."""
        steps = self.plan.operations
        return steps[0].up_to or 0 if steps and steps[0].price == 0 else 0


def pairing_cause(count: Count) -> str | None:
    """What the pairing is to blame for, by the rule of the table `operations_daily`."""
    if count.operation is Operation.PING:
        return "pings"
    if count.operation in (Operation.RECEIVE, Operation.PEEK) and count.on_backlog:
        return "idle receives" if count.outcome is Outcome.EMPTY else "diverted messages"
    if count.operation in (Operation.DIVERT, Operation.RESTORE, Operation.RESUBMIT):
        return "diverted messages"
    return "creation" if count.operation is Operation.CREATE and count.on_backlog else None


def today(counts: Iterable[Count], prices: Prices, seconds_of_day: float) -> dict[str, Any]:
    """Each namespace's operations of the day, what of them the pairing added, and what they cost."""
    sums: dict[str, dict[str, int]] = {}
    for count in counts:
        mine = sums.setdefault(count.namespace, {"operations": 0, "billed": 0, "pairing": 0})
        mine["operations"] += count.operations
        mine["billed"] += count.billed
        if pairing_cause(count) is not None:
            mine["pairing"] += count.billed
    hours = Decimal(round(seconds_of_day)) / SECONDS_PER_HOUR
    standing = hours * (prices.plan.base_per_hour + prices.plan.messaging_unit_per_hour)
    namespaces = []
    for namespace, mine in sorted(sums.items()):
        operations = added_amount(prices.plan, prices.month_operations, mine["billed"])
        namespaces.append(
            {
                "namespace": namespace,
                **mine,
                "operations_amount": float(operations),
                "standing_amount": float(standing),
                "amount": float(operations + standing),
            }
        )
    return {
        "currency": prices.tariff.currency,
        "tariff": f"{prices.tariff.name} of {prices.tariff.valid_from.isoformat()}",
        "plan": prices.plan.name,
        "namespaces": namespaces,
        "billed": sum(one["billed"] for one in namespaces),
        "amount": sum(one["amount"] for one in namespaces),
    }


def outage_per_hour(
    pairs: Sequence[PairReport], diverted_per_second: float, counts: Sequence[Count], prices: Prices
) -> dict[str, Any] | None:
    """What the pairing adds in an hour like this moment; None while no entity is failed over.

    Pings of each failed-over entity in each paired client, and four operations for each diverted message and 64 KB, two
    in each namespace: the formulae of `pairbus cost estimate`.
    """
    pings = sum(
        SECONDS_PER_HOUR / pair.ping_interval
        for pair in pairs
        for entity in pair.entities
        if entity.state == "failed over"
    )
    if not pings:
        return None
    diverts = [one for one in counts if one.operation is Operation.DIVERT and one.outcome is Outcome.OK]
    messages = sum(one.operations for one in diverts)
    each = sum(one.billed for one in diverts) / messages if messages else units(0)
    half = diverted_per_second * SECONDS_PER_HOUR * each * TRANSIT_OPERATIONS / 2
    added = (round(pings + half), round(half))
    return {
        "pings": round(pings),
        "operations": sum(added),
        "amount": float(sum(added_amount(prices.plan, prices.month_operations, one) for one in added)),
        "amount_beyond": float(
            sum(added_amount(prices.plan, max(prices.month_operations, prices.included), one) for one in added)
        ),
        "included": prices.included,
    }
