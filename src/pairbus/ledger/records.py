"""The ledger's records, one line each, and the value that is recorded.

A record is one operation of one process on one namespace, or a change of an entity's state, or a statement of the
ledger about itself. Every writer keeps these rules and every reader may rely on them:

- (`process`, `n`) identifies a record for ever, so readers can detect duplicates. `n` grows within a process and orders
  records of the same microsecond; it may have gaps.
- One record per *message*, not per call: a batch of 100 is 100 records with the same latency.
- `namespace` and `entity` say where the operation took place, and so where it is billed. If that entity is a backlog
  queue, `destination` is the application's entity; if a message came out of a backlog queue, `source` is that queue.
- Unknown values are left out. Readers ignore fields they do not know, and reject records of a version above theirs.

What proves what (the audit rests on this table):

| the record | proves |
|---|---|
| `send`, ok, route primary | accepted from the application, and taken by the primary |
| `divert`, ok, route backlog | accepted from the application, waits in the backlog queue `entity` |
| `spool`, ok | accepted from the application, waits in the process's journal |
| `divert` / `send`, ok, route spool | left the journal for the backlog queue / for the primary |
| `restore`, ok | taken by the primary on its way home from the backlog queue `source` |
| `resubmit`, ok | was dead-lettered or expired, and waits in the backlog queue `entity` again |
| `dead-letter`, ok on a backlog queue | will not come home by itself; kept in the dead-letter queue |
| `expire`, ok on a backlog queue | its time was over ("deduct"); kept in the dead-letter queue |
| `complete`, ok on a backlog queue | gone from there: lost without `restore`, `dead-letter` or `expire` |
| `complete`, ok on any other entity | an application received it (also in receive-and-delete mode) |
| outcome unknown | nothing: it may have happened or not, and explains a later duplicate |
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

import msgspec

SCHEMA_VERSION = 1
"""Increases when a field changes its meaning. A new optional field needs no new version."""

BACKLOG_SEGMENT = "/x-servicebus-transfer/"
"""Part of the path of every backlog queue, and of no other entity."""


class Operation(StrEnum):
    """What was done. `pairbus.costs.rules` says how each is billed."""

    SEND = "send"
    DIVERT = "divert"  # a send to a backlog queue
    RESTORE = "restore"  # a send from the syphon to the primary
    RESUBMIT = "resubmit"  # a send from a backlog queue's dead-letter queue back to it
    SCHEDULE = "schedule"
    PING = "ping"
    RECEIVE = "receive"  # outcome "empty": a receive that ended without a message
    PEEK = "peek"
    CANCEL = "cancel"
    CREATE = "create"  # an entity made by administration, such as a backlog queue
    COMPLETE = "complete"
    ABANDON = "abandon"
    DEFER = "defer"
    DEAD_LETTER = "dead-letter"
    EXPIRE = "expire"  # done by the namespace, or a settlement
    SPOOL = "spool"  # written to the local journal; no namespace took part
    TRANSITION = "transition"  # an entity's state changed in a paired client
    OPEN = "ledger-open"  # a process began to record
    CLOSE = "ledger-close"  # it ended in order: a process without this record died
    GAP = "ledger-gap"  # `count` operations could not be recorded


class Outcome(StrEnum):
    OK = "ok"
    FAILED = "failed"  # refused, or never arrived
    UNKNOWN = "unknown"  # no answer: the operation may have happened
    EMPTY = "empty"  # a receive or peek without a message


class Route(StrEnum):
    """The path of the message."""

    PRIMARY = "primary"
    BACKLOG = "backlog"
    SPOOL = "spool"
    SYPHON = "syphon"


class Role(StrEnum):
    """Who recorded it. A namespace that keeps its own ledger sees the operations of all clients."""

    CLIENT = "client"
    SYPHON = "syphon"
    RECEIVER = "receiver"
    NAMESPACE = "namespace"


LEDGER_OPERATIONS = frozenset({Operation.OPEN, Operation.CLOSE, Operation.GAP})


def _to(most: int) -> msgspec.Meta:
    """The range of a number. Readers refuse other values: the sum of all records must stay below 2^63."""
    return msgspec.Meta(ge=0, le=most)


class Record(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    v: int
    n: Annotated[int, _to(2**53)]
    process: str
    at_us: Annotated[int, _to(4_102_444_800_000_000)]
    """When the operation ended: microseconds since the Unix epoch, UTC, by the clock of the process."""
    role: Role
    operation: Operation
    namespace: str = ""
    entity: str = ""
    address: str | None = None
    """In a namespace's own records: the host and port by which clients may know it."""
    destination: str | None = None
    source: str | None = None
    route: Route | None = None
    outcome: Outcome = Outcome.OK
    message_id: str | None = None
    """The message's id, or its salted hash when `id_hashed`."""
    id_hashed: bool = False
    bytes: Annotated[int, _to(2**31)] = 0
    """Size of the encoded message; 0 if unknown, which is billed as one unit."""
    billed: Annotated[int, _to(2**20)] | None = None
    """Billed operations, if the writer knows better than the rule for its operation."""
    error: str | None = None
    """Class of the error, never its text: texts contain addresses and sometimes secrets."""
    latency_us: Annotated[int, _to(10**12)] = 0
    episode: str | None = None
    """Identifies one failover of one entity in one paired client, from suspect to healthy."""
    state_from: str | None = None
    state_to: str | None = None
    cause: str | None = None
    """Why a state changed or a message was dead-lettered: an error class or a word, never free text."""
    count: Annotated[int, _to(10**10)] = 1
    """For a gap: the number of missing operations."""


class CompletedOperation(msgspec.Struct, frozen=True, gc=False):
    """One finished call on one entity, for one message, for many, or for none.

    Everything that observes operations takes this value: the ledger writes a `Record` for each message, the published
    tally counts it, metrics measure it. Fields mean the same as in `Record`. The sequences are kept, not copied: do
    not change them afterwards.
    """

    operation: Operation
    namespace: str
    entity: str
    message_ids: Sequence[str | None] = (None,)
    """One entry for each message, None where the id is unknown. The default is an operation without a message."""
    sizes: Sequence[int] | None = None
    """The size of each message in bytes; None if unknown."""
    outcome: Outcome = Outcome.OK
    error: str | None = None
    latency_us: int = 0
    route: Route | None = None
    destination: str | None = None
    source: str | None = None
    episode: str | None = None
    cause: str | None = None
    state_from: str | None = None
    state_to: str | None = None
    billed: int | None = None
    role: Role | None = None
    """None: the role of the writer that records it."""
    at_us: int | None = None
    """None: now."""

    @property
    def target(self) -> str:
        """The application's entity: the destination of a message in a backlog queue, else the entity itself."""
        return self.entity if self.destination is None else self.destination


def outcome_of(error: BaseException | None, *, in_doubt: bool = False) -> Outcome:
    """The outcome of an operation that ended with `error`; `in_doubt` if it may have happened all the same."""
    if error is None:
        return Outcome.OK
    return Outcome.UNKNOWN if in_doubt else Outcome.FAILED


def error_name(error: BaseException | None) -> str | None:
    """The error as a record keeps it: the name of its class."""
    return None if error is None else type(error).__name__


def hashed_id(message_id: str, salt: bytes) -> str:
    """The keyed hash that replaces a message id: the same for the same id and salt."""
    return hashlib.blake2b(message_id.encode(), key=salt, digest_size=16).hexdigest()


def is_backlog_queue(entity: str) -> bool:
    return BACKLOG_SEGMENT in entity.lower()
