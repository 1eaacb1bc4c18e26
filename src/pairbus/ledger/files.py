"""The ledger's files: names, publication, and what a dead process left behind.

A process writes `NAME.jsonl.open` and holds a lock (flock) on it. Published, it is `NAME.jsonl` and never
changes again. So a file that ends in `.open` and is not locked belonged to a process that died: it is
published as it is. Its last line may be torn, which readers quarantine.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
from collections.abc import Iterator
from pathlib import Path

CLOSED_SUFFIX = ".jsonl"
_OPENNESS = ".open"
OPEN_SUFFIX = f"{CLOSED_SUFFIX}{_OPENNESS}"
_UNNAMED_SUFFIX = ".new"
_log = logging.getLogger("pairbus.ledger")


def closed_name(process: str, number: int) -> str:
    """What a process calls its file of this number, once it is published."""
    return f"{process}.{number:06d}{CLOSED_SUFFIX}"


def closed_files(folder: Path) -> list[Path]:
    """Published files, oldest first."""
    return sorted(folder.glob(f"*{CLOSED_SUFFIX}"), key=_age)


def open_files(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"*{OPEN_SUFFIX}"))


def files_as_they_are(folder: Path, copies: Path) -> list[Path]:
    """All that is recorded now, each file once, for readers who take their time.

    Open files are read at once and copied into the folder `copies`, as far as they have whole lines: they may be
    published at any moment, also between the look for them and the look for published ones.
    """
    found = {}
    for path in open_files(folder):
        try:
            content = path.read_bytes()
        except FileNotFoundError:  # published in this moment: it is among the others below
            continue
        copy = copies / path.name.removesuffix(_OPENNESS)
        copy.write_bytes(content[: content.rfind(b"\n") + 1])
        found[copy.name] = copy
    return [*(path for path in closed_files(folder) if path.name not in found), *found.values()]


def _age(path: Path) -> tuple[int, str]:
    try:
        return path.stat().st_mtime_ns, path.name
    except FileNotFoundError:
        return 0, path.name


def folder_bytes(folder: Path) -> int:
    """Bytes held by all ledger files of all processes."""
    return sum(_size(path) for path in (*closed_files(folder), *open_files(folder)))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def open_name(process: str, number: int) -> str:
    return closed_name(process, number) + _OPENNESS


def open_exclusive(path: Path) -> int:
    """A new private file, locked by this process for as long as it stays open.

    It gets its name after its lock, so that nobody can take it for a dead process's.
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
    """Give the file its final name; durable when this returns."""
    final = give_final_name(open_path)
    sync_folder(final.parent)
    return final


def give_final_name(open_path: Path) -> Path:
    """What the others see as published; durable after `sync_folder`."""
    final = open_path.with_name(open_path.name.removesuffix(_OPENNESS))
    open_path.rename(final)
    return final


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def publish_orphans(folder: Path) -> list[Path]:
    """Publish what dead processes left open; files of living processes are not touched.

    A file that cannot be published is named in the log and left to those who can.
    """
    published = []
    for path in open_files(folder):
        with _passing_over(path), _lock_if_free(path) as free:
            if free:
                published.append(publish(path))
    for path in folder.glob(f"*{OPEN_SUFFIX}{_UNNAMED_SUFFIX}"):
        # Left by a death between creation and naming, so it is empty. If its owner lives and has not locked it yet, it
        # finds its file gone, and makes another.
        with _passing_over(path), _lock_if_free(path) as free:
            if free:
                path.unlink()
    return published


@contextlib.contextmanager
def _passing_over(path: Path) -> Iterator[None]:
    """What cannot be touched (another user's, a disk that is read-only) stays for others, and stops nobody."""
    try:
        yield
    except OSError as error:
        _log.warning("The ledger file %s of a process that died stays open: %s.", path, error.strerror)


@contextlib.contextmanager
def _lock_if_free(path: Path) -> Iterator[bool]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:  # published by its owner, or by another reader, in this moment
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
