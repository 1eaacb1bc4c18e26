"""Today's operations as a ledger folder has them, without Spark: its files are read as they grow.

Each line is read once. A day's first look may mean a large folder: `read_on` takes a bounded amount at a time and says
whether there is more. A file that cannot be read is counted and tried again the next time; the others are read.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from pairbus.costs.billing import billed_operations
from pairbus.ledger import closed_files, open_files
from pairbus.ledger.files import OPEN_SUFFIX
from pairbus.ledger.records import (
    LEDGER_OPERATIONS,
    SCHEMA_VERSION,
    Operation,
    Outcome,
    Role,
    Route,
    is_backlog_queue,
)
from pairbus.publishing.flows import DAY_SECONDS
from pairbus.publishing.records import Count, Kind

READ_AT_ONCE_BYTES = 32 * 1024 * 1024
_SILENT = LEDGER_OPERATIONS | {Operation.TRANSITION}


class _Line(msgspec.Struct):
    """What is needed of a record."""

    v: int
    at_us: int
    role: Role
    operation: Operation
    namespace: str = ""
    entity: str = ""
    destination: str | None = None
    route: Route | None = None
    outcome: Outcome = Outcome.OK
    bytes: int = 0
    billed: int | None = None


class LedgerTail:
    """Follows the ledger files of one folder and adds up the operations of one day, UTC."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._decoder = msgspec.json.Decoder(_Line)
        self._day = -1
        self._offsets: dict[str, int] = {}
        # By kind, and whether the namespace itself recorded it.
        self._sums: dict[tuple[Kind, bool], list[int]] = {}
        self.unreadable = 0
        """Lines of today's files that are no records."""
        self.refused = 0
        """Files that could not be read the last time; the folder itself counts as one."""

    def read_on(self, day: int) -> bool:
        """Read what is new, up to a limit; True if everything there is has been read."""
        if day != self._day:
            self._day, self._offsets, self._sums, self.unreadable = day, {}, {}, 0
        room = READ_AT_ONCE_BYTES
        self.refused = 0
        try:
            files = [*closed_files(self._folder), *open_files(self._folder)]
        except OSError:
            self.refused = 1
            return True
        for path in files:
            if room <= 0:
                return False
            try:
                room -= self._read_file(path, room)
            except FileNotFoundError:  # published in this moment: it is read under its new name
                continue
            except OSError:
                self.refused += 1
        return room > 0

    def _read_file(self, path: Path, most: int) -> int:
        """How much was read; `most` if there may be more."""
        # A file that is published keeps the beginning of its name: what was read of it stays read.
        stem = path.name.removesuffix(OPEN_SUFFIX).removesuffix(".jsonl")
        offset = self._offsets.get(stem, 0)
        found = path.stat()
        if found.st_size == offset or found.st_mtime < self._day * DAY_SECONDS:
            return 0
        with path.open("rb") as file:
            file.seek(offset)
            text = file.read(most)
        end = text.rfind(b"\n") + 1
        for line in text[:end].splitlines():
            self._add(line)
        self._offsets[stem] = offset + end
        return len(text)

    def _add(self, text: bytes) -> None:
        try:
            line = self._decoder.decode(text)
        except msgspec.MsgspecError:
            self.unreadable += 1
            return
        if line.v > SCHEMA_VERSION or line.operation in _SILENT or line.at_us // 1_000_000 // DAY_SECONDS != self._day:
            return
        on_backlog = is_backlog_queue(line.entity)
        primary = line.entity.partition("/")[0] if on_backlog else line.namespace
        target = line.destination or line.entity
        own = line.role is Role.NAMESPACE
        kind = (self._day, primary, line.namespace, target, line.operation, line.route, line.outcome, on_backlog)
        sums = self._sums.setdefault((kind, own), [0, 0])
        sums[0] += 1
        sums[1] += billed_operations(line.operation, line.bytes, line.outcome) if line.billed is None else line.billed

    def counts(self) -> list[Count]:
        """What clients, syphons and receivers recorded."""
        return self._counts(own=False)

    def billed(self) -> list[Count]:
        """What is billed: a namespace that keeps a ledger of its own has counted everyone's operations."""
        own = self._counts(own=True)
        counted_itself = {one.namespace for one in own}
        return own + [one for one in self._counts(own=False) if one.namespace not in counted_itself]

    def _counts(self, *, own: bool) -> list[Count]:
        return [
            Count.of(kind, operations, billed)
            for (kind, by_namespace), (operations, billed) in self._sums.items()
            if by_namespace is own
        ]
