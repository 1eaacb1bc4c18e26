"""`pairbus deadletters`: what could not go home and why, and sending it on its way again."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from pairbus.cli.backlog import AsJson, PrimaryName, Secondary

commands = typer.Typer(help="Messages of the backlog that could not go home.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    app.add_typer(commands, name="deadletters")


@commands.command("list")
def list_(primary_name: PrimaryName, secondary: Secondary = None, as_json: AsJson = False) -> None:
    """Show the dead letters of all backlog queues."""
    from pairbus.cli.namespaces import namespace
    from pairbus.cli.tables import asked, print_rows
    from pairbus.syphon.deadletters import dead_letters

    where = namespace("--secondary", secondary, "PAIRBUS_SECONDARY")
    print_rows(asked(dead_letters(where, primary_name)), as_json=as_json)


@commands.command("resubmit")
def resubmit(
    primary_name: PrimaryName,
    secondary: Secondary = None,
    reason: Annotated[list[str] | None, typer.Option(help="Only those with this reason; may be given again.")] = None,
    message_id: Annotated[list[str] | None, typer.Option(help="Only this message; may be given again.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show which.")] = False,
    ledger: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The folder that gets a record of each operation.")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Put dead letters back into their backlog queue.

    Do it after the cause is mended; the syphon carries them from there. Where there is a ledger, record it there: the
    audit then knows that they wait again. Exits with 1 if a --message-id is not among them.
    """
    from pairbus.cli.exits import ANSWER_IS_NO, DONE
    from pairbus.cli.namespaces import namespace
    from pairbus.cli.plain import plain
    from pairbus.cli.tables import asked, print_rows
    from pairbus.cli.voice import remark
    from pairbus.ledger import LedgerWriter, Role
    from pairbus.syphon.deadletters import resubmit as put_back

    where = namespace("--secondary", secondary, "PAIRBUS_SECONDARY")
    with nullcontext() if ledger is None else LedgerWriter(ledger, role=Role.SYPHON) as writer:
        done = asked(
            put_back(
                where,
                primary_name,
                reasons=reason or (),
                message_ids=message_id or (),
                dry_run=dry_run,
                ledger=writer,
            )
        )
    print_rows(done, as_json=as_json)
    one = len(done) == 1
    verb = "would be" if dry_run else "was" if one else "were"
    remark(f"{len(done)} dead {'letter' if one else 'letters'} {verb} resubmitted.")
    absent = set(message_id or ()) - {letter.message_id for letter in done}
    for name in sorted(absent):
        remark(f"No dead letter with the id '{plain(name)}' was found{' for these reasons' if reason else ''}.")
    return ANSWER_IS_NO if absent else DONE
