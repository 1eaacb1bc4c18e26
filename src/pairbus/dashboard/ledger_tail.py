"""Today's operations from a ledger folder, without Spark: its files are read as they grow.

Each line is read once. The first look of a day may find a large folder, so `read_on` reads a bounded amount at a time
and says whether there is more. A file that cannot be read is counted and tried again the next time.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from pairbus.costs.rules import billed_operations
from pairbus.ledger import closed_files, open_files
from pairbus.ledger.files import MOST_LINE_BYTES, OPEN_SUFFIX, skipped_files
from pairbus.ledger.records import LEDGER_OPERATIONS, SCHEMA_VERSION, Operation, Record, Role, is_backlog_queue
from pairbus.publishing.flows import DAY_SECONDS
from pairbus.publishing.records import CountKey, OperationCount

READ_AT_ONCE_BYTES = 32 * 1024 * 1024
_SILENT = LEDGER_OPERATIONS | {Operation.TRANSITION}


class LedgerTail:
    """Follows the ledger files of one folder and adds up the operations of one day, UTC."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._decoder = msgspec.json.Decoder(Record)
        self._day = -1
        self._offsets: dict[str, int] = {}
        # By key, and whether the namespace itself recorded it.
        self._sums: dict[tuple[CountKey, bool], list[int]] = {}
        self.unreadable = 0
        """Lines of today's files that are not records."""
        self.refused = 0
        """Files that could not be read last time; an unreadable folder counts as one."""

    def read_on(self, day: int) -> bool:
        """Read new lines, up to a limit; True if everything has been read."""
        if day != self._day:
            self._day, self._offsets, self._sums, self.unreadable = day, {}, {}, 0
        room = READ_AT_ONCE_BYTES
        try:
            self.refused = len(skipped_files(self._folder))
            files = [*closed_files(self._folder), *open_files(self._folder)]
        except OSError:
            self.refused = 1
            return True
        for path in files:
            if room <= 0:
                return False
            try:
                room -= self._read_file(path, room)
            except FileNotFoundError:  # just published: it is read under its new name
                continue
            except OSError:
                self.refused += 1
        return room > 0

    def _read_file(self, path: Path, most: int) -> int:
        """Returns the number of bytes read; `most` if there may be more."""
        # A published file keeps the beginning of its name, so what was read stays read.
        stem = path.name.removesuffix(OPEN_SUFFIX).removesuffix(".jsonl")
        offset = self._offsets.get(stem, 0)
        status = path.stat()
        if status.st_size == offset or status.st_mtime < self._day * DAY_SECONDS:
            return 0
        with path.open("rb") as file:
            file.seek(offset)
            text = file.read(most)
        whole = text[: text.rfind(b"\n") + 1]
        for line in whole.splitlines():
            self._add(line)
        is_long = not whole and len(text) > MOST_LINE_BYTES  # no record: do not wait for its end
        self.unreadable += is_long
        self._offsets[stem] = offset + len(text if is_long else whole)
        return len(text)

    def _add(self, text: bytes) -> None:
        try:
            line = self._decoder.decode(text)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            self.unreadable += 1
            return
        if line.v > SCHEMA_VERSION or line.operation in _SILENT or line.at_us // 1_000_000 // DAY_SECONDS != self._day:
            return
        on_backlog = is_backlog_queue(line.entity)
        primary = line.entity.partition("/")[0] if on_backlog else line.namespace
        target = line.destination or line.entity
        own = line.role is Role.NAMESPACE
        key = (self._day, primary, line.namespace, target, line.operation, line.route, line.outcome, on_backlog)
        sums = self._sums.setdefault((key, own), [0, 0])
        sums[0] += 1
        sums[1] += billed_operations(line.operation, line.bytes, line.outcome) if line.billed is None else line.billed

    def billed(self) -> list[OperationCount]:
        """The billed operations: a namespace with a ledger of its own has counted the operations of everyone."""
        own = self.counts(own=True)
        counted_itself = {count.namespace for count in own}
        return own + [count for count in self.counts() if count.namespace not in counted_itself]

    def counts(self, *, own: bool = False) -> list[OperationCount]:
        """The operations that clients, syphons and receivers recorded, or those in the namespaces' own records."""
        return [
            OperationCount.of(key, operations, billed)
            for (key, by_namespace), (operations, billed) in self._sums.items()
            if by_namespace is own
        ]
