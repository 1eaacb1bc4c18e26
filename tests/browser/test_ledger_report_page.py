"""The report in Chromium: everyone can read it, in the light, in the dark, on a phone and on paper, offline."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from pairbus.pipeline.page import html_page
from pairbus.pipeline.report import Report, Series, Span, Summary

START = 1_767_225_600.0
DIVERTED_AT = "2026-01-01T00:31:12.000+00:00"
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}

Open = Callable[..., Page]


def an_hour() -> Report:
    """25 minutes of an outage in which one message was lost and two entities failed over, one of them to this day."""
    diverted = [180.0 if 20 <= minute < 45 else 0.0 for minute in range(60)]
    sends = {
        "primary": [0.0 if 20 <= minute < 45 else 180.0 for minute in range(60)],
        "backlog": diverted,
        "spool": [9.0 if minute == 30 else 0.0 for minute in range(60)],
        "refused": [25.0 if minute == 20 else 0.0 for minute in range(60)],
    }
    depth = [180.0 * max(0, min(25, minute - 19) - max(0, 2 * (minute - 46))) for minute in range(60)]
    spans = []
    for name, ends in (("contoso/orders", START + 2700), ("contoso/an-entity-with-a-rather-long-name", None)):
        spans.append(Span(name, "suspect", START + 1140, START + 1200, "ServiceBusConnectionError"))
        spans.append(Span(name, "failed over", START + 1200, ends, "<b>not</b> a tag"))
    episode = {
        "target": "orders",
        "failed_over_at": "2026-01-01T00:20:00.123+00:00",
        "healthy_at": None,
        "cause": "ServiceBusConnectionError",
        "diverted": 4500,
        "waiting": 4,
        "seconds_to_first_backlog_message": 0.012,
        "seconds_to_drained": None,
    }
    message = {"target": "orders", "message_id": "order-17", "episode": "5f0c", "diverted_at": DIVERTED_AT}
    bill = {"month": "2026-01-01", "namespace": "contoso", "currency": "USD", "tariff": "azure-usd of 2024-01-01"}
    return Report(
        first_day="2026-01-01",
        last_day="2026-01-01",
        summary=Summary(
            accepted=10_809,
            delivered=10_803,
            dead_lettered=1,
            expired=0,
            waiting=4,
            lost=1,
            duplicates=1,
            diverted=4_500,
            spooled=9,
            restored=4_495,
            pings=25,
            billed_operations=32_000,
            unidentified=0,
            unrecorded=1,
            broken_lines=1,
            died=1,
        ),
        checked=False,
        states=spans,
        sends=Series(START, 60, sends),
        depth=Series(START, 60, {"messages in backlogs": depth}),
        waits=[("1 s", 0), ("1 min", 1200), ("longer", 3300)],
        episodes=[episode],
        waiting=[
            {"day": "2026-01-01", "target": "orders", "messages": 4495, "still_waiting": 4, "p50_seconds": 512.123}
            | {"p99_seconds": 1801.4, "max_seconds": 1900.0}
        ],
        availability=[
            {"day": "2026-01-01", "target": "orders", "offered": 10_834, "accepted": 10_809}
            | {"accepted_by_primary": 6_300}
            | {"with_pairing": 10_809 / 10_834, "without_pairing": 6_300 / 10_834}
        ],
        bills=[
            bill | {"what": "base charge, hours", "quantity": "744", "price": "0.013441", "amount": "10.000104"},
            bill | {"what": "operations, 0 to 13,000,000", "quantity": "32000", "price": "0", "amount": "0"},
        ],
        pairing_cost=[
            {"month": "2026-01-01", "namespace": "contoso", "cause": cause, "billed": billed, "amount": "0"}
            | {"currency": "USD"}
            for cause, billed in (("pings", 25), ("diverted messages", 18_000))
        ],
        lost=[message | {"lost": 1}],
        duplicated=[message | {"message_id": "order-18", "duplicates": 1}],
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "report.html"
    path.write_text(html_page(an_hour()), encoding="utf-8")
    return path


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize("light", ["light", "dark"])
def test_everyone_can_read_the_report(open_page: Open, file: Path, size: dict[str, int], light: Any) -> None:
    page = open_page(file.as_uri(), viewport=size, color_scheme=light)
    expect(page.locator(".verdict strong")).to_have_text("1 of 10,809 accepted messages is lost.")
    expect(page.locator("svg")).to_have_count(5)
    expect(page.get_by_text("1 process runs or did not end in order", exact=False)).to_be_visible()
    expect(page.get_by_role("row", name="in all")).to_contain_text("10.000104")
    expect(page.locator(".facts")).to_contain_text("99.769 %")
    assert page.locator("b").count() == 0, "a cause became a tag"
    assert not page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")
    assert [one["id"] for one in Axe().run(page).response["violations"]] == []


def test_the_report_needs_nothing_but_itself_and_prints(open_page: Open, file: Path) -> None:
    page = open_page(file.as_uri(), color_scheme="dark", java_script_enabled=False)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.reload()
    assert asked == [file.as_uri()]
    page.emulate_media(media="print")
    assert page.pdf(print_background=True).startswith(b"%PDF")
    with_scripts = open_page(file.as_uri(), color_scheme="dark")
    with_scripts.emulate_media(media="print")
    colours = with_scripts.evaluate(
        "[getComputedStyle(document.body).color, getComputedStyle(document.body).background]"
    )
    assert colours[0] == "rgb(0, 0, 0)"
    assert colours[1].startswith("rgb(255, 255, 255)")
    assert [one["id"] for one in Axe().run(with_scripts).response["violations"]] == []
