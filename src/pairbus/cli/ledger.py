"""`pairbus ledger`: tables from a ledger, and a report from the tables."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pairbus.cli.namespaces import HELP, namespace
from pairbus.cli.plain import counted, plain
from pairbus.cli.pricing import Connections, OtherPlanName, PlanName, TariffFile, TariffName, read_pricing
from pairbus.cli.refusal import Refusal
from pairbus.cli.spark import with_spark
from pairbus.cli.voice import remark

if TYPE_CHECKING:
    from pairbus.pipeline.audit import Look
    from pairbus.pipeline.build import BuildResult
    from pairbus.pipeline.gold import Pricing
    from pairbus.pipeline.report import Report

ANSWER_IS_NO = 1
SECONDARY = "PAIRBUS_SECONDARY"

Ledger = Annotated[Path, typer.Argument(metavar="LEDGER", help="The folder that clients and syphons record in.")]
Tables = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Where the tables are kept; beside the ledger unless given.")
]


def register(app: typer.Typer) -> None:
    ledger = typer.Typer(help="Answers from the ledger: tables, and a report.", no_args_is_help=True)
    ledger.command("build")(build)
    ledger.command("report")(report)
    app.add_typer(ledger, name="ledger")


def build(
    ledger: Ledger,
    tables: Tables = None,
    tariff_file: TariffFile = None,
    tariff: TariffName = None,
    plan: PlanName = "standard",
    connections: Connections = None,
    as_json: Annotated[bool, typer.Option("--json", help="The result as JSON.")] = False,
) -> None:
    """Bring the tables up to date with the ledger.

    Reads only files it has not read, and changes everything or nothing. Run it as often as you like.
    """
    pricing = read_pricing(tariff_file, tariff, plan, connections)
    _check_folder(ledger)

    def bring_up_to_date(spark: Any) -> BuildResult:
        done = _build(spark, ledger, tables, pricing)
        _remark_on_names(spark, _tables(ledger, tables), pricing)
        return done

    result = with_spark(bring_up_to_date)
    if as_json:
        import msgspec

        typer.echo(msgspec.json.encode(result).decode())
        return
    typer.echo(
        f"Read {counted(result.new_files, 'new file')} with {counted(result.records, 'record')}, "
        f"{counted(result.quarantined, 'line')} quarantined; {counted(len(result.days), 'day')} up to date in "
        f"{_tables(ledger, tables)}."
    )


def report(
    ledger: Ledger,
    tables: Tables = None,
    first: Annotated[str | None, typer.Option("--from", metavar="DAY", help="First day, such as 2026-03-30.")] = None,
    last: Annotated[str | None, typer.Option("--to", metavar="DAY", help="Last day, included.")] = None,
    output: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the page (HTML) here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Everything the page shows, as JSON.")] = False,
    look_into: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PRIMARY",
            help="Compare what should wait with the backlog queues of this primary, such as contoso; may be "
            "given again.",
        ),
    ] = None,
    secondary: Annotated[
        str | None,
        typer.Option(metavar="NAMESPACE", help=f"For --look-into. {HELP} Default: env:{SECONDARY}."),
    ] = None,
    tariff_file: TariffFile = None,
    tariff: TariffName = None,
    plan: OtherPlanName = None,
    connections: Connections = None,
) -> int:
    """Say what became of every message, and write a page about it.

    Builds the tables first. Exits with 1 if a message is lost. Bills are those of the tables; prices that are given
    here replace theirs for this report only.
    """
    first_day, last_day = read_day("--from", first), read_day("--to", last)
    _check_folder(ledger)
    given = any((tariff_file, tariff, plan, connections))
    before = _prices_of(_tables(ledger, tables)) if given else None
    pricing = read_pricing(tariff_file, tariff, plan, connections, before) if given else None
    if first_day is not None and last_day is not None and first_day > last_day:
        raise Refusal(f"--from {first_day} is after --to {last_day}: give the earlier day first.")
    if output is not None and not output.parent.is_dir():
        raise Refusal(f"The report cannot be written to {output}: the folder {output.parent} does not exist; make it.")
    if secondary is not None and not look_into:
        raise Refusal("--secondary is for --look-into: give both, or leave it out.")
    access = _access(look_into, secondary) if look_into else {}
    _check_records(ledger, _tables(ledger, tables))

    def ask(spark: Any) -> Report:
        from pairbus.pipeline.report import report as tell

        # First the look, then the ledger: what has left the queues by then is in its files.
        look = _look(spark, look_into, access) if look_into else None
        _build(spark, ledger, tables, None)
        if look is not None:
            look = _with_unread(look, ledger, _tables(ledger, tables))
        _remark_on_names(spark, _tables(ledger, tables), pricing)
        return tell(spark, _tables(ledger, tables), first_day=first_day, last_day=last_day, look=look, pricing=pricing)

    told = with_spark(ask)
    if output is not None:
        from pairbus.pipeline.page import html_page

        try:
            output.write_text(html_page(told), encoding="utf-8")
        except OSError as error:
            raise Refusal(f"The report cannot be written to {output}: {error.strerror}.") from error
    if as_json:
        typer.echo(told.to_json().decode())
    else:
        _print(told, output)
    return ANSWER_IS_NO if told.summary.lost else 0


def _print(told: Report, output: Path | None) -> None:
    from pairbus.pipeline.page import doubts, verdict

    typer.echo(verdict(told))
    typer.echo(told.summary.sentence)
    for sentence in doubts(told):
        typer.echo(sentence)
    for row in told.lost:
        typer.echo(plain(f"lost: {row['message_id']} for {row['target']}, diverted at {row['diverted_at']}"))
    if output is not None:
        typer.echo(f"The page is {output}.")


def _access(primary_names: list[str], secondary: str | None) -> dict[str, str]:
    """The connector's options for the secondary, which is asked before Spark is started: it may not be there.

    Only the variable's name goes into Spark's plans, never its value; Spark's processes inherit it.
    """
    from pairbus.cli.tables import asked
    from pairbus.syphon.service import list_backlog_queues

    where = namespace("--secondary", secondary, SECONDARY)
    if where._connection_string is None:
        raise Refusal("--secondary is a host name: --look-into needs a connection string (env:VARIABLE or a file).")
    for name in primary_names:
        if not asked(list_backlog_queues(where, name)):
            raise Refusal(
                f"--look-into '{name}': {where.host} has no backlog queues of it. Give the primary's name as it stands "
                "in their paths, such as contoso, and its secondary as --secondary."
            )
    os.environ[SECONDARY] = where._connection_string
    certificate = where.connection_verify
    return {"connectionStringEnv": SECONDARY} | ({"connectionVerify": certificate} if certificate else {})


def _look(spark: Any, primary_names: list[str], access: dict[str, str]) -> Look:
    """What is in the backlog queues."""
    from pairbus.ledger.writer import salt_from_environment
    from pairbus.pipeline.reality import look_into_backlogs

    return look_into_backlogs(spark, primary_names, access, id_salt=salt_from_environment())


def _with_unread(look: Look, ledger: Path, tables: Path) -> Look:
    from pairbus.pipeline.reality import unread_ids
    from pairbus.pipeline.store import TableStore

    return replace(look, unread=unread_ids(ledger, TableStore(tables).manifest().files))


def _check_folder(ledger: Path) -> None:
    """Before Spark is started, which takes ten seconds."""
    if not ledger.is_dir():
        what = "is a file" if ledger.exists() else "does not exist"
        raise Refusal(f"The ledger folder {ledger} {what}; give the folder that clients record in.")


def _check_records(ledger: Path, tables: Path) -> None:
    """A report needs something to tell about: files of the ledger, or tables made of files that are gone."""
    from pairbus.ledger.files import closed_files

    if not tables.exists() and not closed_files(ledger):
        raise Refusal(
            f"The ledger {ledger} has no records yet: they are there a minute after the first one at the latest, or "
            "when the client that records is closed."
        )


def _tables(ledger: Path, tables: Path | None) -> Path:
    return tables or ledger.with_name(f"{ledger.name}-tables")


def _prices_of(tables: Path) -> Pricing | None:
    from pairbus.pipeline.store import TablesError, TableStore

    try:
        return TableStore(tables).manifest().prices
    except TablesError as error:
        raise Refusal(str(error)) from error


def _remark_on_names(spark: Any, tables: Path, pricing: Pricing | None) -> None:
    from pairbus.pipeline.build import unknown_names

    sentence = unknown_names(spark, tables, pricing) if pricing is not None else None
    if sentence is not None:
        remark(plain(sentence))


def _build(spark: Any, ledger: Path, tables: Path | None, pricing: Pricing | None) -> BuildResult:
    from pairbus.pipeline.build import build as bring_up_to_date

    return bring_up_to_date(spark, ledger, _tables(ledger, tables), pricing=pricing)


def read_day(option: str, text: str | None) -> date | None:
    if text is None:
        return None
    try:
        return datetime.strptime(text, "%Y-%m-%d").date()
    except ValueError:
        raise Refusal(f"{option} '{text}' is not a day: write it as 2026-03-30.") from None
