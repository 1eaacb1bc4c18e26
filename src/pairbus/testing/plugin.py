"""The pytest fixtures: a running pair of namespaces, and an outage. Both end with the test."""

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
    """Two embedded namespaces in this process, on free ports."""
    from pairbus.testing.namespace import embedded_pair

    with embedded_pair(tmp_path) as pair:
        yield pair


@pytest.fixture
def pairbus_process_pair(tmp_path: Path) -> Iterator[EmbeddedPair]:
    """Two embedded namespaces on free ports, each in its own child process, which can be killed."""
    from pairbus.testing.namespace import embedded_pair

    with embedded_pair(tmp_path, process=True) as pair:
        yield pair


@pytest.fixture
def outage(request: pytest.FixtureRequest) -> Iterator[Outage]:
    """An outage of `pairbus_process_pair` if the test uses that fixture, else of `pairbus_pair`."""
    from pairbus.testing.outage import Outage

    uses_processes = "pairbus_process_pair" in request.fixturenames
    with Outage(request.getfixturevalue("pairbus_process_pair" if uses_processes else "pairbus_pair")) as outage:
        yield outage
