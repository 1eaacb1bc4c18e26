"""How the records of executors reach the driver's ledger: their files travel as rows.

    executor  a task records with the ledger's own writer into a folder on its machine, and returns its closed files
    driver    stores each file under its own name, then lets the executors delete the files it has

Rules:
- A message leaves a backlog queue only after its record is in a file (`DurableRecords`). So a killed executor has
  recorded everything it removed, and an audit does not count it as lost.
- A file stays on the executor until the driver has it on disk. A file that a killed process left open is closed and
  returned by the next task on that machine, or by the gathering after a round.
- The name of a file identifies it, and so do the process and number of a record: duplicates are stored once.
- A lost disk takes the records of the running tasks on its machine with it: at most `MESSAGES_PER_TASK` messages each.
"""

from __future__ import annotations

import logging
import os
import re
import tempfile
import zlib
from collections.abc import Collection, Iterable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import TypedDict

from pairbus.ledger import LedgerLimits, LedgerWriter, Role, closed_files, publish_orphans
from pairbus.ledger.files import folder_bytes, sync_folder
from pairbus.private import NotPrivateError, private_folder, replace_private

log = logging.getLogger(__name__)

MESSAGES_PER_TASK = 100_000
"""The messages that one recording task carries: about 10 MB of compressed rows for the driver."""
_NAME = re.compile(r"[A-Za-z0-9_-]+\.[0-9]{6}\.jsonl")
_LIMITS = LedgerLimits(roll_bytes=16 << 20)


class RecordsError(RuntimeError):
    """Executors cannot record."""


class FileRow(TypedDict):
    """A closed file of a ledger on its way to the driver."""

    file: str
    content: bytes


# --- executors --------------------------------------------------------------------------------------------


def journal_key(host: str, ledger: Path, secondary: str, primary_name: str) -> str:
    """The name of the executors' folders for one ledger. A later run finds there what a killed run did not gather."""
    return blake2b("\0".join((host, str(ledger), secondary, primary_name)).encode(), digest_size=12).hexdigest()


def journal_folder(key: str) -> Path:
    """The folder on this machine, readable by this user only."""
    top = Path(tempfile.gettempdir()) / f"pairbus-syphon-{os.getuid()}"
    folder = top / key
    try:
        for path in (top, folder):
            private_folder(path)
            if path.stat().st_mode & 0o077:
                raise NotPrivateError(path, "other users can read it (chmod go= makes it private)")
    except OSError as error:
        raise RecordsError(
            f"Cannot use the folder {folder}: {error.strerror}. Remove it, or set TMPDIR for the executors."
        ) from error
    return folder


class Journal:
    """The records of one task."""

    def __init__(self, key: str) -> None:
        self._folder = journal_folder(key)
        self._orphans = publish_orphans(self._folder)
        self.writer = LedgerWriter(self._folder, role=Role.SYPHON, limits=_LIMITS)

    def close(self) -> list[FileRow]:
        """Close the journal; returns its files, and those that killed processes left behind."""
        self.writer.close()
        own = [path for path in closed_files(self._folder) if path.name.startswith(f"{self.writer.process}.")]
        return list(_rows([*self._orphans, *own]))


def left_behind(key: str, stored: Collection[str]) -> Iterator[FileRow]:
    """Delete the files that the driver has; yields the other files on this machine."""
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
        except FileNotFoundError:  # another task returned it, and it was deleted
            continue


# --- the driver -------------------------------------------------------------------------------------------


class DriversLedger:
    """The ledger folder of the driver, which collects the files of the executors."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        private_folder(folder)
        self.stored: set[str] = set()
        """Files that are here and still on an executor."""

    def store(self, row: FileRow) -> bool:
        """Store a file durably; returns False if it was already stored, or if it could not be written."""
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
                    "The ledger in %s cannot be written (%s). The records stay on the executors.",
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
        replace_private(path, content, durable=True)
        sync_folder(self.folder)
