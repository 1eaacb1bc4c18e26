"""The live page during an outage: a real paired client, a real syphon, real namespaces, figures as in the ledger."""

from __future__ import annotations

import json
import random
import re
import socket
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from azure.servicebus import ServiceBusMessage
from playwright.sync_api import Page, expect
from tests.support.pairing import paired

from pairbus.costs import billed_operations
from pairbus.ledger import Operation, Outcome, Record, Route, closed_files, open_files
from pairbus.publishing.flows import DAY_SECONDS
from pairbus.testing import EmbeddedPair, embedded_pair, wait_until

LONG_MS = 120_000
Open = Callable[..., Page]
Serve = Callable[..., Any]


@pytest.fixture(scope="module")
def pair() -> Iterator[EmbeddedPair]:
    with embedded_pair() as running:
        with running.primary.admin() as admin:
            admin.create_queue("orders")
            admin.create_queue("invoices")
        yield running


def entity(page: Page, name: str) -> Any:
    return page.locator(".entity-rows tr", has=page.get_by_role("rowheader", name=name, exact=True))


def expect_state(page: Page, name: str, state: str) -> None:
    expect(entity(page, name).locator(".chip")).to_have_text(state, timeout=LONG_MS)


def lines_of(ledger: Path) -> list[Record]:
    found = []
    for path in (*closed_files(ledger), *open_files(ledger)):
        found += [msgspec.json.decode(line, type=Record) for line in path.read_bytes().splitlines()]
    return found


def number(text: str) -> int:
    return int(re.sub(r"[^0-9]", "", text))


@pytest.mark.parametrize("counted_by", ["processes", "ledger"])
def test_states_change_on_screen_and_figures_are_the_ledgers(
    serve: Serve, open_page: Open, pair: EmbeddedPair, tmp_path: Path, counted_by: str
) -> None:
    state, ledger = tmp_path / "state", tmp_path / "ledger"
    options: dict[str, Any] = {
        "primary_name": f"by-{counted_by}",
        "failover_interval": 0,
        "ping_primary_interval": 1,
        "enable_syphon": True,
    }
    with paired(pair, state_dir=state, ledger=ledger, **options) as client:
        served = serve(state, *(("--ledger", str(ledger)) if counted_by == "ledger" else ()))
        page = open_page(served.address)
        senders = {name: client.get_queue_sender(name) for name in ("orders", "invoices")}
        for name, sender in senders.items():
            for position in range(3):
                sender.send_messages(ServiceBusMessage(f"{name} {position}"))
        expect(page.get_by_role("heading", level=1)).to_have_text("All 2 entities take sends", timeout=LONG_MS)

        client.syphon.pause()
        pair.primary.fault("refuse", entity="orders")
        senders["orders"].send_messages([ServiceBusMessage(f"diverted {position}") for position in range(7)])
        senders["orders"].send_messages(ServiceBusMessage(b"x" * 70_000))
        expect_state(page, "orders", "failed over")
        expect_state(page, "invoices", "healthy")
        expect(page.locator("#news")).to_have_text(f"orders of by-{counted_by} is failed over", timeout=LONG_MS)
        expect(page.locator(".depth-value")).to_have_text("8", timeout=LONG_MS)
        expect(page.locator(".depth-detail")).to_contain_text("waits for its syphon, which is paused", timeout=LONG_MS)
        expect(page.locator("#transition-rows tr").first).to_contain_text("a send failed")
        expect(page.locator("#costs-outage")).to_contain_text("3,600 of them pings", timeout=LONG_MS)
        expect(entity(page, "orders")).to_contain_text(re.compile("failed .+ ago"), timeout=LONG_MS)  # the ping

        pair.primary.clear_faults()
        client.syphon.resume()
        expect_state(page, "orders", "healthy")
        expect(page.locator(".depth-value")).to_have_text("0", timeout=LONG_MS)
        expect(page.locator("#transition-rows tr")).to_have_count(2, timeout=LONG_MS)
        expect(page.locator("#transition-rows tr").first).to_contain_text("a ping was delivered")
        expect(page.locator("#syphon-rows")).to_contain_text("8")

        # The client stands still now: what the screen says is what the ledger's lines add up to.
        def agreed() -> bool:
            operations, billed = Counter[str](), Counter[str]()
            today = int(time.time()) // DAY_SECONDS
            for one in lines_of(ledger):
                if one.at_us // 1_000_000 // DAY_SECONDS != today:
                    continue
                if one.namespace and one.operation is not Operation.TRANSITION:
                    operations[one.namespace] += 1
                    billed[one.namespace] += billed_operations(one.operation, one.bytes, one.outcome)
            shown = {
                row.get_by_role("rowheader").inner_text(): [
                    number(cell.inner_text()) for cell in row.get_by_role("cell").all()[:2]
                ]
                for row in page.locator("#costs-rows tr").all()
            }
            # Nothing of today on both sides: midnight has passed since.
            return bool(shown or not operations) and shown == {
                name: [operations[name], billed[name]] for name in operations
            }

        wait_until(agreed, what="the same figures on screen and in the ledger")
        sent = [one for one in lines_of(ledger) if one.outcome is Outcome.OK]
        direct = sum(one.operation is Operation.SEND and one.route is Route.PRIMARY for one in sent)
        diverted = sum(one.operation is Operation.DIVERT for one in sent)
        assert (direct, diverted) == (6, 8)
        if min(one.at_us for one in sent) // 1_000_000 // DAY_SECONDS == int(time.time()) // DAY_SECONDS:
            expect(page.locator(".accepted-value")).to_have_text(str(direct + diverted), timeout=LONG_MS)
            expect(page.locator(".accepted-detail")).to_have_text("6 primary · 8 backlog · 8 carried home")
    expect(page.locator("#process-rows")).to_contain_text("ended", timeout=LONG_MS)
    expect(page.locator("#syphons-none")).to_be_visible()


def test_control_is_refused_without_the_token_and_works_with_it(
    serve: Serve, open_page: Open, pair: EmbeddedPair, tmp_path: Path
) -> None:
    with paired(pair, state_dir=tmp_path / "state", primary_name="asked", enable_syphon=True) as client:
        client.get_queue_sender("orders").send_messages(ServiceBusMessage("one"))
        served = serve(tmp_path / "state", "--allow-control")
        wish = {"action": "fail over", "primary": "asked", "entity": "orders"}
        token = {"X-Pairbus-Token": served.token}
        page = open_page(served.address)
        expect_state(page, "orders", "healthy")

        for headers in (
            {},
            {"X-Pairbus-Token": "wrong"},
            {**token, "Origin": "http://evil.example"},
            {**token, "Origin": "null"},
            {**token, "Sec-Fetch-Site": "cross-site"},
        ):
            assert post(served.address, wish, headers)[0] == 403, headers
        assert post(served.address, wish, {**token, "Host": "evil.example"})[0] == 421
        assert client.state("orders").value == "healthy"

        expect(page.get_by_role("button", name="Fail over: orders of asked")).to_be_hidden()
        page.get_by_role("button", name="Unlock control").click()
        page.get_by_label("Token", exact=True).fill(served.token)
        page.get_by_role("button", name="Unlock", exact=True).click()
        page.get_by_role("button", name="Fail over: orders of asked").click()
        page.get_by_role("button", name="Do it").click()
        expect(page.locator("#outcome")).to_contain_text("orders is failed over.", timeout=LONG_MS)
        assert client.state("orders").value == "failed over"
        expect_state(page, "orders", "failed over")
        page.get_by_role("button", name="Mark healthy: orders of asked").click()
        page.get_by_role("button", name="Do it").click()
        expect_state(page, "orders", "healthy")

        page.get_by_role("button", name=re.compile("Pause the syphon")).click()
        page.get_by_role("button", name="Do it").click()
        expect(page.locator("#syphon-rows .chip")).to_have_text("paused", timeout=LONG_MS)
        assert client.syphon.state().state == "paused"
        page.get_by_role("button", name=re.compile("Resume the syphon")).click()
        page.get_by_role("button", name="Do it").click()
        expect(page.locator("#syphon-rows .chip")).to_have_text("running", timeout=LONG_MS)

        assert post(served.address, {**wish, "entity": "nothing"}, token)[0] == 404
        assert post(served.address, {**wish, "more": 1}, token)[0] == 400
        assert post(served.address, {**wish, "entity": "x" * 5000}, token)[0] == 413


def test_a_wrong_token_is_said_at_once_and_unlocks_nothing(
    serve: Serve, open_page: Open, pair: EmbeddedPair, tmp_path: Path
) -> None:
    with paired(pair, state_dir=tmp_path / "state", primary_name="locked") as client:
        client.get_queue_sender("orders").send_messages(ServiceBusMessage("one"))
        served = serve(tmp_path / "state", "--allow-control")
        # A browser notes a refusal in its console.
        page = open_page(f"{served.address}#token=of-an-earlier-start", may_complain=True)
        expect_state(page, "orders", "healthy")
        expect(page.locator("#outcome")).to_have_text("The control token is missing or wrong.", timeout=LONG_MS)
        fail_over = page.get_by_role("button", name="Fail over: orders of locked")
        expect(fail_over).to_be_hidden()

        page.get_by_role("button", name="Unlock control").click()
        for wrong in ("wrong", "schlüssel €"):
            page.get_by_label("Token", exact=True).fill(wrong)
            page.get_by_role("button", name="Unlock", exact=True).click()
            expect(page.get_by_role("alert")).to_have_text("The control token is missing or wrong.", timeout=LONG_MS)
        expect(page.get_by_role("dialog")).to_be_visible()
        assert page.evaluate("sessionStorage.length") == 0

        page.get_by_label("Token", exact=True).fill(served.token)
        page.get_by_role("button", name="Unlock", exact=True).click()
        expect(fail_over).to_be_visible(timeout=LONG_MS)
        expect(page.get_by_role("dialog")).to_be_hidden()
        expect(page.locator("#outcome")).to_be_hidden()
        assert client.state("orders").value == "healthy"


def test_the_page_comes_back_by_itself(serve: Serve, open_page: Open, pair: EmbeddedPair, tmp_path: Path) -> None:
    """A stream that breaks is opened again; what happened meanwhile is on the screen."""
    with paired(pair, state_dir=tmp_path / "state", primary_name="again") as client:
        client.get_queue_sender("orders").send_messages(ServiceBusMessage("one"))
        served = serve(tmp_path / "state", port=port_that_stays_free())
        page = open_page(served.address, may_complain=True)  # a browser notes a server that is gone in its console
        expect_state(page, "orders", "healthy")
        served.stop()
        expect(page.locator("#connection")).to_have_attribute("data-state", "lost", timeout=LONG_MS)
        client.fail_over("orders")
        serve(tmp_path / "state", port=served.port)
        expect_state(page, "orders", "failed over")
        expect(page.locator("#connection")).to_have_text("live", timeout=LONG_MS)


def port_that_stays_free() -> int:
    """One below those that the system gives to whoever asks for any: nobody gets it while the page is away."""
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        try:
            with socket.create_server(("127.0.0.1", random.randrange(lowest // 2, lowest))) as found:
                return int(found.getsockname()[1])
        except OSError:  # somebody's
            continue


def post(address: str, wish: dict[str, Any], headers: dict[str, str]) -> tuple[int, dict[str, Any]]:
    request = urllib.request.Request(
        f"{address}api/control",
        data=json.dumps(wish).encode(),
        headers={"Content-Type": "application/json", **headers},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)
