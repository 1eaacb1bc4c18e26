"""`pairbus serve`: embedded namespaces in the foreground, until a signal stops them.

Invariants: the descriptions on disk (see `embedded.running`) exist only while the servers accept connections, unless
the process is killed. The servers are stopped in order, whatever ends the wait.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pairbus.cli.foreground import stop_event
from pairbus.cli.options import Ledger, check_port
from pairbus.cli.output import LogLevel, Refusal, configure_logs, is_quiet, print_json
from pairbus.private import private_folder

if TYPE_CHECKING:
    import asyncio

    from pairbus.embedded.running import RunningServer
    from pairbus.embedded.server import EmbeddedServer

log = logging.getLogger(__name__)


def serve(
    data: Annotated[
        Path,
        typer.Option(
            help="The folder for entities, messages and the key. Several namespaces get one folder each below it."
        ),
    ],
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...",
            help="Names of the namespaces, such as contoso. Default: all namespaces of --config.",
        ),
    ] = None,
    port: Annotated[
        int, typer.Option(help="The port; 0 for any free one. Several namespaces use this port and the next ones.")
    ] = 5672,
    config: Annotated[Path | None, typer.Option(help="A JSON file with entities to create at start-up.")] = None,
    ready_file: Annotated[
        Path | None,
        typer.Option(help="Write one line of JSON per namespace to this file once they accept connections."),
    ] = None,
    host: Annotated[str, typer.Option(help="The loopback address to listen on.")] = "127.0.0.1",
    ledger: Ledger = None,
    log_level: LogLevel = "warning",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one line of JSON per namespace, as in the ready file.")
    ] = False,
    stop_with_stdin: Annotated[bool, typer.Option("--stop-with-stdin", hidden=True)] = False,
) -> None:
    """Run local Service Bus namespaces for the official SDKs.

    Prints a connection string for each, keeps everything in the data folder, and stops on Ctrl-C or SIGTERM.
    """
    check_port(port)
    if ready_file is not None and not ready_file.parent.is_dir():
        raise Refusal(f"Cannot write --ready-file '{ready_file}': create the folder {ready_file.parent} first.")
    configure_logs(log_level)
    names = names or _all_names(config)
    if len({name.casefold() for name in names}) < len(names):
        raise Refusal(f"A namespace is named twice ({', '.join(names)}): name each one once.")

    import asyncio

    from pairbus.embedded.server import EmbeddedServer

    async def run() -> None:
        stop = stop_event()
        if stop_with_stdin:
            _stop_at_end_of_stdin(stop)
        async with AsyncExitStack() as stack:
            servers = []
            for position, name in enumerate(names):
                folder = data / name if len(names) > 1 else data
                server = EmbeddedServer(
                    name, folder, host=host, port=port and port + position, config=config, ledger=ledger
                )
                await server.start()
                stack.push_async_callback(server.stop)
                servers.append(server)
            await _describe_until(stop, servers, ready_file, listed=not stop_with_stdin, as_json=as_json)

    asyncio.run(run())


def _all_names(config: Path | None) -> list[str]:
    if config is None:
        raise Refusal("No namespace is named: add a NAME such as contoso, or a --config that describes namespaces.")
    from pairbus.embedded.config import read_config

    names = [namespace.name for namespace in read_config(config).namespaces]
    if not names:
        raise Refusal(f"{config} describes no namespace: add one, or name one on the command line.")
    return names


async def _describe_until(
    stop: asyncio.Event,
    servers: Sequence[EmbeddedServer],
    ready_file: Path | None,
    *,
    listed: bool,
    as_json: bool,
) -> None:
    """Describe the servers on disk until `stop` is set. Only the parent process finds a server that is not `listed`."""
    from pairbus.embedded.running import DATA_FOLDER_FILE, RunningServer, run_file

    running = [RunningServer.of(server) for server in servers]
    files = [(server.data / DATA_FOLDER_FILE, [entry]) for server, entry in zip(servers, running, strict=True)]
    if ready_file is not None:
        files.append((ready_file, running))
    try:
        for entry in running if listed else ():
            _add_to_list(entry)
        for path, entries in files:
            try:
                RunningServer.write_all(entries, path)
            except OSError as error:
                raise Refusal(f"Cannot write {path}: {error.strerror}.") from error
        for entry in running:
            if as_json:
                print_json(entry)
            elif not is_quiet():
                typer.echo(f"{entry.name} accepts connections on port {entry.port}. Ctrl-C stops it.")
                typer.echo(f"Connection string: {entry.connection_string}")
                typer.echo(f"Certificate for the administration client: {entry.ca_file}")
        await stop.wait()
    finally:
        for entry in running if listed else ():
            _remove_own(run_file(entry), entry)
        for path, entries in files:
            _remove_own(path, entries[0])


def _add_to_list(entry: RunningServer) -> None:
    """Add the server to the user's list of servers. It works without, if there is no home folder."""
    from pairbus.embedded.running import RunningServer, run_file, running_servers

    try:
        path = run_file(entry)
        private_folder(path.parent)
        for _ in running_servers():
            pass  # reading the list removes the entries of dead servers
        RunningServer.write_all([entry], path)
    except OSError as error:
        log.warning("this server cannot be found by its name", extra={"cause": str(error)})


def _remove_own(path: Path, entry: RunningServer) -> None:
    """Remove a description, unless another server has replaced it."""
    from pairbus.embedded.running import RunningServer

    try:
        if RunningServer.read(path) == entry:
            path.unlink()
    except (OSError, ValueError):
        log.debug("a description was gone already", extra={"path": str(path)})


def _stop_at_end_of_stdin(stop: asyncio.Event) -> None:
    """Stop when the parent process, which holds the other end of the pipe, is gone, however it ended."""
    import asyncio

    loop = asyncio.get_running_loop()

    def read() -> None:
        if not os.read(0, 1024):
            loop.remove_reader(0)
            stop.set()

    try:
        loop.add_reader(0, read)
    except OSError as error:
        raise Refusal("--stop-with-stdin needs a pipe as standard input, not a file.") from error
