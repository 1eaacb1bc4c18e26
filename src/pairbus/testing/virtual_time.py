"""An event loop whose clock jumps: an hour of waiting takes no time.

For code that waits only for timers and for other tasks of the same loop. When nothing is ready, the clock jumps to the
next timer; when there is no timer either, nobody could ever wake the program, and that is an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        super().__init__()
        self._virtual_now = 0.0

    def time(self) -> float:
        return self._virtual_now

    def _run_once(self) -> None:
        inner: Any = self
        while inner._scheduled and inner._scheduled[0]._cancelled:
            # The loop itself removes cancelled timers only after it has waited for them.
            handle = inner._scheduled[0]
            inner._scheduled.remove(handle)
            inner._timer_cancelled_count -= 1
            handle._scheduled = False
            import heapq

            heapq.heapify(inner._scheduled)
        if not inner._ready and not inner._stopping:
            if not inner._scheduled:
                raise RuntimeError(
                    "Nothing is ready and no timer is set: everyone waits for something that never comes."
                )
            self._virtual_now = max(self._virtual_now, inner._scheduled[0]._when)
        super()._run_once()  # type: ignore[misc]


def run_in_virtual_time(main: Coroutine[Any, Any, T]) -> T:
    """Like `asyncio.run`, on a loop whose clock jumps."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
