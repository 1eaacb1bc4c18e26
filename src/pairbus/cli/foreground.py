"""A server in the foreground: started, described on disk, stopped by a signal.

Invariants: the descriptions (see `embedded.running`) exist only while connections are taken, a kill apart;
the server is stopped in order, whatever ends the wait.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path

import typer

from pairbus.cli.refusal import Refusal
from pairbus.cli.voice import is_quiet
from pairbus.embedded.running import DATA_FOLDER_FILE, RunningServer, run_file, running_servers
from pairbus.embedded.server import EmbeddedServer, ServerStartError

log = logging.getLogger(__name__)


def serve(
    names: Sequence[str],
    *,
    data: Path,
    host: str,
    port: int,
    config: Path | None,
    ready_file: Path | None,
    ledger: Path | None,
    as_json: bool,
    stop_with_stdin: bool,
) -> None:
    """Serves until SIGINT or SIGTERM, or, if so told, until standard input ends.

    Several namespaces get a folder each below `data`, and ports one after the other.
    """
    if len({name.casefold() for name in names}) < len(names):
        raise Refusal(f"A namespace is named twice ({', '.join(names)}): name each one once.")

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
        async with AsyncExitStack() as stack:
            servers = []
            for position, name in enumerate(names):
                folder = data / name if len(names) > 1 else data
                server = EmbeddedServer(
                    name, folder, host=host, port=port and port + position, config=config, ledger=ledger
                )
                try:
                    await server.start()
                except ServerStartError as error:
                    raise Refusal(str(error)) from error
                stack.push_async_callback(server.stop)
                servers.append(server)
            await _described(servers, ready_file, told_to_stop, listed=not stop_with_stdin, as_json=as_json)

    asyncio.run(run())


async def _described(
    servers: Sequence[EmbeddedServer],
    ready_file: Path | None,
    told_to_stop: asyncio.Event,
    *,
    listed: bool,
    as_json: bool,
) -> None:
    """Describes the servers on disk while they run. One that lives with its parent is its parent's alone to find."""
    running = [
        RunningServer(
            name=server.name,
            port=server.port,
            connection_string=server.connection_string,
            ca_file=str(server.ca_file),
            pid=os.getpid(),
        )
        for server in servers
    ]
    places = [(server.data / DATA_FOLDER_FILE, [one]) for server, one in zip(servers, running, strict=True)]
    if ready_file is not None:
        places.append((ready_file, running))
    try:
        for one in running if listed else ():
            _put_on_list(one)
        for place, described in places:
            try:
                RunningServer.write_all(described, place)
            except OSError as error:
                raise Refusal(f"{place} cannot be written: {error.strerror}.") from error
        for one in running if as_json or not is_quiet() else ():
            _introduce(one, as_json)
        await told_to_stop.wait()
    finally:
        for one in running if listed else ():
            _remove_own(run_file(one), one)
        for place, described in places:
            _remove_own(place, described[0])


def _introduce(one: RunningServer, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(asdict(one)))
        return
    typer.echo(f"{one.name} takes connections on port {one.port}. Ctrl-C stops it.")
    typer.echo(f"Connection string: {one.connection_string}")
    typer.echo(f"Certificate for the administration client: {one.ca_file}")


def _put_on_list(running: RunningServer) -> None:
    """Puts the server on the user's list; without a home it is not listed, and serves all the same."""
    try:
        path = run_file(running)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for _ in running_servers():
            pass  # reading the list clears away what dead servers left
        RunningServer.write_all([running], path)
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
