"""The ledger's writer: what is recorded is in a published file, and the disk never reaches the caller."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest

from pairbus.ledger import (
    CompletedOperation,
    LedgerLimits,
    LedgerWriter,
    Operation,
    Outcome,
    Record,
    Role,
    Route,
    closed_files,
    is_backlog_queue,
    open_files,
    publish_orphans,
)
from pairbus.ledger.files import files_as_they_are, give_final_name
from pairbus.ledger.records import hashed_id

LEDGER_WORDS = {Operation.OPEN, Operation.CLOSE, Operation.GAP}


def read(path: Path) -> list[Record]:
    return [msgspec.json.decode(line, type=Record) for line in path.read_bytes().splitlines()]


def read_folder(folder: Path) -> list[Record]:
    return [record for path in closed_files(folder) for record in read(path)]


def operations(folder: Path) -> list[Record]:
    return [record for record in read_folder(folder) if record.operation not in LEDGER_WORDS]


def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition never held"
        threading.Event().wait(0.005)


def test_a_record_keeps_every_field(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path) as writer:
        writer.record(
            CompletedOperation(
                Operation.DIVERT,
                "fabrikam",
                "contoso/x-servicebus-transfer/3",
                outcome=Outcome.UNKNOWN,
                message_ids=["m-1"],
                sizes=[70_000],
                latency_us=1234,
                route=Route.BACKLOG,
                destination="orders",
                source="there",
                error="OperationTimeoutError",
                episode="e-1",
                billed=2,
                state_from="healthy",
                state_to="suspect",
                cause="timeout",
                role=Role.SYPHON,
                at_us=1_700_000_000_000_000,
            )
        )
    (record,) = operations(tmp_path)
    assert record == Record(
        v=1,
        n=1,
        process=writer.process,
        at_us=1_700_000_000_000_000,
        role=Role.SYPHON,
        operation=Operation.DIVERT,
        namespace="fabrikam",
        entity="contoso/x-servicebus-transfer/3",
        destination="orders",
        source="there",
        route=Route.BACKLOG,
        outcome=Outcome.UNKNOWN,
        message_id="m-1",
        bytes=70_000,
        billed=2,
        error="OperationTimeoutError",
        latency_us=1234,
        episode="e-1",
        state_from="healthy",
        state_to="suspect",
        cause="timeout",
    )


def test_a_batch_is_one_record_for_each_message(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path) as writer:
        writer.record(
            CompletedOperation(Operation.SEND, "contoso", "orders", ["a", None, "c"], sizes=[1, 2, 3], latency_us=9)
        )
        writer.record(CompletedOperation(Operation.SEND, "contoso", "orders", []))
    records = operations(tmp_path)
    assert [(r.message_id, r.bytes, r.latency_us) for r in records] == [
        ("a", 1, 9),
        (None, 2, 9),
        ("c", 3, 9),
    ]
    assert len({r.n for r in records}) == 3


def test_a_batch_with_another_number_of_sizes_is_refused(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path) as writer, pytest.raises(ValueError, match="2 message ids and 1 sizes"):
        writer.record(CompletedOperation(Operation.SEND, "contoso", "orders", ["a", "b"], sizes=[1]))


def test_a_closed_ledger_has_first_and_last_words_and_no_thread(tmp_path: Path) -> None:
    before = threading.active_count()
    writer = LedgerWriter(tmp_path)
    writer.record(CompletedOperation(Operation.SEND, "contoso", "orders"))
    writer.close()
    writer.close()
    words = [record.operation for record in read_folder(tmp_path)]
    assert words == [Operation.OPEN, Operation.SEND, Operation.CLOSE]
    assert open_files(tmp_path) == []
    assert threading.active_count() == before


def test_a_writer_that_recorded_nothing_leaves_nothing(tmp_path: Path) -> None:
    LedgerWriter(tmp_path).close()
    assert list(tmp_path.iterdir()) == []


def test_recording_after_close_is_counted_and_harmless(tmp_path: Path) -> None:
    writer = LedgerWriter(tmp_path)
    writer.close()
    writer.record(CompletedOperation(Operation.SEND, "contoso", "orders"))
    writer.record(CompletedOperation(Operation.SEND, "contoso", "orders", ["a", "b"]))
    assert writer.unrecorded == 3


def test_many_threads_lose_nothing(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path, limits=LedgerLimits(roll_bytes=20_000)) as writer:

        def work(worker: int) -> None:
            for i in range(500):
                writer.record(CompletedOperation(Operation.SEND, "contoso", "orders", message_ids=[f"{worker}-{i}"]))

        threads = [threading.Thread(target=work, args=(worker,)) for worker in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    records = operations(tmp_path)
    assert {r.message_id for r in records} == {f"{w}-{i}" for w in range(8) for i in range(500)}
    assert len({r.n for r in records}) == len(records) == 4000
    assert len(closed_files(tmp_path)) > 1, "4,000 records do not fit in one file of 20,000 bytes"


def test_flush_makes_records_readable_before_the_file_is_published(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path, limits=LedgerLimits(flush_seconds=3600)) as writer:
        writer.record(CompletedOperation(Operation.SEND, "contoso", "orders", message_ids=["now"]))
        assert writer.flush()
        (path,) = open_files(tmp_path)
        assert read(path)[-1].message_id == "now"


def test_a_file_is_published_when_its_time_is_over(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path, limits=LedgerLimits(roll_seconds=0.01, flush_seconds=0.001)) as writer:
        writer.record(CompletedOperation(Operation.SEND, "contoso", "orders", message_ids=["first"]))
        wait_until(lambda: len(closed_files(tmp_path)) == 1)
        assert [r.message_id for r in operations(tmp_path)] == ["first"]


def test_salted_ids_match_each_other_and_hide_the_id(tmp_path: Path) -> None:
    for folder, salt in (("a", b"12345678"), ("b", b"12345678"), ("c", b"another-salt")):
        with LedgerWriter(tmp_path / folder, id_salt=salt) as writer:
            writer.record(CompletedOperation(Operation.SEND, "contoso", "orders", message_ids=["secret-order"]))
            writer.record(CompletedOperation(Operation.PING, "contoso", "orders"))
    (a, ping), (b, _), (c, _) = (operations(tmp_path / folder) for folder in "abc")
    assert a.message_id == b.message_id != c.message_id
    assert a.id_hashed
    assert ping.message_id is None
    assert "secret-order" not in closed_files(tmp_path / "a")[0].read_text()


@pytest.mark.parametrize("salt", [b"short", b"x" * 65])
def test_a_salt_of_a_wrong_length_is_refused(tmp_path: Path, salt: bytes) -> None:
    with pytest.raises(ValueError, match="id_salt has"):
        LedgerWriter(tmp_path, id_salt=salt)


def test_the_salt_may_be_in_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that clients, syphons on either engine and namespaces, which make their writers themselves, have the same."""
    monkeypatch.setenv("PAIRBUS_ID_SALT", "0123456789abcdef")
    with LedgerWriter(tmp_path) as writer:
        writer.record(CompletedOperation(Operation.SEND, "contoso", "orders", message_ids=["m"]))
    (record,) = operations(tmp_path)
    assert (record.message_id, record.id_hashed) == (hashed_id("m", b"0123456789abcdef"), True)
    monkeypatch.setenv("PAIRBUS_ID_SALT", "short")
    with pytest.raises(ValueError, match="PAIRBUS_ID_SALT has 5 bytes"):
        LedgerWriter(tmp_path)


def test_limits_must_be_positive() -> None:
    with pytest.raises(ValueError, match="roll_bytes is 0"):
        LedgerLimits(roll_bytes=0)


class FullDisk:
    """Stands in for os.write: takes a few bytes and then says there is no space, until there is."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.refused = 0
        self._write = os.write

    def __call__(self, descriptor: int, data: memoryview) -> int:
        if self.room <= 0:
            self.refused += 1
            raise OSError(errno.ENOSPC, "No space left on device")
        part = data[: min(len(data), self.room, 100)]
        self.room -= len(part)
        return self._write(descriptor, part)


def test_a_full_disk_stops_nobody_and_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FullDisk(room=150)
    monkeypatch.setattr(os, "write", disk)
    monkeypatch.setattr("pairbus.ledger.writer._RETRY_SECONDS", 0.01)
    limits = LedgerLimits(flush_seconds=0.001, pending_records=50)
    with LedgerWriter(tmp_path, limits=limits) as writer:
        writer.record(CompletedOperation(Operation.SEND, "contoso", "orders", message_ids=["first"]))
        wait_until(lambda: disk.refused > 0)
        for i in range(200):
            writer.record(CompletedOperation(Operation.SEND, "contoso", "orders", message_ids=[str(i)]))
        lost = writer.unrecorded
        assert lost >= 150
        for path in open_files(tmp_path):
            assert path.read_bytes() == b"", "half a line must not stay"
        disk.room = 1_000_000
        assert writer.flush()
    records = read_folder(tmp_path)
    gaps = sum(r.count for r in records if r.operation is Operation.GAP)
    written = [r for r in records if r.operation is Operation.SEND]
    assert gaps == lost
    assert len(written) + gaps == 201
    assert written[0].message_id == "first"


def test_the_messages_of_a_waiting_batch_count_against_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FullDisk(room=0)
    monkeypatch.setattr(os, "write", disk)
    monkeypatch.setattr("pairbus.ledger.writer._RETRY_SECONDS", 0.01)
    with LedgerWriter(tmp_path, limits=LedgerLimits(flush_seconds=0.001, pending_records=50)) as writer:
        writer.record(CompletedOperation(Operation.SEND, "contoso", "orders", message_ids=["first"]))
        wait_until(lambda: disk.refused > 0)
        writer.record(CompletedOperation(Operation.SEND, "contoso", "orders", [str(number) for number in range(50)]))
        writer.record(CompletedOperation(Operation.SEND, "contoso", "orders", message_ids=["one more"]))
        writer.record(CompletedOperation(Operation.SEND, "contoso", "orders", ["two", "more"]))
        assert writer.unrecorded == 3
        disk.room = 1_000_000
    written = [r.message_id for r in read_folder(tmp_path) if r.operation is Operation.SEND]
    assert written == ["first", *map(str, range(50))]


def test_a_disk_that_stays_full_does_not_keep_close_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(os, "write", FullDisk(room=0))
    writer = LedgerWriter(tmp_path)
    writer.record(CompletedOperation(Operation.SEND, "contoso", "orders"))
    writer.record(CompletedOperation(Operation.SEND, "contoso", "orders", ["a", "b"]))
    writer.close()
    assert writer.unrecorded == 3
    assert "closed; 3 operations were not recorded" in caplog.text


class RefusedStep:
    """Stands in for one step of a publication, which the disk refuses the first `times`."""

    def __init__(self, step: str, times: float, monkeypatch: pytest.MonkeyPatch) -> None:
        self.step = step
        self.times = times
        self.refused = 0
        self._fsync, self._rename = os.fsync, os.rename
        monkeypatch.setattr(os, "fsync", self.fsync)
        monkeypatch.setattr(os, "rename", self.rename)
        monkeypatch.setattr("pairbus.ledger.writer._RETRY_SECONDS", 0.01)

    def has_refused(self, times: int) -> bool:
        return self.refused >= times

    def fsync(self, descriptor: int) -> None:
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        self._meet("folder" if is_folder else "file")
        self._fsync(descriptor)

    def rename(self, old: Path, new: Path) -> None:
        if new.name.endswith(".jsonl"):
            self._meet("rename")
        self._rename(old, new)

    def _meet(self, step: str) -> None:
        if step == self.step and self.refused < self.times:
            self.refused += 1
            raise OSError(errno.EDQUOT, "Disk quota exceeded")


STEPS = ("file", "rename", "folder")
BY_TIME = LedgerLimits(roll_seconds=0.01, flush_seconds=0.001)
BY_TIME_SLOWLY = LedgerLimits(roll_seconds=0.5, flush_seconds=0.001)
BY_SIZE = LedgerLimits(roll_bytes=1, flush_seconds=0.001)


@pytest.mark.parametrize("limits", [BY_TIME, BY_SIZE], ids=["time", "size"])
@pytest.mark.parametrize("step", STEPS)
def test_a_publication_refused_once_is_made_up_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, limits: LedgerLimits
) -> None:
    disk = RefusedStep(step, 1, monkeypatch)
    with LedgerWriter(tmp_path, limits=limits) as writer:
        writer.record(CompletedOperation(Operation.SEND, "contoso", "orders", message_ids=["before"]))
        wait_until(lambda: disk.refused == 1)
        writer.record(CompletedOperation(Operation.SEND, "contoso", "orders", message_ids=["after"]))
        assert writer.flush()
        wait_until(lambda: [r.message_id for r in operations(tmp_path)] == ["before", "after"])
    assert [r.operation for r in read_folder(tmp_path) if r.operation is Operation.GAP] == []
    assert open_files(tmp_path) == []


@pytest.mark.parametrize("step", STEPS)
def test_a_publication_refused_for_ever_stops_neither_recording_nor_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    before = threading.active_count()
    with monkeypatch.context() as patched:
        disk = RefusedStep(step, float("inf"), patched)
        writer = LedgerWriter(tmp_path, limits=BY_TIME)
        for n in range(3):
            writer.record(CompletedOperation(Operation.SEND, "contoso", "orders", message_ids=[f"{n}"]))
            assert writer.flush()
            wait_until(partial(disk.has_refused, n + 1))
        writer.close()
    assert threading.active_count() == before
    assert writer.unrecorded == 0
    publish_orphans(tmp_path)
    assert [r.message_id for r in operations(tmp_path)] == ["0", "1", "2"]


def test_a_file_that_cannot_be_published_does_not_outgrow_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = threading.active_count()
    disk = RefusedStep("file", float("inf"), monkeypatch)
    writer = LedgerWriter(tmp_path, limits=BY_SIZE)
    writer.record(CompletedOperation(Operation.SEND, "contoso", "orders", message_ids=["before"]))
    wait_until(lambda: disk.refused > 0)
    writer.record(CompletedOperation(Operation.SEND, "contoso", "orders", ["a", "b"]))
    assert not writer.flush(timeout=0.05)
    writer.close()
    assert threading.active_count() == before
    assert writer.unrecorded == 2
    (path,) = open_files(tmp_path)
    assert [r.message_id for r in read(path)] == [None, "before"]


def test_a_file_deleted_while_it_was_written_is_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "ledger"
    with LedgerWriter(folder, limits=BY_TIME_SLOWLY) as writer:
        writer.record(CompletedOperation(Operation.SEND, "contoso", "orders", ["a", "b"]))
        assert writer.flush()
        shutil.rmtree(folder)
        folder.mkdir()
        wait_until(lambda: "was deleted" in caplog.text)
        writer.record(CompletedOperation(Operation.SEND, "contoso", "orders", message_ids=["after"]))
        assert writer.flush()
    assert [r.message_id for r in operations(folder)] == ["after"]
    assert [(r.count, r.cause) for r in read_folder(folder) if r.operation is Operation.GAP] == [(2, "refused")]


def test_a_file_moved_while_it_was_written_keeps_its_records(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder, elsewhere = tmp_path / "ledger", tmp_path / "elsewhere"
    elsewhere.mkdir()
    with LedgerWriter(folder, limits=BY_TIME_SLOWLY) as writer:
        writer.record(CompletedOperation(Operation.SEND, "contoso", "orders", message_ids=["before"]))
        assert writer.flush()
        (path,) = open_files(folder)
        path.rename(elsewhere / path.name)
        wait_until(lambda: "was moved" in caplog.text)
        writer.record(CompletedOperation(Operation.SEND, "contoso", "orders", message_ids=["after"]))
    assert [r.message_id for r in operations(folder)] == ["after"]
    (path,) = publish_orphans(elsewhere)
    assert [r.message_id for r in read(path)] == [None, "before"]


def test_the_thread_survives_what_nobody_thought_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    surprises = [RuntimeError("surprise")]
    fsync = os.fsync

    def surprise(descriptor: int) -> None:
        if surprises:
            raise surprises.pop()
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", surprise)
    monkeypatch.setattr("pairbus.ledger.writer._RETRY_SECONDS", 0.01)
    with LedgerWriter(tmp_path, limits=BY_TIME) as writer:
        writer.record(CompletedOperation(Operation.SEND, "contoso", "orders", message_ids=["before"]))
        wait_until(lambda: "failed unexpectedly" in caplog.text)
        writer.record(CompletedOperation(Operation.SEND, "contoso", "orders", message_ids=["after"]))
        assert writer.flush()
    assert [r.message_id for r in operations(tmp_path)] == ["before", "after"]


@pytest.mark.parametrize("salt", [None, b"12345678"])
@pytest.mark.parametrize("strange", ["\ud800", 5, UUID(int=7), b"\x01\xff"], ids=repr)
def test_an_id_that_is_no_text_is_recorded_as_text(tmp_path: Path, salt: bytes | None, strange: Any) -> None:
    with LedgerWriter(tmp_path, id_salt=salt) as writer:
        writer.record(CompletedOperation(Operation.SEND, "contoso", "orders", message_ids=["before"]))
        writer.record(CompletedOperation(Operation.SEND, "contoso", "orders", message_ids=[strange]))
        assert writer.flush()
        writer.record(CompletedOperation(Operation.SEND, "contoso", "orders", [strange, "after"]))
    ids = [r.message_id for r in operations(tmp_path)]
    assert len(ids) == 4
    assert ids[1] == ids[2]
    if salt is None:
        texts = {"\ud800": "\\ud800", 5: "5", UUID(int=7): str(UUID(int=7)), b"\x01\xff": "01ff"}
        assert ids == ["before", texts[strange], texts[strange], "after"]


def test_a_record_that_cannot_be_written_down_is_counted_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    impossible: Any = object()
    with LedgerWriter(tmp_path) as writer:
        writer.record(CompletedOperation(Operation.SEND, "contoso", "orders", message_ids=["before"]))
        writer.record(CompletedOperation(Operation.SEND, "contoso", "orders", sizes=[impossible]))
        writer.record(CompletedOperation(Operation.SEND, "contoso", impossible))
        writer.record(CompletedOperation(Operation.SEND, "contoso", "orders", message_ids=["after"]))
        assert writer.flush()
    records = read_folder(tmp_path)
    assert [r.message_id for r in records if r.operation is Operation.SEND] == ["before", "after"]
    assert sum(r.count for r in records if r.operation is Operation.GAP) == 2
    assert caplog.text.count("cannot encode a send") == 1


def test_the_folder_keeps_its_limit_and_old_files_stay(tmp_path: Path) -> None:
    (tmp_path / "old.000001.jsonl").write_bytes(b"x" * 5000)
    with LedgerWriter(tmp_path, limits=LedgerLimits(folder_bytes=5000)) as writer:
        writer.record(CompletedOperation(Operation.SEND, "contoso", "orders"))
        assert not writer.flush(timeout=0.05)
    assert [p.name for p in tmp_path.iterdir()] == ["old.000001.jsonl"]


def test_oldest_files_are_dropped_only_when_told_so_and_counted(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path) as writer:
        writer.record(CompletedOperation(Operation.SEND, "contoso", "orders", [str(i) for i in range(20)]))
    (old,) = closed_files(tmp_path)
    limits = LedgerLimits(folder_bytes=old.stat().st_size + 10, drop_oldest=True)
    with LedgerWriter(tmp_path, limits=limits) as writer:
        writer.record(CompletedOperation(Operation.SEND, "contoso", "orders", message_ids=["new"]))
    assert not old.exists()
    records = read_folder(tmp_path)
    gaps = [(r.count, r.cause, r.entity) for r in records if r.operation is Operation.GAP]
    assert gaps == [(20, "dropped", old.name)]
    assert [r.message_id for r in records if r.operation is Operation.SEND] == ["new"]


def test_what_a_killed_process_wrote_is_published_by_the_next_one(tmp_path: Path) -> None:
    program = """
        import sys, time
        from pairbus.ledger import CompletedOperation, LedgerWriter, Operation
        writer = LedgerWriter(sys.argv[1])
        writer.record(CompletedOperation(Operation.SEND, "contoso", "orders", ["kept"]))
        assert writer.flush()
        print("ready", flush=True)
        time.sleep(60)
    """
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        assert publish_orphans(tmp_path) == [], "its owner lives"
    finally:
        child.send_signal(signal.SIGKILL)
        child.communicate()
    (published,) = publish_orphans(tmp_path)
    assert [r.message_id for r in read(published)] == [None, "kept"]
    assert publish_orphans(tmp_path) == []


def test_a_file_that_cannot_be_published_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.000001.jsonl.open").touch()
    open_file = os.open

    def forbid(path: Path, flags: int, mode: int = 0o777) -> int:
        if Path(path).name.startswith("b."):
            raise PermissionError(errno.EACCES, "Permission denied")
        return open_file(path, flags, mode)

    monkeypatch.setattr(os, "open", forbid)
    with LedgerWriter(tmp_path) as writer:
        writer.record(CompletedOperation(Operation.SEND, "contoso", "orders", message_ids=["kept"]))
    assert [r.message_id for r in operations(tmp_path)] == ["kept"]
    assert [path.name for path in open_files(tmp_path)] == ["b.000001.jsonl.open"]
    assert "b.000001.jsonl.open of a process that died stays open: Permission denied" in caplog.text


def test_a_file_that_never_got_its_name_is_removed_unless_its_owner_lives(tmp_path: Path) -> None:
    for name in ("dead", "alive"):
        (tmp_path / f"{name}.000001.jsonl.open.new").touch()
    with (tmp_path / "alive.000001.jsonl.open.new").open() as alive:
        fcntl.flock(alive, fcntl.LOCK_EX)
        assert publish_orphans(tmp_path) == []
        assert [path.name for path in tmp_path.iterdir()] == ["alive.000001.jsonl.open.new"]


def test_exit_without_close_publishes(tmp_path: Path) -> None:
    program = """
        import sys
        from pairbus.ledger import CompletedOperation, LedgerWriter, Operation
        LedgerWriter(sys.argv[1]).record(CompletedOperation(Operation.SEND, "contoso", "orders", ["kept"]))
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program), str(tmp_path)], check=True)
    words = [record.operation for record in read_folder(tmp_path)]
    assert words == [Operation.OPEN, Operation.SEND, Operation.CLOSE]


def test_a_forked_child_records_under_its_own_name(tmp_path: Path) -> None:
    program = """
        import os, sys
        from pairbus.ledger import CompletedOperation, LedgerWriter, Operation
        writer = LedgerWriter(sys.argv[1])
        writer.record(CompletedOperation(Operation.SEND, "contoso", "orders", ["parent"]))
        child = os.fork()
        if child == 0:
            writer.record(CompletedOperation(Operation.SEND, "contoso", "orders", ["child"]))
            writer.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        writer.record(CompletedOperation(Operation.SEND, "contoso", "orders", ["parent"]))
        writer.close()
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program), str(tmp_path)], check=True, timeout=60)
    sent = [(r.process, r.message_id) for r in operations(tmp_path)]
    assert sorted(message_id or "" for _, message_id in sent) == ["child", "parent", "parent"]
    assert len({process for process, _ in sent}) == 2


WORKERS = {
    "process": """
        worker = context.Process(target=work, args=(0,))
        worker.start()
        worker.join()
    """,
    "pool": """
        with context.Pool(1) as pool:
            pool.map(work, [0])
            pool.close()
            pool.join()
    """,
    "executor": """
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            pool.submit(work, 0).result()
    """,
}


@pytest.mark.parametrize("method", ["fork", "forkserver"])
@pytest.mark.parametrize("kind", WORKERS)
def test_a_worker_that_ends_without_close_publishes(tmp_path: Path, kind: str, method: str) -> None:
    program = f"""
import multiprocessing, sys
from concurrent.futures import ProcessPoolExecutor
writer = None
def work(_):
    from pairbus.ledger import CompletedOperation, LedgerWriter, Operation
    own = writer or LedgerWriter(sys.argv[1])
    for n in range(5):
        own.record(CompletedOperation(Operation.DIVERT, "fabrikam", "orders", [f"worker {{n}}"]))
if __name__ == "__main__":
    context = multiprocessing.get_context("{method}")
    if "{method}" == "fork":
        from pairbus.ledger import CompletedOperation, LedgerWriter, Operation
        writer = LedgerWriter(sys.argv[1])
        writer.record(CompletedOperation(Operation.SEND, "contoso", "orders", ["parent"]))
        writer.flush()
{textwrap.indent(textwrap.dedent(WORKERS[kind]), "    ")}
"""
    file = tmp_path / "program.py"
    file.write_text(program)
    folder = tmp_path / "ledger"
    subprocess.run([sys.executable, str(file), str(folder)], check=True, timeout=60)
    of_worker = [r for r in read_folder(folder) if r.process != _process_of(folder, "parent")]
    assert [r.message_id for r in of_worker if r.operation is Operation.DIVERT] == [f"worker {n}" for n in range(5)]
    assert of_worker[-1].operation is Operation.CLOSE
    assert open_files(folder) == []


def _process_of(folder: Path, message_id: str) -> str | None:
    return next((r.process for r in operations(folder) if r.message_id == message_id), None)


def test_ledger_files_are_private(tmp_path: Path) -> None:
    folder = tmp_path / "ledger"
    with LedgerWriter(folder) as writer:
        writer.record(CompletedOperation(Operation.SEND, "contoso", "orders"))
    assert folder.stat().st_mode & 0o077 == 0
    assert all(path.stat().st_mode & 0o077 == 0 for path in folder.iterdir())


def test_backlog_queues_are_known_by_their_path() -> None:
    assert is_backlog_queue("contoso/X-ServiceBus-Transfer/0")
    assert not is_backlog_queue("orders")


@pytest.mark.parametrize("begun", [False, True], ids=["before the first record", "after some"])
@pytest.mark.parametrize("ids", [["a"], ["a", "b", "c"]], ids=["one message", "three messages"])
def test_a_record_that_is_made_while_the_writer_closes_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: bool, ids: list[str]
) -> None:
    writer = LedgerWriter(tmp_path)
    if begun:
        writer.record(CompletedOperation(Operation.SEND, "contoso", "orders"))
        assert writer.flush()

    def numbers_of_a_writer_that_closes() -> Iterator[int]:
        writer.close()
        yield from range(10, 20)

    monkeypatch.setattr(writer, "_numbers", numbers_of_a_writer_that_closes())
    writer.record(CompletedOperation(Operation.SEND, "contoso", "orders", ids))
    assert len(operations(tmp_path)) == begun
    assert writer.unrecorded == len(ids)


def test_a_file_that_is_published_while_others_are_read_is_read_once(tmp_path: Path) -> None:
    """Three files are open. While the second is copied, the first, which was copied, and the third are published."""
    folder, copies = tmp_path / "ledger", tmp_path / "copies"
    folder.mkdir()
    copies.mkdir()
    first, second, third = (folder / f"{name}.000001.jsonl.open" for name in "abc")
    first.write_bytes(b"first\nhalf a li")
    second.write_bytes(b"second\n" * 100_000)  # more than a pipe takes without its reader
    third.write_bytes(b"third\n")
    (folder / "z.000001.jsonl").write_bytes(b"old\n")
    copy = copies / "b.000001.jsonl"
    os.mkfifo(copy)

    def publish_others() -> None:
        with copy.open("rb") as pipe:
            give_final_name(first)
            give_final_name(third)
            content = pipe.read()
        copy.unlink()
        copy.write_bytes(content)

    reader = threading.Thread(target=publish_others)
    reader.start()
    found = files_as_they_are(folder, copies)
    reader.join()
    everything = b"".join(sorted(path.read_bytes() for path in found))
    assert everything == b"first\nold\n" + b"second\n" * 100_000 + b"third\n"
