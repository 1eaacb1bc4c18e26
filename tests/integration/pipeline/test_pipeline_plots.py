"""Plots: axes that end on round numbers, bars as high as their values, names that cannot break out of the
page.
"""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from pairbus.pipeline import page
from pairbus.pipeline.report import Span

SVG = "{http://www.w3.org/2000/svg}"


def draw(plot: str, *arguments: object) -> str:
    template = page.templates.from_string('{% import "plots.svg" as plots %}{{ plots[plot](*arguments) }}')
    return template.render(plot=plot, arguments=arguments)


def parse(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg.strip().replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1))


@pytest.mark.parametrize(
    ("value", "ceiling"), [(0, 1), (1, 1), (1.1, 2), (3, 5), (7, 10), (10, 10), (99, 100), (101, 200), (0.03, 0.05)]
)
def test_axes_end_on_round_numbers(value: float, ceiling: float) -> None:
    assert page.nice_ceiling(value) == pytest.approx(ceiling)


def test_bars_are_as_high_as_their_values() -> None:
    picture = parse(draw("stacked_bars", "sends", 0, 60, {"primary": [10, 0], "backlog": [0, 5]}))
    high, low = (float(bar.attrib["height"]) for bar in picture.iter(f"{SVG}rect"))
    assert high == pytest.approx(2 * low)


def test_an_area_begins_and_ends_on_the_ground() -> None:
    picture = parse(draw("area", "depth", 0, 1, [0, 3, 3, 0]))
    (shape,) = picture.iter(f"{SVG}polygon")
    heights = [float(point.split(",")[1]) for point in shape.attrib["points"].split()]
    assert heights[0] == heights[-1] == max(heights)


def test_names_are_escaped() -> None:
    evil = '<script>"&'
    for svg in (
        draw("horizontal_bars", evil, [(evil, 1, evil)]),
        draw("timeline", evil, 0, 1, [Span(evil, "suspect", 0, 1, evil)]),
    ):
        assert "<script>" not in svg
        assert evil in "".join(parse(svg).itertext())


def test_empty_plots_are_plots() -> None:
    for svg in (
        draw("stacked_bars", "t", 0, 1, {}),
        draw("area", "t", 0, 1, []),
        draw("horizontal_bars", "t", []),
        draw("timeline", "t", 0, 0, []),
    ):
        assert parse(svg).tag == f"{SVG}svg"


def test_an_axis_over_days_shows_days() -> None:
    assert page.clock(0, 10 * 86400) == "01 Jan"
    assert page.clock(3600, 86400) == "01:00"
    assert page.clock(3601, 60) == "01:00:01"
