"""What happens over days: ids that are used again, long waits, outages over midnight, processes that live on."""

from __future__ import annotations

import json
import os
import shutil
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pairbus.ledger import closed_files
from pairbus.pipeline import schemas
from pairbus.pipeline.build import build
from pairbus.pipeline.page import doubts, html_page, verdict
from pairbus.pipeline.report import report, summarise
from pairbus.pipeline.silver import quarantine, read_lines, silver
from pairbus.pipeline.store import TablesError, TableStore

pytestmark = pytest.mark.timeout(900)  # Spark on a busy machine

QUEUE = "contoso/x-servicebus-transfer/0"
SEND = {"operation": "send", "namespace": "contoso", "entity": "orders", "route": "primary"}
RECEIVED = {"operation": "complete", "namespace": "contoso", "entity": "orders", "role": "receiver"}
DIVERT = {"operation": "divert", "namespace": "fabrikam", "entity": QUEUE, "destination": "orders", "route": "backlog"}
RESTORE = {"operation": "restore", "namespace": "contoso", "entity": "orders", "source": QUEUE, "role": "syphon"}
REMOVE = {"operation": "complete", "namespace": "fabrikam", "entity": QUEUE, "destination": "orders", "role": "syphon"}
CHANGE = {"operation": "transition", "namespace": "contoso", "entity": "orders", "cause": "outage", "episode": "e"}
OPEN, CLOSE = {"operation": "ledger-open"}, {"operation": "ledger-close"}


def at(day: int, clock: str = "12:00:00") -> int:
    moment = datetime.fromisoformat(f"2026-03-{day:02d}T{clock}").replace(tzinfo=UTC)
    return int(moment.timestamp() * 1_000_000)


def write(folder: Path, process: str, *records: tuple[int, dict[str, Any]], **common: Any) -> None:
    folder.mkdir(exist_ok=True)
    lines = (
        json.dumps({"v": 1, "n": n, "process": process, "at_us": at_us, "role": "client"} | common | record)
        for n, (at_us, record) in enumerate(records)
    )
    (folder / f"{process}.000001.jsonl").write_text("".join(f"{line}\n" for line in lines))


def content(spark: SparkSession, folder: Path) -> dict[str, list[tuple[Any, ...]]]:
    store = TableStore(folder)
    manifest = store.manifest()
    frames = {
        table.name: store.read(spark, table, manifest)
        for table in (schemas.MESSAGES, schemas.AUDIT, schemas.WAITING, schemas.AVAILABILITY)
    }
    return {name: sorted((tuple(row) for row in frame.collect()), key=repr) for name, frame in frames.items()}


def test_built_day_by_day_is_built_at_once(spark: SparkSession, tmp_path: Path) -> None:
    """An id that was used three days before its diversion, and one that waited for eleven days and came home twice; one
    of a topic, received on later days; one whose client's records are read last.
    """
    ledger = tmp_path / "ledger"
    again, waits, late = {"message_id": "again"}, {"message_id": "waits"}, {"message_id": "late"}
    topic = {"message_id": "topic", "destination": "prices"}
    there = {"message_id": "topic", "entity": "prices/subscriptions/europe"}
    write(ledger, "a", (at(1), SEND | again), (at(1), RECEIVED | again), (at(1), DIVERT | waits))
    write(ledger, "b", (at(4), DIVERT | again), (at(4), DIVERT | topic), (at(4), REMOVE | topic))
    write(
        ledger,
        "c",
        (at(5), RESTORE | topic | {"entity": "prices"}),
        (at(5), RECEIVED | there),
        (at(5), RECEIVED | there | {"entity": "prices/subscriptions/large"}),
        (at(12), RESTORE | waits),
        (at(12), REMOVE | waits),
        (at(12), RECEIVED | waits),
        (at(12), RESTORE | late),
        (at(12), REMOVE | late),
    )
    write(
        ledger,
        "d",
        (at(6), RECEIVED | there),
        (at(11), DIVERT | late),
        (at(12), RESTORE | waits),
        (at(12), RECEIVED | waits),
    )
    build(spark, ledger, tmp_path / "at once")
    (tmp_path / "slowly").mkdir()
    for path in closed_files(ledger):
        shutil.copy2(path, tmp_path / "slowly")
        assert build(spark, tmp_path / "slowly", tmp_path / "by day").new_files == 1
    whole = content(spark, tmp_path / "at once")
    assert content(spark, tmp_path / "by day") == whole
    names = schemas.AUDIT.names
    audit = {row["message_id"]: row for row in (dict(zip(names, values, strict=True)) for values in whole["audit"])}
    assert (audit["again"]["accepted"], audit["again"]["direct"], audit["again"]["received"]) == (2, 1, 1)
    assert (audit["waits"]["verdict"], audit["waits"]["received"]) == ("duplicated", 2)
    assert (audit["topic"]["verdict"], audit["topic"]["received"]) == ("duplicated", 2)
    assert (audit["late"]["verdict"], audit["late"]["accepted"], audit["late"]["inferred"]) == ("delivered", 1, 0)


@pytest.fixture(scope="module")
def midnight(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An outage from the first day to the third; a client that lives through it, and one that dies in it."""
    ledger = tmp_path_factory.mktemp("ledger")
    message, other = {"message_id": "lost"}, {"message_id": "other"}
    write(
        ledger,
        "lives",
        (at(1, "00:00:00"), OPEN),
        (at(1, "23:58:00"), CHANGE | {"state_from": "healthy", "state_to": "failed over"}),
        (at(1, "23:59:50"), SEND | message | {"outcome": "failed"}),
        (at(2, "00:00:10"), DIVERT | message | {"episode": "e"}),
        (at(3), CHANGE | {"state_from": "failed over", "state_to": "healthy"}),
        (at(3, "12:00:01"), SEND | other),
        (at(3, "12:00:02"), CLOSE),
    )
    write(
        ledger,
        "dies",
        (at(1, "10:00:00"), OPEN),
        (at(1, "23:58:00"), CHANGE | {"episode": "d", "state_from": "healthy", "state_to": "failed over"}),
        (at(2, "00:00:20"), SEND | other | {"outcome": "failed"}),
    )
    write(ledger, "syphon", (at(2), OPEN), (at(2), REMOVE | message), (at(2), CLOSE))
    tables = tmp_path_factory.mktemp("tables")
    build(spark, ledger, tables)
    return tables


def test_what_is_lost_is_lost_on_the_day_it_was_accepted(spark: SparkSession, midnight: Path) -> None:
    first, second = date(2026, 3, 1), date(2026, 3, 2)
    assert (
        verdict(report(spark, midnight, last_day=first)) == "Nothing is lost: all 0 accepted messages were delivered."
    )
    assert verdict(report(spark, midnight, first_day=second)) == "1 of 2 accepted messages is lost."


def test_a_failover_is_told_on_every_day_it_lasts(spark: SparkSession, midnight: Path) -> None:
    second, third = (
        report(spark, midnight, first_day=day, last_day=day) for day in (date(2026, 3, 2), date(2026, 3, 3))
    )
    morning = at(2, "00:00:00") / 1_000_000
    assert [(span.start_s, span.end_s) for span in second.states] == [(morning, None), (morning, None)]
    assert sorted(row["episode"] for row in second.episodes) == ["d", "e"]
    assert "No entity was ever suspect" not in html_page(second)
    evening = at(3) / 1_000_000
    assert [(span.start_s, span.end_s) for span in third.states] == [(at(3, "00:00:00") / 1_000_000, evening)]
    assert [row["episode"] for row in third.episodes] == ["e"], "the other client was gone"


def test_who_died_is_told_on_the_days_it_was_alive(spark: SparkSession, midnight: Path) -> None:
    died = {
        day: report(spark, midnight, first_day=date(2026, 3, day), last_day=date(2026, 3, day)).summary.died
        for day in (1, 2, 3)
    }
    assert died == {1: 1, 2: 1, 3: 0}
    assert any("1 process runs or did not end in order" in doubt for doubt in doubts(report(spark, midnight)))


def test_days_are_those_of_utc_in_any_session(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "ledger", "p", (at(1, "23:30:00"), SEND), (at(2, "00:00:00"), SEND), (at(2, "00:00:00") - 1, SEND))
    here = spark.newSession()
    here.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    rows = silver(read_lines(here, closed_files(tmp_path / "ledger"))).orderBy("n").collect()
    assert [row["day"].day for row in rows] == [1, 2, 1]


def test_what_no_writer_writes_is_quarantined(spark: SparkSession, tmp_path: Path) -> None:
    wrong: list[dict[str, Any]] = [
        {"outcome": "perhaps"},
        {"route": "by air"},
        {"billed": -1},
        {"latency_us": -1},
        {"count": -1},
        {"bytes": -1},
        {"billed": 2**63 - 1},
        {"latency_us": 2**63 - 1},
        {"count": 2**62},
        {"bytes": 2**63 - 1},
        {"namespace": "n" * 241},
        {"namespace": "/" * 61},
    ]
    write(
        tmp_path / "ledger",
        "p",
        *((at(1), SEND | fields) for fields in wrong),
        (at(1), SEND | {"namespace": "n" * 240}),
    )
    lines = read_lines(spark, closed_files(tmp_path / "ledger"))
    reasons = [row["reason"] for row in quarantine(lines).orderBy("n").collect()]
    negative, long = ["negative number"] * 4, ["namespace's name too long"] * 2
    assert reasons == ["unknown outcome", "unknown route", *negative, *["number too large"] * 4, *long]
    assert TableStore(tmp_path / "tables").write(silver(lines), "silver", 1, "day", "namespace") == ["2026-03-01"]


def test_hostile_files_block_no_report(spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ledger = tmp_path / "ledger"
    write(ledger, "p", (at(1), SEND | {"message_id": "a"}), (at(1), SEND | {"bytes": 2**63 - 1}))
    gaps = [(at(1), SEND | {"operation": "ledger-gap", "count": 2**62})] * 2
    write(ledger, "q", *gaps, (at(1), SEND | {"message_id": "b"}))
    good = (ledger / "p.000001.jsonl").read_bytes().splitlines(keepends=True)[0].replace(b'"p"', b'"r"')
    numbered = [good.replace(b'"n": 0', b'"n": %d' % n) for n in range(3)]
    with (ledger / "r.000001.jsonl").open("wb") as file:
        file.write(numbered[0] + numbered[1][:-2] + b', "cause": "')
        file.truncate(300_000_000)  # zeros to here, which take no space on the disk
        file.seek(0, os.SEEK_END)
        file.write(b'"}\n' + numbered[2])
    (ledger / "loop.000001.jsonl").symlink_to("loop.000001.jsonl")
    (ledger / "loop.000002.jsonl.open").symlink_to("loop.000002.jsonl.open")
    os.mkfifo(ledger / "pipe.000001.jsonl.open")
    (ledger / "a{b[.000001.jsonl").write_bytes(good)
    result = build(spark, ledger, tmp_path / "tables")
    assert (result.new_files, result.records, result.quarantined) == (3, 4, 4)
    store = TableStore(tmp_path / "tables")
    rows = store.read(spark, schemas.QUARANTINE, store.manifest()).collect()
    assert sorted((row["file"], row["reason"]) for row in rows) == [
        ("p.000001.jsonl", "number too large"),
        ("q.000001.jsonl", "number too large"),
        ("q.000001.jsonl", "number too large"),
        ("r.000001.jsonl", "not a JSON object of the ledger's fields"),
    ]
    (line,) = [row["line"] for row in rows if row["line"]]
    assert line.startswith("(a line of 299999") and '{"v": 1' in line and len(line) < 1100
    skipped = ["a{b[.000001.jsonl", "loop.000001.jsonl", "loop.000002.jsonl.open", "pipe.000001.jsonl.open"]
    assert all(any(name in message for message in caplog.messages) for name in skipped)
    told, summary = report(spark, tmp_path / "tables"), summarise(spark, ledger)
    assert (told.summary.broken_lines, told.summary.skipped_files) == (4, 4)
    assert (summary.broken_lines, summary.skipped_files) == (4, 4)
    assert any(sentence.startswith("4 files in the ledger folder were skipped") for sentence in doubts(told))
    (ledger / "loop.000001.jsonl").unlink()
    assert build(spark, ledger, tmp_path / "tables").new_files == 0
    assert store.manifest().skipped == 3


def test_tables_of_broken_lines_only_say_so(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "ledger").mkdir()
    (tmp_path / "ledger" / "p.000001.jsonl").write_text("no record\n")
    build(spark, tmp_path / "ledger", tmp_path / "tables")
    with pytest.raises(TablesError, match="no line of the ledger could be read"):
        report(spark, tmp_path / "tables")
