"""`pairbus backlog`, `deadletters` and `spool`: look into the backlog queues of a primary, and clean them up."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from pairbus.cli.foreground import ask_namespace
from pairbus.cli.options import NAMESPACE_HELP, Ledger, namespace_of_secondary, parse_queues
from pairbus.cli.output import ANSWER_IS_NO, DONE, Refusal, counted, plain, print_json, print_rows, remark

Secondary = Annotated[
    str | None,
    typer.Option(metavar="NAMESPACE", help=f"The secondary. {NAMESPACE_HELP} Default: env:PAIRBUS_SECONDARY."),
]
PrimaryName = Annotated[
    str, typer.Option(help="The primary's name in the paths of the backlog queues, such as contoso.")
]
Queues = Annotated[str, typer.Option(help="The backlog queues in use, such as 0-9 or 0,2,5-7; all others are extra.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would happen.")]

backlog = typer.Typer(help="Look into the backlog queues, and clean them up.", no_args_is_help=True)
deadletters = typer.Typer(help="Handle messages that the syphon could not deliver.", no_args_is_help=True)


@backlog.command("list")
def list_backlog(
    primary_name: PrimaryName, secondary: Secondary = None, queues: Queues = "0-9", as_json: AsJson = False
) -> None:
    """Show the backlog queues and their content.

    For each queue: its depth, oldest message, destinations, parts of large messages, dead letters.
    """
    from pairbus.syphon.backlog import list_queues

    rows = list_queues(namespace_of_secondary(secondary), primary_name, parse_queues(queues))
    print_rows(ask_namespace(rows), as_json=as_json)


@backlog.command("peek")
def peek(
    primary_name: PrimaryName,
    secondary: Secondary = None,
    queue: Annotated[int, typer.Option(min=0, help="The number of the backlog queue.")] = 0,
    count: Annotated[int, typer.Option(min=1, help="How many messages to show, oldest first.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Show the oldest messages of one backlog queue.

    The messages stay in the queue.
    """
    from pairbus.pairing.options import backlog_path
    from pairbus.syphon.backlog import Waiting, no_backlog
    from pairbus.syphon.backlog import peek as peek_at
    from pairbus.syphon.transport import ReceiverLostError

    where = namespace_of_secondary(secondary)

    async def messages() -> list[Waiting]:
        try:
            return [message async for message in peek_at(where, backlog_path(primary_name, queue), count)]
        except ReceiverLostError as error:
            if not error.missing:
                raise
            raise await no_backlog(where, primary_name, [queue]) from error

    print_rows(ask_namespace(messages()), as_json=as_json)


@backlog.command("prune")
def prune(
    primary_name: PrimaryName,
    secondary: Secondary = None,
    queues: Queues = "0-9",
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Delete empty backlog queues that are not in use.

    Queues with messages or dead letters stay.
    """
    from pairbus.syphon.backlog import prune as prune_queues

    names = ask_namespace(
        prune_queues(namespace_of_secondary(secondary), primary_name, parse_queues(queues), dry_run=dry_run)
    )
    if as_json:
        print_json(names)
        return
    for name in names:
        typer.echo(f"{name} {'would be deleted' if dry_run else 'was deleted'}")


def list_spool(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of the option spool.")],
    as_json: AsJson = False,
) -> None:
    """Show the messages in a spool, oldest first.

    They wait for either namespace. A message that the backlog refuses for good is set aside, with the reason. Works
    while an application uses the spool, and changes nothing.
    """
    from pairbus.errors import SpoolError
    from pairbus.spool import look_into

    try:
        rows = look_into(folder)
    except SpoolError as error:
        raise Refusal(str(error)) from error
    print_rows(rows, as_json=as_json)


@deadletters.command("list")
def list_dead_letters(primary_name: PrimaryName, secondary: Secondary = None, as_json: AsJson = False) -> None:
    """Show the dead letters of all backlog queues."""
    from pairbus.syphon.deadletters import dead_letters

    print_rows(ask_namespace(dead_letters(namespace_of_secondary(secondary), primary_name)), as_json=as_json)


@deadletters.command("resubmit")
def resubmit(
    primary_name: PrimaryName,
    secondary: Secondary = None,
    reason: Annotated[list[str] | None, typer.Option(help="Only dead letters with this reason; repeatable.")] = None,
    message_id: Annotated[list[str] | None, typer.Option(help="Only this message; repeatable.")] = None,
    dry_run: DryRun = False,
    ledger: Ledger = None,
    as_json: AsJson = False,
) -> int:
    """Put dead letters back into their backlog queue.

    Fix the cause first; the syphon then delivers them. If you keep a ledger, name it with --ledger, so that the audit
    knows that the messages are waiting again. Exits with 1 if no dead letter has the id of a --message-id.
    """
    from pairbus.ledger import LedgerWriter, Role
    from pairbus.syphon.deadletters import resubmit as put_back

    where = namespace_of_secondary(secondary)
    with nullcontext() if ledger is None else LedgerWriter(ledger, role=Role.SYPHON) as writer:
        letters = ask_namespace(
            put_back(
                where,
                primary_name,
                reasons=reason or (),
                message_ids=message_id or (),
                dry_run=dry_run,
                ledger=writer,
            )
        )
    print_rows(letters, as_json=as_json)
    verb = "would be" if dry_run else "was" if len(letters) == 1 else "were"
    remark(f"{counted(len(letters), 'dead letter')} {verb} resubmitted.")
    absent = set(message_id or ()) - {letter.message_id for letter in letters}
    for name in sorted(absent):
        remark(f"No dead letter has the id '{plain(name)}'{' and one of these reasons' if reason else ''}.")
    return ANSWER_IS_NO if absent else DONE
