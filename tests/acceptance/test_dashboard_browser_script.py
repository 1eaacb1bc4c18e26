"""scripts/browser.sh installs Chromium if it is missing and this user may; it says so first and asks for nothing."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "browser.sh"


class Machine:
    """A PATH that holds only what the test puts there, and a record of what was called."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.calls = folder / "calls"
        self.calls.touch()
        for tool in ("bash", "env"):
            found = shutil.which(tool)
            assert found is not None
            (self.bin / tool).symlink_to(found)

    def has(self, command: str, script: str = "") -> None:
        path = self.bin / command
        path.write_text(f'#!{self.bin}/bash\necho "{command} $*" >> {self.calls}\n{script}\n')
        path.chmod(0o755)

    def run(self, **environment: str) -> tuple[list[str], str]:
        """What was called, and what was said."""
        environment["PATH"] = str(self.bin)
        done = subprocess.run([self.bin / "bash", SCRIPT], env=environment, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
        return self.calls.read_text().splitlines(), done.stderr


def missing(why: str) -> str:
    remedy = "As root: apt-get install chromium"
    return f"There is no Chromium here, and {why}: the browser tests are skipped. {remedy}\n"


INSTALL = "env DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet --no-install-recommends chromium"


def announced(command: str) -> str:
    return f"The browser tests need Chromium. Running: {command} (PAIRBUS_NO_INSTALL=1 prevents this)\n"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_browser_that_is_there_is_used(machine: Machine) -> None:
    machine.has("chromium")
    machine.has("apt-get")
    machine.has("id", "echo 0")
    assert machine.run() == ([], "")


def test_root_installs_it(machine: Machine) -> None:
    machine.has("apt-get")
    machine.has("id", "echo 0")
    calls, said = machine.run()
    assert calls[1:] == ["apt-get install --yes --quiet --no-install-recommends chromium"]
    assert said == announced(INSTALL)


def test_nothing_is_installed_on_request(machine: Machine) -> None:
    for command in ("apt-get", "id", "sudo"):
        machine.has(command)
    assert machine.run(PAIRBUS_NO_INSTALL="1") == ([], missing("PAIRBUS_NO_INSTALL is set"))


def test_old_lists_are_brought_up_to_date(machine: Machine) -> None:
    machine.has("apt-get", f'[ "$1" = update ] && : > {machine.calls}.new; [ -e {machine.calls}.new ]')
    machine.has("id", "echo 0")
    calls, said = machine.run()
    assert [call.split()[1] for call in calls[1:]] == ["install", "update", "install"]
    assert "could not" not in said


def test_sudo_that_asks_for_no_password_will_do(machine: Machine) -> None:
    machine.has("apt-get")
    machine.has("id", "echo 1000")
    machine.has("sudo", 'shift; exec "$@"')
    calls, said = machine.run()
    assert said == announced(f"sudo -n {INSTALL}")
    assert "apt-get install --yes --quiet --no-install-recommends chromium" in calls


def test_a_user_who_may_not_install_it_gets_the_remedy(machine: Machine) -> None:
    machine.has("apt-get")
    machine.has("id", "echo 1000")
    machine.has("sudo", "exit 1")
    calls, said = machine.run()
    assert calls == ["id -u", f"sudo -n {INSTALL}", "sudo -n apt-get update --quiet"]
    assert said == announced(f"sudo -n {INSTALL}") + missing("this user may not install it")


def test_another_system_is_left_alone(machine: Machine) -> None:
    assert machine.run() == ([], missing("no apt-get to install it"))


def test_what_cannot_be_had_is_one_line(machine: Machine) -> None:
    machine.has("apt-get", "exit 100")
    machine.has("id", "echo 0")
    _, said = machine.run()
    assert said.endswith(missing("apt-get could not install it"))
