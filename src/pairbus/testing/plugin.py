"""The pytest plugin: a pair of running namespaces for a test, gone when it ends, and an outage that ends with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pairbus.testing.namespace import EmbeddedPair
    from pairbus.testing.outage import Outage


@pytest.fixture
def pairbus_pair(tmp_path: Path) -> Iterator[EmbeddedPair]:
    """Two embedded namespaces on free ports, in this process."""
    from pairbus.testing.namespace import embedded_pair

    with embedded_pair(tmp_path) as pair:
        yield pair


@pytest.fixture
def pairbus_process_pair(tmp_path: Path) -> Iterator[EmbeddedPair]:
    """Two embedded namespaces on free ports, each in a child process that can be killed."""
    from pairbus.testing.namespace import embedded_pair

    with embedded_pair(tmp_path, process=True) as pair:
        yield pair


@pytest.fixture
def outage(request: pytest.FixtureRequest) -> Iterator[Outage]:
    """An outage of the test's pair, to be begun and ended; it ends with the test.

    The pair is that of `pairbus_process_pair` if the test uses it, else that of `pairbus_pair`.
    """
    from pairbus.testing.outage import Outage

    uses_processes = "pairbus_process_pair" in request.fixturenames
    with Outage(request.getfixturevalue("pairbus_process_pair" if uses_processes else "pairbus_pair")) as outage:
        yield outage
