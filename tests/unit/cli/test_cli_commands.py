"""What all commands share: help that teaches, options that mean the same, exit codes that are documented."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pairbus.cli.__main__ import command_tree, run
from pairbus.cli.commands import EXAMPLES, VARIABLES, variable_of
from pairbus.cli.output import ANSWERS, EXIT_CODES

REFERENCE = Path(__file__).parents[3] / "docs" / "reference" / "cli.md"
TREE = command_tree()
WITHOUT_JSON = {"completion", "demo", "dashboard"}
"""Commands without a result to read: a script for a shell, a story for people, a page for a browser."""


def leaves(command: Any = TREE, above: str = "") -> Iterator[tuple[str, Any]]:
    for name, below in command.commands.items():
        path = f"{above} {name}".strip()
        if hasattr(below, "commands"):
            yield from leaves(below, path)
        else:
            yield path, below


COMMANDS = dict(leaves())


def options(command: Any) -> set[str]:
    return {option for param in command.params for option in param.opts}


def help_of(path: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert run([*path.split(), "--help"]) == 0
    return capsys.readouterr().out


def test_every_registered_command_has_its_place() -> None:
    from pairbus.cli.__main__ import app

    registered = {command.name for command in app.registered_commands}
    registered |= {group.name for group in app.registered_groups}
    assert set(TREE.commands) == registered


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_takes_what_all_take(path: str) -> None:
    assert {"--quiet", "--config"} <= options(COMMANDS[path])
    assert ("--json" in options(COMMANDS[path])) or path in WITHOUT_JSON


@pytest.mark.parametrize("path", ["", *COMMANDS])
def test_help_shows_words_and_examples(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of(path, capsys)
    assert "Examples:\n  pairbus" in text
    usage, text = text.split("\n", 1)
    assert not re.search(r"<[a-z]+|<=|>=|list\[|\bNone\b|\.\.\.$|(?<!\.)\.\.(?![./])|\?\.|;\.", text, re.MULTILINE), (
        text
    )
    assert "{" not in usage


@pytest.mark.parametrize(("path", "line"), [(path, line) for path, lines in EXAMPLES.items() for line in lines])
def test_the_examples_can_be_typed(path: str, line: str) -> None:
    words = shlex.split(line.partition("   ")[0].partition(" > ")[0])[1:]
    command: Any = TREE
    context = command.context_class(command, info_name="pairbus")
    typed: list[str] = []
    while hasattr(command, "commands"):
        _, rest, _ = command.make_parser(context).parse_args(args=words)
        typed.append(rest[0])
        command, words = command.commands[rest[0]], rest[1:]
        context = command.context_class(command, info_name=typed[-1], parent=context)
    command.make_parser(context).parse_args(args=words)
    assert " ".join(typed).startswith(path)


def test_every_command_has_examples() -> None:
    assert set(COMMANDS) <= set(EXAMPLES)


def test_no_two_options_share_a_variable() -> None:
    names: dict[str, str] = {}
    for path, command in COMMANDS.items():
        for param in command.params:
            name = variable_of(path, param)
            if name is None or param.name in ("config", "quiet", *VARIABLES):
                continue
            assert name not in names, f"{path} {param.name} and {names[name]}"
            names[name] = f"{path} {param.name}"
    assert {"PAIRBUS_SYPHON_RATE", "PAIRBUS_FAULT_JSON", "PAIRBUS_FAULT_FOR", "PAIRBUS_LEDGER_REPORT_FROM"} <= set(
        names
    )


def test_the_reference_lists_every_command_and_every_exit_code() -> None:
    text = REFERENCE.read_text(encoding="utf-8")
    for path, command in COMMANDS.items():
        section = text.partition(f"\n## pairbus {path}\n")[2].partition("\n## ")[0]
        for param in command.params:
            if param.param_type_name == "option" and not param.hidden:
                assert max(param.opts, key=len) in section, f"{path} {param.opts}"
    for code, meaning in EXIT_CODES.items():
        assert f"| {code} | {meaning} |" in text
    for path, meaning in ANSWERS.items():
        assert path in COMMANDS
        assert f"| `pairbus {path}` | {meaning} |" in text
