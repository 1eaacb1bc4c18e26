"""Plots as SVG text, without a library: they go into one page that works offline and prints well.

Every plot has a title for screen readers, scales with its container, and takes its colours from the page's
style sheet, so that it can be read in print and in the dark.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape

WIDTH = 760
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 12, 28
_INNER = WIDTH - LEFT - RIGHT


def _svg(title: str, height: float, body: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title>{''.join(body)}</svg>"
    )


def nice_ceiling(value: float) -> float:
    """The next 1, 2 or 5 times a power of ten: an axis that ends on a round number."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value * (1 - 1e-9))


def clock(seconds: float, span_s: float) -> str:
    """A moment as an axis shows it: the time of day, or the day when the axis spans days."""
    moment = datetime.fromtimestamp(seconds, UTC)
    if span_s < 600:
        return moment.strftime("%H:%M:%S")
    return moment.strftime("%H:%M") if span_s <= 2 * 86400 else moment.strftime("%d %b")


def _time_axis(start_s: float, end_s: float, bottom: float) -> list[str]:
    span = max(1e-9, end_s - start_s)
    parts = []
    for tick in range(6):
        x = LEFT + _INNER * tick / 5
        anchor = "start" if tick == 0 else "end" if tick == 5 else "middle"
        text = clock(start_s + span * tick / 5, span)
        parts.append(f'<text x="{x:.1f}" y="{bottom + 16:.1f}" text-anchor="{anchor}">{text}</text>')
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{bottom:.1f}"/>')
    return parts


def _value_axis(top_value: float, bottom: float) -> list[str]:
    parts = []
    for tick in range(5):
        y = bottom - (bottom - TOP) * tick / 4
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        text = f"{top_value * tick / 4:,.6g}"
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{text}</text>')
    return parts


def stacked_bars(title: str, start_s: float, width_s: float, values: Mapping[str, Sequence[float]]) -> str:
    """Counts over time, one colour for each name, on top of each other."""
    bottom = 200.0
    size = max((len(series) for series in values.values()), default=0)
    totals = [sum(series[i] for series in values.values()) for i in range(size)]
    ceiling = nice_ceiling(max(totals, default=0))
    parts = _value_axis(ceiling, bottom) + _time_axis(start_s, start_s + max(1, size) * width_s, bottom)
    step = _INNER / max(1, size)
    for i in range(size):
        base = bottom
        for name, series in values.items():
            height = (bottom - TOP) * series[i] / ceiling
            if height <= 0:
                continue
            base -= height
            label = f"{clock(start_s + i * width_s, 0)} {name}: {series[i]:,.0f}"
            parts.append(
                f'<rect class="c-{escape(name)}" x="{LEFT + i * step:.2f}" y="{base:.2f}" '
                f'width="{max(0.5, step * 0.94):.2f}" height="{height:.2f}"><title>{escape(label)}</title></rect>'
            )
    return _svg(title, bottom + BOTTOM, parts)


def area(title: str, start_s: float, width_s: float, values: Sequence[float]) -> str:
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
    parts = _value_axis(ceiling, bottom) + _time_axis(start_s, start_s + max(1, len(values)) * width_s, bottom)
    if points:
        parts.append(f'<polygon class="area" points="{LEFT},{bottom} {line} {points[-1][0]:.2f},{bottom}"/>')
        parts.append(f'<polyline class="line" points="{line}"/>')
    return _svg(title, bottom + BOTTOM, parts)


def horizontal_bars(title: str, rows: Sequence[tuple[str, float, str]]) -> str:
    """A bar for each (name, value, text beside it)."""
    left, line = 190, 26
    most = max((value for _, value, _ in rows), default=0) or 1
    parts = []
    for i, (name, value, text) in enumerate(rows):
        y = TOP + i * line
        width = (WIDTH - left - 150) * value / most
        parts.append(f'<text x="{left - 8}" y="{y + 15}" text-anchor="end">{escape(name)}</text>')
        parts.append(f'<rect class="bar" x="{left}" y="{y + 3}" width="{max(1.0, width):.2f}" height="16"/>')
        parts.append(f'<text x="{left + width + 8:.2f}" y="{y + 15}">{escape(text)}</text>')
    return _svg(title, TOP * 2 + len(rows) * line, parts)


def timeline(title: str, start_s: float, end_s: float, spans: Sequence[tuple[str, str, float, float, str]]) -> str:
    """A lane for each entity, a bar for each (entity, state, start, end, words)."""
    lanes = sorted({span[0] for span in spans})
    lane_height = 40
    bottom = float(TOP + lane_height * max(1, len(lanes)))
    length = max(1e-9, end_s - start_s)
    parts = _time_axis(start_s, end_s, bottom)
    for i, lane in enumerate(lanes):
        y = TOP + i * lane_height
        parts.append(f'<text x="{LEFT}" y="{y + 12}">{escape(lane)}</text>')
        parts.append(f'<rect class="s-healthy" x="{LEFT}" y="{y + 17}" width="{_INNER}" height="14"/>')
    for lane, state, start, end, words in spans:
        y = TOP + lanes.index(lane) * lane_height
        x = LEFT + _INNER * (start - start_s) / length
        width = max(1.5, _INNER * (end - start) / length)
        kind = escape(state.replace(" ", "-"))
        parts.append(
            f'<rect class="s-{kind}" x="{x:.2f}" y="{y + 17}" width="{width:.2f}" height="14">'
            f"<title>{escape(words)}</title></rect>"
        )
    return _svg(title, bottom + BOTTOM, parts)
