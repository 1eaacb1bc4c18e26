"""The control socket: asking a running syphon for its state, pausing it, telling it to stop.

One command a line (`state`, `pause`, `resume`, `stop`), one JSON object a line back: the state, or `{"error": ...}`.
The socket is a file that only its owner can open.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from pairbus.syphon.service import Syphon

COMMANDS = ("state", "pause", "resume", "stop")
_LONGEST_PATH = 100
_ASK_SECONDS = 10.0


class ControlError(Exception):
    """The socket cannot be made or nobody answers at it."""


@contextlib.asynccontextmanager
async def control_socket(syphon: Syphon, path: Path) -> AsyncIterator[None]:
    """Answer at `path` as long as the context lasts; a socket that a dead syphon left there is replaced."""
    if len(str(path)) > _LONGEST_PATH:
        raise ControlError(
            f"The control socket's path has {len(str(path))} characters; the system takes {_LONGEST_PATH}: choose a "
            "shorter one."
        )
    await asyncio.to_thread(_make_place, path)
    mask = os.umask(0o177)
    try:
        server = await asyncio.start_unix_server(lambda reader, writer: _serve(syphon, reader, writer), path)
    except OSError as error:
        raise ControlError(f"The control socket {path} cannot be made: {error.strerror}.") from error
    finally:
        os.umask(mask)
    try:
        yield
    finally:
        server.close()
        await asyncio.to_thread(path.unlink, missing_ok=True)


async def _serve(syphon: Syphon, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError, ValueError):  # ValueError: a line without end
        while line := await reader.readline():
            writer.write(json.dumps(_answer(syphon, line.decode("utf-8", "replace").strip())).encode() + b"\n")
            await writer.drain()
    writer.close()


def _answer(syphon: Syphon, command: str) -> dict[str, Any]:
    match command:
        case "pause":
            syphon.pause()
        case "resume":
            syphon.resume()
        case "stop":
            syphon.stop()
        case "state":
            pass
        case _:
            return {"error": f"{command[:40]!r} is unknown; known are {', '.join(COMMANDS)}."}
    return syphon.state().as_dict()


def ask(path: Path, command: str) -> dict[str, Any]:
    """Send one command to the syphon that answers at `path`."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_ASK_SECONDS)
            connection.connect(str(path))
            connection.sendall(command.encode() + b"\n")
            with connection.makefile("rb") as lines:
                answer: dict[str, Any] = json.loads(lines.readline())
    except (OSError, ValueError) as error:
        raise ControlError(f"No syphon answers at {path} ({error}): start one with --control {path}.") from error
    if "error" in answer:
        raise ControlError(str(answer["error"]))
    return answer


def _make_place(path: Path) -> None:
    """Remove what a dead syphon left; refuse if a living one answers."""
    if path.exists():
        try:
            ask(path, "state")
        except ControlError:
            path.unlink()
        else:
            raise ControlError(f"Another syphon answers at {path}: give each one its own control socket.")
