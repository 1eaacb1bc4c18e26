"""`pairbus fault`: break a running embedded namespace on purpose, and repair it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from pairbus.cli.options import looks_like_connection_string, parse_duration_ms
from pairbus.cli.output import Refusal, is_quiet, print_json

Mode = Literal["refuse", "drop", "hang", "error", "throttle", "slow", "accept-then-fail", "idle-detach"]


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
            help="refuse: reject connections; drop: cut them mid-send; hang: never answer; error: answer with an "
            "AMQP condition; throttle: answer server-busy above a rate; slow: delay each send; accept-then-fail: "
            "store the message, then never answer; idle-detach: detach the links of senders, as if they had been idle."
        ),
    ] = None,
    entity: Annotated[str | None, typer.Option(help="A queue or topic. Default: the whole namespace.")] = None,
    condition: Annotated[
        str | None, typer.Option(help="For error: the AMQP condition, such as amqp:internal-error.")
    ] = None,
    rate: Annotated[float | None, typer.Option(help="For throttle: sends per second that still succeed.")] = None,
    delay: Annotated[
        str | None, typer.Option(metavar="DURATION", help="For slow: the delay of each send, such as 200ms.")
    ] = None,
    duration: Annotated[
        str | None,
        typer.Option("--for", metavar="DURATION", help="End the fault after this time, such as 30s."),
    ] = None,
    clear: Annotated[bool, typer.Option("--clear", help="End the faults of --entity, or all of them.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the faults after the change as JSON.")] = False,
) -> None:
    """Switch a fault on or off, or list the active faults.

    Without --mode and --clear it only lists them.
    """
    if clear and mode:
        raise Refusal("--clear and --mode exclude each other: clear first, then set the new fault.")
    if mode is None and duration is not None:
        raise Refusal("--for needs a fault: add --mode.")
    for option, value, owner in (
        ("--condition", condition, "error"),
        ("--rate", rate, "throttle"),
        ("--delay", delay, "slow"),
    ):
        if value is not None and mode != owner:
            raise Refusal(f"{option} works only with --mode {owner}: leave it out, or change the mode.")
        if value is None and mode == owner:
            raise Refusal(f"--mode {owner} needs {option}: see 'pairbus fault --help'.")
    delay_ms = None if delay is None else parse_duration_ms("--delay", delay)
    for_ms = None if duration is None else parse_duration_ms("--for", duration)

    from pairbus.embedded.faults import RemoteSwitchboard

    connection_string = _connection_string(server)
    address = connection_string.partition("sb://")[2].partition(";")[0].strip("/")
    target = f"{entity or 'the whole namespace'} at {address}"
    switchboard = RemoteSwitchboard(connection_string)
    change = None
    if clear:
        switchboard.clear(entity)
        change = f"Faults cleared: {target}."
    elif mode:
        switchboard.set(mode, entity=entity, condition=condition, rate=rate, delay_ms=delay_ms, for_ms=for_ms)
        change = f"Fault {mode}: {target}, {f'for {duration}' if duration else 'until it is cleared'}."
    if as_json:
        print_json(list(switchboard.list()))
    elif change is not None:
        if not is_quiet():
            typer.echo(change)
    else:
        faults = list(switchboard.list())
        for active in faults:
            print_json(active)
        if not faults:
            typer.echo(f"No fault is active at {address}.")


def _connection_string(server: str) -> str:
    from pairbus.embedded.running import RunningServer, running_servers

    if looks_like_connection_string(server):
        return server
    try:
        described = RunningServer.find(Path(server))
    except (OSError, ValueError) as error:
        raise Refusal(f"'{server[:60]}' is not a ready file: {error}") from error
    if described is not None:
        if not described.alive:
            raise Refusal(f"The server of '{server}' is no longer running: start it with 'pairbus serve'.")
        return described.connection_string
    running = list(running_servers())
    matches = [candidate for candidate in running if candidate.name.casefold() == server.casefold()]
    if len(matches) == 1:
        return matches[0].connection_string
    if matches:
        ports = ", ".join(str(match.port) for match in matches)
        raise Refusal(f"Several servers are called '{server}' (ports {ports}): name the data folder instead.")
    names = ", ".join(sorted({candidate.name for candidate in running}))
    known = f"running: {names}" if names else "none is running"
    raise Refusal(f"No server is called '{server}' ({known}): start it with 'pairbus serve'.")
