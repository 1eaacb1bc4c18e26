"""One namespace per module whose time the tests own, and the SDK's client of it, sync and aio."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from azure.servicebus import ServiceBusClient

from pairbus.testing.sdk import FACES, Face, sdk_client
from pairbus.testing.stage import Stage, stage


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
