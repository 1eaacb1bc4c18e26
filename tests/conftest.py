"""For every test: servers are listed in a run folder of the test run, never in the user's own.

Run in parallel (`-n`), the tests of one file stay together, and so do all that use Spark: they share its session.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest_plugins = ["pairbus.testing.spark"]


@pytest.fixture(scope="session", autouse=True)
def run_folder_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("run")))
        yield


# First: the plug-in that distributes the tests reads the groups in the same hook.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        uses_spark = "spark" in getattr(item, "fixturenames", ())
        item.add_marker(pytest.mark.xdist_group("spark" if uses_spark else str(item.path)))
