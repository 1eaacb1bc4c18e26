"""States as an application sees them: suspicion, overrides, pings, recovery for everyone at once, and what is told."""

from __future__ import annotations

import logging
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import (
    OperationTimeoutError,
    ServiceBusAuthenticationError,
    ServiceBusConnectionError,
    ServiceBusError,
)
from tests.support.pairing import Shell, backlog_bodies, bodies, paired

from pairbus import EntityState, TransitionEvent
from pairbus.costs.rules import billed_operations
from pairbus.failover.states import EventKind
from pairbus.ledger import Operation
from pairbus.testing import wait_until
from pairbus.testing.namespace import EmbeddedPair

HEALTHY, SUSPECT, FAILED_OVER = EntityState.HEALTHY, EntityState.SUSPECT, EntityState.FAILED_OVER


def reaches(client: Any, queue: str, state: EntityState) -> None:
    wait_until(lambda: client.state(queue) is state, 30, f"{queue} {state.value}")


@pytest.mark.every_wire
def test_a_suspect_entity_raises_until_its_time_is_over_and_then_diverts(
    pair: EmbeddedPair, shell: Shell, queue: str
) -> None:
    events: list[TransitionEvent] = []
    with paired(pair, shell, failover_interval=2, send_timeout=5, primary_name=queue) as client:
        client.on_transition(events.append)
        sender = client.get_queue_sender(queue)
        pair.primary.fault("drop", entity=queue)
        with pytest.raises(ServiceBusError):  # over web sockets the SDK has no better name for it
            sender.send_messages(ServiceBusMessage("first"))
        assert client.state(queue) is SUSPECT
        reaches(client, queue, FAILED_OVER)  # by itself: nobody sends
        sender.send_messages(ServiceBusMessage("second"))
        assert backlog_bodies(client, pair) == ["second"]
    assert [(event.before, event.after, event.reason) for event in events] == [
        (HEALTHY, SUSPECT, EventKind.SEND_FAILED),
        (SUSPECT, FAILED_OVER, EventKind.DEADLINE),
    ]
    assert len({event.episode for event in events}) == 1
    assert all(event.cause.startswith("ServiceBus") for event in events)


def test_a_healthy_send_is_the_sdks_own_with_the_very_message(pair: EmbeddedPair, queue: str) -> None:
    with paired(pair, "sync", primary_name=queue) as client:
        sender = client.get_queue_sender(queue)
        theirs: Any = sender._primary.sender
        send, given = theirs.send_messages, list[Any]()

        def looked_at(message: Any, **details: Any) -> None:
            given.append(message)
            send(message, **details)

        theirs.send_messages = looked_at
        single, batch = ServiceBusMessage("1"), sender.create_message_batch()
        batch.add_message(ServiceBusMessage("2"))
        for message in (single, batch):
            sender.send_messages(message)
        assert [one is message for one, message in zip(given, (single, batch), strict=True)] == [True, True]
        assert bodies(pair.primary, queue) == ["1", "2"]
        assert backlog_bodies(client, pair) == []


def test_one_success_clears_a_suspicion(pair: EmbeddedPair, shell: Shell, queue: str) -> None:
    with paired(pair, shell, failover_interval=1800, send_timeout=5, primary_name=queue) as client:
        sender = client.get_queue_sender(queue)
        pair.primary.fault("drop", entity=queue)
        with pytest.raises(ServiceBusConnectionError):
            sender.send_messages(ServiceBusMessage("first"))
        assert client.state(queue) is SUSPECT
        pair.primary.clear_faults()
        sender.send_messages(ServiceBusMessage("second"))
        assert client.state(queue) is HEALTHY
        assert bodies(pair.primary, queue) == ["second"]


def test_with_divert_during_interval_nothing_is_raised_while_suspect(
    pair: EmbeddedPair, shell: Shell, queue: str
) -> None:
    with paired(
        pair, shell, failover_interval=1800, divert_during_interval=True, send_timeout=5, primary_name=queue
    ) as client:
        sender = client.get_queue_sender(queue)
        pair.primary.fault("drop", entity=queue)
        sender.send_messages(ServiceBusMessage("1"))
        sender.send_messages(ServiceBusMessage("2"))
        assert client.state(queue) is SUSPECT
        assert backlog_bodies(client, pair) == ["1", "2"]
        pair.primary.clear_faults()
        sender.send_messages(ServiceBusMessage("3"))
        assert client.state(queue) is HEALTHY
        assert bodies(pair.primary, queue) == ["3"]


def test_overrides(pair: EmbeddedPair, shell: Shell, queue: str) -> None:
    with paired(pair, shell, primary_name=queue) as client:
        sender = client.get_queue_sender(queue)
        assert client.state(queue) is HEALTHY
        client.fail_over(queue)
        sender.send_messages(ServiceBusMessage("diverted"))
        client.mark_healthy(queue.upper())  # entity names do not depend on case
        sender.send_messages(ServiceBusMessage("direct"))
        assert backlog_bodies(client, pair) == ["diverted"]
        assert bodies(pair.primary, queue) == ["direct"]


def test_a_user_decides_which_errors_count(pair: EmbeddedPair, shell: Shell, queue: str) -> None:
    def only_missing_entities(error: BaseException) -> bool:
        # The service refuses the token for an entity that does not exist.
        return isinstance(error, ServiceBusAuthenticationError)

    with paired(
        pair,
        shell,
        failover_interval=0,
        send_timeout=5,
        causes_failover=only_missing_entities,
        primary_name=queue,
    ) as client:
        sender = client.get_queue_sender(queue)
        pair.primary.fault("drop", entity=queue)
        with pytest.raises(ServiceBusConnectionError):
            sender.send_messages(ServiceBusMessage("raised"))
        assert client.state(queue) is HEALTHY
        pair.primary.clear_faults()
        missing = client.get_queue_sender(f"{queue}-missing")
        missing.send_messages(ServiceBusMessage("diverted"))
        assert client.state(f"{queue}-missing") is FAILED_OVER
        assert backlog_bodies(client, pair) == ["diverted"]


def test_recovery_needs_its_pings_in_a_row_when_the_primary_flaps(
    pair: EmbeddedPair, shell: Shell, queue: str, tmp_path: Path
) -> None:
    ledger = tmp_path / "ledger"
    with paired(
        pair,
        shell,
        failover_interval=0,
        ping_primary_interval=1,
        recovery_pings=3,
        send_timeout=5,
        primary_name=queue,
        ledger=ledger,
    ) as client:
        sender = client.get_queue_sender(queue)
        pair.primary.fault("drop", entity=queue)
        sender.send_messages(ServiceBusMessage("1"))
        pair.primary.clear_faults()
        wait_until(lambda: pings(client, queue) >= 1, 20, "a ping")
        pair.primary.fault("refuse", entity=queue)
        wait_until(lambda: pings(client, queue) == 0, 20, "a ping that fails")
        assert client.state(queue) is FAILED_OVER
        pair.primary.clear_faults()
        reaches(client, queue, HEALTHY)
        sender.send_messages(ServiceBusMessage("2"))
    assert bodies(pair.primary, queue) == ["2"]  # no receiver ever sees a ping
    outcomes = [row.get("outcome", "ok") for row in rows(ledger) if row["operation"] == "ping"]
    assert outcomes[-3:] == ["ok", "ok", "ok"]
    assert "failed" in outcomes


def pings(client: Any, queue: str) -> int:
    target = getattr(client, "target", client)
    return int(target._entities[queue.lower()].machine.pings_in_a_row)


def rows(ledger: Path) -> list[dict[str, Any]]:
    return [
        msgspec.json.decode(line) for path in sorted(ledger.glob("*.jsonl")) for line in path.read_bytes().splitlines()
    ]


def test_the_next_send_of_fifty_senders_goes_home_after_recovery(pair: EmbeddedPair, shell: Shell, queue: str) -> None:
    count = 50
    with paired(
        pair, shell, failover_interval=0, ping_primary_interval=4, send_timeout=60, primary_name=queue
    ) as client:
        senders = [client.get_queue_sender(queue) for _ in range(count)]
        client.fail_over(queue)
        all_send(senders, "diverted")
        reaches(client, queue, HEALTHY)
        all_send(senders, "home")
        assert sorted(bodies(pair.primary, queue)) == sorted(f"home {index}" for index in range(count))
        assert sorted(backlog_bodies(client, pair)) == sorted(f"diverted {index}" for index in range(count))


def all_send(senders: list[Any], word: str) -> None:
    """Every sender sends at the same time, each from a thread of its own."""
    errors: list[BaseException] = []

    def send(index: int) -> None:
        try:
            senders[index].send_messages(ServiceBusMessage(f"{word} {index}"))
        except ServiceBusError as error:
            errors.append(error)

    threads = [threading.Thread(target=send, args=(index,)) for index in range(len(senders))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_one_sender_used_by_many_threads_or_tasks_at_once(pair: EmbeddedPair, shell: Shell, queue: str) -> None:
    with paired(pair, shell, send_timeout=30, primary_name=queue) as client:
        sender = client.get_queue_sender(queue)
        all_send([sender] * 40, "shared")
        assert sorted(bodies(pair.primary, queue)) == sorted(f"shared {index}" for index in range(40))


def test_those_who_wait_for_their_turn_are_diverted_when_the_entity_fails_over(
    pair: EmbeddedPair, shell: Shell, queue: str
) -> None:
    with paired(pair, shell, failover_interval=0, send_timeout=6, primary_name=queue) as client:
        sender = client.get_queue_sender(queue)
        pair.primary.fault("hang", entity=queue)
        all_send([sender] * 10, "waiting")  # one hangs for its timeout, the others need not
        assert len(backlog_bodies(client, pair)) == 10
        assert client.state(queue) is FAILED_OVER


def test_a_cancelled_send_is_cancelled_and_leaves_the_state_alone(pair: EmbeddedPair, queue: str) -> None:
    with paired(pair, "aio", failover_interval=0, send_timeout=60, primary_name=queue) as client:
        sender = client.get_queue_sender(queue)
        sender.send_messages(ServiceBusMessage("before"))
        pair.primary.fault("hang", entity=queue)
        waiting = sender.submit("send_messages", ServiceBusMessage("cancelled"))
        second = sender.submit("send_messages", ServiceBusMessage("cancelled while waiting"))
        wait_until(lambda: sender.target._primary.waiting, 10, "a second send")
        second.cancel()
        waiting.cancel()
        pair.primary.clear_faults()
        sender.send_messages(ServiceBusMessage("after"))
        assert client.state(queue) is HEALTHY
        assert [body for body in bodies(pair.primary, queue) if "cancelled" not in body] == ["before", "after"]
        assert backlog_bodies(client, pair) == []


@pytest.mark.every_wire
def test_a_callers_timeout_leaves_time_for_the_backlog(pair: EmbeddedPair, shell: Shell, queue: str) -> None:
    with paired(pair, shell, failover_interval=0, primary_name=queue) as client:
        sender = client.get_queue_sender(queue)
        pair.primary.fault("hang", entity=queue)
        sender.send_messages(ServiceBusMessage("in time"), timeout=10)
        assert backlog_bodies(client, pair) == ["in time"]


def test_a_silent_primary_ends_at_send_timeout(pair: EmbeddedPair, shell: Shell, queue: str) -> None:
    with paired(pair, shell, failover_interval=1800, send_timeout=2, primary_name=queue) as client:
        pair.primary.fault("hang")
        with pytest.raises(OperationTimeoutError):
            client.get_queue_sender(queue).send_messages(ServiceBusMessage("unheard"))
        assert client.state(queue) is SUSPECT


def test_a_message_in_doubt_keeps_its_id_when_it_is_diverted(pair: EmbeddedPair, shell: Shell, queue: str) -> None:
    from tests.support.pairing import backlog_raws, raws

    from pairbus.amqp.message import read_facts

    with paired(pair, shell, failover_interval=0, send_timeout=5, primary_name=queue) as client:
        pair.primary.fault("accept-then-fail", entity=queue)
        client.get_queue_sender(queue).send_messages(ServiceBusMessage("in doubt"))
        (stored,), (diverted,) = raws(pair.primary, queue), backlog_raws(client, pair)
        assert read_facts(stored).message_id == read_facts(diverted).message_id is not None


def test_a_message_in_doubt_is_delivered_once_where_duplicates_are_detected(pair: EmbeddedPair, queue: str) -> None:
    careful = f"{queue}-careful"
    with pair.primary.admin() as admin:
        admin.create_queue(careful, requires_duplicate_detection=True)
    with paired(
        pair, "sync", failover_interval=0, send_timeout=5, primary_name=queue, backlog_queue_count=1, enable_syphon=True
    ) as client:
        sender = client.get_queue_sender(careful)
        pair.primary.fault("accept-then-fail", entity=careful)
        sender.send_messages(ServiceBusMessage("in doubt"))
        assert client.state(careful) is FAILED_OVER
        sender.send_messages(ServiceBusMessage("behind it"))
        pair.primary.clear_faults()
        wait_until(lambda: not backlog_bodies(client, pair), 60, "an empty backlog")
        assert bodies(pair.primary, careful) == ["in doubt", "behind it"]


def test_waiting_for_ones_turn_says_nothing_about_the_entity(pair: EmbeddedPair, shell: Shell, queue: str) -> None:
    """A slow primary answers every send, but not all of a crowd in the time they have."""
    with paired(pair, shell, failover_interval=1800, primary_name=queue) as client:
        sender = client.get_queue_sender(queue)
        sender.send_messages(ServiceBusMessage("open"))
        events: list[TransitionEvent] = []
        client.on_transition(events.append)
        pair.primary.fault("slow", entity=queue, delay=0.4)
        outcomes: list[str] = []

        def send() -> None:
            try:
                sender.send_messages(ServiceBusMessage("crowd"), timeout=1.2)
                outcomes.append("sent")
            except OperationTimeoutError as error:
                outcomes.append(str(error))

        threads = [threading.Thread(target=send) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        late = [outcome for outcome in outcomes if "waiting for earlier sends" in outcome]
        assert late, outcomes
        assert all(event.reason is EventKind.SEND_FAILED for event in events[:1])
        # Whatever the machine's speed: nothing but a send that was really made may be held against the entity.
        assert len(events) == 0 or any("No answer" in outcome or "timed out" in outcome for outcome in outcomes)


def test_transitions_are_told_to_callbacks_the_log_the_ledger_and_the_metrics(
    pair: EmbeddedPair, shell: Shell, queue: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    prometheus_client = pytest.importorskip("prometheus_client")
    events: list[TransitionEvent] = []

    def broken(event: TransitionEvent) -> None:
        raise RuntimeError(f"a callback must not matter: {event}")

    with (
        caplog.at_level(logging.INFO, "pairbus.pairing"),
        paired(pair, shell, failover_interval=0, primary_name=queue, ledger=tmp_path / "ledger") as client,
    ):
        client.on_transition(broken)
        client.on_transition(events.append)
        pair.primary.fault("drop", entity=queue)
        sender = client.get_queue_sender(queue)
        sender.send_messages([ServiceBusMessage("1", message_id="m-1"), ServiceBusMessage("2", message_id="m-2")])
        client.mark_healthy(queue)
    assert [event.after for event in events] == [FAILED_OVER, HEALTHY]
    logged = [record.message for record in caplog.records if record.message.startswith(queue)]
    assert len(logged) == 2
    assert "healthy -> failed over" in logged[0]

    found = rows(tmp_path / "ledger")
    changes = [row for row in found if row["operation"] == "transition"]
    assert [(row["state_from"], row["state_to"], row["cause"]) for row in changes] == [
        ("healthy", "failed over", "ServiceBusConnectionError"),
        ("failed over", "healthy", "mark_healthy"),
    ]
    diverted = [row for row in found if row["operation"] == "divert"]
    assert [(row["message_id"], row["destination"], row["route"]) for row in diverted] == [
        ("m-1", queue, "backlog"),
        ("m-2", queue, "backlog"),
    ]
    failed = [row for row in found if row["operation"] == "send"]
    assert [(row["message_id"], row["entity"], row["outcome"]) for row in failed] == [
        ("m-1", queue, "unknown"),
        ("m-2", queue, "unknown"),
    ]

    def sample(name: str, **labels: str) -> float | None:
        value: float | None = prometheus_client.REGISTRY.get_sample_value(name, {"entity": queue, **labels})
        return value

    assert sample("pairbus_sent_messages_total", route="backlog", outcome="ok") == 2
    assert sample("pairbus_transitions_total", before="healthy", after="failed over") == 1
    assert sample("pairbus_entity_state") == 0


def test_what_the_primary_takes_is_recorded_with_its_size(
    pair: EmbeddedPair, shell: Shell, queue: str, tmp_path: Path
) -> None:
    """Bills are made from it: a namespace on Azure keeps no ledger of its own."""
    large, small = b"x" * 70_000, b"x" * 10
    with paired(pair, shell, primary_name=queue, ledger=tmp_path / "ledger") as client:
        sender = client.get_queue_sender(queue)
        sender.send_messages(ServiceBusMessage(large, message_id="single"))
        sender.send_messages([ServiceBusMessage(small, message_id="listed"), {"body": large, "message_id": "mapped"}])
        batch = sender.create_message_batch()
        for name, body in (("in a batch", large), ("beside it", small)):
            batch.add_message(ServiceBusMessage(body, message_id=name))
        sender.send_messages(batch)
        later = datetime.now(UTC) + timedelta(hours=1)
        sender.schedule_messages(ServiceBusMessage(large, message_id="later"), later)
    sent = [row for row in rows(tmp_path / "ledger") if row["operation"] in ("send", "schedule")]
    sizes = {row["message_id"]: row.get("bytes", 0) for row in sent}
    assert {name: size // 1000 for name, size in sizes.items()} == {
        "single": 70,
        "listed": 0,
        "mapped": 70,
        "in a batch": 70,
        "beside it": 0,
        "later": 70,
    }
    assert min(sizes.values()) > len(small)
    assert [billed_operations(Operation(row["operation"]), row["bytes"]) for row in sent] == [2, 1, 2, 2, 1, 2]
