"""Records the operations of one process.

The caller's path is short: `record` appends a value to a bounded queue; the scribe's thread does
the rest. Invariants:

- Recording never raises and never waits. What cannot be recorded (queue full, disk full, writer closed) is
  counted, and the count is written as a `ledger-gap` record as soon as the disk takes it.
- After `close` there is no thread and no open file. Without it, the interpreter's exit closes the writer, and so does
  the end of a `multiprocessing` worker, which leaves without an interpreter's exit.
- After a fork the child records under a name and a file of its own, and the parent's queue stays the
  parent's.
"""

from __future__ import annotations

import atexit
import itertools
import os
import secrets
import socket
import threading
import time
from multiprocessing.util import Finalize, register_after_fork
from pathlib import Path
from types import TracebackType
from typing import Self

from pairbus.ledger.files import publish_orphans
from pairbus.ledger.records import CompletedOperation, Role
from pairbus.ledger.scribe import Entry, Intake, LedgerLimits, Scribe

SALT_VARIABLE = "PAIRBUS_ID_SALT"


class LedgerWriter:
    """Records operations into `folder`; share one writer among everything in a process that records there.

    `id_salt` replaces message ids by a keyed hash; processes whose records must be matched need the same
    salt. Unless given, it is what the environment variable PAIRBUS_ID_SALT has, if it is set.
    """

    def __init__(
        self,
        folder: Path | str,
        *,
        role: Role = Role.CLIENT,
        id_salt: bytes | None = None,
        limits: LedgerLimits | None = None,
    ) -> None:
        if id_salt is None:
            id_salt = salt_from_environment()
        if id_salt is not None and not 8 <= len(id_salt) <= 64:
            raise ValueError(f"The ledger's id_salt has {len(id_salt)} bytes; give 8 to 64 random bytes.")
        self.folder = Path(folder)
        self.role = role
        self.address: str | None = None
        """Where a namespace that records its own operations is reached: goes into every record from now on."""
        self._id_salt = id_salt
        self._limits = limits or LedgerLimits()
        self._pending_limit = self._limits.pending_records
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise OSError(
                f"The ledger folder {str(folder)!r} cannot be used: {error.strerror}. Give a folder this process may "
                "write to."
            ) from error
        self._begin()
        publish_orphans(self.folder)
        _writers.add(self)

    def _begin(self) -> None:
        self.process = f"{host_label()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._intake = Intake()
        self._queue = self._intake.queue
        self._numbers = self._intake.numbers
        self._start_lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def __repr__(self) -> str:
        state = "closed" if self._intake.closing else "open"
        return f"<LedgerWriter {self.process} {state} pending={len(self._queue)} unrecorded={self.unrecorded}>"

    @property
    def unrecorded(self) -> int:
        """Operations that are neither written nor waiting to be, nor yet written down as a gap."""
        return self._intake.unrecorded

    def record(self, completed: CompletedOperation) -> None:
        """Record an operation: one line for each of its messages, at about the cost of one."""
        messages = len(completed.message_ids)
        if completed.sizes is not None and len(completed.sizes) != messages:
            raise ValueError(f"{messages} message ids and {len(completed.sizes)} sizes. Give one size for each id.")
        if not messages:
            return
        intake = self._intake
        if len(self._queue) + intake.batched >= self._pending_limit or intake.closing:
            intake.count_unrecorded(messages)
            return
        numbers = (next(self._numbers),) if messages == 1 else tuple(itertools.islice(self._numbers, messages))
        at_us = time.time_ns() // 1000 if completed.at_us is None else completed.at_us
        intake.add(Entry(completed, numbers, at_us, self.address))
        if intake.idle or self._thread is None:
            self._rouse()

    def flush(self, timeout: float = 10.0) -> bool:
        """Wait until everything recorded before this call is in the file; False when that took too long."""
        if self._thread is None or self._intake.closing:
            return not self._queue
        written = threading.Event()
        self._queue.append(written)
        self._intake.hurry()
        return written.wait(timeout)

    def close(self, timeout: float = 10.0) -> None:
        """Write what is pending, publish the file, end the thread. Closing twice is closing once."""
        with self._start_lock:
            self._intake.closing = True
            thread = self._thread
            if thread is None:
                self._intake.end()
        _writers.discard(self)
        if thread is not None:
            self._intake.hurry()
            thread.join(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _rouse(self) -> None:
        if self._intake.ended:
            # Closed while this record was being made, and nobody comes for it any more.
            self._intake.count_what_is_left()
            return
        self._intake.wake.set()
        if self._thread is not None:
            return
        with self._start_lock:
            if self._thread is None and not self._intake.closing:
                scribe = Scribe(self.folder, self.process, self.role, self._id_salt, self._limits, self._intake)
                self._thread = threading.Thread(target=scribe.run, name="pairbus-ledger", daemon=True)
                self._scribe = scribe
                self._thread.start()

    def _begin_again_in_child(self) -> None:
        if self._thread is not None:
            self._scribe.let_go_of_parents_file()
        closed = self._intake.closing
        self._begin()
        self._intake.closing = closed


def host_label() -> str:
    """The host's name as a file name can hold it."""
    kept = "".join(c if c.isalnum() or c == "-" else "-" for c in socket.gethostname().split(".")[0])
    return kept[:32] or "host"


def salt_from_environment() -> bytes | None:
    """The salt that all writers of a process use which are given none; None without the variable."""
    salt = os.environ.get(SALT_VARIABLE, "").encode()
    if salt and not 8 <= len(salt) <= 64:
        raise ValueError(f"The environment variable {SALT_VARIABLE} has {len(salt)} bytes; give 8 to 64 random ones.")
    return salt or None


# Strong: a writer that its owner forgot still holds records, which the interpreter's exit writes.
_writers: set[LedgerWriter] = set()


def _close_all() -> None:
    for writer in list(_writers):
        writer.close()


def _after_fork_in_child() -> None:
    for writer in list(_writers):
        writer._begin_again_in_child()


def _close_all_when_worker_ends(_: object = None) -> None:
    """A worker of `multiprocessing` ends by `os._exit`: what it runs before is its own list, not `atexit`'s."""
    Finalize(None, _close_all, exitpriority=0)


atexit.register(_close_all)
os.register_at_fork(after_in_child=_after_fork_in_child)
# A worker begins with an empty list: what stood in it before the fork, or was added right after, is dropped. Those who
# registered are called after that. One that imports this module later, having been forked before, has begun already.
_close_all_when_worker_ends()
register_after_fork(_close_all, _close_all_when_worker_ends)
