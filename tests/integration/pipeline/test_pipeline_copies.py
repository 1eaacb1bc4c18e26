"""A record counts once, however often it is met: a file under two names, a line twice in a file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

from pairbus.ledger import CompletedOperation, LedgerWriter, Operation, Role, Route, closed_files
from pairbus.pipeline import schemas
from pairbus.pipeline.build import BuildResult, build
from pairbus.pipeline.gold import Pricing
from pairbus.pipeline.page import doubts
from pairbus.pipeline.report import report, summarise
from pairbus.pipeline.store import TableStore

pytestmark = pytest.mark.timeout(900)  # Spark on a busy machine

QUEUE = "contoso/x-servicebus-transfer/0"


def write_ledger(folder: Path) -> list[Path]:
    """Two messages through a backlog, one of them waits, and three directly; a client's file and a syphon's."""
    with LedgerWriter(folder) as client:
        client.record(CompletedOperation(Operation.SEND, "contoso", "orders", ["a", "b", "c"], route=Route.PRIMARY))
        client.record(
            CompletedOperation(
                Operation.DIVERT, "fabrikam", QUEUE, ["d", "e"], destination="orders", route=Route.BACKLOG, episode="e1"
            )
        )
    with LedgerWriter(folder, role=Role.SYPHON) as syphon:
        syphon.record(CompletedOperation(Operation.RECEIVE, "fabrikam", QUEUE, message_ids=["d"], destination="orders"))
        syphon.record(
            CompletedOperation(
                Operation.RESTORE, "contoso", "orders", message_ids=["d"], source=QUEUE, route=Route.SYPHON
            )
        )
        syphon.record(
            CompletedOperation(Operation.COMPLETE, "fabrikam", QUEUE, message_ids=["d"], destination="orders")
        )
    return closed_files(folder)


def counts(spark: SparkSession, folder: Path) -> dict[str, list[tuple[Any, ...]]]:
    """All gold tables, and silver without the names of files: which of two copies was kept means nothing."""
    store = TableStore(folder)
    manifest = store.manifest()
    frames = {"silver": store.read(spark, schemas.SILVER, manifest).drop("file")}
    for table in schemas.TABLES:
        if table not in (schemas.SILVER, schemas.QUARANTINE):
            frames[table.name] = store.read(spark, table, manifest)
    return {name: sorted((tuple(row) for row in frame.collect()), key=repr) for name, frame in frames.items()}


def table(spark: SparkSession, folder: Path, of: schemas.Table) -> list[Row]:
    store = TableStore(folder)
    return store.read(spark, of).collect()


def quarantined(spark: SparkSession, folder: Path) -> list[tuple[str, str]]:
    store = TableStore(folder)
    rows = store.read(spark, schemas.QUARANTINE).collect()
    return sorted((row["file"], row["reason"]) for row in rows)


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ledger")
    write_ledger(folder)
    return folder


@pytest.fixture(scope="module")
def clean(spark: SparkSession, ledger: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    assert build(spark, ledger, folder).quarantined == 0
    return folder


def test_copies_in_one_build_count_once(spark: SparkSession, ledger: Path, clean: Path, tmp_path: Path) -> None:
    """A file under a second name, and one whose last two lines are there twice, beside a line that is broken."""
    client, syphon = (shutil.copy2(path, tmp_path) for path in closed_files(ledger))
    folder = tmp_path / "ledger"
    folder.mkdir()
    shutil.copy2(client, folder / "a.jsonl")
    shutil.copy2(client, folder / "b.jsonl")
    lines = Path(syphon).read_text().splitlines()
    (folder / "syphon.jsonl").write_text("\n".join([*lines, *lines[-2:], "{torn"]) + "\n")
    of_client = len(Path(client).read_text().splitlines())
    result = build(spark, folder, tmp_path / "tables")
    assert (result.records, result.quarantined) == (of_client + len(lines), of_client + 2 + 1)
    assert counts(spark, tmp_path / "tables") == counts(spark, clean)
    reasons = quarantined(spark, tmp_path / "tables")
    assert reasons.count(("b.jsonl", "recorded twice")) == of_client
    assert reasons.count(("syphon.jsonl", "recorded twice")) == 2
    assert reasons.count(("syphon.jsonl", "not a JSON object of the ledger's fields")) == 1
    told = report(spark, tmp_path / "tables")
    assert (told.summary.accepted, told.summary.diverted, told.summary.restored) == (5, 2, 1)
    assert told.summary.broken_lines == 1, "a copy is nothing that could not be read"
    assert [sentence for sentence in doubts(told) if "could not be read" in sentence]


def test_copies_of_what_an_earlier_build_read_count_once(
    spark: SparkSession, ledger: Path, clean: Path, tmp_path: Path
) -> None:
    """Alone, with other prices at the same time, then among new records of the same process."""
    client, syphon = closed_files(ledger)
    lines = client.read_text().splitlines(keepends=True)
    folder, tables = tmp_path / "ledger", tmp_path / "tables"
    folder.mkdir()
    (folder / "first.jsonl").write_text("".join(lines[:3]))
    build(spark, folder, tables)
    (folder / "again.jsonl").write_text("".join(lines[:2]))
    assert build(spark, folder, tables, pricing=Pricing(tariff="azure-cny")) == BuildResult(1, 0, 2, ())
    assert {row["currency"] for row in table(spark, tables, schemas.BILLS)} == {"CNY"}
    build(spark, folder, tables, pricing=Pricing())
    shutil.copy2(client, folder)
    shutil.copy2(syphon, folder)
    assert build(spark, folder, tables).quarantined == 3
    assert counts(spark, tables) == counts(spark, clean)
    assert {reason for _, reason in quarantined(spark, tables)} == {"recorded twice"}
    before = (tables / "CURRENT.json").read_bytes()
    assert build(spark, folder, tables).new_files == 0
    assert (tables / "CURRENT.json").read_bytes() == before


def test_numbers_between_those_that_were_read_are_new(
    spark: SparkSession, ledger: Path, clean: Path, tmp_path: Path
) -> None:
    """Threads may swap two numbers at the end of a file, and files may come in any order: no record is left out."""
    folder, tables = tmp_path / "ledger", tmp_path / "tables"
    folder.mkdir()
    lines = [line for path in closed_files(ledger) for line in path.read_text().splitlines(keepends=True)]
    for name, part in (("even", lines[::2]), ("odd", lines[1::2])):
        (folder / f"{name}.jsonl").write_text("".join(part))
        assert build(spark, folder, tables).quarantined == 0
    assert counts(spark, tables) == counts(spark, clean)


def test_a_ledger_without_tables_counts_copies_once(spark: SparkSession, ledger: Path, tmp_path: Path) -> None:
    folder = tmp_path / "ledger"
    shutil.copytree(ledger, folder)
    shutil.copy2(closed_files(ledger)[0], folder / "copy.jsonl")
    assert summarise(spark, folder) == summarise(spark, ledger)


def test_numbers_of_other_writers_are_told_apart_too(spark: SparkSession, tmp_path: Path) -> None:
    """Numbers need not follow each other, nor be small: a clock's, negative ones, the largest that is read."""
    numbers = [-(2**63), -65, -64, -1, 0, 63, 64, 1_774_900_000_000_000, 2**53]
    folder = tmp_path / "ledger"
    folder.mkdir()
    for name, some in (("a", numbers), ("b", numbers[1::2])):
        records: list[dict[str, Any]] = [
            {"v": 1, "n": n, "process": "till", "at_us": 1_774_900_000_000_000, "role": "client", "operation": "send"}
            | {"namespace": "contoso", "entity": "orders", "message_id": str(n)}
            for n in some
        ]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    result = build(spark, folder, tmp_path / "tables")
    assert (result.records, result.quarantined) == (len(numbers), len(numbers[1::2]))
