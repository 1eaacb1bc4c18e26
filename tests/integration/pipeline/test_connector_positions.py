"""The stream reader, called as Spark calls it, where its position and what is in a queue do not agree."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage

from pairbus.pipeline.servicebus.options import read_options
from pairbus.pipeline.servicebus.rows import SCHEMA
from pairbus.pipeline.servicebus.stream import StreamReader
from pairbus.pipeline.servicebus.wire import WireError
from pairbus.testing import EmbeddedNamespace


@pytest.fixture
def namespace() -> Iterator[EmbeddedNamespace]:
    with EmbeddedNamespace("contoso") as started:
        yield started


def make(namespace: EmbeddedNamespace, name: str, *texts: str) -> None:
    with namespace.admin() as admin:
        admin.create_queue(name)
    send(namespace, name, *texts)


def send(namespace: EmbeddedNamespace, name: str, *texts: str) -> None:
    with namespace.client() as client, client.get_queue_sender(name) as sender:
        sender.send_messages([ServiceBusMessage(text) for text in texts])


def delete(namespace: EmbeddedNamespace, name: str) -> None:
    with namespace.admin() as admin:
        admin.delete_queue(name)


def active(namespace: EmbeddedNamespace, name: str) -> int:
    with namespace.admin() as admin:
        return admin.get_queue_runtime_properties(name).active_message_count or 0


class Life:
    """One life of a stream: its reader, which asks the namespace every time."""

    def __init__(self, namespace: EmbeddedNamespace, **options: str) -> None:
        given = {"connectionString": namespace.connection_string, "connectionVerify": namespace.ca_file, **options}
        self.reader = StreamReader(read_options(given, "stream"), SCHEMA)

    def next(self, start: dict[str, Any]) -> dict[str, Any]:
        """No waiting for the pace of an idle stream."""
        self.reader._idle_until = self.reader._names_until = 0.0
        self.reader._low_checks.update(dict.fromkeys(self.reader._low_checks, 0.0))
        return self.reader.latestOffset(start, self.reader.getDefaultReadLimit())


def parts(offset: dict[str, Any], name: str) -> list[str] | None:
    found: list[str] | None = offset["entities"][name].get("parts")
    return found


def test_a_queue_of_a_pattern_that_is_made_anew_is_read_from_its_beginning(namespace: EmbeddedNamespace) -> None:
    make(namespace, "area-1", *"abcdefgh")
    make(namespace, "area-2")
    life = Life(namespace, queuePattern="area-.*")
    first = life.next(life.reader.initialOffset())
    assert parts(first, "area-1") == ["1-8"]
    settled = life.next(first)
    life.reader.commit(first)
    delete(namespace, "area-1")
    gone = life.next(settled)
    assert "area-1" not in gone["entities"]
    make(namespace, "area-1", "x", "y")
    assert parts(life.next(gone), "area-1") == ["1-2"]


def test_what_was_held_when_a_life_ended_is_removed_by_the_next(namespace: EmbeddedNamespace) -> None:
    make(namespace, "orders", "a", "b", "c")
    life = Life(namespace, queue="orders")
    first = life.next(life.reader.initialOffset())
    with namespace.client() as client, client.get_queue_receiver("orders") as receiver:
        (held,) = receiver.receive_messages(1, max_wait_time=60)
        second = life.next(first)  # planned before the removal finds a message held, so this does not name it
        life.reader.commit(first)
        assert active(namespace, "orders") == 1
        receiver.abandon_message(held)
    assert "left" not in second["entities"]["orders"]
    again = Life(namespace, queue="orders")
    again.reader.partitions(first, second)
    with namespace.client() as client, client.get_queue_receiver("orders") as receiver:
        assert receiver.receive_messages(1, max_wait_time=1) == []


def test_a_kill_before_the_checkpoint_names_what_was_held_is_mended(namespace: EmbeddedNamespace) -> None:
    make(namespace, "orders", "a", "b", "c")
    life = Life(namespace, queue="orders")
    first = life.next(life.reader.initialOffset())
    with namespace.client() as client, client.get_queue_receiver("orders") as receiver:
        (held,) = receiver.receive_messages(1, max_wait_time=60)
        second = life.next(first)
        life.reader.commit(first)
        receiver.abandon_message(held)
    # The second, empty, batch is committed too, and then Spark dies: this life begins after it.
    after = Life(namespace, queue="orders")
    after.next(second)
    assert active(namespace, "orders") == 0


def test_a_named_queue_made_anew_is_noticed_by_a_stream_that_was_idle_before(namespace: EmbeddedNamespace) -> None:
    make(namespace, "orders", "a", "b", "c")
    life = Life(namespace, queue="orders")
    first = life.next(life.reader.initialOffset())
    second = life.next(first)
    life.reader.commit(first)
    assert life.next(second) == second
    delete(namespace, "orders")
    make(namespace, "orders", "x")
    with pytest.raises(RuntimeError, match=r"holds active messages numbered 1, below the stream's position 4"):
        life.next(second)


def test_a_pattern_that_cannot_be_looked_up_is_one_sentence(namespace: EmbeddedNamespace) -> None:
    before, _, after = namespace.connection_string.partition("SharedAccessKey=")
    wrong = f"{before}SharedAccessKey=d3Jvbmc=;{after.partition(';')[2]}"
    refused = Life(namespace, queuePattern="area-.*", connectionString=wrong)
    with pytest.raises(WireError) as said:
        refused.next(refused.reader.initialOffset())
    assert said.value.condition == "amqp:unauthorized-access"
    life = Life(namespace, queuePattern="area-.*")
    namespace.stop()
    with pytest.raises(WireError) as unanswered:
        life.next(life.reader.initialOffset())
    for error, cause in ((said.value, "InvalidSignature"), (unanswered.value, "Cannot connect to host")):
        assert str(error).startswith("Cannot list the queues of 127.0.0.1:")
        assert " for queuePattern 'area-.*': " in str(error)
        assert cause in str(error)
        assert "needs the Manage right" in str(error)
        assert "object at 0x" not in str(error)
        assert "\n" not in str(error)
