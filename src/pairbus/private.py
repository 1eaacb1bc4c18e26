"""Folders and files that only this user can change.

Whoever can write to a folder can replace what is later read or executed from it, and whoever owns a file can change it
at any time. So every folder with keys, messages, records or programs is made and opened here: it belongs to this user,
nobody else can write to it, and no symbolic link inside it is followed.

Every refusal is a `NotPrivateError`. Its `strerror` completes the caller's "Cannot use the … folder …: ".
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class NotPrivateError(PermissionError):
    """Another user owns a folder or file, or can write to it."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(errno.EPERM, reason, str(path))


def refusal(status: os.stat_result, user: int) -> str | None:
    """Why the user must not trust a file or folder with this status; None if there is no reason."""
    if status.st_uid != user:
        return f"it belongs to user {status.st_uid}, not to user {user}"
    if status.st_mode & _WRITABLE_BY_OTHERS and not stat.S_ISLNK(status.st_mode) and not stat.S_ISSOCK(status.st_mode):
        return "other users can write to it (chmod go-w makes it private)"
    return None


def private_folder(folder: Path, *, files: Sequence[str] = ()) -> None:
    """Make the folder with its parents, readable by this user only, or check the one that exists.

    The folder itself may be a symbolic link of this user. `files` are patterns of file names: such files in the folder
    are checked too. What else is there, such as `lost+found` on a disk of its own, is not looked at.
    """
    try:
        _make(folder)
    except FileExistsError:
        raise NotPrivateError(folder, "it is not a folder, so choose another path") from None
    user = os.geteuid()
    reason = refusal(folder.lstat(), user) or refusal(folder.stat(), user)
    if reason is not None:
        raise NotPrivateError(folder, f"{reason}. Use a folder of your own, for example {folder / 'private'}")
    for entry in os.scandir(folder) if files else ():
        if entry.is_dir(follow_symlinks=False) or not any(fnmatchcase(entry.name, pattern) for pattern in files):
            continue
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:  # a draft or a socket that another process has just removed
            continue
        reason = "it is a symbolic link" if stat.S_ISLNK(status.st_mode) else refusal(status, user)
        if reason is not None:
            raise NotPrivateError(
                Path(entry.path), f"do not trust {entry.name!r} in it: {reason}. Remove the file, or use another folder"
            )


def _make(folder: Path) -> None:
    """`Path.mkdir` with `parents` would make the parents with the mode of the umask."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except FileNotFoundError:
        if folder.parent == folder:
            raise
        _make(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def open_private(path: Path, flags: int) -> int:
    """Open a file of this user, or create it (`os.O_CREAT`) readable by this user only; returns its descriptor."""
    try:
        # Without O_NONBLOCK, opening a planted pipe would wait for its other end.
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise NotPrivateError(path, f"{path.name!r} in it is a symbolic link") from None
        raise
    status = os.fstat(descriptor)
    reason = refusal(status, os.geteuid()) if stat.S_ISREG(status.st_mode) else "it is not a file"
    if reason is not None:
        os.close(descriptor)
        raise NotPrivateError(path, f"do not trust {path.name!r} in it: {reason}")
    return descriptor


def read_private(path: Path, most_bytes: int) -> bytes:
    """The content of a file of this user. Raises OSError, also if it is larger than `most_bytes`."""
    with os.fdopen(open_private(path, os.O_RDONLY), "rb") as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {most_bytes} bytes", str(path))
    return content


def replace_private(path: Path, content: bytes, *, mode: int = 0o600, durable: bool = False) -> None:
    """Replace a file as a whole. At no time does it have a wider mode, and at no time is half of it visible."""
    draft = path.with_name(f".{path.name}.{os.getpid():08x}")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            file.write(content)
            file.flush()
            if durable:
                os.fsync(descriptor)
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
