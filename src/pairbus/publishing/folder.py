"""The state folder: its files, its permissions, and the locks that tell whether a process is alive.

    STATE_DIR/                    0700, private to its owner
      HOST-PID-RANDOM/            0700, one per process, locked (flock) by it while it runs
        state.json                0600, replaced as a whole
        request-ID.json           0600, written by a dashboard, removed by whoever takes it
      dashboard-PORT.token        0600, exists while a dashboard that allows control runs

Rules
- Writers and readers refuse a folder that other users can access, that belongs to another user, or that contains any
  other files.
- Cleaning up removes only folders that have the name of a process and contain nothing but its files.
- A process is alive while it holds the lock of its folder. A kill releases the lock.
- A request belongs to whoever removes its file, which happens once: either the process takes it, or the requester
  withdraws it, and then nothing is done.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec

from pairbus.errors import UsageError
from pairbus.private import private_folder, read_private, replace_private
from pairbus.publishing.records import STATE_VERSION, ControlRequest, ProcessState

STATE_FILE = "state.json"
KEPT_ENDED = 200
MOST_STATE_BYTES = 16 * 1024 * 1024
"""More than a state can have within its bounds."""
MOST_REQUEST_BYTES = 4096

_PROCESS = re.compile(r"[^./][^/]*-[0-9]+-[0-9a-f]{8}")
_OURS = re.compile(rf"\.?{_PROCESS.pattern}|dashboard-[0-9]+\.token")
"""A process folder, with its final name or not, or the token of a dashboard."""
_FILE = re.compile(r"(?:state|request-[0-9a-f]+)\.json|\.(?:state|request-[0-9a-f]+)\.json\.[0-9a-f]{8}")
"""A file of a process, or a draft of one."""

_encoder = msgspec.json.Encoder()
_states = msgspec.json.Decoder(ProcessState)
_requests = msgspec.json.Decoder(ControlRequest)


class FolderError(UsageError):
    """The state folder cannot be used; the message says why and what to do."""


def open_state_folder(folder: Path) -> None:
    """Create the folder, or check that it is private and has no other files."""
    try:
        private_folder(folder)
        mode = folder.stat().st_mode
    except OSError as error:
        raise FolderError(f"Cannot use the state folder {folder}: {error.strerror}.") from error
    if mode & 0o077:
        raise FolderError(f"Other users can access the state folder {folder}. Make it private: chmod 700 {folder}")
    try:
        foreign = min((path.name for path in folder.iterdir() if not _OURS.fullmatch(path.name)), default=None)
    except OSError as error:
        raise FolderError(f"Cannot read the state folder {folder}: {error.strerror}.") from error
    if foreign is not None:
        raise FolderError(
            f"The state folder {folder} contains other files ({foreign[:80]!r}). Choose an empty folder, or one that "
            "does not exist yet."
        )


class OwnFolder:
    """The folder of this process inside the state folder, locked until `close`."""

    def __init__(self, state_folder: Path, process: str) -> None:
        self.path = state_folder / process
        # The folder is renamed after it is locked, so that nobody mistakes it for the folder of a dead process.
        unnamed = state_folder / f".{process}"
        unnamed.mkdir(mode=0o700)
        self._descriptor = os.open(unnamed, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            unnamed.rename(self.path)
        except OSError:
            os.close(self._descriptor)
            unnamed.rmdir()
            raise

    def write(self, state: ProcessState) -> None:
        replace_private(self.path / STATE_FILE, _encoder.encode(state))

    def take_requests(self) -> Iterator[ControlRequest]:
        """Take the waiting requests, oldest first; files that are not valid requests are removed."""
        for path in sorted(self.path.glob("request-*.json"), key=_changed):
            raw = _content(path, MOST_REQUEST_BYTES)
            try:
                path.unlink()
            except FileNotFoundError:
                continue  # withdrawn
            with contextlib.suppress(msgspec.MsgspecError):
                request = _requests.decode(raw)
                if request.v == STATE_VERSION:
                    yield request

    def close(self) -> None:
        os.close(self._descriptor)


def put_request(state_folder: Path, process: str, request: ControlRequest) -> Path:
    """Write a request to a process; returns its file, which the process takes or `withdraw_request` removes."""
    path = state_folder / process / f"request-{request.id}.json"
    replace_private(path, _encoder.encode(request))
    return path


def withdraw_request(path: Path) -> bool:
    """Remove a request; True if the process had not taken it, so that nothing was or will be done."""
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    return True


def is_alive(process_folder: Path) -> bool:
    """Whether the process holds its lock."""
    try:
        descriptor = os.open(process_folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def process_folders(state_folder: Path) -> list[Path]:
    """The folders of all processes, the most recently written first."""
    folders = [path for path in state_folder.iterdir() if _PROCESS.fullmatch(path.name) and path.is_dir()]
    return sorted(folders, key=lambda path: _changed(path / STATE_FILE), reverse=True)


def read_state(process_folder: Path) -> ProcessState | None:
    """The last state of the process; None if it is unreadable or of a later version."""
    try:
        state = _states.decode(_content(process_folder / STATE_FILE, MOST_STATE_BYTES))
    except msgspec.MsgspecError:
        return None
    return state if state.v <= STATE_VERSION else None


def tidy(state_folder: Path, before: float) -> None:
    """Remove the folders of processes that ended before a time, and all but the last `KEPT_ENDED`."""
    ended = [path for path in process_folders(state_folder) if not is_alive(path)]
    for position, path in enumerate(ended):
        if position >= KEPT_ENDED or _changed(path / STATE_FILE) < before:
            _remove(path)
    for path in state_folder.glob(".*"):  # never got its final name
        if _PROCESS.fullmatch(path.name[1:]) and _changed(path) < before and not is_alive(path):
            _remove(path)


def _remove(process_folder: Path) -> None:
    """Remove the folder and its files, unless it contains anything else."""
    with contextlib.suppress(OSError):
        files = list(process_folder.iterdir())
        if all(stat.S_ISREG(file.lstat().st_mode) and _FILE.fullmatch(file.name) for file in files):
            for file in files:
                file.unlink()
            process_folder.rmdir()


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _content(path: Path, most: int) -> bytes:
    """The content of our file; empty if another user can write it, or if it is too large."""
    try:
        return read_private(path, most)
    except OSError:
        return b""
