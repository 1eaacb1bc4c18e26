"""A syphon in the foreground: its signals, its sockets, its progress, its last word."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from pairbus.cli.plain import plain
from pairbus.cli.refusal import Refusal
from pairbus.cli.voice import remark, shows_progress
from pairbus.embedded.running import known_servers
from pairbus.pairing.options import SendAvailabilityPairedNamespaceOptions
from pairbus.syphon import Namespace, Syphon, SyphonState
from pairbus.syphon.backlog import no_backlog
from pairbus.syphon.control import ControlError, control_socket
from pairbus.syphon.control import ask as ask_at

PROGRESS_SECONDS = 0.5


def ask(control: Path, command: str, *, as_json: bool) -> int:
    try:
        answer = ask_at(control, command)
    except ControlError as error:
        raise Refusal(str(error)) from error
    if as_json:
        typer.echo(json.dumps(answer))
        return 0
    typer.echo(f"{answer['state']}: {answer['restored']} restored, {answer['dead_lettered']} dead-lettered")
    for queue in answer["queues"]:
        typer.echo(f"  {queue['queue']}: {queue['state']}, {queue['in_hand']} at hand, {queue['held']} held")
        for paused in queue["paused"]:
            said = f"{paused['destination']} is left alone for {paused['seconds_left']:.0f} s: {paused['cause']}"
            typer.echo(f"    {plain(said)}")
    return 0


def name_of_primary(primary: Namespace, given: str | None) -> str:
    """The name in the backlog queues' paths: as given, as the host says, or as the embedded namespace is called."""
    options: SendAvailabilityPairedNamespaceOptions[None, None]
    try:
        options = SendAvailabilityPairedNamespaceOptions(None, None, primary_name=given or primary.name)
    except ValueError as error:
        raise Refusal(
            f"--primary-name '{given}' is no name of a namespace: give 1 to 50 letters, digits, '.', '-' or '_'."
        ) from error
    try:
        return options.name_of_primary(primary.host)
    except ValueError as error:
        for server in known_servers():
            if Namespace.parse(server.connection_string).address == primary.address:
                return server.name
        raise Refusal(
            f"The host of --primary, '{primary.host}', does not say what the backlog queues are called by: give "
            "--primary-name, the primary_name of the paired clients."
        ) from error


def run(
    primary: Namespace,
    secondary: Namespace,
    *,
    primary_name: str,
    queues: list[int],
    include_extra: bool,
    rate: float | None,
    transport: Literal["amqp", "sdk"],
    backlog_time_to_live: Literal["restore", "deduct"],
    ledger: Path | None,
    state_dir: Path | None,
    once: bool,
    control: Path | None,
    http: str | None,
    as_json: bool,
) -> int:
    """Carry until told to stop, or until drained; the exit code."""
    try:
        syphon = Syphon(
            primary,
            secondary,
            primary_name=primary_name,
            queues=queues,
            include_extra=include_extra,
            transport=transport,
            backlog_time_to_live=backlog_time_to_live,
            rate=rate,
            ledger=ledger,
            state_dir=state_dir,
        )
        report = asyncio.run(_run(syphon, once, control, http))
        if once and all(queue.state == "missing" for queue in report.queues):
            raise asyncio.run(no_backlog(secondary, primary_name, queues))
    except (ValueError, ControlError, RuntimeError, OSError) as error:
        raise Refusal(str(error)) from error
    _print(report, as_json)
    return 0


async def _run(syphon: Syphon, once: bool, control: Path | None, http: str | None) -> SyphonState:
    async with contextlib.AsyncExitStack() as stack:
        if control is not None:
            await stack.enter_async_context(control_socket(syphon, control))
        if http is not None:
            await stack.enter_async_context(_web(syphon, http))
        _listen_to_signals(syphon)
        if once and shows_progress():
            await stack.enter_async_context(_progress(syphon))
        elif not once:
            remark("The syphon runs. Ctrl-C stops it.")
        return await syphon.run(once=once)


def _listen_to_signals(syphon: Syphon) -> None:
    asked = False

    def stop(number: int) -> None:
        nonlocal asked
        if asked:
            os._exit(128 + number)  # at once: what was not completed comes again
        asked = True
        syphon.stop()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)


@contextlib.asynccontextmanager
async def _web(syphon: Syphon, address: str) -> AsyncIterator[None]:
    try:
        from pairbus.syphon.web import health_and_metrics
    except ImportError as error:
        raise Refusal("--http needs prometheus-client: pip install 'pairbus[metrics]'.") from error
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise Refusal(f"--http '{address}' is no address: give HOST:PORT, such as 127.0.0.1:9464.")
    async with health_and_metrics(syphon, host, int(port)) as listening:
        remark(f"Health and metrics: http://{host}:{listening}/")
        yield


@contextlib.asynccontextmanager
async def _progress(syphon: Syphon) -> AsyncIterator[None]:
    total = await syphon.depth()
    bar = Progress(
        TextColumn("carrying home"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(file=sys.stderr),
    )
    row = bar.add_task("", total=total)

    def show() -> None:
        state = syphon.state()
        done = state.restored + state.dead_lettered
        bar.update(row, completed=done, total=max(total, done) or None)

    async def follow() -> None:
        while True:
            show()
            await asyncio.sleep(PROGRESS_SECONDS)

    with bar:
        following = asyncio.ensure_future(follow())
        try:
            yield
        finally:
            following.cancel()
            show()


def _print(report: SyphonState, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(report.as_dict()))
        return
    typer.echo(f"{report.restored} messages are home, {report.dead_lettered} were dead-lettered.")
    for queue in report.queues:
        counts: Any = queue.counts
        if queue.state == "missing":
            typer.echo(f"  {queue.queue} does not exist")
        elif counts.received or queue.last_error:
            said = f"; last error: {plain(queue.last_error)}" if queue.last_error else ""
            typer.echo(f"  {queue.queue}: {counts.restored} restored, {counts.dead_lettered} dead-lettered{said}")
