"""Write docs/reference/states.md: the state diagram and the tables of failover, drawn from the data that decides.

A test fails when the page differs from the tables.
"""

from __future__ import annotations

from pathlib import Path

from pairbus.amqp.conditions import CONDITIONS
from pairbus.failover.classification import VERDICTS, VerdictRow
from pairbus.failover.states import TRANSITIONS, EntityState, TransitionRow

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "states.md"


def mermaid() -> str:
    """The transitions between different states as a Mermaid state diagram."""
    lines = ["stateDiagram-v2", "    [*] --> healthy"]
    lines += [f"    {_id(state)}: {state.value}" for state in EntityState]
    lines += [
        f"    {_id(row.state)} --> {_id(row.to)}: {_label(row)}" for row in TRANSITIONS if row.state is not row.to
    ]
    return "\n".join(lines) + "\n"


def page() -> str:
    transitions = "\n".join(
        f"| {row.state.value} | {_label(row)} | {row.to.value} | {row.action.value if row.action else '–'} |"
        for row in TRANSITIONS
    )
    verdicts = "\n".join(f"| {_error(row)} | {row.verdict.value} | {row.why} |" for row in VERDICTS)
    return f"""# Entity states

Generated from `pairbus/failover/states.py` and `pairbus/failover/classification.py` by
`scripts/generate_states_reference.py`; a test fails when this page differs from the tables.

```mermaid
{mermaid()}```

## Every transition

| state | event | next state | action |
|---|---|---|---|
{transitions}

"raise the error to the caller" becomes "send this message to the backlog" when `divert_during_interval` is set. Each
recovery begins a new *era*: a send that began in an earlier era and fails now says nothing about the entity. A suspect
entity fails over when its deadline, the end of `failover_interval`, passes; a failed-over one sends a ping at each
deadline, every `ping_primary_interval`.

## Which errors count

The first row that matches decides. An error that matches no row is raised to the caller and does not count.

| error | verdict | why |
|---|---|---|
{verdicts}
"""


def _id(state: EntityState) -> str:
    return state.name.lower()


def _label(row: TransitionRow) -> str:
    return f"{row.event.value}, {row.when.value}" if row.when.value else row.event.value


def _error(row: VerdictRow) -> str:
    if row.condition:
        return f"`{row.class_name}` with condition `{row.condition}`"
    if row.blame is not None:
        conditions = [f"`{name}`" for name, meaning in CONDITIONS.items() if meaning.blame is row.blame]
        return f"`{row.class_name}` with condition {', '.join(conditions[:-1])} or {conditions[-1]}"
    if row.least_status:
        return f"`{row.class_name}` with a status of {row.least_status} or more"
    retryable = {None: "", True: " that is retryable", False: " that is not retryable"}[row.retryable]
    return f"`{row.class_name}`{retryable}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
