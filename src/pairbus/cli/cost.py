"""`pairbus cost` and `pairbus simulate`: what a pairing costs, before it exists."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Annotated, Any

import typer

from pairbus.cli.foreground import with_spark
from pairbus.cli.options import PlanName, TariffFile, TariffName, read_tariffs
from pairbus.cli.output import Refusal, counted, print_json, remark

FleetFile = Annotated[
    Path,
    typer.Argument(
        metavar="FLEET.toml", help="The file that describes the fleet, such as the example in docs/costs.md."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
_MONEY = ("amount", "amount_without_pairing")
_ALL = (
    *("availability", "availability_without_pairing", "refused", "diverted", "spooled", "pings"),
    *("backlog_peak", "drain_seconds", "wait_mean_seconds", "wait_p99_seconds", *_MONEY),
)


cost = typer.Typer(help="Calculate what a pairing costs.", no_args_is_help=True)


@cost.command("estimate")
def estimate(
    clients: Annotated[int, typer.Option(help="Number of paired clients.")] = 1,
    entities: Annotated[int, typer.Option(help="Queues and topics that each client sends to.")] = 1,
    backlog_queues: Annotated[int, typer.Option(help="Number of backlog queues.")] = 10,
    syphons: Annotated[int, typer.Option(help="Processes that run the syphon.")] = 1,
    failover_interval: Annotated[float, typer.Option(help="Seconds of failures before a failover.")] = 60.0,
    ping_interval: Annotated[float, typer.Option(help="Seconds between two pings of a failed entity.")] = 60.0,
    recovery_pings: Annotated[int, typer.Option(help="Pings in a row that must succeed.")] = 1,
    outage_hours: Annotated[float, typer.Option(help="Length of one outage of the primary.")] = 0.0,
    outages: Annotated[int, typer.Option(help="Outages in 30 days.")] = 1,
    rate: Annotated[float, typer.Option(help="Messages per second of the whole fleet.")] = 1.0,
    message_bytes: Annotated[int, typer.Option(help="Size of a message.")] = 1024,
    primary_operations: Annotated[int, typer.Option(help="Operations of the primary in 30 days without pairing.")] = 0,
    tariff_file: TariffFile = None,
    tariff: TariffName = None,
    plan: PlanName = "standard",
    explain: Annotated[bool, typer.Option("--explain", help="Show the formulas with their numbers.")] = False,
    as_json: AsJson = False,
) -> None:
    """Estimate what pairing adds to the bill in 30 days."""
    from pairbus.costs import Fleet, OutageScenario, tariff_for
    from pairbus.costs import estimate as calculate
    from pairbus.costs.estimate import HOURS_PER_MONTH

    for option, value, low, high in (
        ("--clients", clients, 1, 1_000_000),
        ("--entities", entities, 1, 10_000),
        ("--backlog-queues", backlog_queues, 1, 10_000),
        ("--syphons", syphons, 0, 10_000),
        ("--failover-interval", failover_interval, 0, 3600),
        ("--ping-interval", ping_interval, 1, 1800),
        ("--recovery-pings", recovery_pings, 1, 1000),
        ("--outage-hours", outage_hours, 0, HOURS_PER_MONTH),
        ("--outages", outages, 0, 10_000),
        ("--rate", rate, 0, 1_000_000_000),
        ("--message-bytes", message_bytes, 1, 100 * 1024 * 1024),
        ("--primary-operations", primary_operations, 0, 1_000_000_000_000_000),
    ):
        if not low <= value <= high:  # true for nan as well
            raise Refusal(f"{option} {str(value)[:30]} is out of range: use a number from {low} to {high:,}.")
    if outage_hours * outages > HOURS_PER_MONTH:
        raise Refusal(
            f"--outages {outages} of --outage-hours {outage_hours:g} are {outage_hours * outages:,g} hours, but 30 "
            f"days have {HOURS_PER_MONTH}: use less."
        )
    tariffs, name = read_tariffs(tariff_file, tariff)
    try:
        fleet = Fleet(
            clients=clients,
            entities=entities,
            backlog_queue_count=backlog_queues,
            syphons=syphons,
            failover_interval_seconds=failover_interval,
            ping_interval_seconds=ping_interval,
            recovery_pings=recovery_pings,
            primary_operations=primary_operations,
        )
        outage = OutageScenario(outage_hours, rate, message_bytes, outages) if outage_hours > 0 else None
        result = calculate(fleet, tariff_for(tariffs, name, date.today()), plan, outage)
    except ValueError as error:
        raise Refusal(str(error)) from error
    if as_json:
        print_json(result)
        return
    _print_table(
        ("cause", "namespace", "per hour", "per day", "30 days"),
        [
            (line.cause, line.namespace, _number(line.per_hour), _number(line.per_day), _number(line.per_30_days))
            for line in result.lines
        ],
    )
    if explain:
        for sentence in result.explain():
            typer.echo(sentence)
    typer.echo(
        f"In 30 days: {result.primary_amount:,.2f} {result.currency} more for the primary, "
        f"{result.secondary_amount:,.2f} {result.currency} for the secondary ({result.tariff}, {result.plan})."
    )


@cost.command("forecast")
def forecast(fleet: FleetFile, tariff_file: TariffFile = None, as_json: AsJson = False) -> None:
    """Forecast what the pairing of a fleet will cost.

    Simulates random outages and shows the distribution of the cost: the mean and the percentiles.
    """
    _simulate(fleet, None, tariff_file, as_json, _MONEY)


def simulate(
    fleet: FleetFile,
    runs: Annotated[int | None, typer.Option(min=1, help="Runs for each combination of options.")] = None,
    tariff_file: TariffFile = None,
    as_json: AsJson = False,
) -> None:
    """Simulate a fleet through random outages.

    Uses the product's own failover logic. Shows how available sends are, how long messages wait, and what it costs.
    """
    _simulate(fleet, runs, tariff_file, as_json, _ALL)


def _simulate(file: Path, runs: int | None, tariff_file: Path | None, as_json: bool, shown: tuple[str, ...]) -> None:
    from pairbus.costs import tariff_for
    from pairbus.pipeline.fleet import parse_fleet
    from pairbus.toml import read_small_file

    tariffs, _ = read_tariffs(tariff_file, None)
    plan = parse_fleet(read_small_file(file, f"the fleet {file}"), str(file), runs=runs)
    tariff = tariff_for(tariffs, plan.tariff, date.today())
    tariff.plan(plan.plan)

    def run(spark: Any) -> list[dict[str, Any]]:
        from pairbus.pipeline.simulation import forecast as distribution
        from pairbus.pipeline.simulation import simulate as run_all

        return distribution(run_all(spark, plan, tariffs=tariffs))

    combinations = counted(len(plan.choices), "combination")
    remark(f"Simulating {combinations} of options on Spark, {counted(plan.runs, 'run')} each …")
    results = with_spark(run)
    if as_json:
        print_json(results)
        return
    varied = [name for name in results[0]["options"] if len({result["options"][name] for result in results}) > 1]
    for result in results:
        options = ", ".join(f"{name} {result['options'][name]:g}" for name in varied) or "one combination of options"
        typer.echo(f"{options} ({result['runs']:,} runs of {plan.days:g} days)")
        _print_table(
            ("", "mean", "5 %", "50 %", "95 %", "99 %"),
            [
                (
                    f"{name}, {tariff.currency}" if name in _MONEY else name,
                    *(format_result(name, result[name][k]) for k in ("mean", "p5", "p50", "p95", "p99")),
                )
                for name in shown
            ],
        )


def format_result(name: str, value: float) -> str:
    """One number of a simulation. All numbers of a row have the same format, so that they compare."""
    if name.startswith("availability"):
        return f"{value:.6f}"
    if name in _MONEY:
        return f"{value:,.2f}"
    return f"{value:,.1f}"


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) or value == int(value) else f"{value:,.6g}"


def _print_table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    """Print columns under their headings: names to the left, numbers to the right."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    left = [all(not row[i][:1].isdigit() for row in rows) for i in range(len(head))]
    for row in (head, *rows):
        cells = (
            cell.ljust(w) if to_left else cell.rjust(w) for cell, w, to_left in zip(row, widths, left, strict=True)
        )
        typer.echo("  ".join(cells).rstrip())
