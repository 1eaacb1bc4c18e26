"""Messages in backlog form, kept on disk in the order they were sent.

Rules
- `append` returns after the messages are on disk (SQLite, WAL, synchronous FULL): they survive `kill -9`.
- The messages of one call are stored together or not at all.
- The sum of the stored messages never exceeds the limit; beyond it, `append` stores nothing and raises.
- One process per folder: the lock is the kernel's, so it ends with the process, however that ends.
- Files are readable by their owner only: messages are the application's data.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from pairbus.errors import SpoolError, SpoolFullError, SpoolInUseError


@dataclass(frozen=True, slots=True)
class Entry:
    """One message: for which entity, when it was stored, its backlog form."""

    number: int
    entity: str
    stored_ms: int
    raw: bytes


class Journal:
    """The journal in one folder. Safe for many threads."""

    def __init__(self, folder: Path | str, *, limit_bytes: int) -> None:
        self.folder = Path(folder)
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._owner = _own(self.folder)
        except OSError as error:
            raise SpoolError(
                f"The spool folder {str(folder)!r} cannot be used: {error.strerror}. Give a folder this process "
                "may write to."
            ) from error
        try:
            self._database = self._open()
            row = self._database.execute("SELECT count(*), coalesce(sum(length(raw)), 0) FROM message")
            self._depth, self._size_bytes = row.fetchone()
        except (sqlite3.Error, OSError) as error:
            os.close(self._owner)
            raise SpoolError(f"The spool in {str(folder)!r} cannot be opened: {error}.") from error

    def __repr__(self) -> str:
        return f"<Journal {self.folder} {self._depth} messages, {self._size_bytes} of {self._limit_bytes} bytes>"

    @property
    def depth(self) -> int:
        """How many messages wait."""
        return int(self._depth)

    def append(self, entity: str, raws: Sequence[bytes], stored_ms: int) -> None:
        """Store the messages, in order; they are on disk when this returns."""
        added = sum(map(len, raws))
        with self._lock:
            if self._size_bytes + added > self._limit_bytes:
                raise SpoolFullError(str(self.folder), self._limit_bytes)
            try:
                with self._database:
                    self._database.executemany(
                        "INSERT INTO message (entity, stored_ms, raw) VALUES (?, ?, ?)",
                        [(entity, stored_ms, raw) for raw in raws],
                    )
            except sqlite3.Error as error:
                raise SpoolError(f"The spool in {str(self.folder)!r} could not store: {error}.") from error
            self._depth += len(raws)
            self._size_bytes += added

    def entities(self) -> list[str]:
        """The entities that messages wait for; the one with the oldest message first."""
        with self._lock:
            cursor = self._database.execute("SELECT entity FROM message GROUP BY entity ORDER BY min(number)")
            return [entity for (entity,) in cursor]

    def oldest(self, entity: str, *, after: int = 0, most: int, most_bytes: int) -> list[Entry]:
        """The oldest messages of the entity beyond the number `after`; at least one if any wait there."""
        with self._lock:
            cursor = self._database.execute(
                "SELECT number, entity, stored_ms, raw FROM message WHERE entity = ? AND number > ? "
                "ORDER BY number LIMIT ?",
                (entity, after, most),
            )
            entries: list[Entry] = []
            size = 0
            for row in cursor:
                entry = Entry(*row)
                size += len(entry.raw)
                if entries and size > most_bytes:
                    break
                entries.append(entry)
            return entries

    def remove(self, entries: Sequence[Entry]) -> None:
        """Forget messages that a namespace has taken."""
        with self._lock:
            with self._database:
                self._database.executemany(
                    "DELETE FROM message WHERE number = ?", [(entry.number,) for entry in entries]
                )
            self._depth -= len(entries)
            self._size_bytes -= sum(len(entry.raw) for entry in entries)

    def close(self) -> None:
        with self._lock:
            self._database.close()
            os.close(self._owner)

    def _open(self) -> sqlite3.Connection:
        path = self.folder / "journal.sqlite"
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        database = sqlite3.connect(path, check_same_thread=False)
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        database.executescript(resources.files("pairbus.spool").joinpath("schema.sql").read_text("utf-8"))
        return database


def _own(folder: Path) -> int:
    descriptor = os.open(folder / "owner.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise SpoolInUseError(str(folder)) from None
    return descriptor
