"""A syphon inside an application: carrying, closing, and what happens when one of the two clients goes away alone."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Iterator

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient as AioServiceBusClient
from azure.servicebus.aio.management import ServiceBusAdministrationClient as AioAdministrationClient
from azure.servicebus.management import ServiceBusAdministrationClient
from tests.support.backlogs import ids, take_from

import pairbus
import pairbus.aio
from pairbus import PairedNamespaceFaultedError, SendAvailabilityPairedNamespaceOptions
from pairbus.testing import EmbeddedPair, embedded_pair, wait_until

_numbers = itertools.count()


@pytest.fixture(scope="module")
def pair() -> Iterator[EmbeddedPair]:
    with embedded_pair() as running:
        yield running


@pytest.fixture
def orders(pair: EmbeddedPair) -> str:
    name = f"orders{next(_numbers)}"
    with pair.primary.admin() as admin:
        admin.create_queue(name)
    return name


def paired_with_syphon(pair: EmbeddedPair) -> pairbus.PairedServiceBusClient:
    secondary = pair.secondary.connection_string
    admin = ServiceBusAdministrationClient.from_connection_string(secondary, connection_verify=pair.secondary.ca_file)
    options = SendAvailabilityPairedNamespaceOptions(
        admin,
        ServiceBusClient.from_connection_string(secondary),
        primary_name=f"contoso{next(_numbers)}",
        backlog_queue_count=2,
        enable_syphon=True,
    )
    primary = ServiceBusClient.from_connection_string(pair.primary.connection_string)
    return pairbus.pair_namespace(primary, options)


def syphon_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("pairbus-syphon")]


def test_what_is_diverted_comes_home_and_closing_ends_the_syphon(pair: EmbeddedPair, orders: str) -> None:
    with paired_with_syphon(pair) as paired:
        paired.fail_over(orders)
        with paired.get_queue_sender(orders) as sender:
            sender.send_messages([ServiceBusMessage(b"x", message_id=f"{n}") for n in range(20)])
        assert ids(take_from(pair.primary, orders, 20)) == [f"{n}" for n in range(20)]
        assert len(syphon_threads()) == 1
    assert syphon_threads() == []


def test_the_same_with_aio(pair: EmbeddedPair, orders: str) -> None:
    async def main() -> None:
        secondary = pair.secondary.connection_string
        admin = AioAdministrationClient.from_connection_string(secondary, connection_verify=pair.secondary.ca_file)
        options = SendAvailabilityPairedNamespaceOptions(
            admin,
            AioServiceBusClient.from_connection_string(secondary),
            primary_name=f"contoso{next(_numbers)}",
            backlog_queue_count=2,
            enable_syphon=True,
        )
        primary = AioServiceBusClient.from_connection_string(pair.primary.connection_string)
        paired = await pairbus.aio.pair_namespace(primary, options)
        async with paired:
            paired.fail_over(orders)
            async with paired.get_queue_sender(orders) as sender:
                await sender.send_messages(ServiceBusMessage(b"x", message_id="aio"))
            assert ids(await asyncio.to_thread(take_from, pair.primary, orders, 1)) == ["aio"]
        assert syphon_threads() == []

    asyncio.run(main())


@pytest.mark.parametrize("gone", ["primary", "secondary"])
def test_a_client_closed_alone_faults_its_partner_within_five_seconds(
    pair: EmbeddedPair, orders: str, gone: str
) -> None:
    paired = paired_with_syphon(pair)
    survivor = paired.secondary if gone == "primary" else paired.primary
    sender = paired.get_queue_sender(orders)
    older = survivor.get_queue_sender(orders), survivor.get_queue_receiver(orders)
    began = time.monotonic()
    (paired.primary if gone == "primary" else paired.secondary).close()

    def refuses() -> PairedNamespaceFaultedError | None:
        try:
            paired.get_queue_sender(orders)
        except PairedNamespaceFaultedError as error:
            return error
        return None

    error = wait_until(refuses, 15)
    assert time.monotonic() - began >= 4.9, "the partner got its five seconds"
    assert gone in str(error)
    assert "it was closed" in str(error)
    with pytest.raises(PairedNamespaceFaultedError):
        sender.send_messages(ServiceBusMessage(b"x"))
    with pytest.raises(PairedNamespaceFaultedError):
        survivor.get_queue_sender(orders)
    with pytest.raises(PairedNamespaceFaultedError):
        older[0].send_messages(ServiceBusMessage(b"x"))
    with pytest.raises(PairedNamespaceFaultedError):
        older[1].receive_messages(max_wait_time=1)
    for one in older:
        one.close()
    wait_until(lambda: not syphon_threads(), 30, "the syphon to end")
    paired.close()


def test_both_clients_closed_faults_nobody(pair: EmbeddedPair, orders: str) -> None:
    paired = paired_with_syphon(pair)
    watch = paired._syphon._watch
    paired.primary.close()
    paired.secondary.close()
    assert watch._timer is not None
    watch._timer.join(10)
    assert paired._fault is None
    paired.close()
    assert syphon_threads() == []


def test_a_loop_over_a_receiver_ends_when_it_is_faulted(pair: EmbeddedPair, orders: str) -> None:
    with paired_with_syphon(pair) as paired:
        receiver = paired.get_queue_receiver(orders)
        received: list[str] = []

        def receive() -> None:
            received.extend(str(message) for message in receiver)

        waiting = threading.Thread(target=receive, daemon=True)
        waiting.start()
        paired.get_queue_sender(orders).send_messages(ServiceBusMessage("received"))
        wait_until(lambda: received, 60, "a message")
        paired.secondary.close()
        wait_until(lambda: paired.is_faulted, 60, "the primary to be faulted")
        wait_until(lambda: not waiting.is_alive(), 60, "the loop to end")
        with pytest.raises(PairedNamespaceFaultedError):
            next(receiver)


def test_the_rate_can_be_changed_while_the_syphon_runs(pair: EmbeddedPair, orders: str) -> None:
    with paired_with_syphon(pair) as paired:
        paired.syphon.set_rate(0.001)
        paired.fail_over(orders)
        paired.get_queue_sender(orders).send_messages([ServiceBusMessage(str(number)) for number in range(20)])
        paired.mark_healthy(orders)
        wait_until(lambda: paired.syphon.state().restored >= 1, 60, "the first message")
        assert paired.syphon.state().restored < 20
        with pytest.raises(ValueError, match="rate is -1"):
            paired.syphon.set_rate(-1)
        paired.syphon.set_rate(None)
        wait_until(lambda: paired.syphon.state().restored == 20, 60, "the rest")
