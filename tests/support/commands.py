"""Runs `pairbus` commands one after the other in one child process, so that they share one Java."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

PROGRAM = """
import contextlib, io, json, sys
from pairbus.cli.__main__ import run

for line in sys.stdin:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(json.loads(line))
    print(json.dumps([code, out.getvalue(), err.getvalue()]), flush=True)
"""


class CommandProcess:
    """Runs commands as `pairbus` does. The standard error of an answer includes whatever Java wrote to its own."""

    def __init__(self, process: subprocess.Popen[str], errors: IO[str]) -> None:
        self._process = process
        self._errors = errors

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        errors = self._errors.read()
        assert answer, f"the process ended: {errors}"
        code, out, err = json.loads(answer)
        return subprocess.CompletedProcess(["pairbus", *words], code, out, err + errors)


@contextmanager
def command_process() -> Iterator[CommandProcess]:
    with tempfile.NamedTemporaryFile("r", encoding="utf-8") as errors, Path(errors.name).open("ab") as target:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=target, text=True
        )
        with process:
            try:
                yield CommandProcess(process, errors)
            finally:
                assert process.stdin is not None
                process.stdin.close()
                process.wait(60)
