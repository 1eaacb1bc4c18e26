"""Closing, faulting, and what is left behind: nothing."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError
from tests.support.pairing import Shell, bodies, paired

from pairbus import EntityState, PairedNamespaceFaultedError
from pairbus.testing import wait_until
from pairbus.testing.namespace import EmbeddedPair, embedded_pair


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPair]:
    """In child processes, so that every thread and socket of this one is ours."""
    folder: Path = tmp_path_factory.mktemp("pair")
    with embedded_pair(folder, process=True) as running:
        yield running


def sockets() -> int:
    return len(psutil.Process(os.getpid()).net_connections("tcp"))


def test_nothing_is_left_after_close(pair: EmbeddedPair, shell: Shell, queue: str, tmp_path: Path) -> None:
    gc.collect()
    threads, connections = set(threading.enumerate()), sockets()
    tasks: set[asyncio.Task[Any]] = set()
    with paired(
        pair,
        shell,
        failover_interval=0,
        ping_primary_interval=1,
        send_timeout=5,
        primary_name=queue,
        spool=tmp_path / "spool",
        ledger=tmp_path / "ledger",
    ) as client:
        sender = client.get_queue_sender(queue)
        sender.send_messages(ServiceBusMessage("1"))
        pair.primary.fault("hang", entity=queue)
        sender.send_messages(ServiceBusMessage("2"))
        assert client.state(queue) is EntityState.FAILED_OVER
        # A ping hangs on the silent entity when the client is closed.
        wait_until(lambda: pings_under_way(client, queue), 10, "a ping under way")
        assert len(set(threading.enumerate()) - threads) >= 1
        client.close()
        if shell == "aio":
            tasks = asyncio.all_tasks(client.loop)
    assert not [task for task in tasks if not task.done()]
    wait_until(lambda: not set(threading.enumerate()) - threads, 10, "threads to end")
    # A loop that has just ended lets go of its last transports when they are collected.
    wait_until(lambda: gc.collect() >= 0 and sockets() <= connections, 30, "sockets to close")


def pings_under_way(client: Any, queue: str) -> bool:
    target = getattr(client, "target", client)
    return bool(target._entities[queue].machine._ping_in_flight)


def test_an_unknown_argument_is_warned_of_at_the_line_of_the_caller(pair: EmbeddedPair, queue: str) -> None:
    with paired(pair, "sync", primary_name=queue) as client:
        sender = client.get_queue_sender(queue)
        with pytest.warns(UserWarning, match="Unsupported keyword args: {'colour': 'red'}") as warned:
            sender.send_messages(ServiceBusMessage("1"), colour="red")
    assert [warning.filename for warning in warned] == [__file__]


def test_closing_twice_does_nothing_and_a_closed_client_says_so(pair: EmbeddedPair, shell: Shell, queue: str) -> None:
    with paired(pair, shell, primary_name=queue) as client:
        sender = client.get_queue_sender(queue)
        sender.send_messages(ServiceBusMessage("1"))
        sender.close()
        sender.close()
        with pytest.raises(ValueError, match="sender has been closed"):
            sender.send_messages(ServiceBusMessage("2"))
        client.close()
        client.close()
        calls: list[Callable[[], Any]] = [
            lambda: client.get_queue_sender(queue),
            lambda: client.get_queue_receiver(queue),
            lambda: client.fail_over(queue),
        ]
        for call in calls:
            with pytest.raises(ValueError, match="paired client has been closed"):
                call()


@pytest.mark.every_wire
def test_senders_are_context_managers(pair: EmbeddedPair, shell: Shell, queue: str) -> None:
    with paired(pair, shell, primary_name=queue) as client:
        with client.get_queue_sender(queue, client_identifier="me") as sender:
            sender.send_messages(ServiceBusMessage("inside"))
            assert sender.client_identifier == "me"
            assert sender.entity_name == queue
        with pytest.raises(ValueError, match="closed"):
            sender.send_messages(ServiceBusMessage("outside"))
        with pytest.raises(ServiceBusError), client.get_queue_sender(f"{queue}-missing"):
            pytest.fail("entered a sender of an entity that does not exist")


@pytest.mark.every_wire
def test_entering_a_sender_of_an_entity_that_is_out_of_reach_does_not_raise(
    pair: EmbeddedPair, shell: Shell, queue: str
) -> None:
    with paired(pair, shell, failover_interval=1800, send_timeout=3, primary_name=queue) as client:
        pair.primary.fault("refuse")
        with client.get_queue_sender(queue) as sender:
            assert client.state(queue) is EntityState.SUSPECT
            pair.primary.clear_faults()
            sender.send_messages(ServiceBusMessage("later"))
            assert client.state(queue) is EntityState.HEALTHY


def test_a_faulted_client_names_its_partner_and_can_be_closed(pair: EmbeddedPair, shell: Shell, queue: str) -> None:
    with paired(pair, shell, primary_name=queue) as client:
        sender = client.get_queue_sender(queue)
        client.fault("secondary", "its client was closed")
        calls: list[Callable[[], Any]] = [
            lambda: sender.send_messages(ServiceBusMessage("x")),
            lambda: sender.create_message_batch(),
            lambda: client.get_queue_sender(queue),
            lambda: client.get_subscription_receiver("t", "s"),
        ]
        for call in calls:
            with pytest.raises(PairedNamespaceFaultedError, match="secondary namespace, is gone") as raised:
                call()
            assert raised.value.partner == "secondary"
            assert isinstance(raised.value, ServiceBusError)
        client.close()


def test_a_timeout_that_is_none_is_refused_as_the_sdk_does(pair: EmbeddedPair, shell: Shell, queue: str) -> None:
    with paired(pair, shell, primary_name=queue) as client:
        sender = client.get_queue_sender(queue)
        for timeout in (0, -1):
            with pytest.raises(ValueError, match="timeout"):
                sender.send_messages(ServiceBusMessage("x"), timeout=timeout)
        with pytest.warns(UserWarning, match="nonsense"):
            sender.send_messages(ServiceBusMessage("x"), nonsense=True)
        with pytest.raises(TypeError):
            sender.send_messages(7)
        assert client.state(queue) is EntityState.HEALTHY


def test_a_server_that_accepts_connections_and_says_nothing_holds_nobody(tmp_path: Path, shell: Shell) -> None:
    """The sync SDK waits for the first answer without any timeout: the paired sender does not."""
    with embedded_pair(tmp_path) as pair, socket.socket() as silent:
        port = pair.primary.port
        pair.primary.stop()
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        silent.bind(("127.0.0.1", port))
        silent.listen(50)
        with paired(pair, shell, failover_interval=0, send_timeout=5, retry_total=1) as client:
            with client.get_queue_sender("orders") as sender:
                sender.send_messages(ServiceBusMessage("one"))
                sender.send_messages([ServiceBusMessage("two"), ServiceBusMessage("three")])
            queue = sender.backlog_queue
            assert bodies(pair.secondary, queue) == ["one", "two", "three"]
            with pytest.raises(ServiceBusError):
                client.get_queue_sender("events").cancel_scheduled_messages(5, timeout=2)


def test_closing_ends_a_send_that_a_silent_server_holds(tmp_path: Path, shell: Shell) -> None:
    """Also with the SDK's own retries, each of which would wait for ever."""
    outcome: list[BaseException | None] = []
    with embedded_pair(tmp_path) as pair, socket.socket() as silent:
        port = pair.primary.port
        pair.primary.stop()
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        silent.bind(("127.0.0.1", port))
        silent.listen(50)
        with paired(pair, shell, failover_interval=1800, send_timeout=600, retry_total=2) as client:
            sender = client.get_queue_sender("orders")

            def send() -> None:
                try:
                    sender.send_messages(ServiceBusMessage("held"))
                    outcome.append(None)
                except (ServiceBusError, ValueError) as error:
                    outcome.append(error)

            thread = threading.Thread(target=send)
            thread.start()
            silent.accept()  # the SDK is connected and waits for the first answer
            client.close()
            thread.join(60)
            assert not thread.is_alive()
            assert isinstance(outcome[0], ServiceBusError | ValueError)
