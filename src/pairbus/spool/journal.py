"""The spool: messages in backlog form, kept on disk in the order they were sent, for when both namespaces are down.

Rules
- `append` returns after the messages are on disk (SQLite, WAL, synchronous FULL): they survive `kill -9`.
- The messages of one call are stored together or not at all.
- The stored messages never exceed the size limit: `append` stores nothing and raises instead.
- A message that the backlog refuses for good is set aside with the reason: it stays on disk and counts for the limit,
  but is not forwarded.
- One process per folder. The kernel holds the lock, so it ends with the process.
- Only the owner can read the files: messages are the application's data.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Literal

from pairbus import envelope
from pairbus.errors import SpoolError, SpoolFullError, SpoolInUseError
from pairbus.private import open_private, private_folder


@dataclass(frozen=True, slots=True)
class SpoolEntry:
    """A stored message in backlog form, and the entity it is for."""

    number: int
    entity: str
    stored_ms: int
    raw: bytes

    def restored(self, policy: envelope.TimeToLivePolicy) -> envelope.Restored | envelope.Expired:
        """The message as it goes to the primary now."""
        return envelope.restore(self.raw, now_ms=_now_ms(), policy=policy, enqueued_ms=self.stored_ms)

    def is_expired(self, policy: envelope.TimeToLivePolicy) -> bool:
        return isinstance(self.restored(policy), envelope.Expired)

    def defect(self, policy: envelope.TimeToLivePolicy) -> str | None:
        """Why the message cannot be read; None if it can."""
        try:
            self.restored(policy)
        except envelope.UNREADABLE as error:
            return f"{type(error).__name__}: {error}"
        return None

    @property
    def aged(self) -> bytes:
        """The message with its time in the journal deducted from its time to live."""
        return envelope.aged(self.raw, _now_ms() - self.stored_ms)


@dataclass(frozen=True, slots=True)
class SpooledMessage:
    """A message in a spool, for people: where it belongs, how old it is, and why it was set aside, if it was."""

    entity: str
    message_id: str | None
    stored_ms: int
    size: int
    set_aside: str | None


def look_into(folder: Path) -> list[SpooledMessage]:
    """The messages in a spool, oldest first, whether or not a process uses it."""
    path = folder / "journal.sqlite"
    if not path.is_file():
        raise SpoolError(f"There is no spool in {str(folder)!r}. Name the folder of the option spool.")
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
            rows = database.execute(
                "SELECT number, entity, stored_ms, raw, NULL FROM message UNION ALL "
                "SELECT number, entity, stored_ms, raw, reason FROM set_aside ORDER BY number"
            ).fetchall()
    except sqlite3.Error as error:
        raise SpoolError(f"Cannot read the spool in {str(folder)!r}: {error}.") from error
    return [
        SpooledMessage(entity, envelope.inspect(raw).message_id, stored_ms, len(raw), reason)
        for _, entity, stored_ms, raw, reason in rows
    ]


class SpoolJournal:
    """The journal in one folder; thread-safe."""

    def __init__(self, folder: Path | str, *, limit_bytes: int) -> None:
        self.folder = Path(folder)
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        try:
            private_folder(self.folder, files=["journal.sqlite*", "owner.lock"])
            self._owner = _lock_folder(self.folder)
        except OSError as error:
            raise SpoolError(
                f"Cannot use the spool folder {str(folder)!r}: {error.strerror}. Choose a folder that this process may "
                "write to."
            ) from error
        try:
            self._database = self._open()
            self._depth, waiting_bytes = self._totals("message")
            self._size_bytes = waiting_bytes + self._totals("set_aside")[1]
        except (sqlite3.Error, OSError) as error:
            os.close(self._owner)
            raise SpoolError(f"Cannot open the spool in {str(folder)!r}: {error}.") from error

    def __repr__(self) -> str:
        return f"<SpoolJournal {self.folder} {self._depth} messages, {self._size_bytes} of {self._limit_bytes} bytes>"

    @property
    def depth(self) -> int:
        """The number of stored messages."""
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
                raise SpoolError(f"Cannot store messages in the spool in {str(self.folder)!r}: {error}.") from error
            self._depth += len(raws)
            self._size_bytes += added

    def entities(self) -> list[str]:
        """The entities with stored messages, the one with the oldest message first."""
        with self._lock:
            cursor = self._database.execute("SELECT entity FROM message GROUP BY entity ORDER BY min(number)")
            return [entity for (entity,) in cursor]

    def oldest(self, entity: str, *, after: int = 0, most: int, most_bytes: int) -> list[SpoolEntry]:
        """The oldest messages of the entity with a number above `after`; at least one, if there is one."""
        with self._lock:
            cursor = self._database.execute(
                "SELECT number, entity, stored_ms, raw FROM message WHERE entity = ? AND number > ? "
                "ORDER BY number LIMIT ?",
                (entity, after, most),
            )
            entries: list[SpoolEntry] = []
            size = 0
            for row in cursor:
                entry = SpoolEntry(*row)
                size += len(entry.raw)
                if entries and size > most_bytes:
                    break
                entries.append(entry)
            return entries

    def remove(self, entries: Sequence[SpoolEntry]) -> None:
        """Remove messages that a namespace has accepted."""
        with self._lock:
            with self._database:
                self._database.executemany(
                    "DELETE FROM message WHERE number = ?", [(entry.number,) for entry in entries]
                )
            self._depth -= len(entries)
            self._size_bytes -= sum(len(entry.raw) for entry in entries)

    def set_aside(self, entry: SpoolEntry, reason: str) -> None:
        """Keep a message that the backlog refuses for good, but do not offer it again."""
        with self._lock:
            with self._database:
                self._database.execute(
                    "INSERT INTO set_aside (number, entity, stored_ms, raw, reason) VALUES (?, ?, ?, ?, ?)",
                    (entry.number, entry.entity, entry.stored_ms, entry.raw, reason),
                )
                self._database.execute("DELETE FROM message WHERE number = ?", (entry.number,))
            self._depth -= 1

    def close(self) -> None:
        with self._lock:
            self._database.close()
            os.close(self._owner)

    def _totals(self, table: Literal["message", "set_aside"]) -> tuple[int, int]:
        """The number of messages in a table, and their size in bytes."""
        row = self._database.execute(f"SELECT count(*), coalesce(sum(length(raw)), 0) FROM {table}").fetchone()  # noqa: S608
        return row[0], row[1]

    def _open(self) -> sqlite3.Connection:
        path = self.folder / "journal.sqlite"
        os.close(open_private(path, os.O_RDWR | os.O_CREAT))
        database = sqlite3.connect(path, check_same_thread=False)
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        database.executescript(resources.files("pairbus.spool").joinpath("schema.sql").read_text("utf-8"))
        return database


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _lock_folder(folder: Path) -> int:
    descriptor = open_private(folder / "owner.lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise SpoolInUseError(str(folder)) from None
    return descriptor
