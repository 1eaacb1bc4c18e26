"""Blocking work on a stage is finished before an interrupt takes effect."""

from __future__ import annotations

import asyncio
import threading

import pytest

from pairbus.drill.stage import on_thread


def test_a_cancellation_waits_for_the_work() -> None:
    begun, may_end, done = threading.Event(), threading.Event(), []

    def work() -> None:
        begun.set()
        may_end.wait(30)
        done.append("done")

    async def main() -> None:
        task = asyncio.ensure_future(on_thread(work))
        await asyncio.to_thread(begun.wait, 30)
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert done == ["done"]


def test_a_result_and_an_error_pass_through() -> None:
    assert asyncio.run(on_thread(int, "7")) == 7
    with pytest.raises(ValueError, match="invalid literal"):
        asyncio.run(on_thread(int, "x"))
