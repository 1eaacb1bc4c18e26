"""Set-up on machines that lack something: one sentence with the remedy, before anything is downloaded or built."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
TOOLS = ("bash", "cat", "cut", "dirname", "env", "grep", "head", "mkdir", "rm", "sh", "sha256sum")
COMPILER = str(sysconfig.get_config_var("CC")).split()[0]


class Machine:
    """A copy of what set-up reads, and a PATH that holds only what the test puts there."""

    def __init__(self, folder: Path) -> None:
        self.project = folder / "project"
        self.bin = folder / "bin"
        self.bin.mkdir(parents=True)
        for part in ("scripts", "requirements"):
            shutil.copytree(ROOT / part, self.project / part)
        shutil.copy(ROOT / "pyproject.toml", self.project)
        for tool in TOOLS:
            found = shutil.which(tool)
            assert found is not None, tool
            (self.bin / tool).symlink_to(found)

    def has(self, command: str, script: str) -> None:
        path = self.bin / command
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def set_up(self) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.bin / "bash"), str(self.project / "scripts" / "setup.sh")],
            env={"PATH": str(self.bin), "HOME": str(self.bin.parent)},
            capture_output=True,
            text=True,
            timeout=60,
        )

    def refuses(self) -> str:
        done = self.set_up()
        assert (done.returncode, done.stdout) == (2, ""), done.stderr
        assert done.stderr.count("\n") == 1, done.stderr
        assert not (self.project / ".venv").exists()
        return done.stderr


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_no_python(machine: Machine) -> None:
    assert "Python 3.11 or newer was not found; install it" in machine.refuses()


def test_an_old_python(machine: Machine) -> None:
    machine.has("python3", "exit 1")
    assert "Python 3.11 or newer was not found; install it" in machine.refuses()


def test_no_compiler(machine: Machine) -> None:
    machine.has("python3", f'exec {sys.executable} "$@"')
    assert "is needed once, to build python-qpid-proton; install it" in machine.refuses()


def test_no_headers(machine: Machine) -> None:
    machine.has("python3", f'case "$2" in *Python.h*) exit 1;; esac; exec {sys.executable} "$@"')
    machine.has(COMPILER, "exit 0")
    assert "apt-get install python3-dev" in machine.refuses()


def test_no_venv_module_and_no_uv(machine: Machine) -> None:
    machine.has("python3", f'[ "$2" = venv ] && exit 1; exec {sys.executable} "$@"')
    machine.has(COMPILER, "exit 0")
    done = machine.set_up()
    assert done.returncode == 2
    assert "apt-get install python3-venv" in done.stderr


def test_plain_make_shows_every_target() -> None:
    shown = subprocess.run(["make", "-C", str(ROOT)], capture_output=True, text=True, check=True).stdout
    for target in ("demo", "test", "lint", "types", "bench", "soak", "conformance-full", "clean", "help"):
        assert f"make {target} " in shown


def test_the_locks_name_no_host() -> None:
    for lock in (ROOT / "requirements").iterdir():
        assert "://" not in lock.read_text(), lock.name
