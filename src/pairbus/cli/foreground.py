"""A server in the foreground: started, described on disk, stopped by a signal.

Invariants: the descriptions (see `embedded.running`) exist only while connections are taken, a kill apart;
the server is stopped in order, whatever ends the wait.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from pathlib import Path

import typer

from pairbus.cli.refusal import Refusal
from pairbus.embedded.running import DATA_FOLDER_FILE, RunningServer, run_file, running_servers
from pairbus.embedded.server import EmbeddedServer, ServerStartError

log = logging.getLogger(__name__)


def serve(
    name: str,
    *,
    data: Path,
    host: str,
    port: int,
    config: Path | None,
    ready_file: Path | None,
    stop_with_stdin: bool,
) -> None:
    """Serves until SIGINT or SIGTERM, or, if so told, until standard input ends."""
    places = [data / DATA_FOLDER_FILE, *([] if ready_file is None else [ready_file])]

    async def run() -> None:
        told_to_stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for signal_number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(signal_number, told_to_stop.set)
        if stop_with_stdin:
            # Whoever started us holds the other end: if it dies, however it dies, we go too.
            try:
                loop.add_reader(0, _note_end_of_stdin, told_to_stop)
            except OSError as error:
                raise Refusal("--stop-with-stdin needs a pipe as its standard input, not a file.") from error
        server = EmbeddedServer(name, data, host=host, port=port, config=config)
        try:
            await server.start()
        except ServerStartError as error:
            raise Refusal(str(error)) from error
        try:
            await _described(server, places, told_to_stop)
        finally:
            await server.stop()

    asyncio.run(run())


async def _described(server: EmbeddedServer, places: list[Path], told_to_stop: asyncio.Event) -> None:
    running = RunningServer(
        name=server.name,
        port=server.port,
        connection_string=server.connection_string,
        ca_file=str(server.ca_file),
        pid=os.getpid(),
    )
    try:
        _put_on_list(running)
        for place in places:
            try:
                running.write(place)
            except OSError as error:
                raise Refusal(f"{place} cannot be written: {error.strerror}.") from error
        typer.echo(f"{running.name} takes connections on port {running.port}. Ctrl-C stops it.")
        typer.echo(f"Connection string: {running.connection_string}")
        typer.echo(f"Certificate for the administration client: {running.ca_file}")
        await told_to_stop.wait()
    finally:
        for place in [run_file(running), *places]:
            _remove_own(place, running)


def _put_on_list(running: RunningServer) -> None:
    """Puts the server on the user's list; without a home it is not listed, and serves all the same."""
    try:
        path = run_file(running)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for _ in running_servers():
            pass  # reading the list clears away what dead servers left
        running.write(path)
    except OSError as error:
        log.warning("this server cannot be found by its name", extra={"cause": str(error)})


def _remove_own(place: Path, running: RunningServer) -> None:
    """Removes a description, unless another server has put its own there since."""
    try:
        if RunningServer.read(place) == running:
            place.unlink()
    except (OSError, ValueError):
        log.debug("a description was gone already", extra={"path": str(place)})


def _note_end_of_stdin(told_to_stop: asyncio.Event) -> None:
    if not os.read(0, 1024):
        asyncio.get_running_loop().remove_reader(0)
        told_to_stop.set()
