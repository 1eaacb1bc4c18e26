"""Prices as data, and the bills made with them. PURE.

A tariff is a dated TOML file. For each plan (basic, standard, premium) it has the price of an hour, of a million
operations and of a brokered connection, in steps per namespace and month. Several files with the same name are one
tariff over time: each is valid from its `valid_from` until the next. The code contains no price.

Steps apply per namespace and month, each price to the operations (or connections) in its step. Nothing is rounded here.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal, InvalidOperation
from importlib.resources import files
from typing import Annotated, Any

from msgspec import Meta, Struct, field

from pairbus.errors import UsageError
from pairbus.toml import MAX_INTEGER, TomlError, convert_toml, read_toml

MILLION = Decimal(1_000_000)
CONNECTION_HOURS = 744
"""Brokered connections are prorated by the hours of a month of 31 days, whatever the length of the month."""
HIGHEST_PRICE = Decimal(10**12)


class TariffError(UsageError, ValueError):
    """The tariff file cannot be used; the text names the file, the field and what was expected."""


@dataclass(frozen=True, slots=True)
class Step:
    """A price up to a number of operations (or connections) in a month; None: without a limit."""

    up_to: int | None
    price: Decimal


@dataclass(frozen=True, slots=True)
class Plan:
    """The prices of one plan: per hour, per million operations, per connection and month."""

    name: str
    base_per_hour: Decimal
    messaging_unit_per_hour: Decimal
    operations: tuple[Step, ...]
    connections: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Tariff:
    name: str
    valid_from: date
    currency: str
    source: str
    plans: Mapping[str, Plan]

    def plan(self, name: str) -> Plan:
        try:
            return self.plans[name]
        except KeyError:
            raise TariffError(
                f"The tariff {self.name} has no plan {name!r}; it has {', '.join(sorted(self.plans))}."
            ) from None


class _Price(Decimal):
    """A price in a tariff file: a text, because a TOML float is not exact."""

    expected = 'a price in quotes, such as "0.80"'


def _read_price(kind: type, value: Any) -> _Price:
    with contextlib.suppress(InvalidOperation):
        price = _Price(value if type(value) in (str, int) else "nan")
        if price.is_finite() and 0 <= price <= HIGHEST_PRICE:
            return price
    raise ValueError(f"Expected {_Price.expected}")


class _OperationsStep(Struct, frozen=True, forbid_unknown_fields=True):
    price: _Price = field(name="price_per_million")
    up_to: Annotated[int, Meta(gt=0, le=MAX_INTEGER, extra={"expected": "a whole number above 0"})] | None = None


class _ConnectionsStep(Struct, frozen=True, forbid_unknown_fields=True):
    price: _Price = field(name="price_each")
    up_to: Annotated[int, Meta(gt=0, le=MAX_INTEGER, extra={"expected": "a whole number above 0"})] | None = None


class _PlanTable(Struct, frozen=True, forbid_unknown_fields=True):
    base_per_hour: _Price = _Price(0)
    messaging_unit_per_hour: _Price = _Price(0)
    operations: tuple[_OperationsStep, ...] = ()
    connections: tuple[_ConnectionsStep, ...] = ()

    def __post_init__(self) -> None:
        for name, steps in (("operations", self.operations), ("connections", self.connections)):
            limits = [math.inf if step.up_to is None else step.up_to for step in steps]
            if limits and (limits[-1] != math.inf or limits != sorted(set(limits))):
                shown = ", ".join("none" if step.up_to is None else f"{step.up_to:,}" for step in steps)
                raise ValueError(
                    f"{name} has steps with up_to {shown}: steps must grow, and only the last has no up_to."
                )


class _TariffFile(Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    valid_from: Annotated[date, Meta(extra={"expected": "a day, such as 2026-01-31"})]
    currency: str
    source: str
    plans: Annotated[dict[str, Any], Meta(min_length=1, extra={"expected": "tables, such as [plans.standard]"})]


def parse_tariff(raw: bytes | str, where: str) -> Tariff:
    """Parse a tariff file; `where` names it in errors."""
    where = f"The tariff {where}"
    try:
        file = convert_toml(read_toml(raw, where=where), _TariffFile, where=where)
        plans = {name: _plan(name, body, where) for name, body in file.plans.items()}
    except TomlError as error:
        raise TariffError(str(error)) from error
    return Tariff(file.name, file.valid_from, file.currency, file.source, plans)


def _plan(name: str, body: Any, where: str) -> Plan:
    if not isinstance(body, dict):
        raise TomlError(f"{where}: plans: {name} is {str(body)[:60]}: expected a table, [plans.{name}].")
    table = convert_toml(body, _PlanTable, where=where, inside=f"plans: {name}: ", dec_hook=_read_price)
    return Plan(
        name,
        Decimal(table.base_per_hour),
        Decimal(table.messaging_unit_per_hour),
        tuple(Step(step.up_to, Decimal(step.price)) for step in table.operations),
        tuple(Step(step.up_to, Decimal(step.price)) for step in table.connections),
    )


def shipped_tariffs() -> tuple[Tariff, ...]:
    """The tariffs in this package."""
    folder = files("pairbus.costs") / "prices"
    return tuple(
        parse_tariff(file.read_text(encoding="utf-8"), file.name)
        for file in sorted(folder.iterdir(), key=lambda file: file.name)
        if file.name.endswith(".toml")
    )


def tariff_for(tariffs: Iterable[Tariff], name: str, day: date) -> Tariff:
    """The tariff with this name that is valid on `day`: the latest that has begun, else the first known."""
    named = sorted((tariff for tariff in tariffs if tariff.name == name), key=lambda tariff: tariff.valid_from)
    if not named:
        known = ", ".join(sorted({tariff.name for tariff in tariffs})) or "none"
        raise TariffError(f"There is no tariff {name!r}; known tariffs: {known}.")
    begun = [tariff for tariff in named if tariff.valid_from <= day]
    return begun[-1] if begun else named[0]


@dataclass(frozen=True, slots=True)
class Usage:
    """The usage of one namespace in one month."""

    operations: int
    hours: Decimal | int = 0
    """How long the namespace existed in the month."""
    connections: Decimal | int = 0
    """Brokered connections of the month, see `connection_months`."""
    messaging_units: int = 0

    def __post_init__(self) -> None:
        for name in ("operations", "hours", "connections", "messaging_units"):
            if getattr(self, name) < 0:
                raise ValueError(f"A usage with {name} {getattr(self, name)} is impossible. Give 0 or more.")


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
    """Brokered connections of a month, prorated: `hourly_peaks` has the peak of each hour that had any.

    10,000 devices, connected 12 hours on each of 31 days, are 10,000 x 372 / 744 = 5,000.
    """
    return Decimal(sum(hourly_peaks)) / CONNECTION_HOURS


def operations_amount(plan: Plan, operations: int) -> Decimal:
    """The price of this many operations of one namespace in a month, without base charges."""
    return sum((line.amount for line in _stepped("operations", operations, plan.operations, per=MILLION)), Decimal(0))


def added_amount(plan: Plan, before: int, added: int) -> Decimal:
    """The price of `added` operations for a namespace that had `before` others in the month."""
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
