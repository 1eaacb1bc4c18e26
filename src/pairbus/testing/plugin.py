"""The pytest plugin: a pair of running namespaces for a test, gone when it ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pairbus.testing.namespace import EmbeddedPair


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
