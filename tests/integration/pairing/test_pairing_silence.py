"""A peer that accepts the connection and then says nothing: sends keep their time, whatever the connection is."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError
from tests.support.pairing import Shell, backlog_bodies, in_background, is_sending, paired

from pairbus import EntityState
from pairbus.testing import wait_until
from pairbus.testing.namespace import EmbeddedPair


@pytest.fixture
def silent_port() -> Iterator[int]:
    """The kernel accepts connections to this port; nobody ever reads from them."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.mark.every_wire
def test_a_send_is_diverted_within_its_time(pair: EmbeddedPair, shell: Shell, queue: str, silent_port: int) -> None:
    arguments: dict[str, Any] = {"failover_interval": 0, "primary_name": queue, "ping_primary_interval": 1800}
    with paired(pair, shell, primary_port=silent_port, **arguments) as client:
        sender = client.get_queue_sender(queue)
        thread, outcome = in_background(lambda: sender.send_messages(ServiceBusMessage("in time"), timeout=3))
        wait_until(lambda: not thread.is_alive(), 20, "the end of a send to a silent peer")
        assert outcome == [None]
        assert client.state(queue) is EntityState.FAILED_OVER
        assert backlog_bodies(client, pair) == ["in time"]


@pytest.mark.every_wire
def test_closing_ends_a_connection_that_is_being_opened(
    pair: EmbeddedPair, shell: Shell, queue: str, silent_port: int
) -> None:
    with paired(pair, shell, primary_port=silent_port, primary_name=queue) as client:
        sender = client.get_queue_sender(queue)
        thread, outcome = in_background(lambda: sender.send_messages(ServiceBusMessage("unheard"), timeout=600))
        wait_until(lambda: is_sending(sender), 20, "a send under way")
        closing, _ = in_background(client.close)
        wait_until(lambda: not closing.is_alive(), 20, "the client to close")
        wait_until(lambda: not thread.is_alive(), 20, "the send to end")
        assert isinstance(outcome[0], ServiceBusError | ValueError)
