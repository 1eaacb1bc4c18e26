"""Records the operations of one process.

`LedgerWriter.record` appends a value to a bounded queue. The scribe, one background thread, encodes, writes, rolls and
publishes. Invariants:

- Recording never raises and never waits. Operations that cannot be recorded (queue full, disk full, writer closed) are
  counted, and the count is written as a `ledger-gap` record as soon as the disk accepts it.
- A published file holds whole lines only. A write that failed half-way is cut back before anything else happens.
- A chunk leaves memory only when it is written. While the disk refuses, the queue fills up to its limit and the rest is
  counted.
- A refused publication is retried from the step that was refused. Until then the file takes more lines, up to
  `roll_bytes`; after that the chunk is refused too.
- A record that cannot be encoded is counted. It affects no other record and never ends the thread.
- Nothing is deleted to make room unless `drop_oldest` is set; dropped operations are counted too.
- After `close` there is no thread and no open file. Without `close`, the interpreter's exit closes the writer, and so
  does the end of a `multiprocessing` worker, which skips the interpreter's exit.
- After a fork the child records under its own name into its own file. The parent's queue stays with the parent.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import os
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.util import Finalize, register_after_fork
from pathlib import Path
from typing import Self

import msgspec
from msgspec.structs import replace

from pairbus.ledger.files import (
    closed_files,
    folder_bytes,
    give_final_name,
    open_exclusive,
    open_name,
    publish_orphans,
    sync_folder,
)
from pairbus.ledger.records import SCHEMA_VERSION, CompletedOperation, Operation, Record, Role, hashed_id
from pairbus.private import private_folder

_log = logging.getLogger("pairbus.ledger")
SALT_VARIABLE = "PAIRBUS_ID_SALT"
_CHUNK_RECORDS = 2000
_RETRY_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class LedgerLimits:
    """When files roll, and how much memory and disk the ledger may use."""

    roll_bytes: int = 64 * 1024 * 1024
    roll_seconds: float = 60.0
    flush_seconds: float = 0.2
    pending_records: int = 100_000
    folder_bytes: int = 16 * 1024 * 1024 * 1024
    drop_oldest: bool = False

    def __post_init__(self) -> None:
        for name in ("roll_bytes", "roll_seconds", "flush_seconds", "pending_records", "folder_bytes"):
            value = getattr(self, name)
            if value <= 0:
                raise ValueError(f"The ledger limit {name} is {value!r}. Give more than 0.")


class Entry(msgspec.Struct, frozen=True, gc=False):
    """An operation in the queue. `numbers` has the record number of each of its messages."""

    completed: CompletedOperation
    numbers: Sequence[int]
    at_us: int
    address: str | None

    def records(self, process: str, role: Role) -> list[Record]:
        completed = self.completed
        ids, sizes, numbers = completed.message_ids, completed.sizes, self.numbers
        first = Record(
            v=SCHEMA_VERSION,
            n=numbers[0],
            process=process,
            at_us=self.at_us,
            role=completed.role or role,
            operation=completed.operation,
            namespace=completed.namespace,
            entity=completed.entity,
            address=self.address,
            destination=completed.destination,
            source=completed.source,
            route=completed.route,
            outcome=completed.outcome,
            message_id=ids[0],
            id_hashed=False,
            bytes=0 if sizes is None else sizes[0],
            billed=completed.billed,
            error=completed.error,
            latency_us=completed.latency_us,
            episode=completed.episode,
            state_from=completed.state_from,
            state_to=completed.state_to,
            cause=completed.cause,
        )
        if len(numbers) == 1:
            return [first]
        each = zip(numbers, ids, sizes or itertools.repeat(0), strict=False)
        return [replace(first, n=number, message_id=message_id, bytes=size) for number, message_id, size in each]


@dataclass(slots=True, eq=False)
class Intake:
    """The state that callers and the scribe share.

    An event in the queue marks a flush: it is set when everything before it is written.
    """

    queue: deque[Entry | threading.Event] = field(default_factory=deque)
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    batched: int = 0
    unrecorded: int = 0
    idle: bool = False
    closing: bool = False
    ended: bool = False
    wake: threading.Event = field(default_factory=threading.Event)
    urgent: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def hurry(self) -> None:
        self.urgent.set()
        self.wake.set()

    def add(self, entry: Entry) -> None:
        """The limit is on records, so an entry with many of them counts more than once."""
        if len(entry.numbers) > 1:
            with self._lock:
                self.batched += len(entry.numbers)
        self.queue.append(entry)

    def taken(self, entry: Entry) -> None:
        if len(entry.numbers) > 1:
            with self._lock:
                self.batched -= len(entry.numbers)

    def count_unrecorded(self, count: int) -> None:
        with self._lock:
            self.unrecorded += count

    def end(self) -> None:
        """Stop taking from the queue: entries in it, and entries still added, are counted as unrecorded.

        The end is announced before the queue is emptied. A caller that adds an entry afterwards sees the announcement,
        because it checks whether the scribe is idle.
        """
        self.ended = True
        self.idle = True
        self.count_leftovers()

    def count_leftovers(self) -> None:
        while True:
            try:
                item = self.queue.popleft()
            except IndexError:
                return
            if isinstance(item, Entry):
                self.taken(item)
                self.count_unrecorded(len(item.numbers))

    def take_unrecorded(self) -> int:
        with self._lock:
            count, self.unrecorded = self.unrecorded, 0
        return count


@dataclass(slots=True, eq=False)
class Scribe:
    """The thread's work: takes entries from the intake, and writes, rolls and publishes files."""

    _folder: Path
    _process: str
    _role: Role
    _id_salt: bytes | None
    _limits: LedgerLimits
    _intake: Intake
    _encoder: msgspec.json.Encoder = field(default_factory=msgspec.json.Encoder)
    _descriptor: int | None = None
    _path: Path = Path()
    _file_number: int = 0
    _good_bytes: int = 0
    _file_operations: int = 0
    _torn: bool = False
    _folder_is_behind: bool = False
    _roll_at: float = 0.0
    _retry_at: float = 0.0
    _chunk: bytearray = field(default_factory=bytearray)
    _chunk_operations: int = 0
    _flushes: list[threading.Event] = field(default_factory=list)
    _warned: bool = False
    _warned_unwritable: bool = False

    def run(self) -> None:
        self._record_own(Operation.OPEN)
        while not self._intake.closing:
            try:
                self._write_pending()
                if self._unpublished and time.monotonic() >= self._roll_at:
                    self._try_to_publish()
            except Exception:  # the outermost frame: recording goes on, whatever happened
                _log.exception("The ledger in %s failed unexpectedly; recording goes on.", self._folder)
                self._intake.urgent.wait(_RETRY_SECONDS)
            self._wait()
        try:
            self._finish()
        finally:
            self._intake.end()
        if self._intake.unrecorded:
            _log.warning(
                "The ledger in %s closed; %d operations were not recorded.", self._folder, self._intake.unrecorded
            )

    def _wait(self) -> None:
        intake = self._intake
        if self._chunk:
            intake.urgent.wait(max(0.0, self._retry_at - time.monotonic()))
        else:
            if not intake.queue and not intake.unrecorded:
                self._wait_idle()
            # Let a burst accumulate: one write for many records. A flush or close cuts this short.
            intake.urgent.wait(self._limits.flush_seconds)
        intake.urgent.clear()

    def _wait_idle(self) -> None:
        """Sleep until something is recorded, or the file is due for publication.

        Idle is announced before the queue is checked again: a record appended in between is either seen here, or its
        caller sees the announcement and wakes this thread.
        """
        intake = self._intake
        intake.wake.clear()
        intake.idle = True
        if not intake.queue and not intake.closing:
            intake.wake.wait(max(0.0, self._roll_at - time.monotonic()) if self._unpublished else None)
        intake.idle = False

    def _write_pending(self) -> None:
        """Write the queue to disk, chunk by chunk, until it is empty or the disk refuses."""
        if self._chunk and time.monotonic() < self._retry_at and not self._intake.closing:
            return
        while True:
            if not self._retry_at:  # else a chunk was refused and waits
                self._encode_pending()
            if self._chunk and not self._try_to_write():
                return
            for event in self._flushes:
                event.set()
            self._flushes.clear()
            if not self._intake.queue and not self._intake.unrecorded:
                return

    def _encode_pending(self) -> None:
        missing = self._intake.take_unrecorded()
        if missing:
            self._record_own(Operation.GAP, count=missing, cause="refused")
            self._chunk_operations += missing
        queue = self._intake.queue
        room = _CHUNK_RECORDS
        while queue and room > 0:
            item = queue.popleft()
            if isinstance(item, Entry):
                for record in item.records(self._process, self._role):
                    self._add_to_chunk(record)
                room -= len(item.numbers)
                self._intake.taken(item)
            else:
                self._flushes.append(item)

    def _add_to_chunk(self, record: Record) -> None:
        """Encode a record. Values come from callers' callers: a record that cannot be encoded is counted."""
        end = len(self._chunk)
        try:
            try:
                self._encode(record)
            except UnicodeEncodeError:
                del self._chunk[end:]
                self._encode(_escaped(record))
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            del self._chunk[end:]
            self._intake.count_unrecorded(1)
            if not self._warned_unwritable:
                self._warned_unwritable = True
                _log.warning(
                    "The ledger in %s cannot encode a %s (%s). It is counted, like later ones, which are not logged.",
                    self._folder,
                    record.operation,
                    type(error).__name__,
                )
        else:
            self._chunk_operations += 1

    def _encode(self, record: Record) -> None:
        if record.message_id is not None and (self._id_salt is not None or type(record.message_id) is not str):
            text, salt = _text_of(record.message_id), self._id_salt
            message_id = text if salt is None else hashed_id(text, salt)
            record = replace(record, message_id=message_id, id_hashed=salt is not None)
        self._encoder.encode_into(record, self._chunk, -1)
        self._chunk += b"\n"

    def _record_own(self, operation: Operation, *, count: int = 1, cause: str | None = None, entity: str = "") -> None:
        """Record a statement of the ledger about itself."""
        self._encode(
            Record(
                v=SCHEMA_VERSION,
                n=next(self._intake.numbers),
                process=self._process,
                at_us=time.time_ns() // 1000,
                role=self._role,
                operation=operation,
                entity=entity,
                count=count,
                cause=cause,
            )
        )

    def _try_to_write(self) -> bool:
        try:
            self._write_chunk()
        except OSError as error:
            self._retry_at = time.monotonic() + _RETRY_SECONDS
            self._warn_refused(error)
            return False
        self._retry_at = 0.0
        return True

    def _try_to_publish(self) -> None:
        try:
            self._publish()
        except OSError as error:
            self._roll_at = time.monotonic() + _RETRY_SECONDS
            self._warn_refused(error)

    def _warn_refused(self, error: OSError) -> None:
        """Warn once, until a file is published again."""
        if not self._warned:
            self._warned = True
            _log.warning(
                "The ledger in %s cannot be written (%s). Sends go on; unrecorded operations are counted.",
                self._folder,
                error.strerror or type(error).__name__,
            )

    def _write_chunk(self) -> None:
        if self._torn:
            self._cut_back()
        if self._good_bytes >= self._limits.roll_bytes:
            self._publish()
        if self._descriptor is None:
            self._open()
        descriptor = self._descriptor
        assert descriptor is not None
        try:
            _write_all(descriptor, self._chunk)
        except OSError:
            self._torn = True
            self._cut_back()
            raise
        self._good_bytes += len(self._chunk)
        self._file_operations += self._chunk_operations
        self._chunk = bytearray()
        self._chunk_operations = 0
        if self._good_bytes >= self._limits.roll_bytes:
            self._roll_at = 0.0

    def _cut_back(self) -> None:
        """Cut off what a failed write left after the last whole line."""
        assert self._descriptor is not None
        os.ftruncate(self._descriptor, self._good_bytes)
        os.lseek(self._descriptor, self._good_bytes, os.SEEK_SET)
        self._torn = False

    def _open(self) -> None:
        self._make_room()
        self._file_number += 1
        self._path = self._folder / open_name(self._process, self._file_number)
        self._descriptor = open_exclusive(self._path)
        self._good_bytes = 0
        self._file_operations = 0
        self._roll_at = time.monotonic() + self._limits.roll_seconds

    def _make_room(self) -> None:
        """Keep the folder within its limit: refuse to grow, or drop the oldest closed files if `drop_oldest` is set."""
        excess = folder_bytes(self._folder) + len(self._chunk) - self._limits.folder_bytes
        if excess > 0 and self._limits.drop_oldest:
            for path in closed_files(self._folder):
                if excess <= 0:
                    break
                excess -= path.stat().st_size
                operations = _operations_in(path)
                path.unlink()
                # With the name of the file: readers know whether they have read it.
                self._record_own(Operation.GAP, count=operations, cause="dropped", entity=path.name)
        if excess > 0:
            limit = self._limits.folder_bytes
            raise OSError(0, f"its files have reached the limit of {limit} bytes")

    @property
    def _unpublished(self) -> bool:
        return self._descriptor is not None or self._folder_is_behind

    def _publish(self) -> None:
        """Publish the file, durable when this returns. A retry begins with the step that was refused."""
        if self._descriptor is not None:
            if self._torn:
                self._cut_back()
            os.fsync(self._descriptor)
            try:
                give_final_name(self._path)
            except FileNotFoundError:
                self._handle_missing_file(self._descriptor)
            self._folder_is_behind = True
            self.release()
        if self._folder_is_behind:
            sync_folder(self._folder)
            self._folder_is_behind = False
            self._warned = False

    def _handle_missing_file(self, descriptor: int) -> None:
        """The file was moved or deleted while it was written. If it was deleted, its operations are missing."""
        if os.fstat(descriptor).st_nlink:
            _log.warning("The ledger file %s was moved while it was being written. Publish it there.", self._path)
        else:
            self._intake.count_unrecorded(self._file_operations)
            _log.warning(
                "The ledger file %s was deleted while it was being written. Its operations are counted as missing.",
                self._path,
            )

    def release(self) -> None:
        """Close the file without publishing it."""
        descriptor, self._descriptor = self._descriptor, None
        self._good_bytes = 0
        if descriptor is not None:
            os.close(descriptor)

    def _finish(self) -> None:
        """Write the last records. A disk that still refuses keeps its whole lines; the rest is logged."""
        self._write_pending()
        if not self._chunk:
            self._record_own(Operation.CLOSE)
            self._try_to_write()
        self._try_to_publish()
        self.release()
        self._intake.count_unrecorded(self._chunk_operations)


def _write_all(descriptor: int, data: bytearray) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _text_of(message_id: object) -> str:
    """An id that is not text, as text: the same form as when it is read from a message."""
    if isinstance(message_id, bytes | bytearray | memoryview):
        return bytes(message_id).hex()
    return str(message_id)


def _escaped(record: Record) -> Record:
    """The same record, with text that cannot be encoded (half of a surrogate pair) escaped."""
    texts = {
        name: value.encode("utf-8", "backslashreplace").decode()
        for name in record.__struct_fields__
        if type(value := getattr(record, name)) is str
    }
    return replace(record, **texts)


def _operations_in(path: Path) -> int:
    with path.open("rb") as lines:
        return sum(b'"operation":"ledger-' not in line for line in lines)


class LedgerWriter:
    """Records operations into `folder`. Share one writer among all that record there in a process.

    `id_salt` replaces message ids by a keyed hash; processes whose records are compared need the same salt. By default
    it is the value of the environment variable PAIRBUS_ID_SALT, if that is set.
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
        """The address of a namespace that records its own operations; added to every record from now on."""
        self._id_salt = id_salt
        self._limits = limits or LedgerLimits()
        self._pending_limit = self._limits.pending_records
        try:
            private_folder(self.folder)
        except OSError as error:
            raise OSError(
                f"Cannot use the ledger folder {str(folder)!r}: {error.strerror}. Give a folder that this process may "
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
        """Operations that are neither written nor queued, and not yet recorded as a gap."""
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
            self._wake_scribe()

    def flush(self, timeout: float = 10.0) -> bool:
        """Wait until everything recorded before this call is in the file; False after the timeout."""
        if self._thread is None or self._intake.closing:
            return not self._queue
        written = threading.Event()
        self._queue.append(written)
        self._intake.hurry()
        return written.wait(timeout)

    def close(self, timeout: float = 10.0) -> None:
        """Write pending records, publish the file, end the thread. Closing again does nothing."""
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

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wake_scribe(self) -> None:
        if self._intake.ended:
            # Closed while this record was being added: nobody will take it from the queue.
            self._intake.count_leftovers()
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

    def _restart_in_child(self) -> None:
        if self._thread is not None:
            self._scribe.release()  # the file and its lock are the parent's
        closed = self._intake.closing
        self._begin()
        self._intake.closing = closed


def host_label() -> str:
    """The host name, fit for a file name."""
    kept = "".join(c if c.isalnum() or c == "-" else "-" for c in socket.gethostname().split(".")[0])
    return kept[:32] or "host"


def salt_from_environment() -> bytes | None:
    """The salt of writers that are created without one; None if the variable is not set."""
    salt = os.environ.get(SALT_VARIABLE, "").encode()
    if salt and not 8 <= len(salt) <= 64:
        raise ValueError(f"The environment variable {SALT_VARIABLE} has {len(salt)} bytes; give 8 to 64 random ones.")
    return salt or None


# Strong references: a writer that its owner dropped still holds records, which the interpreter's exit writes.
_writers: set[LedgerWriter] = set()


def _close_all() -> None:
    for writer in list(_writers):
        writer.close()


def _after_fork_in_child() -> None:
    for writer in list(_writers):
        writer._restart_in_child()


def _close_all_when_worker_ends(_: object = None) -> None:
    """A `multiprocessing` worker ends with `os._exit` and runs its own list of finalizers, not `atexit`."""
    Finalize(None, _close_all, exitpriority=0)


atexit.register(_close_all)
os.register_at_fork(after_in_child=_after_fork_in_child)
# A worker begins with an empty list: entries from before the fork, or from right after it, are dropped. Functions that
# were registered run after that. A worker that imports this module only after the fork has begun already.
_close_all_when_worker_ends()
register_after_fork(_close_all, _close_all_when_worker_ends)
