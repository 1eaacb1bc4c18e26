"""The ledger's files: their names, their publication, and the files of processes that died.

A process writes `NAME.jsonl.open` and holds a lock (flock) on it. Publication renames it to `NAME.jsonl`; after that it
never changes. So an `.open` file without a lock belongs to a process that died, and is published as it is. Its last
line may be torn; readers quarantine it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

CLOSED_SUFFIX = ".jsonl"
_OPEN_MARK = ".open"
OPEN_SUFFIX = f"{CLOSED_SUFFIX}{_OPEN_MARK}"
_UNNAMED_SUFFIX = ".new"
MOST_LINE_BYTES = 1024 * 1024
"""No record is longer; readers skip a longer line, so that it cannot take their memory."""
_KEPT_BYTES = 1000
"""How much of a longer line is shown."""
# Spark hides names that begin with `_` or a dot, and reads `*`, `[` and `{` as patterns.
_READABLE_NAME = re.compile(r"(?![_.])[\w.-]+")
_log = logging.getLogger("pairbus.ledger")


def closed_name(process: str, number: int) -> str:
    """The name of a process's published file with this number."""
    return f"{process}.{number:06d}{CLOSED_SUFFIX}"


def closed_files(folder: Path) -> list[Path]:
    """Published files, oldest first."""
    return sorted(filter(_is_readable, folder.glob(f"*{CLOSED_SUFFIX}")), key=_age)


def open_files(folder: Path) -> list[Path]:
    return sorted(filter(_is_readable, folder.glob(f"*{OPEN_SUFFIX}")))


def skipped_files(folder: Path) -> list[Path]:
    """Entries that end like ledger files and are none: symbolic links, folders, pipes, names that Spark cannot read."""
    named = (path for suffix in (CLOSED_SUFFIX, OPEN_SUFFIX) for path in folder.glob(f"*{suffix}"))
    return sorted(path for path in named if not _is_readable(path))


def warn_of_skipped(folder: Path) -> int:
    """Name the skipped files in the log; returns how many there are."""
    skipped = skipped_files(folder)
    for path in skipped:
        _log.warning("Skipped %r: a ledger file is a regular file, named like host-1-ab.000001.jsonl.", str(path))
    return len(skipped)


def _is_readable(path: Path) -> bool:
    try:
        is_file = stat.S_ISREG(path.lstat().st_mode)
    except FileNotFoundError:  # just published or removed: its reader notices
        is_file = True
    return is_file and _READABLE_NAME.fullmatch(path.name) is not None


def with_short_lines(files: Iterable[Path], copies: Path) -> list[Path]:
    """The files, but a file with a line above `MOST_LINE_BYTES` is replaced by a copy of the same name in `copies`.

    In the copy, a broken line that states the length stands for the long line.
    """
    return [_shortened(path, spans, copies) if (spans := _long_lines(path)) else path for path in files]


def _shortened(path: Path, spans: Sequence[tuple[int, int]], copies: Path) -> Path:
    copies.mkdir(mode=0o700, parents=True, exist_ok=True)
    copy = copies / path.name
    done = 0
    with path.open("rb") as file, copy.open("wb") as output:
        for start, end in (*spans, (path.stat().st_size, None)):
            for offset in range(done, start, MOST_LINE_BYTES):
                output.write(os.pread(file.fileno(), min(MOST_LINE_BYTES, start - offset), offset))
            if end is not None:
                head = os.pread(file.fileno(), _KEPT_BYTES, start)
                output.write(b"(a line of %d bytes) %s\n" % (end - start, head))
                done = end
    return copy


def _long_lines(path: Path) -> list[tuple[int, int]]:
    """The start and end of every line above `MOST_LINE_BYTES`. Reads a small part of the file: the ends of windows."""
    spans = []
    with path.open("rb") as file:
        size, start = os.fstat(file.fileno()).st_size, 0
        while size - start > MOST_LINE_BYTES:
            following = _line_start_before(file, start + MOST_LINE_BYTES)
            if following is None:
                file.seek(start + MOST_LINE_BYTES)
                while not (piece := file.readline(MOST_LINE_BYTES)).endswith(b"\n") and piece:
                    pass
                following = file.tell()
                spans.append((start, following))
            start = following
    return spans


def _line_start_before(file: BinaryIO, end: int) -> int | None:
    """Where the last line begins that begins within `MOST_LINE_BYTES` before `end`, or exactly there."""
    for length in (8192, MOST_LINE_BYTES):
        found = os.pread(file.fileno(), length, end - length).rfind(b"\n")
        if found >= 0:
            return end - length + found + 1
    return None


def files_as_they_are(folder: Path, copies: Path) -> list[Path]:
    """All files as they are now, each once, for slow readers.

    The whole lines of open files are copied into the folder `copies` at once, because an open file may be published at
    any moment, even between listing open files and listing published ones.
    """
    copied = {}
    for path in open_files(folder):
        try:
            content = path.read_bytes()
        except FileNotFoundError:  # just published: listed below
            continue
        copy = copies / path.name.removesuffix(_OPEN_MARK)
        copy.write_bytes(content[: content.rfind(b"\n") + 1])
        copied[copy.name] = copy
    return [*(path for path in closed_files(folder) if path.name not in copied), *copied.values()]


def _age(path: Path) -> tuple[int, str]:
    try:
        return path.stat().st_mtime_ns, path.name
    except FileNotFoundError:
        return 0, path.name


def folder_bytes(folder: Path) -> int:
    """The size of all ledger files of all processes."""
    return sum(_size(path) for path in (*closed_files(folder), *open_files(folder)))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def open_name(process: str, number: int) -> str:
    return closed_name(process, number) + _OPEN_MARK


def open_exclusive(path: Path) -> int:
    """Create a private file, locked by this process while it stays open.

    It is named after it is locked, so nobody can mistake it for the file of a dead process.
    """
    unnamed = path.with_name(path.name + _UNNAMED_SUFFIX)
    descriptor = os.open(unnamed, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        unnamed.rename(path)
    except OSError:
        os.close(descriptor)
        unnamed.unlink(missing_ok=True)
        raise
    return descriptor


def publish(open_path: Path) -> Path:
    """Rename the file to its final name; durable when this returns."""
    final = give_final_name(open_path)
    sync_folder(final.parent)
    return final


def give_final_name(open_path: Path) -> Path:
    """Rename the file to its final name; durable after `sync_folder`."""
    final = open_path.with_name(open_path.name.removesuffix(_OPEN_MARK))
    open_path.rename(final)
    return final


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def publish_orphans(folder: Path) -> list[Path]:
    """Publish the open files of dead processes; files of living processes are not touched.

    A file that cannot be published is logged and left for others.
    """
    published = []
    for path in open_files(folder):
        with _skip_if_refused(path), _lock_if_free(path) as free:
            if free:
                published.append(publish(path))
    for path in folder.glob(f"*{OPEN_SUFFIX}{_UNNAMED_SUFFIX}"):
        # The owner died between creating and naming it, so it is empty. An owner that lives and has not locked it yet
        # finds its file gone and creates another.
        with _skip_if_refused(path), _lock_if_free(path) as free:
            if free:
                path.unlink()
    return published


@contextlib.contextmanager
def _skip_if_refused(path: Path) -> Iterator[None]:
    """Log and skip a file that cannot be changed, such as another user's or one on a read-only disk."""
    try:
        yield
    except OSError as error:
        _log.warning("The ledger file %s of a process that died stays open: %s.", path, error.strerror)


@contextlib.contextmanager
def _lock_if_free(path: Path) -> Iterator[bool]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:  # just published by its owner or another reader
        yield False
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            yield False
            return
        # The owner may have published between our open and our lock.
        yield path.exists()
    finally:
        os.close(descriptor)
