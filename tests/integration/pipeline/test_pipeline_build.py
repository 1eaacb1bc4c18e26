"""Building the tables: a scripted drill of three days, whose numbers are known, read in many ways."""

from __future__ import annotations

import json
import random
import shutil
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from pyspark.sql import SparkSession

from pairbus.ledger import CompletedOperation, LedgerWriter, Operation, Outcome, Role, Route, closed_files
from pairbus.pipeline import schemas
from pairbus.pipeline.audit import KEY, Look
from pairbus.pipeline.build import build, unknown_names
from pairbus.pipeline.gold import Pricing
from pairbus.pipeline.page import doubts, html_page, verdict
from pairbus.pipeline.report import report
from pairbus.pipeline.store import Manifest, TablesError, TableStore

pytestmark = pytest.mark.timeout(900)  # Spark on a busy machine

QUEUE = "contoso/x-servicebus-transfer/0"
START = datetime(2026, 3, 30, 22, 0, tzinfo=UTC)
DAYS = ("2026-03-30", "2026-03-31", "2026-04-01")


class Drill:
    """Writes the ledgers of a client, a syphon and a receiver, on a clock of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.clock = START

    @property
    def at_us(self) -> int:
        return int(self.clock.timestamp() * 1_000_000)

    def wait(self, **span: float) -> None:
        self.clock += timedelta(**span)

    def file(self, role: Role) -> LedgerWriter:
        """Each use is a process of its own, and so one ledger file."""
        return LedgerWriter(self._folder, role=role)

    def send(self, writer: LedgerWriter, *ids: str, outcome: Outcome = Outcome.OK, size: int = 1000) -> None:
        for message_id in ids:
            writer.record(
                CompletedOperation(
                    Operation.SEND,
                    "contoso",
                    "orders",
                    message_ids=[message_id],
                    sizes=[size],
                    route=Route.PRIMARY,
                    outcome=outcome,
                    at_us=self.at_us,
                )
            )

    def divert(self, writer: LedgerWriter, episode: str, *ids: str, size: int = 1000) -> None:
        for message_id in ids:
            writer.record(
                CompletedOperation(
                    Operation.DIVERT,
                    "fabrikam",
                    QUEUE,
                    destination="orders",
                    message_ids=[message_id],
                    sizes=[size],
                    route=Route.BACKLOG,
                    episode=episode,
                    at_us=self.at_us,
                )
            )

    def ping(self, writer: LedgerWriter, episode: str, outcome: Outcome) -> None:
        writer.record(
            CompletedOperation(
                Operation.PING,
                "contoso",
                "orders",
                route=Route.PRIMARY,
                outcome=outcome,
                episode=episode,
                at_us=self.at_us,
            )
        )

    def change(self, writer: LedgerWriter, episode: str, before: str, after: str, cause: str) -> None:
        writer.record(
            CompletedOperation(
                Operation.TRANSITION,
                "contoso",
                "orders",
                state_from=before,
                state_to=after,
                cause=cause,
                episode=episode,
                at_us=self.at_us,
            )
        )

    def syphon(self, writer: LedgerWriter, *ids: str, size: int = 1000) -> None:
        for message_id in ids:
            common: dict[str, Any] = {"message_ids": [message_id], "sizes": [size], "at_us": self.at_us}
            writer.record(CompletedOperation(Operation.RECEIVE, "fabrikam", QUEUE, destination="orders", **common))
            writer.record(
                CompletedOperation(Operation.RESTORE, "contoso", "orders", source=QUEUE, route=Route.SYPHON, **common)
            )
            writer.record(CompletedOperation(Operation.COMPLETE, "fabrikam", QUEUE, destination="orders", **common))

    def idle(self, writer: LedgerWriter, times: int) -> None:
        for _ in range(times):
            writer.record(
                CompletedOperation(Operation.RECEIVE, "fabrikam", QUEUE, outcome=Outcome.EMPTY, at_us=self.at_us)
            )

    def receive(self, writer: LedgerWriter, *ids: str, size: int = 1000) -> None:
        for message_id in ids:
            common: dict[str, Any] = {"message_ids": [message_id], "sizes": [size], "at_us": self.at_us}
            writer.record(CompletedOperation(Operation.RECEIVE, "contoso", "orders", **common))
            writer.record(CompletedOperation(Operation.COMPLETE, "contoso", "orders", **common))


def write_drill(folder: Path) -> None:
    """Three days: an outage over midnight, a long wait, a dead letter, a duplicate and a lost message."""
    drill = Drill(folder)
    with drill.file(Role.CLIENT) as client, drill.file(Role.RECEIVER) as receiver:
        drill.send(client, *(f"d{i}" for i in range(10)))
        drill.receive(receiver, *(f"d{i}" for i in range(10)))
    with drill.file(Role.CLIENT) as client:
        client.record(CompletedOperation(Operation.CREATE, "fabrikam", QUEUE, at_us=drill.at_us))
        drill.wait(minutes=1)
        drill.change(client, "e1", "healthy", "suspect", "ServiceBusConnectionError")
        drill.send(client, "refused", outcome=Outcome.FAILED)
        drill.send(client, "doubt", outcome=Outcome.UNKNOWN)
        drill.wait(minutes=1)
        drill.change(client, "e1", "suspect", "failed over", "ServiceBusConnectionError")
        drill.wait(seconds=2)
        drill.divert(client, "e1", "doubt", "b1", "b2", "b3", "dead", "lost", "waits")
        drill.divert(client, "e1", "big", size=70_000)
        for outcome in (Outcome.FAILED, Outcome.UNKNOWN, Outcome.OK):
            drill.wait(hours=1)
            drill.ping(client, "e1", outcome)
        drill.change(client, "e1", "failed over", "healthy", "ping_succeeded")
    with drill.file(Role.SYPHON) as syphon:  # 01:02 on the second day
        drill.idle(syphon, 4)
        drill.wait(minutes=10)
        drill.syphon(syphon, "doubt", "b1", "b2")
        drill.wait(minutes=20)
        drill.syphon(syphon, "b3", "b3")  # a crash between sending and completing
        drill.syphon(syphon, "big", size=70_000)
        syphon.record(
            CompletedOperation(
                Operation.DEAD_LETTER,
                "fabrikam",
                QUEUE,
                destination="orders",
                message_ids=["dead"],
                cause="no such entity",
                at_us=drill.at_us,
            )
        )
        syphon.record(
            CompletedOperation(
                Operation.COMPLETE, "fabrikam", QUEUE, destination="orders", message_ids=["lost"], at_us=drill.at_us
            )
        )
    with drill.file(Role.RECEIVER) as receiver:
        drill.receive(receiver, "doubt", "doubt", "b1", "b2", "b3", "b3")
        drill.receive(receiver, "big", size=70_000)
    drill.wait(days=1)
    with drill.file(Role.CLIENT) as client, drill.file(Role.RECEIVER) as receiver:
        drill.send(client, *(f"e{i}" for i in range(5)))
        drill.receive(receiver, *(f"e{i}" for i in range(5)))
        assert client.flush()
    (folder / "broken-1-x.000001.jsonl").write_text('{"v":1,"n":1,\n{"v":99,"n":1,"process":"p","at_us":1}\n')


Content = dict[str, list[tuple[Any, ...]]]


def content(spark: SparkSession, folder: Path) -> Content:
    """Everything in the tables, in an order that does not depend on how they were built."""
    store = TableStore(folder)
    manifest = store.manifest()
    frames = {"silver": store.read(spark, schemas.SILVER, manifest)}
    frames["quarantine"] = store.read(spark, schemas.QUARANTINE, manifest)
    for table in schemas.TABLES:
        if table.name not in frames:
            frames[table.name] = store.read(spark, table, manifest)
    return {name: sorted((tuple(row) for row in frame.collect()), key=repr) for name, frame in frames.items()}


def rows(spark: SparkSession, folder: Path, table: schemas.Table) -> list[dict[str, Any]]:
    store = TableStore(folder)
    frame = store.read(spark, table)
    return [row.asDict() for row in frame.collect()]


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ledger")
    write_drill(folder)
    return folder


@pytest.fixture(scope="module")
def tables(spark: SparkSession, ledger: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    result = build(spark, ledger, folder)
    assert (result.new_files, result.quarantined) == (len(closed_files(ledger)), 2)
    assert set(DAYS) <= set(result.days), "and today, on which the ledgers were opened"
    return folder


def test_the_audit_names_what_happened_to_each_message(spark: SparkSession, tables: Path) -> None:
    audit = {row["message_id"]: row for row in rows(spark, tables, schemas.AUDIT)}
    assert {name: row["verdict"] for name, row in audit.items()} == {
        "doubt": "duplicated",
        "b1": "delivered",
        "b2": "delivered",
        "b3": "duplicated",
        "big": "delivered",
        "dead": "dead-lettered",
        "lost": "lost",
        "waits": "waiting",
    }
    assert audit["doubt"]["in_doubt"] == 1
    assert all(row["day"].isoformat() == DAYS[0] for row in audit.values())


def test_the_episode_is_told_from_beginning_to_end(spark: SparkSession, tables: Path) -> None:
    (episode,) = rows(spark, tables, schemas.EPISODES)
    assert episode["suspect_at"].astimezone(UTC) == START + timedelta(minutes=1)
    assert episode["failed_over_seconds"] == 3 * 3600 + 2
    assert episode["seconds_to_first_backlog_message"] == 2
    assert (episode["diverted"], episode["home"], episode["waiting"]) == (8, 5, 1)
    assert episode["seconds_to_drained"] is None
    assert (episode["cause"], episode["ended_by"]) == ("ServiceBusConnectionError", "ping_succeeded")


def test_the_bill_is_what_the_script_did(spark: SparkSession, tables: Path) -> None:
    daily = rows(spark, tables, schemas.OPERATIONS_DAILY)
    billed: dict[tuple[str, str], int] = {}
    for row in daily:
        key = (row["namespace"], row["day"].isoformat())
        billed[key] = billed.get(key, 0) + row["billed"]
    assert {key: value for key, value in billed.items() if value} == {
        # 10 sent and received; one send in doubt; the refused one costs nothing
        ("contoso", DAYS[0]): 10 + 10 + 1,
        # created, 7 small and one big message diverted
        ("fabrikam", DAYS[0]): 1 + 7 + 2,
        # two pings that were not refused; 5 restored and one big; 6 received and one big
        ("contoso", DAYS[1]): 2 + 5 + 2 + 6 + 2,
        # 4 idle receives; 5 received and one big
        ("fabrikam", DAYS[1]): 4 + 5 + 2,
        ("contoso", DAYS[2]): 5 + 5,
    }
    bills = rows(spark, tables, schemas.BILLS)
    march = {row["what"]: row for row in bills if row["namespace"] == "contoso" and row["month"].month == 3}
    assert march["base charge, hours"]["amount"] == Decimal("0.013441") * 744
    assert march["operations, 0 to 13,000,000"]["quantity"] == 21 + 17
    assert {row["month"].month for row in bills if row["namespace"] == "fabrikam"} == {3}


def test_what_pairing_added_by_cause(spark: SparkSession, tables: Path) -> None:
    cost = {(r["namespace"], r["cause"]): r["billed"] for r in rows(spark, tables, schemas.PAIRING_COST)}
    assert cost == {
        ("contoso", "pings"): 2,
        # restored, and received by the application: the same again
        ("contoso", "diverted messages"): 7 + 7,
        ("fabrikam", "diverted messages"): 9 + 7,
        ("fabrikam", "idle receives"): 4,
        ("fabrikam", "creation"): 1,
    }


def test_waiting_and_availability(spark: SparkSession, tables: Path) -> None:
    (waiting,) = rows(spark, tables, schemas.WAITING)
    assert (waiting["messages"], waiting["still_waiting"]) == (5, 1)
    first, last = 3 * 3600 + 600.0, 3 * 3600 + 1800.0
    assert (waiting["p50_seconds"], waiting["max_seconds"]) == (first, last)
    assert waiting["mean_seconds"] == pytest.approx((3 * first + 2 * last) / 5)
    shares = {row["day"].isoformat(): row for row in rows(spark, tables, schemas.AVAILABILITY)}
    assert (shares[DAYS[0]]["offered"], shares[DAYS[0]]["accepted"]) == (19, 18)
    assert shares[DAYS[0]]["with_pairing"] == pytest.approx(18 / 19)
    assert shares[DAYS[0]]["without_pairing"] == pytest.approx(10 / 19)
    assert shares[DAYS[2]]["with_pairing"] == shares[DAYS[2]]["without_pairing"] == 1.0


def test_broken_lines_are_kept_with_their_reasons(spark: SparkSession, tables: Path) -> None:
    found = content(spark, tables)["quarantine"]
    assert sorted(row[3] for row in found) == ["not a JSON object of the ledger's fields", "version newer than 1"]
    assert {row[0] for row in found} == {"broken-1-x.000001.jsonl"}


def test_a_second_build_has_nothing_to_do(spark: SparkSession, ledger: Path, tables: Path) -> None:
    before = (tables / "CURRENT.json").read_bytes()
    assert build(spark, ledger, tables).new_files == 0
    assert (tables / "CURRENT.json").read_bytes() == before


def test_other_prices_make_other_bills_without_new_files(spark: SparkSession, tables: Path, tmp_path: Path) -> None:
    folder, nothing = tmp_path / "tables", tmp_path / "ledger"
    shutil.copytree(tables, folder)
    nothing.mkdir()
    assert build(spark, nothing, folder).new_files == 0
    before = content(spark, folder)
    pricing = Pricing(tariff="azure-cny", connections={"contoso": 5_000, "fabrikam": 10})
    assert build(spark, nothing, folder, pricing=pricing).new_files == 0
    assert {row["currency"] for row in rows(spark, folder, schemas.BILLS)} == {"CNY"}
    dollars = Pricing(connections={"contoso": 5_000, "fabrikam": 10})
    build(spark, nothing, folder, pricing=dollars)
    lines = {(row["namespace"], row["month"].month, row["what"]): row for row in rows(spark, folder, schemas.BILLS)}
    assert lines["contoso", 3, "brokered connections, 1,000 to 100,000"]["amount"] == 120
    assert lines["fabrikam", 3, "brokered connections, 0 to 1,000"]["amount"] == 0
    written = TableStore(folder).manifest()
    build(spark, nothing, folder, pricing=dollars)
    assert TableStore(folder).manifest() == written, "the same prices again"
    build(spark, nothing, folder)
    assert TableStore(folder).manifest() == written, "those of the build before, unless others are given"
    build(spark, nothing, folder, pricing=Pricing())
    assert content(spark, folder) == before


def test_a_report_with_other_prices_leaves_the_tables_alone(spark: SparkSession, tables: Path) -> None:
    before = (tables / "CURRENT.json").read_bytes()
    own = report(spark, tables)
    same = report(spark, tables, pricing=Pricing())
    other = report(spark, tables, pricing=Pricing(tariff="azure-cny"))
    assert same.bills == own.bills
    assert same.pairing_cost == own.pairing_cost
    assert {line["currency"] for line in own.bills} == {line["currency"] for line in own.pairing_cost} == {"USD"}
    assert {line["currency"] for line in other.bills} == {line["currency"] for line in other.pairing_cost} == {"CNY"}
    operations = [line for line in other.bills if line["what"].startswith("operations")]
    assert [line["quantity"] for line in operations] == [
        line["quantity"] for line in own.bills if line["what"].startswith("operations")
    ]
    assert (tables / "CURRENT.json").read_bytes() == before


def test_names_that_no_namespace_has_are_told(
    spark: SparkSession, tables: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    host = "Contoso.servicebus.windows.net"
    known = Pricing(connections={host: 1, "fabrikam": 2}, plans={"contoso": "premium"})
    assert unknown_names(spark, tables, known) is None
    assert unknown_names(spark, tables, Pricing()) is None
    assert unknown_names(spark, tmp_path, Pricing(plans={"contso": "basic"})) is None, "no tables, no names"
    wrong = Pricing(connections={"contso": 1}, plans={"fabrkam": "basic", "contoso": "basic"})
    sentence = unknown_names(spark, tables, wrong)
    assert sentence == (
        "No namespace of the tables is called contso or fabrkam (they have contoso, fabrikam): "
        "its plans and connections are in no bill."
    )
    shutil.copytree(tables, tmp_path / "tables")
    (tmp_path / "ledger").mkdir()
    build(spark, tmp_path / "ledger", tmp_path / "tables", pricing=wrong)
    assert caplog.messages == [sentence]


def test_the_report_says_it_in_one_sentence_and_adds_up(spark: SparkSession, tables: Path) -> None:
    told = report(spark, tables, last_day=date.fromisoformat(DAYS[2]))
    summary = told.summary
    assert summary.sentence == ("accepted 23: delivered 20, dead-lettered 1, waiting 1, lost 1, duplicates 2")
    assert verdict(told) == "1 of 23 accepted messages is lost."
    assert [row["message_id"] for row in told.lost] == ["lost"]
    assert sorted(row["message_id"] for row in told.duplicated) == ["b3", "doubt"]
    assert doubts(told)[0].startswith("Still waiting, according to the ledger")
    assert [(span.state, span.end_s is None) for span in told.states] == [("suspect", False), ("failed over", False)]
    assert sum(told.sends.values["primary"]) == 15
    assert sum(told.sends.values["backlog"]) == 8
    assert sum(told.sends.values["refused"]) == 2
    assert max(told.depth.values["messages in backlogs"]) == 8
    assert dict(told.waits) | {"4 h": 5} == dict(told.waits)


def test_the_report_as_json_and_as_a_page(spark: SparkSession, tables: Path) -> None:
    seen = spark.createDataFrame([("contoso", "orders", "waits", "backlog")], [*KEY, "place"])
    look = Look(seen, frozenset({"contoso"}), datetime.now(UTC))
    told = report(spark, tables, last_day=date.fromisoformat(DAYS[2]), look=look)
    data = json.loads(told.to_json())
    assert data["summary"]["lost"] == 1
    assert data["episodes"][0]["failed_over_at"] == "2026-03-30T22:02:00.000+00:00"
    page = html_page(told)
    assert "1 of 23 accepted messages is lost." in page
    assert "the queues themselves were not looked into" not in page
    assert page.count("<svg") == page.count("</svg>") == 5
    document = ElementTree.fromstring(
        page.removeprefix("<!doctype html>")
        .replace('charset="utf-8">', 'charset="utf-8"/>')
        .replace('initial-scale=1">', 'initial-scale=1"/>')
    )
    assert document.tag == "html"
    assert not [word for word in ("<script", "http://", "https://", "src=", "@import") if word in page]


def test_a_look_into_the_queues_finds_what_is_missing(spark: SparkSession, tables: Path) -> None:
    seen = spark.createDataFrame([("contoso", "orders", "other", "backlog")], [*KEY, "place"])
    look = Look(seen, frozenset({"contoso"}), datetime.now(UTC))
    told = report(spark, tables, last_day=date.fromisoformat(DAYS[2]), look=look)
    assert (told.summary.waiting, told.summary.lost) == (0, 2)
    assert sorted(row["message_id"] for row in told.lost) == ["lost", "waits"]
    assert [row["waiting"] for row in told.episodes] == [0], "the page does not contradict itself"
    assert sum(row["still_waiting"] for row in told.waiting) == 0
    by_ledger = report(spark, tables, last_day=date.fromisoformat(DAYS[2]))
    assert [row["waiting"] for row in by_ledger.episodes] == [1]


def test_a_backlog_that_was_there_before_the_span_is_seen(spark: SparkSession, tables: Path) -> None:
    """8 were diverted on the first day: the first three that leave on the second leave 5."""
    second = date.fromisoformat(DAYS[1])
    depth = report(spark, tables, first_day=second, last_day=second).depth.values["messages in backlogs"]
    assert (depth[0], depth[-1]) == (5, 0)


def test_a_span_without_records_names_the_days_there_are(spark: SparkSession, tables: Path) -> None:
    with pytest.raises(TablesError, match=f"they have {DAYS[0]} to"):
        report(spark, tables, first_day=date(2020, 1, 1), last_day=date(2020, 1, 2))


def test_a_span_in_which_nothing_happened_has_a_page_too(spark: SparkSession, tables: Path) -> None:
    told = report(spark, tables, first_day=date.fromisoformat(DAYS[2]), last_day=date.fromisoformat(DAYS[2]))
    assert verdict(told) == "Nothing is lost: all 5 accepted messages were delivered."
    assert "No entity was ever suspect." in html_page(told)


def test_a_folder_without_tables_says_what_to_run(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(TablesError, match="'pairbus ledger build' when the ledger has a published file"):
        report(spark, tmp_path)


def test_small_builds_in_any_order_give_the_same_tables_in_few_files(
    spark: SparkSession, ledger: Path, tables: Path, tmp_path: Path
) -> None:
    """Receipts before the sends they belong to, the syphon before the client: the order of files means nothing. More
    than one batch of a day become one.
    """
    seed = random.SystemRandom().randrange(2**32)
    files = closed_files(ledger)
    random.Random(seed).shuffle(files)
    (tmp_path / "ledger").mkdir()
    store = TableStore(tmp_path / "tables")
    for part in (files[:1], files[1:4], files[4:]):
        for path in part:
            shutil.copy2(path, tmp_path / "ledger")
        assert build(spark, tmp_path / "ledger", store.folder, most_batches=1).new_files == len(part)
        named = store.manifest().silver
        assert all((store.folder / f"silver/batch={batch:06d}/day={day}").is_dir() for day, (batch,) in named.items())
    assert content(spark, store.folder) == content(spark, tables), f"seed {seed}"
    store.sweep(store.manifest())
    kept = {(path.name[4:], int(path.parent.name[6:])) for path in (store.folder / "silver").glob("batch=*/day=*")}
    assert kept == {(day, batch) for day, (batch,) in store.manifest().silver.items()}


def test_a_file_that_changed_after_it_was_read_is_refused(spark: SparkSession, ledger: Path, tmp_path: Path) -> None:
    shutil.copytree(ledger, tmp_path / "ledger")
    smallest = min(closed_files(tmp_path / "ledger"), key=lambda path: path.stat().st_size)
    store = TableStore(tmp_path / "tables")
    with store.locked():
        store.publish(Manifest(files={smallest.name: smallest.stat().st_size - 1}))
    with pytest.raises(TablesError, match=f"{smallest.name} has changed after it was read"):
        build(spark, tmp_path / "ledger", tmp_path / "tables")


def test_two_builds_at_once_are_refused(spark: SparkSession, ledger: Path, tmp_path: Path) -> None:
    with TableStore(tmp_path).locked(), pytest.raises(TablesError, match="Another build is writing"):
        build(spark, ledger, tmp_path)


@pytest.mark.parametrize(
    ("number", "advice"), [(99, "use the newer program"), (1, "rebuild them from the whole ledger")]
)
def test_tables_of_another_format_are_refused(
    spark: SparkSession, ledger: Path, tmp_path: Path, number: int, advice: str
) -> None:
    store = TableStore(tmp_path)
    with store.locked():
        store.publish(Manifest(format=number))
    with pytest.raises(TablesError, match=f"have format {number}, .*{advice}"):
        build(spark, ledger, tmp_path)


def test_a_missing_ledger_is_named(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nowhere does not exist"):
        build(spark, tmp_path / "nowhere", tmp_path / "tables")
