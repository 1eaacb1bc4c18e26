"""What commands show on a terminal, and that redirected output is plain text: no control codes, no progress."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage
from tests.support.backlogs import backlog_form, make_backlog, put

from pairbus.testing import EmbeddedPair, embedded_pair

ESCAPE = "\x1b"
MESSAGES = 40
PATIENCE_SECONDS = 300.0


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPair]:
    with embedded_pair(tmp_path_factory.mktemp("terminal"), process=True) as pair:
        with pair.primary.admin() as admin:
            admin.create_queue("orders")
        make_backlog(pair.secondary, "contoso", 2)
        yield pair


@pytest.fixture
def backlog(pair: EmbeddedPair) -> EmbeddedPair:
    """The pair, with messages that wait."""
    messages = [ServiceBusMessage("order", message_id=f"order-{number}") for number in range(MESSAGES)]
    put(pair.secondary, "contoso/x-servicebus-transfer/0", [backlog_form(message, "orders") for message in messages])
    return pair


def words(pair: EmbeddedPair, *command: str) -> list[str]:
    ends = ["--primary", str(pair.primary.data), "--secondary", str(pair.secondary.data)]
    given = ends if command[0] == "syphon" else ends[2:]
    return [*command, *given, "--primary-name", "contoso", "--queues", "0-1"]


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PAIRBUS_", "NO_COLOR"))}
    kept.pop("CI", None)
    return {**kept, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"}


def on_a_terminal(arguments: list[str]) -> tuple[int, str]:
    """Exit code and everything that a person would have seen, control codes included."""
    ours, theirs = pty.openpty()
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "pairbus.cli", *arguments],
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
        )
    finally:
        os.close(theirs)
    shown = b""
    try:
        while select.select([ours], [], [], PATIENCE_SECONDS)[0]:
            try:
                more = os.read(ours, 65536)
            except OSError:  # how Linux says that nobody holds the other end any more
                break
            if not more:
                break
            shown += more
        return process.wait(PATIENCE_SECONDS), shown.decode()
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def redirected(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pairbus.cli", *arguments],
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )


def test_the_syphon_shows_its_progress_on_a_terminal(backlog: EmbeddedPair) -> None:
    code, shown = on_a_terminal(words(backlog, "syphon", "--once"))
    assert code == 0, shown
    assert "carrying home" in shown
    assert f"{MESSAGES}/{MESSAGES}" in shown
    assert ESCAPE in shown
    assert f"{MESSAGES} messages restored, 0 dead-lettered." in shown
    assert shown.count(f"{ESCAPE}[?25l") == shown.count(f"{ESCAPE}[?25h") == 1  # the cursor is given back


def test_the_syphon_says_only_its_result_when_redirected(backlog: EmbeddedPair) -> None:
    done = redirected(words(backlog, "syphon", "--once"))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{MESSAGES} messages restored")
    assert ESCAPE not in done.stdout


def test_quiet_shows_no_progress_even_on_a_terminal(backlog: EmbeddedPair) -> None:
    code, shown = on_a_terminal(words(backlog, "syphon", "--once", "--quiet", "--json"))
    assert code == 0, shown
    assert json.loads(shown)["restored"] == MESSAGES


def test_tables_are_plain_when_redirected(backlog: EmbeddedPair) -> None:
    code, shown = on_a_terminal(words(backlog, "backlog", "list"))
    assert (code, ESCAPE in shown) == (0, True)
    done = redirected(words(backlog, "backlog", "list"))
    assert done.returncode == 0, done.stderr
    assert "contoso/x-servicebus-transfer/0" in done.stdout
    assert ESCAPE not in done.stdout + done.stderr
    listed = json.loads(redirected([*words(backlog, "backlog", "list"), "--json"]).stdout)
    assert [one["active"] for one in listed] == [MESSAGES, 0]
    assert redirected(words(backlog, "syphon", "--once")).returncode == 0


def test_help_and_errors_have_no_codes_anywhere(tmp_path: Path) -> None:
    for arguments, code in ((["--help"], 0), (["sevre"], 2), (["backlog"], 2)):
        answered, shown = on_a_terminal(arguments)
        assert answered == code
        assert ESCAPE not in shown
        done = redirected(arguments)
        assert ESCAPE not in done.stdout + done.stderr


def test_a_drill_is_told_as_it_goes_on_a_terminal(tmp_path: Path) -> None:
    path = tmp_path / "small.toml"
    path.write_text(
        'name = "small"\nexpect = ["lost == 0", "delivered == 2"]\n[pairing]\nbacklog-queue-count = 1\n'
        '[[entities]]\nqueue = "orders"\n[[steps]]\ndo = "send"\nentity = "orders"\ncount = 2\n'
    )
    code, shown = on_a_terminal(["drill", str(path)])
    assert code == 0, shown
    assert "send entity orders, count 2" in shown
    assert "small: passed in" in shown
