"""`pairbus serve`: one embedded namespace, in the foreground, until it is told to stop."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pairbus.cli.refusal import Refusal

LOG_LEVELS = ("debug", "info", "warning", "error")


def register(app: typer.Typer) -> None:
    app.command("serve")(serve)


def serve(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The namespace's name, such as contoso.")],
    data: Annotated[Path, typer.Option(help="The folder that keeps its entities, messages and key.")],
    port: Annotated[int, typer.Option(help="0: any free port.")] = 5672,
    config: Annotated[Path | None, typer.Option(help="A JSON file with entities to create at the start.")] = None,
    ready_file: Annotated[
        Path | None, typer.Option(help="Gets one JSON object when the server takes connections.")
    ] = None,
    host: Annotated[str, typer.Option(help="A loopback address.")] = "127.0.0.1",
    log_level: Annotated[str, typer.Option(help=f"One of {', '.join(LOG_LEVELS)}.")] = "warning",
    stop_with_stdin: Annotated[bool, typer.Option("--stop-with-stdin", hidden=True)] = False,
) -> None:
    """Run a local Service Bus namespace for the official SDKs.

    It shows a connection string, keeps everything in the data folder, and stops on Ctrl-C or SIGTERM.
    """
    if log_level.lower() not in LOG_LEVELS:
        raise Refusal(f"--log-level '{log_level}' is unknown: use one of {', '.join(LOG_LEVELS)}.")
    if not 0 <= port <= 65535:
        raise Refusal(f"--port {port} is not a port: give a number from 0 (any free one) to 65535.")
    if ready_file is not None and not ready_file.parent.is_dir():
        raise Refusal(f"--ready-file '{ready_file}' cannot be written: make the folder {ready_file.parent} first.")

    from pairbus.cli import foreground, logs

    logs.configure(log_level)
    foreground.serve(
        name,
        data=data,
        host=host,
        port=port,
        config=config,
        ready_file=ready_file,
        stop_with_stdin=stop_with_stdin,
    )
