"""How many messages wait, as the secondary's administration counts them for the page."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from tests.support.pairing import paired

from pairbus.costs import shipped_tariffs, tariff_for
from pairbus.dashboard import observatory
from pairbus.dashboard.money import Prices
from pairbus.dashboard.observatory import DashboardSettings, DepthWatch, Observatory, look
from pairbus.dashboard.view import Depth
from pairbus.pairing.options import backlog_path
from pairbus.syphon import Namespace
from pairbus.testing import EmbeddedPair, embedded_pair, wait_until

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
        # Before the count: what is published after it may have been put in after it.
        wait_until(
            lambda: any(
                one.flow.stored for process in look(tmp_path / "state").processes for one in process.state.totals
            ),
            what="the message in the published state",
        )
        watch = DepthWatch(secondary)
        found = asyncio.run(
            first_depth(Observatory(DashboardSettings(tmp_path / "state", PRICES), watch), "counted_at")
        )
    # The five of an earlier process, which nobody here knows of, are counted too.
    assert (found["messages"], found["dead_letters"], found["trouble"]) == (6, 0, None)
    assert watch.troubles == {}


def test_a_secondary_that_does_not_answer_is_said_and_not_asked_again_at_once(
    pair: EmbeddedPair, tmp_path: Path
) -> None:
    wrong = pair.secondary.connection_string.replace("SharedAccessKey=", "SharedAccessKey=wrong")
    with paired(pair, state_dir=tmp_path / "state", primary_name="refused") as client:
        client.fail_over("orders")
        watch = DepthWatch(Namespace.parse(wrong, connection_verify=pair.secondary.ca_file))
        found = asyncio.run(first_depth(Observatory(DashboardSettings(tmp_path / "state", PRICES), watch), "trouble"))
    assert found["trouble"].startswith("Cannot count the backlog in ")
    assert "wrong" not in found["trouble"]
    assert found["counted_at"] is None


def test_more_queues_than_a_round_takes_are_counted_in_turn_and_never_shown_as_empty(
    pair: EmbeddedPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Room for one pair a round: the other has no number from the secondary until it was its turn."""
    monkeypatch.setattr(observatory, "MOST_QUEUES", 3)
    secondary = Namespace.parse(pair.secondary.connection_string, connection_verify=pair.secondary.ca_file)
    with ExitStack() as clients:
        for name, queues in (("turn-a", 2), ("turn-b", 2), ("vast", 4)):
            client = clients.enter_context(
                paired(pair, state_dir=tmp_path / "state", primary_name=name, backlog_queue_count=queues)
            )
            client.fail_over("orders")
            client.get_queue_sender("orders").send_messages(ServiceBusMessage("waits"))
        watch = DepthWatch(secondary)

        async def rounds() -> list[dict[str, int]]:
            queues = {
                name: [backlog_path(name, number) for number in range(count)]
                for name, count in (("turn-a", 2), ("turn-b", 2), ("vast", 4))
            }
            found = []
            for _ in range(2):
                await watch._count(queues)
                found.append({name: depth.messages for name, depth in watch.depths.items()})
            return found

        assert asyncio.run(rounds()) == [{"turn-a": 1}, {"turn-a": 1, "turn-b": 1}]
        assert watch.troubles == {"vast": "4 backlog queues are too many to count"}


@pytest.mark.parametrize("how", ["hangs", "fails"])
def test_a_round_that_hangs_or_fails_in_any_way_keeps_no_old_number(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observatory, "ROUND_SECONDS", 0.2)

    class Credential:
        """What an application gave, which does not do what it should."""

        async def get_token(self, *scopes: str, **options: Any) -> Any:
            if how == "hangs":
                await asyncio.Event().wait()
            raise KeyError("no such thing")

    watch = DepthWatch(Namespace("standby.servicebus.windows.net", _credential=Credential()))
    watch.depths["contoso"] = Depth(40_000, 3, 1.0)
    asyncio.run(watch._count({"contoso": ["contoso/x-servicebus-transfer/0"]}))
    assert watch.depths == {}
    assert watch.troubles == {"contoso": "Cannot count the backlog in standby.servicebus.windows.net"}
