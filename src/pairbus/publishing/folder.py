"""The state folder: who writes what, who may read it, and how one knows that a process is dead.

    STATE_DIR/                    0700, its owner's alone
      HOST-PID-RANDOM/            0700, one for each process, locked (flock) by it as long as it lives
        state.json                0600, replaced as a whole
        request-ID.json           0600, put there by a dashboard, removed by whoever takes it
      dashboard-PORT.token        0600, as long as a dashboard that allows control runs

Rules
- A folder that others may write into, that is somebody else's, or that holds anything that is none of the above, is
  refused by writers and readers alike.
- Only what is certainly ours is ever removed: a folder with the name of a process that holds nothing but its files.
- A process is alive as long as it holds the lock of its folder: a kill lets go of it, whatever becomes of its number.
- A request belongs to whoever removes its file. That happens once: either the process takes it, or the one who asked
  takes it back, and then nothing is done.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec

from pairbus.publishing.records import STATE_VERSION, ProcessState, Request

STATE_FILE = "state.json"
KEPT_ENDED = 200
MOST_STATE_BYTES = 16 * 1024 * 1024
"""More than all the bounds of a state together allow."""
MOST_REQUEST_BYTES = 4096

_PROCESS = re.compile(r"[^./][^/]*-[0-9]+-[0-9a-f]{8}")
_TOKEN = re.compile(r"dashboard-[0-9]+\.token")
_FILE = re.compile(r"(?:state|request-[0-9a-f]+)\.json")
_DRAFT = re.compile(r"\.(?:state|request-[0-9a-f]+)\.json\.[0-9a-f]{8}")

_encoder = msgspec.json.Encoder()
_states = msgspec.json.Decoder(ProcessState)
_requests = msgspec.json.Decoder(Request)


class FolderError(Exception):
    """The state folder cannot be used; the text says why and what to do."""


def open_state_folder(folder: Path) -> None:
    """Make the folder, or check that it is ours alone and for this alone."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise FolderError(f"The state folder {folder} cannot be made: {error.strerror}.") from error
    if not stat.S_ISDIR(found.st_mode):
        raise FolderError(f"The state folder {folder} is no folder: name another one.")
    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise FolderError(f"The state folder {folder} is open to others: make it yours alone with chmod 700 {folder}.")
    try:
        foreign = min((one.name for one in folder.iterdir() if not _is_ours(one.name)), default=None)
    except OSError as error:
        raise FolderError(f"The state folder {folder} cannot be read: {error.strerror}.") from error
    if foreign is not None:
        raise FolderError(
            f"The state folder {folder} holds something else ({foreign[:80]!r}): name a folder that is for this alone, "
            "such as one that is not there yet."
        )


class OwnFolder:
    """The folder of this process inside the state folder, locked until `close`."""

    def __init__(self, state_folder: Path, process: str) -> None:
        self.path = state_folder / process
        # It gets its name after its lock, so that nobody can take it for a dead process's.
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
        _write_private(self.path / STATE_FILE, _encoder.encode(state))

    def take_requests(self) -> Iterator[Request]:
        """The requests that wait, each once, oldest first; what is no request of ours is removed unread."""
        for path in sorted(self.path.glob("request-*.json"), key=_changed):
            raw = _read_private(path, MOST_REQUEST_BYTES)
            try:
                path.unlink()
            except FileNotFoundError:
                continue  # taken back
            with contextlib.suppress(msgspec.MsgspecError):
                request = _requests.decode(raw)
                if request.v == STATE_VERSION:
                    yield request

    def close(self) -> None:
        os.close(self._descriptor)


def put_request(state_folder: Path, process: str, request: Request) -> Path:
    """Ask a process; it takes the file that is returned, or `take_back` does."""
    path = state_folder / process / f"request-{request.id}.json"
    _write_private(path, _encoder.encode(request))
    return path


def take_back(path: Path) -> bool:
    """Whether the request was still there: then nothing was and will be done."""
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
    """The folders of all processes, the one that wrote last first."""
    found = [path for path in state_folder.iterdir() if _PROCESS.fullmatch(path.name) and path.is_dir()]
    return sorted(found, key=lambda path: _changed(path / STATE_FILE), reverse=True)


def read_state(process_folder: Path) -> ProcessState | None:
    """What the process last wrote; None if that cannot be read or is of a later version."""
    try:
        state = _states.decode(_read_private(process_folder / STATE_FILE, MOST_STATE_BYTES))
    except msgspec.MsgspecError:
        return None
    return state if state.v <= STATE_VERSION else None


def tidy(state_folder: Path, before: float) -> None:
    """Remove what processes left that ended before a time, and all but the last `KEPT_ENDED` that ended."""
    ended = [path for path in process_folders(state_folder) if not is_alive(path)]
    for position, path in enumerate(ended):
        if position >= KEPT_ENDED or _changed(path / STATE_FILE) < before:
            _remove(path)
    for path in state_folder.glob(".*"):  # begun, and never named
        if _PROCESS.fullmatch(path.name[1:]) and _changed(path) < before and not is_alive(path):
            _remove(path)


def _remove(process_folder: Path) -> None:
    """Remove the folder and its files, by their names; one that holds anything else stays as it is."""
    with contextlib.suppress(OSError):
        files = list(process_folder.iterdir())
        if all(stat.S_ISREG(file.lstat().st_mode) and _is_file_of_process(file.name) for file in files):
            for file in files:
                file.unlink()
            process_folder.rmdir()


def _is_ours(name: str) -> bool:
    """Whether something in a state folder with this name is a process's, begun or named, or a dashboard's."""
    return bool(_PROCESS.fullmatch(name.removeprefix(".")) or _TOKEN.fullmatch(name))


def _is_file_of_process(name: str) -> bool:
    return bool(_FILE.fullmatch(name) or _DRAFT.fullmatch(name))


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _write_private(path: Path, content: bytes) -> None:
    """Put a whole file in its place, readable by its owner only."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def _read_private(path: Path, most: int) -> bytes:
    """The content of a file of ours that nobody else can write; empty for any other, and for one that is too large."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
            return b""
        return b"" if found.st_size > most else file.read(most)
