"""Writing to a namespace with Spark, batch and streaming."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusReceivedMessage
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from tests.support.backlogs import take_from
from tests.support.ledgers import records_in

from pairbus.embedded.errors import Limits
from pairbus.ledger import Operation
from pairbus.pipeline.servicebus import ServiceBusDataSource
from pairbus.pipeline.session import cause_of
from pairbus.testing import EmbeddedNamespace, wait_until


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


def active(namespace: EmbeddedNamespace, name: str) -> int:
    with namespace.admin() as admin:
        return admin.get_queue_runtime_properties(name).active_message_count or 0


def write(frame: DataFrame, namespace: EmbeddedNamespace, **options: str) -> None:
    given = {"connectionString": namespace.connection_string, **options}
    frame.write.format("servicebus").options(**given).mode("append").save()


def everything(namespace: EmbeddedNamespace, name: str) -> list[ServiceBusReceivedMessage]:
    return take_from(namespace, name, active(namespace, name))


def test_rows_become_messages_with_their_types(bus: SparkSession, namespace: EmbeddedNamespace) -> None:
    name = queue(namespace, "written")
    frame = bus.sql("""
        select 'hello' body, 'm1' message_id, 'text/plain' content_type, 'c' correlation_id, 'sub' subject,
               60000L time_to_live_ms,
               map('flag', cast(true as variant), 'size', cast(70000 as variant), 'name', cast('x' as variant),
                   'real', cast(cast(2.5 as double) as variant)) application_properties
    """)
    write(frame, namespace, queue=name)
    (message,) = everything(namespace, name)
    assert str(message) == "hello"
    assert (message.message_id, message.content_type, message.correlation_id) == ("m1", "text/plain", "c")
    assert message.time_to_live is not None
    assert (message.subject, message.time_to_live.total_seconds()) == ("sub", 60)
    assert message.application_properties == {b"flag": True, b"size": 70000, b"name": b"x", b"real": 2.5}


def test_destinations_by_row_and_batches_up_to_the_limit(bus: SparkSession, namespace: EmbeddedNamespace) -> None:
    for name in ("left", "right"):
        queue(namespace, name)
    with namespace.admin() as admin:
        admin.create_topic("spread")
        admin.create_subscription("spread", "all")
    frame = bus.range(900).selectExpr(
        "repeat('x', 3000) body", "elt(cast(id % 3 as int) + 1, 'left', 'right', 'spread') entity"
    )
    write(frame, namespace)
    assert (active(namespace, "left"), active(namespace, "right")) == (300, 300)
    with namespace.admin() as admin:
        assert admin.get_subscription_runtime_properties("spread", "all").active_message_count == 300
    ids = [message.message_id for message in everything(namespace, "left")]
    assert len(set(ids)) == 300


@pytest.mark.parametrize(("count", "size"), [(900, 3_000), (7, 100_000), (12_000, 40)])
def test_batches_fill_to_the_limit_of_the_link(bus: SparkSession, tmp_path: Path, count: int, size: int) -> None:
    limit = Limits().max_batch_bytes
    with EmbeddedNamespace("contoso", ledger=tmp_path) as namespace:
        name = queue(namespace, "filled")
        # Arrow hands over 10,000 rows at a time: batches go on across them.
        write(bus.range(0, count, 1, 1).selectExpr(f"repeat('x', {size}) body"), namespace, queue=name)
        assert active(namespace, name) == count
    sent = [one for one in records_in(tmp_path) if one.operation is Operation.SEND]
    assert len(sent) == count
    # All messages of a transfer are recorded with the time at which it came and how long it took.
    transfers = Counter((one.at_us, one.latency_us) for one in sent)
    fit = limit // max(one.bytes for one in sent)
    least = -(-count // fit)
    assert least <= len(transfers) <= least + 1
    assert len(transfers) > 1


@pytest.mark.parametrize("size", [Limits().max_batch_bytes + 1, 5 << 20])
def test_a_row_that_is_larger_than_the_link_takes_is_named(
    bus: SparkSession, namespace: EmbeddedNamespace, size: int
) -> None:
    name = queue(namespace, f"narrow-{size}")
    frame = bus.range(0, 5, 1, 1).selectExpr("concat('m', id) message_id", f"repeat('x', if(id = 3, {size}, 1)) body")
    with pytest.raises(PySparkException) as said:
        write(frame, namespace, queue=name)
    told = cause_of(said.value)
    assert told.startswith(f"Row 3 of its partition (message id 'm3', to '{name}') could not be sent: ")
    # How large it is, and how large it may be: who finds out words it, the link before sending or the queue after it.
    length, *_, most = map(int, re.findall(r"(?<= )\d{6,}\b", told))
    assert length > size
    assert most == Limits().max_message_bytes
    # The rows before it are sent, each once.
    assert [one.message_id for one in everything(namespace, name)][:3] == ["m0", "m1", "m2"]


def test_what_was_read_is_written_again_unchanged(bus: SparkSession, namespace: EmbeddedNamespace) -> None:
    first, second = queue(namespace, "first"), queue(namespace, "second")
    source = bus.range(5).selectExpr(
        "cast(concat('b', id) as binary) body",
        "concat('m', id) message_id",
        "map('n', cast(id as variant)) application_properties",
    )
    write(source, namespace, queue=first)
    read = bus.read.format("servicebus").option("connectionString", namespace.connection_string)
    write(read.option("queue", first).load(), namespace, queue=second)
    columns = "body, message_id, cast(application_properties['n'] as string) n"

    def content(name: str) -> list[Any]:
        return sorted(read.option("queue", name).load().selectExpr(*columns.split(", ")).collect())

    assert content(second) == content(first)
    assert len(content(second)) == 5


def test_the_row_that_is_refused_is_named(bus: SparkSession, namespace: EmbeddedNamespace) -> None:
    name = queue(namespace, "small")
    frame = bus.range(0, 5, 1, 1).selectExpr("concat('m', id) message_id", "if(id = 3, repeat('x', 300000), 'x') body")
    with pytest.raises(PySparkException, match=r"Row 3 of its partition \(message id 'm3', to 'small'\).*size"):
        write(frame, namespace, queue=name)
    with pytest.raises(PySparkException, match="'nowhere' does not exist"):
        write(frame, namespace, queue="nowhere")
    with pytest.raises(PySparkException, match="Use mode"):
        frame.write.format("servicebus").option("connectionString", "x").mode("overwrite").save()


def test_a_busy_namespace_is_tried_again_but_not_for_ever(bus: SparkSession, namespace: EmbeddedNamespace) -> None:
    name = queue(namespace, "busy")
    frame = bus.range(0, 3, 1, 1).selectExpr("'x' body")
    namespace.fault("error", entity=name, condition="com.microsoft:server-busy")
    try:
        with pytest.raises(PySparkException, match=r"Row 0 .*could not be used for 1 s.*server-busy"):
            write(frame, namespace, queue=name, retryTimeout="1")
    finally:
        namespace.clear_faults()
    namespace.fault("error", entity=name, condition="com.microsoft:server-busy", duration=1)
    write(frame, namespace, queue=name)
    assert active(namespace, name) == 3


def test_a_repeated_batch_is_removed_by_duplicate_detection(
    bus: SparkSession, namespace: EmbeddedNamespace, tmp_path: Path
) -> None:
    target = queue(namespace, "once", requires_duplicate_detection=True)
    files, checkpoint = str(tmp_path / "files"), tmp_path / "checkpoint"
    bus.range(0, 500, 1, 2).selectExpr("concat('b', id) body").write.parquet(files)

    def stream() -> None:
        query = (
            bus.readStream.schema("body string")
            .parquet(files)
            .writeStream.format("servicebus")
            .options(connectionString=namespace.connection_string, queue=target, checkpointLocation=str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(240)

    stream()
    # What a crash leaves behind that came after the last answer and before the end of the batch was noted.
    for name in ("0", ".0.crc"):
        (checkpoint / "commits" / name).unlink(missing_ok=True)
    stream()
    assert active(namespace, target) == 500
    assert len({str(message) for message in everything(namespace, target)}) == 500


def crash_once_stored(namespace: EmbeddedNamespace, name: str, count: int) -> None:
    wait_until(lambda: active(namespace, name) >= count)
    namespace.kill()
    namespace.start()


@pytest.mark.timeout(700)
def test_answers_lost_in_a_crash_make_no_duplicates_where_they_are_detected(bus: SparkSession) -> None:
    rows = bus.range(0, 500, 1, 2).selectExpr("concat('b', id) body")
    counts = {}
    with EmbeddedNamespace("contoso", process=True) as namespace, ThreadPoolExecutor(1) as aside:
        for name, detects in (("guarded", True), ("plain", False)):
            queue(namespace, name, requires_duplicate_detection=detects)
            # Everything is stored, nothing is answered, and then the server dies: nobody will ever answer.
            namespace.fault("accept-then-fail", entity=name)
            crash = aside.submit(crash_once_stored, namespace, name, 500)
            write(rows, namespace, queue=name, retryTimeout="600")
            crash.result()
            counts[name] = active(namespace, name)
            assert len({str(message) for message in everything(namespace, name)}) == 500
    assert counts["guarded"] == 500
    # Where nobody looks for duplicates they are there: the rows really were sent again.
    assert counts["plain"] > 500
