"""The ledger's writer: what is recorded is in a published file, and the disk never reaches the caller."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from pairbus.ledger import (
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
    scribe,
)

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
            Operation.DIVERT,
            "fabrikam",
            "contoso/x-servicebus-transfer/3",
            outcome=Outcome.UNKNOWN,
            message_id="m-1",
            size=70_000,
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
        writer.record_batch(Operation.SEND, "contoso", "orders", ["a", None, "c"], sizes=[1, 2, 3], latency_us=9)
        writer.record_batch(Operation.SEND, "contoso", "orders", [])
    records = operations(tmp_path)
    assert [(r.message_id, r.bytes, r.latency_us) for r in records] == [
        ("a", 1, 9),
        (None, 2, 9),
        ("c", 3, 9),
    ]
    assert len({r.n for r in records}) == 3


def test_a_batch_with_another_number_of_sizes_is_refused(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path) as writer, pytest.raises(ValueError, match="2 message ids and 1 sizes"):
        writer.record_batch(Operation.SEND, "contoso", "orders", ["a", "b"], sizes=[1])


def test_a_closed_ledger_has_first_and_last_words_and_no_thread(tmp_path: Path) -> None:
    before = threading.active_count()
    writer = LedgerWriter(tmp_path)
    writer.record(Operation.SEND, "contoso", "orders")
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
    writer.record(Operation.SEND, "contoso", "orders")
    writer.record_batch(Operation.SEND, "contoso", "orders", ["a", "b"])
    assert writer.unrecorded == 3


def test_many_threads_lose_nothing(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path, limits=LedgerLimits(roll_bytes=20_000)) as writer:

        def work(worker: int) -> None:
            for i in range(500):
                writer.record(Operation.SEND, "contoso", "orders", message_id=f"{worker}-{i}")

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
        writer.record(Operation.SEND, "contoso", "orders", message_id="now")
        assert writer.flush()
        (path,) = open_files(tmp_path)
        assert read(path)[-1].message_id == "now"


def test_a_file_is_published_when_its_time_is_over(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path, limits=LedgerLimits(roll_seconds=0.01, flush_seconds=0.001)) as writer:
        writer.record(Operation.SEND, "contoso", "orders", message_id="first")
        wait_until(lambda: len(closed_files(tmp_path)) == 1)
        assert [r.message_id for r in operations(tmp_path)] == ["first"]


def test_salted_ids_match_each_other_and_hide_the_id(tmp_path: Path) -> None:
    for folder, salt in (("a", b"12345678"), ("b", b"12345678"), ("c", b"another-salt")):
        with LedgerWriter(tmp_path / folder, id_salt=salt) as writer:
            writer.record(Operation.SEND, "contoso", "orders", message_id="secret-order")
            writer.record(Operation.PING, "contoso", "orders")
    (a, ping), (b, _), (c, _) = (operations(tmp_path / folder) for folder in "abc")
    assert a.message_id == b.message_id != c.message_id
    assert a.id_hashed
    assert ping.message_id is None
    assert "secret-order" not in closed_files(tmp_path / "a")[0].read_text()


@pytest.mark.parametrize("salt", [b"short", b"x" * 65])
def test_a_salt_of_a_wrong_length_is_refused(tmp_path: Path, salt: bytes) -> None:
    with pytest.raises(ValueError, match="id_salt has"):
        LedgerWriter(tmp_path, id_salt=salt)


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
    monkeypatch.setattr(scribe, "_RETRY_SECONDS", 0.01)
    limits = LedgerLimits(flush_seconds=0.001, pending_records=50)
    with LedgerWriter(tmp_path, limits=limits) as writer:
        writer.record(Operation.SEND, "contoso", "orders", message_id="first")
        wait_until(lambda: disk.refused > 0)
        for i in range(200):
            writer.record(Operation.SEND, "contoso", "orders", message_id=str(i))
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


def test_a_disk_that_stays_full_does_not_keep_close_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(os, "write", FullDisk(room=0))
    writer = LedgerWriter(tmp_path)
    writer.record(Operation.SEND, "contoso", "orders")
    writer.record_batch(Operation.SEND, "contoso", "orders", ["a", "b"])
    writer.close()
    assert writer.unrecorded == 3
    assert "closed without 3 operations" in caplog.text


def test_the_folder_keeps_its_limit_and_old_files_stay(tmp_path: Path) -> None:
    (tmp_path / "old.000001.jsonl").write_bytes(b"x" * 5000)
    with LedgerWriter(tmp_path, limits=LedgerLimits(folder_bytes=5000)) as writer:
        writer.record(Operation.SEND, "contoso", "orders")
        assert not writer.flush(timeout=0.05)
    assert [p.name for p in tmp_path.iterdir()] == ["old.000001.jsonl"]


def test_oldest_files_are_dropped_only_when_told_so_and_counted(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path) as writer:
        writer.record_batch(Operation.SEND, "contoso", "orders", [str(i) for i in range(20)])
    (old,) = closed_files(tmp_path)
    limits = LedgerLimits(folder_bytes=old.stat().st_size + 10, drop_oldest=True)
    with LedgerWriter(tmp_path, limits=limits) as writer:
        writer.record(Operation.SEND, "contoso", "orders", message_id="new")
    assert not old.exists()
    records = read_folder(tmp_path)
    assert [(r.count, r.cause) for r in records if r.operation is Operation.GAP] == [(20, "dropped")]
    assert [r.message_id for r in records if r.operation is Operation.SEND] == ["new"]


def test_what_a_killed_process_wrote_is_published_by_the_next_one(tmp_path: Path) -> None:
    program = """
        import sys, time
        from pairbus.ledger import LedgerWriter, Operation
        writer = LedgerWriter(sys.argv[1])
        writer.record(Operation.SEND, "contoso", "orders", message_id="kept")
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


def test_exit_without_close_publishes(tmp_path: Path) -> None:
    program = """
        import sys
        from pairbus.ledger import LedgerWriter, Operation
        LedgerWriter(sys.argv[1]).record(Operation.SEND, "contoso", "orders", message_id="kept")
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program), str(tmp_path)], check=True)
    words = [record.operation for record in read_folder(tmp_path)]
    assert words == [Operation.OPEN, Operation.SEND, Operation.CLOSE]


def test_a_forked_child_records_under_its_own_name(tmp_path: Path) -> None:
    program = """
        import os, sys
        from pairbus.ledger import LedgerWriter, Operation
        writer = LedgerWriter(sys.argv[1])
        writer.record(Operation.SEND, "contoso", "orders", message_id="parent")
        child = os.fork()
        if child == 0:
            writer.record(Operation.SEND, "contoso", "orders", message_id="child")
            writer.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        writer.record(Operation.SEND, "contoso", "orders", message_id="parent")
        writer.close()
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program), str(tmp_path)], check=True, timeout=60)
    sent = [(r.process, r.message_id) for r in operations(tmp_path)]
    assert sorted(message_id or "" for _, message_id in sent) == ["child", "parent", "parent"]
    assert len({process for process, _ in sent}) == 2


def test_ledger_files_are_private(tmp_path: Path) -> None:
    folder = tmp_path / "ledger"
    with LedgerWriter(folder) as writer:
        writer.record(Operation.SEND, "contoso", "orders")
    assert folder.stat().st_mode & 0o077 == 0
    assert all(path.stat().st_mode & 0o077 == 0 for path in folder.iterdir())


def test_backlog_queues_are_known_by_their_path() -> None:
    assert is_backlog_queue("contoso/X-ServiceBus-Transfer/0")
    assert not is_backlog_queue("orders")
