"""The estimate's figures, and what wrong tariffs and fleets are told."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Any

import pytest

from pairbus.costs import Fleet, OutageScenario, TariffError, estimate, parse_tariff, shipped_tariffs, tariff_for
from pairbus.costs.estimate import diverted_in_outage, pings_in_outage

USD = tariff_for(shipped_tariffs(), "azure-usd", date(2025, 6, 1))


def test_the_idle_figures() -> None:
    idle = next(line for line in estimate(Fleet(), USD).lines if line.cause == "idle receives")
    assert (idle.per_hour, idle.per_day, idle.per_30_days) == (40, 960, 28_800)
    assert "40 an hour, 960 a day, 28,800 in 30 days" in idle.formula


@pytest.mark.parametrize(
    ("hours", "failover", "interval", "recovery", "pings"),
    [
        (1.0, 60, 60, 1, 59),
        (1.0, 0, 60, 1, 60),
        (1.0, 60, 60, 3, 61),
        (1.0, 60, 61, 1, 59),
        (59 / 3600, 60, 60, 1, 0),
        (60 / 3600, 60, 60, 1, 1),
        (61 / 3600, 60, 60, 1, 1),
        (0.0, 0, 60, 1, 0),
    ],
)
def test_pings_of_one_entity(hours: float, failover: int, interval: int, recovery: int, pings: int) -> None:
    fleet = Fleet(failover_interval_seconds=failover, ping_interval_seconds=interval, recovery_pings=recovery)
    assert pings_in_outage(fleet, hours) == pings


def test_an_outage_of_two_hours_at_fifty_messages_a_second() -> None:
    fleet = Fleet(clients=20, entities=3)
    outage = OutageScenario(hours=2, messages_per_second=50, message_bytes=70_000)
    assert pings_in_outage(fleet, 2) == 119
    assert diverted_in_outage(fleet, outage) == 119 * 60 * 50 == 357_000
    result = estimate(fleet, USD, outage=outage)
    by_cause = {(line.cause, line.namespace): line.per_30_days for line in result.lines}
    assert by_cause == {
        ("creation", "secondary"): 10,
        ("idle receives", "secondary"): 28_800,
        ("pings", "primary"): 3 * 20 * 119,
        ("diverted messages", "secondary"): 357_000 * 2 * 2,
        ("diverted messages", "primary"): 357_000 * 2 * 2,
    }
    assert result.operations("primary") == 3 * 20 * 119 + 1_428_000


def test_added_operations_are_priced_in_the_primarys_step() -> None:
    outage = OutageScenario(hours=1, messages_per_second=100)
    quiet = estimate(Fleet(), USD, outage=outage)
    busy = estimate(Fleet(primary_operations=20_000_000), USD, outage=outage)
    assert quiet.primary_amount == 0
    assert busy.primary_amount == Decimal("0.80") * (100 * 59 * 60 * 2 + 59) / 1_000_000
    assert quiet.secondary_amount == busy.secondary_amount == 720 * Decimal("0.013441")
    assert quiet.total == quiet.secondary_amount


def test_every_line_is_explained_with_its_result() -> None:
    result = estimate(Fleet(clients=2), USD, outage=OutageScenario(hours=1, messages_per_second=1, times=2))
    for line, sentence in zip(result.lines, result.explain(), strict=True):
        assert f"{line.per_30_days:,}" in sentence


@pytest.mark.parametrize(("field", "value"), [("clients", 0), ("ping_interval_seconds", 0.5), ("syphons", -1)])
def test_an_impossible_fleet_is_refused(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{field} is {value}"):
        Fleet(**{field: value})  # type: ignore[arg-type]


GOOD = """
name = "own"
valid_from = 2025-01-01
currency = "EUR"
source = "my invoice"
[plans.standard]
operations = [{ up_to = 10, price_per_million = "0" }, { price_per_million = "1" }]
"""


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('name = "own"', "name = 3", "own.toml: name is 3: expected a text in quotes"),
        ("valid_from = 2025-01-01", "", "valid_from is missing: expected a day"),
        ("valid_from = 2025-01-01", 'valid_from = "soon"', "valid_from is 'soon': expected a day"),
        ("up_to = 10", "up_to = -1", "plans: standard: operations 1: up_to is -1: expected a whole number above 0"),
        ("up_to = 10, ", "", "plans: standard: operations has steps with up_to none, none: steps must grow"),
        (
            "{ price_per_million",
            "{ up_to = 20, price_per_million",
            "up_to 10, 20: steps must grow, and only the last has no up_to",
        ),
        ('"1"', '"cheap"', "operations 2: price_per_million is 'cheap': expected a price in quotes"),
        ('"1"', '"-1"', "is '-1': expected a price"),
        ('"1"', "0.8", "is 0.8: expected a price in quotes"),
        ("operations", "operation", "plans: standard: 'operation' is unknown: did you mean 'operations'?"),
        ('currency = "EUR"', 'currency = "EUR"\nvat = 20', "'vat' is unknown: known are"),
        ("[plans.standard]", "[plans]", "plans: operations is [{"),
        ('"1"', "true", "is true: expected a price in quotes"),
        ("[plans.standard]", "[plans]\n[x]", "plans is {}: expected tables, such as [plans.standard]"),
        ("up_to = 10", "up_to = 0", "up_to is 0: expected a whole number above 0"),
        (
            "[plans.standard]",
            '[plans.basic]\nbase_per_hour = "1"\n[plans.standard]\nbase_per_hour = []',
            "plans: standard: base_per_hour is []: expected a price in quotes",
        ),
        ("= [", "= [[", "is not TOML"),
        ("= [", f"= {'[' * 5000}", "is not TOML: it is nested too deeply"),
        ("up_to = 10", f"up_to = {'1' * 5000}", "is not TOML: it has a whole number of more than 64 bits"),
        ("up_to = 10", "up_to = true", "up_to is true: expected a whole number above 0"),
        (
            "valid_from = 2025-01-01",
            "valid_from = 2025-01-01T00:00:00Z",
            "valid_from is 2025-01-01 00:00:00+00:00: expected a day, such as 2026-01-31.",
        ),
        ('"1"', '"1e999999"', "expected a price in quotes"),
    ],
)
def test_a_wrong_tariff_is_told_what_is_wrong(old: str, new: str, says: str) -> None:
    parse_tariff(GOOD, "own.toml")
    with pytest.raises(TariffError) as caught:
        parse_tariff(GOOD.replace(old, new, 1), "own.toml")
    assert says in str(caught.value)
    assert "own.toml" in str(caught.value)


def test_a_tariff_holds_from_its_day_on() -> None:
    old = parse_tariff(GOOD, "old.toml")
    new = parse_tariff(GOOD.replace("2025-01-01", "2026-01-01"), "new.toml")
    assert tariff_for([new, old], "own", date(2025, 12, 31)) is old
    assert tariff_for([new, old], "own", date(2026, 1, 1)) is new
    assert tariff_for([new, old], "own", date(2024, 1, 1)) is old


def test_an_unknown_tariff_or_plan_names_the_known_ones() -> None:
    with pytest.raises(TariffError, match="no tariff 'other'; known tariffs: azure-cny, azure-usd"):
        tariff_for(shipped_tariffs(), "other", date(2025, 1, 1))
    with pytest.raises(TariffError, match="no plan 'gold'; it has basic, premium, standard"):
        USD.plan("gold")


@pytest.mark.parametrize("value", ["inf", "nan", "-1", "1e300"])
@pytest.mark.parametrize("name", ["hours", "messages_per_second"])
def test_an_outage_without_measure_is_refused(name: str, value: str) -> None:
    values: dict[str, Any] = {"hours": 1.0, "messages_per_second": 1.0, name: float(value)}
    with pytest.raises(ValueError, match=f"The outage's {name} is {value[:2]}.*Give a number from 0 to 1e\\+15"):
        OutageScenario(**values)


@pytest.mark.parametrize("value", ["inf", "nan"])
def test_a_fleet_without_measure_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="The fleet's ping_interval_seconds is "):
        Fleet(ping_interval_seconds=float(value))
