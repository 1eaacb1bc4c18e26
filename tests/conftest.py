"""Settings of every test run.

- Servers are listed in a run folder of the test run, never in the user's own.
- Every Spark that a test starts, in whatever process, compiles less (`pairbus.pipeline.small_tables`). What users run
  has Spark's own settings in tests/integration/pipeline/test_pipeline_commands.py.
- In parallel (`-n`), a worker runs a file from its beginning to its end. Files whose tests use the fixture `spark` form
  a few groups, and each group shares one session. Slow files start first, so that no worker waits for one at the end.
- Each failure comes with the command that runs this one test again.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import pytest

from pairbus.pipeline.small_tables import JAVA_OPTIONS, SMALL_TABLES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from xdist.scheduler import LoadScopeScheduling

GROUPS = {
    "spark-tables": ("test_pipeline_build", "test_pipeline_copies", "test_pipeline_bounds", "test_pipeline_looks"),
    "spark-days": ("test_pipeline_days", "test_pipeline_drill", "test_pipeline_kill"),
    "spark-audit": ("test_pipeline_audit", "test_pipeline_gold", "test_pipeline_simulation"),
    "spark-connector": ("test_connector_reading", "test_connector_writing", "test_connector_kill", "test_spark_syphon"),
    "wheel": ("test_demo", "test_package"),
}
"""Files that one worker runs, because they share a Spark session or the wheel."""
SLOWEST_FIRST = (
    "spark-days",
    "test_live_suite",
    "spark-tables",
    "test_newcomer",
    "spark-connector",
    "spark-audit",
    "wheel",
    "test_docs_blocks",
    "test_syphon_many",
    "test_syphon_crash",
    "test_spark_syphon_cluster",
    "test_examples",
    "test_pipeline_commands",
    "test_connector_secrets",
    "test_kill_server",
    "test_syphon_records",
    "test_publishing",
)
"""Those that compute among those that wait: at any time some of the workers do the one, some the other."""
SPARK_DEFAULTS = {**SMALL_TABLES, "spark.executor.defaultJavaOptions": JAVA_OPTIONS}


@pytest.fixture(autouse=True)
def restore_log_settings() -> Iterator[None]:
    """Undo the log settings of commands that run in the test's own process."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
    root.setLevel(level)
    for handler in [handler for handler in root.handlers if handler not in handlers]:
        root.removeHandler(handler)


@pytest.fixture(scope="session", autouse=True)
def test_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    spark_settings = tmp_path_factory.mktemp("spark-settings")
    (spark_settings / "spark-defaults.conf").write_text(
        "".join(f"{name} {value}\n" for name, value in SPARK_DEFAULTS.items())
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("run")))
        patch.setenv("SPARK_CONF_DIR", str(spark_settings))
        patch.delenv("PAIRBUS_STATE_DIR", raising=False)
        yield


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One local session for all tests of a worker, started by the first test that uses it."""
    from pairbus.pipeline.session import local_session  # late: a run without Spark tests does not load Spark

    session = local_session("pairbus-tests", cores=2, settings=SMALL_TABLES)
    try:
        yield session
    finally:
        session.stop()


def scope_of(file: str) -> str:
    """The group that a worker runs from its beginning to its end."""
    name = PurePath(file).stem
    return next((group for group, names in GROUPS.items() if name in names), file)


def start_rank(item: pytest.Item) -> int:
    scope = PurePath(scope_of(item.path.name)).stem
    return SLOWEST_FIRST.index(scope) if scope in SLOWEST_FIRST else len(SLOWEST_FIRST)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=start_rank)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return scope_of(nodeid.partition("::")[0])

    return ByFile(config, log)


def rerun_command(nodeid: str) -> str:
    """The command that runs one test again. A parameter that no quoting keeps intact is left out."""
    if re.search(r"['\"$`\\\n#]", nodeid) or not nodeid.isascii():
        nodeid = nodeid.partition("[")[0]
    return f"make test ARGS='\"{nodeid}\"'" if " " in nodeid else f"make test ARGS='{nodeid}'"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [report for outcome in ("failed", "error") for report in terminalreporter.stats.get(outcome, [])]
    for nodeid in dict.fromkeys(report.nodeid for report in reports):
        terminalreporter.write_line(f"rerun: {rerun_command(nodeid)}")
