"""`pairbus syphon`: carry the backlog home, in this process or on Spark; and control a running syphon."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import os
import re
import signal
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pairbus.cli.foreground import STOP_SIGNALS, ask_namespace, refusing_spark_errors
from pairbus.cli.options import (
    Ledger,
    Primary,
    PrimaryName,
    Secondary,
    find_primary_name,
    parse_queues,
    primary_and_secondary,
)
from pairbus.cli.output import (
    DONE,
    LogLevel,
    Refusal,
    configure_logs,
    counted,
    plain,
    print_json,
    remark,
    shows_progress,
)

if TYPE_CHECKING:
    from pairbus.pipeline.servicebus.options import Access
    from pairbus.pipeline.spark_syphon import SparkSyphonReport
    from pairbus.syphon import Namespace, Syphon, SyphonState

PROGRESS_SECONDS = 0.5
_MASTER = re.compile(r"local(\[(\d+|\*)(, *\d+)?\])?|local-cluster\[.+\]|yarn|(spark|k8s)://.+")


def syphon(
    primary: Primary = None,
    secondary: Secondary = None,
    primary_name: PrimaryName = None,
    once: Annotated[bool, typer.Option("--once", help="Exit when the backlog is empty.")] = False,
    queues: Annotated[str, typer.Option(help="The backlog queues to drain, such as 0-9 or 0,2,5-7.")] = "0-9",
    include_extra: Annotated[
        bool, typer.Option("--include-extra", help="First drain the backlog queues beyond --queues.")
    ] = False,
    rate: Annotated[float | None, typer.Option(help="At most this many messages per second.")] = None,
    engine: Annotated[
        Literal["process", "spark"],
        typer.Option(help="spark: run as a Spark job, for backlogs that are too large for one process."),
    ] = "process",
    master: Annotated[
        str | None, typer.Option(help="Spark's master, for --engine spark. Default: all cores of this machine.")
    ] = None,
    backlog_time_to_live: Annotated[
        Literal["restore", "deduct"],
        typer.Option(
            help="restore: a message gets its full time to live again; deduct: only what is left after its wait."
        ),
    ] = "restore",
    ledger: Ledger = None,
    state_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Publish the state here for pairbus dashboard (--engine process)."),
    ] = None,
    control: Annotated[
        Path | None,
        typer.Option(help="The control socket: created by a syphon that runs, used by --pause, --resume and --state."),
    ] = None,
    pause: Annotated[bool, typer.Option("--pause", help="Make the syphon at --control stop receiving.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Make the syphon at --control continue.")] = False,
    state: Annotated[bool, typer.Option("--state", help="Show the state of the syphon at --control.")] = False,
    http: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Serve /health and /metrics on this loopback address.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print results as JSON.")] = False,
    log_level: LogLevel = "warning",
) -> int:
    """Carry the messages of the backlog home.

    SIGTERM or Ctrl-C finishes the messages in flight and exits; a second one exits at once. No message is lost either
    way.
    """
    configure_logs(log_level)
    if sum((pause, resume, state)) > 1:
        raise Refusal("--pause, --resume and --state exclude each other: use one of them.")
    if pause or resume or state:
        if control is None:
            raise Refusal("--pause, --resume and --state need --control, the socket of the running syphon.")
        return _control(control, "pause" if pause else "resume" if resume else "state", as_json=as_json)
    if master is not None and engine != "spark":
        raise Refusal("--master works only with --engine spark: use both or neither.")
    if engine == "spark" and (control is not None or http is not None):
        raise Refusal("--control and --http work only with --engine process: leave them out.")
    ends = primary_and_secondary(primary, secondary)
    if rate is not None and not 0 < rate < math.inf:
        raise Refusal(f"--rate '{rate:g}' is not a rate: use messages per second, more than 0, or leave it out.")
    options: dict[str, Any] = {
        "primary_name": find_primary_name(ends[0], primary_name),
        "queues": parse_queues(queues),
        "include_extra": include_extra,
        "rate": rate,
        "backlog_time_to_live": backlog_time_to_live,
        "ledger": ledger,
    }
    if engine == "spark":
        return _run_on_spark(*ends, options, master=master, once=once, as_json=as_json)
    return _run(*ends, options | {"state_dir": state_dir}, once=once, control=control, http=http, as_json=as_json)


def _control(socket: Path, command: str, *, as_json: bool) -> int:
    from pairbus.syphon.control import ask

    answer = ask(socket, command)
    if as_json:
        print_json(answer)
        return DONE
    typer.echo(f"{answer['state']}: {answer['restored']} restored, {answer['dead_lettered']} dead-lettered")
    for queue in answer["queues"]:
        typer.echo(f"  {queue['queue']}: {queue['state']}, {queue['in_hand']} in flight, {queue['held']} held")
        for paused in queue["paused"]:
            text = f"{paused['destination']} is paused for {paused['seconds_left']:.0f} s: {paused['cause']}"
            typer.echo(f"    {plain(text)}")
    return DONE


# --- in this process ----------------------------------------------------------------------------------------


def _run(
    primary: Namespace,
    secondary: Namespace,
    options: dict[str, Any],
    *,
    once: bool,
    control: Path | None,
    http: str | None,
    as_json: bool,
) -> int:
    import asyncio

    from pairbus.syphon import Syphon
    from pairbus.syphon.backlog import no_backlog
    from pairbus.syphon.control import control_socket

    async def run(syphon: Syphon) -> SyphonState:
        async with contextlib.AsyncExitStack() as stack:
            if control is not None:
                await stack.enter_async_context(control_socket(syphon, control))
            if http is not None:
                await stack.enter_async_context(_web(syphon, http))
            _stop_on_signals(syphon)
            if once and shows_progress():
                await stack.enter_async_context(_progress(syphon))
            elif not once:
                remark("The syphon is running. Ctrl-C stops it.")
            return await syphon.run(once=once)

    try:
        report = asyncio.run(run(Syphon(primary, secondary, **options)))
        if once and all(queue.state == "missing" for queue in report.queues):
            raise asyncio.run(no_backlog(secondary, options["primary_name"], options["queues"]))
    except (ValueError, RuntimeError, OSError) as error:
        raise Refusal(str(error)) from error
    if as_json:
        print_json(report.as_dict())
    else:
        _print(report)
    return DONE


def _stop_on_signals(syphon: Syphon) -> None:
    import asyncio

    stopping = False

    def stop(number: int) -> None:
        nonlocal stopping
        if stopping:
            os._exit(128 + number)  # at once: messages that are not completed stay in the backlog
        stopping = True
        syphon.stop()

    for number in STOP_SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, stop, number)


@contextlib.asynccontextmanager
async def _web(syphon: Syphon, address: str) -> AsyncIterator[None]:
    try:
        from pairbus.syphon.web import health_and_metrics
    except ImportError as error:
        raise Refusal("--http needs prometheus-client: pip install 'pairbus[metrics]'.") from error
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise Refusal(f"--http '{address}' is not an address: write HOST:PORT, such as 127.0.0.1:9464.")
    async with health_and_metrics(syphon, host, int(port)) as listening:
        remark(f"Health and metrics: http://{host}:{listening}/")
        yield


@contextlib.asynccontextmanager
async def _progress(syphon: Syphon) -> AsyncIterator[None]:
    import asyncio

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    total = await syphon.depth()
    columns = (TextColumn("carrying home"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=Console(file=sys.stderr))
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


def _print(report: SyphonState) -> None:
    typer.echo(f"{counted(report.restored, 'message')} restored, {report.dead_lettered} dead-lettered.")
    for queue in report.queues:
        counts: Any = queue.counts
        if queue.state == "missing":
            typer.echo(f"  {queue.queue} does not exist")
        elif counts.received or queue.last_error:
            error = f"; last error: {plain(queue.last_error)}" if queue.last_error else ""
            typer.echo(f"  {queue.queue}: {counts.restored} restored, {counts.dead_lettered} dead-lettered{error}")


# --- on Spark -----------------------------------------------------------------------------------------------


def _run_on_spark(
    primary: Namespace,
    secondary: Namespace,
    options: dict[str, Any],
    *,
    master: str | None,
    once: bool,
    as_json: bool,
) -> int:
    if importlib.util.find_spec("pyspark") is None:
        raise Refusal("--engine spark needs Spark, which is not installed: run pip install 'pairbus[spark]'.")
    from pairbus.pipeline.session import SPARK_ERRORS, cause_of, session_for
    from pairbus.pipeline.spark_syphon import backlog_depths, run_spark_syphon
    from pairbus.syphon.backlog import no_backlog

    primary_name, queues = options["primary_name"], options["queues"]

    async def check_backlog() -> None:
        depths = await backlog_depths(secondary, primary_name, queues, include_extra=options["include_extra"])
        if once and not depths:
            raise await no_backlog(secondary, primary_name, queues)

    ends = _access("--primary", primary), _access("--secondary", secondary)
    # Checked before Spark starts: its own messages about these mistakes are long, or missing.
    ask_namespace(check_backlog())
    if master is not None and not _MASTER.fullmatch(master):
        raise Refusal(
            f"--master '{plain(master)}' is not a Spark master: use local[CORES], spark://HOST:PORT, yarn or "
            "k8s://HOST:PORT."
        )
    stop = threading.Event()
    with refusing_spark_errors():
        try:
            spark = session_for(master, "pairbus syphon")
        except SPARK_ERRORS as error:
            raise Refusal(
                f"Spark could not start: {cause_of(error).rstrip('.')}. Check --master, and the variables "
                "SPARK_HOME, SPARK_CONF_DIR, PYSPARK_SUBMIT_ARGS and JAVA_HOME."
            ) from error
        try:
            _set_on_first_signal(stop)
            report = run_spark_syphon(*ends, spark=spark, once=once, on_progress=_remark_round, stop=stop, **options)
        except ValueError as error:
            raise Refusal(str(error)) from error
        finally:
            spark.stop()
    if as_json:
        print_json(report.as_dict())
    else:
        typer.echo(
            f"{report.restored} restored, {report.dead_lettered} dead-lettered in {report.seconds:.1f} s; "
            f"{sum(report.left.values())} left"
        )
    return DONE


def _access(option: str, namespace: Namespace) -> Access:
    from pairbus.pipeline.servicebus.options import Access

    if namespace._connection_string is None:
        raise Refusal(f"{option} is a host name: --engine spark needs a connection string (env:VARIABLE or a file).")
    return Access(None, namespace.connection_verify, namespace._connection_string)


def _remark_round(report: SparkSyphonReport) -> None:
    left = sum(report.left.values())
    error = f"; last error: {plain(report.last_error)}" if report.last_error and left else ""
    remark(
        f"round {report.rounds}: {report.restored} restored, {report.dead_lettered} dead-lettered, {left} left{error}"
    )


def _set_on_first_signal(stop: threading.Event) -> None:
    """The first signal ends the job after its round, the second one ends the process.

    Call it after Spark has started: Spark installs handlers of its own.
    """

    def handle(number: int, _: FrameType | None) -> None:
        stop.set()
        signal.signal(number, signal.SIG_DFL)

    for number in STOP_SIGNALS:
        signal.signal(number, handle)
