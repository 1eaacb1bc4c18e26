#!/usr/bin/env python3
"""Run the demo and save its terminal output as docs/images/demo.svg, the picture in the README.

    .venv/bin/python scripts/demo_picture.py

The output is that of a real run. Only the path of the clone is shortened. The SVG loads nothing from the network.
"""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "images" / "demo.svg"
COLUMNS = 118


def run_demo(folder: Path) -> str:
    """Return everything that `pairbus demo` prints on a terminal, escape sequences included."""
    controller, terminal = pty.openpty()
    environment = os.environ | {"COLUMNS": str(COLUMNS), "LINES": "60", "TERM": "xterm-256color"}
    environment.pop("NO_COLOR", None)
    command = [sys.executable, "-m", "pairbus.cli", "demo"]
    with subprocess.Popen(
        command, stdin=terminal, stdout=terminal, stderr=terminal, env=environment, cwd=folder
    ) as demo:
        os.close(terminal)
        output = bytearray()
        while True:
            try:
                chunk = os.read(controller, 65536)
            except OSError:  # the terminal's last process has ended
                break
            if not chunk:
                break
            output += chunk
    os.close(controller)
    if demo.returncode:
        sys.exit(f"The demo failed with exit code {demo.returncode}:\n{output.decode(errors='replace')}")
    return output.decode("utf-8").replace(f"{folder}{os.sep}", "")


def final_lines(output: str) -> str:
    """Drop cursor movements and lines that were overwritten: what stays on the screen at the end."""
    output = re.sub(r"\x1b\[\?25[hl]", "", output.replace("\r\n", "\n"))
    lines: list[str] = []
    for line in output.split("\n"):
        ups = line.count("\x1b[1A")
        if ups:
            del lines[max(0, len(lines) - ups) :]
        lines.append(re.sub(r"\x1b\[(?:1A|2K)", "", line).rsplit("\r", 1)[-1])
    return "\n".join(lines).strip("\n")


def draw(output: str) -> str:
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(output), soft_wrap=False)
    offline = re.sub(r"@font-face \{\{.*?\}\}\s*|<!--.*?-->\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    return console.export_svg(title="make demo", code_format=offline, unique_id="demo")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        PICTURE.write_text(draw(final_lines(run_demo(Path(folder)))), encoding="utf-8")
    print(PICTURE.relative_to(ROOT))


if __name__ == "__main__":
    main()
