"""`pairbus serve`: embedded namespaces, in the foreground, until they are told to stop."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pairbus.cli.refusal import Refusal

LOG_LEVELS = ("debug", "info", "warning", "error")


def register(app: typer.Typer) -> None:
    app.command("serve")(serve)


def serve(
    data: Annotated[
        Path,
        typer.Option(help="The folder that keeps entities, messages and key; for several namespaces, a folder each."),
    ],
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...",
            help="The namespace's name, such as contoso. Several are served at once; none: all of the --config.",
        ),
    ] = None,
    port: Annotated[
        int, typer.Option(help="0: any free port. Several namespaces take this port and those after it.")
    ] = 5672,
    config: Annotated[Path | None, typer.Option(help="A JSON file with entities to create at the start.")] = None,
    ready_file: Annotated[
        Path | None, typer.Option(help="Gets a line of JSON for each namespace when they take connections.")
    ] = None,
    host: Annotated[str, typer.Option(help="A loopback address.")] = "127.0.0.1",
    ledger: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Record every operation into this ledger folder.")
    ] = None,
    log_level: Annotated[str, typer.Option(metavar="LEVEL", help=f"One of {', '.join(LOG_LEVELS)}.")] = "warning",
    as_json: Annotated[
        bool, typer.Option("--json", help="A line of JSON for each namespace, as in the ready file.")
    ] = False,
    stop_with_stdin: Annotated[bool, typer.Option("--stop-with-stdin", hidden=True)] = False,
) -> None:
    """Run local Service Bus namespaces for the official SDKs.

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
        names or _all_names(config),
        data=data,
        host=host,
        port=port,
        config=config,
        ready_file=ready_file,
        ledger=ledger,
        as_json=as_json,
        stop_with_stdin=stop_with_stdin,
    )


def _all_names(config: Path | None) -> list[str]:
    if config is None:
        raise Refusal("No namespace is named: give a NAME such as contoso, or a --config that describes some.")
    from pairbus.embedded.config import ConfigError, read_config

    try:
        names = [namespace.name for namespace in read_config(config).namespaces]
    except ConfigError as error:
        raise Refusal(str(error)) from error
    if not names:
        raise Refusal(f"{config} describes no namespace: add one, or give a NAME.")
    return names
