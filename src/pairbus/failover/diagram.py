"""The state diagram and the tables of the documentation, drawn from the data that decides.

`python -m pairbus.failover.diagram` prints docs/reference/states.md.
"""

from __future__ import annotations

import sys

from pairbus.failover.classification import VERDICTS
from pairbus.failover.table import TRANSITIONS, EntityState, Row

_IDS = {
    EntityState.HEALTHY: "healthy",
    EntityState.SUSPECT: "suspect",
    EntityState.FAILED_OVER: "failed_over",
}


def mermaid() -> str:
    """The transitions between different states as a Mermaid state diagram."""
    lines = ["stateDiagram-v2", "    [*] --> healthy"]
    lines += [f"    {_IDS[state]}: {state.value}" for state in EntityState]
    for row in TRANSITIONS:
        if row.state is not row.to:
            lines.append(f"    {_IDS[row.state]} --> {_IDS[row.to]}: {_label(row)}")
    return "\n".join(lines) + "\n"


def page() -> str:
    """The whole reference page."""
    rows = "\n".join(f"| {row.state.value} | {_label(row)} | {row.to.value} | {_actions(row)} |" for row in TRANSITIONS)
    verdicts = "\n".join(
        f"| `{row.class_name}`{_detail(row.condition, row.retryable)} | {row.verdict.value} | {row.why} |"
        for row in VERDICTS
    )
    return f"""# Entity states

Generated from `pairbus/failover/table.py` and `pairbus/failover/classification.py` by
`python -m pairbus.failover.diagram`; a test fails when this page differs from the tables.

```mermaid
{mermaid()}```

## Every transition

| state | what happened | next state | what is done |
|---|---|---|---|
{rows}

"raise the error to the caller" becomes "send this message to the backlog" when `divert_during_interval` is
set. An *era* begins with each recovery: a send that began before it and fails after it says nothing about the
entity now.

## Which errors count

The first row that matches decides; an error that matches no row is raised to the caller and counts for
nothing.

| the error | verdict | why |
|---|---|---|
{verdicts}
"""


def _actions(row: Row) -> str:
    return "; ".join(action.value for action in row.actions) or "–"


def _label(row: Row) -> str:
    return f"{row.event.value}, {row.when.value}" if row.when.value else row.event.value


def _detail(condition: str, retryable: bool | None) -> str:
    if condition:
        return f" with condition `{condition}`"
    return "" if retryable is None else (" that may be retried" if retryable else " that is not retryable")


if __name__ == "__main__":
    sys.stdout.write(page())
