"""However often one builds, and however many files there were: the tables' folder keeps its bounds."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pairbus.pipeline import schemas
from pairbus.pipeline.build import build
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
    lines = store.read_quarantine(spark, schemas.QUARANTINE.schema, manifest).select("line").collect()
    assert sorted(row["line"] for row in lines) == [f"broken {number}" for number in range(1, 5)]
    store.sweep(manifest)
    kept = {int(path.name.removeprefix("batch=")) for path in (store.folder / "quarantine").glob("batch=*")}
    assert kept == set(manifest.quarantine)
    for path in away.iterdir():
        path.rename(ledger / path.name)
    assert build(spark, ledger, store.folder).new_files == 0
