"""Counts what the ledger records, as it is recorded: the sums of a day without its lines.

`count` takes the same value as the ledger's `record`, so both agree. It costs one look-up and two additions, cheap
enough for every send.
"""

from __future__ import annotations

import threading
import time

from pairbus.costs.billing import UNIT_BYTES, billed_operations
from pairbus.ledger.records import CompletedOperation, is_backlog_queue
from pairbus.publishing.flows import DAY_SECONDS, flows_of
from pairbus.publishing.records import Count, Flow, Kind

MOST_KINDS = 2_000
OTHERS = "(others)"


class Tally:
    """The counts of one process. `day` and the day before are kept; older ones only in the totals."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[Kind, list[int]] = {}
        self._earlier: dict[str, list[int]] = {}

    def count(self, primary: str, completed: CompletedOperation) -> None:
        """Count an operation of a pair that has this primary."""
        messages, sizes = len(completed.message_ids), completed.sizes
        if not messages:
            return
        operation, outcome = completed.operation, completed.outcome
        if sizes is None or max(sizes) <= UNIT_BYTES:  # nearly always
            billed = messages * billed_operations(operation, 0, outcome)
        else:
            billed = sum(billed_operations(operation, size, outcome) for size in sizes)
        kind = (
            int(time.time()) // DAY_SECONDS,
            primary,
            completed.namespace,
            completed.target,
            operation,
            completed.route,
            outcome,
            is_backlog_queue(completed.entity),
        )
        with self._lock:
            found = self._counts.get(kind)
            if found is None:
                if len(self._counts) >= MOST_KINDS:
                    kind = (*kind[:3], OTHERS, *kind[4:])
                found = self._counts.setdefault(kind, [0, 0])
            found[0] += messages
            found[1] += billed

    def rows(self, day: int) -> list[Count]:
        """The counts of `day` and the day before; what is older is forgotten but for the totals."""
        with self._lock:
            for kind in [kind for kind in self._counts if kind[0] < day - 1]:
                operations, _ = self._counts.pop(kind)
                _add(self._earlier, kind, operations)
            return [Count.of(kind, operations, billed) for kind, (operations, billed) in self._counts.items()]

    def totals(self) -> dict[str, Flow]:
        """What has moved since the beginning, by primary."""
        with self._lock:
            sums = {primary: list(flow) for primary, flow in self._earlier.items()}
            for kind, (operations, _) in self._counts.items():
                _add(sums, kind, operations)
        return {primary: Flow(*flow) for primary, flow in sums.items()}


def _add(sums: dict[str, list[int]], kind: Kind, operations: int) -> None:
    _, primary, _, _, operation, route, outcome, on_backlog = kind
    flow = sums.setdefault(primary, [0] * len(Flow.__struct_fields__))
    for name in flows_of(operation, route, outcome, on_backlog):
        flow[Flow.__struct_fields__.index(name)] += operations
