"""Values that people type, and what they mean."""

from __future__ import annotations

import re

from pairbus.cli.refusal import Refusal

_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)")
LONGEST_MS = 7 * 24 * 3_600_000


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
