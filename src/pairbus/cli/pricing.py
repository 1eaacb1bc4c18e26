"""The options that choose prices, and what they mean."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pairbus.cli.refusal import Refusal
from pairbus.costs import Tariff, TariffError, parse_tariff, shipped_tariffs, tariff_for

if TYPE_CHECKING:
    from pairbus.pipeline.gold import Pricing

TariffFile = Annotated[
    Path | None, typer.Option("--tariff-file", metavar="FILE", help="A tariff of your own, as TOML.")
]
TariffName = Annotated[str | None, typer.Option("--tariff", help="Which tariff; azure-usd unless a file is given.")]
PlanName = Annotated[str, typer.Option("--plan", help="Plan of the namespaces: basic, standard or premium.")]


def read_pricing(file: Path | None, name: str | None, plan: str) -> Pricing:
    """Which prices to use, checked before anything else is done."""
    tariffs, chosen = read_tariffs(file, name)
    try:
        tariff_for(tariffs, chosen, date.today()).plan(plan)
    except TariffError as error:
        raise Refusal(str(error)) from error
    from pairbus.pipeline.gold import Pricing

    return Pricing(tariffs=tariffs, tariff=chosen, plan=plan)


def read_tariffs(file: Path | None, name: str | None) -> tuple[tuple[Tariff, ...], str]:
    """All tariffs there are, and the name of the one to use: the file's, unless another is asked for."""
    tariffs = shipped_tariffs()
    if file is None:
        return tariffs, name or "azure-usd"
    try:
        own = parse_tariff(file.read_text(encoding="utf-8"), str(file))
    except OSError as error:
        raise Refusal(f"The tariff {file} cannot be read: {error.strerror}.") from error
    except (TariffError, UnicodeDecodeError) as error:
        raise Refusal(str(error)) from error
    return (*tariffs, own), name or own.name
