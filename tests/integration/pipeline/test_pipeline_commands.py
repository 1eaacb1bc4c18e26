"""`pairbus ledger`, `pairbus cost` and `pairbus simulate`, as a user runs them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.commands import CommandProcess, command_process

from pairbus.cli.__main__ import run
from pairbus.ledger import CompletedOperation, LedgerWriter, Operation, Route
from pairbus.pipeline.gold import Pricing
from pairbus.pipeline.small_tables import JAVA_OPTIONS
from pairbus.pipeline.store import TableStore
from pairbus.testing import EmbeddedNamespace

pytestmark = pytest.mark.timeout(900)  # Spark on a busy machine

QUEUE = "contoso/x-servicebus-transfer/0"


@pytest.fixture(scope="module")
def pairbus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandProcess]:
    """In a process of its own: a command ends its Spark session, and must not end that of the tests. Its Spark works as
    a user's: it compiles plans, and adapts them while they run.
    """
    settings = tmp_path_factory.mktemp("spark-settings")
    (settings / "spark-defaults.conf").write_text(f"spark.driver.defaultJavaOptions {JAVA_OPTIONS}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_CONF_DIR", str(settings))
        with command_process() as commands:
            yield commands


def write_ledger(folder: Path) -> None:
    with LedgerWriter(folder) as writer:
        writer.record(CompletedOperation(Operation.SEND, "contoso", "orders", ["a", "b"], route=Route.PRIMARY))
        writer.record(
            CompletedOperation(
                Operation.DIVERT, "fabrikam", QUEUE, message_ids=["gone"], destination="orders", route=Route.BACKLOG
            )
        )
        writer.record(
            CompletedOperation(Operation.COMPLETE, "fabrikam", QUEUE, message_ids=["gone"], destination="orders")
        )


def test_a_report_names_what_is_lost_and_says_so_with_its_exit_code(pairbus: CommandProcess, tmp_path: Path) -> None:
    ledger, page = tmp_path / "ledger", tmp_path / "report.html"
    write_ledger(ledger)
    answer = pairbus.run("ledger", "report", str(ledger), "--output", str(page))
    assert answer.returncode == 1, answer.stderr
    lines = answer.stdout.splitlines()
    assert lines[:2] == [
        "1 of 3 accepted messages is lost.",
        "accepted 3: delivered 2, lost 1, duplicates 0",
    ]
    assert any(line.startswith("lost: gone for orders") for line in lines)
    assert "1 of 3 accepted messages is lost." in page.read_text()
    assert (tmp_path / "ledger-tables" / "CURRENT.json").exists()


def test_a_look_into_a_local_namespace_takes_its_certificate_along(tmp_path: Path) -> None:
    """In another process: Spark's workers inherit the connection string from the Java that the command starts."""
    with LedgerWriter(tmp_path / "ledger") as writer:
        writer.record(
            CompletedOperation(
                Operation.DIVERT, "fabrikam", QUEUE, message_ids=["m"], destination="orders", route=Route.BACKLOG
            )
        )
    with (
        EmbeddedNamespace("fabrikam", data=tmp_path / "fabrikam", process=True) as standby,
        command_process() as pairbus,
    ):
        with standby.admin() as admin:
            admin.create_queue(QUEUE)
        answer = pairbus.run(
            *("ledger", "report", str(tmp_path / "ledger"), "--look-into", "contoso"),
            *("--secondary", str(tmp_path / "fabrikam")),
        )
    assert answer.returncode == 1, answer.stderr
    assert answer.stderr == ""
    assert answer.stdout.splitlines()[:2] == [
        "1 of 1 accepted messages is lost.",
        "accepted 1: delivered 0, lost 1, duplicates 0",
    ]


def test_a_report_with_prices_of_its_own_leaves_the_tables_as_they_are(pairbus: CommandProcess, tmp_path: Path) -> None:
    """And a name that no namespace has is told, but no reason to refuse."""
    ledger = tmp_path / "ledger"
    write_ledger(ledger)
    answer = pairbus.run("ledger", "report", str(ledger), "--plan", "premium", "--connections", "contso=5", "--json")
    assert answer.returncode == 1, answer.stderr
    assert {line["plan"] for line in json.loads(answer.stdout)["bills"]} == {"premium"}
    assert answer.stderr == (
        "No namespace of the tables is called contso (they have contoso, fabrikam): "
        "its plans and connections are in no bill.\n"
    )
    assert TableStore(tmp_path / "ledger-tables").manifest().prices == Pricing().kept


def test_an_empty_ledger_is_said_to_be_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    for ledger in (str(tmp_path), ".", ".."):
        assert run(["ledger", "report", ledger]) == 2
        assert f"The ledger {ledger} has no records yet" in capsys.readouterr().err


def test_what_spark_cannot_do_is_one_sentence_and_no_answer(pairbus: CommandProcess, tmp_path: Path) -> None:
    """Not 1: that would say that a message is lost."""
    write_ledger(tmp_path / "ledger")
    (tmp_path / "tables").write_text("in the way")
    answer = pairbus.run("ledger", "report", str(tmp_path / "ledger"), "--tables", str(tmp_path / "tables"))
    assert answer.returncode == 2, answer.stderr
    assert answer.stderr.count("\n") == 1
    assert "Traceback" not in answer.stderr


def test_a_simulation_prints_its_sweep(pairbus: CommandProcess, tmp_path: Path) -> None:
    fleet = tmp_path / "fleet.toml"
    fleet.write_text("runs = 3\n[pairing]\nfailover_interval_seconds = [0, 600]\n")
    answer = pairbus.run("simulate", str(fleet), "--runs", "2", "--json")
    assert answer.returncode == 0, answer.stderr
    first, second = json.loads(answer.stdout)
    assert first["runs"] == second["runs"] == 2
    assert [r["options"]["failover_interval_seconds"] for r in (first, second)] == [0, 600]


def test_the_estimate_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cost", "estimate", "--explain"]) == 0
    shown = capsys.readouterr().out
    assert "idle receives  secondary        40      960   28,800" in shown
    assert "40 an hour, 960 a day, 28,800 in 30 days" in shown


def test_the_estimate_as_json_with_a_tariff_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = tmp_path / "own.toml"
    own.write_text(
        'name = "own"\nvalid_from = 2020-01-01\ncurrency = "EUR"\nsource = "me"\n'
        '[plans.standard]\noperations = [{ price_per_million = "1000000" }]\n'
    )
    assert run(["cost", "estimate", "--tariff-file", str(own), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["currency"], float(told["secondary_amount"])) == ("EUR", 28_810)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["cost", "estimate", "--clients", "0"], "--clients 0 is out of range: use a number from 1 to 1,000,000."),
        (["cost", "estimate", "--rate", "inf"], "--rate inf is out of range: use a number from 0 to 1,000,000,000."),
        (["cost", "estimate", "--rate", "nan", "--outage-hours", "1"], "--rate nan is out of range"),
        (["cost", "estimate", "--rate=-1"], "--rate -1.0 is out of range"),
        (
            ["cost", "estimate", "--outage-hours", "nan"],
            "--outage-hours nan is out of range: use a number from 0 to 720",
        ),
        (["cost", "estimate", "--outage-hours=-2"], "--outage-hours -2.0 is out of range"),
        (["cost", "estimate", "--outage-hours", "721"], "--outage-hours 721.0 is out of range"),
        (
            ["cost", "estimate", "--outages", "3", "--outage-hours", "300"],
            "are 900 hours, but 30 days have 720: use less.",
        ),
        (["cost", "estimate", "--outages=-1"], "--outages -1 is out of range"),
        (["cost", "estimate", "--ping-interval", "inf"], "--ping-interval inf is out of range: use a number from 1"),
        (["cost", "estimate", "--ping-interval", "nan"], "--ping-interval nan is out of range"),
        (["cost", "estimate", "--message-bytes", "0"], "--message-bytes 0 is out of range: use a number from 1"),
        (["cost", "estimate", "--plan", "gold"], "no plan 'gold'"),
        (["cost", "estimate", "--tariff", "other"], "no tariff 'other'"),
        (["cost", "estimate", "--tariff-file", "missing.toml"], "Cannot read the tariff missing.toml"),
        (["ledger", "report", "missing"], "The ledger folder missing does not exist"),
        (["ledger", "report", ".", "--from", "yesterday"], "--from 'yesterday' is not a day"),
        (
            ["ledger", "report", ".", "--look-into", "contoso"],
            "--secondary is missing, and neither PAIRBUS_SECONDARY nor",
        ),
        (["ledger", "report", ".", "--secondary", "standby"], "--secondary works only with --look-into"),
        (
            ["ledger", "report", ".", "--from", "2026-03-02", "--to", "2026-03-01"],
            "--from 2026-03-02 is after --to 2026-03-01: put the earlier day first.",
        ),
        (["ledger", "build", "missing"], "The ledger folder missing does not exist"),
        (["simulate", "missing.toml"], "Cannot read the fleet missing.toml"),
    ],
)
def test_wrong_input_is_one_sentence(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PAIRBUS_SECONDARY", raising=False)
    assert run(words) == 2
    told = capsys.readouterr().err
    assert says in told
    assert told.count("\n") == 1


@pytest.mark.parametrize("entry", ["contoso", "=5", "contoso=", "contoso=-1", "contoso=many", "contoso=nan"])
def test_connections_that_are_none_are_refused(tmp_path: Path, entry: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ledger", "build", str(tmp_path), "--connections", entry]) == 2
    assert "write it as contoso=5000" in capsys.readouterr().err
