"""The whole way, with every kind of connection and credential: to the primary, into the backlog, and home."""

from __future__ import annotations

from typing import Any

import pytest
from azure.core.exceptions import ClientAuthenticationError
from azure.servicebus import ServiceBusMessage
from tests.support import pairing
from tests.support.pairing import Shell, bodies, paired

from pairbus import EntityState
from pairbus.testing import wait_until
from pairbus.testing.namespace import EmbeddedPair


@pytest.mark.every_wire
def test_out_and_home_with_a_syphon_in_the_process(pair: EmbeddedPair, shell: Shell, queue: str) -> None:
    options: dict[str, Any] = {"failover_interval": 0, "ping_primary_interval": 1, "enable_syphon": True}
    with paired(pair, shell, primary_name=queue, send_timeout=10, **options) as client:
        sender = client.get_queue_sender(queue)
        sender.send_messages(ServiceBusMessage("before"))
        pair.primary.fault("drop", entity=queue)
        sender.send_messages(ServiceBusMessage("during"))
        assert client.state(queue) is EntityState.FAILED_OVER
        pair.primary.clear_faults()
        wait_until(lambda: client.state(queue) is EntityState.HEALTHY, 60, "the entity to recover")
        wait_until(lambda: bodies(pair.primary, queue) == ["before", "during"], 60, "the message to come home")
        sender.send_messages(ServiceBusMessage("after"))
        assert bodies(pair.primary, queue) == ["before", "during", "after"]


@pytest.mark.every_wire
def test_a_client_without_an_answer_closes(pair: EmbeddedPair, shell: Shell, queue: str) -> None:
    with paired(pair, shell, primary_name=queue) as client:
        sender = client.get_queue_sender(queue)
        sender.send_messages(ServiceBusMessage("open"))
        pair.primary.fault("hang", entity=queue)
        thread, outcome = pairing.in_background(lambda: sender.send_messages(ServiceBusMessage("held")))
        wait_until(lambda: pairing.is_sending(sender), 30, "a send under way")
        closing, _ = pairing.in_background(client.close)
        wait_until(lambda: not closing.is_alive(), 20, "the client to close")
        wait_until(lambda: not thread.is_alive(), 20, "the send to end")
        assert isinstance(outcome[0], Exception)


def test_a_credential_that_is_refused_for_good_blames_no_entity(
    pair: EmbeddedPair, shell: Shell, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with paired(pair, shell, wire="tls", failover_interval=0, primary_name=queue) as client:
        sender = client.get_queue_sender(queue)

        def refused(*_: object, **__: object) -> None:
            raise ClientAuthenticationError("AADSTS7000215: Invalid client secret.")

        monkeypatch.setattr(pairing.Tokens, "get_token", refused)
        with pytest.raises(Exception, match="AADSTS7000215"):
            sender.send_messages(ServiceBusMessage("nobody sends this"))
        assert client.state(queue) is EntityState.HEALTHY
