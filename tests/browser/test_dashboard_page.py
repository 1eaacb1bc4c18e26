"""The live page in Chromium: an hour at a glance, accessible in every light and size, nothing from elsewhere."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect
from tests.support.published import published_hour, states_of_an_hour

from pairbus.ledger import CompletedOperation, LedgerWriter, Operation, Route
from pairbus.publishing.folder import OwnFolder, open_state_folder

IMAGES = Path(__file__).parents[2] / "docs" / "images"
DESKTOP, PHONE = {"width": 1280, "height": 1000}, {"width": 390, "height": 844}
LONG_MS = 120_000

Open = Callable[..., Page]
Serve = Callable[..., Any]


def picture(page: Page, name: str) -> None:
    if os.environ.get("PAIRBUS_SCREENSHOTS") == "1":
        IMAGES.mkdir(exist_ok=True)
        page.screenshot(path=IMAGES / f"{name}.png")


@pytest.mark.parametrize("size", ["desktop", "phone"])
@pytest.mark.parametrize("light", ["light", "dark"])
def test_an_hour_is_shown_and_everyone_can_read_it(
    serve: Serve, open_page: Open, tmp_path: Path, size: str, light: Any
) -> None:
    with published_hour(tmp_path / "state"):
        served = serve(tmp_path / "state", "--allow-control")
        page = open_page(
            f"{served.address}#token={served.token}",
            viewport=DESKTOP if size == "desktop" else PHONE,
            color_scheme=light,
            reduced_motion="reduce",
        )
        expect(page.get_by_role("heading", level=1)).to_have_text(
            "orders is failed over: its messages go to the backlog", timeout=LONG_MS
        )
        assert page.url == served.address  # the token is gone from the address
        orders = page.locator(".entity-rows tr", has_text="orders")
        expect(orders.get_by_text("failed over", exact=True)).to_be_visible()
        expect(orders).to_contain_text("OperationTimeoutError")
        expect(orders).to_contain_text("2 of 2 clients")
        expect(page.locator("#syphon-rows")).to_contain_text("running")
        expect(page.locator("#process-rows")).to_contain_text("died")
        expect(page.locator("#transition-rows tr")).to_have_count(11)
        expect(page.locator("#costs-outage")).to_contain_text("120 of them pings")
        expect(page.locator(".rotation-value")).to_have_text("9 of 10")
        expect(orders.get_by_role("button", name="Mark healthy: orders of contoso")).to_be_visible()
        too_wide = page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")
        assert not too_wide
        found = Axe().run(page).response["violations"]
        serious = [(one["id"], one["nodes"][0]["html"]) for one in found if one["impact"] in ("serious", "critical")]
        assert serious == []
        picture(page, f"dashboard-{size}-{light}")


def test_the_keyboard_reaches_everything_and_shows_where_it_is(serve: Serve, open_page: Open, tmp_path: Path) -> None:
    with published_hour(tmp_path / "state"):
        served = serve(tmp_path / "state", "--allow-control")
        page = open_page(f"{served.address}#token={served.token}", viewport=DESKTOP)
        fail_over = page.get_by_role("button", name="Fail over: invoices of contoso")
        expect(fail_over).to_be_visible(timeout=LONG_MS)
        reached = []
        for _ in range(14):
            page.keyboard.press("Tab")
            reached.append(
                page.evaluate(
                    "[document.activeElement.getAttribute('aria-label') || document.activeElement.textContent.trim(),"
                    " getComputedStyle(document.activeElement).outlineStyle]"
                )
            )
        names = [name for name, _ in reached]
        assert names[:2] == ["Skip to the pairs", "Lock control"]
        assert "Fail over: invoices of contoso" in names
        assert "Pause the syphon of process 4730" in names
        assert {outline for name, outline in reached if name in names[:4]} == {"solid"}
        fail_over.focus()
        page.keyboard.press("Enter")
        expect(page.get_by_role("dialog")).to_contain_text("go to the backlog until pings succeed, in 2 clients")
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_be_hidden()
        # Everything is drawn anew (the new process says so), and the focus is where it was, on the very same button.
        button = page.evaluate_handle("document.activeElement")
        assert button.evaluate("found => found.getAttribute('aria-label')") == "Fail over: invoices of contoso"
        newcomer = states_of_an_hour(time.time())[3]
        own = OwnFolder(tmp_path / "state", "host-1-0000000a")
        own.write(msgspec.structs.replace(newcomer, process="host-1-0000000a", program="newcomer", at=time.time()))
        expect(page.locator("#process-rows")).to_contain_text("newcomer", timeout=LONG_MS)
        own.close()
        assert button.evaluate("found => found.isConnected && found === document.activeElement")


def test_a_depth_that_nobody_here_knows_is_not_called_empty(serve: Serve, open_page: Open, tmp_path: Path) -> None:
    """The syphon here carried more than anybody here stored, and two pairs that begin alike are two."""
    syphon = states_of_an_hour(time.time())[2]
    change = msgspec.structs.replace
    others = [
        change(
            syphon,
            process=f"host-{number}-0000000a",
            syphons=[change(one, primary=name, primary_name=name) for one in syphon.syphons],
            totals=[change(one, primary=name) for one in syphon.totals],
            history=[change(one, primary=name) for one in syphon.history],
        )
        for number, name in enumerate(("shop.eu", "shop.us"))
    ]
    open_state_folder(tmp_path / "state")
    with ExitStack() as stack:
        for state in others:
            own = OwnFolder(tmp_path / "state", state.process)
            stack.callback(own.close)
            own.write(state)
        page = open_page(serve(tmp_path / "state").address)
        expect(page.locator(".pair-primary")).to_have_text(["shop.eu", "shop.us"], timeout=LONG_MS)
        expect(page.locator(".depth-value")).to_have_text(["unknown", "unknown"])
        expect(page.locator(".depth-detail").first).to_have_text(
            "syphons here also carry messages of other machines; use --secondary to count"
        )
        expect(page.locator("#subline")).to_contain_text("the number of waiting messages is unknown")


def test_what_is_missing_of_a_ledger_is_said(serve: Serve, open_page: Open, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    with LedgerWriter(ledger) as writer:
        writer.record(CompletedOperation(Operation.SEND, "contoso", "orders", route=Route.PRIMARY))
    (ledger / "a-folder.jsonl").mkdir()  # cannot be read as a file, whoever one is
    (ledger / "garbage.jsonl").write_text("no record\n")
    for path in ledger.iterdir():
        os.utime(path, (time.time() + 3600,) * 2)  # of today, also if it is nearly over
    page = open_page(serve(tmp_path / "state", "--ledger", str(ledger)).address)
    expect(page.locator("#costs-missing")).to_have_text(
        "1 file of the ledger cannot be read; records are missing. · "
        "1 line of the ledger is not a record and is left out.",
        timeout=LONG_MS,
    )


def test_everything_comes_from_the_page_itself(serve: Serve, open_page: Open, tmp_path: Path) -> None:
    asked: list[str] = []
    with published_hour(tmp_path / "state"):
        served = serve(tmp_path / "state")
        page = open_page("about:blank")
        page.on("request", lambda request: asked.append(request.url))
        page.goto(served.address)
        expect(page.locator("#connection")).to_have_text("live", timeout=LONG_MS)
        assert all(url.startswith(served.address) for url in asked)
        assert page.get_by_role("button", name="Unlock control").is_hidden()
        assert page.locator(".control-column").first.is_hidden()


def test_without_a_stream_the_page_asks_again_and_again(serve: Serve, open_page: Open, tmp_path: Path) -> None:
    served = serve(tmp_path / "state")
    page = open_page("about:blank", may_complain=True)  # a browser notes an answer of 503 in its console
    page.route("**/api/events", lambda route: route.fulfill(status=503))
    page.goto(served.address)
    expect(page.get_by_role("heading", level=1)).to_have_text("No process publishes here yet", timeout=LONG_MS)
    with published_hour(tmp_path / "state"):
        expect(page.locator(".entity-rows tr")).to_have_count(3, timeout=LONG_MS)


def test_a_folder_without_anyone_says_what_to_do(serve: Serve, open_page: Open, tmp_path: Path) -> None:
    served = serve(tmp_path / "state")
    page = open_page(served.address)
    expect(page.get_by_role("heading", level=1)).to_have_text("No process publishes here yet", timeout=LONG_MS)
    expect(page.locator("#processes-none")).to_contain_text("PAIRBUS_STATE_DIR")
