"""A secondary out of reach, with a spool: one attempt finds out, and sends do not wait; one bad queue is no outage."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusSender
from tests.support.pairing import Shell, backlog_bodies, bodies, paired

from pairbus.testing import wait_until
from pairbus.testing.namespace import EmbeddedPair

FAST: dict[str, Any] = {"failover_interval": 0, "ping_primary_interval": 1, "send_timeout": 3}
LONG_REST: dict[str, Any] = {"failover_interval": 0, "ping_primary_interval": 600, "send_timeout": 30}


@pytest.fixture
def pair(own_pair: EmbeddedPair) -> EmbeddedPair:
    return own_pair


def depth(client: Any) -> int:
    return int(client.spool.depth)


def test_a_secondary_out_of_reach_is_asked_once_and_then_only_by_the_forwarder(
    pair: EmbeddedPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tried: list[str] = []
    may_go_on = threading.Event()
    open_link = ServiceBusSender._open

    def noted(sender: Any, *args: Any, **kwargs: Any) -> Any:
        if "x-servicebus-transfer" in sender.entity_name:
            tried.append(threading.current_thread().name)
            if tried[-1] == "pairbus-spool":
                may_go_on.wait(60)
        return open_link(sender, *args, **kwargs)

    monkeypatch.setattr(ServiceBusSender, "_open", noted)
    caplog.set_level(logging.INFO, "pairbus.pairing")
    with paired(pair, "sync", spool=tmp_path / "spool", **FAST) as client:
        sender = client.get_queue_sender("orders")
        pair.primary.stop()
        pair.secondary.stop()
        sender.send_messages(ServiceBusMessage("0"))
        here = threading.current_thread().name
        assert tried.count(here) == 1  # of three queues
        # The forwarder is trying, so the rest is over; a send leaves trying to it all the same.
        wait_until(lambda: "pairbus-spool" in tried, 60, "an attempt of the forwarder")
        for index in range(1, 5):
            sender.send_messages(ServiceBusMessage(str(index)))
        assert tried.count(here) == 1
        assert sender.create_message_batch().max_size_in_bytes > 0
        assert tried.count(here) == 1
        assert depth(client) == 5
        may_go_on.set()
        wait_until(lambda: tried.count("pairbus-spool") >= 2, 60, "two attempts of the forwarder")
        pair.secondary.restart()
        wait_until(lambda: depth(client) == 0, 60, "an empty spool")
        assert backlog_bodies(client, pair) == [str(index) for index in range(5)]
        sender.send_messages(ServiceBusMessage("5"))
        assert "5" in backlog_bodies(client, pair)
        assert depth(client) == 0
    lines = [record.getMessage() for record in caplog.records]
    assert sum("The backlog does not take spooled messages for orders" in line for line in lines) == 1
    assert sum(line.startswith("No backlog queue can be reached") for line in lines) == 1


@pytest.mark.parametrize("fault", ["refuse", "drop"])
@pytest.mark.every_wire
def test_connections_that_break_take_down_the_backlog(
    pair: EmbeddedPair, shell: Shell, tmp_path: Path, fault: str
) -> None:
    with paired(pair, shell, spool=tmp_path / "spool", **LONG_REST) as client:
        client.fail_over("orders")
        pair.secondary.fault(fault)
        client.get_queue_sender("orders").send_messages(ServiceBusMessage("kept"))
        assert depth(client) == 1
        assert client.backlog_queues.in_rotation == ()


@pytest.mark.parametrize("fault", ["refuse", "drop", "hang"])
def test_one_bad_queue_of_many_is_rotated_past_with_a_spool_too(
    pair: EmbeddedPair, shell: Shell, tmp_path: Path, fault: str
) -> None:
    with paired(pair, shell, spool=tmp_path / "spool", **LONG_REST) as client:
        client.fail_over("orders")
        sender = client.get_queue_sender("orders")
        sender.send_messages(ServiceBusMessage("0"))
        bad = sender.backlog_queue
        pair.secondary.fault(fault, entity=bad)
        sender.send_messages(ServiceBusMessage("1"), timeout=10)
        assert depth(client) == 0
        assert sender.backlog_queue != bad
        assert bodies(pair.secondary, sender.backlog_queue) == ["1"]
        assert len(client.backlog_queues.in_rotation) == 2
