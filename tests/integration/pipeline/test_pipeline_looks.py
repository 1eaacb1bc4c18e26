"""A syphon's looks into a backlog queue are billed, and the pairing's to pay."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pairbus.ledger import CompletedOperation, LedgerWriter, Operation, Outcome, Role
from pairbus.pipeline import schemas
from pairbus.pipeline.build import build
from pairbus.pipeline.store import TableStore

pytestmark = pytest.mark.timeout(900)  # Spark on a busy machine

QUEUE = "contoso/x-servicebus-transfer/0"
AT = 1_767_225_600_000_000


def test_looks_have_a_cause_and_empty_ones_are_billed_beside_a_namespaces_own_ledger(
    spark: SparkSession, tmp_path: Path
) -> None:
    with LedgerWriter(tmp_path / "ledger", role=Role.SYPHON) as syphon:
        syphon.record(
            CompletedOperation(Operation.PEEK, "fabrikam", QUEUE, message_ids=["m"], sizes=[70_000], at_us=AT)
        )
        syphon.record(CompletedOperation(Operation.PEEK, "fabrikam", QUEUE, outcome=Outcome.EMPTY, at_us=AT))
        syphon.record(CompletedOperation(Operation.PEEK, "fabrikam", "inbox", message_ids=["m"], at_us=AT))
    with LedgerWriter(tmp_path / "ledger", role=Role.NAMESPACE) as namespace:
        namespace.record(
            CompletedOperation(Operation.PEEK, "fabrikam", QUEUE, message_ids=["m"], sizes=[70_000], at_us=AT)
        )
    store = TableStore(tmp_path / "tables")
    build(spark, tmp_path / "ledger", store.folder)
    daily = store.read(spark, schemas.OPERATIONS_DAILY)
    rows = {(r["role"], r["entity"], r["outcome"]): (r["cause"], r["in_bill"], r["billed"]) for r in daily.collect()}
    assert rows == {
        ("syphon", QUEUE, "ok"): ("diverted messages", False, 2),
        ("syphon", QUEUE, "empty"): ("idle receives", True, 1),
        ("syphon", "inbox", "ok"): (None, False, 1),
        ("namespace", QUEUE, "ok"): ("diverted messages", True, 2),
    }
