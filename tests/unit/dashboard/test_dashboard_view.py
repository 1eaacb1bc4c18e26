"""What the page shows, as a function of what was published: states, speeds, depth, an hour, money."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from dataclasses import replace
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.published import PRIMARY, SECONDARY, published_hour, states_of_an_hour

from pairbus.cli.dashboard import _serve
from pairbus.cli.output import Refusal
from pairbus.costs import Fleet, OutageScenario, estimate, shipped_tariffs, tariff_for
from pairbus.dashboard import ledger_tail
from pairbus.dashboard.ledger_tail import READ_AT_ONCE_BYTES, LedgerTail
from pairbus.dashboard.money import Prices, outage_per_hour
from pairbus.dashboard.observatory import MOST_QUEUES, DashboardSettings, choose, look
from pairbus.dashboard.server import ControlBody, addressees
from pairbus.dashboard.view import (
    Depth,
    DepthAnchors,
    Process,
    PutIn,
    Sighting,
    ViewInput,
    Witness,
    put_in_at,
    ribbon,
    view,
)
from pairbus.ledger import CompletedOperation, LedgerWriter, Operation, Outcome, Role, Route
from pairbus.publishing.flows import BUCKET_SECONDS, DAY_SECONDS
from pairbus.publishing.folder import OwnFolder, open_state_folder
from pairbus.publishing.records import (
    EntityReport,
    Flow,
    Moment,
    OperationCount,
    PairReport,
    ProcessState,
    RequestedAction,
    Totals,
    TransitionReport,
)
from pairbus.testing import wait_until

NOW = 1_800_000_000.0
TARIFF = tariff_for(shipped_tariffs(), "azure-usd", date(2026, 1, 1))
PRICES = Prices(TARIFF, TARIFF.plan("standard"))


def known(states: list[ProcessState] | None = None, **details: Any) -> ViewInput:
    states = states_of_an_hour(NOW) if states is None else states
    processes = tuple(Process(state.process, state, state.program != "nightly-import") for state in states)
    return ViewInput(Sighting(processes, 0), PRICES, details.pop("depths", {}), **details)


def only_pair(made: ViewInput, now: float = NOW) -> dict[str, Any]:
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
    pair = only_pair(known(depths={PRIMARY: Depth(40_000, 3, NOW - 2)}))
    assert (pair["depth"]["messages"], pair["depth"]["dead_letters"], pair["history"]["depth"][-1]) == (
        40_000,
        3,
        40_000,
    )


def publishing(at: float, moved: dict[float, Flow]) -> ProcessState:
    """A process that began 100 seconds before NOW and has moved these flows, each at its time, when it publishes."""
    buckets: dict[int, list[Flow]] = {}
    for moment, flow in moved.items():
        if moment <= at:
            buckets.setdefault(int(moment) // BUCKET_SECONDS, []).append(flow)
    total = Flow(
        stored=sum(one.stored for flows in buckets.values() for one in flows),
        gone=sum(one.gone for flows in buckets.values() for one in flows),
    )
    history = [
        Moment(PRIMARY, bucket, Flow(stored=sum(one.stored for one in flows), gone=sum(one.gone for one in flows)))
        for bucket, flows in buckets.items()
    ]
    began = msgspec.structs.replace(states_of_an_hour(NOW)[0], started=NOW - 100)
    return msgspec.structs.replace(began, at=at, totals=[Totals(PRIMARY, total)], history=history)


def test_a_count_is_carried_on_from_its_own_time_and_the_past_does_not_move() -> None:
    """Ten messages a second go in, five come out; 1000 are counted once, and looked at for as long as a count lasts."""
    moved = {NOW - 100 + second: Flow(stored=10, gone=5) for second in range(200)}
    count = Depth(1000, 0, NOW + 3)
    tallies = DepthAnchors()
    past = set()
    for second in range(20):
        now = NOW + second
        made = known([publishing(now, moved)])
        tallies.see(made.sighting)
        if now < count.at:
            continue
        pair = only_pair(replace(made, depths=tallies.anchored({PRIMARY: count}, now)), now)
        assert pair["depth"]["messages"] == pair["history"]["depth"][-1] == 1000 + 5 * (now - count.at)
        before = int(NOW - BUCKET_SECONDS - pair["history"]["begin"]) // BUCKET_SECONDS
        past.add(pair["history"]["depth"][before])
    assert past == {1000 - 5 * 4}  # what moved at NOW and in each second up to the count


def test_a_process_that_came_or_was_forgotten_since_the_count_does_not_shift_it() -> None:
    flow = Flow(stored=40)
    one = publishing(NOW, {NOW - 50: flow})
    tallies = DepthAnchors()
    tallies.see(known([one]).sighting)
    anchored = tallies.anchored({PRIMARY: Depth(100, 0, NOW)}, NOW + 5)
    other = msgspec.structs.replace(one, process="new", started=NOW + 1, at=NOW + 4)
    assert only_pair(known([other], depths=anchored), NOW + 5)["depth"]["messages"] == 140
    assert only_pair(known([one, other], depths=anchored), NOW + 5)["depth"]["messages"] == 140


@pytest.mark.parametrize(("at", "put_in"), [(5.0, 0), (10.0, 0), (12.0, 4), (15.0, 10), (16.0, 8), (99.0, 8)])
def test_between_two_publications_a_tally_is_in_proportion(at: float, put_in: int) -> None:
    assert put_in_at([PutIn(10.0, 0), PutIn(15.0, 10), PutIn(16.0, 8)], at) == put_in


def carrying(states: list[ProcessState], gone: int, *, age: int) -> list[ProcessState]:
    """The syphon took out `gone` messages `age` buckets ago, and nothing before or since."""
    flow = Flow(home=gone, gone=gone)
    moment = Moment(PRIMARY, int(NOW) // BUCKET_SECONDS - age, flow)
    syphon = msgspec.structs.replace(states[2], totals=[Totals(PRIMARY, flow)], history=[moment])
    return [*states[:2], syphon, *states[3:]]


@pytest.mark.parametrize("more", [5_000_000, 1])
def test_a_depth_is_unknown_where_a_syphon_carries_what_others_put_in(more: int) -> None:
    states = states_of_an_hour(NOW)
    stored = sum(one.flow.stored for state in states for one in state.totals)
    pair = only_pair(known(carrying(states, stored + more, age=5)))
    assert (pair["depth"]["messages"], pair["depth"]["waits_for"], pair["history"]["depth"]) == (None, None, None)
    counted = only_pair(known(carrying(states, stored + more, age=5), depths={PRIMARY: Depth(7, 0, NOW)}))
    assert (counted["depth"]["messages"], counted["history"]["depth"][-1]) == (7, 7)


def test_a_depth_was_unknown_when_more_was_taken_out_than_was_there_then() -> None:
    """Half an hour ago nearly nothing had been put in here: what is put in since does not make the number right."""
    states = states_of_an_hour(NOW)
    stored = sum(one.flow.stored for state in states for one in state.totals)
    assert only_pair(known(carrying(states, stored - 1, age=350)))["depth"]["messages"] is None


@pytest.mark.parametrize("age", [0, 1])
def test_a_sender_that_is_a_second_late_does_not_make_a_depth_unknown(age: int) -> None:
    states = states_of_an_hour(NOW)
    stored = sum(one.flow.stored for state in states for one in state.totals)
    pair = only_pair(known(carrying(states, stored + 3, age=age)))
    assert (pair["depth"]["messages"], pair["history"]["depth"][-1]) == (0, 0)


def test_a_round_asks_for_whole_pairs_in_turn() -> None:
    queues = {f"p{number:02}": [str(queue) for queue in range(30)] for number in range(7)}
    queues["vast"] = [str(queue) for queue in range(MOST_QUEUES + 1)]
    asked: dict[str, float] = {}
    rounds = []
    for instant in range(1, 4):
        rounds.append(choose(queues, asked))
        asked |= dict.fromkeys(rounds[-1], float(instant))
    assert rounds == [["p00", "p01", "p02"], ["p03", "p04", "p05"], ["p06", "p00", "p01"]]


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


def of_primary(state: ProcessState, process: str, primary: str, primary_name: str) -> ProcessState:
    """The same process, with everything in it of another primary."""
    change = msgspec.structs.replace
    return change(
        state,
        process=process,
        pairs=[change(one, primary=primary, primary_name=primary_name) for one in state.pairs],
        syphons=[change(one, primary=primary, primary_name=primary_name) for one in state.syphons],
        counts=[change(one, primary=primary) for one in state.counts],
        totals=[change(one, primary=primary) for one in state.totals],
        history=[change(one, primary=primary) for one in state.history],
        speeds=[change(one, primary=primary) for one in state.speeds],
        transitions=[change(one, primary=primary) for one in state.transitions],
    )


@pytest.mark.parametrize(
    ("first", "second", "names"),
    [
        (("shop.eu", "shop.eu"), ("shop.us", "shop.us"), ["shop.eu", "shop.us"]),
        (
            ("contoso.servicebus.windows.net", "contoso"),
            ("contoso.servicebus.chinacloudapi.cn", "contoso"),
            ["contoso.servicebus.chinacloudapi.cn", "contoso.servicebus.windows.net"],
        ),
        (("shop.eu", "shop.eu"), ("shop.servicebus.windows.net", "shop"), ["shop.eu", "shop"]),
    ],
)
def test_pairs_whose_names_begin_alike_are_two_and_are_asked_apart(
    tmp_path: Path, first: tuple[str, str], second: tuple[str, str], names: list[str]
) -> None:
    state = states_of_an_hour(time.time())[0]
    states = [of_primary(state, "a-1-0000000a", *first), of_primary(state, "b-2-0000000b", *second)]
    shown = view(known(states), NOW)
    alone = only_pair(known([state]))
    assert [pair["name"] for pair in shown["pairs"]] == names
    assert {pair["key"] for pair in shown["pairs"]} == {first[0], second[0]}
    for pair in shown["pairs"]:
        assert (pair["today"], pair["depth"], pair["clients"]) == (alone["today"], alone["depth"], 1)
    assert {one["clients"] for one in shown["transitions"]} == {1}

    open_state_folder(tmp_path / "state")
    folders = [OwnFolder(tmp_path / "state", each.process) for each in states]
    for own, each in zip(folders, states, strict=True):
        own.write(each)
    found = addressees(tmp_path / "state", ControlBody(RequestedAction.FAIL_OVER, primary=first[0], entity="orders"))
    assert [process.name for process, _ in found] == ["a-1-0000000a"]
    for own in folders:
        own.close()


def test_lines_about_backlog_queues_find_their_pair() -> None:
    """In a ledger they have the name in the path; that a host begins with it says whose they are."""
    state = states_of_an_hour(NOW)[0]
    day = int(NOW) // DAY_SECONDS
    china = "contoso.servicebus.chinacloudapi.cn"
    other = of_primary(state, "b-2-0000000b", china, "contoso")
    report = msgspec.structs.replace(other.pairs[0], secondary="elsewhere")
    other = msgspec.structs.replace(other, pairs=[report])

    def diverted(namespace: str, operations: int) -> OperationCount:
        return OperationCount(
            day,
            "Contoso",
            namespace,
            "orders",
            Operation.DIVERT,
            Outcome.OK,
            operations,
            operations,
            Route.BACKLOG,
            True,
        )

    shown = view(known([state, other], recorded=[diverted(SECONDARY, 3), diverted("elsewhere", 5)]), NOW)
    assert {pair["key"]: pair["today"]["backlog"] for pair in shown["pairs"]} == {PRIMARY: 3, china: 5}
    ended = msgspec.structs.replace(state, pairs=[], ended=True)
    (pair,) = view(known([ended], recorded=[diverted(SECONDARY, 3)]), NOW)["pairs"]
    assert pair["today"]["backlog"] == 3


def test_what_one_client_saw_again_and_again_is_not_several_clients() -> None:
    """Two clients of one process, one of which flaps."""
    state = states_of_an_hour(NOW)[0]
    flapping = [
        TransitionReport(NOW - 4 + second, PRIMARY, "orders", *states, "send_failed", source="pair-1")
        for second in range(4)
        for states in (("healthy", "suspect"), ("suspect", "healthy"))
    ]
    once = TransitionReport(NOW - 1, PRIMARY, "orders", "healthy", "suspect", "send_failed", source="pair-2")
    shown = view(known([msgspec.structs.replace(state, transitions=[*flapping, once])]), NOW)["transitions"]
    assert sorted(one["clients"] for one in shown if one["after"] == "suspect") == [1, 1, 1, 2]
    assert [one["clients"] for one in shown if one["after"] == "healthy"] == [1, 1, 1, 1]


def test_yesterday_is_not_today() -> None:
    assert view(known(), NOW + DAY_SECONDS)["costs"]["billed"] == 0


def test_nobody_is_nothing() -> None:
    shown = view(ViewInput(Sighting((), 0), PRICES, {}), NOW)
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
    by_estimate = estimate(fleet, TARIFF, outage=OutageScenario(hours=1, messages_per_second=10))
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
        assert [process.name for process in seen.processes if not process.alive and not process.state.ended] == [
            "shop-4600-cccccccc"
        ]
    assert not any(process.alive for process in look(tmp_path / "state").processes)
    assert look(tmp_path / "nowhere") == Sighting((), 0)


def test_a_ledger_is_read_once_as_it_grows_and_when_it_is_published(tmp_path: Path) -> None:
    day = int(time.time()) // DAY_SECONDS
    today = day * DAY_SECONDS * 1_000_000
    tail = LedgerTail(tmp_path)
    with LedgerWriter(tmp_path) as writer:
        writer.record(
            CompletedOperation(Operation.SEND, "contoso", "orders", ["1", "2"], route=Route.PRIMARY, at_us=today)
        )
        writer.record(CompletedOperation(Operation.TRANSITION, "contoso", "orders", at_us=today))
        writer.record(
            CompletedOperation(Operation.SEND, "contoso", "orders", at_us=(day - 1) * DAY_SECONDS * 1_000_000)
        )
        assert writer.flush()
        assert tail.read_on(day)
        assert tail.read_on(day)
        queue = "contoso/x-servicebus-transfer/0"
        writer.record(
            CompletedOperation(
                Operation.DIVERT,
                "standby",
                queue,
                sizes=[70_000],
                destination="orders",
                route=Route.BACKLOG,
                at_us=today,
            )
        )
    assert tail.read_on(day)
    expected = [
        OperationCount(day, "contoso", "contoso", "orders", Operation.SEND, Outcome.OK, 2, 2, Route.PRIMARY),
        OperationCount(day, "contoso", "standby", "orders", Operation.DIVERT, Outcome.OK, 1, 2, Route.BACKLOG, True),
    ]
    assert tail.counts() == expected
    assert tail.billed() == expected


def test_a_ledger_that_is_not_read_to_its_end_or_not_readable_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_tail, "READ_AT_ONCE_BYTES", 600)
    day = int(time.time()) // DAY_SECONDS
    with LedgerWriter(tmp_path) as writer:
        for _ in range(20):
            writer.record(
                CompletedOperation(
                    Operation.SEND, "contoso", "orders", route=Route.PRIMARY, at_us=day * DAY_SECONDS * 1_000_000
                )
            )
    (tmp_path / "a-folder.jsonl").mkdir()  # cannot be read as a file, whoever one is
    (tmp_path / "garbage.jsonl").write_text("no record\n")
    tail = LedgerTail(tmp_path)
    assert not tail.read_on(day)
    assert len(tail.counts()) == 1
    assert tail.counts()[0].operations < 20
    wait_until(lambda: tail.read_on(day), what="the end of the ledger")
    assert (tail.counts()[0].operations, tail.refused, tail.unreadable) == (20, 1, 1)
    made = known(recorded=[], ledger_complete=False, ledger_refused=1, ledger_unreadable=2)
    costs = view(made, NOW)["costs"]
    assert (costs["complete"], costs["refused_files"], costs["unreadable_lines"]) == (False, 1, 2)


def test_hostile_files_do_not_stop_the_count_of_today(tmp_path: Path) -> None:
    day = int(time.time()) // DAY_SECONDS
    with (tmp_path / "a.000001.jsonl").open("wb") as file:
        file.truncate(2 * READ_AT_ONCE_BYTES)  # one line of zeros
    line = {
        "v": 1,
        "n": 1,
        "process": "p",
        "at_us": day * DAY_SECONDS * 1_000_000,
        "role": "client",
        "operation": "send",
    }
    lines = [line, line | {"billed": 2**63 - 1}, line | {"bytes": 2**63 - 1}, line | {"billed": -1}]
    (tmp_path / "b.000001.jsonl").write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    (tmp_path / "loop.000001.jsonl").symlink_to("loop.000001.jsonl")
    os.mkfifo(tmp_path / "pipe.000001.jsonl.open")
    tail = LedgerTail(tmp_path)
    wait_until(lambda: tail.read_on(day), what="the end of the ledger")
    assert [(count.operations, count.billed) for count in tail.counts()] == [(1, 1)]
    assert (tail.refused, tail.unreadable) == (2, 2 + 3)


def test_a_page_that_cannot_be_served_any_more_ends(tmp_path: Path) -> None:
    """On a socket that no server can listen on."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as wrong:
        wrong.bind(("127.0.0.1", 0))
        with pytest.raises(Refusal, match="The page's server stopped"):
            asyncio.run(_serve(DashboardSettings(tmp_path / "state", PRICES), None, wrong, None))


def test_a_namespace_that_counted_itself_is_billed_by_its_own_records(tmp_path: Path) -> None:
    day = int(time.time()) // DAY_SECONDS
    today = day * DAY_SECONDS * 1_000_000
    with LedgerWriter(tmp_path) as writer:
        writer.record(CompletedOperation(Operation.SEND, "contoso", "orders", route=Route.PRIMARY, at_us=today))
        writer.record(CompletedOperation(Operation.SEND, "contoso", "orders", role=Role.NAMESPACE, at_us=today))
        writer.record(CompletedOperation(Operation.RECEIVE, "contoso", "orders", role=Role.NAMESPACE, at_us=today))
        writer.record(CompletedOperation(Operation.PING, "fabrikam", "orders", route=Route.PRIMARY, at_us=today))
    tail = LedgerTail(tmp_path)
    assert tail.read_on(day)
    assert sorted((one.namespace, one.operation.value) for one in tail.billed()) == [
        ("contoso", "receive"),
        ("contoso", "send"),
        ("fabrikam", "ping"),
    ]
    assert len(tail.counts()) == 2
