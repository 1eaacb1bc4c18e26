"""How each operation is billed, whether the pairing caused it, and which flows it belongs to. PURE.

`RULES` is the only place that states this. The published tally and the dashboard look rules up with `rule_for`; the
tables compile the same rows to Spark columns (`pairbus.pipeline.silver.rule_column`).

An operation on a message is billed once for each started 64 KB. Pings, cancellations and administration are billed
once. A settlement belongs to its receive. An operation that the namespace refused is free; one without an answer may
have happened and is billed. A message that travels through a backlog is therefore billed four operations for each
64 KB: `divert`, `receive` from the backlog, `restore`, `receive` from the primary.

A send or divert is accepted from the application unless its route is the spool: then the journal accepted it before.
A record without a route is not from the spool. The audit, the availability and the dashboard share this rule.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from pairbus.ledger.records import Operation, Outcome, Route

UNIT_BYTES = 64 * 1024
TRANSIT_OPERATIONS = 4
"""Operations for a message of one unit on its way through a backlog, including the application's own receive."""


class Billing(StrEnum):
    PER_UNIT = "per started 64 KB"
    ONCE = "once"
    NEVER = "never"


class FlowName(StrEnum):
    """A movement of messages. The published `Flow` has a field for most of them."""

    PRIMARY = "primary"  # accepted from the application by the primary
    BACKLOG = "backlog"  # accepted from the application by a backlog queue
    SPOOL = "spool"  # accepted from the application by the local journal
    FAILED = "failed"  # a send to the primary that failed or had no answer
    STORED = "stored"  # put into a backlog queue, by a sender or from a journal
    HOME = "home"  # taken by the primary on its way out of the backlog
    GONE = "gone"  # left a backlog queue: home, dead-lettered or expired
    FORWARDED = "forwarded"  # taken by the primary from a journal
    FORWARD_FAILED = "forward failed"  # a send from a journal to the primary that failed or had no answer
    RESUBMITTED = "resubmitted"  # back in a backlog queue, from its dead-letter queue


ACCEPTED = frozenset({FlowName.PRIMARY, FlowName.BACKLOG, FlowName.SPOOL})
"""The flows by which a message is accepted from the application."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A row of the table. It applies to the outcomes, places and origins that it names; None means any."""

    billing: Billing
    cause: str | None = None
    """Why the pairing caused the operation; None if the application did."""
    flows: tuple[FlowName, ...] = ()
    outcome: Outcome | None = None
    on_backlog: bool | None = None
    from_spool: bool | None = None

    def applies(self, outcome: Outcome, *, on_backlog: bool, from_spool: bool) -> bool:
        return (
            self.outcome in (None, outcome)
            and self.on_backlog in (None, on_backlog)
            and self.from_spool in (None, from_spool)
        )


DIVERTED, IDLE, PINGS, CREATION = "diverted messages", "idle receives", "pings", "creation"

_SEND = (
    Rule(Billing.PER_UNIT, None, (FlowName.PRIMARY,), outcome=Outcome.OK, from_spool=False),
    Rule(Billing.PER_UNIT, None, (FlowName.FORWARDED,), outcome=Outcome.OK),
    Rule(Billing.PER_UNIT, None, (FlowName.FAILED,), from_spool=False),
    Rule(Billing.PER_UNIT, None, (FlowName.FORWARD_FAILED,)),
)
_RECEIVE = (
    Rule(Billing.PER_UNIT, IDLE, outcome=Outcome.EMPTY, on_backlog=True),
    Rule(Billing.PER_UNIT, DIVERTED, on_backlog=True),
    Rule(Billing.PER_UNIT),
)
_LEAVE = (Rule(Billing.NEVER, None, (FlowName.GONE,), outcome=Outcome.OK, on_backlog=True), Rule(Billing.NEVER))
_FREE = (Rule(Billing.NEVER),)

RULES: Mapping[Operation, tuple[Rule, ...]] = {
    Operation.SEND: _SEND,
    Operation.SCHEDULE: _SEND,
    Operation.DIVERT: (
        Rule(Billing.PER_UNIT, DIVERTED, (FlowName.BACKLOG, FlowName.STORED), outcome=Outcome.OK, from_spool=False),
        Rule(Billing.PER_UNIT, DIVERTED, (FlowName.STORED,), outcome=Outcome.OK),
        Rule(Billing.PER_UNIT, DIVERTED),
    ),
    Operation.RESTORE: (
        Rule(Billing.PER_UNIT, DIVERTED, (FlowName.HOME,), outcome=Outcome.OK),
        Rule(Billing.PER_UNIT, DIVERTED),
    ),
    Operation.RESUBMIT: (
        Rule(Billing.PER_UNIT, DIVERTED, (FlowName.RESUBMITTED,), outcome=Outcome.OK),
        Rule(Billing.PER_UNIT, DIVERTED),
    ),
    Operation.RECEIVE: _RECEIVE,
    Operation.PEEK: _RECEIVE,
    Operation.PING: (Rule(Billing.ONCE, PINGS),),
    Operation.CANCEL: (Rule(Billing.ONCE),),
    Operation.CREATE: (Rule(Billing.ONCE, CREATION, on_backlog=True), Rule(Billing.ONCE)),
    Operation.COMPLETE: _LEAVE,
    Operation.DEAD_LETTER: _LEAVE,
    Operation.EXPIRE: _LEAVE,
    Operation.ABANDON: _FREE,
    Operation.DEFER: _FREE,
    Operation.SPOOL: (Rule(Billing.NEVER, None, (FlowName.SPOOL,), outcome=Outcome.OK), Rule(Billing.NEVER)),
    Operation.TRANSITION: _FREE,
    Operation.OPEN: _FREE,
    Operation.CLOSE: _FREE,
    Operation.GAP: _FREE,
}
"""For each operation the rows in order: the first that applies holds, and the last applies always."""

_RULE_OF = {
    (operation, outcome, on_backlog, from_spool): next(
        rule for rule in rules if rule.applies(outcome, on_backlog=on_backlog, from_spool=from_spool)
    )
    for operation, rules in RULES.items()
    for outcome, on_backlog, from_spool in itertools.product(Outcome, (False, True), (False, True))
}


def rule_for(
    operation: Operation, outcome: Outcome = Outcome.OK, *, route: Route | None = None, on_backlog: bool = False
) -> Rule:
    """The row of the table that holds for an operation. Without a route it did not come from a journal."""
    return _RULE_OF[operation, outcome, on_backlog, route is Route.SPOOL]


def units(size_bytes: int) -> int:
    """The started units of 64 KB; an empty message has one."""
    if size_bytes < 0:
        raise ValueError(f"The message size is {size_bytes} bytes. Give 0 or more.")
    return max(1, -(-size_bytes // UNIT_BYTES))


def billed_operations(operation: Operation, size_bytes: int = 0, outcome: Outcome = Outcome.OK) -> int:
    """The number of operations that are billed for one record."""
    if outcome is Outcome.FAILED:
        return 0
    billing = rule_for(operation, outcome).billing
    if billing is Billing.PER_UNIT:
        return units(size_bytes)
    return 1 if billing is Billing.ONCE else 0
