"""The way of records from executors to the driver's ledger, without Spark between."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pairbus.ledger import CompletedOperation, Operation, closed_files, open_files
from pairbus.pipeline.outcome_rows import DriversLedger, FileRow, Journal, RecordsError, journal_folder, left_behind


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The executor's own disk."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def record(journal: Journal, *ids: str) -> None:
    journal.writer.record(CompletedOperation(Operation.RESTORE, "contoso", "orders", ids))


def lines(ledger: DriversLedger) -> int:
    text = b"".join(path.read_bytes() for path in closed_files(ledger.folder))
    return text.count(b'"operation":"restore"')


DYING_TASK = """
import os, signal
from pairbus.ledger import CompletedOperation, Operation
from pairbus.pipeline.outcome_rows import Journal
journal = Journal("key")
journal.writer.record(CompletedOperation(Operation.RESTORE, "contoso", "orders", ["m1", "m2"]))
journal.writer.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_task_recorded_is_in_the_ledger_once_and_then_nowhere_else(machine: Path) -> None:
    ledger = DriversLedger(machine / "ledger")
    journal = Journal("key")
    record(journal, "m1", "m2", "m3")
    rows = list(journal.close())
    assert [ledger.store(row) for row in rows * 2] == [True, False]
    assert lines(ledger) == 3
    # A driver that died before it said so is given the file again: it is the same file.
    again = DriversLedger(machine / "ledger")
    assert [again.store(row) for row in left_behind("key", ())] == [True]
    assert lines(again) == 3
    assert list(left_behind("key", again.stored)) == []
    assert closed_files(journal_folder("key")) == []
    assert lines(again) == 3


@pytest.mark.parametrize("found_by", ["the next task", "gathering"])
def test_what_a_killed_task_recorded_is_handed_over_by_others(machine: Path, found_by: str) -> None:
    child = subprocess.run([sys.executable, "-c", DYING_TASK], env={**os.environ, "TMPDIR": str(machine)})
    assert child.returncode == -signal.SIGKILL
    assert len(open_files(journal_folder("key"))) == 1
    ledger = DriversLedger(machine / "ledger")
    rows = list(Journal("key").close() if found_by == "the next task" else left_behind("key", ()))
    assert [ledger.store(row) for row in rows] == [True]
    assert lines(ledger) == 2


def test_a_task_that_failed_has_closed_its_file(machine: Path) -> None:
    journal = Journal("key")
    record(journal, "m1")
    journal.close()  # what it hands over goes nowhere, as when the task fails
    assert open_files(journal_folder("key")) == []
    assert len(list(left_behind("key", ()))) == 1


def test_a_living_task_is_left_alone(machine: Path) -> None:
    busy = Journal("key")
    record(busy, "m1")
    busy.writer.flush()
    other = Journal("key")
    record(other, "m2")
    assert len(list(other.close())) == 1
    assert len(list(left_behind("key", ()))) == 1
    assert len(list(busy.close())) == 1


def test_names_from_executors_are_not_paths(machine: Path) -> None:
    ledger = DriversLedger(machine / "ledger")
    for name in ("../evil.000001.jsonl", "/tmp/x.000001.jsonl", "x.jsonl", "x.000001.jsonl.open"):
        with pytest.raises(ValueError, match=r"expected PROCESS\.NUMBER\.jsonl"):
            ledger.store(FileRow(file=name, content=b""))


def test_a_ledger_without_room_leaves_the_records_with_the_executors(
    machine: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = DriversLedger(machine / "ledger")
    ledger.folder.rmdir()
    journal = Journal("key")
    record(journal, "m1")
    (row,) = journal.close()
    assert not ledger.store(row)
    assert "stay on the executors" in caplog.text
    assert [one["file"] for one in left_behind("key", ledger.stored)] == [row["file"]]
    ledger.folder.mkdir()
    assert ledger.store(row)


def test_a_folder_that_others_can_write_to_is_refused(machine: Path) -> None:
    journal_folder("key").parent.chmod(0o777)
    with pytest.raises(RecordsError, match=r"other users can write to it .* set TMPDIR"):
        Journal("key")


def test_a_folder_that_others_can_read_is_refused(machine: Path) -> None:
    for folder in (journal_folder("key"), journal_folder("key").parent):
        folder.chmod(0o750)
        with pytest.raises(RecordsError, match=r"other users can read it .* set TMPDIR"):
            Journal("key")
        folder.chmod(0o700)
    Journal("key").close()
