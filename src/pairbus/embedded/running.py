"""What a running server says about itself on disk, so that other processes of the same user find it.

Rules:
- The description holds a key, so its file is its owner's alone (mode 600) and appears whole or not at all.
- It lies in the ready file that was asked for, in the data folder, and in the user's run folder.
- A server removes its descriptions when it stops. One that was killed leaves them behind; they name a process
  that is gone, which is how a reader recognises them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

DATA_FOLDER_FILE = "server.json"


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server that takes connections: exactly what a ready file holds."""

    name: str
    port: int
    connection_string: str = field(repr=False)
    ca_file: str
    pid: int

    @staticmethod
    def write_all(servers: Sequence[RunningServer], path: Path) -> None:
        """Puts the descriptions at `path`, a line each, whole, readable by their owner only."""
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        draft.unlink(missing_ok=True)
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.writelines(json.dumps(asdict(server)) + "\n" for server in servers)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise

    @classmethod
    def read(cls, path: Path) -> RunningServer:
        """The first server described at `path`. OSError when there is none, ValueError when it is something else."""
        try:
            content = json.loads(path.read_text(encoding="utf-8").partition("\n")[0])
            return cls(
                name=str(content["name"]),
                port=int(content["port"]),
                connection_string=str(content["connection_string"]),
                ca_file=str(content["ca_file"]),
                pid=int(content["pid"]),
            )
        except (KeyError, TypeError, UnicodeDecodeError, json.JSONDecodeError) as error:
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
    """Where this user's running servers are listed."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Path(runtime, "pairbus") if runtime else Path.home() / ".cache" / "pairbus" / "run"


def run_file(server: RunningServer) -> Path:
    """One file per process: two servers of one name do not hide each other."""
    return run_folder() / f"{server.name}.{server.pid}.json"


def running_servers() -> Iterator[RunningServer]:
    """This user's live servers."""
    return (server for server in known_servers() if server.alive)


def known_servers() -> list[RunningServer]:
    """This user's live servers, then the last one of each name that was killed and is not back.

    What was killed before, or is back, has its description removed.
    """
    alive: list[RunningServer] = []
    killed: dict[str, tuple[RunningServer, Path]] = {}
    for path in sorted(run_folder().glob("*.json"), key=_written):
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


def _written(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
