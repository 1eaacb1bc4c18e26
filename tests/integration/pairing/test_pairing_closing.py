"""Ends in the middle of things: closing while a send is under way, closings that are cancelled or fail, and what a
caller's timeout leaves for the backlog.
"""

from __future__ import annotations

import asyncio
import gc
import os
from pathlib import Path
from typing import Any

import psutil
import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError
from tests.support.pairing import Shell, backlog_bodies, bodies, in_background, is_sending, paired

from pairbus import EntityState, TransitionEvent
from pairbus.testing import wait_until
from pairbus.testing.namespace import EmbeddedPair, embedded_pair


def test_a_sender_that_is_closed_finishes_the_send_under_way(pair: EmbeddedPair, shell: Shell, queue: str) -> None:
    events: list[TransitionEvent] = []
    with paired(pair, shell, failover_interval=0, primary_name=queue) as client:
        client.on_transition(events.append)
        sender = client.get_queue_sender(queue)
        sender.send_messages(ServiceBusMessage("open"))
        pair.primary.fault("slow", entity=queue, delay=1)
        thread, outcome = in_background(lambda: sender.send_messages(ServiceBusMessage("under way")))
        wait_until(lambda: is_sending(sender), 30, "a send under way")
        sender.close()
        thread.join()
        assert outcome == [None]
        assert client.state(queue) is EntityState.HEALTHY
        assert events == []
        assert bodies(pair.primary, queue) == ["open", "under way"]
        with pytest.raises(ValueError, match="closed"):
            sender.send_messages(ServiceBusMessage("too late"))


def test_a_send_that_never_had_its_turn_blames_no_entity(pair: EmbeddedPair, shell: Shell, queue: str) -> None:
    with paired(pair, shell, failover_interval=0, ping_primary_interval=1800, primary_name=queue) as client:
        sender = client.get_queue_sender(queue)
        sender.send_messages(ServiceBusMessage("open"))
        pair.primary.fault("hang", entity=queue)
        thread, outcome = in_background(lambda: sender.send_messages(ServiceBusMessage("held")))
        wait_until(lambda: is_sending(sender), 30, "a send under way")
        sender.send_messages(ServiceBusMessage("behind it"), timeout=8)
        assert backlog_bodies(client, pair) == ["behind it"]
        assert client.state(queue) is EntityState.HEALTHY
        pair.primary.clear_faults()
        thread.join()
        assert outcome == [None]


@pytest.mark.every_wire
def test_a_client_that_is_closed_blames_no_entity(pair: EmbeddedPair, shell: Shell, queue: str) -> None:
    events: list[TransitionEvent] = []
    with paired(pair, shell, failover_interval=0, primary_name=queue) as client:
        client.on_transition(events.append)
        sender = client.get_queue_sender(queue)
        sender.send_messages(ServiceBusMessage("open"))
        pair.primary.fault("hang", entity=queue)
        thread, outcome = in_background(lambda: sender.send_messages(ServiceBusMessage("held")))
        wait_until(lambda: is_sending(sender), 30, "a send under way")
        client.close()
        thread.join()
        assert isinstance(outcome[0], ServiceBusError | ValueError)
    assert events == []


def test_a_closing_that_is_cancelled_goes_on_to_its_end(pair: EmbeddedPair, queue: str) -> None:
    def sockets() -> int:
        ours = {pair.primary.port, pair.secondary.port}
        found = psutil.Process(os.getpid()).net_connections("tcp")
        return sum(bool(one.raddr) and one.raddr.port in ours for one in found)

    before = sockets()
    with paired(pair, "aio", primary_name=queue) as client:
        client.get_queue_sender(queue).send_messages(ServiceBusMessage("1"))
        client.fail_over(queue)
        client.get_queue_sender(queue).send_messages(ServiceBusMessage("2"))
        assert sockets() > before

        async def hurried() -> None:
            closing = asyncio.ensure_future(client.target.close())
            await asyncio.sleep(0)
            closing.cancel()
            await asyncio.gather(closing, return_exceptions=True)
            await client.target.close()

        asyncio.run_coroutine_threadsafe(hurried(), client.loop).result(60)
    # A loop that has just ended lets go of its last transports when they are collected.
    wait_until(lambda: gc.collect() >= 0 and sockets() <= before, 30, "sockets to close")


def test_a_step_of_the_closing_that_fails_leaves_nothing_else_open(
    pair: EmbeddedPair, shell: Shell, queue: str, tmp_path: Path
) -> None:
    with (
        pytest.raises(OSError, match="network is gone"),
        paired(pair, shell, primary_name=queue, spool=tmp_path / "spool") as client,
    ):
        primary: Any = client.primary
        close = primary.close

        def failing() -> None:
            close()
            raise OSError("the network is gone")

        async def failing_on_the_loop() -> None:
            await close()
            raise OSError("the network is gone")

        primary.close = failing if shell == "sync" else failing_on_the_loop
        secondary: Any = client.secondary
        close_secondary, closed = secondary.close, list[str]()

        def noted() -> Any:
            closed.append("secondary")
            return close_secondary()

        secondary.close = noted
    assert closed == ["secondary"]
    with paired(pair, shell, primary_name=queue, spool=tmp_path / "spool") as client:
        assert client.spool.depth == 0  # the folder's lock was let go


def test_an_attempt_leaves_time_for_the_backlog_when_the_entity_may_fail_over_meanwhile(
    pair: EmbeddedPair, shell: Shell, queue: str
) -> None:
    with paired(pair, shell, failover_interval=1, send_timeout=30, primary_name=queue) as client:
        sender = client.get_queue_sender(queue)
        sender.send_messages(ServiceBusMessage("open"))
        pair.primary.fault("drop", entity=queue)
        with pytest.raises(ServiceBusError):
            sender.send_messages(ServiceBusMessage("suspected"))
        assert client.state(queue) is EntityState.SUSPECT
        pair.primary.clear_faults()
        pair.primary.fault("hang", entity=queue)
        sender.send_messages(ServiceBusMessage("kept"), timeout=12)
        assert client.state(queue) is EntityState.FAILED_OVER
        assert backlog_bodies(client, pair) == ["kept"]


def test_the_primary_has_all_of_the_time_when_the_entity_cannot_fail_over_meanwhile(
    pair: EmbeddedPair, shell: Shell, queue: str
) -> None:
    with paired(pair, shell, failover_interval=1800, send_timeout=3600, primary_name=queue) as client:
        sender = client.get_queue_sender(queue)
        target: Any = getattr(sender, "target", sender)
        assert target._until(100.0, 130.0) == 130.0
        assert target._until(100.0, 2500.0) == 1900.0  # beyond the interval, with a quarter left for the backlog
        assert target._until(100.0, 8100.0) == 4499.0  # a grace, then send_timeout, which is enough for the backlog


def test_a_cancelled_diverted_send_is_recorded_as_in_doubt(pair: EmbeddedPair, queue: str, tmp_path: Path) -> None:
    import msgspec

    with paired(pair, "aio", primary_name=queue, backlog_queue_count=1, ledger=tmp_path / "ledger") as client:
        sender = client.get_queue_sender(queue)
        client.fail_over(queue)
        sender.send_messages(ServiceBusMessage("open"))
        pair.secondary.fault("hang", entity=sender.backlog_queue)
        sending = sender.submit("send_messages", ServiceBusMessage("given up", message_id="given-up"))
        link = sender.target._backlog._senders[sender.backlog_queue]
        wait_until(lambda: link._turn._taken, 30, "a send under way")
        sending.cancel()
        wait_until(lambda: not link._turn._taken, 30, "the end of the send")
    rows = [
        msgspec.json.decode(line)
        for path in sorted((tmp_path / "ledger").glob("*.jsonl"))
        for line in path.read_bytes().splitlines()
    ]
    assert [row["outcome"] for row in rows if row.get("message_id") == "given-up"] == ["unknown"]


def test_what_the_primary_takes_the_backlog_takes_also_when_its_limit_is_not_known(
    tmp_path: Path, shell: Shell
) -> None:
    """A primary with a larger limit than the secondary, not reached since the process started."""
    from tests.support.pairing import backlog_raws

    from pairbus import envelope

    with embedded_pair(tmp_path) as pair:
        pair.primary.stop()
        with paired(pair, shell, failover_interval=0, send_timeout=10, backlog_queue_count=1) as client:
            client.get_queue_sender("orders").send_messages(ServiceBusMessage(b"x" * 600_000))
            parts = [envelope.inspect(raw).part for raw in backlog_raws(client, pair)]
            assert len(parts) == 3
            whole = envelope.join([part for part in parts if part is not None])
            assert b"x" * 600_000 in whole


def test_the_sdk_client_closed_beside_us_is_no_reason_to_hang(pair: EmbeddedPair, queue: str) -> None:
    with paired(pair, "sync", primary_name=queue, failover_interval=1800) as client:
        assert isinstance(client.primary, ServiceBusClient)
        client.get_queue_sender(queue).send_messages(ServiceBusMessage("1"))
        client.primary.close()
        client.close()
