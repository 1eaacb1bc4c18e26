"""Estimates what a pairing will cost. PURE.

The formulae follow the billing rules: idle receives are billed for each pump, pings for each failed-over entity of each
paired client, and a message that travels through a backlog is four operations per started 64 KB. Each line carries its
formula with the numbers filled in, for `explain`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from pairbus.costs.rules import TRANSIT_OPERATIONS, units
from pairbus.costs.tariffs import Tariff, added_amount

IDLE_RECEIVES_PER_HOUR = 4
"""A pump waits in receives of 15 minutes."""
HOURS_PER_DAY = 24
DAYS = 30
HOURS_PER_MONTH = HOURS_PER_DAY * DAYS
"""Estimates and simulations are for 30 days, so that two of them can be compared. Bills use the month's own hours."""


_MAX = 1e15
"""The limit of every number: a larger one is a typing mistake, and too large to multiply."""


def _check(owner: str, options: object, least: Mapping[str, int]) -> None:
    for name, lowest in least.items():
        value = getattr(options, name)
        if not lowest <= value <= _MAX:  # true for nan as well
            raise ValueError(f"The {owner}'s {name} is {str(value)[:30]}. Give a number from {lowest} to {_MAX:g}.")


@dataclass(frozen=True, slots=True)
class OutageScenario:
    """The primary is unreachable, `times` in 30 days, while the whole fleet sends `messages_per_second`."""

    hours: float
    messages_per_second: float
    message_bytes: int = 1024
    times: int = 1

    def __post_init__(self) -> None:
        _check("outage", self, dict.fromkeys(("hours", "messages_per_second", "message_bytes", "times"), 0))


@dataclass(frozen=True, slots=True)
class Fleet:
    """The paired clients and their options, with the names and defaults of the pairing's options."""

    clients: int = 1
    entities: int = 1
    backlog_queue_count: int = 10
    syphons: int = 1
    failover_interval_seconds: float = 60.0
    ping_interval_seconds: float = 60.0
    recovery_pings: int = 1
    primary_operations: int = 0
    """Operations of the primary in 30 days without the pairing. They decide the price step of the added ones."""

    def __post_init__(self) -> None:
        above_0 = ("clients", "entities", "backlog_queue_count", "ping_interval_seconds", "recovery_pings")
        from_0 = ("syphons", "failover_interval_seconds", "primary_operations")
        _check("fleet", self, dict.fromkeys(above_0, 1) | dict.fromkeys(from_0, 0))


@dataclass(frozen=True, slots=True)
class EstimateLine:
    """The operations that one cause adds to one namespace in 30 days."""

    cause: str
    namespace: str
    per_hour: float | None
    per_day: float | None
    per_30_days: int
    formula: str


@dataclass(frozen=True, slots=True)
class Estimate:
    lines: tuple[EstimateLine, ...]
    currency: str
    tariff: str
    plan: str
    primary_amount: Decimal
    """The price of the added operations at the primary in 30 days, by their price steps."""
    secondary_amount: Decimal
    """The same for the secondary, including its base charge."""

    @property
    def total(self) -> Decimal:
        return self.primary_amount + self.secondary_amount

    def operations(self, namespace: str) -> int:
        return sum(line.per_30_days for line in self.lines if line.namespace == namespace)

    def explain(self) -> list[str]:
        """The formulae with the numbers filled in, one sentence each."""
        return [f"{line.cause} ({line.namespace}): {line.formula}" for line in self.lines]


def pings_in_outage(fleet: Fleet, outage_hours: float) -> int:
    """Pings of one entity in one client: one per interval while failed over; the last one succeeds."""
    # Rounded to a microsecond: a fraction of an hour times 3,600 is not exact.
    failed_over = round(outage_hours * 3600 - fleet.failover_interval_seconds, 6)
    if outage_hours <= 0 or failed_over < 0:
        return 0
    return max(1, math.ceil(failed_over / fleet.ping_interval_seconds)) + fleet.recovery_pings - 1


def diverted_in_outage(fleet: Fleet, outage: OutageScenario) -> int:
    """Messages sent to the backlog, from the end of the failover interval to the ping that succeeds."""
    pings = pings_in_outage(fleet, outage.hours)
    return math.ceil(outage.messages_per_second * pings * fleet.ping_interval_seconds)


def estimate(fleet: Fleet, tariff: Tariff, plan: str = "standard", outage: OutageScenario | None = None) -> Estimate:
    """The operations and the price that pairing adds in 30 days."""
    queues = fleet.backlog_queue_count
    lines = [_line("creation", "secondary", queues, f"{queues:,} backlog queues, created once"), _idle(fleet)]
    if outage is not None:
        lines += _outage_lines(fleet, outage)
    prices = tariff.plan(plan)
    # A Premium namespace has at least one messaging unit.
    standing = HOURS_PER_MONTH * (prices.base_per_hour + prices.messaging_unit_per_hour)
    primary = sum(line.per_30_days for line in lines if line.namespace == "primary")
    secondary = sum(line.per_30_days for line in lines if line.namespace == "secondary")
    return Estimate(
        lines=tuple(lines),
        currency=tariff.currency,
        tariff=f"{tariff.name} of {tariff.valid_from.isoformat()}",
        plan=plan,
        primary_amount=added_amount(prices, fleet.primary_operations, primary),
        secondary_amount=added_amount(prices, 0, secondary) + standing,
    )


def _line(cause: str, namespace: str, count: int, formula: str) -> EstimateLine:
    """A line without a rate."""
    return EstimateLine(cause, namespace, None, None, count, f"{formula} = {count:,}")


def _idle(fleet: Fleet) -> EstimateLine:
    pumps = fleet.syphons * fleet.backlog_queue_count
    hourly = pumps * IDLE_RECEIVES_PER_HOUR
    formula = (
        f"{fleet.syphons} syphons x {fleet.backlog_queue_count} pumps x {IDLE_RECEIVES_PER_HOUR} receives an hour "
        f"= {hourly:,} an hour, {hourly * HOURS_PER_DAY:,} a day, {hourly * HOURS_PER_MONTH:,} in {DAYS} days"
    )
    return EstimateLine("idle receives", "secondary", hourly, hourly * HOURS_PER_DAY, hourly * HOURS_PER_MONTH, formula)


def _outage_lines(fleet: Fleet, outage: OutageScenario) -> list[EstimateLine]:
    pings_each = pings_in_outage(fleet, outage.hours)
    pings = pings_each * fleet.entities * fleet.clients * outage.times
    messages = diverted_in_outage(fleet, outage) * outage.times
    each = units(outage.message_bytes)
    half = TRANSIT_OPERATIONS // 2
    carried = messages * each * half
    times = f"{outage.times} outages" if outage.times != 1 else "1 outage"
    travel = f"{messages:,} diverted messages x {each} units of 64 KB x {half} of {TRANSIT_OPERATIONS} operations"
    sends = f"{times} x {fleet.entities} entities x {fleet.clients} clients x {pings_each} pings"
    return [
        _line("pings", "primary", pings, sends),
        _line("diverted messages", "secondary", carried, f"{travel} (send to the backlog, receive from it)"),
        _line("diverted messages", "primary", carried, f"{travel} (send to the primary, receive from it)"),
    ]
