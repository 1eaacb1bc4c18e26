"""`pairbus drill`: play a scripted outage, and check the expectations."""

from __future__ import annotations

from dataclasses import astuple
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pairbus.cli.options import primary_and_secondary
from pairbus.cli.output import ANSWER_IS_NO, DONE, Refusal, plain, print_json, remark

if TYPE_CHECKING:
    from pairbus.drill.running import DrillResult
    from pairbus.drill.scenario import Scenario


def drill(
    scenario: Annotated[
        Path, typer.Argument(metavar="SCENARIO.toml", help="The scenario; docs/drill.md explains the format.")
    ],
    real: Annotated[
        bool,
        typer.Option(
            "--real",
            help="Use the namespaces of --primary and --secondary, with entities that the drill creates and deletes. "
            "Default: two embedded namespaces of its own.",
        ),
    ] = False,
    primary: Annotated[
        str | None, typer.Option(metavar="NAMESPACE", help="For --real; named as in 'pairbus syphon'.")
    ] = None,
    secondary: Annotated[
        str | None, typer.Option(metavar="NAMESPACE", help="For --real; named as in 'pairbus syphon'.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole result as JSON.")] = False,
) -> int:
    """Rehearse an outage and check what you expect of it.

    Plays the steps of a scenario, then looks for every accepted message: delivered, dead-lettered, in the backlog or in
    the spool. A message that is nowhere is lost. Exits with 1 if an expectation does not hold, or if no message was
    accepted and no expectation is about `accepted` or `refused`.
    """
    import asyncio
    import logging
    import signal

    from azure.core.exceptions import AzureError

    from pairbus.drill.scenario import read_scenario
    from pairbus.drill.stage import LeftBehindError
    from pairbus.errors import PairbusError

    if not real and (primary is not None or secondary is not None):
        raise Refusal("--primary and --secondary work only with --real: add it, or leave them out.")
    script = read_scenario(scenario)
    logging.basicConfig(level=logging.CRITICAL)  # an outage floods the logs; the drill reports what matters
    # CI systems cancel a job with SIGTERM. Like Ctrl-C, it must let the drill delete what it created.
    signal.signal(signal.SIGTERM, lambda number, frame: signal.raise_signal(signal.SIGINT))
    try:
        result = asyncio.run(_play(script, real, primary, secondary))
    except LeftBehindError as error:
        cause = error.__context__
        why = f"The drill could not run: {str(cause).rstrip('.')}. " if isinstance(cause, Exception) else ""
        raise Refusal(f"{why}{error}") from error
    except (AzureError, PairbusError, RuntimeError, OSError, ValueError) as error:
        raise Refusal(f"The drill could not run: {str(error).rstrip('.')}.") from error
    if as_json:
        print_json(result.as_dict())
    else:
        _print(result)
    return DONE if result.passed else ANSWER_IS_NO


async def _play(scenario: Scenario, real: bool, primary: str | None, secondary: str | None) -> DrillResult:
    from pairbus.drill.running import run_drill
    from pairbus.drill.stage import embedded_stage, real_stage

    if not real:
        async with embedded_stage() as stage:
            return await run_drill(scenario, stage, remark)
    if scenario.only_for_embedded:
        raise Refusal(
            f"--real cannot do '{scenario.only_for_embedded[0]}': on real namespaces the only fault is mode disable."
        )
    async with real_stage(*primary_and_secondary(primary, secondary)) as theirs:
        return await run_drill(scenario, theirs, remark)


def _print(result: DrillResult) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if typer.get_text_stream("stdout").isatty() else 120, soft_wrap=False)
    table = Table(
        "entity", *("accepted", "refused", "delivered", "dead letters", "waiting", "spooled", "lost", "duplicates")
    )
    for name, account in (*result.entities.items(), ("all", result.account)):
        table.add_row(name, *(f"{value:,}" for value in astuple(account)))
    console.print(table)
    verdicts = Table("", "expectation", "actual")
    for verdict in result.verdicts:
        actual = ", ".join(f"{name} {_format(name, value)}" for name, value in verdict.values.items())
        verdicts.add_row("holds" if verdict.holds else "FAILS", verdict.expectation, actual)
    console.print(verdicts)
    for step in result.steps:
        if step.problem is not None:
            typer.echo(plain(f"step {step.number} ({step.text}) failed: {step.problem}"))
    for message_id in result.lost:
        typer.echo(f"lost: {message_id}")
    for left in result.left_behind:
        typer.echo(plain(f"could not be deleted, delete it yourself: {left}"))
    typer.echo(f"{result.name}: {'passed' if result.passed else 'FAILED'} in {result.seconds:.1f} s")


def _format(name: str, value: float | str | None) -> str:
    if value is None:
        return "no sends"
    if isinstance(value, str):
        return value
    is_time = name.startswith(("p50_", "p95_", "p99_", "max_", "elapsed"))
    return f"{value:.3f} s" if is_time else f"{value:,.0f}"
