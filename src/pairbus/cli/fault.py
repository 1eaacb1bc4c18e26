"""`pairbus fault`: break a running embedded namespace on purpose, and mend it."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from pairbus.cli.parsing import duration_ms, holds_key
from pairbus.cli.refusal import Refusal
from pairbus.cli.voice import is_quiet


class Mode(StrEnum):
    REFUSE = "refuse"
    DROP = "drop"
    HANG = "hang"
    ERROR = "error"
    THROTTLE = "throttle"
    SLOW = "slow"
    ACCEPT_THEN_FAIL = "accept-then-fail"


def register(app: typer.Typer) -> None:
    app.command("fault")(fault)


def fault(
    server: Annotated[
        str,
        typer.Argument(
            metavar="SERVER",
            help="The name of a running namespace, its ready file, its data folder, or a connection string.",
        ),
    ],
    mode: Annotated[
        Mode | None,
        typer.Option(
            help="refuse: turn connections away; drop: cut them mid-send; hang: never answer; "
            "error: answer with a condition; throttle: server-busy above a rate; slow: wait first; "
            "accept-then-fail: store, then never answer."
        ),
    ] = None,
    entity: Annotated[str | None, typer.Option(help="A queue or topic; without it, the whole namespace.")] = None,
    condition: Annotated[
        str | None, typer.Option(help="For error: the AMQP condition, such as amqp:internal-error.")
    ] = None,
    rate: Annotated[float | None, typer.Option(help="For throttle: sends a second that still pass.")] = None,
    delay: Annotated[
        str | None, typer.Option(metavar="DURATION", help="For slow: what each send waits, such as 200ms.")
    ] = None,
    duration: Annotated[
        str | None,
        typer.Option("--for", metavar="DURATION", help="The fault ends by itself, such as after 30s."),
    ] = None,
    clear: Annotated[bool, typer.Option("--clear", help="End the entity's faults, or all of them.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the faults that are on, after the change, as JSON.")
    ] = False,
) -> None:
    """Switch a fault on or off, or list those that are on.

    Without --mode and --clear it changes nothing and lists them.
    """
    if clear and mode:
        raise Refusal("--clear and --mode exclude each other: clear first, then set the new fault.")
    if mode is None and duration is not None:
        raise Refusal("--for belongs to a fault: name one with --mode.")
    for option, value, owner in (
        ("--condition", condition, Mode.ERROR),
        ("--rate", rate, Mode.THROTTLE),
        ("--delay", delay, Mode.SLOW),
    ):
        if value is not None and mode is not owner:
            raise Refusal(f"{option} belongs to --mode {owner}: leave it out, or change the mode.")
        if value is None and mode is owner:
            raise Refusal(f"--mode {owner} needs {option}: see 'pairbus fault --help'.")
    delay_ms = None if delay is None else duration_ms("--delay", delay)
    for_ms = None if duration is None else duration_ms("--for", duration)

    import json

    from pairbus.embedded.faults import ControlError, RemoteSwitchboard

    try:
        connection_string = _connection_string(server)
        switchboard = RemoteSwitchboard(connection_string)
        where = f"{entity or 'the whole namespace'} at {_address(connection_string)}"
        said = None
        if clear:
            switchboard.clear(entity)
            said = f"No fault any more: {where}."
        elif mode:
            switchboard.set(mode, entity=entity, condition=condition, rate=rate, delay_ms=delay_ms, for_ms=for_ms)
            said = f"Fault {mode.value}: {where}, {f'for {duration}' if duration else 'until it is cleared'}."
        if as_json:
            typer.echo(json.dumps(list(switchboard.list())))
        elif said is not None:
            if not is_quiet():
                typer.echo(said)
        else:
            faults = list(switchboard.list())
            for one in faults:
                typer.echo(json.dumps(one))
            if not faults:
                typer.echo(f"No fault is on at {_address(connection_string)}.")
    except ControlError as error:
        raise Refusal(str(error)) from error


def _address(connection_string: str) -> str:
    """Which server that is, without its key."""
    return connection_string.partition("sb://")[2].partition(";")[0].strip("/")


def _connection_string(server: str) -> str:
    """Finds the server that the user means."""
    from pairbus.embedded.running import DATA_FOLDER_FILE, RunningServer, running_servers

    if holds_key(server):
        return server
    path = Path(server)
    try:
        if path.is_dir() and (path / DATA_FOLDER_FILE).exists():
            path = path / DATA_FOLDER_FILE
        found = RunningServer.read(path) if path.is_file() else None
    except (OSError, ValueError) as error:
        raise Refusal(f"'{server[:60]}' is not a ready file: {error}") from error
    if found is not None:
        if not found.alive:
            raise Refusal(f"The server of '{server}' is not running any more: start it with 'pairbus serve'.")
        return found.connection_string
    running = list(running_servers())
    matches = [candidate for candidate in running if candidate.name.casefold() == server.casefold()]
    if len(matches) == 1:
        return matches[0].connection_string
    if matches:
        ports = ", ".join(str(match.port) for match in matches)
        raise Refusal(f"Several servers are called '{server}' (ports {ports}): name the data folder of the one.")
    names = ", ".join(sorted({candidate.name for candidate in running}))
    known = f"running: {names}" if names else "none is running"
    raise Refusal(f"No server called '{server}' was found ({known}): start it with 'pairbus serve'.")
