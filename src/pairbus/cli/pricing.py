"""The options that choose prices, and what they mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
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


def read_pricing(
    file: Path | None,
    name: str | None,
    plan: str | None,
    connections: Sequence[str] | None = None,
    before: Pricing | None = None,
) -> Pricing:
    """Which prices to use, checked before anything else is done: those of `before`, but for what is given."""
    from pairbus.costs import TariffError
    from pairbus.pipeline.gold import Pricing

    prices = before or Pricing()
    own = _own_tariff(file)
    chosen = replace(
        prices,
        tariffs=prices.tariffs if own is None else (own,),
        tariff=name or (prices.tariff if own is None else own.name),
        plan=plan or prices.plan,
        connections={**prices.connections, **dict(_connections(entry) for entry in connections or ())},
    )
    try:
        chosen.of("", date.today())
    except TariffError as error:
        raise Refusal(str(error)) from error
    return chosen


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
    from pairbus.costs import shipped_tariffs

    own = _own_tariff(file)
    return (shipped_tariffs(), name or "azure-usd") if own is None else ((*shipped_tariffs(), own), name or own.name)


def _own_tariff(file: Path | None) -> Tariff | None:
    from pairbus.costs import TariffError, parse_tariff

    if file is None:
        return None
    try:
        return parse_tariff(file_text("The tariff", file), str(file))
    except TariffError as error:
        raise Refusal(str(error)) from error
