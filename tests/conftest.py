"""For every test: servers are listed in a run folder of the test run, never in the user's own; nothing is published.

Run in parallel (`-n`), the tests of one file stay together, and so do all that use Spark: they share its session.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling

pytest_plugins = ["pairbus.testing.spark"]

USES_SPARK = ("test_pipeline_", "test_connector_", "test_spark_")


@pytest.fixture(scope="session", autouse=True)
def run_folder_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("run")))
        patch.delenv("PAIRBUS_STATE_DIR", raising=False)
        yield


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return "spark" if PurePath(file).name.startswith(USES_SPARK) else file

    return ByFile(config, log)
