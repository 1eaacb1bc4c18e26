"""The simulation: known outages give known numbers, the same seed the same rows, wrong fleets a clear
word.
"""

from __future__ import annotations

import math
from datetime import date
from statistics import mean
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from pairbus.costs import shipped_tariffs, tariff_for
from pairbus.costs.estimate import Fleet, pings_in_outage
from pairbus.failover.states import FailoverRules
from pairbus.pipeline.fleet import FleetError, FleetPlan, OutageKind, PairingChoice, parse_fleet, play_outage, play_run
from pairbus.pipeline.simulation import forecast, simulate

pytestmark = pytest.mark.timeout(900)  # Spark on a busy machine

USD = tariff_for(shipped_tariffs(), "azure-usd", date(2026, 1, 1))


def rules(failover: float, ping: float = 60, recovery: int = 1, divert: bool = False) -> FailoverRules:
    return FailoverRules(failover, ping, recovery, divert)


def test_an_outage_with_patience_refuses_for_the_interval_and_diverts_the_rest() -> None:
    """One send a second from 0 on; an hour's outage; failed over at 60, healthy at the first ping after
    3600.
    """
    told = play_outage(rules(60), seconds=3600, rate=1, phase=0)
    assert (told.refused, told.failed_over_at) == (60, 60)
    assert (told.pings, told.healthy_at, told.diverted) == (59, 3600, 3540)


def test_without_patience_nothing_is_refused() -> None:
    told = play_outage(rules(0), seconds=3600, rate=1, phase=0.5)
    assert (told.refused, told.failed_over_at, told.pings) == (0, 0.5, 60)
    assert told.healthy_at == 3600.5
    assert told.diverted == 3600


def test_a_short_outage_ends_with_the_first_send_that_works() -> None:
    told = play_outage(rules(60), seconds=10, rate=1, phase=0)
    assert (told.refused, told.diverted, told.pings) == (10, 0, 0)
    assert (told.failed_over_at, told.healthy_at) == (None, 10)


def test_an_outage_between_two_sends_is_not_noticed() -> None:
    told = play_outage(rules(0), seconds=10, rate=0.01, phase=50)
    assert (told.refused, told.diverted, told.pings) == (0, 0, 0)


def test_diverting_during_the_interval_refuses_nothing() -> None:
    told = play_outage(rules(60, divert=True), seconds=3600, rate=1, phase=0)
    assert (told.refused, told.diverted) == (0, 3600)


@settings(deadline=None, max_examples=200)
@given(
    failover=st.integers(0, 300),
    ping=st.integers(1, 120),
    recovery=st.integers(1, 3),
    seconds=st.integers(1, 3600),
)
def test_pings_are_those_of_the_estimate(failover: int, ping: int, recovery: int, seconds: int) -> None:
    """For a client that sends all the time, the simulation and the formula of the cost estimate agree."""
    told = play_outage(rules(failover, ping, recovery), seconds, rate=1000, phase=0)
    fleet = Fleet(failover_interval_seconds=failover, ping_interval_seconds=ping, recovery_pings=recovery)
    assert told.pings == pings_in_outage(fleet, seconds / 3600)


@settings(deadline=None, max_examples=100)
@given(
    failover=st.floats(0, 300),
    ping=st.floats(1, 120),
    seconds=st.floats(1, 2000),
    rate=st.floats(0.01, 20),
    share=st.floats(0, 0.999),
)
def test_every_send_is_either_refused_or_diverted(
    failover: float, ping: float, seconds: float, rate: float, share: float
) -> None:
    phase = share / rate
    told = play_outage(rules(failover, ping), seconds, rate, phase)
    assert told.healthy_at >= min(seconds, phase) or told.healthy_at == phase
    sends = (told.healthy_at - phase) * rate
    assert math.isclose(told.refused + told.diverted, sends, abs_tol=1.01)


PLAN = FleetPlan(
    clients=100,
    entities=2,
    messages_per_second=0.5,
    runs=40,
    outages=(OutageKind("namespace", 2, 30), OutageKind("entity", 1, 60)),
    choices=(PairingChoice(failover_interval_seconds=0), PairingChoice(failover_interval_seconds=600)),
)


def test_runs_are_the_same_for_the_same_seed_and_differ_by_run() -> None:
    first, again = (play_run(PLAN, PLAN.choices[0], USD, 3) for _ in range(2))
    assert first == again
    assert play_run(PLAN, PLAN.choices[0], USD, 4) != first


def test_played_clients_stand_for_the_fleet() -> None:
    """Playing a tenth of the clients gives what playing all of them gives, within the spread of phases."""
    few = FleetPlan(clients=500, runs=1, clients_per_outage=50, outages=(OutageKind("namespace", 5, 30),))
    all_of_them = FleetPlan(clients=500, runs=1, clients_per_outage=500, outages=few.outages)
    sums = [
        mean(play_run(plan, plan.choices[0], USD, run).diverted for run in range(20)) for plan in (few, all_of_them)
    ]
    assert sums[0] == pytest.approx(sums[1], rel=0.1)


def test_both_namespaces_down_is_refused_or_spooled() -> None:
    plan = FleetPlan(clients=10, outages=(OutageKind("both", 5, 30),))
    bare = play_run(plan, PairingChoice(failover_interval_seconds=0), USD, 1)
    spooled = play_run(plan, PairingChoice(failover_interval_seconds=0, spool=True), USD, 1)
    assert bare.refused == pytest.approx(bare.refused_without_pairing, rel=0.01)
    assert spooled.refused == 0
    assert spooled.spooled == pytest.approx(bare.refused)


@pytest.mark.parametrize("scope", ["entity", "namespace", "both"])
def test_more_outages_than_there_is_time_for_are_one_that_never_ends(
    scope: Literal["entity", "namespace", "both"],
) -> None:
    plan = FleetPlan(entities=2, days=3, outages=(OutageKind(scope, 1000, 2000),))
    run = play_run(plan, PairingChoice(failover_interval_seconds=0), USD, 1)
    assert run.refused_without_pairing == pytest.approx(run.offered)
    assert run.availability_without_pairing == pytest.approx(0)
    assert 0 <= run.availability_without_pairing <= run.availability <= 1


def test_the_forecast_on_spark(spark: SparkSession) -> None:
    runs = simulate(spark, PLAN, day=date(2026, 1, 1))
    rows = {(row["choice"], row["run"]): row for row in runs.collect()}
    assert len(rows) == 80
    expected = play_run(PLAN, PLAN.choices[1], USD, 7)
    assert rows[1, 7]["diverted"] == expected.diverted
    assert rows[1, 7]["amount"] == expected.amount
    at_once, patient = forecast(runs)
    assert at_once["options"]["failover_interval_seconds"] == 0
    assert at_once["availability"]["mean"] == 1.0
    assert patient["availability"]["mean"] < 1.0
    assert patient["availability"]["p5"] <= patient["availability"]["p50"] <= patient["availability"]["p95"]
    assert patient["availability"]["mean"] > patient["availability_without_pairing"]["mean"]
    assert at_once["amount"]["mean"] > at_once["amount_without_pairing"]["mean"]


def test_a_fleet_file_with_a_sweep() -> None:
    plan = parse_fleet(
        """
        clients = 1_000
        messages_per_second = 2
        [pairing]
        failover_interval_seconds = [0, 60]
        ping_interval_seconds = [10, 60, 300]
        spool = true
        [[outages]]
        scope = "both"
        per_30_days = 1
        mean_minutes = 5
        """,
        "fleet.toml",
    )
    assert plan.clients == 1000
    assert plan.outages == (OutageKind("both", 1, 5),)
    assert len(plan.choices) == 6
    assert {(c.failover_interval_seconds, c.ping_interval_seconds) for c in plan.choices} == {
        (a, b) for a in (0, 60) for b in (10, 60, 300)
    }
    assert all(choice.spool for choice in plan.choices)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("clients = 0", "clients is 0: expected a whole number from 1 to 1,000,000"),
        ("clients = 2_000_000", "clients is 2000000"),
        ("clients = 1.5", "clients is 1.5: expected a whole number"),
        ("clients = true", "clients is true: expected a whole number"),
        ("servers = 3", "'servers' is unknown: known are"),
        ("[pairing]\nping_interval_seconds = [0.5]", "ping_interval_seconds is 0.5: expected a number from 1 to 1,800"),
        ("[pairing]\nping_interval_seconds = []", "is an empty list"),
        ("[pairing]\ncolour = 1", "pairing: 'colour' is unknown"),
        ('[[outages]]\nscope = "moon"\nper_30_days = 1\nmean_minutes = 1', "scope 'moon' is unknown"),
        ('[[outages]]\nscope = "both"\nper_30_days = -1\nmean_minutes = 1', "per_30_days is -1: expected"),
        ("clients = ", "is not TOML"),
    ],
)
def test_a_wrong_fleet_is_told_what_is_wrong(text: str, says: str) -> None:
    with pytest.raises(FleetError) as caught:
        parse_fleet(text, "fleet.toml")
    assert says in str(caught.value)
    assert "fleet.toml" in str(caught.value)
