"""The options that name the two namespaces of a pair: the same words for every command that takes both."""

from __future__ import annotations

from typing import Annotated

import typer

from pairbus.cli.namespaces import HELP

Primary = Annotated[str | None, typer.Option(metavar="NAMESPACE", help=f"{HELP} Default: env:PAIRBUS_PRIMARY.")]
Secondary = Annotated[
    str | None, typer.Option(metavar="NAMESPACE", help="The same for the secondary. Default: env:PAIRBUS_SECONDARY.")
]
PrimaryName = Annotated[
    str | None,
    typer.Option(
        help="The name in the backlog queues' paths; default: the first label of the host, or the name of the "
        "embedded namespace."
    ),
]
