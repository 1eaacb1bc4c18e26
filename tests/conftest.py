"""For every test: servers are listed in a run folder of the test run, never in the user's own; nothing is published.

Run in parallel (`-n`), the tests of one file stay together, and so do all that use Spark: they share its session. The
files that take minutes begin first, so that at the end nobody waits for one of them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling

pytest_plugins = ["tests.support.spark"]

USES_SPARK = ("test_pipeline_", "test_connector_", "test_spark_")
STARTS_ITS_OWN_SPARK = ("test_pipeline_commands", "test_connector_secrets", "test_spark_syphon_cluster")
TAKES_MINUTES = (
    "test_live_suite",
    "test_newcomer",
    "test_docs_blocks",
    "test_syphon_many",
    "test_syphon_crash",
    "test_spark_syphon_cluster",
    "test_examples",
    "test_demo",
    "test_package",
    "test_pipeline_commands",
    "test_connector_secrets",
    "test_kill_server",
)


@pytest.fixture(autouse=True)
def log_settings_stay() -> Iterator[None]:
    """A command that is run in the test's own process sets up the log of the process."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
    root.setLevel(level)
    for handler in [one for one in root.handlers if one not in handlers]:
        root.removeHandler(handler)


@pytest.fixture(scope="session", autouse=True)
def run_folder_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("run")))
        patch.delenv("PAIRBUS_STATE_DIR", raising=False)
        yield


def scope_of(file: str) -> str:
    """What one worker runs from its beginning to its end."""
    name = PurePath(file).stem
    shares = name.startswith(USES_SPARK) and name not in STARTS_ITS_OWN_SPARK
    return "spark" if shares else file


def place_of(item: pytest.Item) -> int:
    name = item.path.stem
    if scope_of(name) == "spark":
        return 0
    return TAKES_MINUTES.index(name) + 1 if name in TAKES_MINUTES else len(TAKES_MINUTES) + 1


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=place_of)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return scope_of(nodeid.partition("::")[0])

    return ByFile(config, log)
