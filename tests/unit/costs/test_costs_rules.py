"""The rule table: the cause and the flows of an operation."""

from __future__ import annotations

import pytest

from pairbus.costs import RULES, FlowName, rule_for
from pairbus.ledger import Operation, Outcome, Route
from pairbus.publishing.records import Flow


@pytest.mark.parametrize(
    ("operation", "outcome", "on_backlog", "cause"),
    [
        (Operation.RECEIVE, Outcome.OK, True, "diverted messages"),
        (Operation.RECEIVE, Outcome.EMPTY, True, "idle receives"),
        (Operation.RECEIVE, Outcome.OK, False, None),
        (Operation.PEEK, Outcome.OK, True, "diverted messages"),
        (Operation.PEEK, Outcome.EMPTY, True, "idle receives"),
        (Operation.PEEK, Outcome.OK, False, None),
        (Operation.DIVERT, Outcome.OK, True, "diverted messages"),
        (Operation.PING, Outcome.OK, False, "pings"),
        (Operation.SEND, Outcome.OK, False, None),
    ],
)
def test_each_operation_has_its_cause(
    operation: Operation, outcome: Outcome, on_backlog: bool, cause: str | None
) -> None:
    assert rule_for(operation, outcome, on_backlog=on_backlog).cause == cause


@pytest.mark.parametrize(
    ("operation", "route", "outcome", "on_backlog", "flows"),
    [
        (Operation.SEND, Route.PRIMARY, Outcome.OK, False, {"primary"}),
        (Operation.SEND, None, Outcome.OK, False, {"primary"}),
        (Operation.SEND, Route.SPOOL, Outcome.OK, False, {"forwarded"}),
        (Operation.SCHEDULE, Route.PRIMARY, Outcome.UNKNOWN, False, {"failed"}),
        (Operation.SEND, Route.SPOOL, Outcome.FAILED, False, {"forward failed"}),
        (Operation.DIVERT, Route.BACKLOG, Outcome.OK, True, {"backlog", "stored"}),
        (Operation.DIVERT, None, Outcome.OK, True, {"backlog", "stored"}),
        (Operation.DIVERT, Route.SPOOL, Outcome.OK, True, {"stored"}),
        (Operation.DIVERT, Route.BACKLOG, Outcome.FAILED, True, set()),
        (Operation.SPOOL, Route.SPOOL, Outcome.OK, False, {"spool"}),
        (Operation.RESTORE, Route.SYPHON, Outcome.OK, False, {"home"}),
        (Operation.RESUBMIT, Route.SYPHON, Outcome.OK, True, {"resubmitted"}),
        (Operation.COMPLETE, Route.SYPHON, Outcome.OK, True, {"gone"}),
        (Operation.EXPIRE, Route.SYPHON, Outcome.OK, True, {"gone"}),
        (Operation.COMPLETE, None, Outcome.OK, False, set()),
    ],
)
def test_each_operation_has_its_flows(
    operation: Operation, route: Route | None, outcome: Outcome, on_backlog: bool, flows: set[str]
) -> None:
    assert set(rule_for(operation, outcome, route=route, on_backlog=on_backlog).flows) == flows


def test_every_operation_has_a_rule_and_its_last_row_always_applies() -> None:
    assert set(RULES) == set(Operation)
    for rules in RULES.values():
        assert (rules[-1].outcome, rules[-1].on_backlog, rules[-1].from_spool) == (None, None, None)


def test_the_published_flow_has_no_field_that_the_rules_do_not_know() -> None:
    assert set(Flow.__struct_fields__) <= set(FlowName)
