"""The thread that writes the state of this process and answers requests, and the tally that it writes.

Rules
- Nobody waits for it: a send only adds to the tally; everything else happens on this thread.
- It writes every second, and at once after a transition. A disk error is logged once, and writing is retried.
- A process has one publisher per folder. It ends, and says so in its file, when the last source has left.
- After a fork the child publishes nothing until something in it joins.
"""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import socket
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Protocol

import msgspec

from pairbus.costs.rules import UNIT_BYTES, billed_operations, rule_for
from pairbus.ledger.records import CompletedOperation, is_backlog_queue
from pairbus.ledger.writer import host_label
from pairbus.publishing.flows import DAY_SECONDS, History
from pairbus.publishing.folder import FolderError, OwnFolder, open_state_folder, tidy
from pairbus.publishing.records import (
    STATE_VERSION,
    Answer,
    ControlRequest,
    CountKey,
    Flow,
    OperationCount,
    PairReport,
    ProcessState,
    RequestedAction,
    SyphonReport,
    Totals,
    TransitionReport,
)

ENVIRONMENT_VARIABLE = "PAIRBUS_STATE_DIR"
PERIOD_SECONDS = 1.0
SHORTEST_PERIOD_SECONDS = 0.05
REQUEST_SECONDS = 30.0
"""An older request is refused: its sender has given up."""
MOST_REPORT_BYTES = 4 * 1024 * 1024
"""The limit for the reports of all clients and syphons of a process; those added last are left out."""
KEPT_TRANSITIONS = 200
KEPT_ANSWERS = 50
MOST_COUNTS = 2_000
OTHERS = "(others)"
_JOIN_SECONDS = 5.0

_log = logging.getLogger("pairbus.publishing")


class RequestRefusedError(Exception):
    """A request is refused; the message says why."""


class Source(Protocol):
    """A paired client or a syphon that is published."""

    @property
    def key(self) -> str: ...

    def describe(self) -> PairReport | SyphonReport: ...

    def apply(self, action: RequestedAction, entity: str) -> str:
        """Carry out a request; returns the answer or raises RequestRefusedError."""


class OperationTally:
    """Counts the operations of one process by day and kind.

    It takes the same value as the ledger, so both agree. Counting costs one look-up and two additions, cheap enough for
    every send. The counts of today and yesterday are kept; older ones only in the totals.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[CountKey, list[int]] = {}
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
        key = (
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
            sums = self._counts.get(key)
            if sums is None:
                if len(self._counts) >= MOST_COUNTS:
                    key = (*key[:3], OTHERS, *key[4:])
                sums = self._counts.setdefault(key, [0, 0])
            sums[0] += messages
            sums[1] += billed

    def rows(self, day: int) -> list[OperationCount]:
        """The counts of `day` and the day before; older ones are moved into the totals."""
        with self._lock:
            for key in [key for key in self._counts if key[0] < day - 1]:
                operations, _ = self._counts.pop(key)
                _add_flows(self._earlier, key, operations)
            return [OperationCount.of(key, operations, billed) for key, (operations, billed) in self._counts.items()]

    def totals(self) -> dict[str, Flow]:
        """The flow since the beginning, by primary."""
        with self._lock:
            sums = {primary: list(flow) for primary, flow in self._earlier.items()}
            for key, (operations, _) in self._counts.items():
                _add_flows(sums, key, operations)
        return {primary: Flow(*flow) for primary, flow in sums.items()}


def _add_flows(sums: dict[str, list[int]], key: CountKey, operations: int) -> None:
    _, primary, _, _, operation, route, outcome, on_backlog = key
    fields = Flow.__struct_fields__
    flow = sums.setdefault(primary, [0] * len(fields))
    for name in rule_for(operation, outcome, route=route, on_backlog=on_backlog).flows:
        if name in fields:
            flow[fields.index(name)] += operations


class Publisher:
    """Publishes the state of this process in one folder. Use `join` to get it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tally = OperationTally()
        self.process = f"{host_label()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._started = time.time()
        self._sources: dict[str, Source] = {}
        self._members = 0
        self._numbers = 0
        self._lock = threading.Lock()
        self._transitions: deque[TransitionReport] = deque(maxlen=KEPT_TRANSITIONS)
        self._answers: deque[Answer] = deque(maxlen=KEPT_ANSWERS)
        self._history = History()
        self._wake = threading.Event()
        self._ending = False
        self._warned = False
        self._own_folder: OwnFolder | None = None
        self._thread = threading.Thread(target=self._run, name="pairbus-publisher", daemon=True)

    def __repr__(self) -> str:
        return f"<Publisher {self.process} in {self.folder}>"

    def new_key(self, kind: str) -> str:
        """A name for a source, unique in this process."""
        with self._lock:
            self._numbers += 1
            return f"{kind}-{self._numbers}"

    def add(self, source: Source) -> None:
        with self._lock:
            self._sources[source.key] = source
        self._wake.set()

    def leave(self, source: Source) -> None:
        """Remove a source; the last one ends the publisher."""
        with self._lock:
            if self._sources.pop(source.key, None) is None:
                return
        self.withdraw()

    def withdraw(self) -> None:
        """Undo a `join` whose source is gone or was never added."""
        with _registry_lock:
            self._members -= 1
            if self._members == 0:
                if _publishers.get(self.folder) is self:
                    del _publishers[self.folder]
                _ending.add(self)
                self._ending = True
        self._wake.set()

    def transition(self, report: TransitionReport) -> None:
        self._transitions.append(report)
        self._wake.set()

    def _run(self) -> None:
        while True:
            self._wake.wait(PERIOD_SECONDS)
            self._wake.clear()
            ending = self._ending
            try:
                self._publish(ended=ending)
            except (OSError, FolderError) as error:
                self._warn_once(error)
            except Exception:  # the outermost loop: the next attempt, in a second, may succeed
                _log.exception("Publishing the state of this process failed.")
            if ending:
                break
            time.sleep(SHORTEST_PERIOD_SECONDS)  # writes many transitions at once
        if self._own_folder is not None:
            self._own_folder.close()
        _ending.discard(self)

    def _publish(self, *, ended: bool) -> None:
        if self._own_folder is None:
            open_state_folder(self.folder)
            day_began = time.time() // DAY_SECONDS * DAY_SECONDS
            tidy(self.folder, before=min(day_began, time.time() - 3600))
            self._own_folder = OwnFolder(self.folder, self.process)
        own = self._own_folder
        for request in own.take_requests():
            self._answers.append(self._answer(request))
        try:
            own.write(self._state(ended=ended))
        except FileNotFoundError:  # the folder was removed: start over in a new one
            self._own_folder = None
            own.close()
            raise
        self._warned = False

    def _state(self, *, ended: bool) -> ProcessState:
        now = time.time()
        with self._lock:
            sources = list(self._sources.values())
        reports: list[PairReport | SyphonReport] = []
        room = MOST_REPORT_BYTES
        for source in sources:
            report = source.describe()
            room -= len(msgspec.json.encode(report))
            if room < 0:
                break
            reports.append(report)
        totals = self.tally.totals()
        self._history.note(totals, now, time.monotonic())
        return ProcessState(
            v=STATE_VERSION,
            process=self.process,
            program=_program(),
            host=socket.gethostname(),
            pid=os.getpid(),
            started=self._started,
            at=now,
            ended=ended,
            pairs=[report for report in reports if isinstance(report, PairReport)],
            syphons=[report for report in reports if isinstance(report, SyphonReport)],
            counts=self.tally.rows(int(now) // DAY_SECONDS),
            totals=[Totals(primary, flow) for primary, flow in totals.items()],
            history=self._history.moments(),
            speeds=self._history.speeds(),
            transitions=list(self._transitions),
            answers=list(self._answers),
            more_sources=len(sources) - len(reports),
        )

    def _answer(self, request: ControlRequest) -> Answer:
        done, text = False, ""
        with self._lock:
            source = self._sources.get(request.source)
        if not -REQUEST_SECONDS < time.time() - request.at < REQUEST_SECONDS:
            text = "The request is too old and was refused."
        elif source is None:
            text = "This process no longer has this client or syphon."
        else:
            try:
                text, done = source.apply(request.action, request.entity), True
            except RequestRefusedError as error:
                text = str(error)
        _log.warning("Request to %s %s: %s", request.action.value, request.entity, text)
        return Answer(request.id, time.time(), done, text)

    def _warn_once(self, error: Exception) -> None:
        if not self._warned:
            self._warned = True
            reason = error.strerror if isinstance(error, OSError) else str(error)
            _log.warning("Cannot publish the state of this process in %s: %s", self.folder, reason)

    def release_folder_of_parent(self) -> None:
        """In a forked child: the lock of the parent must end with the parent."""
        if self._own_folder is not None:
            self._own_folder.close()
            self._own_folder = None

    def end_with_the_process(self) -> None:
        self._ending = True
        self._wake.set()
        self._thread.join(_JOIN_SECONDS)


_publishers: dict[Path, Publisher] = {}
_ending: set[Publisher] = set()
"""Publishers whose last state is not written yet; the interpreter's exit waits for them."""
_registry_lock = threading.Lock()


def join(folder: Path | str | None) -> Publisher | None:
    """The publisher for `folder`, or for the folder in the environment; None if neither is set.

    A caller adds one source, and leaves with it.
    """
    place = folder if folder is not None else os.environ.get(ENVIRONMENT_VARIABLE)
    if not place:
        return None
    path = Path(place).absolute()
    with _registry_lock:
        publisher = _publishers.get(path)
        if publisher is None:
            publisher = _publishers[path] = Publisher(path)
            publisher._thread.start()
        publisher._members += 1
        return publisher


def _program() -> str:
    """The program of this process, without its arguments, which may contain secrets."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    name = spec.name.removesuffix(".__main__") if spec is not None else Path(sys.argv[0] or "python").name
    return str(name)[:80]


def _end_all() -> None:
    for publisher in (*_publishers.values(), *_ending):
        publisher.end_with_the_process()


def _forget_in_child() -> None:
    global _registry_lock
    _registry_lock = threading.Lock()
    for publisher in (*_publishers.values(), *_ending):
        publisher.release_folder_of_parent()
    _publishers.clear()
    _ending.clear()


atexit.register(_end_all)
os.register_at_fork(after_in_child=_forget_in_child)
