"""Completion: what bash really offers, and what zsh and fish are told when they ask."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent


def environment(home: Path, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PAIRBUS_")}
    return {**kept, "PATH": f"{BIN}:{os.environ['PATH']}", "HOME": str(home), **more}


def offered_by_bash(home: Path, *words: str) -> list[str]:
    """What bash completes the last word to, with the script of `pairbus completion bash`."""
    quoted = " ".join(f"'{word}'" for word in words)
    script = (
        'eval "$(pairbus completion bash)"\n'
        f"COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}\n"
        "_pairbus_completion pairbus\n"
        'printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", script], env=environment(home), capture_output=True, text=True, check=True
    )
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("pairbus", "sy"), ["syphon"]),
        (("pairbus", "d"), ["demo", "doctor", "drill", "deadletters", "dashboard"]),
        (("pairbus", "backlog", ""), ["list", "peek", "prune"]),
        (("pairbus", "fault", "contoso", "--mode", "h"), ["hang"]),
        (("pairbus", "syphon", "--engine", ""), ["process", "spark"]),
        (("pairbus", "syphon", "--inc"), ["--include-extra"]),
        (("pairbus", "completion", ""), ["bash", "zsh", "fish"]),
    ],
)
def test_bash_completes(tmp_path: Path, words: tuple[str, ...], offered: list[str]) -> None:
    assert offered_by_bash(tmp_path, *words) == offered


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_are_answered(tmp_path: Path, shell: str) -> None:
    script = subprocess.run(
        [BIN / "pairbus", "completion", shell], env=environment(tmp_path), capture_output=True, text=True, check=True
    ).stdout
    assert f"_PAIRBUS_COMPLETE=complete_{shell}" in script
    asked = {
        "_PAIRBUS_COMPLETE": f"complete_{shell}",
        "_TYPER_COMPLETE_ARGS": "pairbus sy",
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    answer = subprocess.run(
        [BIN / "pairbus"], env=environment(tmp_path, **asked), capture_output=True, text=True, check=True
    ).stdout
    assert "syphon" in answer
    assert "serve" not in answer


def test_it_installs_itself_for_the_shell_it_is_called_from(tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", "--norc", "-c", "pairbus --install-completion; true"],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        check=True,
    )
    assert "bash completion installed in" in done.stdout, done.stderr
    assert "_pairbus_completion" in (tmp_path / ".bash_completions" / "pairbus.sh").read_text()
    assert str(tmp_path / ".bash_completions" / "pairbus.sh") in (tmp_path / ".bashrc").read_text()
