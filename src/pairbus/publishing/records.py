"""The published state of one process, and the requests that it takes.

Rules
- Names, numbers and classes of errors: never an error's text, a connection string or a message.
- Times are seconds since the Unix epoch, UTC.
- Everything is bounded: entities, all descriptions together, counts, transitions, history, answers.
- Readers take fields they do not know for nothing, and a version above theirs for something they must not guess at.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from pairbus.ledger.records import Operation, Outcome, Route

STATE_VERSION = 1


class Action(StrEnum):
    """What a process can be asked to do."""

    FAIL_OVER = "fail over"
    MARK_HEALTHY = "mark healthy"
    PAUSE = "pause syphon"
    RESUME = "resume syphon"


class Ping(msgspec.Struct, frozen=True, omit_defaults=True):
    """The last ping of an entity; `error` is the class of what it met."""

    at: float
    delivered: bool
    error: str = ""


class EntityReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """One entity of the primary as one paired client sees it."""

    name: str
    state: str
    since: float
    cause: str = ""
    deadline: float | None = None
    """Suspect: when it will be failed over. Failed over: when the next ping is due."""
    ping: Ping | None = None


class PairReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """One paired client."""

    key: str
    primary: str
    """As the ledger calls it."""
    secondary: str
    primary_name: str
    """As the backlog queues' paths call it."""
    entities: list[EntityReport]
    backlog_queues: int
    in_rotation: int
    failover_interval: float
    ping_interval: float
    spooled: int | None = None
    faulted: bool = False
    more_entities: int = 0
    """Healthy ones that are not named: too many."""


class Pausing(msgspec.Struct, frozen=True, omit_defaults=True):
    """A destination that a pump leaves alone until a time."""

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
    """One running syphon."""

    key: str
    primary: str
    secondary: str
    primary_name: str
    state: str
    pumps: list[PumpReport]


Kind = tuple[int, str, str, str, Operation, Route | None, Outcome, bool]
"""Day, primary, namespace, target, operation, route, outcome, on a backlog queue."""


class Count(msgspec.Struct, frozen=True, omit_defaults=True):
    """Operations of one kind in one day: what the ledger's records of that kind would add up to."""

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
    def of(cls, kind: Kind, operations: int, billed: int) -> Count:
        day, primary, namespace, target, operation, route, outcome, on_backlog = kind
        return cls(day, primary, namespace, target, operation, outcome, operations, billed, route, on_backlog)


class Flow(msgspec.Struct, array_like=True, frozen=True):
    """What moved, in messages. The fields are those of one row of history."""

    primary: int = 0
    """Accepted by the primary."""
    backlog: int = 0
    """Accepted by a backlog queue instead."""
    spool: int = 0
    """Accepted by the local journal."""
    failed: int = 0
    """Attempts on the primary that failed or had no answer."""
    stored: int = 0
    """Put into backlog queues, from senders and journals."""
    home: int = 0
    """Taken by the primary on their way out of the backlog."""
    gone: int = 0
    """Left the backlog queues: home, dead-lettered or expired."""


class Moment(msgspec.Struct, array_like=True, frozen=True):
    """What moved for one primary in the `BUCKET_SECONDS` that begin at `bucket * BUCKET_SECONDS`."""

    primary: str
    bucket: int
    flow: Flow


class Speed(msgspec.Struct, frozen=True):
    """Messages a second, over the last few seconds; `flow` names one of the fields of `Flow`."""

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
    """What became of a request."""

    request: str
    at: float
    done: bool
    text: str


class Totals(msgspec.Struct, frozen=True):
    """All that moved for one primary since the process began."""

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
    """When this was written: a living process writes every second."""
    ended: bool = False
    pairs: list[PairReport] = []
    syphons: list[SyphonReport] = []
    counts: list[Count] = []
    totals: list[Totals] = []
    history: list[Moment] = []
    speeds: list[Speed] = []
    transitions: list[TransitionReport] = []
    answers: list[Answer] = []
    more_sources: int = 0
    """Paired clients and syphons that are not described: too many."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """Something a process is asked to do, by a program of the same user."""

    v: int
    id: str
    at: float
    action: Action
    source: str
    """The `key` of the pair or syphon it is for."""
    entity: str = ""
