"""However often one builds, and however many files there were: the tables' folder keeps its bounds."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pairbus.ledger import CompletedOperation, LedgerLimits, LedgerWriter, Operation, Route, closed_files
from pairbus.pipeline import schemas
from pairbus.pipeline.build import build
from pairbus.pipeline.report import report
from pairbus.pipeline.store import TableStore

pytestmark = pytest.mark.timeout(900)  # Spark on a busy machine


def test_quarantine_is_compacted_and_files_that_came_back_are_not_read_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    ledger, away = tmp_path / "ledger", tmp_path / "away"
    ledger.mkdir()
    away.mkdir()
    store, most = TableStore(tmp_path / "tables"), 0
    for number in range(1, 5):
        path = ledger / f"shop-4711-0badcafe.{number:06d}.jsonl"
        path.write_text(f"broken {number}\n")
        assert build(spark, ledger, store.folder, most_batches=2).quarantined == 1
        most = max(most, len(store.manifest().quarantine))
        path.rename(away / path.name)
    assert most == 2
    manifest = store.manifest()
    assert len(manifest.files) == 1
    assert manifest.departed == {"shop-4711-0badcafe": ((1, 3),)}
    lines = store.read(spark, schemas.QUARANTINE, manifest).select("line").collect()
    assert sorted(row["line"] for row in lines) == [f"broken {number}" for number in range(1, 5)]
    store.sweep(manifest)
    kept = {int(path.name.removeprefix("batch=")) for path in (store.folder / "quarantine").glob("batch=*")}
    assert kept == set(manifest.quarantine)
    for path in away.iterdir():
        path.rename(ledger / path.name)
    assert build(spark, ledger, store.folder).new_files == 0


def test_what_was_dropped_after_a_build_had_read_it_is_not_missing(spark: SparkSession, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    with LedgerWriter(ledger) as writer:
        writer.record(CompletedOperation(Operation.SEND, "contoso", "orders", ["a", "b", "c"], route=Route.PRIMARY))
    (old,) = closed_files(ledger)
    build(spark, ledger, tmp_path / "early")
    with LedgerWriter(ledger, limits=LedgerLimits(folder_bytes=old.stat().st_size + 10, drop_oldest=True)) as writer:
        writer.record(CompletedOperation(Operation.SEND, "contoso", "orders", message_ids=["d"], route=Route.PRIMARY))
    assert not old.exists()
    for tables, accepted, unrecorded in (("early", 4, 0), ("late", 1, 3)):
        build(spark, ledger, tmp_path / tables)
        summary = report(spark, tmp_path / tables).summary
        assert (summary.accepted, summary.unrecorded) == (accepted, unrecorded), tables
