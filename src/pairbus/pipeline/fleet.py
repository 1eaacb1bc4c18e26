"""A fleet to simulate, and one simulated period of it.

A TOML file describes the fleet:

    clients = 1_000                  # paired clients
    entities = 3                     # queues and topics each of them sends to
    messages_per_second = 0.5        # of one client to one entity
    message_bytes = 2_000

    [pairing]                        # the pairing's options; a list is a sweep: every combination is simulated
    failover_interval_seconds = [0, 60, 600]
    ping_interval_seconds = 60

    [[outages]]
    scope = "namespace"              # "entity": one entity; "namespace": the primary; "both": both namespaces
    per_30_days = 0.5                # how often, on average
    mean_minutes = 45                # how long, on average

Each entity of a client is a `pairbus.failover.EntityMachine`, driven by the sends that fail, its own deadlines and the
results of its pings; there is no second model of the states. Only its surroundings are simplified: clients send at a
steady rate, each at a random phase; a send during an outage fails at once; the syphon carries messages home in order,
at a steady rate, as soon as the outage is over.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
import random
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, Literal, get_args

from msgspec import Meta, Struct, field
from msgspec.structs import fields, replace

from pairbus.costs import Tariff, Usage, bill, units
from pairbus.costs.estimate import HOURS_PER_MONTH, IDLE_RECEIVES_PER_HOUR
from pairbus.costs.rules import TRANSIT_OPERATIONS
from pairbus.errors import UsageError
from pairbus.failover.states import Action, EntityMachine, EntityState, Event, EventKind, FailoverRules
from pairbus.toml import TomlError, convert_toml, read_toml

MAX_CHOICES = 10_000
Scope = Literal["entity", "namespace", "both"]


class FleetError(UsageError, ValueError):
    """The fleet cannot be simulated; the text names the file, the key, its value and what was expected."""


def _check_ranges(options: Struct) -> None:
    """Check the ranges of values that Python code gives: msgspec checks only what it decodes."""
    for name, limits in _limits(type(options)):
        value = getattr(options, name)
        is_enough = value >= limits.ge if limits.gt is None else value > limits.gt
        if not (is_enough and value <= limits.le):  # true for nan as well
            least = f"from {limits.ge:,} to" if limits.gt is None else f"above {limits.gt:,}, at most"
            raise FleetError(f"{name} is {value!r}: expected a number {least} {limits.le:,}.")


@functools.cache
def _limits(kind: type[Struct]) -> list[tuple[str, Any]]:
    return [
        (option.name, option.type.__metadata__[0]) for option in fields(kind) if hasattr(option.type, "__metadata__")
    ]


class OutageKind(Struct, frozen=True, forbid_unknown_fields=True):
    """A kind of outage. Outages are independent, and their durations are exponentially distributed."""

    scope: Scope
    per_30_days: Annotated[float, Meta(ge=0, le=10_000)]
    mean_minutes: Annotated[float, Meta(gt=0, le=1_000_000)]

    def __post_init__(self) -> None:
        if self.scope not in get_args(Scope):
            raise FleetError(f"scope is {self.scope!r}: expected one of {', '.join(get_args(Scope))}.")
        _check_ranges(self)


class PairingChoice(Struct, frozen=True, forbid_unknown_fields=True):
    """The options that a sweep can vary."""

    failover_interval_seconds: Annotated[float, Meta(ge=0, le=3600)] = 60.0
    ping_interval_seconds: Annotated[float, Meta(ge=1, le=1800)] = 60.0
    recovery_pings: Annotated[int, Meta(ge=1, le=1000)] = 1
    divert_during_interval: bool = False
    backlog_queue_count: Annotated[int, Meta(ge=1, le=10_000)] = 10
    syphons: Annotated[int, Meta(ge=1, le=10_000)] = 1
    syphon_messages_per_second: Annotated[float, Meta(ge=0.001, le=1_000_000_000)] = 2_000.0
    spool: bool = False

    def __post_init__(self) -> None:
        _check_ranges(self)


class FleetPlan(Struct, frozen=True, forbid_unknown_fields=True):
    """The simulation: `runs` times `days` days for each choice of options."""

    clients: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    entities: Annotated[int, Meta(ge=1, le=10_000)] = 1
    messages_per_second: Annotated[float, Meta(ge=1e-6, le=1_000_000)] = 1.0
    message_bytes: Annotated[int, Meta(ge=0, le=100 * 1024 * 1024)] = 1024
    days: Annotated[float, Meta(ge=0.01, le=3660)] = 30.0
    runs: Annotated[int, Meta(ge=1, le=1_000_000)] = 200
    seed: int = 1
    clients_per_outage: Annotated[int, Meta(ge=1, le=1_000_000)] = 50
    """Clients that are simulated one by one in each outage. The others behave like them: clients differ only in the
    times at which they send."""
    tariff: str = "azure-usd"
    plan: str = "standard"
    outages: tuple[OutageKind, ...] = (OutageKind("namespace", 0.5, 45.0),)
    choices: tuple[PairingChoice, ...] = field(default=(PairingChoice(),), name="pairing")

    def __post_init__(self) -> None:
        _check_ranges(self)


def parse_fleet(raw: bytes | str, where: str, *, runs: int | None = None) -> FleetPlan:
    """Parse a fleet file; `where` names it in errors. `runs` replaces the number in the file."""
    try:
        content = read_toml(raw, where=f"The fleet {where}")
    except TomlError as error:
        raise FleetError(str(error)) from error
    if runs is not None:
        content["runs"] = runs
    combinations = _combinations(content.pop("pairing", {}), where)
    try:
        plan = convert_toml(content, FleetPlan, where=where)
        choices = [convert_toml(options, PairingChoice, where=f"{where}: pairing") for options in combinations]
    except TomlError as error:
        raise FleetError(str(error)) from error
    return replace(plan, choices=tuple(choices))


def _combinations(pairing: Any, where: str) -> list[dict[str, Any]]:
    """Every combination of the options that are lists."""
    if not isinstance(pairing, dict):
        raise FleetError(f"{where}: pairing is {str(pairing)[:60]}: expected a table, [pairing].")
    options = [value if isinstance(value, list) else [value] for value in pairing.values()]
    empty = [name for name, value in pairing.items() if value == []]
    if empty:
        raise FleetError(f"{where}: pairing: {empty[0]} is an empty list: give at least one value.")
    if (count := math.prod(map(len, options))) > MAX_CHOICES:
        raise FleetError(
            f"{where}: the lists in pairing make {count:,} combinations: at most {MAX_CHOICES:,} are allowed."
        )
    return [dict(zip(pairing, values, strict=True)) for values in itertools.product(*options)]


_STEPS = 200
"""Equal parts of a backlog whose waiting times are computed."""


@dataclass(frozen=True, slots=True)
class ClientOutage:
    """One outage as one entity of one client saw it. Times are seconds from the start of the outage."""

    refused: int
    diverted: int
    pings: int
    failed_over_at: float | None
    healthy_at: float


@dataclass(slots=True)
class RunResult:
    """The result of one simulated period. Amounts are for 30 days."""

    outages: int
    offered: float
    refused: float = 0.0
    refused_without_pairing: float = 0.0
    diverted: float = 0.0
    spooled: float = 0.0
    pings: float = 0.0
    backlog_peak: float = 0.0
    drain_seconds: float = 0.0
    """The longest time from the end of an outage to an empty backlog."""
    wait_mean_seconds: float = 0.0
    wait_p99_seconds: float = 0.0
    amount: float = 0.0
    amount_without_pairing: float = 0.0

    @property
    def availability(self) -> float:
        return _availability(self.refused, self.offered)

    @property
    def availability_without_pairing(self) -> float:
        return _availability(self.refused_without_pairing, self.offered)


def _availability(refused: float, offered: float) -> float:
    # `offered` is an average, but clients send whole messages: in a period that is all outage, a few more are refused.
    return max(0.0, 1 - refused / offered)


def play_outage(rules: FailoverRules, seconds: float, rate: float, phase: float) -> ClientOutage:
    """Simulate one entity in an outage of `seconds`. It sends every 1/`rate` seconds, first at `phase`."""
    gap = 1 / rate
    entity = EntityMachine(rules)
    now = phase
    if now >= seconds:
        return ClientOutage(0, 0, 0, None, now)
    decision = entity.handle(Event(EventKind.SEND_FAILED, "outage", entity.era), now)
    diverted, refused = (1, 0) if decision.divert else (0, 1)
    sends = 1
    failed_over_at = now if entity.state is EntityState.FAILED_OVER else None
    pings = 0
    while entity.state is not EntityState.HEALTHY:
        deadline = entity.next_deadline
        assert deadline is not None
        if entity.state is EntityState.SUSPECT:
            # The first send after the outage makes it healthy, unless the timer runs out before.
            success = phase + max(sends, math.ceil((seconds - phase) / gap)) * gap
            now = min(success, deadline)
            passed = _sends_before(now, phase, gap) - sends
            sends += passed
            if rules.divert_during_interval:
                diverted += passed
            else:
                refused += passed
            kind = EventKind.SEND_SUCCEEDED if success < deadline else EventKind.DEADLINE
            changed = entity.handle(Event(kind, "outage", entity.era), now).transitions
            if changed and changed[-1].after is EntityState.FAILED_OVER:
                failed_over_at = now
        else:
            now = deadline
            if entity.handle(Event(EventKind.DEADLINE), now).action is Action.SEND_PING:
                pings += 1
                kind = EventKind.PING_SUCCEEDED if now >= seconds else EventKind.PING_FAILED
                entity.handle(Event(kind, era=entity.era), now)
    if failed_over_at is not None:
        diverted += _sends_before(now, phase, gap) - sends
    return ClientOutage(refused, diverted, pings, failed_over_at, now)


def _sends_before(now: float, phase: float, gap: float) -> int:
    """The number of sends in [phase, now)."""
    return max(0, math.ceil((now - phase) / gap - 1e-9))


def play_run(plan: FleetPlan, choice: PairingChoice, tariff: Tariff, run: int) -> RunResult:
    """Simulate one period. A run has the same outages for every choice, so that choices can be compared."""
    drawn = _draw_outages(plan, run)
    rules = FailoverRules(
        failover_interval=choice.failover_interval_seconds,
        ping_interval=choice.ping_interval_seconds,
        recovery_pings=choice.recovery_pings,
        divert_during_interval=choice.divert_during_interval,
    )
    offered = plan.clients * plan.entities * plan.messages_per_second * plan.days * 86400
    result = RunResult(len(drawn), offered)
    waits: list[tuple[float, float]] = []
    for number, (kind, seconds) in enumerate(drawn):
        phases = random.Random(f"{plan.seed}/{run}/{number}")  # noqa: S311 - seeded on purpose
        waits += _add_outage(result, plan, choice, rules, kind, seconds, phases)
    if waits:
        waits.sort()
        messages = sum(count for _, count in waits)
        result.wait_mean_seconds = sum(seconds * count for seconds, count in waits) / messages
        result.wait_p99_seconds = waits[min(len(waits) - 1, int(len(waits) * 0.99))][0]
    result.amount, result.amount_without_pairing = _amounts(plan, choice, tariff, result)
    return result


def _draw_outages(plan: FleetPlan, run: int) -> list[tuple[OutageKind, float]]:
    """The outages of a run with their seconds. Outages of an entity do not overlap and end with the period."""
    chance = random.Random(f"{plan.seed}/{run}")  # noqa: S311 - seeded on purpose
    drawn = [
        (kind, chance.expovariate(1 / (kind.mean_minutes * 60)))
        for kind in plan.outages
        for _ in range(_poisson(chance, kind.per_30_days * plan.days / 30))
    ]
    period = plan.days * 86400
    left = period * plan.entities
    fitting = []
    for kind, seconds in drawn:
        entities = 1 if kind.scope == "entity" else plan.entities
        lasting = min(seconds, period, left / entities)
        if lasting > 0:
            fitting.append((kind, lasting))
            left -= lasting * entities
    return fitting


def _add_outage(
    totals: RunResult,
    plan: FleetPlan,
    choice: PairingChoice,
    rules: FailoverRules,
    kind: OutageKind,
    seconds: float,
    chance: random.Random,
) -> list[tuple[float, float]]:
    """Simulate one outage for some clients and count it for all; returns waiting times, each with its messages."""
    affected = plan.clients * (1 if kind.scope == "entity" else plan.entities)
    played = min(affected, plan.clients_per_outage)
    weight = affected / played
    gap = 1 / plan.messages_per_second
    results = [
        # One random phase in each equal part of the gap: spread like those of all clients, with less noise.
        play_outage(rules, seconds, plan.messages_per_second, gap * (i + chance.random()) / played)
        for i in range(played)
    ]
    totals.refused_without_pairing += affected * seconds * plan.messages_per_second
    diverted = weight * sum(result.diverted for result in results)
    totals.refused += weight * sum(result.refused for result in results)
    totals.pings += weight * sum(result.pings for result in results)
    if kind.scope == "both":
        # Neither namespace accepts anything during the outage: messages are spooled, or refused.
        during = weight * sum(
            _share(result, seconds) * result.diverted for result in results if result.failed_over_at is not None
        )
        if choice.spool:
            totals.spooled += during
        else:
            totals.refused += during
            diverted -= during
    totals.diverted += diverted
    earliest = seconds if kind.scope == "both" and not choice.spool else 0.0
    return _drain(totals, choice, plan.messages_per_second * weight, results, seconds, earliest)


def _share(result: ClientOutage, seconds: float) -> float:
    """The share of a client's failed-over time that lies within the outage."""
    assert result.failed_over_at is not None
    length = result.healthy_at - result.failed_over_at
    return min(1.0, max(0.0, seconds - result.failed_over_at) / length) if length > 0 else 1.0


def _drain(
    totals: RunResult,
    choice: PairingChoice,
    rate: float,
    results: list[ClientOutage],
    seconds: float,
    earliest: float,
) -> list[tuple[float, float]]:
    """Follow the backlog; returns waiting times, each with its number of messages.

    It fills while clients are failed over, but not before `earliest`, and drains in order once the outage is over.
    """
    starts = sorted(max(earliest, r.failed_over_at) for r in results if r.failed_over_at is not None)
    ends = sorted(max(earliest, r.healthy_at) for r in results if r.failed_over_at is not None)
    if not starts:
        return []
    moments = sorted({*starts, *ends, seconds})
    filled = [0.0]
    for before, after in itertools.pairwise(moments):
        active = bisect.bisect_right(starts, before) - bisect.bisect_right(ends, before)
        filled.append(filled[-1] + active * rate * (after - before))
    total = filled[-1]
    if total <= 0:
        return []
    speed = choice.syphons * choice.syphon_messages_per_second
    waits, done = [], seconds
    for step in range(_STEPS):
        position = total * (step + 0.5) / _STEPS
        arrived = _arrival_time(moments, filled, position)
        done = max(arrived, done) + total / _STEPS / speed
        waits.append((done - arrived, total / _STEPS))
    totals.drain_seconds = max(totals.drain_seconds, done - seconds)
    totals.backlog_peak = max(totals.backlog_peak, filled[moments.index(seconds)])
    return waits


def _arrival_time(moments: list[float], filled: list[float], position: float) -> float:
    """When the message at this position entered the backlog."""
    right = min(len(filled) - 1, bisect.bisect_left(filled, position))
    left = max(0, right - 1)
    if filled[right] == filled[left]:
        return moments[right]
    part = (position - filled[left]) / (filled[right] - filled[left])
    return moments[left] + part * (moments[right] - moments[left])


def _amounts(plan: FleetPlan, choice: PairingChoice, tariff: Tariff, totals: RunResult) -> tuple[float, float]:
    """The cost of 30 days: of both namespaces with the pairing, and of the primary alone without it."""
    prices = tariff.plan(plan.plan)
    per_30_days = 30 / plan.days
    each = units(plan.message_bytes)
    half = TRANSIT_OPERATIONS // 2
    direct = (totals.offered - totals.refused - totals.diverted) * 2 * each
    idle = choice.syphons * choice.backlog_queue_count * IDLE_RECEIVES_PER_HOUR * HOURS_PER_MONTH
    primary = (direct + totals.diverted * half * each + totals.pings) * per_30_days
    secondary = totals.diverted * half * each * per_30_days + idle + choice.backlog_queue_count
    alone = (totals.offered - totals.refused_without_pairing) * 2 * each * per_30_days
    units_in_use = 1 if prices.messaging_unit_per_hour else 0

    def cost(operations: float) -> Decimal:
        usage = Usage(max(0, round(operations)), hours=HOURS_PER_MONTH, messaging_units=units_in_use)
        return bill(prices, usage).total

    return float(cost(primary) + cost(secondary)), float(cost(alone))


def _poisson(chance: random.Random, mean: float) -> int:
    """The number of events of a Poisson process in one period, found by adding up the gaps between them."""
    count, passed = 0, chance.expovariate(1.0)
    while passed < mean:
        count += 1
        passed += chance.expovariate(1.0)
    return count
