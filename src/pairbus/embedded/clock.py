"""The embedded namespace's clock: milliseconds since the Unix epoch, and one way to be woken.

All other modules read the time from here, so a test that owns the clock controls every lock, expiry and schedule.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Protocol


class Alarm(Protocol):
    """A pending wake-up."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    def now_ms(self) -> int: ...

    def call_at(self, when_ms: int, callback: Callable[[], None]) -> Alarm: ...


class SystemClock:
    """The machine's clock. It wakes callers through the running asyncio loop."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def call_at(self, when_ms: int, callback: Callable[[], None]) -> Alarm:
        # At most a day per sleep: asyncio refuses very long ones, and waking early is harmless.
        delay = min(max(0, when_ms - self.now_ms()), 86_400_000) / 1000
        return asyncio.get_running_loop().call_later(delay, callback)
