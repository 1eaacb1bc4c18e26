"""The transition table is complete, unambiguous, and what the documentation shows."""

from __future__ import annotations

import runpy
from collections import Counter
from itertools import product
from pathlib import Path

import pytest

from pairbus.failover.classification import ErrorDescription, Verdict, verdict
from pairbus.failover.rotation import Rotation
from pairbus.failover.states import (
    TRANSITIONS,
    Action,
    EntityMachine,
    EntityState,
    Event,
    EventKind,
    FailoverRules,
    When,
)

ROOT = Path(__file__).parents[3]
MINUTE = 60.0
PATIENT = FailoverRules(failover_interval=MINUTE, ping_interval=MINUTE)
AT_ONCE = FailoverRules(failover_interval=0, ping_interval=MINUTE)

# Pings exist only while failed over, and a healthy entity has no deadline.
IMPOSSIBLE = {
    (EntityState.HEALTHY, EventKind.DEADLINE),
    *product((EntityState.HEALTHY, EntityState.SUSPECT), (EventKind.PING_SUCCEEDED, EventKind.PING_FAILED)),
}


def failed(cause: str = "ServiceBusConnectionError", era: int | None = None) -> Event:
    return Event(EventKind.SEND_FAILED, cause, era)


def state_of(entity: EntityMachine) -> EntityState:
    """The state now: a type checker would remember the last one asserted."""
    return entity.state


def test_every_possible_state_and_event_has_exactly_one_row_per_condition() -> None:
    rows = Counter((row.state, row.event, row.when) for row in TRANSITIONS)
    assert set(rows.values()) == {1}
    for state, kind in product(EntityState, EventKind):
        conditions = {row.when for row in TRANSITIONS if (row.state, row.event) == (state, kind)}
        if (state, kind) in IMPOSSIBLE:
            assert not conditions
        else:
            assert conditions in (
                {When.ALWAYS},
                {When.AT_ONCE, When.PATIENT},
                {When.ENOUGH, When.NOT_ENOUGH},
            )


def test_the_page_of_the_documentation_is_generated_from_the_table() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "generate_states_reference.py"))
    page = (ROOT / "docs" / "reference" / "states.md").read_text(encoding="utf-8")
    assert page == script["page"](), "run scripts/generate_states_reference.py"


def test_an_interval_of_zero_fails_over_and_diverts_the_very_send() -> None:
    entity = EntityMachine(AT_ONCE)
    decision = entity.handle(failed(), 100.0)
    assert entity.state is EntityState.FAILED_OVER
    assert decision.divert
    assert not entity.route_to_primary
    assert entity.next_deadline == 160.0


def test_a_suspect_entity_raises_and_fails_over_by_itself() -> None:
    entity = EntityMachine(PATIENT)
    assert entity.handle(failed(), 0.0).action is Action.RAISE
    assert state_of(entity) is EntityState.SUSPECT
    assert entity.route_to_primary
    assert entity.next_deadline == MINUTE
    assert entity.handle(Event(EventKind.DEADLINE), 59.9).transitions == ()
    decision = entity.handle(Event(EventKind.DEADLINE), MINUTE)
    assert state_of(entity) is EntityState.FAILED_OVER
    assert [change.cause for change in decision.transitions] == ["ServiceBusConnectionError"]


def test_a_send_that_fails_after_the_interval_finds_the_entity_failed_over_and_is_diverted() -> None:
    entity = EntityMachine(PATIENT)
    entity.handle(failed(), 0.0)
    decision = entity.handle(failed(), 61.0)
    assert entity.state is EntityState.FAILED_OVER
    assert decision.divert
    assert entity.next_deadline == 61.0 + MINUTE


def test_one_success_clears_a_suspicion() -> None:
    entity = EntityMachine(PATIENT)
    entity.handle(failed(), 0.0)
    entity.handle(Event(EventKind.SEND_SUCCEEDED), 30.0)
    assert entity.state is EntityState.HEALTHY
    assert entity.next_deadline is None


def test_with_divert_during_interval_a_suspect_entity_diverts_what_failed() -> None:
    entity = EntityMachine(FailoverRules(MINUTE, MINUTE, divert_during_interval=True))
    assert entity.handle(failed(), 0.0).divert
    assert entity.handle(failed(), 1.0).divert
    assert entity.state is EntityState.SUSPECT


def test_pings_come_every_interval_and_the_last_one_heals() -> None:
    entity = EntityMachine(FailoverRules(0, 10.0, recovery_pings=2))
    entity.handle(failed(), 0.0)
    times = []
    for outcome in (
        EventKind.PING_FAILED,
        EventKind.PING_SUCCEEDED,
        EventKind.PING_FAILED,
        EventKind.PING_SUCCEEDED,
        EventKind.PING_SUCCEEDED,
    ):
        due = entity.next_deadline
        assert due is not None
        times.append(due)
        assert entity.handle(Event(EventKind.DEADLINE), due).action is Action.SEND_PING
        assert entity.next_deadline is None  # not two pings at once
        entity.handle(Event(outcome, "ping", entity.era), due + 1)
    assert times == [10.0, 20.0, 30.0, 40.0, 50.0]
    assert entity.state is EntityState.HEALTHY


def test_a_ping_of_an_earlier_outage_does_not_heal_a_later_one() -> None:
    entity = EntityMachine(AT_ONCE)
    entity.handle(failed(), 0.0)
    entity.handle(Event(EventKind.DEADLINE), 60.0)
    earlier = entity.era
    entity.handle(Event(EventKind.MARK_HEALTHY), 61.0)
    entity.handle(Event(EventKind.FAIL_OVER), 62.0)
    entity.handle(Event(EventKind.PING_SUCCEEDED, "ping", earlier), 63.0)
    assert state_of(entity) is EntityState.FAILED_OVER
    entity.handle(Event(EventKind.DEADLINE), 122.0)
    entity.handle(Event(EventKind.PING_SUCCEEDED, "ping", earlier), 123.0)
    assert state_of(entity) is EntityState.FAILED_OVER
    entity.handle(Event(EventKind.PING_SUCCEEDED, "ping", entity.era), 124.0)
    assert state_of(entity) is EntityState.HEALTHY


def test_a_failure_of_an_earlier_era_is_diverted_and_changes_nothing() -> None:
    entity = EntityMachine(AT_ONCE)
    era = entity.era
    entity.handle(failed(era=era), 0.0)
    entity.handle(Event(EventKind.MARK_HEALTHY), 1.0)
    decision = entity.handle(failed(era=era), 2.0)
    assert decision.divert
    assert entity.state is EntityState.HEALTHY


def test_a_late_success_does_not_heal_a_failed_over_entity() -> None:
    entity = EntityMachine(AT_ONCE)
    entity.handle(failed(), 0.0)
    entity.handle(Event(EventKind.SEND_SUCCEEDED, era=entity.era), 1.0)
    assert entity.state is EntityState.FAILED_OVER


@pytest.mark.parametrize(
    ("names", "condition", "retryable", "expected"),
    [
        ("ServiceBusConnectionError ServiceBusError", "", True, Verdict.COUNTS),
        ("ServiceBusCommunicationError ServiceBusError", "", True, Verdict.COUNTS),
        ("OperationTimeoutError ServiceBusError", "", True, Verdict.COUNTS),
        ("TimeoutError OSError", "", False, Verdict.COUNTS),
        ("ServiceBusError", "amqp:internal-error", True, Verdict.COUNTS),
        ("MessagingEntityDisabledError ServiceBusError", "", True, Verdict.COUNTS),
        ("ServiceBusQuotaExceededError ServiceBusError", "", False, Verdict.COUNTS),
        ("ServiceBusError", "amqp:not-implemented", False, Verdict.COUNTS),
        ("ServiceBusError", "something:transient", True, Verdict.DOES_NOT_COUNT),
        ("ServiceBusServerBusyError ServiceBusError", "com.microsoft:server-busy", True, Verdict.BUSY),
        ("ServiceBusAuthenticationError ServiceBusError", "", True, Verdict.DOES_NOT_COUNT),
        ("ServiceBusAuthorizationError ServiceBusError", "", True, Verdict.DOES_NOT_COUNT),
        ("ClientAuthenticationError HttpResponseError AzureError", "", False, Verdict.DOES_NOT_COUNT),
        ("MessagingEntityNotFoundError ServiceBusError", "", False, Verdict.DOES_NOT_COUNT),
        ("MessageSizeExceededError ServiceBusError ValueError", "", False, Verdict.DOES_NOT_COUNT),
        ("ServiceBusError", "com.microsoft:argument-error", False, Verdict.DOES_NOT_COUNT),
        ("ServiceBusError", "amqp:not-allowed", False, Verdict.DOES_NOT_COUNT),
        ("ServiceBusError", "amqp:decode-error", False, Verdict.DOES_NOT_COUNT),
        ("ServiceBusError", "amqp:link:message-size-exceeded", False, Verdict.DOES_NOT_COUNT),
        ("ServiceBusError", "com.microsoft:argument-out-of-range", False, Verdict.DOES_NOT_COUNT),
        ("ValueError", "", False, Verdict.DOES_NOT_COUNT),
        ("TypeError", "", False, Verdict.DOES_NOT_COUNT),
    ],
)
def test_which_errors_count(names: str, condition: str, retryable: bool, expected: Verdict) -> None:
    assert verdict(ErrorDescription(frozenset(names.split()), condition, retryable)) is expected


def test_a_pulled_queue_rests_for_all_and_comes_back() -> None:
    rotation = Rotation(["q/0", "q/1"], rest_seconds=60)
    assert rotation.pull("q/0", 0.0)
    assert not rotation.pull("q/0", 1.0)
    assert {rotation.pick(fraction, 2.0) for fraction in (0.0, 0.5, 0.99)} == {"q/1"}
    assert rotation.pick(0.0, 2.0, without={"q/1"}) is None
    assert (rotation.has_other("q/0", 2.0), rotation.has_other("q/1", 2.0)) == (True, False)
    assert rotation.next_return(2.0) == 61.0
    assert rotation.in_rotation(61.0) == ("q/0", "q/1")
    assert rotation.put_back("q/0")
    assert not rotation.put_back("q/0")


def test_queues_that_are_all_pulled_are_tried_early_one_per_send_and_ever_less_often() -> None:
    rotation = Rotation(["q/0", "q/1"], rest_seconds=60)
    rotation.pull("q/0", 0.0)
    rotation.pull("q/1", 0.0)
    assert rotation.pick(0.0, 0.9) is None
    assert rotation.next_return(0.0) == 1.0
    assert rotation.pick(0.0, 1.0) == "q/0"
    assert rotation.pick(0.0, 1.0, without={"q/0"}) is None
    rotation.pull("q/0", 1.0)
    rotation.pull("q/1", 1.0)  # as a spool does that finds the whole namespace gone
    assert rotation.pick(0.0, 2.9) is None
    assert rotation.pick(0.0, 3.0) == "q/0"
    assert rotation.in_rotation(3.0) == ()
    rotation.put_back("q/0")
    assert rotation.pick(0.9, 3.0) == "q/0"


def test_a_probe_that_is_neither_taken_nor_pulled_is_not_repeated_at_once() -> None:
    """A busy secondary refuses probes without pulling a queue: the pauses must grow all the same."""
    rotation = Rotation(["q/0", "q/1"], rest_seconds=60)
    for queue in rotation.queues:
        rotation.pull(queue, 0.0)
    probes = [now / 10 for now in range(600) if rotation.pick(0.0, now / 10) is not None]
    assert probes == [1.0, 3.0, 7.0, 15.0, 31.0]
    assert rotation.next_return(32.0) == 60.0
