"""Silver records to gold tables. Functions of frames; each returns the columns that `schemas` has for its table.

Each table has its query in the folder `sql`; billing rules and prices are applied here.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import date
from decimal import Decimal
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from pairbus.costs import ACCEPTED, FlowName, Plan, Tariff, Usage, added_amount, bill, shipped_tariffs, tariff_for
from pairbus.ledger.records import Operation
from pairbus.pipeline.queries import query
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
from pairbus.pipeline.silver import flow_column, rule_column

_HOST = r"^([^.:]+)\.servicebus\.[^:]*(:[0-9]+)?$"


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
    counted = query("operations_daily", {"silver": silver}, host=_HOST)
    return counted.withColumn("cause", rule_column(lambda rule: rule.cause)).select(*OPERATIONS_DAILY.names)


def transitions(silver: DataFrame) -> DataFrame:
    changes = silver.where(f.col("operation") == Operation.TRANSITION.value)
    return changes.withColumn("episode", f.coalesce("episode", f.lit("unknown"))).select(*TRANSITIONS.names)


def episode_messages(audit: DataFrame) -> DataFrame:
    return query("episode_messages", {"audit": audit}).select(*EPISODE_MESSAGES.names)


def episodes(transitions: DataFrame, episode_messages: DataFrame) -> DataFrame:
    frames = {"transitions": transitions, "episode_messages": episode_messages}
    return query("episodes", frames).select(*EPISODES.names)


def waiting(audit: DataFrame) -> DataFrame:
    return query("waiting", {"audit": audit}).select(*WAITING.names)


def availability(operations: DataFrame, messages: DataFrame) -> DataFrame:
    flows = {"is_accepted": flow_column(*ACCEPTED), "is_direct": flow_column(FlowName.PRIMARY)}
    frames = {"operations": operations.withColumns(flows), "messages": messages}
    return query("availability", frames).select(*AVAILABILITY.names)


def bills(operations: DataFrame, pricing: Pricing) -> DataFrame:
    """The bill of each namespace and calendar month. Each namespace is assumed to exist for the whole month."""
    rows: list[dict[str, Any]] = []
    for namespace, month, billed, _, _ in query("months", {"operations": operations}).where("billed >= 0").collect():
        tariff, plan = pricing.of(namespace, month)
        hours = 24 * calendar.monthrange(month.year, month.month)[1]
        units = pricing.messaging_units if plan.messaging_unit_per_hour else 0
        usage = Usage(billed, hours, pricing.connections_of(namespace), units)
        rows.extend(
            {
                "namespace": namespace,
                "month": month,
                "currency": tariff.currency,
                "tariff": f"{tariff.name} of {tariff.valid_from.isoformat()}",
                "plan": plan.name,
                "day": month,
                **asdict(line),
            }
            for line in bill(plan, usage).lines
        )
    return operations.sparkSession.createDataFrame(rows, BILLS.schema).coalesce(1)


def pairing_cost(operations: DataFrame, pricing: Pricing) -> DataFrame:
    """The operations that pairing added, by cause, and their price on top of the rest of the month.

    Receives of restored messages that nobody recorded are added to the month's total, because they count towards the
    price steps.
    """
    rows: list[dict[str, Any]] = []
    months = query("months", {"operations": operations}).where("causes is not null")
    for namespace, month, billed, unrecorded, causes in months.collect():
        tariff, plan = pricing.of(namespace, month)
        added = sum(causes.values())
        total = added_amount(plan, max(0, (billed or 0) + unrecorded - added), added)
        rows.extend(
            {
                "namespace": namespace,
                "month": month,
                "cause": cause,
                "billed": count,
                "amount": (total * count / Decimal(added)).quantize(Decimal("1e-12")),
                "currency": tariff.currency,
                "day": month,
            }
            for cause, count in causes.items()
        )
    return operations.sparkSession.createDataFrame(rows, PAIRING_COST.schema).coalesce(1)
