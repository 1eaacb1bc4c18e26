"""What the dashboard puts down to the pairing, by the rule of the tables."""

from __future__ import annotations

import pytest

from pairbus.dashboard.money import pairing_cause
from pairbus.ledger import Operation, Outcome
from pairbus.publishing.records import OperationCount


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
    count = OperationCount(20_000, "contoso", "fabrikam", "orders", operation, outcome, 1, 1, on_backlog=on_backlog)
    assert pairing_cause(count) == cause
