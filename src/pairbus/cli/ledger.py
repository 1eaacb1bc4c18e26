"""`pairbus ledger`: tables from a ledger, and a report from the tables."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pairbus.cli.foreground import ask_namespace, with_spark
from pairbus.cli.options import (
    NAMESPACE_HELP,
    Connections,
    OptionalPlanName,
    PlanName,
    TariffFile,
    TariffName,
    namespace_of_secondary,
    read_pricing,
)
from pairbus.cli.output import ANSWER_IS_NO, DONE, Refusal, counted, plain, print_json, remark

if TYPE_CHECKING:
    from pairbus.pipeline.build import BuildResult
    from pairbus.pipeline.gold import Pricing
    from pairbus.pipeline.report import Report

SECONDARY = "PAIRBUS_SECONDARY"

LedgerFolder = Annotated[
    Path, typer.Argument(metavar="LEDGER", help="The folder in which clients and syphons record their operations.")
]
Tables = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="The folder of the tables. Default: LEDGER-tables, beside the ledger."),
]


commands = typer.Typer(help="Build tables from a ledger, and report on them.", no_args_is_help=True)


@commands.command("build")
def build(
    ledger: LedgerFolder,
    tables: Tables = None,
    tariff_file: TariffFile = None,
    tariff: TariffName = None,
    plan: PlanName = "standard",
    connections: Connections = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Bring the tables up to date with the ledger.

    Reads only new files. A build succeeds completely or changes nothing, so run it as often as you like.
    """
    pricing = read_pricing(tariff_file, tariff, plan, connections)
    _check_folder(ledger)
    tables = _tables(ledger, tables)

    def run(spark: Any) -> BuildResult:
        from pairbus.pipeline.build import build as build_tables

        result = build_tables(spark, ledger, tables, pricing=pricing)
        _remark_on_names(spark, tables, pricing)
        return result

    result = with_spark(run)
    if as_json:
        print_json(result)
        return
    typer.echo(
        f"Read {counted(result.new_files, 'new file')} with {counted(result.records, 'record')}, "
        f"{counted(result.quarantined, 'line')} quarantined; {counted(len(result.days), 'day')} up to date in "
        f"{tables}."
    )


@commands.command("report")
def report(
    ledger: LedgerFolder,
    tables: Tables = None,
    first: Annotated[str | None, typer.Option("--from", metavar="DAY", help="First day, such as 2026-03-30.")] = None,
    last: Annotated[str | None, typer.Option("--to", metavar="DAY", help="Last day, inclusive.")] = None,
    output: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the report as an HTML page.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything the page shows as JSON.")] = False,
    look_into: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PRIMARY",
            help="Compare the ledger with the backlog queues of this primary, such as contoso; repeatable.",
        ),
    ] = None,
    secondary: Annotated[
        str | None,
        typer.Option(
            metavar="NAMESPACE", help=f"The secondary, for --look-into. {NAMESPACE_HELP} Default: env:{SECONDARY}."
        ),
    ] = None,
    tariff_file: TariffFile = None,
    tariff: TariffName = None,
    plan: OptionalPlanName = None,
    connections: Connections = None,
) -> int:
    """Report what happened to every message.

    Builds the tables first. Exits with 1 if a message is lost. Bills use the prices of the tables; the options here
    replace them for this report only.
    """
    first_day, last_day = parse_day("--from", first), parse_day("--to", last)
    _check_folder(ledger)
    tables = _tables(ledger, tables)
    has_prices = any((tariff_file, tariff, plan, connections))
    pricing = read_pricing(tariff_file, tariff, plan, connections, _prices_of(tables)) if has_prices else None
    if first_day is not None and last_day is not None and first_day > last_day:
        raise Refusal(f"--from {first_day} is after --to {last_day}: put the earlier day first.")
    if output is not None and not output.parent.is_dir():
        raise Refusal(f"Cannot write the report to {output}: the folder {output.parent} does not exist; create it.")
    if secondary is not None and not look_into:
        raise Refusal("--secondary works only with --look-into: use both, or leave it out.")
    access = _access(look_into, secondary) if look_into else {}
    _check_records(ledger, tables)

    def run(spark: Any) -> Report:
        from pairbus.ledger.writer import salt_from_environment
        from pairbus.pipeline.audit import look_into_backlogs, unread_ids
        from pairbus.pipeline.build import build as build_tables
        from pairbus.pipeline.report import report as make_report
        from pairbus.pipeline.store import TableStore

        # First the queues, then the ledger: what has left the queues by then is in the ledger's files.
        look = look_into_backlogs(spark, look_into, access, id_salt=salt_from_environment()) if look_into else None
        build_tables(spark, ledger, tables)
        if look is not None:
            look = replace(look, unread=unread_ids(ledger, TableStore(tables).manifest().files))
        _remark_on_names(spark, tables, pricing)
        return make_report(spark, tables, first_day=first_day, last_day=last_day, look=look, pricing=pricing)

    result = with_spark(run)
    if output is not None:
        from pairbus.pipeline.page import html_page

        try:
            output.write_text(html_page(result), encoding="utf-8")
        except OSError as error:
            raise Refusal(f"Cannot write the report to {output}: {error.strerror}.") from error
    if as_json:
        typer.echo(result.to_json().decode())
    else:
        _print(result, output)
    return ANSWER_IS_NO if result.summary.lost else DONE


def _print(report: Report, output: Path | None) -> None:
    from pairbus.pipeline.page import doubts, verdict

    typer.echo(verdict(report))
    typer.echo(report.summary.sentence)
    for sentence in doubts(report):
        typer.echo(sentence)
    for row in report.lost:
        typer.echo(plain(f"lost: {row['message_id']} for {row['target']}, diverted at {row['diverted_at']}"))
    if output is not None:
        typer.echo(f"The page is {output}.")


def _access(primary_names: list[str], secondary: str | None) -> dict[str, str]:
    """The connector's options for the secondary, checked before Spark starts.

    Spark's plans contain only the name of the variable, never its value; Spark's processes inherit the variable.
    """
    from pairbus.syphon.backlog import list_backlog_queues

    where = namespace_of_secondary(secondary)
    if where._connection_string is None:
        raise Refusal("--secondary is a host name: --look-into needs a connection string (env:VARIABLE or a file).")
    for name in primary_names:
        if not ask_namespace(list_backlog_queues(where, name)):
            raise Refusal(
                f"--look-into '{name}': {where.host} has no backlog queues of this primary. Use the primary's name as "
                "in the paths of its backlog queues, such as contoso, and its secondary as --secondary."
            )
    os.environ[SECONDARY] = where._connection_string
    certificate = where.connection_verify
    return {"connectionStringEnv": SECONDARY} | ({"connectionVerify": certificate} if certificate else {})


def _check_folder(ledger: Path) -> None:
    if not ledger.is_dir():
        problem = "is a file" if ledger.exists() else "does not exist"
        raise Refusal(f"The ledger folder {ledger} {problem}: name the folder in which clients record.")


def _check_records(ledger: Path, tables: Path) -> None:
    """A report needs files of the ledger, or tables built from files that are gone."""
    from pairbus.ledger.files import closed_files

    if not tables.exists() and not closed_files(ledger):
        raise Refusal(
            f"The ledger {ledger} has no records yet: wait a minute after the first operation, or close the client "
            "that records."
        )


def _tables(ledger: Path, tables: Path | None) -> Path:
    folder = ledger.resolve() if ledger.name in ("", "..") else ledger  # the folder `.` has a name all the same
    return tables or folder.parent / f"{folder.name}-tables"


def _prices_of(tables: Path) -> Pricing | None:
    from pairbus.pipeline.store import TableStore

    return TableStore(tables).manifest().prices


def _remark_on_names(spark: Any, tables: Path, pricing: Pricing | None) -> None:
    from pairbus.pipeline.build import unknown_names

    sentence = unknown_names(spark, tables, pricing) if pricing is not None else None
    if sentence is not None:
        remark(plain(sentence))


def parse_day(option: str, text: str | None) -> date | None:
    if text is None:
        return None
    try:
        return datetime.strptime(text, "%Y-%m-%d").date()
    except ValueError:
        raise Refusal(f"{option} '{text}' is not a day: write it as 2026-03-30.") from None
