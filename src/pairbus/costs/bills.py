"""What a namespace costs in a month. PURE.

Steps are applied per namespace and month, each price to the part of the operations (connections) that falls
into its step. Nothing is rounded here; who prints rounds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal

from pairbus.costs.tariffs import Plan, Step

MILLION = Decimal(1_000_000)
HOURS_PER_MONTH = 744
"""Brokered connections are prorated by this many hours, whatever the length of the month."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What one namespace did in one month."""

    operations: int
    hours: Decimal | int = 0
    """How long the namespace existed in the month."""
    connections: Decimal | int = 0
    """Brokered connections of the month, see `connection_months`."""
    messaging_units: int = 0

    def __post_init__(self) -> None:
        for name in ("operations", "hours", "connections", "messaging_units"):
            if getattr(self, name) < 0:
                raise ValueError(f"A usage with {name} {getattr(self, name)} cannot be; give 0 or more.")


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a bill: `quantity` at `price` each (per million for operations)."""

    what: str
    quantity: Decimal
    price: Decimal
    amount: Decimal


@dataclass(frozen=True, slots=True)
class Bill:
    lines: tuple[Line, ...]

    @property
    def total(self) -> Decimal:
        return sum((line.amount for line in self.lines), Decimal(0))


def bill(plan: Plan, usage: Usage) -> Bill:
    """The bill of one namespace for one month."""
    lines: list[Line] = []
    hours = Decimal(usage.hours)
    if plan.base_per_hour and hours:
        lines.append(Line("base charge, hours", hours, plan.base_per_hour, hours * plan.base_per_hour))
    unit_hours = hours * usage.messaging_units
    if plan.messaging_unit_per_hour and unit_hours:
        amount = unit_hours * plan.messaging_unit_per_hour
        lines.append(Line("messaging units, hours", unit_hours, plan.messaging_unit_per_hour, amount))
    lines += _stepped("operations", usage.operations, plan.operations, per=MILLION)
    lines += _stepped("brokered connections", usage.connections, plan.connections, per=Decimal(1))
    return Bill(tuple(lines))


def connection_months(hourly_peaks: Iterable[int]) -> Decimal:
    """Brokered connections of a month: the peaks of its hours (one for each hour in which there were any), prorated.

    10,000 devices, connected 12 hours on each of 31 days, are 10,000 x 372 / 744 = 5,000.
    """
    return Decimal(sum(hourly_peaks)) / HOURS_PER_MONTH


def operations_amount(plan: Plan, operations: int) -> Decimal:
    """What that many operations of one namespace cost in a month, without anything else."""
    return sum((line.amount for line in _stepped("operations", operations, plan.operations, per=MILLION)), Decimal(0))


def added_amount(plan: Plan, before: int, added: int) -> Decimal:
    """What `added` operations cost a namespace that had `before` in the month without them."""
    return operations_amount(plan, before + added) - operations_amount(plan, before)


def _stepped(what: str, quantity: Decimal | int, steps: tuple[Step, ...], *, per: Decimal) -> list[Line]:
    lines: list[Line] = []
    floor: Decimal | int = 0
    for step in steps:
        ceiling = quantity if step.up_to is None else min(quantity, step.up_to)
        part = ceiling - floor
        if part <= 0:
            break
        lines.append(Line(_step_name(what, floor, step.up_to), Decimal(part), step.price, part * step.price / per))
        floor = ceiling
    return lines


def _step_name(what: str, floor: Decimal | int, up_to: int | None) -> str:
    if up_to is None:
        return f"{what} above {floor:,}" if floor else what
    return f"{what}, {floor:,} to {up_to:,}"
