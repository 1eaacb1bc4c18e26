"""Silver records to gold tables. Functions of frames; each returns the columns that `schemas` has for its table."""

from __future__ import annotations

import calendar
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from decimal import Decimal
from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from pairbus.costs import ACCEPTED, FlowName, Plan, Tariff, Usage, added_amount, bill, shipped_tariffs, tariff_for
from pairbus.ledger.records import LEDGER_OPERATIONS, Operation, Outcome, Role
from pairbus.pipeline.schemas import (
    AVAILABILITY,
    BILLS,
    EPISODE_MESSAGES,
    EPISODES,
    OPERATIONS_DAILY,
    PAIRING_COST,
    TRANSITIONS,
    WAITING,
)
from pairbus.pipeline.silver import flow_column, rule_column, utc_day

_HOST = r"^([^.:]+)\.servicebus\.[^:]*(:[0-9]+)?$"
_TAKING = (Operation.RECEIVE.value, Operation.PEEK.value)


@dataclass(frozen=True, slots=True)
class Pricing:
    """The tariff and the plans that bills are made with."""

    tariffs: tuple[Tariff, ...] = ()
    """The user's own tariffs, in addition to those in this package."""
    tariff: str = "azure-usd"
    plan: str = "standard"
    plans: Mapping[str, str] = field(default_factory=dict)
    """Plans of namespaces that differ from `plan`."""
    messaging_units: int = 1
    connections: Mapping[str, Decimal | int] = field(default_factory=dict)
    """Brokered connections of namespaces in a month; no ledger knows them."""

    @property
    def kept(self) -> Pricing:
        """The same without unused tariffs. The tables keep it, so that later bills are made with the same prices.

        Tariffs of this package are not kept: a later version may have newer prices.
        """
        return replace(self, tariffs=tuple(tariff for tariff in self.tariffs if tariff.name == self.tariff))

    def of(self, namespace: str, month: date) -> tuple[Tariff, Plan]:
        tariff = tariff_for((*shipped_tariffs(), *self.tariffs), self.tariff, month)
        plans = {short_name(name): plan for name, plan in self.plans.items()}
        return tariff, tariff.plan(plans.get(namespace, self.plan))

    def connections_of(self, namespace: str) -> Decimal | int:
        return {short_name(name): count for name, count in self.connections.items()}.get(namespace, 0)

    def unknown_names(self, namespaces: Collection[str]) -> list[str]:
        """Names with plans or connections that none of these namespaces has."""
        return sorted(name for name in {*self.plans, *self.connections} if short_name(name) not in namespaces)


def short_name(namespace: str) -> str:
    """The name of a namespace: the first label of a Service Bus host, in any cloud; any other name is kept."""
    return re.sub(_HOST, r"\1", namespace.lower())


def operations_daily(silver: DataFrame) -> DataFrame:
    """Operations and billed units, by every dimension."""
    words = [operation.value for operation in LEDGER_OPERATIONS | {Operation.TRANSITION}]
    # Only independent columns: the others are functions of these. Sums of fixed width stay in a hash table.
    kinds = ("day", "namespace", "entity", "primary", "target", "role", "operation", "route", "outcome", "address")
    # Some clients know a namespace by its host, some by its name. It has one bill.
    named = silver.withColumn("namespace", f.regexp_replace("namespace", _HOST, "$1"))
    done = named.where(~f.col("operation").isin(words))
    grouped = done.groupBy(*kinds, "on_backlog").agg(
        f.count("*").alias("operations"),
        f.sum("billed").alias("billed"),
        f.sum("bytes").alias("bytes"),
        f.sum("latency_us").alias("latency_us_sum"),
        f.max("latency_us").alias("latency_us_max"),
    )
    # A namespace that keeps its own ledger has counted the operations of all clients, so their records would count
    # twice. It does not record receives and peeks without a message.
    own = f.col("role") == Role.NAMESPACE.value
    counted_itself = f.max(own).over(Window.partitionBy("day", "namespace"))
    unseen = f.col("operation").isin(*_TAKING) & (f.col("outcome") == Outcome.EMPTY.value)
    return (
        grouped.withColumn("namespace", _own_name())
        .withColumn("cause", rule_column(lambda rule: rule.cause))
        .withColumn("in_bill", own | ~counted_itself | unseen)
        .select(*OPERATIONS_DAILY.names)
    )


def _own_name() -> Column:
    """The name that a namespace has in its own ledger, where clients know only its address."""
    known = f.struct(f.col("address").alias("address"), f.col("namespace").alias("name"))
    of_day = f.collect_set(f.when(f.col("address").isNotNull(), known)).over(Window.partitionBy("day"))
    here = f.filter(f.array_sort(of_day), lambda one: one["address"] == f.col("namespace"))
    return f.coalesce(f.get(here, f.lit(0))["name"], f.col("namespace"))


def transitions(silver: DataFrame) -> DataFrame:
    changes = silver.where(f.col("operation") == Operation.TRANSITION.value)
    return changes.withColumn("episode", f.coalesce("episode", f.lit("unknown"))).select(*TRANSITIONS.names)


def episode_messages(audit: DataFrame) -> DataFrame:
    return (
        audit.where(f.col("episode").isNotNull())
        .groupBy("episode", "day")
        .agg(
            f.count("*").alias("diverted"),
            f.count("home_at").alias("home"),
            f.count(f.when(f.col("waiting") > 0, 1)).alias("waiting"),
            f.min("diverted_at").alias("first_diverted_at"),
            f.max("home_at").alias("last_home_at"),
        )
        .select(*EPISODE_MESSAGES.names)
    )


def episodes(transitions: DataFrame, episode_messages: DataFrame) -> DataFrame:
    """Each failover from its first transition to its last, with its diverted messages."""
    order = f.struct("at", "n")
    to = f.col("state_to")
    failovers = transitions.groupBy("primary", "target", "process", "episode").agg(
        f.min(f.when(to == "suspect", f.col("at"))).alias("suspect_at"),
        f.min(f.when(to == "failed over", f.col("at"))).alias("failed_over_at"),
        f.min_by("cause", order).alias("cause"),
        f.max_by(f.struct("state_to", "at", "cause"), order).alias("last"),
        utc_day(f.min("at")).alias("day"),
    )
    over = f.col("last.state_to") == "healthy"
    carried = episode_messages.groupBy("episode").agg(
        *(f.sum(name).alias(name) for name in ("diverted", "home", "waiting")),
        f.min("first_diverted_at").alias("first_diverted_at"),
        f.max("last_home_at").alias("last_home_at"),
    )
    whole = (
        failovers.withColumn("healthy_at", f.when(over, f.col("last.at")))
        .withColumn("ended_by", f.when(over, f.col("last.cause")))
        .join(carried, "episode", "left")
        .fillna(0, ["diverted", "home", "waiting"])
    )
    drained = (f.col("waiting") == 0) & (f.col("diverted") > 0)
    return (
        whole.withColumn("failed_over_seconds", _seconds("failed_over_at", "healthy_at"))
        .withColumn("seconds_to_first_backlog_message", _seconds("failed_over_at", "first_diverted_at"))
        .withColumn("seconds_to_drained", f.when(drained, _seconds("healthy_at", "last_home_at")))
        .select(*EPISODES.names)
    )


def waiting(audit: DataFrame) -> DataFrame:
    """How long messages waited. Clocks of two processes may differ, so a negative wait counts as 0."""
    seconds = f.when(f.col("home_at").isNotNull(), f.greatest(f.lit(0.0), _seconds("diverted_at", "home_at")))
    waited = audit.where(f.col("diverted_at").isNotNull()).withColumn("seconds", seconds)
    # Summed as whole microseconds: a sum of fractions depends on the row order, and builds must be repeatable.
    microseconds = f.sum(f.round(f.col("seconds") * 1_000_000).cast("long"))
    at = (50, 90, 99)
    percentiles = f.percentile("seconds", f.array(*(f.lit(p / 100) for p in at))).alias("percentiles")
    return (
        waited.groupBy("day", "primary", "target")
        .agg(
            f.count("seconds").alias("messages"),
            f.count(f.when(f.col("waiting") > 0, 1)).alias("still_waiting"),
            (f.try_divide(microseconds, f.count("seconds")) / 1_000_000).alias("mean_seconds"),
            percentiles,
            f.max("seconds").alias("max_seconds"),
        )
        .withColumns({f"p{p}_seconds": f.get("percentiles", f.lit(i)) for i, p in enumerate(at)})
        .select(*WAITING.names)
    )


def availability(operations: DataFrame, messages: DataFrame) -> DataFrame:
    """The share of sends that were accepted.

    A message that was refused and never accepted counts once, however often it was sent. A failed restore is not a
    refused send.
    """
    entity, sums = ("day", "primary", "target"), ("accepted", "accepted_by_primary", "refused")
    of_clients = f.col("role") != Role.NAMESPACE.value
    direct = f.when(flow_column(FlowName.PRIMARY), f.col("operations")).otherwise(0)
    accepted = operations.where(of_clients & flow_column(*ACCEPTED)).select(
        *entity, f.col("operations").alias("accepted"), direct.alias("accepted_by_primary"), f.lit(0).alias("refused")
    )
    never = (f.col("accepted") == 0) & (f.col("refused") > 0)
    refused = messages.where(never).select(*entity, *(f.lit(int(name == "refused")).alias(name) for name in sums))
    summed = (
        accepted.unionByName(refused)
        .groupBy(*entity)
        .agg(*(f.sum(name).alias(name) for name in sums))
        .withColumn("offered", f.col("accepted") + f.col("refused"))
    )
    return (
        summed.withColumn("with_pairing", f.col("accepted") / f.col("offered"))
        .withColumn("without_pairing", f.col("accepted_by_primary") / f.col("offered"))
        .select(*AVAILABILITY.names)
    )


def bills(operations: DataFrame, pricing: Pricing) -> DataFrame:
    """The bill of each namespace and calendar month. Each namespace is assumed to exist for the whole month."""
    rows: list[dict[str, Any]] = []
    for month in _monthly(operations).collect():
        tariff, plan = pricing.of(month["namespace"], month["month"])
        hours = 24 * calendar.monthrange(month["month"].year, month["month"].month)[1]
        units = pricing.messaging_units if plan.messaging_unit_per_hour else 0
        usage = Usage(month["billed"], hours, pricing.connections_of(month["namespace"]), units)
        rows.extend(
            {
                "namespace": month["namespace"],
                "month": month["month"],
                "what": line.what,
                "quantity": line.quantity,
                "price": line.price,
                "amount": line.amount,
                "currency": tariff.currency,
                "tariff": f"{tariff.name} of {tariff.valid_from.isoformat()}",
                "plan": plan.name,
                "day": month["month"],
            }
            for line in bill(plan, usage).lines
        )
    return operations.sparkSession.createDataFrame(rows, BILLS.schema).coalesce(1)


def pairing_cost(operations: DataFrame, pricing: Pricing) -> DataFrame:
    """The operations that pairing added, by cause, and their price on top of the rest of the month.

    The application's receive of a restored message looks like any other, so it is counted as its restore. Where
    receivers do not record, it is added to the month's total, because it counts towards the price steps. A namespace's
    own ledger does not know which sends are restores, and client ledgers may be missing: the larger count is used.
    """
    counted = operations.where(f.col("cause").isNotNull())
    received_again = counted.where(f.col("operation") == Operation.RESTORE.value)
    own = f.col("role") == Role.NAMESPACE.value
    by_cause = (
        counted.unionByName(received_again)
        .groupBy("namespace", f.trunc("day", "month").alias("month"), "cause")
        .agg(f.greatest(f.sum(f.when(own, f.col("billed"))), f.sum(f.when(~own, f.col("billed")))).alias("billed"))
    )
    totals = {(row["namespace"], row["month"]): int(row["billed"]) for row in _monthly(operations).collect()}
    unrecorded = {
        (row["namespace"], row["month"]): int(row["billed"]) for row in _unrecorded_receives(operations).collect()
    }
    causes: dict[tuple[str, date], dict[str, int]] = {}
    for row in by_cause.where("billed > 0").collect():
        causes.setdefault((row["namespace"], row["month"]), {})[row["cause"]] = int(row["billed"])
    rows: list[dict[str, Any]] = []
    for (namespace, month), parts in causes.items():
        tariff, plan = pricing.of(namespace, month)
        added = sum(parts.values())
        of_month = totals.get((namespace, month), 0) + unrecorded.get((namespace, month), 0)
        total = added_amount(plan, max(0, of_month - added), added)
        for cause, billed in parts.items():
            rows.append(
                {
                    "namespace": namespace,
                    "month": month,
                    "cause": cause,
                    "billed": billed,
                    "amount": (total * billed / Decimal(added)).quantize(Decimal("1e-12")),
                    "currency": tariff.currency,
                    "day": month,
                }
            )
    return operations.sparkSession.createDataFrame(rows, PAIRING_COST.schema).coalesce(1)


def _unrecorded_receives(operations: DataFrame) -> DataFrame:
    """Receives of restored messages without a record: the restores of an entity beyond its receives."""
    received = (f.col("operation") == Operation.RECEIVE.value) & (f.col("outcome") == Outcome.OK.value)
    restores = f.sum(f.when(f.col("operation") == Operation.RESTORE.value, f.col("billed")).otherwise(0))
    receives = f.sum(f.when(received & f.col("in_bill"), f.col("billed")).otherwise(0))
    return (
        operations.groupBy(
            "namespace",
            f.trunc("day", "month").alias("month"),
            f.substring_index("entity", "/subscriptions/", 1).alias("entity"),
        )
        .agg(f.greatest(f.lit(0), restores - receives).alias("billed"))
        .groupBy("namespace", "month")
        .agg(f.sum("billed").alias("billed"))
    )


def _monthly(operations: DataFrame) -> DataFrame:
    return (
        operations.where(f.col("in_bill") & (f.col("namespace") != ""))
        .groupBy("namespace", f.trunc("day", "month").alias("month"))
        .agg(f.sum("billed").alias("billed"))
    )


def _seconds(start: str, end: str) -> Column:
    return (f.unix_micros(end) - f.unix_micros(start)) / f.lit(1_000_000.0)
