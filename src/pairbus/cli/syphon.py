"""`pairbus syphon`: carry the backlog home, in the foreground; and tell a running one what to do."""

from __future__ import annotations

import math
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from pairbus.cli.ends import Primary, PrimaryName, Secondary
from pairbus.cli.refusal import Refusal
from pairbus.cli.serve import LOG_LEVELS


class TransportName(StrEnum):
    AMQP = "amqp"
    SDK = "sdk"


class Engine(StrEnum):
    PROCESS = "process"
    SPARK = "spark"


class TimeToLive(StrEnum):
    RESTORE = "restore"
    DEDUCT = "deduct"


def register(app: typer.Typer) -> None:
    app.command("syphon")(syphon)


def syphon(
    primary: Primary = None,
    secondary: Secondary = None,
    primary_name: PrimaryName = None,
    once: Annotated[bool, typer.Option("--once", help="Until the backlog is empty, then exit.")] = False,
    queues: Annotated[str, typer.Option(help="Which backlog queues, such as 0-9 or 0,2,5-7.")] = "0-9",
    include_extra: Annotated[
        bool, typer.Option("--include-extra", help="First empty the backlog queues beyond these.")
    ] = False,
    rate: Annotated[float | None, typer.Option(help="Messages a second, at most.")] = None,
    engine: Annotated[
        Engine, typer.Option(help="spark: as a Spark job, for backlogs that one process takes too long to carry.")
    ] = Engine.PROCESS,
    master: Annotated[
        str | None, typer.Option(help="Spark's master, for --engine spark; default: all cores of this machine.")
    ] = None,
    transport: Annotated[
        TransportName, typer.Option(help="sdk: the plain SDK, slower, to compare.")
    ] = TransportName.AMQP,
    backlog_time_to_live: Annotated[
        TimeToLive, typer.Option(help="deduct: a message gets only the time it has left.")
    ] = TimeToLive.RESTORE,
    ledger: Annotated[Path | None, typer.Option(help="The folder that gets a record of each operation.")] = None,
    state_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Publish the state here for pairbus dashboard (--engine process)."),
    ] = None,
    control: Annotated[
        Path | None, typer.Option(help="The control socket: made, or asked by the options below.")
    ] = None,
    pause: Annotated[bool, typer.Option("--pause", help="Tell the syphon at --control to take nothing more.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Tell the syphon at --control to go on.")] = False,
    state: Annotated[bool, typer.Option("--state", help="Show the state of the syphon at --control.")] = False,
    http: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Serve /health and /metrics on this loopback address.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print results as JSON.")] = False,
    log_level: Annotated[str, typer.Option(metavar="LEVEL", help=f"One of {', '.join(LOG_LEVELS)}.")] = "warning",
) -> int:
    """Carry the messages that wait in the backlog home.

    SIGTERM or Ctrl-C finishes what is at hand and exits; a second one leaves at once, and nothing is lost either way.
    """
    from pairbus.cli import logs, syphon_foreground
    from pairbus.cli.namespaces import namespace, numbers

    if log_level.lower() not in LOG_LEVELS:
        raise Refusal(f"--log-level '{log_level}' is unknown: use one of {', '.join(LOG_LEVELS)}.")
    if sum((pause, resume, state)) > 1:
        raise Refusal("--pause, --resume and --state exclude each other: give one of them.")
    if pause or resume or state:
        if control is None:
            raise Refusal("--pause, --resume and --state need --control, the socket of the running syphon.")
        return syphon_foreground.ask(control, "pause" if pause else "resume" if resume else "state", as_json=as_json)
    if master is not None and engine is not Engine.SPARK:
        raise Refusal("--master is for --engine spark: give both or neither.")
    if engine is Engine.SPARK and (control is not None or http is not None or transport is not TransportName.AMQP):
        raise Refusal("--control, --http and --transport are for --engine process: leave them out.")
    logs.configure(log_level)
    ends = (
        namespace("--primary", primary, "PAIRBUS_PRIMARY"),
        namespace("--secondary", secondary, "PAIRBUS_SECONDARY"),
    )
    name = syphon_foreground.name_of_primary(ends[0], primary_name)
    if rate is not None and not 0 < rate < math.inf:
        raise Refusal(f"--rate '{rate:g}' is no rate: give messages a second, more than 0, or leave it out.")
    if engine is Engine.SPARK:
        from pairbus.cli import syphon_spark

        return syphon_spark.run(
            *ends,
            master=master,
            primary_name=name,
            queues=numbers("--queues", queues),
            include_extra=include_extra,
            rate=rate,
            backlog_time_to_live=backlog_time_to_live.value,
            ledger=ledger,
            once=once,
            as_json=as_json,
        )
    return syphon_foreground.run(
        *ends,
        primary_name=name,
        queues=numbers("--queues", queues),
        include_extra=include_extra,
        rate=rate,
        transport=transport.value,
        backlog_time_to_live=backlog_time_to_live.value,
        ledger=ledger,
        state_dir=state_dir,
        once=once,
        control=control,
        http=http,
        as_json=as_json,
    )
