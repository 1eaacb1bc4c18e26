"""`pairbus dashboard`: the live page, served in the foreground."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pairbus.cli.foreground import stop_event
from pairbus.cli.options import (
    NAMESPACE_HELP,
    PlanName,
    TariffFile,
    TariffName,
    check_port,
    namespace_of_secondary,
    read_tariffs,
)
from pairbus.cli.output import Refusal
from pairbus.private import open_private

if TYPE_CHECKING:
    import socket

    from pairbus.dashboard.money import Prices
    from pairbus.dashboard.observatory import DashboardSettings
    from pairbus.syphon import Namespace

DEFAULT_PORT = 8750


def dashboard(
    port: Annotated[int, typer.Option(help="The port; 0 for any free one.")] = DEFAULT_PORT,
    state_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="The folder in which the processes publish their state. Default: PAIRBUS_STATE_DIR."
        ),
    ] = None,
    ledger: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Count today's operations in this ledger instead of the published state."),
    ] = None,
    secondary: Annotated[
        str | None,
        typer.Option(metavar="NAMESPACE", help=f"Count the messages waiting in this secondary. {NAMESPACE_HELP}"),
    ] = None,
    allow_control: Annotated[
        bool, typer.Option("--allow-control", help="Let holders of the token fail over, mark healthy and pause.")
    ] = False,
    month_operations: Annotated[
        int,
        typer.Option(
            help="Operations of each namespace this month before today; they decide which price step applies."
        ),
    ] = 0,
    tariff_file: TariffFile = None,
    tariff: TariffName = None,
    plan: PlanName = "standard",
) -> None:
    """Show the pairs of this machine live, on a web page.

    Only browsers on this machine can open it. It shows every process that has PAIRBUS_STATE_DIR in its environment, or
    the option state_dir. Ctrl-C or SIGTERM stops it.
    """
    check_port(port)
    if month_operations < 0:
        raise Refusal(f"--month-operations {month_operations} is negative: use 0 or more.")
    if state_dir is None:
        raise Refusal(
            "Neither --state-dir nor PAIRBUS_STATE_DIR is set: name the folder in which your applications publish "
            "their state."
        )
    if ledger is not None and not ledger.is_dir():
        raise Refusal(f"--ledger '{ledger}' is not a folder: name the one in which your applications record.")
    counted = None if secondary is None else namespace_of_secondary(secondary)
    try:
        from pairbus.dashboard.observatory import DashboardSettings
        from pairbus.dashboard.server import listen
    except ImportError as error:
        raise Refusal("The dashboard needs aiohttp: pip install 'pairbus[dashboard]'.") from error
    import asyncio

    from pairbus.publishing.folder import open_state_folder

    prices = _prices(tariff_file, tariff, plan, month_operations)
    open_state_folder(state_dir)
    try:
        listener = listen(port)
    except OSError as error:
        raise Refusal(
            f"Cannot listen on port {port} ({error.strerror}): choose another --port, or 0 for any free one."
        ) from error
    token = secrets.token_urlsafe(32) if allow_control else None
    with listener, _token_file(state_dir, listener, token) as token_file:
        asyncio.run(_serve(DashboardSettings(state_dir, prices, ledger, token), counted, listener, token_file))


def _prices(file: Path | None, name: str | None, plan: str, month_operations: int) -> Prices:
    from pairbus.costs import tariff_for
    from pairbus.dashboard.money import Prices

    tariffs, chosen = read_tariffs(file, name)
    tariff = tariff_for(tariffs, chosen, date.today())
    return Prices(tariff, tariff.plan(plan), month_operations)


async def _serve(
    settings: DashboardSettings, secondary: Namespace | None, listener: socket.socket, token_file: Path | None
) -> None:
    import asyncio

    from pairbus.dashboard.observatory import DepthWatch, Observatory
    from pairbus.dashboard.server import ADDRESS, serving

    stop = stop_event()
    observatory = Observatory(settings, None if secondary is None else DepthWatch(secondary))
    async with serving(observatory, listener) as running:
        address = f"http://{ADDRESS}:{listener.getsockname()[1]}/"
        typer.echo(f"The page is at {address} for this machine. Ctrl-C stops it.")
        if token_file is not None:
            typer.echo(f"Control needs the token in {token_file}.")
            if sys.stdout.isatty():  # never write the token to a log
                typer.echo(f"With the token: {address}#token={settings.token}")
        sys.stdout.flush()
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({stopping, running}, return_when=asyncio.FIRST_COMPLETED)
        if not stopping.done():
            stopping.cancel()
            failure = running.exception()
            raise Refusal(f"The page's server stopped ({failure or 'without an error'}): start it again.")


@contextlib.contextmanager
def _token_file(state_folder: Path, listener: socket.socket, token: str | None) -> Iterator[Path | None]:
    """Keep the token in a private file while the page is served."""

    if token is None:
        yield None
        return
    path = state_folder / f"dashboard-{listener.getsockname()[1]}.token"
    path.unlink(missing_ok=True)
    with os.fdopen(open_private(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "w", encoding="utf-8") as file:
        file.write(f"{token}\n")
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)
