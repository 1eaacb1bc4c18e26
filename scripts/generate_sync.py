"""Generate `pairbus/pairing/_sync` from `pairbus/pairing/_aio`; `--check` only reports what is out of date.

A file is translated token by token: `async` and `await` are removed, and the names below change. `runtime.py` exists in
both folders, written by hand.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tokenize
from pathlib import Path

PAIRING = Path(__file__).resolve().parents[1] / "src" / "pairbus" / "pairing"
BY_HAND = {"__init__.py", "runtime.py"}
NOTE = "# Generated from ../_aio/{name} by scripts/generate_sync.py: change that file, not this one.\n"

NAMES = {
    "_aio": "_sync",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "Awaitable": "",
}
TEXTS = (
    ("azure.servicebus.aio.management", "azure.servicebus.management"),
    ("azure.servicebus.aio", "azure.servicebus"),
    ("Callable[[], Awaitable[T]]", "Callable[[], T]"),
    ("Callable[[], Awaitable[None]]", "Callable[[], None]"),
    ("Callable[[ServiceBusSender, float], Awaitable[T]]", "Callable[[ServiceBusSender, float], T]"),
    ("import Awaitable, Callable", "import Callable"),
    ("  # noqa: ASYNC109 - the SDK's name", ""),
)


def translate(source: str, name: str) -> str:
    """Translate one aio module into its sync twin."""
    for old, new in TEXTS:
        source = source.replace(old, new)
    tokens = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        text = token.string
        if token.type == tokenize.NAME and text in ("async", "await"):
            text = ""
        elif token.type == tokenize.NAME:
            text = NAMES.get(text, text)
        tokens.append((token, text))
    return NOTE.format(name=name) + _replace_tokens(source, tokens)


def _replace_tokens(source: str, tokens: list[tuple[tokenize.TokenInfo, str]]) -> str:
    """Put the changed tokens into the source; the blank after a removed token goes too."""
    lines = source.splitlines(keepends=True)
    changes: dict[int, list[tuple[int, int, str]]] = {}
    for token, text in tokens:
        if text != token.string:
            row, begin = token.start
            end = token.end[1]
            if not text and lines[row - 1][end : end + 1] == " ":
                end += 1
            changes.setdefault(row - 1, []).append((begin, end, text))
    for row, edits in changes.items():
        for begin, end, text in sorted(edits, reverse=True):
            lines[row] = lines[row][:begin] + text + lines[row][end:]
    return "".join(lines)


def formatted(source: str, path: Path) -> str:
    for command in (["check", "--select", "I", "--fix", "--quiet"], ["format"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(path), "-"],
            input=source,
            capture_output=True,
            text=True,
            check=True,
        )
        source = done.stdout
    return source


def generated() -> dict[Path, str]:
    """The generated files and their contents."""
    return {
        PAIRING / "_sync" / path.name: formatted(
            translate(path.read_text(encoding="utf-8"), path.name), PAIRING / "_sync" / path.name
        )
        for path in sorted((PAIRING / "_aio").glob("*.py"))
        if path.name not in BY_HAND
    }


def main() -> int:
    stale = [
        path for path, text in generated().items() if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    if "--check" in sys.argv[1:]:
        for path in stale:
            sys.stderr.write(f"{path.name} is out of date. Run scripts/generate_sync.py.\n")
        return 1 if stale else 0
    texts = generated()
    for path in stale:
        path.write_text(texts[path], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
