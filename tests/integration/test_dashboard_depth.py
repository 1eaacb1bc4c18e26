"""How many messages wait, as the secondary's administration counts them for the page."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage

from pairbus.costs import shipped_tariffs, tariff_for
from pairbus.dashboard.depths import DepthWatch
from pairbus.dashboard.money import Prices
from pairbus.dashboard.observatory import Observatory, Settings
from pairbus.syphon import Namespace
from pairbus.testing import EmbeddedPair, embedded_pair
from pairbus.testing.pairing import paired

TARIFF = tariff_for(shipped_tariffs(), "azure-usd", date(2026, 1, 1))
PRICES = Prices(TARIFF, TARIFF.plan("standard"))


@pytest.fixture(scope="module")
def pair() -> Iterator[EmbeddedPair]:
    with embedded_pair() as running:
        with running.primary.admin() as admin:
            admin.create_queue("orders")
        yield running


async def first_depth(observatory: Observatory, wanted: str) -> dict[str, Any]:
    """Look until the page has, or cannot have, a number from the secondary."""
    async with asyncio.timeout(120):
        while True:
            seen = await observatory.look()
            for one in seen["pairs"]:
                if one["depth"][wanted] is not None:
                    await observatory.close()
                    return dict(one["depth"])
            await asyncio.sleep(0.05)


def test_the_secondary_is_asked_and_its_number_is_shown(pair: EmbeddedPair, tmp_path: Path) -> None:
    secondary = Namespace.parse(pair.secondary.connection_string, connection_verify=pair.secondary.ca_file)
    with paired(pair, state_dir=tmp_path / "earlier", primary_name="counted") as earlier:
        earlier.fail_over("orders")
        earlier.get_queue_sender("orders").send_messages([ServiceBusMessage(str(number)) for number in range(5)])
    with paired(pair, state_dir=tmp_path / "state", primary_name="counted") as client:
        client.fail_over("orders")
        client.get_queue_sender("orders").send_messages(ServiceBusMessage("one more"))
        watch = DepthWatch(secondary)
        found = asyncio.run(first_depth(Observatory(Settings(tmp_path / "state", PRICES), watch), "counted_at"))
    # The five of an earlier process, which nobody here knows of, are counted too.
    assert (found["messages"], found["dead_letters"], found["trouble"]) == (6, 0, None)
    assert watch.trouble is None


def test_a_secondary_that_does_not_answer_is_said_and_not_asked_again_at_once(
    pair: EmbeddedPair, tmp_path: Path
) -> None:
    wrong = pair.secondary.connection_string.replace("SharedAccessKey=", "SharedAccessKey=wrong")
    with paired(pair, state_dir=tmp_path / "state", primary_name="refused") as client:
        client.fail_over("orders")
        watch = DepthWatch(Namespace.parse(wrong, connection_verify=pair.secondary.ca_file))
        found = asyncio.run(first_depth(Observatory(Settings(tmp_path / "state", PRICES), watch), "trouble"))
    assert "does not say how many wait" in found["trouble"]
    assert "wrong" not in found["trouble"]
    assert found["counted_at"] is None
