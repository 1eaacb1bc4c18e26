"""Published state: counting, an hour of history, private files, requests that are followed once or not at all."""

from __future__ import annotations

import logging
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from pairbus.ledger import CompletedOperation, Operation, Outcome, Route
from pairbus.pairing.observers import publish
from pairbus.publishing import Publisher, RequestRefusedError, folder, join, publisher
from pairbus.publishing.flows import BUCKET_SECONDS, DAY_SECONDS, KEPT_BUCKETS, History
from pairbus.publishing.publisher import MOST_COUNTS, OTHERS, OperationTally
from pairbus.publishing.records import (
    STATE_VERSION,
    ControlRequest,
    Flow,
    PairReport,
    ProcessState,
    RequestedAction,
)
from pairbus.testing import wait_until
from pairbus.testing.waiting import wait_for

BACKLOG = "contoso/x-servicebus-transfer/3"


@pytest.fixture(autouse=True)
def short_period(monkeypatch: pytest.MonkeyPatch) -> None:
    """The publisher writes, and looks for requests, ten times a second: the tests wait for that."""
    monkeypatch.setattr(publisher, "PERIOD_SECONDS", 0.1)


class Pair:
    """A source that notes what it is asked to do."""

    def __init__(self, publisher: Publisher) -> None:
        self.key = publisher.new_key("pair")
        self.asked: list[tuple[RequestedAction, str]] = []
        publisher.add(self)

    def describe(self) -> PairReport:
        return PairReport(
            key=self.key,
            primary="contoso",
            secondary="standby",
            primary_name="contoso",
            entities=[],
            backlog_queues=3,
            in_rotation=3,
            failover_interval=60,
            ping_interval=60,
        )

    def apply(self, action: RequestedAction, entity: str) -> str:
        if action is RequestedAction.PAUSE:
            raise RequestRefusedError("No syphon here.")
        self.asked.append((action, entity))
        return "done as asked"


def joined(place: Path) -> tuple[Publisher, Pair]:
    publisher = join(place)
    assert publisher is not None
    return publisher, Pair(publisher)


def state_of(publisher: Publisher) -> ProcessState | None:
    return folder.read_state(publisher.folder / publisher.process)


def written(publisher: Publisher) -> ProcessState:
    return wait_for(lambda: state_of(publisher), what="the first writing")


def ended(publisher: Publisher) -> ProcessState:
    def last_word() -> ProcessState | None:
        state = state_of(publisher)
        alive = folder.is_alive(publisher.folder / publisher.process)
        return state if state is not None and state.ended and not alive else None

    return wait_for(last_word, what="the last writing")


def request(
    source: str, action: RequestedAction = RequestedAction.FAIL_OVER, *, at: float | None = None
) -> ControlRequest:
    return ControlRequest(
        v=STATE_VERSION,
        id=os.urandom(4).hex(),
        at=time.time() if at is None else at,
        action=action,
        source=source,
        entity="orders",
    )


# --- counting -------------------------------------------------------------------------------------------------


def sent(entity: str, messages: int, outcome: Outcome = Outcome.OK) -> CompletedOperation:
    return CompletedOperation(
        Operation.SEND, "contoso", entity, [None] * messages, route=Route.PRIMARY, outcome=outcome
    )


def test_what_is_counted_is_what_the_records_would_add_up_to() -> None:
    tally = OperationTally()
    tally.count("contoso", sent("orders", 100))
    tally.count(
        "contoso",
        CompletedOperation(
            Operation.DIVERT,
            "standby",
            BACKLOG,
            ["a", "b"],
            [65_536, 65_537],
            destination="orders",
            route=Route.BACKLOG,
        ),
    )
    tally.count("contoso", sent("orders", 1, Outcome.FAILED))
    found = {
        (one.namespace, one.target, one.operation, one.outcome): (one.operations, one.billed, one.on_backlog)
        for one in tally.rows(int(time.time()) // DAY_SECONDS)
    }
    assert found == {
        ("contoso", "orders", Operation.SEND, Outcome.OK): (100, 100, False),
        ("standby", "orders", Operation.DIVERT, Outcome.OK): (2, 3, True),
        ("contoso", "orders", Operation.SEND, Outcome.FAILED): (1, 0, False),
    }
    assert tally.totals() == {"contoso": Flow(primary=100, backlog=2, failed=1, stored=2)}


def test_a_day_that_is_over_stays_in_the_totals_only() -> None:
    tally = OperationTally()
    ids = [None] * 7
    tally.count("contoso", CompletedOperation(Operation.RESTORE, "contoso", "orders", ids, route=Route.SYPHON))
    tally.count(
        "contoso",
        CompletedOperation(Operation.COMPLETE, "standby", BACKLOG, ids, destination="orders", route=Route.SYPHON),
    )
    today = int(time.time()) // DAY_SECONDS
    assert len(tally.rows(today + 1)) == 2
    assert tally.rows(today + 2) == []
    assert tally.totals() == {"contoso": Flow(home=7, gone=7)}


def test_what_has_too_many_names_is_counted_together() -> None:
    tally = OperationTally()
    for number in range(MOST_COUNTS + 50):
        tally.count("contoso", sent(f"reply-{number}", 1))
    rows = tally.rows(int(time.time()) // DAY_SECONDS)
    assert len(rows) == MOST_COUNTS + 1
    assert next(one for one in rows if one.target == OTHERS).operations == 50
    assert tally.totals()["contoso"].primary == MOST_COUNTS + 50


def test_no_count_is_lost_between_threads() -> None:
    tally = OperationTally()

    def work() -> None:
        for _ in range(2_000):
            tally.count("contoso", sent("orders", 1))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tally.totals()["contoso"].primary == 8_000


# --- history --------------------------------------------------------------------------------------------------


def test_history_keeps_an_hour_and_speeds_the_last_seconds() -> None:
    history = History()
    for second in range(0, 2 * 3600, 5):
        history.note(
            {"contoso": Flow(primary=10 * second, stored=second)}, now=1_000_000 + second, monotonic_now=second
        )
    moments = history.moments()
    assert len(moments) == KEPT_BUCKETS
    assert {moment.flow.primary for moment in moments} == {10 * BUCKET_SECONDS}
    assert {(speed.flow, speed.per_second) for speed in history.speeds()} == {("primary", 10.0), ("stored", 1.0)}


def test_what_stands_still_has_no_speed_and_no_buckets() -> None:
    history = History()
    for second in range(20):
        history.note({"contoso": Flow(primary=5)}, now=1_000_000 + second, monotonic_now=second)
    assert [moment.flow.primary for moment in history.moments()] == [5]
    assert history.speeds() == []


def test_a_clock_that_is_set_back_leaves_no_buckets_in_the_future() -> None:
    history = History()
    history.note({"contoso": Flow(primary=5)}, now=2_000_000, monotonic_now=0)
    history.note({"contoso": Flow(primary=9)}, now=1_000_000, monotonic_now=1)
    assert [(moment.bucket, moment.flow.primary) for moment in history.moments()] == [(100_000, 4)]


# --- files ----------------------------------------------------------------------------------------------------


def test_nothing_happens_unless_a_folder_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PAIRBUS_STATE_DIR", raising=False)
    assert join(None) is None
    monkeypatch.setenv("PAIRBUS_STATE_DIR", str(tmp_path / "state"))
    publisher = join(None)
    assert publisher is not None
    source = Pair(publisher)
    assert written(publisher).pid == os.getpid()
    publisher.leave(source)
    ended(publisher)


def test_files_are_private_and_the_last_word_says_so(tmp_path: Path) -> None:
    publisher, source = joined(tmp_path / "state")
    state = written(publisher)
    own = tmp_path / "state" / publisher.process
    assert (state.ended, folder.is_alive(own)) == (False, True)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "state", own, own / "state.json")] == [
        0o700,
        0o700,
        0o600,
    ]
    publisher.leave(source)
    assert ended(publisher).pairs == []


def test_all_of_a_process_share_one_publisher_until_the_last_leaves(tmp_path: Path) -> None:
    publisher, first = joined(tmp_path / "state")
    again, second = joined(tmp_path / "state")
    assert again is publisher
    publisher.leave(first)
    publisher.leave(first)  # leaving twice is leaving once
    wait_until(lambda: len(written(publisher).pairs) == 1, what="one pair left")
    assert not written(publisher).ended
    publisher.leave(second)
    ended(publisher)
    later, third = joined(tmp_path / "state")
    assert later.process != publisher.process
    later.leave(third)
    ended(later)


def test_a_folder_that_others_can_enter_is_refused_once_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / "state"
    place.mkdir(mode=0o755)
    place.chmod(0o755)
    with caplog.at_level(logging.WARNING, "pairbus.publishing"):
        publisher, source = joined(place)
        wait_until(lambda: caplog.records, what="the warning")
        place.chmod(0o700)
        written(publisher)
    assert [record.getMessage() for record in caplog.records] == [
        f"Cannot publish the state of this process in {place}: Other users can access the state folder {place}. "
        f"Make it private: chmod 700 {place}"
    ]
    publisher.leave(source)
    ended(publisher)


def things(place: Path) -> list[str]:
    return sorted(str(path.relative_to(place)) for path in place.rglob("*"))


def test_a_folder_that_holds_something_else_is_refused_and_nothing_in_it_is_touched(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    home = tmp_path / "home"
    for name in ("Documents", ".ssh"):
        (home / name).mkdir(parents=True)
        (home / name / "precious").write_text("mine")
    home.chmod(0o700)
    before = things(home)
    with pytest.raises(folder.FolderError, match=r"contains other files \('\.ssh'\)\. Choose an empty folder"):
        folder.open_state_folder(home)
    with caplog.at_level(logging.WARNING, "pairbus.publishing"):
        publisher, source = joined(home)
        wait_until(lambda: caplog.records, what="the warning")
        publisher.leave(source)
        wait_until(lambda: not publisher._thread.is_alive(), what="the end of the publisher")
    assert things(home) == before


def test_only_what_is_certainly_ours_is_removed(tmp_path: Path) -> None:
    place = tmp_path / "state"
    place.mkdir(mode=0o700)
    ours = ["host-1-0000000a", ".host-2-0000000b"]
    for name in ours:
        (place / name).mkdir()
        (place / name / "state.json").write_text("{}")
        (place / name / ".request-0a.json.00000000").write_text("{}")
    (place / "host-3-0000000c").mkdir()  # has the name, and somebody's file
    (place / "host-3-0000000c" / "notes.txt").write_text("mine")
    (place / "host-4-0000000d").mkdir()  # has the name, and a link to somebody's file
    (place / "host-4-0000000d" / "state.json").symlink_to(tmp_path / "elsewhere")
    for name in ("Documents", ".cache", "photos-2024-12", ".host-5"):
        (place / name).mkdir()
        (place / name / "state.json").write_text("mine")
    before = things(place)
    folder.tidy(place, before=time.time() + 3600)
    assert things(place) == [name for name in before if not name.startswith(tuple(ours))]


def test_one_that_cannot_be_published_does_not_keep_the_publisher(tmp_path: Path) -> None:
    """An aio client outside of an event loop."""

    class Client:
        options = SimpleNamespace(state_dir=tmp_path / "state")

        async def close(self) -> None: ...

    publisher, source = joined(tmp_path / "state")
    with pytest.raises(RuntimeError, match="no running event loop"):
        publish(Client())
    publisher.leave(source)
    ended(publisher)


def test_a_process_with_too_many_clients_is_still_read_and_says_how_many_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher, first = joined(tmp_path / "state")
    monkeypatch.setattr(
        "pairbus.publishing.publisher.MOST_REPORT_BYTES", 3 * len(msgspec.json.encode(first.describe()))
    )
    sources = [
        first,
        *(Pair(joined_again) for joined_again in (join(tmp_path / "state") for _ in range(4)) if joined_again),
    ]
    state = wait_for(lambda: state if len((state := written(publisher)).pairs) == 3 else None, what="three of five")
    wait_until(lambda: written(publisher).more_sources == 2, what="the number of those that are missing")
    assert [pair.key for pair in state.pairs] == [source.key for source in sources[:3]]
    for source in sources:
        publisher.leave(source)
    ended(publisher)


def test_a_folder_that_is_removed_is_made_again(tmp_path: Path) -> None:
    publisher, source = joined(tmp_path / "state")
    written(publisher)
    own = tmp_path / "state" / publisher.process
    (tmp_path / "state").rename(tmp_path / "elsewhere")
    wait_until(lambda: state_of(publisher) if folder.is_alive(own) else None, what="a new folder")
    publisher.leave(source)
    ended(publisher)


def test_a_killed_process_is_dead_and_a_kill_is_not_an_end(tmp_path: Path) -> None:
    program = (
        "import sys, threading\n"
        "from pairbus.publishing import join\n"
        "publisher = join(sys.argv[1])\n"
        "print(publisher.process, flush=True)\n"
        "threading.Event().wait()\n"
    )
    place = tmp_path / "state"
    with subprocess.Popen([sys.executable, "-c", program, str(place)], stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            own = place / child.stdout.readline().strip()
            state = wait_for(lambda: folder.read_state(own), what="the child's state")
            assert (folder.is_alive(own), state.pid) == (True, child.pid)
        finally:
            child.kill()
        child.wait()
    left = folder.read_state(own)
    assert left is not None
    assert (folder.is_alive(own), left.ended) == (False, False)
    folder.tidy(place, before=time.time() - 3600)
    assert own.exists()
    folder.tidy(place, before=time.time() + 3600)
    assert not own.exists()


def test_a_process_that_leaves_and_exits_has_said_so(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from pairbus.publishing import join\n"
        "class Nobody:\n"
        "    key = 'pair-1'\n"
        "publisher = join(sys.argv[1])\n"
        "publisher._sources['pair-1'] = Nobody()\n"
        "publisher.leave(Nobody())\n"
        "print(publisher.process)\n"
    )
    place = tmp_path / "state"
    done = subprocess.run(
        [sys.executable, "-c", program, str(place)], capture_output=True, text=True, check=True, timeout=60
    )
    left = folder.read_state(place / done.stdout.strip())
    assert left is not None
    assert left.ended


def test_a_state_that_cannot_be_trusted_is_not_read(tmp_path: Path) -> None:
    own = tmp_path / "someone-1-00"
    own.mkdir()
    file = own / "state.json"
    state = ProcessState(v=STATE_VERSION, process="x", program="x", host="x", pid=1, started=0, at=0)

    def put(content: bytes, mode: int = 0o600) -> None:
        file.write_bytes(content)
        file.chmod(mode)

    put(msgspec.json.encode(state))
    assert folder.read_state(own) == state
    put(msgspec.json.encode(state), 0o622)
    assert folder.read_state(own) is None
    put(b"{")
    assert folder.read_state(own) is None
    put(msgspec.json.encode(msgspec.structs.replace(state, v=STATE_VERSION + 1)))
    assert folder.read_state(own) is None
    file.rename(tmp_path / "real.json")
    file.symlink_to(tmp_path / "real.json")
    assert folder.read_state(own) is None


# --- requests -------------------------------------------------------------------------------------------------


def test_a_request_is_followed_once_and_answered(tmp_path: Path) -> None:
    publisher, source = joined(tmp_path / "state")
    written(publisher)
    asked = request(source.key)
    path = folder.put_request(publisher.folder, publisher.process, asked)
    answer = wait_for(lambda: next(iter(written(publisher).answers), None), what="the answer")
    assert (answer.request, answer.done, answer.text) == (asked.id, True, "done as asked")
    assert source.asked == [(RequestedAction.FAIL_OVER, "orders")]
    assert not folder.withdraw_request(path)
    publisher.leave(source)
    ended(publisher)


@pytest.mark.parametrize(
    ("action", "age", "source", "said"),
    [
        (RequestedAction.PAUSE, 0.0, None, "No syphon here."),
        (RequestedAction.FAIL_OVER, 3600.0, None, "The request is too old and was refused."),
        (RequestedAction.FAIL_OVER, 0.0, "pair-99", "This process no longer has this client or syphon."),
    ],
)
def test_what_cannot_be_followed_is_answered_too(
    tmp_path: Path, action: RequestedAction, age: float, source: str | None, said: str
) -> None:
    publisher, pair = joined(tmp_path / "state")
    written(publisher)
    asked = request(source or pair.key, action, at=time.time() - age)
    folder.put_request(publisher.folder, publisher.process, asked)
    answer = wait_for(lambda: next(iter(written(publisher).answers), None), what="the answer")
    assert (answer.done, answer.text, pair.asked) == (False, said, [])
    publisher.leave(pair)
    ended(publisher)


def test_a_request_that_is_taken_back_is_never_followed(tmp_path: Path) -> None:
    own = folder.OwnFolder(tmp_path, "host-1-00")
    path = folder.put_request(tmp_path, "host-1-00", request("pair-1"))
    assert folder.withdraw_request(path)
    assert list(own.take_requests()) == []
    own.close()


def test_what_is_no_request_of_ours_is_removed_unread(tmp_path: Path) -> None:
    own = folder.OwnFolder(tmp_path, "host-1-00")
    good = request("pair-1")
    for number, content in enumerate((b"{}", b"x" * 5000, msgspec.json.encode(good))):
        (own.path / f"request-{number}.json").write_bytes(content)
        (own.path / f"request-{number}.json").chmod(0o600)
    (own.path / "request-9.json").write_bytes(msgspec.json.encode(good))
    (own.path / "request-9.json").chmod(0o666)
    assert list(own.take_requests()) == [good]
    assert list(own.path.glob("request-*")) == []
    own.close()


def test_a_forked_child_lets_go_of_its_parents_folder(tmp_path: Path) -> None:
    """In a process of its own: forking the test's would fork whatever else runs in it."""
    program = (
        "import os, signal, sys, time\n"
        "from pairbus.publishing import join, folder\n"
        "publisher = join(sys.argv[1])\n"
        "own = publisher.folder / publisher.process\n"
        "while folder.read_state(own) is None: time.sleep(0.01)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    anew = join(sys.argv[1])\n"
        "    while folder.read_state(anew.folder / anew.process) is None: time.sleep(0.01)\n"
        "    print(anew.process, flush=True)\n"
        "    signal.pause()\n"
        "print(publisher.process, child, flush=True)\n"
        "signal.pause()\n"
    )
    place = tmp_path / "state"
    with subprocess.Popen([sys.executable, "-c", program, str(place)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        said = sorted([parent.stdout.readline().split(), parent.stdout.readline().split()], key=len)
        [childs_name], [parents_name, child] = said
        try:
            assert childs_name != parents_name
            parent.kill()
            parent.wait()
            assert not folder.is_alive(place / parents_name)
            assert folder.is_alive(place / childs_name)
        finally:
            os.kill(int(child), signal.SIGKILL)
