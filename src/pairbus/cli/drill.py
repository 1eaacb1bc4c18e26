"""`pairbus drill`: a scripted outage, and whether what was expected of it holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pairbus.cli.plain import plain
from pairbus.cli.refusal import Refusal

if TYPE_CHECKING:
    from pairbus.drill import Result, Scenario


def register(app: typer.Typer) -> None:
    app.command("drill")(drill)


def drill(
    scenario: Annotated[Path, typer.Argument(metavar="SCENARIO.toml", help="The scenario; docs/drill.md shows one.")],
    real: Annotated[
        bool,
        typer.Option(
            "--real",
            help="Against the namespaces of --primary and --secondary, on entities that the drill makes and removes; "
            "without it, against two embedded namespaces of its own.",
        ),
    ] = False,
    primary: Annotated[
        str | None, typer.Option(metavar="NAMESPACE", help="For --real; as for 'pairbus syphon'.")
    ] = None,
    secondary: Annotated[
        str | None, typer.Option(metavar="NAMESPACE", help="For --real; as for 'pairbus syphon'.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The whole result as JSON.")] = False,
) -> int:
    """Rehearse an outage and check what is expected of it.

    Plays the steps of a scenario, then looks for every message whose send was accepted: delivered, dead-lettered, in
    the backlog or in the spool; what is nowhere is lost. Exits with 1 if an expectation does not hold, or if none is
    about accepted or refused sends and nothing was accepted.
    """
    import asyncio
    import json
    import logging
    import signal

    from pairbus.cli.exits import ANSWER_IS_NO, DONE
    from pairbus.drill import LeftBehindError, ScenarioError, read_scenario

    if not real and (primary is not None or secondary is not None):
        raise Refusal("--primary and --secondary are for --real: give it, or leave them out.")
    try:
        wanted = read_scenario(scenario)
    except ScenarioError as error:
        raise Refusal(str(error)) from error
    logging.basicConfig(level=logging.CRITICAL)  # an outage fills logs; the drill itself says what matters
    # A CI that cancels its job sends SIGTERM: as with Ctrl-C, what the drill made is removed.
    signal.signal(signal.SIGTERM, lambda number, frame: signal.raise_signal(signal.SIGINT))
    try:
        result = asyncio.run(_play(wanted, real, primary, secondary))
    except LeftBehindError as error:
        cause = error.__context__
        why = f"The drill could not be played: {str(cause).rstrip('.')}. " if isinstance(cause, Exception) else ""
        raise Refusal(f"{why}{error}") from error
    except _errors() as error:
        raise Refusal(f"The drill could not be played: {str(error).rstrip('.')}.") from error
    if as_json:
        typer.echo(json.dumps(result.as_dict()))
    else:
        _print(result)
    return DONE if result.passed else ANSWER_IS_NO


async def _play(scenario: Scenario, real: bool, primary: str | None, secondary: str | None) -> Result:
    from pairbus.cli.namespaces import namespace
    from pairbus.cli.voice import remark
    from pairbus.drill import embedded_stage, real_stage, run_drill

    if not real:
        async with embedded_stage() as stage:
            return await run_drill(scenario, stage, remark)
    if scenario.only_for_embedded:
        raise Refusal(
            f"--real cannot do '{scenario.only_for_embedded[0]}': real namespaces know only faults of mode disable."
        )
    ends = namespace("--primary", primary, "PAIRBUS_PRIMARY"), namespace("--secondary", secondary, "PAIRBUS_SECONDARY")
    async with real_stage(*ends) as theirs:
        return await run_drill(scenario, theirs, remark)


def _errors() -> tuple[type[Exception], ...]:
    """What may keep a drill from being played."""
    from azure.core.exceptions import AzureError

    from pairbus.errors import PairbusError

    return AzureError, PairbusError, RuntimeError, OSError, ValueError


def _print(result: Result) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if typer.get_text_stream("stdout").isatty() else 120, soft_wrap=False)
    table = Table(
        "entity", *("accepted", "refused", "delivered", "dead letters", "waiting", "spooled", "lost", "twice")
    )
    for name, account in (*result.entities.items(), ("all", result.account)):
        table.add_row(
            name,
            *(f"{value:,}" for value in (account.accepted, account.refused, account.delivered, account.dead_lettered)),
            *(f"{value:,}" for value in (account.waiting, account.spooled, account.lost, account.duplicates)),
        )
    console.print(table)
    verdicts = Table("", "expectation", "seen")
    for verdict in result.verdicts:
        seen = ", ".join(f"{name} {_shown(name, value)}" for name, value in verdict.values.items())
        verdicts.add_row("holds" if verdict.holds else "FAILS", verdict.expectation, seen)
    console.print(verdicts)
    for step in result.steps:
        if step.problem is not None:
            typer.echo(plain(f"step {step.number} ({step.said}) did not come to its end: {step.problem}"))
    for message_id in result.lost:
        typer.echo(f"lost: {message_id}")
    for left in result.left_behind:
        typer.echo(plain(f"left behind, delete it yourself: {left}"))
    typer.echo(f"{result.name}: {'passed' if result.passed else 'FAILED'} in {result.seconds:.1f} s")


def _shown(name: str, value: float | str | None) -> str:
    if value is None:
        return "no sends"
    if isinstance(value, str):
        return value
    timed = name.startswith(("p50_", "p95_", "p99_", "max_", "elapsed"))
    return f"{value:.3f} s" if timed else f"{value:,.0f}"
