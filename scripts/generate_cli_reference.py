"""Writes docs/reference/cli.md from the commands' own help. With --check: says whether it is up to date."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "reference" / "cli.md"
COMMANDS = (
    "serve",
    "fault",
    "syphon",
    "backlog list",
    "backlog peek",
    "backlog prune",
    "deadletters list",
    "deadletters resubmit",
    "ledger build",
    "ledger report",
    "cost estimate",
    "cost forecast",
    "simulate",
    "demo",
)

OPENING = """\
# Command line

Written by `scripts/generate_cli_reference.py` from the commands' own help; a test fails when they differ.

Results go to standard output, everything else to standard error. What goes wrong is one sentence.

| exit code | meaning |
|---|---|
| 0 | done; for `serve` and `syphon`: stopped as asked (Ctrl-C, SIGTERM) |
| 1 | it ran, and the answer is no: a message is lost (`demo`, `ledger report`) |
| 2 | it could not run: a wrong option, a port in use, a server that is not there |
| 130 | interrupted with Ctrl-C |
"""

SERVER_FILES = """
## Ready file

`--ready-file` gets one JSON object when the server takes connections, whole and readable by its owner only, and
loses it when the server stops: `name`, `port`, `connection_string`, `ca_file`, `pid`. The same object lies in the
data folder as `server.json`, and in the user's run folder (`$XDG_RUNTIME_DIR/pairbus`, else
`~/.cache/pairbus/run`), which is how `pairbus fault NAME` finds a server.
"""


def help_of(*words: str) -> str:
    command = [sys.executable, "-m", "pairbus.cli", *words, "--help"]
    environment = {**os.environ, "COLUMNS": "100", "TERMINAL_WIDTH": "100", "NO_COLOR": "1"}
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return "\n".join(line.rstrip() for line in shown.stdout.strip().splitlines())


def page() -> str:
    sections = [OPENING, f"\n```\n{help_of()}\n```\n"]
    sections += [f"\n## pairbus {command}\n\n```\n{help_of(*command.split())}\n```\n" for command in COMMANDS]
    return "".join([*sections, SERVER_FILES])


def main() -> int:
    wanted = page()
    if "--check" in sys.argv[1:]:
        if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == wanted:
            return 0
        sys.stderr.write(f"{PAGE.relative_to(ROOT)} is not up to date: run {Path(__file__).name}.\n")
        return 1
    PAGE.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
