"""Spark starts while the story begins."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future

import pytest

from pairbus.demo import story


def test_spark_that_never_starts_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(story, "SPARK_SECONDS", 0.01)
    with pytest.raises(story.SparkLateError, match=r"Spark did not start within 0\.01 s: check that"):
        asyncio.run(story._started(Future()))
    session: Future[str] = Future()
    session.set_result("the session")
    assert asyncio.run(story._started(session)) == "the session"
