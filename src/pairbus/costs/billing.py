"""How many operations are billed for what was done. PURE.

An operation on a message is billed once per started 64 KB; pings, empty receives and administration are
billed once; settling a message belongs to its receive, and what a namespace refused costs nothing. A message
that travels through a backlog is therefore billed four operations, per 64 KB: `divert`, `receive` from the
backlog, `restore`, `receive` from the primary.
"""

from __future__ import annotations

from pairbus.ledger.records import Operation, Outcome

UNIT_BYTES = 64 * 1024
TRANSIT_OPERATIONS = 4
"""Operations for one message of one unit on its way through a backlog, the receiver's own included."""

BILLED_PER_UNIT = frozenset(
    {
        Operation.SEND,
        Operation.DIVERT,
        Operation.RESTORE,
        Operation.RESUBMIT,
        Operation.SCHEDULE,
        Operation.RECEIVE,
        Operation.PEEK,
    }
)
BILLED_ONCE = frozenset({Operation.PING, Operation.CANCEL, Operation.CREATE})


def units(size_bytes: int) -> int:
    """Started units of 64 KB; an empty message is one."""
    if size_bytes < 0:
        raise ValueError(f"A message of {size_bytes} bytes cannot be; give 0 or more.")
    return max(1, -(-size_bytes // UNIT_BYTES))


def billed_operations(operation: Operation, size_bytes: int = 0, outcome: Outcome = Outcome.OK) -> int:
    """What one record is billed. An operation without an answer may have been done and counts as done."""
    if outcome is Outcome.FAILED:
        return 0
    if operation in BILLED_PER_UNIT:
        return units(size_bytes)
    return 1 if operation in BILLED_ONCE else 0
