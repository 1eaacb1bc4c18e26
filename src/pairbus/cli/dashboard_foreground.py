"""The live page in the foreground: its folder, its port, its token, its signals."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import sys
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from pairbus.cli.pricing import read_tariffs
from pairbus.cli.refusal import Refusal
from pairbus.costs import TariffError, tariff_for
from pairbus.dashboard.depths import DepthWatch
from pairbus.dashboard.money import Prices
from pairbus.dashboard.observatory import Observatory, Settings
from pairbus.dashboard.server import ADDRESS, listen, serving
from pairbus.publishing.folder import FolderError, open_state_folder

if TYPE_CHECKING:
    from pairbus.syphon import Namespace


def prices(file: Path | None, name: str | None, plan: str, month_operations: int) -> Prices:
    tariffs, chosen = read_tariffs(file, name)
    try:
        tariff = tariff_for(tariffs, chosen, date.today())
        return Prices(tariff, tariff.plan(plan), month_operations)
    except TariffError as error:
        raise Refusal(str(error)) from error


def run(
    *,
    port: int,
    state_folder: Path,
    ledger: Path | None,
    secondary: Namespace | None,
    allow_control: bool,
    prices: Prices,
) -> None:
    """Serve until SIGINT or SIGTERM."""
    try:
        open_state_folder(state_folder)
    except FolderError as error:
        raise Refusal(str(error)) from error
    try:
        listener = listen(port)
    except OSError as error:
        raise Refusal(
            f"Port {port} cannot be used ({error.strerror}): give another one with --port, or 0 for any free one."
        ) from error
    token = secrets.token_urlsafe(32) if allow_control else None
    with listener, _token_file(state_folder, listener, token) as token_file:
        settings = Settings(state_folder, prices, ledger, token)
        asyncio.run(_serve(settings, secondary, listener, token_file))


async def _serve(
    settings: Settings, secondary: Namespace | None, listener: socket.socket, token_file: Path | None
) -> None:
    told_to_stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, told_to_stop.set)
    observatory = Observatory(settings, None if secondary is None else DepthWatch(secondary))
    async with serving(observatory, listener) as running:
        address = f"http://{ADDRESS}:{listener.getsockname()[1]}/"
        typer.echo(f"The page is at {address} for this machine. Ctrl-C stops it.")
        if token_file is not None:
            typer.echo(f"Control is allowed with the token in {token_file}.")
            if sys.stdout.isatty():  # never into a log
                typer.echo(f"With the token: {address}#token={settings.token}")
        sys.stdout.flush()
        stopping = asyncio.create_task(told_to_stop.wait())
        await asyncio.wait({stopping, running}, return_when=asyncio.FIRST_COMPLETED)
        if not stopping.done():
            stopping.cancel()
            failure = running.exception()
            raise Refusal(f"The page cannot be served any more ({failure or 'its server ended'}): start it again.")


@contextlib.contextmanager
def _token_file(state_folder: Path, listener: socket.socket, token: str | None) -> Iterator[Path | None]:
    """Puts the token into a private file as long as the page is served."""
    if token is None:
        yield None
        return
    path = state_folder / f"dashboard-{listener.getsockname()[1]}.token"
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(f"{token}\n")
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)
