"""The way into the backlog: rotation, batches, sizes, schedules, and what cannot be done there."""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import MessageSizeExceededError, ServiceBusError
from tests.support.pairing import Blocking, Shell, backlog_bodies, backlog_raws, bodies, paired, raws

from pairbus import (
    BacklogUnavailableError,
    PartlyAcceptedError,
    ReservedPropertyError,
    ScheduledInBacklogError,
    envelope,
)
from pairbus.amqp.message import BATCH_ENTRY_BYTES, read_facts
from pairbus.envelope import Restored
from pairbus.testing import wait_until
from pairbus.testing.namespace import EmbeddedPair

LIMIT = 256 * 1024


@pytest.mark.every_wire
def test_a_sender_stays_with_its_queue_until_it_fails(pair: EmbeddedPair, shell: Shell, queue: str) -> None:
    with paired(pair, shell, send_timeout=5, primary_name=queue) as client:
        client.fail_over(queue)
        sender: Any = client.get_queue_sender(queue)
        assert not sender.backlog_queue
        sender.send_messages(ServiceBusMessage("1"))
        first = sender.backlog_queue
        sender.send_messages(ServiceBusMessage("2"))
        assert sender.backlog_queue == first
        pair.secondary.fault("refuse", entity=first)
        sender.send_messages(ServiceBusMessage("3"))
        assert sender.backlog_queue != first
        assert first not in client.backlog_queues.in_rotation
        assert sorted(backlog_bodies(client, pair)) == ["1", "2", "3"]
        # Pulled for all: another sender never tries it.
        others = [client.get_queue_sender(queue) for _ in range(4)]
        for index, other in enumerate(others):
            other.send_messages(ServiceBusMessage(f"other {index}"))
        assert first not in {other.backlog_queue for other in others}


def test_senders_spread_over_the_queues(pair: EmbeddedPair, queue: str) -> None:
    with paired(pair, "sync", primary_name=queue) as client:
        first_choices = {client.backlog.choose(None, {}) for _ in range(200)}
        assert first_choices == set(client.backlog_queues.in_rotation)


def test_a_pulled_queue_is_tried_again_after_the_ping_interval(
    pair: EmbeddedPair, shell: Shell, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "pairbus.pairing")
    with paired(
        pair,
        shell,
        ping_primary_interval=1,
        recovery_pings=1000,
        backlog_queue_count=1,
        send_timeout=5,
        primary_name=queue,
    ) as client:
        client.fail_over(queue)
        sender = client.get_queue_sender(queue)
        pair.secondary.fault("refuse")
        with pytest.raises(BacklogUnavailableError):
            sender.send_messages(ServiceBusMessage("too early"))
        with pytest.raises(BacklogUnavailableError) as raised:
            sender.send_messages(ServiceBusMessage("still too early"))
        assert list(raised.value.queue_errors) == list(client.backlog_queues.created)
        pair.secondary.clear_faults()
        wait_until(lambda: client.backlog_queues.in_rotation, 10, "the queue's return")
        for body in ("back", "again"):
            sender.send_messages(ServiceBusMessage(body))
        assert backlog_bodies(client, pair) == ["back", "again"]
    assert sum("is back in the rotation" in record.getMessage() for record in caplog.records) == 1


def test_with_no_queue_left_the_error_carries_every_cause(pair: EmbeddedPair, shell: Shell, queue: str) -> None:
    with paired(pair, shell, failover_interval=0, send_timeout=5, primary_name=queue) as client:
        pair.primary.fault("drop")
        pair.secondary.fault("error", condition="amqp:internal-error")
        with pytest.raises(BacklogUnavailableError) as raised:
            client.get_queue_sender(queue).send_messages(ServiceBusMessage("nowhere"))
        assert isinstance(raised.value, ServiceBusError)  # an application's own handler still sees it
        assert isinstance(raised.value.primary_error, ServiceBusError)
        assert sorted(raised.value.queue_errors) == sorted(client.backlog_queues.created)
        assert all(isinstance(error, ServiceBusError) for error in raised.value.queue_errors.values())


def test_a_hanging_backlog_queue_leaves_time_for_another(pair: EmbeddedPair, shell: Shell, queue: str) -> None:
    with paired(pair, shell, backlog_queue_count=2, primary_name=queue) as client:
        client.fail_over(queue)
        sender = client.get_queue_sender(queue)
        sender.send_messages(ServiceBusMessage("1"))
        pair.secondary.fault("hang", entity=sender.backlog_queue)
        sender.send_messages(ServiceBusMessage("2"), timeout=12)
        pair.secondary.clear_faults()
        assert sorted(backlog_bodies(client, pair)) == ["1", "2"]


@pytest.mark.every_wire
def test_lists_and_batches_are_diverted_in_order(pair: EmbeddedPair, shell: Shell, queue: str) -> None:
    with paired(pair, shell, primary_name=queue) as client:
        client.fail_over(queue)
        sender = client.get_queue_sender(queue)
        sender.send_messages([])
        sender.send_messages([ServiceBusMessage(str(index)) for index in range(50)])
        batch = sender.create_message_batch()
        for index in range(50, 100):
            batch.add_message(ServiceBusMessage(str(index)))
        sender.send_messages(batch)
        sender.send_messages(ServiceBusMessage(str(number)) for number in range(100, 103))
        foreign = ServiceBusMessageBatch(max_size_in_bytes=10_000)
        foreign.add_message(AmqpAnnotatedMessage(data_body=b"103"))
        sender.send_messages(foreign)
        sender.send_messages({"body": "104"})
        assert backlog_bodies(client, pair) == [str(index) for index in range(105)]
        assert all(read_facts(raw).message_id for raw in backlog_raws(client, pair))


def test_a_full_batch_of_the_primary_needs_several_sends_to_the_backlog(
    pair: EmbeddedPair, shell: Shell, queue: str
) -> None:
    messages: list[ServiceBusMessage] = []
    batch = ServiceBusMessageBatch(max_size_in_bytes=LIMIT)
    while True:
        message = ServiceBusMessage(str(len(messages)) + "x" * 900)
        try:
            batch.add_message(message)
        except MessageSizeExceededError:
            break
        messages.append(message)
    with paired(pair, shell, primary_name=queue) as client:
        client.fail_over(queue)
        client.get_queue_sender(queue).send_messages(messages)
        assert backlog_bodies(client, pair) == [str(message) for message in messages]


def test_a_batch_of_the_paired_sender_leaves_room_for_the_backlog(pair: EmbeddedPair, shell: Shell, queue: str) -> None:
    with paired(pair, shell, primary_name=queue) as client:
        sender = client.get_queue_sender(queue)
        batch = sender.create_message_batch()
        count = 0
        with pytest.raises(MessageSizeExceededError):
            while True:
                batch.add_message(ServiceBusMessage("y" * 2000, session_id="s"))
                count += 1
        assert len(batch) == count > 100
        sender.send_messages(batch)
        client.fail_over(queue)
        sender.send_messages(batch)
        found = backlog_raws(client, pair)
        assert len(found) == count == len(raws(pair.primary, queue))
        assert sum(len(raw) + BATCH_ENTRY_BYTES for raw in found) < LIMIT + 100 * count


def test_a_list_too_large_for_the_primary_is_refused_as_the_primary_would(
    pair: EmbeddedPair, shell: Shell, queue: str
) -> None:
    messages = [ServiceBusMessage("z" * 100_000) for _ in range(3)]
    with paired(pair, shell, primary_name=queue) as client:
        sender = client.get_queue_sender(queue)
        for failed_over in (False, True):
            if failed_over:
                client.fail_over(queue)
            with pytest.raises(MessageSizeExceededError):
                sender.send_messages(messages)
            with pytest.raises(MessageSizeExceededError):
                sender.send_messages(ServiceBusMessage(b"z" * (LIMIT + 1)))
        assert backlog_bodies(client, pair) == []


@pytest.mark.parametrize("short_of_limit", [0, 1, 2, 7, 8, 9, 40, 41, 42, 43, 60])
def test_what_the_primary_takes_the_backlog_takes_too(pair: EmbeddedPair, queue: str, short_of_limit: int) -> None:
    shell: Shell = "sync"

    def message(size: int) -> ServiceBusMessage:
        return ServiceBusMessage(b"x" * size, message_id="m")

    overhead = len(encoded(message(300))) - 300
    with paired(pair, shell, primary_name=queue) as client:
        sender = client.get_queue_sender(queue)
        large = message(LIMIT - overhead - short_of_limit)
        sender.send_messages(large)
        (taken,) = raws(pair.primary, queue)
        client.fail_over(queue)
        sender.send_messages(large)
        pieces = backlog_raws(client, pair)
        found = [envelope.inspect(piece) for piece in pieces]
        parts = [one.part for one in found if one.part is not None]
        form = envelope.join(parts) if parts else pieces[0]
        assert len(pieces) == (len(parts) or 1) <= 2
        assert {one.destination for one in found} == {queue}
        home = envelope.restore(form, now_ms=0)
        assert isinstance(home, Restored)
        assert home.raw == encoded(large)
        assert read_facts(taken).body_size == read_facts(home.raw).body_size


def encoded(message: Any) -> bytes:
    batch = ServiceBusMessageBatch(max_size_in_bytes=2**31)
    batch.add_message(message)
    inner: Any = batch._message
    return bytes(inner[5][0])


def test_what_was_accepted_is_named_when_a_later_send_fails(pair: EmbeddedPair, shell: Shell, queue: str) -> None:
    """The messages are large, so that each is a send of its own; the third is refused by every queue."""
    with paired(pair, shell, backlog_queue_count=1, send_timeout=5, primary_name=queue) as client:
        client.fail_over(queue)
        sender = client.get_queue_sender(queue)
        target = getattr(sender, "target", sender)
        forms = [
            envelope.to_backlog(encoded(ServiceBusMessage(str(index) + "x" * 200_000)), queue) for index in range(3)
        ]
        (name,) = client.backlog_queues.created
        route = target._backlog
        sending: Any = Blocking(route, sender.loop) if isinstance(sender, Blocking) else route
        pair.secondary.fault("throttle", entity=name, rate=2)
        with pytest.raises(PartlyAcceptedError) as raised:
            sending.send(forms, time.monotonic() + 5)
        pair.secondary.clear_faults()
        accepted = [int(body[0]) for body in backlog_bodies(client, pair)]
        assert list(raised.value.accepted) == accepted == list(range(len(accepted)))
        assert raised.value.rest == tuple(range(len(accepted), 3))
        assert isinstance(raised.value.cause, BacklogUnavailableError)


def test_scheduled_messages_keep_their_time_in_the_backlog(pair: EmbeddedPair, shell: Shell, queue: str) -> None:
    at = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    with paired(pair, shell, primary_name=queue) as client:
        sender = client.get_queue_sender(queue)
        (real,) = sender.schedule_messages(ServiceBusMessage("at the primary"), at)
        assert real >= 0
        client.fail_over(queue)
        numbers = sender.schedule_messages([ServiceBusMessage("a"), ServiceBusMessage("b")], at)
        assert len(set(numbers)) == 2
        assert all(number < 0 for number in numbers)
        assert sender.schedule_messages([], at) == []
        found = [envelope.inspect(raw) for raw in backlog_raws(client, pair)]
        assert [one.scheduled_ms for one in found] == [round(at.timestamp() * 1000)] * 2
        with pytest.raises(ScheduledInBacklogError, match=str(numbers[0])):
            sender.cancel_scheduled_messages([real, *numbers])
        sender.cancel_scheduled_messages(real)


@pytest.mark.parametrize("name", sorted(envelope.RESERVED))
def test_a_reserved_property_is_refused_before_anything_is_sent(pair: EmbeddedPair, queue: str, name: str) -> None:
    with paired(pair, "sync", primary_name=queue, backlog_queue_count=1) as client:
        sender = client.get_queue_sender(queue)
        for message in (
            ServiceBusMessage("x", application_properties={name: "mine"}),
            [ServiceBusMessage("ok"), ServiceBusMessage("x", application_properties={name.encode(): 1})],
            {"body": "x", "application_properties": {name: 1}},
        ):
            with pytest.raises(ReservedPropertyError, match=name):
                sender.send_messages(message)
        batch = sender.create_message_batch()
        with pytest.raises(ReservedPropertyError, match=name):
            batch.add_message(ServiceBusMessage("x", application_properties={name: "mine"}))
        assert bodies(pair.primary, queue) == []


def test_a_batch_can_be_made_while_the_primary_is_out_of_reach(pair: EmbeddedPair, shell: Shell, queue: str) -> None:
    with paired(pair, shell, failover_interval=0, send_timeout=6, primary_name=queue) as client:
        pair.primary.fault("hang")
        sender = client.get_queue_sender(queue)
        batch = sender.create_message_batch()
        batch.add_message(ServiceBusMessage("kept"))
        sender.send_messages(batch)
        assert backlog_bodies(client, pair) == ["kept"]
        with pytest.raises(ValueError, match="max_size_in_bytes"):
            sender.create_message_batch(max_size_in_bytes=LIMIT * 10)


def test_a_message_that_the_queues_refuse_pulls_no_queue(pair: EmbeddedPair, shell: Shell, queue: str) -> None:
    refused = AmqpAnnotatedMessage(data_body=[b"refused"], properties={"message_id": "x" * 200})
    with paired(pair, shell, failover_interval=0, primary_name=queue) as client:
        client.fail_over(queue)
        sender = client.get_queue_sender(queue)
        for _ in range(2):
            with pytest.raises(ServiceBusError) as raised:
                sender.send_messages(refused)
            assert not isinstance(raised.value, BacklogUnavailableError)
        assert len(client.backlog_queues.in_rotation) == 3
        sender.send_messages(ServiceBusMessage("taken"))
        assert backlog_bodies(client, pair) == ["taken"]


def test_properties_that_the_primary_takes_fit_into_the_backlog(pair: EmbeddedPair, shell: Shell, queue: str) -> None:
    message = ServiceBusMessage("large head", application_properties={"note": "x" * 65_510})
    with paired(pair, shell, failover_interval=0, primary_name=queue) as client:
        sender = client.get_queue_sender(queue)
        sender.send_messages(message)
        client.fail_over(queue)
        sender.send_messages(message)
        parts = [envelope.inspect(raw).part for raw in backlog_raws(client, pair)]
        restored = envelope.restore(envelope.join([part for part in parts if part is not None]), now_ms=0)
        assert isinstance(restored, Restored)
        (healthy,) = raws(pair.primary, queue)
        assert read_facts(restored.raw).message_key == read_facts(healthy).message_key
        assert b"x" * 65_510 in restored.raw


def test_a_list_that_the_primary_takes_fits_into_the_backlog(pair: EmbeddedPair, shell: Shell, queue: str) -> None:
    def messages() -> list[ServiceBusMessage]:
        return [ServiceBusMessage(f"{index:0100}") for index in range(1577)]

    with paired(pair, shell, failover_interval=0, primary_name=queue) as client:
        sender = client.get_queue_sender(queue)
        sender.send_messages(messages())
        client.fail_over(queue)
        sender.send_messages(messages())
        assert backlog_bodies(client, pair) == bodies(pair.primary, queue)


def test_a_secondary_that_was_away_is_used_again_as_soon_as_it_answers(
    pair: EmbeddedPair, shell: Shell, queue: str
) -> None:
    with paired(pair, shell, failover_interval=0, ping_primary_interval=1800, primary_name=queue) as client:
        client.fail_over(queue)
        sender = client.get_queue_sender(queue)
        pair.secondary.fault("refuse")
        with pytest.raises(BacklogUnavailableError):
            sender.send_messages(ServiceBusMessage("refused"))
        assert client.backlog_queues.in_rotation == ()
        pair.secondary.clear_faults()

        def is_taken() -> bool:
            try:
                sender.send_messages(ServiceBusMessage("taken"))
            except BacklogUnavailableError:
                return False
            return True

        wait_until(is_taken, 60, "a send to be taken")
        assert backlog_bodies(client, pair) == ["taken"]
