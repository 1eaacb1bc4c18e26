"""How other processes observe and control a running syphon.

- The control socket: one command per line (`state`, `pause`, `resume`, `stop`), one JSON object per line back (the
  state, or `{"error": ...}`). The socket is a file that only its owner can open.
- The state directory: the syphon publishes its counts and state there, and applies requests (`pairbus.publishing`).

Health and metrics over HTTP are in `web`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pairbus.errors import UsageError
from pairbus.ledger import CompletedOperation

if TYPE_CHECKING:
    from pairbus.publishing import Publisher
    from pairbus.publishing.records import RequestedAction, SyphonReport
    from pairbus.syphon.service import Syphon

COMMANDS = ("state", "pause", "resume", "stop")
MOST_DESTINATIONS = 20
_LONGEST_PATH = 100
_ASK_SECONDS = 10.0


class ControlSocketError(UsageError):
    """The control socket cannot be created, or no syphon answers on it."""


@contextlib.asynccontextmanager
async def control_socket(syphon: Syphon, path: Path) -> AsyncIterator[None]:
    """Answer on `path` while the context lasts. A socket that a dead syphon left there is replaced."""
    if len(str(path)) > _LONGEST_PATH:
        raise ControlSocketError(
            f"The path of the control socket has {len(str(path))} characters; the system allows {_LONGEST_PATH}. "
            "Choose a shorter one."
        )
    await asyncio.to_thread(_remove_stale, path)
    mask = os.umask(0o177)
    try:
        server = await asyncio.start_unix_server(lambda reader, writer: _serve(syphon, reader, writer), path)
    except OSError as error:
        raise ControlSocketError(f"Cannot create the control socket {path}: {error.strerror}.") from error
    finally:
        os.umask(mask)
    try:
        yield
    finally:
        server.close()
        await asyncio.to_thread(path.unlink, missing_ok=True)


async def _serve(syphon: Syphon, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError, ValueError):  # ValueError: an endless line
        while line := await reader.readline():
            writer.write(json.dumps(_answer(syphon, line.decode("utf-8", "replace").strip())).encode() + b"\n")
            await writer.drain()
    writer.close()


def _answer(syphon: Syphon, command: str) -> dict[str, Any]:
    if command not in COMMANDS:
        return {"error": f"Unknown command {command[:40]!r}. Use one of {', '.join(COMMANDS)}."}
    if command != "state":
        getattr(syphon, command)()
    return syphon.state().as_dict()


def ask(path: Path, command: str) -> dict[str, Any]:
    """Send one command to the syphon that answers on `path`."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_ASK_SECONDS)
            connection.connect(str(path))
            connection.sendall(command.encode() + b"\n")
            with connection.makefile("rb") as lines:
                answer: dict[str, Any] = json.loads(lines.readline())
    except (OSError, ValueError) as error:
        raise ControlSocketError(f"No syphon answers on {path} ({error}). Start one with --control {path}.") from error
    if "error" in answer:
        raise ControlSocketError(str(answer["error"]))
    return answer


def _remove_stale(path: Path) -> None:
    """Remove the socket of a dead syphon. Raise if a running one answers, or if the file is not a socket."""
    if not path.exists():
        return
    if not path.is_socket():
        raise ControlSocketError(f"{path} exists and is not a socket. Choose another path for the control socket.")
    try:
        ask(path, "state")
    except ControlSocketError:
        path.unlink()
    else:
        raise ControlSocketError(f"Another syphon answers on {path}. Give each syphon its own control socket.")


def publish(syphon: Syphon, folder: Path | str | None, primary: str, secondary: str) -> PublishedSyphon | None:
    """Start publishing the syphon, if a state directory is configured."""
    if folder is None and not os.environ.get("PAIRBUS_STATE_DIR"):
        return None
    from pairbus.publishing import join

    publisher = join(folder)
    if publisher is None:
        return None
    published = PublishedSyphon(syphon, publisher, primary, secondary)
    publisher.add(published)
    return published


class PublishedSyphon:
    """A syphon as the publisher sees it. `primary` and `secondary` are named as in the ledger."""

    def __init__(self, syphon: Syphon, publisher: Publisher, primary: str, secondary: str) -> None:
        self.key = publisher.new_key("syphon")
        self._syphon = syphon
        self._publisher = publisher
        self._primary = primary
        self._secondary = secondary

    def count(self, completed: CompletedOperation) -> None:
        self._publisher.tally.count(self._primary, completed)

    def describe(self) -> SyphonReport:
        from pairbus.publishing.records import Pausing, PumpReport, SyphonReport

        state, now = self._syphon.state(), time.time()
        pumps = [
            PumpReport(
                queue=queue.queue,
                state=queue.state,
                in_hand=queue.in_hand,
                held=queue.held,
                restored=queue.counts.restored,
                dead_lettered=queue.counts.dead_lettered,
                paused=[
                    Pausing(paused.destination, now + paused.seconds_left, paused.failures)
                    for paused in queue.paused[:MOST_DESTINATIONS]
                ],
            )
            for queue in state.queues
        ]
        return SyphonReport(
            key=self.key,
            primary=self._primary,
            secondary=self._secondary,
            primary_name=self._syphon.primary_name,
            state=state.state,
            pumps=pumps,
        )

    def apply(self, action: RequestedAction, entity: str) -> str:
        from pairbus.publishing import RequestRefusedError
        from pairbus.publishing.records import RequestedAction

        if action is RequestedAction.PAUSE:
            self._syphon.pause()
            return "The syphon finishes the messages in hand and then pauses."
        if action is RequestedAction.RESUME:
            self._syphon.resume()
            return "The syphon resumes."
        raise RequestRefusedError("A syphon can only be paused and resumed.")

    def close(self) -> None:
        self._publisher.leave(self)
