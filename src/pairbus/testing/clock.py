"""A clock that a test controls: time stands still until the test advances it.

Invariants:
- Alarms ring in order of time, then in the order they were set.
- While an alarm rings, the clock shows that alarm's time. `advance` returns when every due alarm has rung, including
  alarms that were set meanwhile.
- An alarm that was set on an event loop rings on that loop, whichever thread calls `advance`.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

START_MS = 1_735_689_600_000  # 2025-01-01T00:00:00Z
RING_TIMEOUT_SECONDS = 120.0


@dataclass(order=True, slots=True)
class _Alarm:
    when_ms: int
    order: int
    callback: Callable[[], None] = field(compare=False)
    loop: asyncio.AbstractEventLoop | None = field(compare=False)
    cancelled: bool = field(default=False, compare=False)

    def cancel(self) -> None:
        self.cancelled = True


class ManualClock:
    """A `Clock` for `EmbeddedNamespace(clock=...)` and the like."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self._now_ms = now_ms
        self._alarms: list[_Alarm] = []
        self._orders = itertools.count()
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"ManualClock(now_ms={self._now_ms}, alarms={len(self._alarms)})"

    def now_ms(self) -> int:
        return self._now_ms

    def call_at(self, when_ms: int, callback: Callable[[], None]) -> _Alarm:
        alarm = _Alarm(when_ms, next(self._orders), callback, _running_loop())
        with self._lock:
            heapq.heappush(self._alarms, alarm)
        return alarm

    def advance(self, seconds: float) -> None:
        """Move time forward and ring the alarms that fall due."""
        if seconds < 0:
            raise ValueError(f"Time cannot go back: advance({seconds}) needs seconds of 0 or more.")
        end_ms = self._now_ms + round(seconds * 1000)
        while (alarm := self._next_due(end_ms)) is not None:
            self._now_ms = max(self._now_ms, alarm.when_ms)
            _ring(alarm)
        self._now_ms = end_ms

    def _next_due(self, end_ms: int) -> _Alarm | None:
        with self._lock:
            while self._alarms and (self._alarms[0].cancelled or self._alarms[0].when_ms <= end_ms):
                alarm = heapq.heappop(self._alarms)
                if not alarm.cancelled:
                    return alarm
        return None


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _ring(alarm: _Alarm) -> None:
    loop = alarm.loop
    if loop is None or loop is _running_loop():
        alarm.callback()
        return
    if loop.is_closed():
        return
    rung: Future[None] = Future()

    def on_loop() -> None:
        try:
            if not alarm.cancelled:
                alarm.callback()
        except BaseException as error:
            rung.set_exception(error)
            raise
        rung.set_result(None)

    loop.call_soon_threadsafe(on_loop)
    rung.result(timeout=RING_TIMEOUT_SECONDS)
