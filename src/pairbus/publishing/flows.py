"""Which way messages went, told from operations as the ledger names them. PURE."""

from __future__ import annotations

from pairbus.ledger.records import Operation, Outcome, Route

DAY_SECONDS = 86_400
_ACCEPTED = (Operation.SEND, Operation.SCHEDULE)
_LEAVES = (Operation.COMPLETE, Operation.DEAD_LETTER, Operation.EXPIRE)


def flows_of(operation: Operation, route: Route | None, outcome: Outcome, on_backlog: bool) -> tuple[str, ...]:
    """Which fields of `Flow` an operation adds to. What counts as accepted is the tables' rule for availability."""
    if outcome is not Outcome.OK:
        return ("failed",) if operation in _ACCEPTED and route is Route.PRIMARY else ()
    if operation in _ACCEPTED:
        return ("primary",) if route is Route.PRIMARY else ()
    if operation is Operation.DIVERT:
        return ("backlog", "stored") if route is Route.BACKLOG else ("stored",)
    if operation is Operation.SPOOL:
        return ("spool",)
    if operation is Operation.RESTORE:
        return ("home",)
    return ("gone",) if on_backlog and operation in _LEAVES else ()
