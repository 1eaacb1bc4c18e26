"""`pairbus dashboard`: the live page, in the foreground."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pairbus.cli.namespaces import HELP
from pairbus.cli.pricing import PlanName, TariffFile, TariffName
from pairbus.cli.refusal import Refusal

DEFAULT_PORT = 8750


def register(app: typer.Typer) -> None:
    app.command("dashboard")(dashboard)


def dashboard(
    port: Annotated[int, typer.Option(help="0: any free port.")] = DEFAULT_PORT,
    state_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where the processes publish their state. Default: PAIRBUS_STATE_DIR."),
    ] = None,
    ledger: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Count today's operations in this ledger instead.")
    ] = None,
    secondary: Annotated[
        str | None,
        typer.Option(metavar="NAMESPACE", help=f"Count what waits in this secondary. {HELP}"),
    ] = None,
    allow_control: Annotated[
        bool, typer.Option("--allow-control", help="Let who has the token fail over, mark healthy and pause.")
    ] = False,
    month_operations: Annotated[
        int, typer.Option(help="Operations of each namespace this month before today: they decide on the price.")
    ] = 0,
    tariff_file: TariffFile = None,
    tariff: TariffName = None,
    plan: PlanName = "standard",
) -> None:
    """Show the pairs of this machine live, on a web page.

    For browsers of this machine. Every process that has PAIRBUS_STATE_DIR in its environment, or the option
    state_dir, is on it. Ctrl-C or SIGTERM stops it.
    """
    from pairbus.cli.namespaces import namespace

    if not 0 <= port <= 65535:
        raise Refusal(f"--port {port} is not a port: give a number from 0 (any free one) to 65535.")
    if month_operations < 0:
        raise Refusal(f"--month-operations {month_operations} cannot be: give 0 or more.")
    if state_dir is None:
        raise Refusal(
            "Neither --state-dir nor the environment variable PAIRBUS_STATE_DIR is given: name the folder in which "
            "your applications publish their state."
        )
    if ledger is not None and not ledger.is_dir():
        raise Refusal(f"--ledger '{ledger}' is no folder: name the one that your applications record into.")
    counted = None if secondary is None else namespace("--secondary", secondary, "PAIRBUS_SECONDARY")
    try:
        from pairbus.cli import dashboard_foreground
    except ImportError as error:
        raise Refusal("The dashboard needs starlette and uvicorn: pip install 'pairbus[dashboard]'.") from error

    dashboard_foreground.run(
        port=port,
        state_folder=state_dir,
        ledger=ledger,
        secondary=counted,
        allow_control=allow_control,
        prices=dashboard_foreground.prices(tariff_file, tariff, plan, month_operations),
    )
