"""The report as one HTML file: no scripts, nothing loaded, made to be read, mailed and printed."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from decimal import Decimal
from html import escape
from typing import Any

from pairbus.pipeline import plots
from pairbus.pipeline.report import Report

_STYLE = """
:root { color-scheme: light dark; --ink: #1a2230; --paper: #fff; --panel: #f5f7fa; --faint: #566173; --rule: #dbe1e9;
  --primary: #2f6fb0; --backlog: #d98a1f; --spool: #8058b5; --refused: #c23b3b; --good: #2f8f5b;
  --good-ink: #1f7446; --bad-ink: #b02a2a; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaf0; --paper: #12161d; --panel: #1b212b; --faint: #a3aebd;
  --rule: #313a48; --primary: #5b9bd9; --backlog: #e3a144; --spool: #a684d6; --refused: #e06767; --good: #4fb37e;
  --good-ink: #69c996; --bad-ink: #f08080; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 64rem; padding: 2.5rem 1.5rem 4rem; color: var(--ink);
  background: var(--paper); font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.05rem; font-weight: 600; margin: 0; } h2 { font-size: 1.1rem; margin: 3rem 0 .75rem; }
header p { margin: 0; } p { margin: .25rem 0; max-width: 48rem; }
.verdict { margin: 1.5rem 0 1rem; padding: 1rem 1.25rem; background: var(--panel); border-radius: .5rem;
  border-left: .4rem solid var(--good); }
.verdict.bad { border-color: var(--refused); }
.verdict strong { display: block; font-size: 1.65rem; line-height: 1.25; color: var(--good-ink); }
.verdict.bad strong { color: var(--bad-ink); }
.doubts { margin: .75rem 0; padding-left: 1.2rem; color: var(--faint); }
.faint { color: var(--faint); }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: .75rem;
  margin: 1.25rem 0 0; }
.facts div { background: var(--panel); border-radius: .5rem; padding: .7rem .9rem; }
.facts dt { color: var(--faint); font-size: .85rem; } .facts dd { margin: 0; font-size: 1.35rem; font-weight: 600;
  font-variant-numeric: tabular-nums; }
svg { width: 100%; height: auto; display: block; margin: .5rem 0; } svg text { fill: var(--faint); font-size: 11px; }
.grid { stroke: var(--rule); stroke-width: 1; } .bar { fill: var(--primary); }
.c-primary { fill: var(--primary); } .c-backlog { fill: var(--backlog); } .c-spool { fill: var(--spool); }
.c-refused, .s-failed-over { fill: var(--refused); } .s-suspect { fill: var(--backlog); }
.s-healthy { fill: var(--good); } .line { fill: none; stroke: var(--backlog); stroke-width: 1.5; }
.area { fill: var(--backlog); opacity: .25; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .9rem; width: 100%; }
.scroll:focus-visible { outline: 2px solid var(--primary); outline-offset: 2px; }
th, td { text-align: left; padding: .4rem 1rem .4rem 0; border-bottom: 1px solid var(--rule); vertical-align: top; }
th { color: var(--faint); font-weight: 600; } th:last-child, td:last-child { padding-right: 0; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
th.n { white-space: normal; } td:first-child { min-width: 6rem; }
td.t { white-space: nowrap; } tr.sum td { font-weight: 600; border-bottom-width: 2px; }
.key { margin: 0; } .key span { display: inline-block; margin-right: 1.2rem; }
.key i { display: inline-block; width: .8rem; height: .8rem; border-radius: .15rem; margin-right: .4rem;
  vertical-align: -1px; }
@media print { :root { --ink: #000; --paper: #fff; --panel: #f3f3f3; --faint: #444; --rule: #bbb; --primary: #2f6fb0;
    --backlog: #d98a1f; --spool: #8058b5; --refused: #c23b3b; --good: #2f8f5b;
    --good-ink: #1f7446; --bad-ink: #b02a2a; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  body { max-width: none; padding: 0; font-size: 11pt; } h2 { margin-top: 1.5rem; break-after: avoid; }
  svg, tr, .facts, .verdict { break-inside: avoid; } .scroll { overflow: visible; } }
"""


_MOMENT = re.compile(r"^(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)\.\d{3}\+00:00$")
"""A time as the report's values have it: the page says once that times are UTC, and shows seconds."""


def html_page(report: Report) -> str:
    """The whole page: `html_page(report(spark, tables_folder))`, to be written as UTF-8.

    What it says depends on the report alone: no time of its making, no names of this machine.
    """
    summary = report.summary
    kind = "good" if summary.lost == 0 else "bad"
    noted = "".join(f"<li>{escape(doubt)}</li>" for doubt in doubts(report))
    parts = [
        "<header><h1>What the pairing did</h1>",
        f'<p class="faint">{_span(report)}</p></header><main>',
        f'<div class="verdict {kind}"><strong>{escape(verdict(report))}</strong>{escape(summary.sentence)}.</div>',
        f'<ul class="doubts">{noted}</ul>' if noted else "",
        _facts(report),
        _lost(report),
        _states(report),
        _sends(report),
        _depth(report),
        _waits(report),
        _cost(report),
        _episodes(report),
        _availability(report),
        _bills(report),
        "</main>",
    ]
    title = f"pairbus, {_span(report)}"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )


def _facts(report: Report) -> str:
    """The numbers that most readers came for."""
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
    facts += [
        ("added by pairing, beyond base charges", f"{amount:,.2f} {currency}")
        for currency, amount in sorted(added.items())
    ]
    return '<dl class="facts">' + "".join(f"<div><dt>{k}</dt><dd>{escape(v)}</dd></div>" for k, v in facts) + "</dl>"


def _share(part: float) -> str:
    """A share in per cent that is 100 only if nothing is missing."""
    return f"{math.floor(part * 100_000 + 1e-6) / 1000:.3f}".rstrip("0").rstrip(".") + " %"


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
    """What limits the verdict, each in a sentence; empty if nothing does."""
    summary, found = report.summary, []
    if summary.waiting and not report.checked:
        found.append("Waiting messages are waiting by the ledger; the queues themselves were not looked into.")
    if summary.unsure:
        found.append(
            "What was not found may have come home: somebody on another machine runs, or did not end in order, and has "
            "told nothing since the look. With its newer records the next report knows."
        )
    if summary.unchecked:
        found.append(
            f"{summary.unchecked:,} of the waiting were not looked for: in a spool, of a primary that was not named, "
            "with newer records than the look, or known by a hash without its salt."
        )
    if summary.inferred:
        found.append(
            f"{_messages(summary.inferred)} in a backlog or spool without a record of the client that sent them: "
            "counted as accepted once each."
        )
    if summary.unrecorded:
        found.append(
            f"{_operations(summary.unrecorded)} could not be recorded, or were dropped with their file: what no build "
            "had read before is not followed."
        )
    if summary.died:
        who = "1 process runs" if summary.died == 1 else f"{summary.died:,} processes run"
        found.append(
            f"{who} or did not end in order: what one that runs did in the last minute may be missing, and the last "
            "moment of one that died."
        )
    if summary.died and summary.lost:
        found.append("What seems lost may have come home in such a moment: ask the receivers before you send it again.")
    if summary.broken_lines:
        lines = "1 line" if summary.broken_lines == 1 else f"{summary.broken_lines:,} lines"
        found.append(f"{lines} could not be read: see the quarantine table.")
    if summary.unidentified:
        found.append(f"{_operations(summary.unidentified)} had no message id: their messages are not followed.")
    return found


def _messages(count: int) -> str:
    return "1 message was" if count == 1 else f"{count:,} messages were"


def _operations(count: int) -> str:
    return "1 operation" if count == 1 else f"{count:,} operations"


def _span(report: Report) -> str:
    same = report.first_day == report.last_day
    return f"{report.first_day}, UTC" if same else f"{report.first_day} to {report.last_day}, UTC"


def _section(title: str, *body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{''.join(body)}</section>"


def _table(title: str, columns: Sequence[tuple[str, str]], rows: Sequence[dict[str, Any]]) -> str:
    """Rows as a table; `columns` are (heading, key): a key that ends in '#' is a number, a row with `sum` a total."""
    head = "".join(f'<th scope="col"{_number(key)}>{escape(heading)}</th>' for heading, key in columns)
    body = "".join(
        ('<tr class="sum">' if row.get("sum") else "<tr>")
        + "".join(_cell(key, row[key.rstrip("#")]) for _, key in columns)
        + "</tr>"
        for row in rows
    )
    # A table that is wider than a phone scrolls, also for those who use the keyboard.
    return (
        f'<div class="scroll" role="region" aria-label="{escape(title)}" tabindex="0"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _number(key: str) -> str:
    return ' class="n"' if key.endswith("#") else ""


def _cell(key: str, value: Any) -> str:
    if key.endswith("#") and isinstance(value, str):
        value = f"{Decimal(value):,f}"
    kind = ' class="t"' if key in ("day", "month") or key.endswith("_at") else _number(key)
    return f"<td{kind}>{_text(value)}</td>"


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
        parts.append(_section("Lost messages", _table("Lost messages", columns, report.lost)))
    if report.duplicated:
        copies = [*columns[:3], ("copies too many", "duplicates#")]
        title = "Messages delivered more than once"
        parts.append(_section(title, _table(title, copies, report.duplicated)))
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
    title = f"Sends by route, each {_duration(series.width_s)}"
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
    return _section(title, plots.horizontal_bars(title, rows), _table(title, columns, report.waiting))


def _cost(report: Report) -> str:
    if not report.pairing_cost:
        return ""
    totals: dict[str, int] = {}
    for row in report.pairing_cost:
        totals[row["cause"]] = totals.get(row["cause"], 0) + row["billed"]
    rows = [(cause, float(billed), _operations(billed)) for cause, billed in sorted(totals.items())]
    columns = [
        ("month", "month"),
        ("namespace", "namespace"),
        ("cause", "cause"),
        ("operations", "billed#"),
        ("amount", "amount#"),
        ("currency", "currency"),
    ]
    title = "What the pairing added, by cause"
    return _section(title, plots.horizontal_bars(title, rows), _table(title, columns, _in_months(report.pairing_cost)))


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
    return _section("Failovers", _table("Failovers", columns, report.episodes))


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
    return _section("Share of sends accepted", _table("Share of sends accepted", columns, rows))


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
        ("currency", "currency"),
        ("tariff", "tariff"),
    ]
    note = '<p class="faint">By the tariff named in each line; each namespace is taken to exist for whole months.</p>'
    return _section("Bills", note, _table("Bills", columns, _in_months(_with_totals(report.bills))))


def _with_totals(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The lines of each namespace's month, and below them what they come to."""
    rows: list[dict[str, Any]] = []
    for (month, namespace, currency), group in itertools.groupby(
        lines, lambda line: (line["month"], line["namespace"], line["currency"])
    ):
        those = list(group)
        total = sum((Decimal(line["amount"]) for line in those), Decimal(0))
        rows += those
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
