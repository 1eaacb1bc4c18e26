"""PURE. The published state of one process, and the requests that it accepts.

Rules
- A state holds names, numbers and classes of errors, never the text of an error, a connection string or a message.
- Times are seconds since the Unix epoch, UTC.
- Everything is bounded: entities, all reports together, counts, transitions, history, answers.
- Readers ignore unknown fields, and ignore states of a later version.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from pairbus.ledger.records import Operation, Outcome, Route

STATE_VERSION = 1


class RequestedAction(StrEnum):
    FAIL_OVER = "fail over"
    MARK_HEALTHY = "mark healthy"
    PAUSE = "pause syphon"
    RESUME = "resume syphon"


class Ping(msgspec.Struct, frozen=True, omit_defaults=True):
    """The last ping of an entity; `error` is the class of its error."""

    at: float
    delivered: bool
    error: str = ""


class EntityReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """An entity of the primary as one paired client sees it."""

    name: str
    state: str
    since: float
    cause: str = ""
    deadline: float | None = None
    """Suspect: when it fails over. Failed over: when the next ping is due."""
    ping: Ping | None = None


class PairReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """A paired client."""

    key: str
    primary: str
    """The name in the ledger."""
    secondary: str
    primary_name: str
    """The name in the paths of the backlog queues."""
    entities: list[EntityReport]
    backlog_queues: int
    in_rotation: int
    failover_interval: float
    ping_interval: float
    spooled: int | None = None
    faulted: bool = False
    more_entities: int = 0
    """The number of healthy entities that are left out because there are too many."""


class Pausing(msgspec.Struct, frozen=True, omit_defaults=True):
    """A destination that a pump does not send to until a time."""

    destination: str
    until: float
    failures: int


class PumpReport(msgspec.Struct, frozen=True, omit_defaults=True):
    queue: str
    state: str
    in_hand: int = 0
    held: int = 0
    restored: int = 0
    dead_lettered: int = 0
    paused: list[Pausing] = []


class SyphonReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """A running syphon."""

    key: str
    primary: str
    secondary: str
    primary_name: str
    state: str
    pumps: list[PumpReport]


CountKey = tuple[int, str, str, str, Operation, Route | None, Outcome, bool]
"""Day, primary, namespace, target, operation, route, outcome, on a backlog queue."""


class OperationCount(msgspec.Struct, frozen=True, omit_defaults=True):
    """The operations of one kind in one day; equals the sum of the ledger's records of that kind."""

    day: int
    """Days since the Unix epoch, UTC."""
    primary: str
    namespace: str
    target: str
    """The application's entity."""
    operation: Operation
    outcome: Outcome
    operations: int
    billed: int
    route: Route | None = None
    on_backlog: bool = False

    @classmethod
    def of(cls, key: CountKey, operations: int, billed: int) -> OperationCount:
        day, primary, namespace, target, operation, route, outcome, on_backlog = key
        return cls(day, primary, namespace, target, operation, outcome, operations, billed, route, on_backlog)


class Flow(msgspec.Struct, array_like=True, frozen=True):
    """Numbers of messages, by the way they moved."""

    primary: int = 0
    """Accepted by the primary."""
    backlog: int = 0
    """Accepted by a backlog queue instead."""
    spool: int = 0
    """Accepted by the local journal."""
    failed: int = 0
    """Attempts on the primary that failed or had no answer."""
    stored: int = 0
    """Put into backlog queues by senders and journals."""
    home: int = 0
    """Delivered from the backlog to the primary."""
    gone: int = 0
    """Left the backlog queues: delivered, dead-lettered or expired."""


class Moment(msgspec.Struct, array_like=True, frozen=True):
    """The flow of one primary in the `BUCKET_SECONDS` that begin at `bucket * BUCKET_SECONDS`."""

    primary: str
    bucket: int
    flow: Flow


class Speed(msgspec.Struct, frozen=True):
    """Messages per second over the last few seconds; `flow` is the name of a field of `Flow`."""

    primary: str
    flow: str
    per_second: float


class TransitionReport(msgspec.Struct, frozen=True, omit_defaults=True):
    at: float
    primary: str
    entity: str
    before: str
    after: str
    reason: str
    cause: str = ""
    episode: str = ""
    source: str = ""
    """The `key` of the paired client."""


class Answer(msgspec.Struct, frozen=True):
    """The result of a request."""

    request: str
    at: float
    done: bool
    text: str


class Totals(msgspec.Struct, frozen=True):
    """The flow of one primary since the process began."""

    primary: str
    flow: Flow


class ProcessState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    v: int
    process: str
    program: str
    host: str
    pid: int
    started: float
    at: float
    """When this was written; a running process writes every second."""
    ended: bool = False
    pairs: list[PairReport] = []
    syphons: list[SyphonReport] = []
    counts: list[OperationCount] = []
    totals: list[Totals] = []
    history: list[Moment] = []
    speeds: list[Speed] = []
    transitions: list[TransitionReport] = []
    answers: list[Answer] = []
    more_sources: int = 0
    """The number of paired clients and syphons that are left out because there are too many."""


class ControlRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to a process, by a program of the same user."""

    v: int
    id: str
    at: float
    action: RequestedAction
    source: str
    """The `key` of the pair or syphon."""
    entity: str = ""
