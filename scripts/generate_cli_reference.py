"""Writes docs/reference/cli.md from the commands' own help. With --check it only compares them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pairbus.cli.__main__ import command_tree
from pairbus.cli.output import ANSWERS, EXIT_CODES

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "reference" / "cli.md"

OPENING = """\
# Command line

`scripts/generate_cli_reference.py` writes this page from the commands' own help; a test fails when they differ.

Results go to standard output, everything else to standard error. An error is one sentence: the value, what was
expected, and what to do. Progress is shown only on a terminal; redirected output has no control codes.

## Exit codes

| exit code | meaning |
|---|---|
"""

AFTER_CODES = """
What 1 means, for each command that uses it:

| command | exits with 1 if |
|---|---|
"""

OPTIONS = """
## Options from the environment and from a file

The command line overrides the environment, the environment overrides the file of `--config`, and the file overrides the
defaults.

- Every option has a variable: `PAIRBUS_`, the command, the option. `pairbus syphon --rate 200` is
  `PAIRBUS_SYPHON_RATE=200`, `pairbus backlog list --queues 0-4` is `PAIRBUS_BACKLOG_LIST_QUEUES=0-4`; a switch is `1`.
- Some variables apply to all commands: `PAIRBUS_PRIMARY` and `PAIRBUS_SECONDARY` hold connection strings,
  `PAIRBUS_PRIMARY_NAME` is `--primary-name`, `PAIRBUS_STATE_DIR` is `--state-dir`, `PAIRBUS_CONFIG` is `--config`,
  `PAIRBUS_QUIET` is `--quiet`, and `PAIRBUS_CA_FILE` is the CA certificate to trust (that of a local namespace).
- `--config FILE` names a TOML file. It has one table for each command, with its options without their dashes. Options
  for all commands are at its top:

```toml
primary = "env:CONTOSO"           # where the connection string is: env:VARIABLE, a file, or a local namespace
secondary = "secrets/standby.txt" # paths are relative to this file
primary-name = "contoso"
ca-file = "ca.pem"
quiet = false

[syphon]
queues = "0-4"
rate = 200

[ledger.report]
plan = "premium"
```

A connection string in the file is refused: the file belongs in the repository, keys do not. The whole file is checked,
whichever command runs; for an unknown key the error suggests the closest known one.

## Completion

`pairbus --install-completion` installs completion for your current shell. To install it yourself, print the script with
`pairbus completion bash`, `zsh` or `fish`.

## pairbus
"""

SERVER_FILES = """
## Ready file

`--ready-file` gets one JSON object per namespace once the server accepts connections, complete and readable by its
owner only: `name`, `port`, `connection_string`, `ca_file`, `pid`. The server deletes the file when it stops. The same
object is in the data folder as `server.json`, and in the user's run folder (`$XDG_RUNTIME_DIR/pairbus`, else
`~/.cache/pairbus/run`), where `pairbus fault NAME` finds the server.
"""


def paths(command: Any, above: str = "") -> Iterator[str]:
    """The path of every command, as a user types it."""
    for name, below in command.commands.items():
        path = f"{above} {name}".strip()
        if hasattr(below, "commands"):
            yield from paths(below, path)
        elif not below.hidden:
            yield path


HELP_PROGRAM = """
import contextlib, io, json, sys
from pairbus.cli.__main__ import run

helps = []
for path in sys.argv[1:]:
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        run([*path.split(), "--help"])
    helps.append(shown.getvalue())
print(json.dumps(helps))
"""


def helps_of(commands: list[str]) -> list[str]:
    """The help of each command, all from one process with a fixed width."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PAIRBUS_")}
    environment = {**kept, "COLUMNS": "100", "TERMINAL_WIDTH": "100", "NO_COLOR": "1"}
    program = [sys.executable, "-c", HELP_PROGRAM, *commands]
    shown = subprocess.run(program, env=environment, capture_output=True, text=True, check=True)
    return ["\n".join(line.rstrip() for line in text.strip().splitlines()) for text in json.loads(shown.stdout)]


def page() -> str:
    commands = list(paths(command_tree()))
    root, *helps = helps_of(["", *commands])
    codes = "".join(f"| {code} | {meaning} |\n" for code, meaning in EXIT_CODES.items())
    answers = "".join(f"| `pairbus {path}` | {meaning} |\n" for path, meaning in ANSWERS.items())
    sections = [OPENING, codes, AFTER_CODES, answers, OPTIONS, f"\n```\n{root}\n```\n"]
    sections += [f"\n## pairbus {path}\n\n```\n{text}\n```\n" for path, text in zip(commands, helps, strict=True)]
    return "".join([*sections, SERVER_FILES])


def main() -> int:
    text = page()
    if "--check" in sys.argv[1:]:
        if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == text:
            return 0
        sys.stderr.write(f"{PAGE.relative_to(ROOT)} is out of date: run scripts/{Path(__file__).name}.\n")
        return 1
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
