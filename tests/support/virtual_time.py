"""An event loop with virtual time: an hour of waiting takes no time.

It suits code that waits only for timers and for tasks of the same loop. When nothing is ready, the clock jumps to the
next timer. It is an error if there is no timer either, or if the program never becomes idle.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

SMALLEST_STEP_SECONDS = 1e-9
MOST_TURNS_WITHOUT_TIME = 100_000


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        super().__init__()
        self._virtual_now = 0.0
        self._turns_without_time = 0
        self._clock_resolution = 0.0  # timers ring at their time, not a little earlier

    def time(self) -> float:
        return self._virtual_now

    def _run_once(self) -> None:
        inner: Any = self
        while inner._scheduled and inner._scheduled[0]._cancelled:
            # The loop itself removes cancelled timers only after it has waited for them.
            heapq.heappop(inner._scheduled)._scheduled = False
            inner._timer_cancelled_count -= 1
        if not inner._ready and not inner._stopping:
            if not inner._scheduled:
                raise RuntimeError(
                    "Nothing is ready and no timer is set: every task waits for something that never comes."
                )
            # A little past the timer: a wait too short for a float to show must still end.
            self._virtual_now = max(self._virtual_now, inner._scheduled[0]._when) + SMALLEST_STEP_SECONDS
            self._turns_without_time = 0
        self._turns_without_time += 1
        if self._turns_without_time > MOST_TURNS_WITHOUT_TIME:
            raise RuntimeError(f"Something is always ready, and time stands still at {self._virtual_now}.")
        super()._run_once()  # type: ignore[misc]


def run_in_virtual_time(main: Coroutine[Any, Any, T]) -> T:
    """Like `asyncio.run`, on a loop whose clock jumps."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
