"""PURE. The cost of today so far, and the cost of an outage per hour.

The rules are those of `pairbus.costs`: what is billed, and price steps per namespace and month. Which step applies
depends on the operations of the month before today, which only the user knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from pairbus.costs import TRANSIT_OPERATIONS, Plan, Tariff, added_amount, rule_for, units
from pairbus.ledger.records import Operation, Outcome
from pairbus.publishing.records import OperationCount, PairReport

SECONDS_PER_HOUR = 3600


@dataclass(frozen=True, slots=True)
class Prices:
    """The tariff, the plan, and the operations of each namespace in this month before today."""

    tariff: Tariff
    plan: Plan
    month_operations: int = 0

    @property
    def included(self) -> int:
        """The free operations of a month."""
        steps = self.plan.operations
        return steps[0].up_to or 0 if steps and steps[0].price == 0 else 0


def today(counts: Iterable[OperationCount], prices: Prices, seconds_of_day: float) -> dict[str, Any]:
    """The operations of today in each namespace, the share that the pairing added, and their cost."""
    sums: dict[str, dict[str, int]] = {}
    for count in counts:
        totals = sums.setdefault(count.namespace, {"operations": 0, "billed": 0, "pairing": 0})
        totals["operations"] += count.operations
        totals["billed"] += count.billed
        if rule_for(count.operation, count.outcome, on_backlog=count.on_backlog).cause is not None:
            totals["pairing"] += count.billed
    hours = Decimal(round(seconds_of_day)) / SECONDS_PER_HOUR
    standing = hours * (prices.plan.base_per_hour + prices.plan.messaging_unit_per_hour)
    namespaces = []
    for namespace, totals in sorted(sums.items()):
        operations = added_amount(prices.plan, prices.month_operations, totals["billed"])
        namespaces.append(
            {
                "namespace": namespace,
                **totals,
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
        "billed": sum(row["billed"] for row in namespaces),
        "amount": sum(row["amount"] for row in namespaces),
    }


def outage_per_hour(
    pairs: Sequence[PairReport], diverted_per_second: float, counts: Sequence[OperationCount], prices: Prices
) -> dict[str, Any] | None:
    """The operations that the pairing would add in an hour at the current rates; None while no entity is failed over.

    These are the pings of each failed-over entity by each paired client, and four operations for each diverted message
    and 64 KB, two in each namespace: the formulae of `pairbus cost estimate`.
    """
    pings = sum(
        SECONDS_PER_HOUR / pair.ping_interval
        for pair in pairs
        for entity in pair.entities
        if entity.state == "failed over"
    )
    if not pings:
        return None
    diverts = [count for count in counts if count.operation is Operation.DIVERT and count.outcome is Outcome.OK]
    messages = sum(count.operations for count in diverts)
    per_message = sum(count.billed for count in diverts) / messages if messages else units(0)
    half = diverted_per_second * SECONDS_PER_HOUR * per_message * TRANSIT_OPERATIONS / 2
    added = (round(pings + half), round(half))

    def amount(before: int) -> float:
        return float(sum(added_amount(prices.plan, before, operations) for operations in added))

    return {
        "pings": round(pings),
        "operations": sum(added),
        "amount": amount(prices.month_operations),
        "amount_beyond": amount(max(prices.month_operations, prices.included)),
        "included": prices.included,
    }
