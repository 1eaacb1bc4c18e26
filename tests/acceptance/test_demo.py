"""`pairbus demo` as a user runs it: into a file, on a terminal, with Ctrl-C.

The story into a file is told by the installed wheel, far from the repository: the wheel is enough by itself.
That it would say so if something were lost is in tests/unit/demo/test_demo_counting.py.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.support.leaks import leaks, secrets_of

from pairbus.demo.fleet import DESTINATIONS, ENTITIES, parcel
from pairbus.demo.story import script
from pairbus.testing import wait_until

DEMO = (sys.executable, "-m", "pairbus.cli", "demo", "--fast")
SEED = "7"
PATIENCE_SECONDS = 300.0


def accounts(shown: str) -> list[tuple[str, ...]]:
    """Each destination with what was accepted and delivered."""
    return re.findall(r"(\S+): accepted (\d+) = delivered (\d+), lost 0, ", shown)


@pytest.fixture(scope="module")
def redirected(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder and the output of a whole story told into a file, by the installed wheel."""
    folder = tmp_path_factory.mktemp("redirected")
    temporary = tmp_path_factory.mktemp("temporary")
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "JAVA_HOME", "SPARK_CONF_DIR") if name in os.environ}
    with (folder / "output").open("wb") as output:
        done = subprocess.run(
            [installed / "pairbus", "demo", "--fast", "--seed", SEED, "--keep"],
            cwd=folder,
            env={
                **kept,
                "HOME": str(folder),
                "TMPDIR": str(temporary),
                "XDG_RUNTIME_DIR": str(folder),
                "FORCE_COLOR": "1",
            },
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
            timeout=600,
        )
    shown = (folder / "output").read_text(encoding="utf-8")
    assert (done.returncode, done.stderr) == (0, ""), shown + done.stderr
    assert not list(temporary.glob("pairbus-demo-*")), "a folder of the demo is left behind"
    return folder, shown


def test_the_story_ends_with_everything_delivered(redirected: tuple[Path, str]) -> None:
    _, shown = redirected
    assert [name for name, *_ in accounts(shown)] == ["orders", "prices/europe", "prices/large", "carts"]
    assert "The ledger agrees: " in shown
    nobodys = r"\(\d+ of them matched no subscription's filter\)"
    last = (
        rf"Sent 270 messages: delivered 270 {nobodys}, lost 0, duplicated \d+; "
        r"it would have cost [\d,]+ operations, .*\n"
    )
    assert re.search(last, shown), shown
    assert "\x1b" not in shown


def test_both_outages_happen(redirected: tuple[Path, str]) -> None:
    _, shown = redirected
    first, second = shown.split("Second outage: ")
    for entity in ("orders", "prices", "carts"):
        assert f"'{entity}' is failed over now" in first
        assert f"'{entity}' is healthy now" in first
    failed = set(re.findall(r"'(\w+)' is failed over now", second))
    assert failed == {"prices"}
    assert "'prices' is healthy now" in second
    (carried,) = re.findall(r"The syphon has carried (\d+) messages home", second)
    (diverted, restored) = re.findall(r"(\d+) messages went through the backlog and (\d+) came home", second)[0]
    assert carried == diverted == restored != "0"


def test_the_report_is_where_it_says(redirected: tuple[Path, str]) -> None:
    folder, shown = redirected
    page = folder / "demo-output" / "report.html"
    assert f"The report is {page}\n" in shown
    assert "all 270 accepted messages were delivered" in page.read_text(encoding="utf-8")


def test_what_is_kept_can_be_used(redirected: tuple[Path, str]) -> None:
    folder, shown = redirected
    (kept,) = [path for path in (folder / "demo-output").iterdir() if path.is_dir()]
    assert str(kept) in shown
    assert {"contoso", "contoso-standby", "ledger", "ledger-tables"} <= {path.name for path in kept.iterdir()}


def test_no_secret_is_left_behind(redirected: tuple[Path, str]) -> None:
    folder, _ = redirected
    (kept,) = [path for path in (folder / "demo-output").iterdir() if path.is_dir()]
    secrets = secrets_of(kept / "contoso") | secrets_of(kept / "contoso-standby")
    assert len(secrets) >= 6
    assert list(leaks(secrets, folder)) == []


def test_the_seed_decides_what_is_sent(redirected: tuple[Path, str]) -> None:
    plan = script(fast=True, seed=int(SEED))
    each = plan.senders * (plan.quiet + plan.first_outage + plan.second_outage + plan.draining)
    sent = [parcel(plan.seed, *place) for place in itertools.product(ENTITIES, range(1, each + 1))]
    expected = [(one.name, str(sum(map(one.takes, sent)))) for one in DESTINATIONS]
    assert accounts(redirected[1]) == [(name, count, count) for name, count in expected]


@contextmanager
def ended(demo: subprocess.Popen[Any]) -> Iterator[None]:
    """A test that fails leaves no demo behind, and does not wait for one whose output nobody reads."""
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.killpg(demo.pid, signal.SIGKILL)


def started_in(run_folder: Path) -> list[psutil.Process]:
    """Every process that was started with this run folder in its environment, by whomever."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("XDG_RUNTIME_DIR") == str(run_folder):
                found.append(process)
        except psutil.Error:  # it has ended, or is not ours
            continue
    return found


@pytest.mark.parametrize("moment", ["Starting two namespaces", "senders send to the primary"])
def test_an_interrupted_story_leaves_nothing_behind(moment: str, tmp_path: Path) -> None:
    with (
        subprocess.Popen(
            DEMO,
            cwd=tmp_path,
            env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "TMPDIR": str(tmp_path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as demo,
        ended(demo),
    ):
        assert demo.stdout is not None
        assert any(moment in line for line in demo.stdout)
        os.killpg(demo.pid, signal.SIGINT)
        _, complaints = demo.communicate(timeout=120)
    assert (demo.returncode, complaints) == (130, "Interrupted.\n")
    wait_until(lambda: not started_in(tmp_path), what="the processes of the story to end")
    assert not list(tmp_path.glob("pairbus-demo-*"))


def test_on_a_terminal_a_table_is_redrawn_until_someone_presses_ctrl_c(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 160, 0, 0))
    with (
        subprocess.Popen(
            DEMO,
            cwd=tmp_path,
            env={**os.environ, "TERM": "xterm-256color", "XDG_RUNTIME_DIR": str(tmp_path), "TMPDIR": str(tmp_path)},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        ) as demo,
        ended(demo),
    ):
        os.close(theirs)
        shown = read(ours, "Second outage")
        assert any("contoso-standby" in process.cmdline() for process in started_in(tmp_path))
        os.write(ours, b"\x03")
        shown += read(ours)
        os.close(ours)
        assert demo.wait(120) == 130, shown
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    assert re.search(r"│ orders +│ failed over +│ backlog +│ +\d+ │", plain), plain
    assert re.search(r"│ orders +│ healthy +│ primary +│ +\d+ │", plain), plain
    assert re.search(r"[1-9]\d* messages in the backlog", plain), plain
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h") == 1, "the cursor is hidden"
    assert plain.rstrip().endswith("Interrupted.")
    wait_until(lambda: not started_in(tmp_path), what="the processes of the story to end")
    assert not list(tmp_path.glob("pairbus-demo-*"))


def read(terminal: int, until: str | None = None) -> str:
    """What is written to a pseudo-terminal, until some text comes or its last writer has gone."""
    content = b""
    while until is None or until.encode() not in content:
        assert select.select([terminal], [], [], PATIENCE_SECONDS)[0], content.decode(errors="replace")
        try:
            chunk = os.read(terminal, 65536)
        except OSError:  # how Linux says that nobody has it open any more
            chunk = b""
        if not chunk:
            assert until is None, content.decode(errors="replace")
            break
        content += chunk
    return content.decode(errors="replace").replace("\r\n", "\n")


def test_a_folder_that_cannot_be_written_is_said_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "demo-output").write_text("a file")
    done = subprocess.run(DEMO, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"pairbus: Cannot create the folder {tmp_path / 'demo-output'}: ")
