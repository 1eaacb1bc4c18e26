"""How the driver deals backlog queues to tasks, and which sessions it refuses."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pairbus.pipeline.spark_syphon import check_settings, deal


def test_deep_queues_are_spread_and_empty_ones_left_out() -> None:
    assert deal({"a": 5, "b": 90, "c": 0, "d": 40, "e": 50}, 2) == [("b", "a"), ("e", "d")]
    assert deal({"a": 1, "b": 2}, 8) == [("b",), ("a",)]
    assert deal({"a": 0}, 2) == []
    assert deal({}, 2) == []


@settings(deadline=None, print_blob=True)
@given(st.lists(st.integers(0, 1000), max_size=30), st.integers(1, 8))
def test_every_waiting_queue_has_one_task_and_no_task_has_much_more_than_another(depths: list[int], slots: int) -> None:
    by_name = {f"q{number}": depth for number, depth in enumerate(depths)}
    tasks = deal(by_name, slots)
    assert sorted(queue for task in tasks for queue in task) == sorted(name for name in by_name if by_name[name])
    assert all(tasks)
    assert len(tasks) <= slots
    loads = [sum(by_name[queue] for queue in task) for task in tasks]
    # Whoever has more has it because of the last queue it got, which found it lightest.
    assert all(load - by_name[task[-1]] <= min(loads) for load, task in zip(loads, tasks, strict=True))


def test_a_session_that_runs_tasks_twice_is_refused() -> None:
    with pytest.raises(ValueError, match=r"spark\.speculation is true; expected false"):
        check_settings({"spark.speculation": "true"}.get)
    check_settings({"spark.speculation": "false"}.get)
    unset: dict[str, str] = {}
    check_settings(unset.get)
