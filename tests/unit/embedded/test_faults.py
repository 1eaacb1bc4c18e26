"""The fault switchboard: which fault holds for whom, and until when."""

from __future__ import annotations

from typing import Any

import pytest

from pairbus.embedded.errors import InvalidError
from pairbus.embedded.faults import Fault, FaultSwitchboard
from pairbus.testing.clock import ManualClock


def switchboard() -> tuple[FaultSwitchboard, ManualClock]:
    clock = ManualClock()
    return FaultSwitchboard(clock), clock


@pytest.mark.parametrize(
    ("path", "covered"),
    [
        ("orders", True),
        ("Orders", True),
        ("orders/$DeadLetterQueue", True),
        ("orders/$management", True),
        ("orders/Subscriptions/all", True),
        ("orders/new", False),
        ("orders2", False),
        ("order", False),
    ],
)
def test_a_fault_covers_its_entity_and_what_belongs_to_it(path: str, covered: bool) -> None:
    faults, _ = switchboard()
    faults.set(Fault("hang", entity="orders"))
    assert (faults.fault_of(path) is not None) == covered


def test_an_entitys_fault_goes_before_the_namespaces() -> None:
    faults, _ = switchboard()
    whole, one = Fault("hang"), Fault("drop", entity="orders")
    faults.set(one)
    faults.set(whole)
    assert faults.fault_of("orders") == one
    assert faults.fault_of("other") == whole
    assert faults.fault_of(None) == whole
    assert set(faults.list()) == {one, whole}
    faults.clear("ORDERS")
    assert faults.fault_of("orders") == whole
    faults.clear()
    assert faults.list() == []


def test_setting_replaces() -> None:
    faults, _ = switchboard()
    faults.set(Fault("hang", entity="orders"))
    faults.set(Fault("drop", entity="Orders"))
    assert faults.list() == [Fault("drop", entity="Orders")]


def test_a_fault_ends_by_itself_and_listeners_are_told() -> None:
    faults, clock = switchboard()
    told: list[int] = []
    faults.listen(lambda: told.append(len(faults.list())))
    faults.set(Fault("hang", until_ms=clock.now_ms() + 5_000))
    assert told == [1]
    clock.advance(4)
    assert faults.fault_of("orders") is not None
    clock.advance(2)
    assert faults.fault_of("orders") is None
    assert told == [1, 0]


def test_a_fault_whose_time_is_over_already_is_not_set() -> None:
    faults, clock = switchboard()
    faults.set(Fault("hang", until_ms=clock.now_ms()))
    assert faults.list() == []


def test_a_throttle_lets_its_rate_through() -> None:
    faults, clock = switchboard()
    fault = Fault("throttle", rate=10.0)
    faults.set(fault)
    passed = sum(faults.lets_through(fault) for _ in range(100))
    assert passed == 10
    clock.advance(0.5)
    assert sum(faults.lets_through(fault) for _ in range(100)) == 5


def test_a_throttle_of_nothing_lets_nothing_through() -> None:
    faults, clock = switchboard()
    fault = Fault("throttle", rate=0.0)
    faults.set(fault)
    clock.advance(100)
    assert not faults.lets_through(fault)


@pytest.mark.parametrize(
    "wrong",
    [
        {"mode": "explode"},
        {"mode": "error"},
        {"mode": "hang", "condition": "amqp:not-found"},
        {"mode": "error", "condition": "nicht erlaubt: ä"},
        {"mode": "throttle"},
        {"mode": "throttle", "rate": -1.0},
        {"mode": "throttle", "rate": float("nan")},
        {"mode": "slow"},
        {"mode": "slow", "delay_ms": -1},
        {"mode": "slow", "delay_ms": 3_600_001},
        {"mode": "drop", "delay_ms": 5},
        {"mode": "drop", "entity": "/"},
    ],
)
def test_faults_that_make_no_sense_are_refused_with_a_sentence(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidError) as refused:
        Fault(**wrong)
    assert refused.value.description.endswith(".")


def test_a_fault_is_shown_without_what_it_does_not_say() -> None:
    assert Fault("slow", entity="orders", delay_ms=5).to_plain() == {"mode": "slow", "entity": "orders", "delay_ms": 5}
