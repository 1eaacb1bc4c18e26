"""A client that fails for good: its namespace's keys were changed. The partner is faulted, in both directions, sync and
aio; nothing hangs, and everything can be closed.
"""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace
from typing import Any, cast

import pytest
from azure.servicebus import ServiceBusMessage
from tests.support.backlogs import backlog_form, put
from tests.support.pairing import Shell, paired

from pairbus import PairedNamespaceFaultedError
from pairbus.syphon.in_process import PATIENCE_SECONDS
from pairbus.testing import EmbeddedNamespace, embedded_pair, wait_until


def change_keys(namespace: EmbeddedNamespace) -> None:
    """Every key that a client has is worthless from now on."""
    host = cast(Any, namespace)._host
    broker = host._server.broker

    async def change() -> None:
        rules = tuple(
            replace(rule, primary_key="bmV3LXByaW1hcnkta2V5", secondary_key="bmV3LXNlY29uZGFyeS1rZXk=")
            for rule in broker.authorization_rules()
        )
        await broker.set_authorization_rules(rules)

    asyncio.run_coroutine_threadsafe(change(), host._loop).result(30)


def syphon_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("pairbus-syphon")]


@pytest.mark.parametrize("shell", ["sync", "aio"])
@pytest.mark.parametrize("gone", ["primary", "secondary"])
def test_the_partner_of_a_client_that_fails_for_good_is_faulted(shell: Shell, gone: str) -> None:
    with embedded_pair() as pair:
        with pair.primary.admin() as admin:
            admin.create_queue("orders")
        with paired(pair, shell, backlog_queue_count=2, enable_syphon=True) as client:
            watch = client._syphon._watch
            sender = client.get_queue_sender("orders")
            wait_until(lambda: {one.state for one in client._syphon.state().queues} == {"waiting"})
            form = backlog_form(ServiceBusMessage(b"x", message_id="waiting"), "orders")
            put(pair.secondary, client.backlog_queues.in_rotation[0], [form])
            wait_until(lambda: client._syphon.state().restored == 1, what="the pair to work")
            failing = pair.primary if gone == "primary" else pair.secondary
            failing.fault("refuse", duration=2)  # a token that was accepted holds as long as its connection
            change_keys(failing)
            if gone == "primary":
                put(pair.secondary, client.backlog_queues.in_rotation[0], [form])
            wait_until(lambda: watch._gone, 60, "the syphon to notice")
            noticed = time.monotonic()
            wait_until(lambda: client.is_faulted, 60, "the partner to be faulted")
            assert time.monotonic() - noticed >= PATIENCE_SECONDS - 0.5, "the partner got its time"
            with pytest.raises(PairedNamespaceFaultedError, match=gone) as told:
                sender.send_messages(ServiceBusMessage(b"x"))
            assert "unauthorized" in str(told.value).lower()
            survivor = client.secondary if gone == "primary" else client.primary
            with pytest.raises(PairedNamespaceFaultedError, match=gone):
                survivor.get_queue_sender("orders")
            wait_until(lambda: not syphon_threads(), 60, "the syphon to end")
        assert not syphon_threads()
