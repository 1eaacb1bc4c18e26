"""A drill on two embedded namespaces: what the script did, the tables say, to the message."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode
from pyspark.sql import DataFrame, SparkSession

from pairbus import EntityState, SendAvailabilityPairedNamespaceOptions, pair_namespace
from pairbus.ledger import CompletedOperation, LedgerWriter, Operation, Role, closed_files, open_files
from pairbus.pipeline import schemas
from pairbus.pipeline.audit import look_into_backlogs
from pairbus.pipeline.build import build
from pairbus.pipeline.page import verdict
from pairbus.pipeline.report import Report, report
from pairbus.pipeline.store import TablesError, TableStore
from pairbus.syphon import Syphon
from pairbus.testing import EmbeddedNamespace, EmbeddedPair, wait_until

pytestmark = pytest.mark.timeout(900)  # Spark on a busy machine

QUEUE = "Orders"
BACKLOG = "contoso/x-servicebus-transfer/0"
BIG = 262_100
"""Bytes: a body that the primary takes, but that a backlog takes only in two parts."""


def send(paired: Any, ids: Iterable[str], size: int = 100) -> None:
    with paired.get_queue_sender(QUEUE) as sender:
        for message_id in ids:
            sender.send_messages(ServiceBusMessage(b"x" * size, message_id=message_id))


def remove_behind_the_systems_back(secondary: EmbeddedNamespace) -> str:
    with (
        secondary.client() as client,
        client.get_queue_receiver(BACKLOG, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE) as receiver,
    ):
        (message,) = receiver.receive_messages(1, max_wait_time=30)
        return str(message.message_id)


def bury_behind_the_systems_back(secondary: EmbeddedNamespace, message_id: str) -> None:
    """Dead-letter one message of the backlog without a record of it, and put the others back."""
    with secondary.client() as client, client.get_queue_receiver(BACKLOG) as receiver:
        messages = receiver.receive_messages(100, max_wait_time=30)
        for message in messages:
            if message.message_id == message_id:
                receiver.dead_letter_message(message, reason="somebody did it")
            else:
                receiver.abandon_message(message)
    assert message_id in [message.message_id for message in messages]


def receive_everything(primary: EmbeddedNamespace, ledger: Path, expected: int) -> Counter[str]:
    """A receiving application that records what it settles."""
    found: Counter[str] = Counter()
    with (
        LedgerWriter(ledger, role=Role.RECEIVER) as writer,
        primary.client() as client,
        client.get_queue_receiver(QUEUE) as receiver,
    ):
        while found.total() < expected:
            messages = receiver.receive_messages(50, max_wait_time=30)
            assert messages, f"{found.total()} of {expected} messages came"
            for message in messages:
                receiver.complete_message(message)
                found[str(message.message_id)] += 1
                for operation in (Operation.RECEIVE, Operation.COMPLETE):
                    writer.record(
                        CompletedOperation(operation, primary.name, QUEUE, message_ids=[str(message.message_id)])
                    )
    return found


def lines_with(folder: Path, operation: str) -> int:
    """Records of an operation, also in files that are being written; -1 if one was published while we looked."""
    word = f'"operation":"{operation}"'
    try:
        return sum(path.read_text().count(word) for path in (*closed_files(folder), *open_files(folder)))
    except FileNotFoundError:
        return -1


def play(pair: EmbeddedPair, ledger: Path) -> str:
    """20 direct, a kill, 31 through the backlog (one in parts, one deleted, one dead-lettered), 10 direct, an outage,
    5 that still wait.
    """
    primary, secondary = pair.primary, pair.secondary
    with primary.admin() as admin:
        admin.create_queue(QUEUE)
    with (
        secondary.admin() as standby,
        pair_namespace(
            primary.client(retry_total=0),
            SendAvailabilityPairedNamespaceOptions(
                standby,
                secondary.client(),
                primary_name="contoso",
                backlog_queue_count=1,
                failover_interval=0,
                ping_primary_interval=1,
                ledger=ledger,
            ),
        ) as paired,
    ):
        send(paired, (f"before-{i}" for i in range(20)))
        wait_until(lambda: lines_with(ledger.with_name("namespaces"), "send") == 20, 60, "the primary's own records")
        primary.kill()
        send(paired, (f"backlog-{i}" for i in range(30)))
        send(paired, ["big"], BIG)
        lost = remove_behind_the_systems_back(secondary)
        bury_behind_the_systems_back(secondary, "backlog-29")
        primary.start()
        wait_until(lambda: paired.state(QUEUE) is EntityState.HEALTHY, 60, "the entity to recover")
        send(paired, (f"after-{i}" for i in range(10)))
        Syphon(
            primary.connection_string,
            secondary.connection_string,
            primary_name="contoso",
            queues=[0],
            ledger=ledger,
            connection_verify=secondary.ca_file,
        ).run_blocking(once=True)
        with primary.client() as client, client.get_queue_sender(QUEUE) as sender:
            sender.send_messages(ServiceBusMessage(b"again", message_id="backlog-7"))
        received = receive_everything(primary, ledger, 20 + 29 + 10 + 1)
        assert received["backlog-7"] == 2
        assert lost not in received
        primary.stop()
        send(paired, (f"waits-{i}" for i in range(4)))
        send(paired, ["waits-big"], BIG)
    return lost


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[EmbeddedPair]:
    """Two namespaces that keep a ledger of their own; the primary can be killed."""
    own = tmp_path / "namespaces"
    with (
        EmbeddedNamespace("contoso", process=True, ledger=own) as primary,
        EmbeddedNamespace("contoso-standby", ledger=own) as secondary,
    ):
        yield EmbeddedPair(primary, secondary)


def test_the_tables_say_what_the_drill_did(spark: SparkSession, pair: EmbeddedPair, tmp_path: Path) -> None:
    ledger, tables = tmp_path / "ledger", tmp_path / "tables"
    lost = play(pair, ledger)
    secondary = pair.secondary
    access = {"connectionString": secondary.connection_string, "connectionVerify": secondary.ca_file}
    with pytest.raises(TablesError, match="has no backlog queues of 'contso'"):
        look_into_backlogs(spark, ["contso"], access)
    look = look_into_backlogs(spark, ["contoso"], access)
    build(spark, ledger, tables)
    found = sorted((row["place"], row["message_id"]) for row in look.seen.collect())
    assert found == [
        *(("backlog", f"waits-{i}") for i in range(4)),
        ("backlog", "waits-big"),
        ("dead-letter", "backlog-29"),
    ]

    believed = report(spark, tables)
    assert (believed.summary.waiting, believed.summary.lost) == (7, 0), "the ledger alone cannot know"
    told = report(spark, tables, look=look)
    assert told.summary.sentence == "accepted 66: delivered 59, dead-lettered 1, waiting 5, lost 1, duplicates 1"
    assert verdict(told) == "1 of 66 accepted messages is lost."
    assert [row["message_id"] for row in told.lost] == [lost]
    assert [row["message_id"] for row in told.duplicated] == ["backlog-7"]
    assert (told.summary.diverted, told.summary.restored, told.summary.unrecorded) == (36, 29, 0)

    for one, missing in ((believed, 0), (told, 2)):  # one is dead-lettered, one is lost
        carried = [(row["diverted"], row["home"], row["waiting"]) for row in one.episodes]
        assert carried == [(31, 29, 2 - missing), (5, 0, 5)]
    assert [row["healthy_at"] is None for row in told.episodes] == [False, True]
    assert {(row["offered"], row["accepted"], row["accepted_by_primary"]) for row in told.availability} == {
        (66, 66, 30)
    }
    done = operations(daily(spark, tables))
    assert {name: done[name] for name in ("send", "divert", "restore")} == {"send": 30, "divert": 36, "restore": 29}

    secondary.stop()
    namespaces_own_ledgers_tell_the_same(spark, tmp_path, believed)


def namespaces_own_ledgers_tell_the_same(spark: SparkSession, folder: Path, believed: Report) -> None:
    """With the namespaces' own records beside the clients': nothing counts twice, bills are by the namespace."""
    ledger, tables = folder / "all", folder / "all-tables"
    for part in ("ledger", "namespaces"):
        shutil.copytree(folder / part, ledger, dirs_exist_ok=True)
    build(spark, ledger, tables)
    told = report(spark, tables)
    changed = {"billed_operations", "died"}
    assert {name: value for name, value in asdict(told.summary).items() if name not in changed} == {
        name: value for name, value in asdict(believed.summary).items() if name not in changed
    }
    for name in ("episodes", "availability", "waiting", "sends", "depth"):
        assert getattr(told, name) == getattr(believed, name), name

    rows = daily(spark, tables)
    own = rows.where("role = 'namespace' and outcome = 'ok'")
    pings = operations(rows.where("role = 'client' and outcome = 'ok'"))["ping"]
    at_primary, at_secondary = (operations(own.where(f"namespace = '{n}'")) for n in ("contoso", "contoso-standby"))
    # 30 sent, 29 restored, one sent again by hand; all received and completed
    assert at_primary == {"create": 1, "send": 60, "ping": pings, "receive": 60, "complete": 60}
    assert pings >= 1, "the one that brought it home"
    units = {row[0]: row[1] for row in own.where("namespace = 'contoso'").groupBy("operation").sum("billed").collect()}
    # the big one is 4 units on its way in; with what the namespace adds to a message that it delivers, 5
    assert units == {"create": 1, "send": 59 + 4, "ping": pings, "receive": 59 + 5, "complete": 0}
    # 36 messages in 38 parts; what was received came home (30 parts), was deleted, buried, or looked at and put back
    assert (at_secondary["divert"], at_secondary["complete"], at_secondary["dead-letter"]) == (38, 31, 1)
    assert {(row["namespace"], row["role"]) for row in rows.where("in_bill and outcome != 'empty'").collect()} == {
        ("contoso", "namespace"),
        ("contoso-standby", "namespace"),
    }
    assert {row["namespace"] for row in told.bills} == {"contoso", "contoso-standby"}
    billed = rows.where("in_bill").groupBy("namespace").sum("billed").collect()
    lines = {row["namespace"]: int(row["quantity"]) for row in told.bills if row["what"].startswith("operations")}
    assert lines == {row[0]: row[1] for row in billed}
    added = {(row["namespace"], row["cause"]): row["billed"] for row in told.pairing_cost}
    assert added["contoso", "pings"] == pings
    assert added["contoso-standby", "creation"] == 1


def daily(spark: SparkSession, tables: Path) -> DataFrame:
    store = TableStore(tables)
    return store.read(spark, schemas.OPERATIONS_DAILY)


def operations(rows: DataFrame) -> dict[str, int]:
    return {row[0]: row[1] for row in rows.where("outcome = 'ok'").groupBy("operation").sum("operations").collect()}
