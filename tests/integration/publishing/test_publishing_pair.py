"""A paired client and its syphon as they publish themselves: the states, the figures of the ledger, the requests."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from azure.servicebus import ServiceBusMessage
from tests.support.pairing import Shell, paired

from pairbus.costs import billed_operations
from pairbus.ledger import Operation, Record, closed_files, is_backlog_queue
from pairbus.ledger.records import LEDGER_OPERATIONS
from pairbus.publishing import folder
from pairbus.publishing.records import STATE_VERSION, Answer, ControlRequest, ProcessState, RequestedAction
from pairbus.testing import EmbeddedPair, embedded_pair, wait_until
from pairbus.testing.waiting import wait_for

SECRET = "SharedAccessKey"
Sums = dict[tuple[Any, ...], tuple[int, int]]


@pytest.fixture(scope="module")
def pair() -> Iterator[EmbeddedPair]:
    with embedded_pair() as running:
        with running.primary.admin() as admin:
            for name in ("sync-orders", "aio-orders"):
                admin.create_queue(name)
        yield running


def only_process(place: Path) -> Path:
    (found,) = wait_for(lambda: folder.process_folders(place), what="a process that publishes")
    return found


def published(place: Path) -> ProcessState:
    return wait_for(lambda: folder.read_state(only_process(place)), what="a published state")


def states(place: Path) -> dict[str, str]:
    return {entity.name: entity.state for one in published(place).pairs for entity in one.entities}


def sums_of_ledger(ledger: Path) -> Sums:
    """Operations and billed units of the ledger's lines, by what the published counts can be told apart by."""
    operations: Counter[tuple[Any, ...]] = Counter()
    billed: Counter[tuple[Any, ...]] = Counter()
    for path in closed_files(ledger):
        for line in path.read_bytes().splitlines():
            one = msgspec.json.decode(line, type=Record)
            if one.operation in LEDGER_OPERATIONS or one.operation is Operation.TRANSITION:
                continue
            on_backlog = is_backlog_queue(one.entity)
            kind = (one.namespace, one.destination or one.entity, one.operation, one.route, one.outcome, on_backlog)
            operations[kind] += 1
            billed[kind] += (
                one.billed if one.billed is not None else billed_operations(one.operation, one.bytes, one.outcome)
            )
    return {kind: (operations[kind], billed[kind]) for kind in operations}


def sums_of_state(state: ProcessState) -> Sums:
    found: dict[tuple[Any, ...], list[int]] = {}
    for one in state.counts:
        kind = (one.namespace, one.target, one.operation, one.route, one.outcome, one.on_backlog)
        sums = found.setdefault(kind, [0, 0])
        sums[0] += one.operations
        sums[1] += one.billed
    return {kind: (sums[0], sums[1]) for kind, sums in found.items()}


def ask(place: Path, action: RequestedAction, source: str, entity: str = "") -> Answer:
    asked = ControlRequest(
        v=STATE_VERSION, id=os.urandom(4).hex(), at=time.time(), action=action, source=source, entity=entity
    )
    folder.put_request(place, only_process(place).name, asked)
    return wait_for(
        lambda: next((one for one in published(place).answers if one.request == asked.id), None), what="an answer"
    )


@pytest.mark.parametrize("shell", ["sync", "aio"])
def test_an_outage_as_it_is_published_and_as_the_ledger_has_it(
    pair: EmbeddedPair, shell: Shell, tmp_path: Path
) -> None:
    place, ledger, orders = tmp_path / "state", tmp_path / "ledger", f"{shell}-orders"
    options: dict[str, Any] = {
        "primary_name": f"contoso-{shell}",
        "failover_interval": 0,
        "ping_primary_interval": 1,
        "enable_syphon": True,
    }
    with paired(pair, shell, state_dir=place, ledger=ledger, **options) as client:
        sender = client.get_queue_sender(orders)
        for number in range(5):
            sender.send_messages(ServiceBusMessage(f"before {number}"))
        wait_until(lambda: states(place) == {orders: "healthy"}, what="a healthy entity")

        pair.primary.fault("refuse", entity=orders)
        sender.send_messages([ServiceBusMessage(f"during {number}") for number in range(3)])
        sender.send_messages(ServiceBusMessage(b"x" * 100_000))
        wait_until(lambda: states(place) == {orders: "failed over"}, what="the failover")
        (entity,) = published(place).pairs[0].entities
        assert entity.cause
        assert wait_for(lambda: published(place).pairs[0].entities[0].ping, what="a ping").delivered is False

        pair.primary.clear_faults()
        wait_until(lambda: states(place) == {orders: "healthy"}, what="the recovery")
        wait_until(lambda: published(place).totals[0].flow.gone == 4, what="everything home")
        (syphon,) = published(place).syphons
        assert (syphon.state, len(syphon.pumps), sum(pump.restored for pump in syphon.pumps)) == ("running", 3, 4)
        assert [(one.before, one.after) for one in published(place).transitions] == [
            ("healthy", "failed over"),
            ("failed over", "healthy"),
        ]
    state = wait_for(lambda: published(place) if published(place).ended else None, what="the last word")
    assert sums_of_state(state) == sums_of_ledger(ledger)
    flow = state.totals[0].flow
    assert (flow.primary, flow.backlog, flow.stored, flow.home, flow.gone) == (5, 4, 4, 4, 4)
    text = (only_process(place) / "state.json").read_text()
    assert SECRET not in text
    assert "refused" not in text.lower()  # the class of an error, never its text


@pytest.mark.parametrize("shell", ["sync", "aio"])
def test_requests_reach_the_client_and_its_syphon(pair: EmbeddedPair, shell: Shell, tmp_path: Path) -> None:
    place, orders = tmp_path / "state", f"{shell}-orders"
    with paired(pair, shell, state_dir=place, primary_name=f"asked-{shell}", enable_syphon=True) as client:
        client.get_queue_sender(orders).send_messages(ServiceBusMessage("one"))
        wait_until(lambda: states(place) and published(place).syphons, what="a client and a syphon")
        key, syphon = published(place).pairs[0].key, published(place).syphons[0].key

        answer = ask(place, RequestedAction.FAIL_OVER, key, orders)
        assert (answer.done, answer.text) == (True, f"{orders} is failed over.")
        assert client.state(orders).value == "failed over"
        answer = ask(place, RequestedAction.MARK_HEALTHY, key, orders)
        assert (answer.done, client.state(orders).value) == (True, "healthy")

        answer = ask(place, RequestedAction.FAIL_OVER, key, "no-such-queue")
        assert (answer.done, answer.text) == (False, "This client does not send to 'no-such-queue'.")
        assert not ask(place, RequestedAction.PAUSE, key).done

        assert ask(place, RequestedAction.PAUSE, syphon).done
        wait_until(lambda: published(place).syphons[0].state == "paused", what="a paused syphon")
        assert ask(place, RequestedAction.RESUME, syphon).done
        wait_until(lambda: published(place).syphons[0].state == "running", what="a running syphon")
        assert not ask(place, RequestedAction.FAIL_OVER, syphon, orders).done
