"""`pairbus demo`: the whole story, and that it would say so if something were lost."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from pairbus.demo.story import Count, Narrator, conclude
from pairbus.pipeline.report import Summary
from pairbus.testing import wait_until


def test_the_story_ends_with_everything_delivered(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pairbus.cli", "demo"],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"accepted 600 = delivered 600, lost 0, duplicates \d+\n", done.stdout), done.stdout
    assert "The ledger agrees: " in done.stdout
    assert "\x1b" not in done.stdout
    assert done.stderr == ""
    assert not list(tmp_path.glob("pairbus-demo-*")), "the demo's folder is left behind"


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


def test_an_interrupted_story_leaves_nothing_running(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "pairbus.cli", "demo"],
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if "Sent 200 messages" in line:
                break
        # The secondary runs all along; the primary may be dead already, or back: the story does not wait for us.
        assert any("contoso-standby" in process.cmdline() for process in started_in(tmp_path))
        os.killpg(demo.pid, signal.SIGINT)
        _, complaints = demo.communicate(timeout=60)
    assert (demo.returncode, complaints) == (130, "Interrupted.\n")
    wait_until(lambda: not started_in(tmp_path), what="the processes of the story to end")


def summary(accepted: int, delivered: int, waiting: int = 0, lost: int = 0) -> Summary:
    nothing = dict.fromkeys(Summary.__dataclass_fields__, 0)
    return Summary(**{**nothing, "accepted": accepted, "delivered": delivered, "waiting": waiting, "lost": lost})


@pytest.mark.parametrize(
    ("delivered", "ledger", "code", "said"),
    [
        ("abc", summary(3, 3), 0, "accepted 3 = delivered 3, lost 0, duplicates 1"),
        ("abcx", summary(3, 3), 0, "accepted 3 = delivered 3, lost 0, duplicates 1"),
        ("ab", summary(3, 2, waiting=1), 1, "accepted 3 ≠ delivered 2, lost 1, duplicates 1"),
        ("ab", summary(3, 2, lost=1), 1, "accepted 3 ≠ delivered 2, lost 1, duplicates 1"),
        ("ab", summary(3, 3), 1, "The ledger disagrees: accepted 3 = delivered 3"),
        ("abc", summary(3, 2, waiting=1), 1, "The ledger disagrees: accepted 3: delivered 2, waiting 1"),
        ("abc", summary(4, 3, lost=1), 1, "The ledger disagrees: accepted 4: delivered 3"),
    ],
)
def test_a_loss_or_a_contradiction_is_said_and_fails(
    delivered: str, ledger: Summary, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    count = Count(frozenset("abc"), frozenset(delivered), duplicates=1)
    assert conclude(Narrator(), count, ledger) == code
    assert said in capsys.readouterr().out
