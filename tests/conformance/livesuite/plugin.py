"""The pytest plugin of the suite's own process: puts our stand-ins in place before the suite is imported.

The table below is the whole list of modules that are replaced. The SDK under test is not in it.
"""

import os
import sys
from collections.abc import Generator, Iterator
from itertools import zip_longest
from types import ModuleType

import pytest

from livesuite import azure_common, devtools, namespaces, network, resource_manager
from livesuite.expectations import Expectations

STAND_INS: dict[str, ModuleType] = {
    "azure.common": azure_common,
    "azure.mgmt": ModuleType("azure.mgmt"),
    "azure.mgmt.resource": resource_manager,
    "azure.mgmt.servicebus": resource_manager,
    "azure.mgmt.servicebus.models": resource_manager,
    "devtools_testutils": devtools,
    "devtools_testutils.aio": devtools,
    "devtools_testutils.resource_testcase": devtools,
    "devtools_testutils.sanitizers": devtools,
}

sys.modules.update(STAND_INS)
# Read by the suite when it is imported.
os.environ["SERVICEBUS_ENDPOINT_SUFFIX"] = network.SUFFIX


def pytest_configure(config: pytest.Config) -> None:
    network.install()


def pytest_sessionfinish(session: pytest.Session) -> None:
    namespaces.stop_all()


def pytest_unconfigure(config: pytest.Config) -> None:
    network.uninstall()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow tests first, so that parallel runs end together; expected failures must fail."""
    expectations = Expectations.read()
    for item in items:
        reason = expectations.exception_for(item.nodeid)
        if reason is not None:
            item.add_marker(pytest.mark.xfail(strict=True, reason=reason))
    slow = sorted((i for i in items if expectations.is_slow(i.nodeid)), key=lambda i: expectations.rank(i.nodeid))
    others = [item for item in items if not expectations.is_slow(item.nodeid)]
    # Each process is given two tests to begin with: a slow one and another.
    pairs = zip_longest(slow, others[: len(slow)])
    items[:] = [item for pair in pairs for item in pair if item is not None] + others[len(slow) :]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure shows what the servers had to say since the last one."""
    report = yield
    if report.failed:
        report.sections += [(f"stderr of {name}", text) for name, text in namespaces.new_log_lines() if text]
    return report


@pytest.fixture(scope="session")
def test_proxy() -> Iterator[None]:
    """The suite asks for its recorder; nothing is recorded here."""
    yield
