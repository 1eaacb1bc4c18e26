"""What the page shows, as a function of what was published: states, speeds, depth, an hour, money."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pairbus.costs import Fleet, Outage, estimate, shipped_tariffs, tariff_for
from pairbus.dashboard.ledger_tail import LedgerTail
from pairbus.dashboard.money import Prices, outage_per_hour
from pairbus.dashboard.reading import Process, Sighting, look
from pairbus.dashboard.ribbons import Witness, ribbon
from pairbus.dashboard.view import Depth, Known, view
from pairbus.ledger import LedgerWriter, Operation, Outcome, Role, Route
from pairbus.publishing.flows import DAY_SECONDS
from pairbus.publishing.records import Count, EntityReport, PairReport, ProcessState, TransitionReport
from pairbus.testing.published import PRIMARY, SECONDARY, published_hour, states_of_an_hour

NOW = 1_800_000_000.0
TARIFF = tariff_for(shipped_tariffs(), "azure-usd", date(2026, 1, 1))
PRICES = Prices(TARIFF, TARIFF.plan("standard"))


def known(states: list[ProcessState] | None = None, **details: Any) -> Known:
    states = states_of_an_hour(NOW) if states is None else states
    processes = tuple(Process(state.process, state, state.program != "nightly-import") for state in states)
    return Known(Sighting(processes, 0), PRICES, details.pop("depths", {}), **details)


def only_pair(made: Known, now: float = NOW) -> dict[str, Any]:
    (pair,) = view(made, now)["pairs"]
    found: dict[str, Any] = pair
    return found


def test_an_hour_put_together() -> None:
    shown = view(known(), NOW)
    (pair,) = shown["pairs"]
    assert (pair["name"], pair["state"], pair["clients"]) == ("contoso", "failed over", 2)
    orders = next(one for one in pair["entities"] if one["name"] == "orders")
    assert (orders["state"], orders["since"]) == ("failed over", NOW - 240)
    assert orders["clients"] == {"failed over": 2, "suspect": 0, "healthy": 0}
    assert orders["today"]["pings"] == 82
    assert pair["rotation"] == {"in": 9, "of": 10}
    assert [one["condition"] for one in shown["processes"]] == ["alive", "alive", "alive", "died"]
    assert len(shown["transitions"]) == 11
    assert {one["clients"] for one in shown["transitions"]} == {2}
    assert shown["transitions"][0]["at"] == NOW - 240
    msgspec.json.encode(shown)  # the page gets it as JSON


def test_the_depth_is_what_went_in_less_what_came_out_now_and_before() -> None:
    pair = only_pair(known())
    stored = sum(one.flow.stored for state in states_of_an_hour(NOW) for one in state.totals)
    gone = sum(one.flow.gone for state in states_of_an_hour(NOW) for one in state.totals)
    assert pair["depth"]["messages"] == stored - gone
    depths = pair["history"]["depth"]
    assert (depths[0], depths[-1]) == (0, stored - gone)
    assert max(depths) > stored - gone
    assert pair["depth"]["waits_for"] == "the primary"


def test_a_depth_that_was_counted_goes_before_one_that_was_reported() -> None:
    pair = only_pair(known(depths={"contoso": Depth(40_000, 3, NOW - 2)}))
    assert (pair["depth"]["messages"], pair["depth"]["dead_letters"], pair["history"]["depth"][-1]) == (
        40_000,
        3,
        40_000,
    )


@pytest.mark.parametrize(
    ("syphon", "waits_for"),
    [("running", "the primary"), ("paused", "its syphon, which is paused"), (None, "a syphon: none publishes here")],
)
def test_it_says_what_a_backlog_waits_for(syphon: str | None, waits_for: str) -> None:
    states = states_of_an_hour(NOW)
    reports = [msgspec.structs.replace(one, state=syphon) for one in states[2].syphons] if syphon else []
    states[2] = msgspec.structs.replace(states[2], syphons=reports)
    assert only_pair(known(states))["depth"]["waits_for"] == waits_for


def test_what_is_silent_has_no_speed_and_is_called_so() -> None:
    shown = view(known(), NOW + 6)
    assert {one["condition"] for one in shown["processes"]} == {"silent", "died"}
    assert shown["pairs"][0]["speeds"]["primary"] == 0
    assert shown["syphons"][0]["state"] == "silent"


def test_the_dead_have_no_say_in_the_present_and_stay_in_todays_sums() -> None:
    made = known()
    processes = made.sighting.processes
    dead = tuple(replace(process, alive=False) for process in processes)
    shown = view(replace(made, sighting=Sighting(dead, 0)), NOW)
    assert shown["pairs"][0]["entities"] == []
    assert shown["syphons"] == []
    assert shown["costs"]["billed"] == view(made, NOW)["costs"]["billed"] > 0
    assert shown["costs"]["outage"] is None
    assert view(replace(made, sighting=Sighting(dead, 0)), NOW + 4000)["processes"] == []


def test_yesterday_is_not_today() -> None:
    assert view(known(), NOW + DAY_SECONDS)["costs"]["billed"] == 0


def test_nobody_is_nothing() -> None:
    shown = view(Known(Sighting((), 0), PRICES, {}), NOW)
    assert (shown["pairs"], shown["processes"], shown["costs"]["amount"]) == ([], [], 0)


# --- ribbons --------------------------------------------------------------------------------------------------


def change(at: float, before: str, after: str) -> TransitionReport:
    return TransitionReport(at, PRIMARY, "orders", before, after, "send_failed")


def test_a_ribbon_is_the_worst_that_any_client_saw() -> None:
    one = Witness(0, 100, "healthy", [change(40, "healthy", "failed over"), change(60, "failed over", "healthy")])
    other = Witness(30, 100, "suspect", [change(50, "healthy", "suspect")])
    assert ribbon([one, other], 10, 100) == [
        (10, 40, "healthy"),
        (40, 60, "failed over"),
        (60, 100, "suspect"),
    ]


def test_times_that_nobody_watched_are_left_out() -> None:
    assert ribbon([Witness(0, 20, "healthy", []), Witness(50, 60, "healthy", [])], 10, 100) == [
        (10, 20, "healthy"),
        (50, 60, "healthy"),
    ]


# --- money ----------------------------------------------------------------------------------------------------


def test_an_hour_of_outage_costs_what_the_estimate_says() -> None:
    """Two clients, one entity failed over, a ping a minute, 10 messages a second of one unit."""
    pairs = [
        PairReport(
            "pair-1",
            PRIMARY,
            SECONDARY,
            "contoso",
            [EntityReport("orders", "failed over", 0), EntityReport("prices", "healthy", 0)],
            10,
            10,
            0.0,
            60.0,
        )
    ] * 2
    found = outage_per_hour(pairs, 10.0, [], PRICES)
    fleet = Fleet(clients=2, entities=1, failover_interval_seconds=0)
    by_estimate = estimate(fleet, TARIFF, outage=Outage(hours=1, messages_per_second=10))
    lines = [line for line in by_estimate.lines if line.cause in ("pings", "diverted messages")]
    assert found is not None
    assert found["operations"] == sum(line.per_30_days for line in lines)
    assert found["pings"] == 120
    assert found["amount"] == 0
    assert found["amount_beyond"] == pytest.approx(144_120 * 0.8 / 1_000_000)


def test_operations_of_the_month_decide_on_the_price() -> None:
    states = states_of_an_hour(NOW)
    dear = replace(known(states), prices=replace(PRICES, month_operations=13_000_000))
    cheap, expensive = view(known(states), NOW)["costs"], view(dear, NOW)["costs"]
    for one, other in zip(cheap["namespaces"], expensive["namespaces"], strict=True):
        assert one["operations_amount"] == 0
        assert other["operations_amount"] == pytest.approx(float(Decimal(one["billed"]) * Decimal("0.8") / 1_000_000))


# --- reading --------------------------------------------------------------------------------------------------


def test_what_cannot_be_read_is_counted(tmp_path: Path) -> None:
    with published_hour(tmp_path / "state") as states:
        (tmp_path / "state" / "broken-1-00000000").mkdir()
        seen = look(tmp_path / "state")
        assert ({process.name for process in seen.processes}, seen.unread) == ({one.process for one in states}, 1)
        assert [process.name for process in seen.processes if process.died] == ["shop-4600-cccccccc"]
    assert not any(process.alive for process in look(tmp_path / "state").processes)
    assert look(tmp_path / "nowhere") == Sighting((), 0)


def test_a_ledger_is_read_once_as_it_grows_and_when_it_is_published(tmp_path: Path) -> None:
    day = int(time.time()) // DAY_SECONDS
    tail = LedgerTail(tmp_path)
    with LedgerWriter(tmp_path) as writer:
        writer.record_batch(Operation.SEND, "contoso", "orders", ["1", "2"], route=Route.PRIMARY)
        writer.record(Operation.TRANSITION, "contoso", "orders")
        writer.record(Operation.SEND, "contoso", "orders", at_us=(day - 1) * DAY_SECONDS * 1_000_000)
        assert writer.flush()
        assert tail.read_on(day)
        assert tail.read_on(day)
        queue = "contoso/x-servicebus-transfer/0"
        writer.record(Operation.DIVERT, "standby", queue, size=70_000, destination="orders", route=Route.BACKLOG)
    assert tail.read_on(day)
    expected = [
        Count(day, "contoso", "contoso", "orders", Operation.SEND, Outcome.OK, 2, 2, Route.PRIMARY),
        Count(day, "contoso", "standby", "orders", Operation.DIVERT, Outcome.OK, 1, 2, Route.BACKLOG, True),
    ]
    assert tail.counts() == expected
    assert tail.billed() == expected


def test_a_namespace_that_counted_itself_is_billed_by_its_own_records(tmp_path: Path) -> None:
    day = int(time.time()) // DAY_SECONDS
    with LedgerWriter(tmp_path) as writer:
        writer.record(Operation.SEND, "contoso", "orders", route=Route.PRIMARY)
        writer.record(Operation.SEND, "contoso", "orders", role=Role.NAMESPACE)
        writer.record(Operation.RECEIVE, "contoso", "orders", role=Role.NAMESPACE)
        writer.record(Operation.PING, "fabrikam", "orders", route=Route.PRIMARY)
    tail = LedgerTail(tmp_path)
    assert tail.read_on(day)
    assert sorted((one.namespace, one.operation.value) for one in tail.billed()) == [
        ("contoso", "receive"),
        ("contoso", "send"),
        ("fabrikam", "ping"),
    ]
    assert len(tail.counts()) == 2
