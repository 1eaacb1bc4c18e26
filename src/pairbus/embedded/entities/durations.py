"""Durations as the service writes them: ISO 8601 text outside, integer milliseconds inside.

The largest .NET time span means "for ever". Clients print it with seven decimals, with six, or rounded up by
their own arithmetic, so every duration of at least `FOREVER_MS` whole milliseconds is read as `FOREVER_MS`.
"""

import re

from pairbus.embedded.errors import InvalidError

SECOND_MS = 1_000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
FOREVER_MS = 922_337_203_685_477
FOREVER_TEXT = "P10675199DT2H48M5.4775807S"

_ISO_8601 = re.compile(
    r"P(?:(?P<weeks>\d{1,9})W|(?:(?P<days>\d{1,9})D)?"
    r"(?P<time>T(?:(?P<hours>\d{1,9})H)?(?:(?P<minutes>\d{1,9})M)?(?:(?P<seconds>\d{1,12})(?:\.(?P<fraction>\d{1,9}))?S)?)?)",
    re.ASCII,
)
_UNITS = (
    ("weeks", 7 * DAY_MS),
    ("days", DAY_MS),
    ("hours", HOUR_MS),
    ("minutes", MINUTE_MS),
    ("seconds", SECOND_MS),
)


def parse_duration(text: str) -> int:
    """Milliseconds of an ISO 8601 duration without years and months, which have no fixed length."""
    match = _ISO_8601.fullmatch(text.strip())
    if match is None or text.strip() == "P" or match["time"] == "T":
        raise InvalidError(
            f"'{text[:64]}' is not a duration: write it in ISO 8601 with days and smaller, such as PT30S or P1DT2H."
        )
    total = sum(int(match[name] or 0) * unit for name, unit in _UNITS)
    total += int((match["fraction"] or "0").ljust(3, "0")[:3])
    return min(total, FOREVER_MS)


def format_duration(duration_ms: int) -> str:
    """The shortest ISO 8601 text; for ever is the largest .NET time span."""
    if duration_ms >= FOREVER_MS:
        return FOREVER_TEXT
    days, rest = divmod(duration_ms, DAY_MS)
    hours, rest = divmod(rest, HOUR_MS)
    minutes, rest = divmod(rest, MINUTE_MS)
    seconds, fraction = divmod(rest, SECOND_MS)
    time = "".join(f"{value}{unit}" for value, unit in ((hours, "H"), (minutes, "M")) if value)
    if fraction:
        time += f"{seconds}.{fraction:03d}".rstrip("0") + "S"
    elif seconds:
        time += f"{seconds}S"
    day = f"{days}D" if days else ""
    if not time:
        return f"P{day}" if day else "PT0S"
    return f"P{day}T{time}"
