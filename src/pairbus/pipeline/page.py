"""The report as one HTML file without scripts, made to be read offline, mailed and printed.

The templates are in `templates/`; this module computes what they show. Plots are SVG: every plot has a title for screen
readers, scales with its container, and takes its colours from the style sheet, so it is readable in print and in the
dark.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from pairbus.pipeline.report import Report

_templates = Environment(
    loader=PackageLoader("pairbus.pipeline"),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=StrictUndefined,
)
_MOMENT = re.compile(r"^(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)\.\d{3}\+00:00$")
"""A time as the report's values have it. The page says once that times are UTC, and shows seconds."""


def html_page(report: Report) -> str:
    """Render the whole page: `html_page(report(spark, tables_folder))`, to be written as UTF-8.

    It depends on the report alone: no time of its making, no names of this machine.
    """
    return _templates.get_template("report.html").render(
        span=_span(report),
        summary=report.summary,
        verdict=verdict(report),
        doubts=doubts(report),
        facts=_facts(report),
        sections=list(_sections(report)),
    )


def verdict(report: Report) -> str:
    """The one sentence on top."""
    summary = report.summary
    if summary.lost:
        verb = "is" if summary.lost == 1 else "are"
        return f"{summary.lost:,} of {summary.accepted:,} accepted messages {verb} lost."
    if summary.unsure:
        verb = "is" if summary.unsure == 1 else "are"
        missed = f"{summary.unsure:,} of {summary.accepted:,} accepted messages {verb}"
        return f"{missed} not where they should wait, and may have come home: look again."
    if summary.balanced:
        return f"Nothing is lost: all {summary.accepted:,} accepted messages were delivered."
    rest = [(summary.waiting, "wait"), (summary.dead_lettered, "dead-lettered"), (summary.expired, "expired")]
    named = ", ".join(f"{count:,} {word}" for count, word in rest if count)
    return f"Nothing is lost: of {summary.accepted:,} accepted messages {summary.delivered:,} were delivered, {named}."


def doubts(report: Report) -> list[str]:
    """The limits of the verdict, one sentence each; empty if there are none."""
    summary, sentences = report.summary, []
    if summary.waiting and not report.checked:
        sentences.append("Still waiting, according to the ledger; the queues themselves were not looked into.")
    if summary.unsure:
        sentences.append(
            "Messages that were not found may have come home: a process on another machine runs, or did not end in "
            "order, and has recorded nothing since the look. The next report, with its newer records, will know."
        )
    if summary.unchecked:
        sentences.append(
            f"{summary.unchecked:,} of the waiting messages were not looked for: they are in a spool, belong to a "
            "primary that was not named, have newer records than the look, or are known by a hash without its salt."
        )
    if summary.inferred:
        sentences.append(
            f"{_messages(summary.inferred)} in a backlog or spool without a record of the client that sent them: "
            "counted as accepted once each."
        )
    if summary.unrecorded:
        sentences.append(
            f"{_operations(summary.unrecorded)} could not be recorded, or left with a dropped ledger file that no "
            "build had read."
        )
    if summary.died:
        who = "1 process runs" if summary.died == 1 else f"{summary.died:,} processes run"
        sentences.append(
            f"{who} or did not end in order: the last minute of a running process may be missing, and the last "
            "moment of one that died."
        )
    if summary.died and summary.lost:
        sentences.append(
            "Messages that seem lost may have come home in such a moment: check with the receivers before you send "
            "them again."
        )
    if summary.broken_lines:
        lines = "1 line" if summary.broken_lines == 1 else f"{summary.broken_lines:,} lines"
        sentences.append(f"{lines} could not be read: see the quarantine table.")
    if summary.unidentified:
        sentences.append(f"{_operations(summary.unidentified)} had no message id: their messages are not followed.")
    return sentences


def _messages(count: int) -> str:
    return "1 message was" if count == 1 else f"{count:,} messages were"


def _operations(count: int) -> str:
    return "1 operation" if count == 1 else f"{count:,} operations"


def _span(report: Report) -> str:
    same = report.first_day == report.last_day
    return f"{report.first_day}, UTC" if same else f"{report.first_day} to {report.last_day}, UTC"


def _facts(report: Report) -> list[tuple[str, str]]:
    """The numbers that most readers want."""
    summary = report.summary
    offered = sum(row["offered"] for row in report.availability)
    facts = [
        ("accepted", f"{summary.accepted:,}"),
        ("through a backlog or spool", f"{summary.diverted + summary.spooled:,}"),
        ("delivered twice", f"{summary.duplicates:,}"),
        ("failovers", f"{sum(row['failed_over_at'] is not None for row in report.episodes):,}"),
    ]
    if offered:
        accepted = sum(row["with_pairing"] * row["offered"] for row in report.availability)
        alone = sum(row["without_pairing"] * row["offered"] for row in report.availability)
        facts += [("sends accepted", _share(accepted / offered)), ("without pairing", _share(alone / offered))]
    added: dict[str, Decimal] = {}
    for row in report.pairing_cost:
        added[row["currency"]] = added.get(row["currency"], Decimal(0)) + Decimal(row["amount"])
    title = "added by pairing, beyond base charges"
    return facts + [(title, f"{amount:,.2f} {currency}") for currency, amount in sorted(added.items())]


def _share(part: float) -> str:
    """A share in per cent that is 100 only if nothing is missing."""
    return f"{math.floor(part * 100_000 + 1e-6) / 1000:.3f}".rstrip("0").rstrip(".") + " %"


@dataclass(frozen=True, slots=True)
class HtmlColumn:
    """A column of a table: its heading and the key of its values. A key that ends in '#' is a number."""

    heading: str
    key: str

    @property
    def heading_class(self) -> str | None:
        return "n" if self.key.endswith("#") else None

    @property
    def cell_class(self) -> str | None:
        is_moment = self.key in ("day", "month") or self.key.endswith("_at")
        return "t" if is_moment else self.heading_class

    def text(self, row: Mapping[str, Any]) -> str:
        value = row[self.key.rstrip("#")]
        if value is None:
            return "–"
        if isinstance(value, float):
            return f"{value:,.3f}".rstrip("0").rstrip(".")
        if isinstance(value, int):
            return f"{value:,}"
        return f"{Decimal(value):,f}" if self.key.endswith("#") else _MOMENT.sub(r"\1 \2", str(value))


@dataclass(frozen=True, slots=True)
class Section:
    """A section of the page, with the parts it has, in this order. A row with `sum` is a total."""

    title: str
    note: str = ""
    key: Sequence[tuple[str, str]] = ()
    plot: Markup = field(default_factory=Markup)
    columns: Sequence[HtmlColumn] = ()
    rows: Sequence[Mapping[str, Any]] = ()


def _columns(*pairs: tuple[str, str]) -> list[HtmlColumn]:
    return [HtmlColumn(heading, key) for heading, key in pairs]


def _sections(report: Report) -> Iterator[Section]:
    named = _columns(("entity", "target"), ("message id", "message_id"), ("diverted", "diverted_at"))
    if report.lost:
        yield Section("Lost messages", columns=[*named, HtmlColumn("episode", "episode")], rows=report.lost)
    if report.duplicated:
        columns = [*named, HtmlColumn("copies too many", "duplicates#")]
        yield Section("Messages delivered more than once", columns=columns, rows=report.duplicated)
    yield _states(report)
    yield from _sends(report)
    if any(any(values) for values in report.depth.values.values()):
        (depths,) = report.depth.values.values()
        title = "Messages in backlogs"
        yield Section(title, plot=area(title, report.depth.start_s, report.depth.width_s, depths))
    yield from _waits(report)
    yield from _cost(report)
    if report.episodes:
        columns = _columns(
            ("entity", "target"),
            ("failed over", "failed_over_at"),
            ("healthy", "healthy_at"),
            ("cause", "cause"),
            ("diverted", "diverted#"),
            ("waiting", "waiting#"),
            ("first in backlog, s", "seconds_to_first_backlog_message#"),
            ("drained, s", "seconds_to_drained#"),
        )
        yield Section("Failovers", columns=columns, rows=report.episodes)
    if report.availability:
        columns = _columns(
            ("day", "day"),
            ("entity", "target"),
            ("offered", "offered#"),
            ("accepted", "accepted#"),
            ("with pairing, %", "with#"),
            ("without, %", "without#"),
        )
        rows = [
            row | {"with": 100 * row["with_pairing"], "without": 100 * row["without_pairing"]}
            for row in report.availability
        ]
        yield Section("Share of sends accepted", columns=columns, rows=rows)
    if report.bills:
        columns = _columns(
            ("month", "month"),
            ("namespace", "namespace"),
            ("what", "what"),
            ("quantity", "quantity#"),
            ("price", "price#"),
            ("amount", "amount#"),
            ("currency", "currency"),
            ("tariff", "tariff"),
        )
        note = "By the tariff named in each line; each namespace is assumed to exist for whole months."
        yield Section("Bills", note, columns=columns, rows=_in_months(_with_totals(report.bills)))


def _states(report: Report) -> Section:
    if not report.states:
        return Section("States", plot=Markup("<p>No entity was ever suspect.</p>"))
    starts = [span.start_s for span in report.states]
    ends = [span.end_s for span in report.states if span.end_s is not None]
    first = min([*starts, *([report.sends.start_s] if report.sends.values else [])])
    size = max((len(values) for values in report.sends.values.values()), default=0)
    last = max([*starts, *ends, report.sends.start_s + size * report.sends.width_s])
    spans = [
        (span.entity, span.state, span.start_s, span.end_s or last, f"{span.state}: {span.cause}")
        for span in report.states
    ]
    key = [("healthy", "good"), ("suspect", "backlog"), ("failed over", "refused")]
    return Section("States of each entity", key=key, plot=timeline("States over time", first, last, spans))


def _sends(report: Report) -> Iterator[Section]:
    series = report.sends
    if series.values:
        names = [name for name in ("primary", "backlog", "spool", "refused") if any(series.values[name])]
        shown = {name: series.values[name] for name in names}
        title = f"Sends by route, each {_duration(series.width_s)}"
        plot = stacked_bars(title, series.start_s, series.width_s, shown)
        yield Section(title, key=[(name, name) for name in names], plot=plot)


def _waits(report: Report) -> Iterator[Section]:
    counts = [count for _, count in report.waits]
    if not any(counts):
        return
    last = max(i for i, count in enumerate(counts) if count)
    names = [*(f"up to {name}" for name, _ in report.waits[:-1]), "longer"]
    bars = [(names[i], float(counts[i]), f"{counts[i]:,}") for i in range(last + 1)]
    columns = _columns(
        ("day", "day"),
        ("entity", "target"),
        ("came home", "messages#"),
        ("still waiting", "still_waiting#"),
        ("half within, s", "p50_seconds#"),
        ("99 of 100 within, s", "p99_seconds#"),
        ("longest, s", "max_seconds#"),
    )
    title = "How long messages waited"
    yield Section(title, plot=horizontal_bars(title, bars), columns=columns, rows=report.waiting)


def _cost(report: Report) -> Iterator[Section]:
    if not report.pairing_cost:
        return
    totals: dict[str, int] = {}
    for row in report.pairing_cost:
        totals[row["cause"]] = totals.get(row["cause"], 0) + row["billed"]
    bars = [(cause, float(billed), _operations(billed)) for cause, billed in sorted(totals.items())]
    columns = _columns(
        ("month", "month"),
        ("namespace", "namespace"),
        ("cause", "cause"),
        ("operations", "billed#"),
        ("amount", "amount#"),
        ("currency", "currency"),
    )
    title = "What the pairing added, by cause"
    yield Section(title, plot=horizontal_bars(title, bars), columns=columns, rows=_in_months(report.pairing_cost))


def _with_totals(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The lines of each namespace's month, followed by their total."""
    rows: list[dict[str, Any]] = []
    for (month, namespace, currency), group in itertools.groupby(
        lines, lambda line: (line["month"], line["namespace"], line["currency"])
    ):
        lines_of_month = list(group)
        total = sum((Decimal(line["amount"]) for line in lines_of_month), Decimal(0))
        rows += lines_of_month
        rows.append(
            {"sum": True, "month": month, "namespace": namespace, "what": "in all", "quantity": None, "price": None}
            | {"amount": f"{total:f}", "currency": currency, "tariff": None}
        )
    return rows


def _in_months(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row | {"month": row["month"][:7]} for row in rows]


def _duration(seconds: float) -> str:
    for size, name in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= size and seconds % size == 0:
            count = int(seconds // size)
            return name if count == 1 else f"{count} {name}s"
    return "second" if seconds == 1 else f"{seconds:g} seconds"


WIDTH = 760
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 12, 28
_INNER = WIDTH - LEFT - RIGHT


@dataclass(frozen=True, slots=True)
class Shape:
    """An SVG element; `title` is the text that appears when the pointer rests on it."""

    tag: str
    attributes: Mapping[str, object]
    text: str = ""
    title: str = ""


def _svg(title: str, height: float, shapes: Sequence[Shape]) -> Markup:
    template = _templates.get_template("plot.svg")
    return Markup(template.render(title=title, width=WIDTH, height=f"{height:g}", shapes=shapes))  # noqa: S704 - escaped


def _label(x: float, y: float, text: str, anchor: str | None = None) -> Shape:
    return Shape("text", {"x": f"{x:.1f}", "y": f"{y:.1f}", "text-anchor": anchor}, text)


def _grid_line(x1: float, x2: float, y1: float, y2: float) -> Shape:
    ends = {"x1": f"{x1:.1f}", "x2": f"{x2:.1f}", "y1": f"{y1:.1f}", "y2": f"{y2:.1f}"}
    return Shape("line", {"class": "grid", **ends})


def _bar(kind: str, x: float, y: float, width: float, height: float, title: str = "") -> Shape:
    size = {"x": f"{x:.2f}", "y": f"{y:.2f}", "width": f"{width:.2f}", "height": f"{height:.2f}"}
    return Shape("rect", {"class": kind, **size}, title=title)


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


def _time_axis(start_s: float, end_s: float, bottom: float) -> list[Shape]:
    span = max(1e-9, end_s - start_s)
    shapes = []
    for tick in range(6):
        x = LEFT + _INNER * tick / 5
        anchor = "start" if tick == 0 else "end" if tick == 5 else "middle"
        shapes += [
            _label(x, bottom + 16, clock(start_s + span * tick / 5, span), anchor),
            _grid_line(x, x, TOP, bottom),
        ]
    return shapes


def _value_axis(top_value: float, bottom: float) -> list[Shape]:
    shapes = []
    for tick in range(5):
        y = bottom - (bottom - TOP) * tick / 4
        shapes += [
            _grid_line(LEFT, WIDTH - RIGHT, y, y),
            _label(LEFT - 6, y + 4, f"{top_value * tick / 4:,.6g}", "end"),
        ]
    return shapes


def stacked_bars(title: str, start_s: float, width_s: float, values: Mapping[str, Sequence[float]]) -> Markup:
    """Counts over time, one colour for each name, on top of each other."""
    bottom = 200.0
    size = max((len(series) for series in values.values()), default=0)
    totals = [sum(series[i] for series in values.values()) for i in range(size)]
    ceiling = nice_ceiling(max(totals, default=0))
    shapes = _value_axis(ceiling, bottom) + _time_axis(start_s, start_s + max(1, size) * width_s, bottom)
    step = _INNER / max(1, size)
    for i in range(size):
        base = bottom
        for name, series in values.items():
            height = (bottom - TOP) * series[i] / ceiling
            if height <= 0:
                continue
            base -= height
            label = f"{clock(start_s + i * width_s, 0)} {name}: {series[i]:,.0f}"
            shapes.append(_bar(f"c-{name}", LEFT + i * step, base, max(0.5, step * 0.94), height, label))
    return _svg(title, bottom + BOTTOM, shapes)


def area(title: str, start_s: float, width_s: float, values: Sequence[float]) -> Markup:
    """One value over time, as a line with its area."""
    bottom = 200.0
    ceiling = nice_ceiling(max(values, default=0))
    step = _INNER / max(1, len(values))
    points = [
        (LEFT + (i + edge) * step, bottom - (bottom - TOP) * value / ceiling)
        for i, value in enumerate(values)
        for edge in (0, 1)
    ]
    line = " ".join(f"{x:.2f},{y:.2f}" for x, y in points)
    shapes = _value_axis(ceiling, bottom) + _time_axis(start_s, start_s + max(1, len(values)) * width_s, bottom)
    if points:
        outline = f"{LEFT},{bottom} {line} {points[-1][0]:.2f},{bottom}"
        shapes += [
            Shape("polygon", {"class": "area", "points": outline}),
            Shape("polyline", {"class": "line", "points": line}),
        ]
    return _svg(title, bottom + BOTTOM, shapes)


def horizontal_bars(title: str, rows: Sequence[tuple[str, float, str]]) -> Markup:
    """A bar for each (name, value, text beside it)."""
    left, line = 190, 26
    most = max((value for _, value, _ in rows), default=0) or 1
    shapes = []
    for i, (name, value, text) in enumerate(rows):
        y = TOP + i * line
        width = (WIDTH - left - 150) * value / most
        shapes += [
            _label(left - 8, y + 15, name, "end"),
            _bar("bar", left, y + 3, max(1.0, width), 16),
            _label(left + width + 8, y + 15, text),
        ]
    return _svg(title, TOP * 2 + len(rows) * line, shapes)


def timeline(title: str, start_s: float, end_s: float, spans: Sequence[tuple[str, str, float, float, str]]) -> Markup:
    """A lane for each entity, a bar for each (entity, state, start, end, text)."""
    lanes = sorted({span[0] for span in spans})
    lane_height = 40
    bottom = float(TOP + lane_height * max(1, len(lanes)))
    length = max(1e-9, end_s - start_s)
    shapes = _time_axis(start_s, end_s, bottom)
    for i, lane in enumerate(lanes):
        y = TOP + i * lane_height
        shapes += [_label(LEFT, y + 12, lane), _bar("s-healthy", LEFT, y + 17, _INNER, 14)]
    for lane, state, start, end, text in spans:
        y = TOP + lanes.index(lane) * lane_height
        x = LEFT + _INNER * (start - start_s) / length
        width = max(1.5, _INNER * (end - start) / length)
        shapes.append(_bar(f"s-{state.replace(' ', '-')}", x, y + 17, width, 14, text))
    return _svg(title, bottom + BOTTOM, shapes)
