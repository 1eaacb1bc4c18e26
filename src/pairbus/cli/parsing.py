"""Values that people type, and what they mean."""

from __future__ import annotations

import re
from pathlib import Path

from pairbus.cli.refusal import Refusal

_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)")
LARGEST_BYTES = 1024 * 1024
LONGEST_MS = 7 * 24 * 3_600_000


def file_text(what: str, path: Path) -> str:
    """The text of a small file that the user names; `what` says what it should be, as in 'The fleet'."""
    try:
        with path.open("rb") as file:
            raw = file.read(LARGEST_BYTES + 1)
        if len(raw) > LARGEST_BYTES:
            raise Refusal(f"{what} {path} has more than {LARGEST_BYTES:,} bytes: is it the right file?")
        return raw.decode("utf-8")
    except OSError as error:
        raise Refusal(f"{what} {path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise Refusal(f"{what} {path} is not TOML: {error}.") from error


def holds_key(text: str) -> bool:
    """Whether a text is, or was meant to be, a connection string: then it is never shown, however it is spelt."""
    folded = text.casefold()
    return "sharedaccess" in folded or "endpoint=" in folded or (";" in text and "=" in text)


def duration_ms(option: str, text: str) -> int:
    """`30s`, `200ms`, `1.5m`, `1h` in milliseconds."""
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None:
        raise Refusal(f"{option} '{text}' is not a duration: give a number with a unit, such as 200ms, 30s, 5m or 1h.")
    value = float(found[1]) * _UNITS_MS[found[2]]
    if value > LONGEST_MS:
        raise Refusal(f"{option} '{text}' is longer than 7 days: give less, such as 1h.")
    if round(value) == 0:
        raise Refusal(f"{option} '{text}' is no time at all: give more, such as 200ms or 30s.")
    return round(value)
