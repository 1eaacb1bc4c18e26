"""The two aliases of the backlog form that are times, read in every type that clients have written.

What nobody can read raises an `AliasError`; None stands for an alias that is not there.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

from pairbus.amqp.types import Described, Timestamp
from pairbus.errors import AliasError

TIME_TO_LIVE = "x-ms-timetolive"
SCHEDULED_TIME = "x-ms-scheduledenqueuetimeutc"

_TICKS_PER_MS = 10_000
_TICKS_AT_UNIX_EPOCH = 621_355_968_000_000_000
_SECONDS_BELOW = 100_000_000_000
_LARGEST_TIME_SPAN_MS = 922_337_203_685_477


def time_to_live_ms(value: Any) -> int | None:
    """Milliseconds of a time to live alias.

    A long is ours: milliseconds. Older clients left a .NET time span (a described type whose value counts
    ticks of 100 ns), any other number in seconds, or a duration as text (ISO 8601, or .NET's d.hh:mm:ss).
    More than .NET's largest time span is that: for ever.
    """
    milliseconds: int | None = None
    match value:
        case None:
            return None
        case bool():
            pass
        case Described(descriptor="com.microsoft:timespan", value=int() as ticks):
            milliseconds = ticks // _TICKS_PER_MS
        case int() if type(value) is int:
            milliseconds = value
        case int() | float() if not isinstance(value, Timestamp) and value == value:
            milliseconds = _whole(float(value) * 1000)
        case str():
            milliseconds = _duration_ms(value)
    if milliseconds is None or milliseconds < 0:
        raise AliasError(
            TIME_TO_LIVE, value, "milliseconds as a long, seconds as another number, a time span or ISO 8601"
        )
    return min(milliseconds, _LARGEST_TIME_SPAN_MS)


def scheduled_ms(value: Any) -> int | None:
    """Milliseconds since the Unix epoch of a scheduled time alias.

    A timestamp is ours. Older clients left a .NET date (a described type that counts ticks of 100 ns from
    the year 1), a number of seconds since the epoch (milliseconds if it could not be seconds), or ISO 8601.
    """
    milliseconds: int | None = None
    match value:
        case None:
            return None
        case bool():
            pass
        case Timestamp():
            milliseconds = int(value)
        case Described(descriptor="com.microsoft:datetime-offset", value=int() as ticks):
            milliseconds = (ticks - _TICKS_AT_UNIX_EPOCH) // _TICKS_PER_MS
        case int() | float() if value == value:
            milliseconds = _whole(float(value) * 1000 if abs(value) < _SECONDS_BELOW else float(value))
        case str():
            milliseconds = _instant_ms(value)
    if milliseconds is None:
        raise AliasError(SCHEDULED_TIME, value, "a timestamp, seconds since 1970 as a number, or ISO 8601")
    return milliseconds


def _whole(milliseconds: float) -> int | None:
    return round(milliseconds) if abs(milliseconds) < 2**63 else None


_ISO_DURATION = re.compile(
    r"P(?:(?P<days>\d+(?:\.\d+)?)D)?"
    r"(?:T(?:(?P<hours>\d+(?:\.\d+)?)H)?(?:(?P<minutes>\d+(?:\.\d+)?)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?"
)
_NET_DURATION = re.compile(
    r"(?:(?P<days>\d+)\.)?(?P<hours>\d{1,2}):(?P<minutes>\d{2})(?::(?P<seconds>\d{2}(?:\.\d+)?))?"
)


def _duration_ms(text: str) -> int | None:
    found = _ISO_DURATION.fullmatch(text) or _NET_DURATION.fullmatch(text)
    if found is None or not any(found.groups()):
        return None
    weights = (("days", 86_400_000), ("hours", 3_600_000), ("minutes", 60_000), ("seconds", 1000))
    return _whole(sum(float(found[unit]) * weight for unit, weight in weights if found[unit]))


def _instant_ms(text: str) -> int | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
