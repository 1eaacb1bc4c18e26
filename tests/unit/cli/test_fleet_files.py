"""Fleets that somebody wrote by hand: each mistake is a sentence, and none takes the memory of the machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pairbus.cli.__main__ import run
from pairbus.pipeline.fleet import FleetError, FleetPlan, OutageKind, PairingChoice, parse_fleet
from pairbus.toml import MAX_FILE_BYTES

FIFTY_NINE = ", ".join(map(str, range(1, 60)))
OPTIONS = ("failover_interval_seconds", "ping_interval_seconds", "recovery_pings", "syphons")
OUTAGE = '[[outages]]\nscope = "both"\n'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("outages = 5", "outages is 5: expected tables: write [[outages]] above each"),
        ("outages = [1]", "outages 1 is 1: expected a table"),
        ("pairing = 3", "pairing is 3: expected a table, [pairing]"),
        (f"{OUTAGE}per_30_days = 1", "outages 1: mean_minutes is missing: expected a number above 0"),
        (f"{OUTAGE}per_30_days = inf\nmean_minutes = 1", "per_30_days is inf: expected a number from 0 to 10,000"),
        (f"{OUTAGE}per_30_days = 1\nmean_minutes = inf", "mean_minutes is inf: expected"),
        (f"{OUTAGE}per_30_days = nan\nmean_minutes = 1", "per_30_days is nan: expected"),
        (f"{OUTAGE}per_30_days = 1e9\nmean_minutes = 1", "per_30_days is 1000000000.0: expected"),
        ("days = inf", "days is inf: expected a number from 0.01 to 3,660"),
        ("days = nan", "days is nan"),
        (f"clients = {'1' * 5000}", "is not TOML: it has a whole number of more than 64 bits"),
        (f"clients = 0x{'f' * 5000}", "is not TOML: it has a whole number of more than 64 bits"),
        (f"clients = {'[' * 5000}", "is not TOML: it is nested too deeply"),
        (
            "[pairing]\n" + "\n".join(f"{name} = [{FIFTY_NINE}]" for name in OPTIONS),
            "12,117,361 combinations",
        ),
    ],
)
def test_a_wrong_fleet_is_one_sentence(text: str, says: str) -> None:
    with pytest.raises(FleetError) as caught:
        parse_fleet(text, "fleet.toml")
    assert says in str(caught.value)
    assert "fleet.toml" in str(caught.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"#" * (MAX_FILE_BYTES + 1), "{path} has more than 1,048,576 bytes"),
        (b"\xff", "{path} is not TOML"),
        (None, "Cannot read the {noun} {path}: No such file"),
    ],
)
@pytest.mark.parametrize("words", [("simulate",), ("cost", "forecast"), ("cost", "estimate", "--tariff-file")])
def test_a_file_that_is_none_is_refused(
    words: tuple[str, ...], content: bytes | None, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "file.toml"
    if content is not None:
        path.write_bytes(content)
    assert run([*words, str(path)]) == 2
    said = capsys.readouterr().err
    assert says.format(path=path, noun="tariff" if "--tariff-file" in words else "fleet") in said
    assert said.count("\n") == 1


def test_the_costs_page_lists_every_key_of_a_fleet() -> None:
    page = (Path(__file__).parents[3] / "docs" / "costs.md").read_text(encoding="utf-8")
    keys = [name for kind in (FleetPlan, PairingChoice, OutageKind) for name in kind.__struct_fields__]
    assert [key for key in keys if f"`{key}`" not in page and key not in ("outages", "choices")] == []


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: FleetPlan(clients=0), "clients is 0: expected a number from 1 to 1,000,000."),
        (lambda: FleetPlan(days=float("nan")), "days is nan: expected a number from 0.01 to 3,660."),
        (
            lambda: PairingChoice(ping_interval_seconds=0.5),
            "ping_interval_seconds is 0.5: expected a number from 1 to 1,800.",
        ),
        (lambda: OutageKind("both", 1, 0), "mean_minutes is 0: expected a number above 0, at most 1,000,000."),
        (lambda: OutageKind("moon", 1, 1), "scope is 'moon': expected one of entity, namespace, both."),  # type: ignore[arg-type]
    ],
)
def test_a_fleet_made_in_python_is_checked_as_well(make: Callable[[], object], says: str) -> None:
    with pytest.raises(FleetError) as caught:
        make()
    assert str(caught.value) == says
