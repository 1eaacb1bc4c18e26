"""The thread that writes this process's state, and takes requests.

Rules
- Nobody waits for it: a send only adds to the tally; everything else happens on this thread.
- It writes every second, and at once after a transition. A disk that refuses is named once in the log, and tried again.
- One publisher for each folder in a process; it ends, and says so in its file, when the last one who joined has left.
- After a fork the child publishes nothing until something in it joins anew.
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

from pairbus.publishing.flows import DAY_SECONDS
from pairbus.publishing.folder import FolderError, OwnFolder, open_state_folder, tidy
from pairbus.publishing.history import History
from pairbus.publishing.records import (
    STATE_VERSION,
    Action,
    Answer,
    PairReport,
    ProcessState,
    Request,
    SyphonReport,
    Totals,
    TransitionReport,
)
from pairbus.publishing.tally import Tally

ENVIRONMENT_VARIABLE = "PAIRBUS_STATE_DIR"
PERIOD_SECONDS = 1.0
SHORTEST_PERIOD_SECONDS = 0.05
REQUEST_SECONDS = 30.0
"""A request older than this is not followed: whoever made it has long given up."""
MOST_REPORT_BYTES = 4 * 1024 * 1024
"""All clients and syphons of a process together, as they are written; those that were added last are left out."""
KEPT_TRANSITIONS = 200
KEPT_ANSWERS = 50
_JOIN_SECONDS = 5.0

_log = logging.getLogger("pairbus.publishing")


class RequestRefusedError(Exception):
    """A request cannot be followed; the text says why."""


class Source(Protocol):
    """A paired client or a syphon that is published."""

    @property
    def key(self) -> str: ...

    def describe(self) -> PairReport | SyphonReport: ...

    def obey(self, action: Action, entity: str) -> str:
        """Do it and say what was done, or raise RequestRefusedError."""


class Publisher:
    """The published state of this process in one folder. Made by `join`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tally = Tally()
        self.process = f"{_host_label()}-{os.getpid()}-{secrets.token_hex(4)}"
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
        self._own: OwnFolder | None = None
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
        """The source is no longer there; the last one that leaves ends the publisher."""
        with self._lock:
            if self._sources.pop(source.key, None) is None:
                return
        self.withdraw()

    def withdraw(self) -> None:
        """One that joined is gone, or never had a source to add."""
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
                self._complain(error)
            except Exception:  # the outermost loop: what cannot be described now may be in a second
                _log.exception("The state of this process was not published.")
            if ending:
                break
            time.sleep(SHORTEST_PERIOD_SECONDS)  # many transitions at once are one writing
        if self._own is not None:
            self._own.close()
        _ending.discard(self)

    def _publish(self, *, ended: bool) -> None:
        if self._own is None:
            open_state_folder(self.folder)
            day_began = time.time() // DAY_SECONDS * DAY_SECONDS
            tidy(self.folder, before=min(day_began, time.time() - 3600))
            self._own = OwnFolder(self.folder, self.process)
        own = self._own
        for request in own.take_requests():
            self._answers.append(self._answer(request))
        try:
            own.write(self._state(ended=ended))
        except FileNotFoundError:  # somebody removed the folder: begin again in a new one
            self._own = None
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

    def _answer(self, request: Request) -> Answer:
        done, text = False, ""
        with self._lock:
            source = self._sources.get(request.source)
        if not -REQUEST_SECONDS < time.time() - request.at < REQUEST_SECONDS:
            text = "The request is too old and was not followed."
        elif source is None:
            text = "There is no such client or syphon in this process any more."
        else:
            try:
                text, done = source.obey(request.action, request.entity), True
            except RequestRefusedError as error:
                text = str(error)
        _log.warning("Asked to %s %s: %s", request.action.value, request.entity, text)
        return Answer(request.id, time.time(), done, text)

    def _complain(self, error: Exception) -> None:
        if not self._warned:
            self._warned = True
            said = error.strerror if isinstance(error, OSError) else str(error)
            _log.warning("The state of this process cannot be published in %s: %s", self.folder, said)

    def begin(self) -> None:
        self._thread.start()

    def let_go_of_parents_folder(self) -> None:
        """In a forked child: the parent's lock must end with the parent."""
        if self._own is not None:
            self._own.close()
            self._own = None

    def end_with_the_process(self) -> None:
        self._ending = True
        self._wake.set()
        self._thread.join(_JOIN_SECONDS)


_publishers: dict[Path, Publisher] = {}
_ending: set[Publisher] = set()
"""Those whose last word is still to be written: the interpreter's exit waits for it."""
_registry_lock = threading.Lock()


def join(folder: Path | str | None) -> Publisher | None:
    """The publisher of this process for `folder`, or for the one in the environment; None when there is neither.

    Each that joins adds one source, and leaves with it.
    """
    chosen = folder if folder is not None else os.environ.get(ENVIRONMENT_VARIABLE)
    if not chosen:
        return None
    path = Path(chosen).absolute()
    with _registry_lock:
        publisher = _publishers.get(path)
        if publisher is None:
            publisher = _publishers[path] = Publisher(path)
            publisher.begin()
        publisher._members += 1
        return publisher


def _host_label() -> str:
    """The host's name as a file name can hold it."""
    kept = "".join(c if c.isalnum() or c == "-" else "-" for c in socket.gethostname().split(".")[0])
    return kept[:32] or "host"


def _program() -> str:
    """What this process runs, without its arguments: they may hold anything."""
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
        publisher.let_go_of_parents_folder()
    _publishers.clear()
    _ending.clear()


atexit.register(_end_all)
os.register_at_fork(after_in_child=_forget_in_child)
