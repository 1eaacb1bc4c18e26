"""`pairbus backlog`: what waits in the backlog queues of a primary, and removing those that nobody uses."""

from __future__ import annotations

from typing import Annotated

import typer

from pairbus.cli.namespaces import HELP

Secondary = Annotated[str | None, typer.Option(metavar="NAMESPACE", help=f"{HELP} Default: env:PAIRBUS_SECONDARY.")]
PrimaryName = Annotated[str, typer.Option(help="The primary's name in the backlog queues' paths, such as contoso.")]
Queues = Annotated[str, typer.Option(help="The backlog queues in use; the others are extra.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

commands = typer.Typer(help="Look into the backlog, and tidy it up.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    app.add_typer(commands, name="backlog")


@commands.command("list")
def list_(
    primary_name: PrimaryName, secondary: Secondary = None, queues: Queues = "0-9", as_json: AsJson = False
) -> None:
    """Show each backlog queue and what is in it.

    Depth, oldest message, destinations, parts of large messages, dead letters.
    """
    from pairbus.cli.namespaces import namespace, numbers
    from pairbus.cli.tables import asked, print_rows
    from pairbus.syphon.backlog import list_queues

    where = namespace("--secondary", secondary, "PAIRBUS_SECONDARY")
    print_rows(asked(list_queues(where, primary_name, numbers("--queues", queues))), as_json=as_json)


@commands.command("peek")
def peek(
    primary_name: PrimaryName,
    secondary: Secondary = None,
    queue: Annotated[int, typer.Option(min=0, help="The number of the backlog queue.")] = 0,
    count: Annotated[int, typer.Option(min=1, help="How many messages, from the oldest on.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Show the oldest messages of one backlog queue.

    They stay where they are.
    """
    from pairbus.cli.namespaces import namespace
    from pairbus.cli.tables import asked, print_rows
    from pairbus.pairing.options import backlog_path
    from pairbus.syphon.backlog import Waiting, no_backlog
    from pairbus.syphon.backlog import peek as peek_at
    from pairbus.syphon.transport import ReceiverLostError

    where = namespace("--secondary", secondary, "PAIRBUS_SECONDARY")

    async def found() -> list[Waiting]:
        try:
            return [one async for one in peek_at(where, backlog_path(primary_name, queue), count)]
        except ReceiverLostError as error:
            if not error.missing:
                raise
            raise await no_backlog(where, primary_name, [queue]) from error

    print_rows(asked(found()), as_json=as_json)


@commands.command("prune")
def prune(
    primary_name: PrimaryName,
    secondary: Secondary = None,
    queues: Queues = "0-9",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show which.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete empty backlog queues that are not in use.

    Those with messages or dead letters stay.
    """
    from pairbus.cli.namespaces import namespace, numbers
    from pairbus.cli.tables import asked
    from pairbus.syphon.backlog import prune as prune_queues

    where = namespace("--secondary", secondary, "PAIRBUS_SECONDARY")
    names = asked(prune_queues(where, primary_name, numbers("--queues", queues), dry_run=dry_run))
    if as_json:
        import json

        typer.echo(json.dumps(names))
        return
    for name in names:
        typer.echo(f"{name} {'would be deleted' if dry_run else 'was deleted'}")
