"""Which prices the options choose."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from pairbus.cli.options import read_pricing
from pairbus.costs import TariffError
from pairbus.pipeline.gold import Pricing

BEFORE = Pricing(tariff="azure-cny", plan="basic", plans={"fabrikam": "standard"}, connections={"contoso": 5_000})
OWN = """
name = "own"
currency = "EUR"
valid_from = 2026-01-01
source = "a contract"
[plans.standard]
base_per_hour = "0.1"
operations = [{ price_per_million = "1" }]
"""


def test_what_is_not_given_stays_as_it_was() -> None:
    assert read_pricing(None, None, None, None, BEFORE) == BEFORE
    dollars = read_pricing(None, "azure-usd", None, ["fabrikam=10"], BEFORE)
    assert (dollars.tariff, dollars.plan, dollars.plans) == ("azure-usd", "basic", {"fabrikam": "standard"})
    assert dollars.connections == {"contoso": 5_000, "fabrikam": Decimal(10)}
    assert read_pricing(None, None, "basic") == Pricing(plan="basic")


def test_a_tariff_of_ones_own_is_kept_with_its_prices(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text(OWN)
    own = read_pricing(file, None, None)
    assert (own.tariff, [tariff.name for tariff in own.kept.tariffs]) == ("own", ["own"])
    assert read_pricing(None, None, None, ["contoso=1"], own).tariffs == own.tariffs
    with pytest.raises(TariffError, match="premium"):
        read_pricing(None, None, "premium", None, own)
