"""What executors did becomes records in the driver's ledger: their files travel as rows.

    executor  a task records with the ledger's own writer, into a folder of its machine, and returns its closed files
    driver    stores each file under its own name, then tells the executors to delete what it has

Rules:
- A message leaves a backlog queue only after the record of its restoring is in a file (`DurableRecords`). So a killed
  executor has recorded everything that it removed, and an audit does not call it lost.
- A file stays at the executor until the driver has it on disk. What a killed process left open is closed and returned
  by the next task on that machine, or by the gathering after a round.
- A file's name is its identity, and a record's process and number are its: what comes twice is there once.
- A machine whose disk is lost takes the records of its running tasks with it, `SHARE` messages each at most.
"""

from __future__ import annotations

import logging
import os
import re
import stat
import tempfile
import zlib
from collections.abc import Collection, Iterable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import TypedDict

from pairbus.ledger import LedgerLimits, LedgerWriter, Role, closed_files, publish_orphans
from pairbus.ledger.files import folder_bytes, sync_folder

log = logging.getLogger(__name__)

SHARE = 100_000
"""Messages that one task carries when it records: some 10 MB of compressed rows for the driver."""
_NAME = re.compile(r"[A-Za-z0-9_-]+\.[0-9]{6}\.jsonl")
_LIMITS = LedgerLimits(roll_bytes=16 << 20)


class RecordsError(RuntimeError):
    """Executors cannot record; the text says what to do."""


class FileRow(TypedDict):
    """A closed file of a ledger on its way to the driver."""

    file: str
    content: bytes


# --- executors --------------------------------------------------------------------------------------------


def journal_key(host: str, ledger: Path, secondary: str, primary_name: str) -> str:
    """Names the executors' folders of one ledger: a later run finds there what a run that died had not gathered."""
    return blake2b("\0".join((host, str(ledger), secondary, primary_name)).encode(), digest_size=12).hexdigest()


def journal_folder(key: str) -> Path:
    """The folder of this machine, readable by this user only."""
    top = Path(tempfile.gettempdir()) / f"pairbus-syphon-{os.getuid()}"
    top.mkdir(mode=0o700, exist_ok=True)
    found = top.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise RecordsError(
            f"{top} is not a private folder of user {os.getuid()}: remove it, or set TMPDIR for executors."
        )
    folder = top / key
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


class Journal:
    """What one task records, and what it hands over at its end."""

    def __init__(self, key: str) -> None:
        self._folder = journal_folder(key)
        self._orphans = publish_orphans(self._folder)
        self.writer = LedgerWriter(self._folder, role=Role.SYPHON, limits=_LIMITS)

    def close(self) -> list[FileRow]:
        """Close it, whatever becomes of the answer: its own files, and those that killed processes had left."""
        self.writer.close()
        own = [path for path in closed_files(self._folder) if path.name.startswith(f"{self.writer.process}.")]
        return list(_rows([*self._orphans, *own]))


def left_behind(key: str, stored: Collection[str]) -> Iterator[FileRow]:
    """Delete the files that the driver has; what is on this machine besides."""
    folder = journal_folder(key)
    publish_orphans(folder)
    files = closed_files(folder)
    for path in files:
        if path.name in stored:
            path.unlink(missing_ok=True)
    yield from _rows(path for path in files if path.name not in stored)


def _rows(paths: Iterable[Path]) -> Iterator[FileRow]:
    for path in paths:
        try:
            yield FileRow(file=path.name, content=zlib.compress(path.read_bytes(), 1))
        except FileNotFoundError:  # another task has handed it over, and it was deleted
            continue


# --- the driver -------------------------------------------------------------------------------------------


class DriversLedger:
    """The folder that the executors' files come to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.stored: set[str] = set()
        """Files that are here and still at an executor."""

    def store(self, row: FileRow) -> bool:
        """Durable when this returns; False for a file that was here already, or for which there is no room."""
        name = row["file"]
        if not _NAME.fullmatch(name):
            raise ValueError(f"An executor sent a ledger file named {name!r}; expected PROCESS.NUMBER.jsonl.")
        if name in self.stored:
            return False
        path = self.folder / name
        if not path.exists():
            try:
                self._write(path, zlib.decompress(row["content"]))
            except OSError as error:
                log.warning(
                    "The ledger in %s cannot be written (%s): the records stay with the executors.",
                    self.folder,
                    error.strerror or type(error).__name__,
                )
                return False
        self.stored.add(name)
        return True

    def _write(self, path: Path, content: bytes) -> None:
        limit = _LIMITS.folder_bytes
        if folder_bytes(self.folder) + len(content) > limit:
            raise OSError(0, f"its files have reached the limit of {limit} bytes")
        unnamed = path.with_name(f"{path.name}.new")
        try:
            with open(unnamed, "wb", opener=_private) as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            unnamed.rename(path)
        except OSError:
            unnamed.unlink(missing_ok=True)
            raise
        sync_folder(self.folder)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)
