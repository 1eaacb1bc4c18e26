"""The embedded namespace's time: milliseconds since the Unix epoch, and one way to be woken.

Nothing else in the namespace asks what time it is, so a test that owns the clock owns every lock, expiry and
schedule.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Protocol


class Alarm(Protocol):
    """A pending wake-up."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """What tells the time and wakes."""

    def now_ms(self) -> int: ...

    def call_at(self, when_ms: int, callback: Callable[[], None]) -> Alarm: ...


class SystemClock:
    """The machine's clock; wakes through the running asyncio loop."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def call_at(self, when_ms: int, callback: Callable[[], None]) -> Alarm:
        # A day at most per sleep: asyncio refuses very long ones, and waking early is harmless.
        delay = min(max(0, when_ms - self.now_ms()), 86_400_000) / 1000
        return asyncio.get_running_loop().call_later(delay, callback)
