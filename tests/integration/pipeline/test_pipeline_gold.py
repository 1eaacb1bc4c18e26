"""Each step of the pipeline on small frames, made by hand."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from pairbus.costs import ACCEPTED, FlowName, billed_operations, parse_tariff, rule_for
from pairbus.ledger import Operation, Outcome, Role, Route
from pairbus.pipeline import gold, schemas
from pairbus.pipeline.audit import about_messages, audit, evidence, weigh
from pairbus.pipeline.build import new_evidence
from pairbus.pipeline.gold import Pricing
from pairbus.pipeline.queries import query
from pairbus.pipeline.report import over_time
from pairbus.pipeline.silver import flow_column, read_lines, rule_column, silver

pytestmark = pytest.mark.timeout(900)  # Spark on a busy machine

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
QUEUE = "contoso/x-servicebus-transfer/0"
TARIFF = parse_tariff(
    """
    name = "round"
    valid_from = 2020-01-01
    currency = "EUR"
    source = "made for the tests"
    [plans.standard]
    base_per_hour = "1"
    operations = [{ up_to = 10, price_per_million = "0" }, { price_per_million = "1000000" }]
    [plans.basic]
    operations = [{ price_per_million = "2000000" }]
    """,
    "round.toml",
)
PRICING = Pricing(tariffs=(TARIFF,), tariff="round")


def frame(spark: SparkSession, table: schemas.Table, rows: Sequence[dict[str, Any]], **common: Any) -> DataFrame:
    """Rows of a table; what is not given is null."""
    whole = [{name: (common | row).get(name) for name in table.names} for row in rows]
    return spark.createDataFrame([tuple(row.values()) for row in whole], table.schema)


def collected(result: DataFrame, *names: str) -> set[tuple[Any, ...]]:
    return {tuple(row) for row in result.select(*names).collect()}


def test_silver_bills_by_the_rules(spark: SparkSession, tmp_path: Path) -> None:
    cases = [
        (operation, outcome, size)
        for operation in Operation
        for outcome in Outcome
        for size in (0, 1, 65_536, 65_537, 262_144)
    ]
    path = tmp_path / "p.000001.jsonl"
    line: dict[str, Any] = {"v": 1, "process": "p", "at_us": 1, "role": "client", "namespace": "C", "entity": "O"}
    path.write_text(
        "".join(
            json.dumps(line | {"n": n, "operation": operation, "outcome": outcome, "bytes": size}) + "\n"
            for n, (operation, outcome, size) in enumerate(cases)
        )
    )
    found = {row["n"]: row["billed"] for row in silver(read_lines(spark, [path])).collect()}
    assert found == {n: billed_operations(op, size, outcome) for n, (op, outcome, size) in enumerate(cases)}


def test_the_columns_of_the_rules_equal_the_lookup_for_every_combination(spark: SparkSession) -> None:
    kinds = list(itertools.product(Operation, Outcome, (None, *Route), (False, True)))
    rows = [
        {"n": n, "operation": operation.value, "outcome": outcome.value, "route": route, "on_backlog": on_backlog}
        for n, (operation, outcome, route, on_backlog) in enumerate(kinds)
    ]
    flows = [flow_column(flow).alias(flow) for flow in FlowName]
    compiled = frame(spark, schemas.SILVER, rows).select(
        "n",
        rule_column(lambda rule: rule.billing.value).alias("billing"),
        rule_column(lambda rule: rule.cause).alias("cause"),
        flow_column(*ACCEPTED).alias("accepted"),
        *flows,
    )
    by_spark = {
        row["n"]: (row["billing"], row["cause"], row["accepted"], {flow for flow in FlowName if row[flow]})
        for row in compiled.collect()
    }
    rules = [
        rule_for(operation, outcome, route=route, on_backlog=on_backlog)
        for operation, outcome, route, on_backlog in kinds
    ]
    assert by_spark == {
        n: (rule.billing.value, rule.cause, not ACCEPTED.isdisjoint(rule.flows), set(rule.flows))
        for n, rule in enumerate(rules)
    }


def test_silver_knows_the_primary_by_the_path_or_the_first_label(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "p.000001.jsonl"
    places = [
        {"namespace": "Contoso.servicebus.windows.net", "entity": "Orders"},
        {"namespace": "fabrikam", "entity": "Contoso/X-ServiceBus-Transfer/3", "destination": "Orders"},
        {"namespace": "contoso", "entity": "orders", "source": "contoso/x-servicebus-transfer/3"},
    ]
    line = {"v": 1, "process": "p", "at_us": 1, "role": "client", "operation": "send"}
    path.write_text("".join(json.dumps(line | place | {"n": n}) + "\n" for n, place in enumerate(places)))
    rows = silver(read_lines(spark, [path])).orderBy("n").collect()
    assert {(row["primary"], row["target"]) for row in rows} == {("contoso", "orders")}
    assert [row["on_backlog"] for row in rows] == [False, True, False]


def test_a_namespace_with_a_ledger_of_its_own_is_billed_by_it(spark: SparkSession) -> None:
    records = frame(
        spark,
        schemas.SILVER,
        [
            {"namespace": "contoso", "role": Role.CLIENT, "n": 1},
            {"namespace": "contoso", "role": Role.NAMESPACE, "n": 2},
            {"namespace": "contoso", "role": Role.NAMESPACE, "n": 3},
            {"namespace": "fabrikam", "role": Role.CLIENT, "n": 4},
        ],
        day=NOON.date(),
        at=NOON,
        operation="send",
        outcome="ok",
        on_backlog=False,
        billed=1,
        bytes=0,
        latency_us=0,
    )
    daily = gold.operations_daily(records)
    assert collected(daily, "namespace", "role", "operations", "in_bill") == {
        ("contoso", "client", 1, False),
        ("contoso", "namespace", 2, True),
        ("fabrikam", "client", 1, True),
    }


def test_a_namespace_that_some_know_by_its_host_has_one_bill(spark: SparkSession) -> None:
    """Also if it counts for everyone; the address of a local one is no host of Service Bus and stays as it is."""
    host = "contoso.servicebus.windows.net"
    records = frame(
        spark,
        schemas.SILVER,
        [
            {"namespace": host, "role": Role.CLIENT},
            {"namespace": "contoso", "role": Role.RECEIVER, "operation": "complete", "billed": 0},
            {"namespace": f"{host}:5671", "role": Role.SYPHON},
            {"namespace": "contoso", "role": Role.NAMESPACE},
            {"namespace": "fabrikam.servicebus.chinacloudapi.cn", "role": Role.CLIENT},
            {"namespace": "127.0.0.1:5671", "role": Role.CLIENT},
        ],
        day=NOON.date(),
        at=NOON,
        operation="send",
        outcome="ok",
        on_backlog=False,
        billed=1,
        bytes=0,
        latency_us=0,
    )
    daily = gold.operations_daily(records)
    assert collected(daily, "namespace", "role", "in_bill") == {
        ("contoso", "client", False),
        ("contoso", "receiver", False),
        ("contoso", "syphon", False),
        ("contoso", "namespace", True),
        ("fabrikam", "client", True),
        ("127.0.0.1:5671", "client", True),
    }
    for name in ("contoso", host, "Contoso"):
        pricing = Pricing(connections={name: 5_000})
        lines = {
            row["what"]: row["quantity"] for row in gold.bills(daily, pricing).where("namespace = 'contoso'").collect()
        }
        assert lines["base charge, hours"] == 744
        assert lines["brokered connections, 1,000 to 100,000"] == 4_000
    assert (
        Pricing(tariffs=(TARIFF,), tariff="round", plans={host: "basic"}).of("contoso", NOON.date())[1].name == "basic"
    )


def operations(spark: SparkSession, *rows: tuple[str, date, str | None, str, int]) -> DataFrame:
    return frame(
        spark,
        schemas.OPERATIONS_DAILY,
        [
            {
                "namespace": ns,
                "day": day,
                "cause": cause,
                "operation": operation,
                "billed": billed,
                "operations": billed,
            }
            for ns, day, cause, operation, billed in rows
        ],
        in_bill=True,
        outcome="ok",
        role="client",
    )


def test_bills_are_by_namespace_and_month_with_its_steps(spark: SparkSession) -> None:
    daily = operations(
        spark,
        ("contoso", date(2026, 1, 30), None, "send", 6),
        ("contoso", date(2026, 1, 31), None, "send", 6),
        ("contoso", date(2026, 2, 1), None, "send", 10),
        ("fabrikam", date(2026, 2, 1), None, "send", 3),
    )
    pricing = Pricing(tariffs=(TARIFF,), tariff="round", plans={"fabrikam": "basic"})
    totals: dict[tuple[str, int], Decimal] = {}
    for row in gold.bills(daily, pricing).collect():
        key = (row["namespace"], row["month"].month)
        totals[key] = totals.get(key, Decimal(0)) + row["amount"]
    assert totals == {("contoso", 1): 744 + 2, ("contoso", 2): 672, ("fabrikam", 2): 6}


def test_pairing_cost_is_the_margin_shared_by_the_causes(spark: SparkSession) -> None:
    """8 of its own and 7 of the pairing, 10 included: the pairing costs the 5 above, shared 3 to 4."""
    daily = operations(
        spark,
        ("contoso", NOON.date(), None, "send", 8),
        ("contoso", NOON.date(), "pings", "ping", 3),
        ("contoso", NOON.date(), "diverted messages", "divert", 4),
    )
    rows = {row["cause"]: row for row in gold.pairing_cost(daily, PRICING).collect()}
    assert rows["pings"]["billed"] == 3
    assert float(rows["pings"]["amount"]) == pytest.approx(5 * 3 / 7)
    assert float(rows["diverted messages"]["amount"]) == pytest.approx(5 * 4 / 7)


def test_the_receivers_receive_of_a_restored_message_is_its_fourth_operation(spark: SparkSession) -> None:
    daily = operations(spark, ("contoso", NOON.date(), "diverted messages", "restore", 5))
    (row,) = gold.pairing_cost(daily, PRICING).collect()
    assert row["billed"] == 10


def test_the_margin_reaches_the_steps_that_the_month_reaches(spark: SparkSession) -> None:
    """10 are included, each more costs 1. The application sent 8, and 2 came home: with their receives that is 12.

    Where receivers record, the 2 receives are in the month already; where they have received 5, it comes to 15, and all
    4 of the pairing are above 10.
    """
    sent = ("contoso", NOON.date(), None, "send", 8)
    home = ("contoso", NOON.date(), "diverted messages", "restore", 2)
    for received, amount in ((0, 2), (1, 2), (2, 2), (5, 4)):
        receives = [("contoso", NOON.date(), None, "receive", received)] if received else []
        (row,) = gold.pairing_cost(operations(spark, sent, home, *receives), PRICING).collect()
        assert (row["billed"], row["amount"]) == (4, amount), received


def test_receives_of_one_entity_are_none_of_another(spark: SparkSession) -> None:
    """6 sent, 2 home to orders and 2 to the topic: 4 receives of orders and none of the topic make it 6+4+4+2 = 16."""
    rows = [
        ("send", "orders", None, 6),
        ("restore", "orders", "diverted messages", 2),
        ("restore", "news", "diverted messages", 2),
        ("receive", "orders", None, 4),
    ]

    def daily(*more: tuple[str, str, None, int]) -> DataFrame:
        told = [
            {"operation": operation, "entity": entity, "cause": cause, "billed": billed, "operations": billed}
            for operation, entity, cause, billed in (*rows, *more)
        ]
        common = {"namespace": "contoso", "day": NOON.date(), "in_bill": True, "outcome": "ok", "role": "client"}
        return frame(spark, schemas.OPERATIONS_DAILY, told, **common)

    (untold,) = gold.pairing_cost(daily(), PRICING).collect()
    assert (untold["billed"], untold["amount"]) == (8, 16 - 10)
    (told,) = gold.pairing_cost(daily(("receive", "news/subscriptions/all", None, 2)), PRICING).collect()
    assert told["amount"] == 6


def transition(episode: str, minutes: float, after: str, cause: str, process: str = "p") -> dict[str, Any]:
    return {
        "episode": episode,
        "process": process,
        "at": NOON + timedelta(minutes=minutes),
        "n": int(minutes * 60),
        "state_to": after,
        "cause": cause,
    }


def test_episodes_that_end_go_on_or_never_began(spark: SparkSession) -> None:
    changes = frame(
        spark,
        schemas.TRANSITIONS,
        [
            transition("whole", 0, "suspect", "Timeout"),
            transition("whole", 1, "failed over", "Timeout"),
            transition("whole", 11, "healthy", "ping"),
            transition("still", 20, "failed over", "asked"),
            transition("blip", 30, "suspect", "Timeout", process="q"),
            transition("blip", 30.5, "healthy", "send", process="q"),
        ],
        primary="contoso",
        target="orders",
        day=NOON.date(),
    )
    carried = frame(
        spark,
        schemas.EPISODE_MESSAGES,
        [
            {
                "episode": "whole",
                "diverted": 2,
                "home": 2,
                "waiting": 0,
                "first_diverted_at": NOON + timedelta(minutes=1, seconds=3),
                "last_home_at": NOON + timedelta(minutes=12),
            },
            {"episode": "whole", "diverted": 1, "home": 1, "waiting": 0, "last_home_at": NOON + timedelta(minutes=13)},
            {"episode": "still", "diverted": 5, "home": 0, "waiting": 5},
        ],
        day=NOON.date(),
    )
    found = gold.episodes(changes, carried)
    assert collected(
        found, "episode", "failed_over_seconds", "diverted", "waiting", "seconds_to_first_backlog_message",
        "seconds_to_drained", "cause", "ended_by",
    ) == {
        ("whole", 600.0, 3, 0, 3.0, 120.0, "Timeout", "ping"),
        ("still", None, 5, 5, None, None, "asked", None),
        ("blip", None, 0, 0, None, None, "Timeout", "send"),
    }  # fmt: skip


def test_waiting_is_never_negative_and_counts_who_still_waits(spark: SparkSession) -> None:
    seconds = [-2.0, 0.0, 10.0, 20.0]
    rows: list[dict[str, Any]] = [{"home_at": NOON + timedelta(seconds=s), "waiting": 0} for s in seconds]
    rows.append({"waiting": 1})
    audited = frame(spark, schemas.AUDIT, rows, primary="contoso", target="orders", diverted_at=NOON, day=NOON.date())
    (row,) = gold.waiting(audited).collect()
    assert (row["messages"], row["still_waiting"]) == (4, 1)
    assert (row["mean_seconds"], row["p50_seconds"], row["max_seconds"]) == (7.5, 5.0, 20.0)


def record(message_id: str, operation: str, outcome: str = "ok", **more: Any) -> dict[str, Any]:
    on_backlog = operation == "divert" or bool(more.get("on_backlog"))
    return {"message_id": message_id, "operation": operation, "outcome": outcome} | more | {"on_backlog": on_backlog}


def silver_frame(spark: SparkSession, *rows: dict[str, Any]) -> DataFrame:
    common: dict[str, Any] = {"primary": "contoso", "target": "orders", "at": NOON, "role": "client"}
    return frame(spark, schemas.SILVER, rows, **common)


def test_plain_records_count_for_messages_of_interest_only(spark: SparkSession) -> None:
    """Read in two parts, the receipt of a diverted message before its diversion: the same as read at once."""
    first = silver_frame(spark, record("m", "complete"), record("plain", "send"), record("plain", "complete"))
    second = silver_frame(spark, record("m", "divert"), record("m", "restore"), record("other", "complete"))
    records = about_messages(second)
    special, plain, before = (
        evidence(records.where("not plain")),
        records.where("plain"),
        about_messages(first).where("plain"),
    )
    nothing = weigh(special.where("false"))
    for few in (False, True):
        rows = new_evidence(special, plain, nothing, before, few=few).collect()
        found = [(row["message_id"], row["received"], row["diverted"], row["restored"]) for row in rows]
        assert found == [("m", 1, 1, 1)]


def test_weighing_in_parts_is_weighing_at_once(spark: SparkSession) -> None:
    records = silver_frame(
        spark,
        record("m", "divert", episode="e", route="backlog"),
        record("m", "restore", at=NOON + timedelta(seconds=9)),
        record("m", "complete", on_backlog=True),
        record("m", "send", "unknown"),
    )
    told = evidence(about_messages(records))
    at_once = weigh(told)
    kept = at_once.columns
    parts = [weigh(told.where(condition)) for condition in ("diverted = 1", "diverted = 0")]
    again = weigh(parts[0].unionByName(parts[1]))
    assert collected(again, *kept) == collected(at_once, *kept)


def test_messages_with_the_same_id_on_other_entities_are_others(spark: SparkSession) -> None:
    records = silver_frame(
        spark,
        record("m", "divert", target="orders"),
        record("m", "divert", target="invoices"),
        record("m", "restore", target="orders"),
        record("m", "divert", target="orders", primary="tailspin"),
    )
    assert collected(audit(records), "primary", "target", "verdict") == {
        ("contoso", "orders", "delivered"),
        ("contoso", "invoices", "waiting"),
        ("tailspin", "orders", "waiting"),
    }


def test_the_time_axis_includes_operations_that_failed(spark: SparkSession) -> None:
    end = NOON + timedelta(seconds=30)
    records = silver_frame(
        spark,
        record("a", "send"),
        record("b", "divert", at=NOON + timedelta(seconds=9)),
        record("b", "complete", "failed", on_backlog=True, at=end),
        record("c", "receive", at=end + timedelta(seconds=30)),
    )
    sends, depth = over_time(records, depth_before=2)
    assert (sends.start_s, sends.width_s, len(sends.values["primary"])) == (NOON.timestamp(), 1, 31)
    assert {name: sum(values) for name, values in sends.values.items()} == {
        "primary": 1, "backlog": 1, "spool": 0, "refused": 0,
    }  # fmt: skip
    assert depth.values["messages in backlogs"] == [2.0] * 9 + [3.0] * 22


def test_availability_counts_a_refused_message_once(spark: SparkSession) -> None:
    daily = frame(
        spark,
        schemas.OPERATIONS_DAILY,
        [
            {"operation": "send", "route": "primary", "operations": 6},
            {"operation": "divert", "route": "backlog", "operations": 2},
            {"operation": "spool", "route": "spool", "operations": 1},
            {"operation": "divert", "route": "spool", "operations": 1},
            {"operation": "send", "route": "primary", "operations": 50, "outcome": "failed"},
        ],
        primary="contoso",
        target="orders",
        role="client",
        outcome="ok",
        day=NOON.date(),
    )
    refused = frame(
        spark,
        schemas.MESSAGES,
        [
            {"accepted": 0, "failed": 50, "refused": 50},
            {"accepted": 1, "failed": 1, "refused": 1},
            {"accepted": 0, "failed": 3, "refused": 0},  # restores of a syphon, whose client's records are not here
        ],
        primary="contoso",
        target="orders",
        day=NOON.date(),
    )
    (row,) = gold.availability(daily, refused).collect()
    assert (row["offered"], row["accepted"], row["accepted_by_primary"]) == (10, 9, 6)
    assert (row["with_pairing"], row["without_pairing"]) == (0.9, 0.6)


def test_a_persisted_frame_stays_cached_after_a_query(spark: SparkSession) -> None:
    records = frame(spark, schemas.SILVER, [{"n": n} for n in range(3)], process="p").persist()
    try:
        assert query("numbers", {"records": records}).collect()
        assert records.storageLevel.useMemory
        again = query("numbers", {"records": records})
        assert "InMemoryTableScan" in str(again._jdf.queryExecution().executedPlan().toString())
    finally:
        records.unpersist()
