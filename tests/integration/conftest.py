"""One namespace per module whose time the tests own, and the SDK's client of it, sync and aio; one pair per module, and
a queue of its own for each test that sends through it.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from azure.servicebus import ServiceBusClient
from tests.support.pairing import Shell, Wire, default_wire
from tests.support.sdk import FACES, Face, sdk_client
from tests.support.stage import Stage, stage

from pairbus.testing.namespace import EmbeddedPair, embedded_pair


@pytest.fixture(name="stage", scope="module")
def _stage() -> Iterator[Stage]:
    with stage() as opened:
        yield opened


@pytest.fixture(scope="module", params=FACES)
def face(request: pytest.FixtureRequest) -> Face:
    answer: Face = request.param
    return answer


@pytest.fixture(scope="module")
def client(stage: Stage, face: Face) -> Iterator[ServiceBusClient]:
    with sdk_client(stage.namespace, face, retry_total=0) as opened:
        yield opened


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPair]:
    with embedded_pair(tmp_path_factory.mktemp("pair")) as running:
        yield running


@pytest.fixture
def own_pair(tmp_path: Path) -> Iterator[EmbeddedPair]:
    """With the queue `orders`, for a test that stops its namespaces."""
    with embedded_pair(tmp_path / "pair") as running:
        with running.primary.admin() as admin:
            admin.create_queue("orders")
        yield running


@pytest.fixture(params=get_args(Shell))
def shell(request: pytest.FixtureRequest) -> Shell:
    chosen: Shell = request.param
    return chosen


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests marked `every_wire` run with every kind of connection; with PAIRBUS_EVERY_WIRE, all that pair do."""
    marked = metafunc.definition.get_closest_marker("every_wire") is not None
    pairs = {"pair", "own_pair"} & set(metafunc.fixturenames)
    if marked or (pairs and os.environ.get("PAIRBUS_EVERY_WIRE")):
        metafunc.parametrize("wire", get_args(Wire), indirect=True)


@pytest.fixture(autouse=True)
def wire(request: pytest.FixtureRequest) -> Iterator[Wire]:
    """How the paired clients of the test connect."""
    chosen: Wire = getattr(request, "param", "plain")
    with default_wire(chosen):
        yield chosen


@pytest.fixture
def queue(pair: EmbeddedPair) -> Iterator[str]:
    name = f"orders-{uuid.uuid4().hex[:8]}"
    with pair.primary.admin() as admin:
        admin.create_queue(name)
    yield name
    pair.primary.clear_faults()
    pair.secondary.clear_faults()
