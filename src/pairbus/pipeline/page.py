"""The report as one HTML file without scripts, made to be read offline, mailed and printed.

The templates are in `templates/`: the page, its plots (SVG), and the sentences that the console prints too. Plots take
their colours from the style sheet, so they are readable in print and in the dark. This module computes what a template
cannot.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from pairbus.pipeline.report import Report

_MOMENT = re.compile(r"^(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)\.\d{3}\+00:00$")
"""A time as the report's values have it. The page says once that times are UTC, and shows seconds."""


def html_page(report: Report) -> str:
    """Render the whole page: `html_page(report(spark, tables_folder))`, to be written as UTF-8.

    It depends on the report alone: no time of its making, no names of this machine.
    """
    first_s, last_s = _edges(report)
    return templates.get_template("report.html").render(
        report=report,
        verdict=verdict(report),
        doubts=doubts(report),
        first_s=first_s,
        last_s=last_s,
        routes={name: values for name, values in report.sends.values.items() if any(values)},
        waits=_waits(report),
        causes=_causes(report),
        bills=_with_totals(report.bills),
    )


def verdict(report: Report) -> str:
    """The one sentence on top."""
    return templates.get_template("verdict.txt").render(report=report).strip()


def doubts(report: Report) -> list[str]:
    """The limits of the verdict, one sentence each; empty if there are none."""
    return templates.get_template("doubts.txt").render(report=report).splitlines()


def _edges(report: Report) -> tuple[float, float]:
    """The first and the last moment of the timeline of states: those of the states and of the sends."""
    sends = report.sends
    buckets = max((len(values) for values in sends.values.values()), default=0)
    moments = [sends.start_s, sends.start_s + buckets * sends.width_s] if sends.values else []
    for span in report.states:
        moments += [span.start_s, span.start_s if span.end_s is None else span.end_s]
    return min(moments, default=0.0), max(moments, default=0.0)


def _waits(report: Report) -> list[tuple[str, int, str]]:
    """A bar for each waiting time, up to the longest that occurred."""
    bars = [("longer" if limit == "longer" else f"up to {limit}", count, f"{count:,}") for limit, count in report.waits]
    while bars and not bars[-1][1]:
        bars.pop()
    return bars


def _causes(report: Report) -> list[tuple[str, int, str]]:
    """A bar for each cause of added operations."""
    totals: Counter[str] = Counter()
    for row in report.pairing_cost:
        totals[row["cause"]] += row["billed"]
    return [(cause, billed, _counted(billed, "operation")) for cause, billed in sorted(totals.items())]


def _with_totals(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The lines of each namespace's month, followed by their total."""
    rows: list[dict[str, Any]] = []
    for (month, namespace, currency), group in itertools.groupby(
        lines, lambda line: (line["month"], line["namespace"], line["currency"])
    ):
        lines_of_month = list(group)
        rows += lines_of_month
        rows.append(
            {"sum": True, "month": month, "namespace": namespace, "what": "in all", "quantity": None, "price": None}
            | {"amount": f"{_total(lines_of_month):f}", "currency": currency, "tariff": None}
        )
    return rows


def _total(rows: Iterable[Mapping[str, Any]]) -> Decimal:
    """The sum of the amounts."""
    return sum((Decimal(row["amount"]) for row in rows), Decimal(0))


def _counted(count: int, noun: str = "") -> str:
    """A number, with the noun that it counts."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}" if noun else f"{count:,}"


def _share(part: float) -> str:
    """A share in per cent that is 100 only if nothing is missing."""
    return f"{math.floor(part * 100_000 + 1e-6) / 1000:.3f}".rstrip("0").rstrip(".") + " %"


def _cell(row: Mapping[str, Any], key: str) -> str:
    """The text of a cell. A key that ends in '#' is a number, one that ends in '%' a share."""
    value = row[key.rstrip("#%")]
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value * 100 if key.endswith('%') else value:,.3f}".rstrip("0").rstrip(".")
    if isinstance(value, int):
        return f"{value:,}"
    if key == "month":
        return str(value)[:7]
    return f"{Decimal(value):,f}" if key.endswith("#") else _MOMENT.sub(r"\1 \2", str(value))


def _duration(seconds: float) -> str:
    for size, name in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= size and seconds % size == 0:
            count = int(seconds // size)
            return name if count == 1 else f"{count} {name}s"
    return "second" if seconds == 1 else f"{seconds:g} seconds"


def nice_ceiling(value: float) -> float:
    """The next 1, 2 or 5 times a power of ten: an axis that ends on a round number."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value * (1 - 1e-9))


def clock(seconds: float, span_s: float) -> str:
    """A moment as an axis shows it: the time of day, or the day if the axis spans days."""
    moment = datetime.fromtimestamp(seconds, UTC)
    if span_s < 600:
        return moment.strftime("%H:%M:%S")
    return moment.strftime("%H:%M") if span_s <= 2 * 86400 else moment.strftime("%d %b")


templates = Environment(
    loader=PackageLoader("pairbus.pipeline"),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=StrictUndefined,
)
templates.filters |= {
    "cell": _cell,
    "clock": clock,
    "counted": _counted,
    "duration": _duration,
    "nice_ceiling": nice_ceiling,
    "share": _share,
    "total": _total,
}
