"""Reading a namespace with Spark, batch and streaming."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode
from azure.servicebus.amqp import AmqpAnnotatedMessage
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests.support.raw import flood

from pairbus.pipeline.servicebus import ServiceBusDataSource
from pairbus.testing import EmbeddedNamespace, wait_until

FAR = datetime(2050, 1, 1, tzinfo=UTC)
MANY = 200_000


@pytest.fixture(scope="module")
def namespace() -> Iterator[EmbeddedNamespace]:
    with EmbeddedNamespace("contoso", process=True) as started:
        yield started


@pytest.fixture(scope="module")
def bus(spark: SparkSession) -> SparkSession:
    spark.dataSource.register(ServiceBusDataSource)
    return spark


def queue(namespace: EmbeddedNamespace, name: str, **settings: Any) -> str:
    with namespace.admin() as admin:
        admin.create_queue(name, **settings)
    return name


def send(namespace: EmbeddedNamespace, entity: str, *messages: ServiceBusMessage | AmqpAnnotatedMessage) -> None:
    with namespace.client() as client, client.get_queue_sender(entity) as sender:
        for message in messages:
            sender.send_messages(message)


def bodies(*texts: str) -> list[ServiceBusMessage]:
    return [ServiceBusMessage(text, message_id=text) for text in texts]


def table(bus: SparkSession, namespace: EmbeddedNamespace, **options: str) -> DataFrame:
    given = {"connectionString": namespace.connection_string, "connectionVerify": namespace.ca_file, **options}
    return bus.read.format("servicebus").options(**given).load()


def active(namespace: EmbeddedNamespace, name: str) -> int:
    with namespace.admin() as admin:
        return admin.get_queue_runtime_properties(name).active_message_count or 0


def is_empty(namespace: EmbeddedNamespace, name: str) -> bool:
    """Asked once: between two questions a scheduled message may become an active one."""
    with namespace.admin() as admin:
        counts = admin.get_queue_runtime_properties(name)
    return (counts.active_message_count, counts.scheduled_message_count) == (0, 0)


# --- batch ------------------------------------------------------------------------------------------------


def test_every_property_and_type_arrives(bus: SparkSession, namespace: EmbeddedNamespace) -> None:
    queue(namespace, "typed")
    properties: dict[str | bytes, Any] = {
        "text": "Grüße",
        "whole": 5,
        "real": 2.5,
        "yes": True,
        "when": datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC),
        "uuid": UUID(int=7),
    }
    send(
        namespace,
        "typed",
        ServiceBusMessage(
            b"body",
            message_id="m1",
            session_id="s1",
            content_type="application/json",
            correlation_id="c1",
            subject="sub",
            to="there",
            reply_to="back",
            reply_to_session_id="rs",
            partition_key="s1",
            time_to_live=timedelta(hours=1),
            application_properties=properties,
        ),
        ServiceBusMessage("later", message_id="m2", scheduled_enqueue_time_utc=FAR),
        AmqpAnnotatedMessage(value_body="a value"),
    )
    first, scheduled, value = table(bus, namespace, queue="typed").orderBy("sequence_number").collect()
    expected = {
        "body": b"body",
        "body_type": "data",
        "message_id": "m1",
        "session_id": "s1",
        "content_type": "application/json",
        "correlation_id": "c1",
        "subject": "sub",
        "to": "there",
        "reply_to": "back",
        "reply_to_session_id": "rs",
        "partition_key": "s1",
        "time_to_live_ms": 3_600_000,
        "scheduled_enqueue_time": None,
        "sequence_number": 1,
        "delivery_count": 0,
        "state": "active",
        "dead_letter_reason": None,
        "dead_letter_error_description": None,
        "entity": "typed",
        "namespace": f"127.0.0.1:{namespace.port}",
    }
    row = first.asDict()
    assert {name: row[name] for name in expected} == expected
    assert abs(row["enqueued_time"].replace(tzinfo=UTC) - datetime.now(UTC)) < timedelta(minutes=10)
    assert (scheduled.state, scheduled.scheduled_enqueue_time) == ("scheduled", FAR.replace(tzinfo=None))
    assert (value.body, value.body_type) == (b"a value", "value")
    found = (
        table(bus, namespace, queue="typed")
        .filter("message_id = 'm1'")
        .selectExpr("explode(application_properties)")
        .selectExpr("key", "schema_of_variant(value) kind", "cast(value as string) text")
        .collect()
    )
    assert {(one.key, one.kind, one.text) for one in found} == {
        ("text", "STRING", "Grüße"),
        ("whole", "BIGINT", "5"),
        ("real", "DOUBLE", "2.5"),
        ("yes", "BOOLEAN", "true"),
        ("when", "TIMESTAMP", "2024-01-02 03:04:05"),
        ("uuid", "UUID", str(UUID(int=7))),
    }


def test_delivery_counts_and_deferred_messages_are_seen(bus: SparkSession, namespace: EmbeddedNamespace) -> None:
    name = queue(namespace, "counted")
    send(namespace, name, *bodies("returned", "put aside", "fresh"))
    with namespace.client() as client, client.get_queue_receiver(name) as receiver:
        for _ in range(2):
            (message,) = receiver.receive_messages(1, max_wait_time=60)
            receiver.abandon_message(message)
        for message in receiver.receive_messages(2, max_wait_time=60):
            if message.message_id == "put aside":
                receiver.defer_message(message)
            else:
                receiver.abandon_message(message)
    rows = table(bus, namespace, queue=name).orderBy("sequence_number").collect()
    assert [(row.message_id, row.state) for row in rows] == [
        ("returned", "active"),
        ("put aside", "deferred"),
        ("fresh", "active"),
    ]
    assert rows[0].delivery_count == 3
    assert rows[2].delivery_count == 0


def test_peeking_in_parallel_equals_what_is_there(bus: SparkSession, namespace: EmbeddedNamespace) -> None:
    flood(namespace, queue(namespace, "many"), MANY, size=10)
    frame = table(bus, namespace, queue="many", messagesPerPartition="25000")
    assert frame.rdd.getNumPartitions() == -(-MANY // 25_000)
    # Every message as it was sent: number n has the id m(n-1).
    row = frame.selectExpr(
        "count(*) n",
        "count_if(message_id = concat('m', sequence_number - 1) and octet_length(body) = 10) whole",
        "count(distinct sequence_number) numbers",
        "max(delivery_count) delivered",
    ).collect()[0]
    assert row == Row(n=MANY, whole=MANY, numbers=MANY, delivered=0)
    assert active(namespace, "many") == MANY
    # Nothing is locked either: a receiver gets the first message at once, for the first time.
    with namespace.client() as client, client.get_queue_receiver("many") as receiver:
        (first,) = receiver.receive_messages(1, max_wait_time=60)
        assert (first.sequence_number, first.delivery_count) == (1, 0)


def test_sub_queues_subscriptions_lists_and_patterns(bus: SparkSession, namespace: EmbeddedNamespace) -> None:
    for name in ("area-north", "area-south", "other"):
        send(namespace, queue(namespace, name), *bodies(f"in {name}"))
    with namespace.admin() as admin:
        admin.create_topic("news")
        admin.create_subscription("news", "sport")
    with namespace.client() as client:
        with client.get_topic_sender("news") as sender:
            sender.send_messages(ServiceBusMessage("goal"))
        with client.get_queue_receiver("other", max_wait_time=10) as receiver:
            (message,) = receiver.receive_messages()
            receiver.dead_letter_message(message, reason="Bad", error_description="very")
    several = table(bus, namespace, queue="area-north,area-south")
    assert {(row.entity, row.body) for row in several.collect()} == {
        ("area-north", b"in area-north"),
        ("area-south", b"in area-south"),
    }
    pattern = table(bus, namespace, queuePattern="area-.*")
    assert {row.entity for row in pattern.collect()} == {"area-north", "area-south"}
    assert {row.entity for row in pattern.filter("entity = 'area-south'").collect()} == {"area-south"}
    (dead,) = table(bus, namespace, queue="other", subQueue="deadLetter").collect()
    assert (dead.dead_letter_reason, dead.dead_letter_error_description) == ("Bad", "very")
    assert dead.entity == "other/$DeadLetterQueue"
    (goal,) = table(bus, namespace, topic="news", subscription="sport").collect()
    assert (goal.entity, goal.body) == ("news/Subscriptions/sport", b"goal")


@pytest.mark.parametrize("pushed", ["true", "false"])
def test_filters_give_the_same_answer_pushed_down_or_not(
    bus: SparkSession, namespace: EmbeddedNamespace, pushed: str
) -> None:
    name = queue(namespace, f"filtered-{pushed}")
    send(namespace, name, *bodies(*[f"m{i}" for i in range(10)]))
    send(namespace, name, ServiceBusMessage("later", scheduled_enqueue_time_utc=FAR))
    bus.conf.set("spark.sql.python.filterPushdown.enabled", pushed)
    try:
        frame = table(bus, namespace, queue=name).select("sequence_number", "state", "enqueued_time")
        middle = frame.filter("sequence_number > 3 and sequence_number <= 6")
        assert [row[0] for row in middle.orderBy("sequence_number").collect()] == [4, 5, 6]
        assert frame.filter("state = 'scheduled'").count() == 1
        assert frame.filter("state != 'scheduled' and sequence_number in (2, 11)").count() == 1
        cut = frame.filter("sequence_number = 5").collect()[0].enqueued_time
        later = [row[0] for row in frame.filter(frame.enqueued_time > cut).collect()]
        assert set(later) >= {7, 8, 9, 10}
        assert not set(later) & {1, 2, 3, 4, 5}
        plan = explained(middle)
        assert ("Filter (" in plan) == (pushed == "false")
    finally:
        bus.conf.set("spark.sql.python.filterPushdown.enabled", "false")


def explained(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


def test_an_empty_queue_is_an_empty_table(bus: SparkSession, namespace: EmbeddedNamespace) -> None:
    assert table(bus, namespace, queue=queue(namespace, "empty")).count() == 0


def test_refusals_are_clear(bus: SparkSession, namespace: EmbeddedNamespace) -> None:
    with pytest.raises(PySparkException, match="'nowhere' does not exist"):
        table(bus, namespace, queue="nowhere").count()
    with pytest.raises(PySparkException, match="Unknown option 'colour'"):
        table(bus, namespace, queue="x", colour="red").count()
    with pytest.raises(PySparkException, match="Unknown option 'colour'"):  # not only when the stream runs
        bus.readStream.format("servicebus").option("queue", "x").option("colour", "red").load()
    wrong = namespace.connection_string.replace("SharedAccessKey=", "SharedAccessKey=AAAA")
    with pytest.raises(PySparkException, match="Check the key and its rights") as refusal:
        table(bus, namespace, queue="empty", connectionString=wrong).count()
    assert "AAAA" not in str(refusal.value)


# --- streaming --------------------------------------------------------------------------------------------


class Stream:
    """A stream of a namespace into a Parquet table, run again and again from one checkpoint."""

    def __init__(self, bus: SparkSession, namespace: EmbeddedNamespace, folder: Path, **options: str) -> None:
        self.bus, self.folder = bus, folder
        given = {"connectionString": namespace.connection_string, "connectionVerify": namespace.ca_file, **options}
        self.frame = bus.readStream.format("servicebus").options(**given).load()

    def start(self, *, now: bool = False, each: Callable[[DataFrame, int], None] | None = None) -> StreamingQuery:
        stream = self.frame.writeStream.option("checkpointLocation", str(self.folder / "checkpoint"))
        if now:
            stream = stream.trigger(availableNow=True)
        if each is not None:
            return stream.foreachBatch(each).start()
        return stream.format("parquet").option("path", str(self.folder / "table")).start()

    def run(self) -> StreamingQuery:
        query = self.start(now=True)
        assert query.awaitTermination(240)
        return query

    def rows(self) -> list[tuple[str, int]]:
        read = self.bus.read.parquet(str(self.folder / "table"))
        return sorted((row.entity, row.sequence_number) for row in read.select("entity", "sequence_number").collect())


def batches(query: StreamingQuery) -> list[int]:
    return [progress.numInputRows for progress in query.recentProgress]


def test_a_stream_takes_batches_of_exact_size_and_leaves_an_empty_queue(
    bus: SparkSession, namespace: EmbeddedNamespace, tmp_path: Path
) -> None:
    name = queue(namespace, "stream")
    send(namespace, name, ServiceBusMessage("later", scheduled_enqueue_time_utc=FAR))
    send(namespace, name, *bodies("a", "b", "c", "d", "e"))
    send(namespace, name, ServiceBusMessage("short-lived", time_to_live=timedelta(milliseconds=1)))
    wait_until(lambda: active(namespace, name) == 5)
    with namespace.client() as client, client.get_queue_receiver(name, max_wait_time=10) as receiver:
        held = {str(message): message for message in receiver.receive_messages(5, max_wait_time=5)}
        receiver.defer_message(held["b"])
        receiver.complete_message(held["d"])
        for text in ("a", "c", "e"):
            receiver.abandon_message(held[text])
    stream = Stream(bus, namespace, tmp_path, queue=name, maxMessagesPerTrigger="2")
    query = stream.run()
    assert stream.rows() == [(name, 2), (name, 4), (name, 6)]
    assert batches(query) == [2, 1, 0]
    assert active(namespace, name) == 0
    offsets = [json.loads(progress.sources[0].endOffset)["entities"][name] for progress in query.recentProgress]
    assert [one.get("parts") for one in offsets] == [["2,4"], ["6"], None]
    # What was deferred or scheduled is still there, and is not the stream's.
    assert {row.state for row in table(bus, namespace, queue=name).collect()} == {"deferred", "scheduled"}
    send(namespace, name, *bodies("f"))
    stream.run()
    assert stream.rows() == [(name, 2), (name, 4), (name, 6), (name, 8)]
    assert active(namespace, name) == 0


def test_limits_by_size_and_fair_shares(bus: SparkSession, namespace: EmbeddedNamespace, tmp_path: Path) -> None:
    names = [queue(namespace, f"share-{i}") for i in range(2)]
    for name in names:
        send(namespace, name, *[ServiceBusMessage(b"x" * 10_000) for _ in range(3)])
    sizes = Stream(bus, namespace, tmp_path, queuePattern="share-.*", maxBytesPerTrigger="22000").run()
    assert batches(sizes) == [2, 2, 2, 0]
    assert all(active(namespace, name) == 0 for name in names)


def test_sessions_are_streamed_and_removed(bus: SparkSession, namespace: EmbeddedNamespace, tmp_path: Path) -> None:
    name = queue(namespace, "by-session", requires_session=True)
    send(namespace, name, *[ServiceBusMessage(f"{i}", session_id=f"s{i % 3}") for i in range(9)])
    stream = Stream(bus, namespace, tmp_path, queue=name)
    stream.run()
    assert stream.rows() == [(name, number) for number in range(1, 10)]
    assert active(namespace, name) == 0


def test_dead_letters_and_subscriptions_are_streamed_and_removed(
    bus: SparkSession, namespace: EmbeddedNamespace, tmp_path: Path
) -> None:
    name = queue(namespace, "buried")
    send(namespace, name, *bodies("a", "b"))
    with namespace.client() as client, client.get_queue_receiver(name) as receiver:
        (message,) = receiver.receive_messages(1, max_wait_time=60)
        receiver.dead_letter_message(message, reason="Bad")
    dead = Stream(bus, namespace, tmp_path / "dead", queue=name, subQueue="deadLetter")
    dead.run()
    assert dead.rows() == [(f"{name}/$DeadLetterQueue", 1)]
    with namespace.admin() as admin:
        left = admin.get_queue_runtime_properties(name)
        assert (left.dead_letter_message_count, left.active_message_count) == (0, 1)
        admin.create_topic("streamed")
        for subscription in ("one", "two", "other"):
            admin.create_subscription("streamed", subscription)
    with namespace.client() as client, client.get_topic_sender("streamed") as sender:
        sender.send_messages(bodies("x", "y"))
    taken = Stream(bus, namespace, tmp_path / "topic", topic="streamed", subscription="one,two")
    taken.run()
    assert taken.rows() == [(f"streamed/Subscriptions/{one}", n) for one in ("one", "two") for n in (1, 2)]
    with namespace.admin() as admin:
        counts = [admin.get_subscription_runtime_properties("streamed", one) for one in ("one", "two", "other")]
        assert [count.active_message_count for count in counts] == [0, 0, 2]


def test_entities_may_appear_and_vanish(bus: SparkSession, namespace: EmbeddedNamespace, tmp_path: Path) -> None:
    send(namespace, queue(namespace, "come-1"), *bodies("a"))
    stream = Stream(bus, namespace, tmp_path, queuePattern="come-.*")
    stream.run()
    send(namespace, queue(namespace, "come-2"), *bodies("b"))
    with namespace.admin() as admin:
        admin.delete_queue("come-1")
    stream.run()
    assert stream.rows() == [("come-1", 1), ("come-2", 1)]
    # Made anew, its numbers begin at 1 again: what it holds now was never read, and is.
    send(namespace, queue(namespace, "come-1"), *bodies("c"))
    stream.run()
    assert stream.rows() == [("come-1", 1), ("come-1", 1), ("come-2", 1)]
    assert active(namespace, "come-1") == 0


def take(namespace: EmbeddedNamespace, name: str, count: int) -> None:
    with (
        namespace.client() as client,
        client.get_queue_receiver(name, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE) as receiver,
    ):
        assert len(receiver.receive_messages(count, max_wait_time=10)) == count


def test_somebody_else_consuming_is_an_error_before_reading_and_counted_after(
    bus: SparkSession, namespace: EmbeddedNamespace, tmp_path: Path
) -> None:
    name = queue(namespace, "contested")
    send(namespace, name, *bodies("a", "b", "c"))

    def taken_after_reading(frame: DataFrame, _: int) -> None:
        if frame.count():
            take(namespace, name, 1)

    stream = Stream(bus, namespace, tmp_path, queue=name)
    query = stream.start(now=True, each=taken_after_reading)
    assert query.awaitTermination(240)
    assert json.loads(query.recentProgress[-1].sources[0].endOffset)["entities"][name]["missing"] == 1
    assert active(namespace, name) == 0

    send(namespace, name, *bodies("d", "e"))

    def taken_before_reading(frame: DataFrame, _: int) -> None:
        take(namespace, name, 1)
        frame.count()

    query = stream.start(now=True, each=taken_before_reading)
    with pytest.raises(
        StreamingQueryException, match=r"1 of 2 messages of 'contested' .*\(numbers 4\).*failOnDataLoss"
    ):
        query.awaitTermination(240)
    relaxed = Stream(bus, namespace, tmp_path, queue=name, failOnDataLoss="false")
    counts: list[int] = []
    query = relaxed.start(now=True, each=lambda frame, _: counts.append(frame.count()))
    assert query.awaitTermination(240)
    assert counts == [1, 0, 0]
    assert active(namespace, name) == 0


def test_what_another_receiver_holds_is_removed_when_its_lock_ends(
    bus: SparkSession, namespace: EmbeddedNamespace, tmp_path: Path
) -> None:
    name = queue(namespace, "held", lock_duration="PT8S")
    send(namespace, name, *bodies("a", "b", "c"))

    def held(frame: DataFrame, _: int) -> None:
        if frame.count():
            with namespace.client() as client, client.get_queue_receiver(name, prefetch_count=0) as receiver:
                assert len(receiver.receive_messages(1, max_wait_time=10)) == 1

    query = Stream(bus, namespace, tmp_path, queue=name).start(now=True, each=held)
    assert query.awaitTermination(240)
    assert active(namespace, name) == 0
    offsets = [json.loads(progress.sources[0].endOffset)["entities"][name] for progress in query.recentProgress]
    assert {one.get("missing") for one in offsets} == {None}


def test_a_running_stream_sees_news_and_removes_the_last_batch(
    bus: SparkSession, namespace: EmbeddedNamespace, tmp_path: Path
) -> None:
    name = queue(namespace, "running")
    stream = Stream(bus, namespace, tmp_path, queue=name)
    query = stream.start()
    try:
        send(namespace, name, *bodies("a", "b"))
        wait_until(lambda: active(namespace, name) == 0, timeout=240)
        # One that is scheduled is read once its time has come, under the number it gets then.
        soon = datetime.now(UTC) + timedelta(seconds=2)
        send(namespace, name, ServiceBusMessage("c", message_id="c", scheduled_enqueue_time_utc=soon))
        wait_until(lambda: is_empty(namespace, name), timeout=240)
        query.processAllAvailable()
    finally:
        query.stop()
    read = bus.read.parquet(str(tmp_path / "table"))
    assert sorted(row.message_id for row in read.select("message_id").collect()) == ["a", "b", "c"]
