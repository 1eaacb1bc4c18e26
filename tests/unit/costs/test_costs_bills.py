"""Bills, computed by hand at every edge of every step."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pairbus.costs import (
    Plan,
    Usage,
    added_amount,
    bill,
    billed_operations,
    connection_months,
    parse_tariff,
    shipped_tariffs,
    tariff_for,
    units,
)
from pairbus.costs.tariffs import Step
from pairbus.ledger.records import Operation, Outcome

TARIFF = parse_tariff(
    """
    name = "round"
    valid_from = 2025-01-01
    currency = "EUR"
    source = "made for the tests: round numbers"

    [plans.basic]
    operations = [{ price_per_million = "0.05" }]

    [plans.standard]
    base_per_hour = "0.01"
    operations = [
        { up_to = 13_000_000, price_per_million = "0" },
        { up_to = 100_000_000, price_per_million = "0.80" },
        { up_to = 2_500_000_000, price_per_million = "0.50" },
        { price_per_million = "0.20" },
    ]
    connections = [
        { up_to = 1_000, price_each = "0" },
        { up_to = 100_000, price_each = "0.03" },
        { up_to = 500_000, price_each = "0.025" },
        { price_each = "0.015" },
    ]

    [plans.premium]
    messaging_unit_per_hour = "0.9"
    """,
    "round.toml",
)
MILLION = 1_000_000


@pytest.mark.parametrize(
    ("operations", "amount"),
    [
        (0, "0"),
        (1, "0"),
        (13 * MILLION - 1, "0"),
        (13 * MILLION, "0"),
        (13 * MILLION + 1, "0.0000008"),
        (14 * MILLION, "0.80"),
        (100 * MILLION - 1, "69.5999992"),
        (100 * MILLION, "69.60"),
        (100 * MILLION + 1, "69.6000005"),
        (2_500 * MILLION, "1269.60"),
        (2_500 * MILLION + 1, "1269.6000002"),
        (3_000 * MILLION, "1369.60"),
    ],
)
def test_standard_operations_at_every_edge(operations: int, amount: str) -> None:
    assert bill(TARIFF.plan("standard"), Usage(operations)).total == Decimal(amount)


@pytest.mark.parametrize(
    ("connections", "amount"),
    [
        (1_000, "0"),
        (1_001, "0.03"),
        (100_000, "2970"),
        (100_001, "2970.025"),
        (500_000, "12970"),
        (500_001, "12970.015"),
    ],
)
def test_brokered_connections_at_every_edge(connections: int, amount: str) -> None:
    assert bill(TARIFF.plan("standard"), Usage(0, connections=connections)).total == Decimal(amount)


@pytest.mark.parametrize(
    ("devices", "hours", "connections", "amount"),
    [
        (10_000, 12 * 31, "5000", "120"),  # the service's own example
        (1_000, 744, "1000", "0"),
        (1_001, 744, "1001", "0.03"),
        (1_488, 1, "2", "0"),
        (744_372, 1, "1000.5", "0.015"),
        (100_000, 744, "100000", "2970"),
        (0, 744, "0", "0"),
    ],
)
def test_brokered_connections_are_hourly_peaks_over_744_hours(
    devices: int, hours: int, connections: str, amount: str
) -> None:
    found = connection_months(devices for _ in range(hours))
    assert found == Decimal(connections)
    assert bill(TARIFF.plan("standard"), Usage(0, connections=found)).total == Decimal(amount)


def test_only_the_standard_plan_charges_for_connections() -> None:
    for plan in ("basic", "premium"):
        assert bill(TARIFF.plan(plan), Usage(0, connections=1_000_000)).lines == ()


def test_a_whole_bill_line_by_line() -> None:
    whole = bill(TARIFF.plan("standard"), Usage(101 * MILLION, hours=744, connections=1_010))
    lines: list[tuple[str, int, Decimal]] = [(line.what, int(line.quantity), line.amount) for line in whole.lines]
    assert lines == [
        ("base charge, hours", 744, Decimal("7.44")),
        ("operations, 0 to 13,000,000", 13 * MILLION, Decimal(0)),
        ("operations, 13,000,000 to 100,000,000", 87 * MILLION, Decimal("69.60")),
        ("operations, 100,000,000 to 2,500,000,000", MILLION, Decimal("0.50")),
        ("brokered connections, 0 to 1,000", 1_000, Decimal(0)),
        ("brokered connections, 1,000 to 100,000", 10, Decimal("0.30")),
    ]
    assert whole.total == Decimal("77.84")


def test_basic_has_no_steps_and_premium_no_operations() -> None:
    assert bill(TARIFF.plan("basic"), Usage(2 * MILLION, hours=744)).total == Decimal("0.10")
    assert bill(TARIFF.plan("premium"), Usage(2 * MILLION, hours=10, messaging_units=2)).total == Decimal("18")


def test_added_operations_cost_what_the_step_they_fall_into_costs() -> None:
    standard = TARIFF.plan("standard")
    assert added_amount(standard, 0, MILLION) == 0
    assert added_amount(standard, 13 * MILLION, MILLION) == Decimal("0.80")
    assert added_amount(standard, 99_500_000, MILLION) == Decimal("0.40") + Decimal("0.25")


def test_a_negative_usage_is_refused() -> None:
    with pytest.raises(ValueError, match="connections -1"):
        Usage(1, connections=-1)


steps = st.lists(st.tuples(st.integers(1, 1000), st.integers(0, 100)), min_size=1, max_size=5).map(
    lambda drawn: tuple(
        Step(None if last else sum(width for width, _ in drawn[: i + 1]), Decimal(price))
        for i, (_, price) in enumerate(drawn)
        for last in [i == len(drawn) - 1]
    )
)


@settings(deadline=None, max_examples=200)
@given(steps, st.integers(0, 6000), st.integers(0, 6000))
def test_steps_equal_pricing_each_operation_alone(parts: tuple[Step, ...], before: int, added: int) -> None:
    plan = Plan("p", Decimal(0), Decimal(0), parts, ())

    def price(number: int) -> Decimal:
        """The price of the number-th operation of the month, counted from 1."""
        return next(step.price for step in parts if step.up_to is None or number <= step.up_to)

    one_by_one = sum((price(number) for number in range(before + 1, before + added + 1)), Decimal(0))
    assert added_amount(plan, before, added) * MILLION == one_by_one


@pytest.mark.parametrize(
    ("size", "expected"), [(0, 1), (1, 1), (65_535, 1), (65_536, 1), (65_537, 2), (131_072, 2), (262_144, 4)]
)
def test_units_are_started_64_kilobytes(size: int, expected: int) -> None:
    assert units(size) == expected
    assert billed_operations(Operation.SEND, size) == expected


def test_what_is_billed_and_what_is_not() -> None:
    big = 100_000
    assert billed_operations(Operation.PING, big) == 1
    assert billed_operations(Operation.RECEIVE, 0, Outcome.EMPTY) == 1
    assert billed_operations(Operation.SEND, big, Outcome.UNKNOWN) == 2
    assert billed_operations(Operation.SEND, big, Outcome.FAILED) == 0
    assert billed_operations(Operation.COMPLETE, big) == 0
    assert billed_operations(Operation.TRANSITION) == 0


def test_a_message_through_the_backlog_is_four_operations_per_unit() -> None:
    way = (Operation.DIVERT, Operation.RECEIVE, Operation.RESTORE, Operation.RECEIVE)
    assert sum(billed_operations(operation, 1_000) for operation in way) == 4
    assert sum(billed_operations(operation, 70_000) for operation in way) == 8


def test_a_negative_size_is_refused() -> None:
    with pytest.raises(ValueError, match="-1 bytes"):
        units(-1)


@pytest.mark.parametrize("tariff", shipped_tariffs(), ids=lambda tariff: tariff.name)
def test_shipped_standard_tariffs_include_thirteen_million_and_then_charge(tariff: object) -> None:
    from pairbus.costs import Tariff

    assert isinstance(tariff, Tariff)
    standard = tariff.plan("standard")
    assert bill(standard, Usage(13 * MILLION)).total == 0
    assert bill(standard, Usage(14 * MILLION)).total == standard.operations[1].price
    assert tariff.source.startswith("https://")


def test_the_shipped_dollar_prices_are_what_their_source_says() -> None:
    tariff = tariff_for(shipped_tariffs(), "azure-usd", date(2026, 1, 1))
    standard = tariff.plan("standard")
    assert round(bill(standard, Usage(0, hours=744)).total, 2) == Decimal("10.00")
    assert bill(standard, Usage(3_000 * MILLION)).total == Decimal("1369.60")
    assert bill(standard, Usage(0, connections=1_000_000)).total == 2_970 + 10_000 + 7_500
    assert bill(tariff.plan("basic"), Usage(1_000 * MILLION)).total == 50
    premium = bill(tariff.plan("premium"), Usage(0, hours=730, messaging_units=16)).total
    assert round(premium, 1) == Decimal("10833.2")
