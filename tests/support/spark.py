"""The pytest fixture `spark`: one local Spark session for a whole test run, started by the first test that
asks.

Use it with `pytest_plugins = ["tests.support.spark"]` in the top `conftest.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    # Imported late: a run without Spark tests does not load Spark.
    from pairbus.pipeline.session import local_session

    session = local_session("pairbus-tests", cores=2, settings={"spark.sql.shuffle.partitions": "2"})
    try:
        yield session
    finally:
        session.stop()
