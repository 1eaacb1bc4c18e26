"""Descriptions of running servers on disk, through which other processes of the same user find them.

- A description contains a key: only its owner can read the file (mode 600), and it is written atomically.
- It is written to the requested ready file, to the data folder and to the user's run folder.
- A server removes its descriptions when it stops. A killed server leaves them behind; a reader recognises them because
  their process is gone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pairbus.embedded.server import EmbeddedServer

import msgspec

from pairbus.private import read_private, replace_private

DATA_FOLDER_FILE = "server.json"
MOST_BYTES = 1_000_000


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server that accepts connections: the content of a ready file."""

    name: str
    port: int
    connection_string: str = field(repr=False)
    ca_file: str
    pid: int

    @classmethod
    def of(cls, server: EmbeddedServer) -> RunningServer:
        """Describe a server of this process."""
        return cls(server.name, server.port, server.connection_string, str(server.ca_file), os.getpid())

    @staticmethod
    def write_all(servers: Sequence[RunningServer], path: Path) -> None:
        """Write the descriptions to `path`, one line each, atomically and readable by their owner only."""
        replace_private(path, b"".join(msgspec.json.encode(server) + b"\n" for server in servers), durable=True)

    @classmethod
    def find(cls, path: Path) -> RunningServer | None:
        """The server that a ready file or a data folder describes, if there is one. Raises like `read`."""
        if path.is_dir() and (path / DATA_FOLDER_FILE).exists():
            path = path / DATA_FOLDER_FILE
        return cls.read(path) if path.is_file() else None

    @classmethod
    def read(cls, path: Path) -> RunningServer:
        """Read the first server described at `path`. Raises OSError, or ValueError if it is invalid."""
        try:
            return msgspec.json.decode(read_private(path, MOST_BYTES).partition(b"\n")[0], type=cls)
        except msgspec.DecodeError as error:
            raise ValueError(f"{path} does not describe a pairbus server.") from error

    @property
    def alive(self) -> bool:
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return True


def run_folder() -> Path:
    """The folder that lists this user's running servers."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Path(runtime, "pairbus") if runtime else Path.home() / ".cache" / "pairbus" / "run"


def run_file(server: RunningServer) -> Path:
    """The server's file in the run folder. One per process, so servers of the same name do not hide each other."""
    return run_folder() / f"{server.name}.{server.pid}.json"


def running_servers() -> Iterator[RunningServer]:
    """This user's live servers."""
    return (server for server in known_servers() if server.alive)


def known_servers() -> list[RunningServer]:
    """This user's live servers, then the most recently killed server of each name that is not running again.

    Older descriptions of killed servers are removed.
    """
    alive: list[RunningServer] = []
    killed: dict[str, tuple[RunningServer, Path]] = {}
    for path in sorted(run_folder().glob("*.json"), key=_modified_ns):
        try:
            server = RunningServer.read(path)
        except (OSError, ValueError):
            continue
        if server.alive:
            alive.append(server)
            continue
        earlier = killed.pop(server.name, None)
        if earlier is not None:
            earlier[1].unlink(missing_ok=True)
        killed[server.name] = server, path
    for name in {server.name for server in alive} & set(killed):
        killed.pop(name)[1].unlink(missing_ok=True)
    return sorted(alive, key=lambda server: (server.name, server.pid)) + [server for server, _ in killed.values()]


def _modified_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
