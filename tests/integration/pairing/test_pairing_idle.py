"""Links that nobody used for a while: the service detaches them, and nothing fails over because of that."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from tests.support.pairing import Shell, backlog_bodies, bodies, paired

from pairbus import EntityState, TransitionEvent
from pairbus.pairing._aio import entity as aio_entity
from pairbus.pairing._sync import entity as sync_entity
from pairbus.testing.namespace import EmbeddedPair


@pytest.fixture
def soon_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (aio_entity, sync_entity):
        monkeypatch.setattr(module, "IDLE_SECONDS", 0.0)


@pytest.mark.every_wire
@pytest.mark.usefixtures("soon_idle")
def test_a_detached_link_is_replaced_before_its_failure_counts(pair: EmbeddedPair, shell: Shell, queue: str) -> None:
    events: list[TransitionEvent] = []
    with paired(pair, shell, failover_interval=0, primary_name=queue) as client:
        client.on_transition(events.append)
        sender = client.get_queue_sender(queue)
        for number in range(3):
            sender.send_messages(ServiceBusMessage(str(number)))
            pair.primary.fault("idle-detach", entity=queue)
            pair.primary.clear_faults()
        assert bodies(pair.primary, queue) == ["0", "1", "2"]
        assert events == []


@pytest.mark.usefixtures("soon_idle")
def test_a_detached_link_to_the_backlog_pulls_no_queue(pair: EmbeddedPair, shell: Shell, queue: str) -> None:
    with paired(pair, shell, failover_interval=0, primary_name=queue) as client:
        client.fail_over(queue)
        sender = client.get_queue_sender(queue)
        for number in range(3):
            sender.send_messages(ServiceBusMessage(str(number)))
            pair.secondary.fault("idle-detach")
            pair.secondary.clear_faults()
        assert len(client.backlog_queues.in_rotation) == 3
        assert backlog_bodies(client, pair) == ["0", "1", "2"]


@pytest.mark.usefixtures("soon_idle")
def test_an_entity_that_is_down_still_fails_over(pair: EmbeddedPair, shell: Shell, queue: str) -> None:
    with paired(pair, shell, failover_interval=0, primary_name=queue, send_timeout=10) as client:
        sender = client.get_queue_sender(queue)
        sender.send_messages(ServiceBusMessage("before"))
        pair.primary.fault("drop", entity=queue)
        sender.send_messages(ServiceBusMessage("diverted"))
        assert client.state(queue) is EntityState.FAILED_OVER
        assert backlog_bodies(client, pair) == ["diverted"]


def test_settings_of_a_link_reach_the_backlog_and_the_pings(pair: EmbeddedPair, shell: Shell, queue: str) -> None:
    with paired(pair, shell, failover_interval=0, primary_name=queue) as client:
        sender = client.get_queue_sender(queue, socket_timeout=7.5)
        client.fail_over(queue)
        sender.send_messages(ServiceBusMessage("diverted"))
        target: Any = getattr(sender, "target", sender)
        (shared,) = target._backlog._senders.values()
        assert shared.sender._config.socket_timeout == 7.5
        paired_client: Any = getattr(client, "target", client)
        assert paired_client._send_home(queue)._config.socket_timeout == 7.5


@pytest.mark.usefixtures("soon_idle")
def test_a_send_that_is_repeated_leaves_a_record_of_the_first_attempt(
    pair: EmbeddedPair, shell: Shell, queue: str, tmp_path: Path
) -> None:
    """The first attempt may have been accepted after all: a copy must be explained."""
    with paired(pair, shell, failover_interval=0, primary_name=queue, ledger=tmp_path / "ledger") as client:
        sender = client.get_queue_sender(queue)
        sender.send_messages(ServiceBusMessage("0", message_id="first"))
        pair.primary.fault("idle-detach", entity=queue)
        pair.primary.clear_faults()
        sender.send_messages(ServiceBusMessage("1", message_id="second"))
        assert client.state(queue) is EntityState.HEALTHY
    lines = [json.loads(line) for file in (tmp_path / "ledger").glob("*.jsonl") for line in file.open()]
    sends = [line for line in lines if line["operation"] == "send" and line.get("message_id") == "second"]
    assert ["error" in line for line in sorted(sends, key=lambda line: int(line["n"]))] == [True, False]
