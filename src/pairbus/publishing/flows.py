"""PURE. The flows of the last hour, and their speed now."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from pairbus.publishing.records import Flow, Moment, Speed

DAY_SECONDS = 86_400
BUCKET_SECONDS = 10
KEPT_BUCKETS = 360
SPEED_SECONDS = 5.0
MOST_PRIMARIES = 50

_FIELDS = Flow.__struct_fields__


class History:
    """The flows of the last hour for each primary, in buckets of `BUCKET_SECONDS`; empty buckets are left out."""

    def __init__(self) -> None:
        self._last: dict[str, Flow] = {}
        self._buckets: dict[str, dict[int, list[int]]] = {}
        self._marks: deque[tuple[float, dict[str, Flow]]] = deque()

    def note(self, totals: Mapping[str, Flow], now: float, monotonic_now: float) -> None:
        """Add the growth of the totals since the last call. `now` is wall-clock time."""
        bucket = int(now) // BUCKET_SECONDS
        for primary, flow in list(totals.items())[:MOST_PRIMARIES]:
            before = self._last.get(primary, Flow())
            if flow != before:
                row = self._buckets.setdefault(primary, {}).setdefault(bucket, [0] * len(_FIELDS))
                for position, name in enumerate(_FIELDS):
                    row[position] += getattr(flow, name) - getattr(before, name)
            self._last[primary] = flow
        for rows in self._buckets.values():
            for old in [number for number in rows if number <= bucket - KEPT_BUCKETS or number > bucket]:
                del rows[old]
        self._marks.append((monotonic_now, dict(totals)))
        while len(self._marks) > 2 and self._marks[1][0] <= monotonic_now - SPEED_SECONDS:
            self._marks.popleft()

    def moments(self) -> list[Moment]:
        return [
            Moment(primary, bucket, Flow(*row))
            for primary, rows in self._buckets.items()
            for bucket, row in sorted(rows.items())
        ]

    def speeds(self) -> list[Speed]:
        """Messages per second over about the last `SPEED_SECONDS`; speeds of 0 are left out."""
        if len(self._marks) < 2:
            return []
        (begin, before), (end, after) = self._marks[0], self._marks[-1]
        seconds = max(end - begin, 1.0)
        speeds = []
        for primary, flow in after.items():
            start = before.get(primary, Flow())
            for name in _FIELDS:
                moved = getattr(flow, name) - getattr(start, name)
                if moved > 0:
                    speeds.append(Speed(primary, name, moved / seconds))
        return speeds
