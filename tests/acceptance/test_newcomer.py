"""A newcomer: a clean clone in an empty folder, an empty home, the README's two commands, nothing else.

Set-up is real, with one exception: packages that this machine's uv has downloaded before are not downloaded or built
again (`make fresh-check` starts without any). What follows is cut short by the environment: the story is the short one,
and only one file is tested and one package type-checked, so that the tests do not come here again.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHORT = {
    "make demo": {"ARGS": "--fast --quiet"},
    "make test": {"ARGS": "-n 0 tests/unit/failover/test_failover_table.py", "TYPES": "src/pairbus/failover"},
}
# The machine's settings for where packages come from; the newcomer's environment has nothing else of this process.
OF_THE_MACHINE = re.compile(r"PATH|LANG|LC_\w+|(PIP|UV)_\w+|SSL_CERT_\w+|REQUESTS_CA_BUNDLE|\w+_proxy|\w+_PROXY")


def commands_of_the_readme() -> list[str]:
    """The first console block."""
    block = re.search(r"^```console\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL | re.M)
    assert block is not None
    return re.findall(r"^\$ (.+)$", block[1], re.MULTILINE)


def uv_cache() -> Path:
    """The folder that `scripts/setup.sh` lets uv use when nothing else is set."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "uv"


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a clone and a home; gone afterwards: an environment with Spark is large."""
    why = None
    if not (ROOT / ".git").exists():
        why = "this folder is not a git clone: clone the repository instead of copying its files"
    elif shutil.which("git") is None:
        why = "git is not installed: install it to clone the repository (apt-get install git)"
    if why is not None:
        if os.environ.get("CI") == "true":
            pytest.fail(why)
        pytest.skip(why)
    folder = tmp_path_factory.mktemp("newcomer")
    (folder / "home").mkdir()
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder / "pairbus")], check=True, timeout=120)
    yield folder
    shutil.rmtree(folder)


def test_the_readme_has_two_commands() -> None:
    assert commands_of_the_readme() == list(SHORT)


@pytest.mark.timeout(1800)
def test_the_two_commands_are_enough(newcomer: Path) -> None:
    known = {name: value for name, value in os.environ.items() if OF_THE_MACHINE.fullmatch(name)}
    known.setdefault("UV_CACHE_DIR", str(uv_cache()))
    for command in commands_of_the_readme():
        done = subprocess.run(
            shlex.split(command),
            cwd=newcomer / "pairbus",
            env={**known, "HOME": str(newcomer / "home"), **SHORT[command]},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=900,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        if command == "make demo":
            assert re.search(r"Sent 270 messages: delivered 270 \([^)]+\), lost 0, ", done.stdout), done.stdout
            assert "Starting two namespaces" not in done.stdout
            assert (newcomer / "pairbus" / "demo-output" / "report.html").exists()
        else:
            assert re.search(r"\d+ passed", done.stdout), done.stdout
    changed = subprocess.run(
        ["git", "status", "--porcelain"], cwd=newcomer / "pairbus", capture_output=True, text=True, check=True
    )
    assert changed.stdout == "", "what the commands make is not all ignored by git"
