"""Both namespaces down: the journal keeps what nobody takes and forwards it, in order, also after a crash."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import ServiceBusError
from tests.support.pairing import Shell, backlog_bodies, backlog_raws, bodies, paired, raws

from pairbus import (
    BacklogUnavailableError,
    EntityState,
    PartlyAcceptedError,
    SpoolFullError,
    SpoolInUseError,
    envelope,
)
from pairbus.amqp.message import read_facts
from pairbus.cli.__main__ import run
from pairbus.spool import SpoolJournal, look_into
from pairbus.testing import wait_until
from pairbus.testing.namespace import EmbeddedPair

FAST: dict[str, Any] = {"failover_interval": 0, "ping_primary_interval": 1, "send_timeout": 3}


@pytest.fixture
def pair(own_pair: EmbeddedPair) -> EmbeddedPair:
    return own_pair


def encoded(message: Any) -> bytes:
    batch = ServiceBusMessageBatch(max_size_in_bytes=2**31)
    batch.add_message(message)
    inner: Any = batch._message
    return bytes(inner[5][0])


def depth(client: Any) -> int:
    return int(client.spool.depth)


def test_without_a_spool_the_caller_gets_the_error(pair: EmbeddedPair, shell: Shell) -> None:
    with paired(pair, shell, **FAST) as client:
        pair.primary.stop()
        pair.secondary.stop()
        with pytest.raises(BacklogUnavailableError):
            client.get_queue_sender("orders").send_messages(ServiceBusMessage("lost? no: raised"))


@pytest.mark.every_wire
def test_what_nobody_takes_waits_and_goes_to_the_backlog_in_order(
    pair: EmbeddedPair, shell: Shell, tmp_path: Path
) -> None:
    with paired(pair, shell, spool=tmp_path / "spool", backlog_queue_count=1, **FAST) as client:
        sender = client.get_queue_sender("orders")
        pair.primary.stop()
        pair.secondary.stop()
        for index in range(5):
            sender.send_messages(ServiceBusMessage(str(index)))
        sender.send_messages([ServiceBusMessage("5"), ServiceBusMessage("6")])
        assert depth(client) == 7
        pair.secondary.restart()
        wait_until(lambda: depth(client) == 0, 30, "an empty spool")
        assert backlog_bodies(client, pair) == [str(index) for index in range(7)]
        assert client.state("orders") is EntityState.FAILED_OVER


def test_what_nobody_takes_goes_to_the_primary_when_that_is_back_first(
    pair: EmbeddedPair, shell: Shell, tmp_path: Path
) -> None:
    with paired(pair, shell, spool=tmp_path / "spool", backlog_queue_count=1, **FAST) as client:
        sender = client.get_queue_sender("orders")
        pair.primary.stop()
        pair.secondary.stop()
        for index in range(3):
            sender.send_messages(ServiceBusMessage(str(index), session_id=f"s{index}", time_to_live=timedelta(hours=1)))
        pair.primary.restart()
        wait_until(lambda: depth(client) == 0, 30, "an empty spool")
        assert bodies(pair.primary, "orders") == ["0", "1", "2"]
        facts = [read_facts(raw) for raw in raws(pair.primary, "orders")]
        assert [one.session_id for one in facts] == ["s0", "s1", "s2"]
        assert {one.ttl_ms for one in facts} == {3_600_000}
        assert facts[0].application_properties == {}


def test_a_killed_applications_messages_are_forwarded_by_the_next_one(
    pair: EmbeddedPair, shell: Shell, tmp_path: Path
) -> None:
    script = textwrap.dedent(
        """
        import os, signal, sys
        from azure.servicebus import ServiceBusClient, ServiceBusMessage
        from azure.servicebus.management import ServiceBusAdministrationClient
        import pairbus
        primary, secondary, ca, spool = sys.argv[1:]
        client = pairbus.pair_namespace(
            ServiceBusClient.from_connection_string(primary, retry_total=0),
            pairbus.SendAvailabilityPairedNamespaceOptions(
                ServiceBusAdministrationClient.from_connection_string(secondary, connection_verify=ca),
                ServiceBusClient.from_connection_string(secondary, retry_total=0),
                primary_name="contoso", failover_interval=0, send_timeout=3, spool=spool, backlog_queue_count=1,
            ),
        )
        print("paired", flush=True)
        sys.stdin.readline()
        sender = client.get_queue_sender("orders")
        for index in range(4):
            sender.send_messages(ServiceBusMessage(str(index)))
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    application = subprocess.Popen(
        [
            sys.executable,
            "-c",
            script,
            pair.primary.connection_string,
            pair.secondary.connection_string,
            pair.secondary.ca_file,
            str(tmp_path / "spool"),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with application:
        assert application.stdin is not None
        assert application.stdout is not None
        assert application.stdout.readline() == "paired\n"
        pair.primary.stop()
        pair.secondary.stop()
        application.stdin.write("go\n")
        application.stdin.flush()
        assert application.wait(60) == -9
    pair.secondary.restart()
    with paired(pair, shell, spool=tmp_path / "spool", backlog_queue_count=1, **FAST) as client:
        wait_until(lambda: depth(client) == 0, 30, "an empty spool")
        assert backlog_bodies(client, pair) == ["0", "1", "2", "3"]


def test_a_spool_has_one_owner(pair: EmbeddedPair, shell: Shell, tmp_path: Path) -> None:
    with (
        paired(pair, shell, spool=tmp_path / "spool", **FAST),
        pytest.raises(SpoolInUseError),
        paired(pair, shell, spool=tmp_path / "spool", **FAST),
    ):
        pytest.fail("two clients share a spool")


def test_a_full_spool_is_a_clear_error(pair: EmbeddedPair, shell: Shell, tmp_path: Path) -> None:
    with paired(pair, shell, spool=tmp_path / "spool", spool_limit_bytes=2000, backlog_queue_count=1, **FAST) as client:
        sender = client.get_queue_sender("orders")
        pair.primary.stop()
        pair.secondary.stop()
        sender.send_messages(ServiceBusMessage("x" * 1000))
        with pytest.raises(SpoolFullError, match="limit: 2000 bytes") as raised:
            sender.send_messages(ServiceBusMessage("y" * 1000))
        assert isinstance(raised.value, ServiceBusError)  # an application's own handler still sees it
        assert depth(client) == 1


def test_a_full_spool_says_which_messages_a_backlog_has_accepted(
    pair: EmbeddedPair, shell: Shell, tmp_path: Path
) -> None:
    """Three messages that each need a send of their own: the backlog takes some, the spool has no room for the rest."""
    options = {**FAST, "send_timeout": 5}
    with paired(
        pair, shell, spool=tmp_path / "spool", spool_limit_bytes=1000, backlog_queue_count=1, **options
    ) as client:
        client.fail_over("orders")
        sender = client.get_queue_sender("orders")
        sender.send_messages(ServiceBusMessage("open"))
        pair.secondary.fault("throttle", entity=sender.backlog_queue, rate=2)
        with pytest.raises(PartlyAcceptedError) as raised:
            sender.send_messages(
                [{"body": f"{index}" + "x" * 200_000, "message_id": f"m-{index}"} for index in range(4)], timeout=5
            )
        pair.secondary.clear_faults()
        assert isinstance(raised.value.cause, SpoolFullError)
        accepted = [int(body[0]) for body in backlog_bodies(client, pair) if body != "open"]
        assert list(raised.value.accepted) == accepted
        assert raised.value.rest == tuple(range(len(accepted), 4))
        assert depth(client) == 0


def test_what_a_backlog_has_accepted_is_not_stored_as_well(pair: EmbeddedPair, shell: Shell, tmp_path: Path) -> None:
    """Four messages that each need a send of their own: the backlog takes some of them, the spool the rest."""
    with paired(
        pair, shell, spool=tmp_path / "spool", backlog_queue_count=1, **{**FAST, "ping_primary_interval": 600}
    ) as client:
        client.fail_over("orders")
        sender = client.get_queue_sender("orders")
        sender.send_messages(ServiceBusMessage("open"))
        pair.secondary.fault("throttle", entity=sender.backlog_queue, rate=2)
        sender.send_messages([{"body": f"{index}" + "x" * 200_000} for index in range(4)], timeout=5)
        pair.secondary.clear_faults()
        wait_until(lambda: depth(client) == 0, 60, "an empty spool")
        assert [body[0] for body in backlog_bodies(client, pair)] == ["o", "0", "1", "2", "3"]


def test_an_entity_that_cannot_go_holds_up_no_other(pair: EmbeddedPair, shell: Shell, tmp_path: Path) -> None:
    with pair.primary.admin() as admin:
        admin.create_queue("events")
    with paired(pair, shell, spool=tmp_path / "spool", backlog_queue_count=1, **FAST) as client:
        orders, events = client.get_queue_sender("orders"), client.get_queue_sender("events")
        pair.secondary.stop()
        pair.primary.fault("refuse")
        orders.send_messages(ServiceBusMessage("first"))
        events.send_messages(ServiceBusMessage("second"))
        assert depth(client) == 2
        pair.primary.clear_faults()
        pair.primary.fault("refuse", entity="orders")
        wait_until(lambda: bodies(pair.primary, "events") == ["second"], 60, "the message behind")
        wait_until(lambda: depth(client) == 1, 60, "a journal with the message in front alone")
        pair.primary.clear_faults()
        wait_until(lambda: bodies(pair.primary, "orders") == ["first"], 60, "the message in front")


def test_what_has_expired_holds_up_nobody(pair: EmbeddedPair, shell: Shell, tmp_path: Path) -> None:
    """More of it than the forwarder takes at once."""
    expired = ["short"] * 150
    with paired(
        pair, shell, spool=tmp_path / "spool", backlog_queue_count=1, backlog_time_to_live="deduct", **FAST
    ) as client:
        sender = client.get_queue_sender("orders")
        pair.primary.stop()
        pair.secondary.stop()
        sender.send_messages([ServiceBusMessage(body, time_to_live=timedelta(milliseconds=1)) for body in expired])
        sender.send_messages(ServiceBusMessage("long", time_to_live=timedelta(hours=1)))
        pair.primary.restart()
        wait_until(lambda: bodies(pair.primary, "orders") == ["long"], 60, "the message that lives")
        wait_until(lambda: depth(client) == len(expired), 60, "a journal with the expired ones alone")
        pair.secondary.restart()
        wait_until(lambda: backlog_bodies(client, pair) == expired, 60, "the expired ones where the syphon looks")


def test_a_send_cancelled_while_it_is_being_stored_is_forwarded_all_the_same(
    pair: EmbeddedPair, tmp_path: Path
) -> None:
    with paired(pair, "aio", spool=tmp_path / "spool", backlog_queue_count=1, **FAST) as client:
        sender = client.get_queue_sender("orders")
        pair.primary.stop()
        pair.secondary.stop()
        journal: Any = client.target.spool._journal
        with journal._lock:  # a disk that takes its time
            sending = sender.submit("send_messages", ServiceBusMessage("stored"))
            wait_until(lambda: threads_waiting_for_the_disk() > 0, 60, "a send that stores")
            sending.cancel()
        wait_until(lambda: depth(client) == 1, 30, "the message in the journal")
        pair.secondary.restart()
        wait_until(lambda: depth(client) == 0, 60, "an empty spool")
        assert backlog_bodies(client, pair) == ["stored"]


def threads_waiting_for_the_disk() -> int:
    return sum(
        frame.f_code.co_name == "append" and "journal" in frame.f_code.co_filename
        for frame in sys._current_frames().values()
    )


def test_under_deduct_the_time_in_the_spool_is_part_of_a_messages_life(
    pair: EmbeddedPair, shell: Shell, tmp_path: Path
) -> None:
    with paired(
        pair, shell, spool=tmp_path / "spool", backlog_queue_count=1, backlog_time_to_live="deduct", **FAST
    ) as client:
        pair.primary.stop()
        pair.secondary.stop()
        client.get_queue_sender("orders").send_messages(ServiceBusMessage("x", time_to_live=timedelta(hours=1)))
        pair.secondary.restart()
        wait_until(lambda: depth(client) == 0, 30, "an empty spool")
        (waiting,) = backlog_raws(client, pair)
        left = envelope.inspect(waiting).time_to_live_ms
        assert left is not None
        assert 0 < left < 3_600_000


def test_a_message_that_the_backlog_refuses_is_set_aside_and_holds_up_nobody(
    pair: EmbeddedPair, shell: Shell, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "spool"
    refused = AmqpAnnotatedMessage(data_body=[b"refused"], properties={"message_id": "x" * 200})
    with paired(pair, shell, spool=folder, backlog_queue_count=2, **FAST | {"send_timeout": 30}) as client:
        sender = client.get_queue_sender("orders")
        pair.primary.stop()
        pair.secondary.stop()
        for message in (ServiceBusMessage("before"), refused, ServiceBusMessage("behind")):
            sender.send_messages(message)
        pair.secondary.restart()
        wait_until(lambda: depth(client) == 0, 60, "the spool to be empty")
        assert backlog_bodies(client, pair) == ["before", "behind"]
        assert len(client.backlog_queues.in_rotation) == 2
        assert run(["spool", str(folder), "--json"]) == 0
    (shown,) = json.loads(capsys.readouterr().out)
    assert shown["entity"] == "orders"
    assert shown["message_id"] == "x" * 200
    assert "128" in shown["set_aside"]


def test_a_list_with_a_message_that_the_backlog_refuses_is_not_accepted_into_the_spool(
    pair: EmbeddedPair, shell: Shell, tmp_path: Path
) -> None:
    """Each message is a send of its own. What the queues refuse could only be set aside, so its sender is told."""
    large = "x" * 200_000
    messages: list[Any] = [
        ServiceBusMessage(f"taken{large}"),
        AmqpAnnotatedMessage(data_body=[f"refused{large}".encode()], properties={"message_id": "x" * 200}),
        ServiceBusMessage(f"behind{large}"),
    ]
    with paired(pair, shell, spool=tmp_path / "spool", backlog_queue_count=2, **FAST | {"send_timeout": 30}) as client:
        client.fail_over("orders")
        sender = client.get_queue_sender("orders")
        with pytest.raises(PartlyAcceptedError) as raised:
            sender._store([encoded(message) for message in messages], time.monotonic() + 30, None, None)
        assert (raised.value.accepted, raised.value.rest) == ((0,), (1, 2))
        assert depth(client) == 0
        assert [body[:5] for body in backlog_bodies(client, pair)] == ["taken"]


def test_one_queue_alone_does_not_decide_that_a_message_is_refused(
    pair: EmbeddedPair, shell: Shell, tmp_path: Path
) -> None:
    """While both queues are pulled, the first is probed and refuses the message; the second returns later."""
    folder = tmp_path / "spool"
    options = FAST | {"send_timeout": 30, "ping_primary_interval": 5}
    with paired(pair, shell, spool=folder, backlog_queue_count=2, **options) as client:
        getattr(client, "target", client).backlog._random = lambda: 0.0
        strict, patient = client.backlog_queues.created
        with pair.secondary.admin() as admin:
            admin.delete_queue(strict)
            admin.create_queue(strict, requires_session=True)
        sender = client.get_queue_sender("orders")
        pair.primary.stop()
        pair.secondary.stop()
        sender.send_messages(ServiceBusMessage("wanted by one queue"))
        pair.secondary.restart()
        wait_until(lambda: depth(client) == 0, 90, "the spool to be empty")
        assert bodies(pair.secondary, patient) == ["wanted by one queue"]
    assert [message.set_aside for message in look_into(folder)] == []


def test_a_damaged_message_is_set_aside_and_holds_up_nobody(pair: EmbeddedPair, shell: Shell, tmp_path: Path) -> None:
    journal = SpoolJournal(tmp_path / "spool", limit_bytes=10_000)
    journal.append("orders", [b"no message"], 0)
    journal.append("orders", [envelope.to_backlog(encoded(ServiceBusMessage("whole")), "orders")], 0)
    journal.close()
    with paired(pair, shell, spool=tmp_path / "spool", **FAST | {"send_timeout": 30}) as client:
        wait_until(lambda: depth(client) == 0, 60, "the spool to be empty")
        assert bodies(pair.primary, "orders") == ["whole"]
    (damaged,) = look_into(tmp_path / "spool")
    assert damaged.set_aside is not None
    assert damaged.set_aside.startswith("it cannot be read: ")
