"""The options that choose prices, and what they mean."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pairbus.cli.parsing import file_text
from pairbus.cli.refusal import Refusal

if TYPE_CHECKING:
    from pairbus.costs import Tariff
    from pairbus.pipeline.gold import Pricing

TariffFile = Annotated[
    Path | None, typer.Option("--tariff-file", metavar="FILE", help="A tariff of your own, as TOML.")
]
TariffName = Annotated[str | None, typer.Option("--tariff", help="Which tariff; azure-usd unless a file is given.")]
PlanName = Annotated[str, typer.Option("--plan", help="Plan of the namespaces: basic, standard or premium.")]
OtherPlanName = Annotated[
    str | None,
    typer.Option("--plan", help="Plan of the namespaces, if not that of the tables; standard, basic or premium."),
]

Connections = Annotated[
    list[str] | None,
    typer.Option(
        "--connections",
        metavar="NAMESPACE=COUNT",
        help="Brokered connections of a namespace in a month, for its bill; no ledger knows them.",
    ),
]


def read_pricing(file: Path | None, name: str | None, plan: str, connections: Sequence[str] | None = None) -> Pricing:
    """Which prices to use, checked before anything else is done."""
    from pairbus.costs import TariffError, tariff_for

    tariffs, chosen = read_tariffs(file, name)
    try:
        tariff_for(tariffs, chosen, date.today()).plan(plan)
    except TariffError as error:
        raise Refusal(str(error)) from error
    from pairbus.pipeline.gold import Pricing

    counts = dict(_connections(entry) for entry in connections or ())
    return Pricing(tariffs=tariffs, tariff=chosen, plan=plan, connections=counts)


def _connections(entry: str) -> tuple[str, Decimal]:
    namespace, _, text = entry.rpartition("=")
    try:
        count = Decimal(text)
    except InvalidOperation:
        count = Decimal(-1)
    if not namespace or not count.is_finite() or count < 0:
        raise Refusal(f"--connections '{entry}' is not a namespace and a count: write it as contoso=5000.")
    return namespace.lower(), count


def read_tariffs(file: Path | None, name: str | None) -> tuple[tuple[Tariff, ...], str]:
    """All tariffs there are, and the name of the one to use: the file's, unless another is asked for."""
    from pairbus.costs import TariffError, parse_tariff, shipped_tariffs

    tariffs = shipped_tariffs()
    if file is None:
        return tariffs, name or "azure-usd"
    try:
        own = parse_tariff(file_text("The tariff", file), str(file))
    except TariffError as error:
        raise Refusal(str(error)) from error
    return (*tariffs, own), name or own.name
