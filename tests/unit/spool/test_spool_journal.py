"""The journal: order, durability, its limit, and its owner."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pairbus.errors import SpoolError, SpoolFullError, SpoolInUseError
from pairbus.spool import SpoolJournal

LIMIT = 1024 * 1024
SYNCED_AT_EACH_COMMIT = 2
"""SQLite's number for `synchronous = FULL`; with less, what was committed may be gone after a loss of power."""


def test_the_messages_of_an_entity_leave_in_the_order_they_came(tmp_path: Path) -> None:
    journal = SpoolJournal(tmp_path, limit_bytes=LIMIT)
    journal.append("orders", [b"1", b"2"], 10)
    journal.append("events", [b"3"], 11)
    journal.append("orders", [b"4"], 12)
    assert journal.entities() == ["orders", "events"]
    entries = journal.oldest("orders", most=100, most_bytes=1000)
    assert [(entry.entity, entry.raw, entry.stored_ms) for entry in entries] == [
        ("orders", b"1", 10),
        ("orders", b"2", 10),
        ("orders", b"4", 12),
    ]
    beyond = journal.oldest("orders", after=entries[0].number, most=1, most_bytes=1000)
    assert beyond == entries[1:2]
    journal.remove(entries)
    assert journal.entities() == ["events"]
    assert journal.oldest("orders", most=100, most_bytes=1000) == []
    assert journal.depth == 1
    journal.close()


def test_oldest_is_bounded_but_gives_at_least_one(tmp_path: Path) -> None:
    journal = SpoolJournal(tmp_path, limit_bytes=LIMIT)
    journal.append("orders", [b"x" * 100] * 5, 0)
    assert len(journal.oldest("orders", most=3, most_bytes=1000)) == 3
    assert len(journal.oldest("orders", most=100, most_bytes=250)) == 2
    assert len(journal.oldest("orders", most=100, most_bytes=10)) == 1
    journal.close()


def test_a_full_journal_stores_nothing_of_the_call_and_says_so(tmp_path: Path) -> None:
    journal = SpoolJournal(tmp_path, limit_bytes=10)
    journal.append("orders", [b"12345"], 0)
    with pytest.raises(SpoolFullError, match="10 bytes"):
        journal.append("orders", [b"123", b"456"], 0)
    assert journal.depth == 1
    journal.remove(journal.oldest("orders", most=1, most_bytes=10))
    journal.append("orders", [b"123", b"456"], 0)
    assert journal.depth == 2
    journal.close()


def test_the_limit_may_be_reached_and_is_known_to_the_next_owner(tmp_path: Path) -> None:
    journal = SpoolJournal(tmp_path, limit_bytes=10)
    journal.append("orders", [b"12345", b"67890"], 0)
    journal.close()
    again = SpoolJournal(tmp_path, limit_bytes=10)
    with pytest.raises(SpoolFullError):
        again.append("orders", [b"1"], 0)
    assert again.depth == 2
    again.close()


def test_every_append_is_synced_before_it_returns(tmp_path: Path) -> None:
    journal = SpoolJournal(tmp_path, limit_bytes=LIMIT)
    assert journal._database.execute("PRAGMA synchronous").fetchone() == (SYNCED_AT_EACH_COMMIT,)
    journal.close()


def test_what_was_appended_survives_a_kill(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys\n"
        "from pairbus.spool import SpoolJournal\n"
        "journal = SpoolJournal(sys.argv[1], limit_bytes=10000)\n"
        "journal.append('orders', [b'one', b'two'], 5)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    assert done.returncode == -9
    journal = SpoolJournal(tmp_path, limit_bytes=LIMIT)
    assert [entry.raw for entry in journal.oldest("orders", most=9, most_bytes=99)] == [b"one", b"two"]
    assert journal.depth == 2
    journal.close()


def test_two_owners_do_not_share_a_folder(tmp_path: Path) -> None:
    journal = SpoolJournal(tmp_path, limit_bytes=LIMIT)
    with pytest.raises(SpoolInUseError, match="Another process"):
        SpoolJournal(tmp_path, limit_bytes=LIMIT)
    journal.close()
    SpoolJournal(tmp_path, limit_bytes=LIMIT).close()


def test_files_are_their_owners_alone(tmp_path: Path) -> None:
    folder = tmp_path / "spool"
    journal = SpoolJournal(folder, limit_bytes=LIMIT)
    journal.append("orders", [b"secret"], 0)
    assert folder.stat().st_mode & 0o077 == 0
    for path in folder.iterdir():
        assert path.stat().st_mode & 0o077 == 0, path.name
    journal.close()


def test_numbers_are_never_used_again(tmp_path: Path) -> None:
    journal = SpoolJournal(tmp_path, limit_bytes=LIMIT)
    journal.append("orders", [b"1"], 0)
    (first,) = journal.oldest("orders", most=1, most_bytes=1)
    journal.remove([first])
    journal.close()
    journal = SpoolJournal(tmp_path, limit_bytes=LIMIT)
    journal.append("orders", [b"2"], 0)
    assert journal.oldest("orders", most=1, most_bytes=1)[0].number > first.number
    journal.close()


def test_a_folder_that_cannot_be_one_is_one_clear_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(SpoolError, match="Cannot use the spool folder"):
        SpoolJournal(tmp_path / "file", limit_bytes=LIMIT)


def test_a_file_that_is_no_journal_is_refused(tmp_path: Path) -> None:
    (tmp_path / "journal.sqlite").write_bytes(b"not a database at all, but long enough to be read" * 20)
    with pytest.raises(SpoolError, match="Cannot open the spool"):
        SpoolJournal(tmp_path, limit_bytes=LIMIT)
    assert os.access(tmp_path / "journal.sqlite", os.R_OK)
