"""The report as one HTML file: no scripts, nothing loaded, made to be read, mailed and printed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from typing import Any

from pairbus.pipeline import plots
from pairbus.pipeline.report import Report

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --paper: #fff; --faint: #6b7685; --rule: #dde2e9;
  --primary: #2f6fb0; --backlog: #d98a1f; --spool: #8058b5; --refused: #c23b3b; --good: #2f8f5b; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaf0; --paper: #14181f; --faint: #98a3b3;
  --rule: #303844; } }
@media print { :root { --ink: #000; --paper: #fff; --faint: #444; --rule: #bbb; }
  section { break-inside: avoid; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 60rem; padding: 2rem 1.25rem 4rem; color: var(--ink);
  background: var(--paper); font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.35rem; margin: 0; } h2 { font-size: 1.05rem; margin: 2.25rem 0 .5rem; }
.verdict { font-size: 1.7rem; line-height: 1.25; font-weight: 600; margin: 1rem 0 .25rem; }
.verdict.good { color: var(--good); } .verdict.bad { color: var(--refused); }
.faint { color: var(--faint); } p { margin: .25rem 0; max-width: 46rem; }
svg { width: 100%; height: auto; display: block; } svg text { fill: var(--faint); font-size: 11px; }
.grid { stroke: var(--rule); stroke-width: 1; } .bar { fill: var(--primary); }
.c-primary { fill: var(--primary); } .c-backlog { fill: var(--backlog); } .c-spool { fill: var(--spool); }
.c-refused, .s-failed-over { fill: var(--refused); } .s-suspect { fill: var(--backlog); }
.s-healthy { fill: var(--good); opacity: .35; } .line { fill: none; stroke: var(--backlog); stroke-width: 1.5;
} .area { fill: var(--backlog); opacity: .25; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .9rem; width: 100%; }
th, td { text-align: left; padding: .3rem .75rem .3rem 0; border-bottom: 1px solid var(--rule);
  vertical-align: top; } td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
.key span { display: inline-block; margin-right: 1.2rem; }
.key i { display: inline-block; width: .8rem; height: .8rem; margin-right: .4rem; vertical-align: -1px; }
code { font-size: .9em; overflow-wrap: anywhere; }
"""


_MOMENT = re.compile(r"^(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)\.\d{3}\+00:00$")
"""A time as the report's values have it: the page says once that times are UTC, and shows seconds."""


def html_page(report: Report) -> str:
    """The whole page."""
    summary = report.summary
    good = summary.lost == 0
    parts = [
        "<header><h1>What the pairing did</h1>",
        f'<p class="faint">{_span(report)}</p></header>',
        f'<p class="verdict {"good" if good else "bad"}">{escape(verdict(report))}</p>',
        f"<p>{escape(summary.sentence)}.</p>",
        *(f'<p class="faint">{escape(doubt)}</p>' for doubt in doubts(report)),
        _lost(report),
        _states(report),
        _sends(report),
        _depth(report),
        _waits(report),
        _cost(report),
        _episodes(report),
        _availability(report),
        _bills(report),
    ]
    title = f"pairbus, {_span(report)}"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )


def verdict(report: Report) -> str:
    """The one sentence on top."""
    summary = report.summary
    if summary.lost:
        return f"{summary.lost:,} of {summary.accepted:,} accepted messages are lost."
    if summary.balanced:
        return f"Nothing is lost: all {summary.accepted:,} accepted messages were delivered."
    rest = [(summary.waiting, "wait"), (summary.dead_lettered, "dead-lettered"), (summary.expired, "expired")]
    named = ", ".join(f"{count:,} {word}" for count, word in rest if count)
    return f"Nothing is lost: of {summary.accepted:,} accepted messages {summary.delivered:,} were delivered, {named}."


def doubts(report: Report) -> list[str]:
    """What limits the verdict, each in a sentence; empty if nothing does."""
    summary, found = report.summary, []
    if summary.waiting and not report.checked:
        found.append("Waiting messages are waiting by the ledger; the queues themselves were not looked into.")
    if summary.unrecorded:
        found.append(f"{summary.unrecorded:,} operations could not be recorded: their messages are not followed.")
    if summary.died:
        found.append(
            f"{summary.died:,} processes run or did not end in order: the last moment of their ledgers may be missing."
        )
    if summary.died and summary.lost:
        found.append("What seems lost may have come home in such a moment: ask the receivers before you send it again.")
    if summary.broken_lines:
        found.append(f"{summary.broken_lines:,} lines could not be read; they are in the quarantine table.")
    if summary.unidentified:
        found.append(f"{summary.unidentified:,} operations had no message id: their messages are not followed.")
    return found


def _span(report: Report) -> str:
    same = report.first_day == report.last_day
    return f"{report.first_day}, UTC" if same else f"{report.first_day} to {report.last_day}, UTC"


def _section(title: str, *body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{''.join(body)}</section>"


def _table(columns: Sequence[tuple[str, str]], rows: Sequence[dict[str, Any]]) -> str:
    """Rows as a table; `columns` are (heading, key), a key that ends in '#' is a number."""
    head = "".join(f"<th{_number(key)}>{escape(title)}</th>" for title, key in columns)
    body = "".join(
        "<tr>" + "".join(f"<td{_number(key)}>{_text(row[key.rstrip('#')])}</td>" for _, key in columns) + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _number(key: str) -> str:
    return ' class="n"' if key.endswith("#") else ""


def _text(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:,.3f}".rstrip("0").rstrip(".")
    if isinstance(value, int):
        return f"{value:,}"
    return escape(_MOMENT.sub(r"\1 \2", str(value)))


def _lost(report: Report) -> str:
    columns = [("entity", "target"), ("message id", "message_id"), ("diverted", "diverted_at"), ("episode", "episode")]
    parts = []
    if report.lost:
        parts.append(_section("Lost messages", _table(columns, report.lost)))
    if report.duplicated:
        copies = [*columns[:3], ("copies too many", "duplicates#")]
        parts.append(_section("Messages delivered more than once", _table(copies, report.duplicated)))
    return "".join(parts)


def _states(report: Report) -> str:
    if not report.states:
        return _section("States", "<p>No entity was ever suspect.</p>")
    starts = [span.start_s for span in report.states]
    ends = [span.end_s for span in report.states if span.end_s is not None]
    first = min([*starts, *([report.sends.start_s] if report.sends.values else [])])
    size = max((len(values) for values in report.sends.values.values()), default=0)
    last = max([*starts, *ends, report.sends.start_s + size * report.sends.width_s])
    spans = [
        (span.entity, span.state, span.start_s, span.end_s or last, f"{span.state}: {span.cause}")
        for span in report.states
    ]
    key = _key([("healthy", "good"), ("suspect", "backlog"), ("failed over", "refused")])
    return _section("States of each entity", key, plots.timeline("States over time", first, last, spans))


def _key(names: Sequence[tuple[str, str]]) -> str:
    marks = "".join(f'<span><i style="background:var(--{colour})"></i>{name}</span>' for name, colour in names)
    return f'<p class="key faint">{marks}</p>'


def _sends(report: Report) -> str:
    series = report.sends
    if not series.values:
        return ""
    names = [name for name in ("primary", "backlog", "spool", "refused") if any(series.values[name])]
    shown = {name: series.values[name] for name in names}
    title = f"Sends by route, in steps of {_duration(series.width_s)}"
    picture = plots.stacked_bars(title, series.start_s, series.width_s, shown)
    return _section(title, _key([(name, name) for name in names]), picture)


def _depth(report: Report) -> str:
    if not report.depth.values or not any(any(values) for values in report.depth.values.values()):
        return ""
    (values,) = report.depth.values.values()
    title = "Messages in backlogs"
    return _section(title, plots.area(title, report.depth.start_s, report.depth.width_s, values))


def _waits(report: Report) -> str:
    counts = [count for _, count in report.waits]
    if not any(counts):
        return ""
    last = max(i for i, count in enumerate(counts) if count)
    names = [*(f"up to {name}" for name, _ in report.waits[:-1]), "longer"]
    rows = [(names[i], float(counts[i]), f"{counts[i]:,}") for i in range(last + 1)]
    columns = [
        ("day", "day"),
        ("entity", "target"),
        ("came home", "messages#"),
        ("still waiting", "still_waiting#"),
        ("half within, s", "p50_seconds#"),
        ("99 of 100 within, s", "p99_seconds#"),
        ("longest, s", "max_seconds#"),
    ]
    title = "How long messages waited"
    return _section(title, plots.horizontal_bars(title, rows), _table(columns, report.waiting))


def _cost(report: Report) -> str:
    if not report.pairing_cost:
        return ""
    totals: dict[str, int] = {}
    for row in report.pairing_cost:
        totals[row["cause"]] = totals.get(row["cause"], 0) + row["billed"]
    rows = [(cause, float(billed), f"{billed:,} operations") for cause, billed in sorted(totals.items())]
    columns = [
        ("month", "month"),
        ("namespace", "namespace"),
        ("cause", "cause"),
        ("operations", "billed#"),
        ("amount", "amount#"),
        ("", "currency"),
    ]
    title = "What the pairing added, by cause"
    return _section(title, plots.horizontal_bars(title, rows), _table(columns, report.pairing_cost))


def _episodes(report: Report) -> str:
    if not report.episodes:
        return ""
    columns = [
        ("entity", "target"),
        ("failed over", "failed_over_at"),
        ("healthy", "healthy_at"),
        ("cause", "cause"),
        ("diverted", "diverted#"),
        ("waiting", "waiting#"),
        ("first in backlog, s", "seconds_to_first_backlog_message#"),
        ("drained, s", "seconds_to_drained#"),
    ]
    return _section("Failovers", _table(columns, report.episodes))


def _availability(report: Report) -> str:
    if not report.availability:
        return ""
    columns = [
        ("day", "day"),
        ("entity", "target"),
        ("offered", "offered#"),
        ("accepted", "accepted#"),
        ("with pairing, %", "with#"),
        ("without, %", "without#"),
    ]
    rows = [
        row | {"with": 100 * row["with_pairing"], "without": 100 * row["without_pairing"]}
        for row in report.availability
    ]
    return _section("Share of sends accepted", _table(columns, rows))


def _bills(report: Report) -> str:
    if not report.bills:
        return ""
    columns = [
        ("month", "month"),
        ("namespace", "namespace"),
        ("what", "what"),
        ("quantity", "quantity#"),
        ("price", "price#"),
        ("amount", "amount#"),
        ("", "currency"),
        ("tariff", "tariff"),
    ]
    note = '<p class="faint">By the tariff named in each line; each namespace is taken to exist for whole months.</p>'
    return _section("Bills", note, _table(columns, report.bills))


def _duration(seconds: float) -> str:
    for size, name in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= size and seconds % size == 0:
            count = int(seconds // size)
            return name if count == 1 else f"{count} {name}s"
    return "second" if seconds == 1 else f"{seconds:g} seconds"
