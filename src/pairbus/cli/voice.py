"""What a command says beside its result: remarks on standard error, which --quiet silences.

Results and refusals are never silenced.
"""

from __future__ import annotations

import sys

_quiet = False


def be_quiet(quiet: bool) -> None:
    global _quiet
    _quiet = quiet


def is_quiet() -> bool:
    return _quiet


def remark(sentence: str) -> None:
    """One line for whoever watches; nobody's result."""
    if not _quiet:
        sys.stderr.write(f"{sentence}\n")
        sys.stderr.flush()


def shows_progress() -> bool:
    """Whether a display that moves makes sense: someone watches a terminal and did not ask for silence."""
    return not _quiet and sys.stderr.isatty()
