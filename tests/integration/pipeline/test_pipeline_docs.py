"""The documents about the ledger, the tables and the costs say what the code does."""

from __future__ import annotations

import re
import runpy
from datetime import date
from pathlib import Path

import msgspec
import pytest

from pairbus.costs import Fleet, OutageScenario, billed_operations, estimate, parse_tariff, shipped_tariffs, tariff_for
from pairbus.ledger import LedgerLimits, Operation, Outcome, Record
from pairbus.pipeline.fleet import RunResult, parse_fleet

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
LEDGER = (DOCS / "reference" / "ledger.md").read_text()
COSTS = (DOCS / "costs.md").read_text()


def first_cells(text: str, heading: str) -> list[str]:
    """The first column of the table whose first heading is `heading`, without back-quotes."""
    table = text.split(f"| {heading} |", 1)[1].split("\n\n", 1)[0]
    return [line.split("|")[1].strip() for line in table.splitlines()[2:]]


def names(cells: list[str]) -> list[str]:
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


def test_the_data_dictionary_is_written_from_the_schemas() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "generate_tables_reference.py"))
    page = (DOCS / "reference" / "tables.md").read_text()
    assert page == script["page"](), "run scripts/generate_tables_reference.py"


def test_every_field_of_a_record_is_described() -> None:
    assert names(first_cells(LEDGER, "field")) == list(Record.__struct_fields__)


def test_every_operation_is_described_with_what_it_is_billed() -> None:
    table = LEDGER.split("| operation | billed |", 1)[1].split("\n\n", 1)[0]
    described = {}
    for line in table.splitlines()[2:]:
        cells = [cell.strip() for cell in line.split("|")]
        described[cells[1].strip("`")] = cells[2]
    expected = {}
    for operation in Operation:
        small, large = (billed_operations(operation, size, Outcome.OK) for size in (1, 70_000))
        expected[operation.value] = "no" if not small else "once" if small == large else "per started 64 KB"
    assert described == expected


def test_every_limit_is_described() -> None:
    assert names(first_cells(LEDGER, "limit (`LedgerLimits`)")) == list(LedgerLimits.__dataclass_fields__)


def test_the_line_shown_is_a_record() -> None:
    (line,) = re.findall(r"^\{.*\}$", LEDGER, flags=re.MULTILINE)
    record = msgspec.json.decode(line, type=Record)
    assert (record.operation, record.destination) == (Operation.DIVERT, "orders")


def test_the_tariff_shown_is_a_tariff() -> None:
    text = (DOCS / "reference" / "tariffs.md").read_text()
    (shown,) = re.findall(r"```toml\n(.*?)```", text, flags=re.DOTALL)
    assert set(parse_tariff(shown, "the documentation").plans) == {"standard", "premium"}


def test_the_fleet_shown_is_a_fleet() -> None:
    (shown,) = re.findall(r"```toml\n(.*?)```", COSTS, flags=re.DOTALL)
    assert len(parse_fleet(shown, "the documentation").choices) == 6


def test_the_results_described_are_those_there_are() -> None:
    described = set(names(first_cells(COSTS, "result")))
    known = {*RunResult.__dataclass_fields__, "availability", "availability_without_pairing"}
    assert described <= known
    assert known - described == {"outages", "offered", "refused_without_pairing"}


def test_the_worked_examples_are_what_the_estimate_says() -> None:
    tariff = tariff_for(shipped_tariffs(), "azure-usd", date(2026, 1, 1))
    outage = OutageScenario(hours=2, messages_per_second=50, message_bytes=70_000)
    result = estimate(Fleet(clients=20, entities=3), tariff, outage=outage)
    numbers = {(line.cause, line.namespace): line.per_30_days for line in result.lines}
    for number in (28_800, numbers["pings", "primary"], numbers["diverted messages", "primary"]):
        assert f"**{number:,}**" in COSTS


def test_the_program_shown_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", COSTS, flags=re.DOTALL)
    exec(compile(program, "docs/costs.md", "exec"), {})
    assert "28,800 in 30 days" in capsys.readouterr().out
