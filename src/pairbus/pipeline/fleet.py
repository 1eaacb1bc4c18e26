"""A fleet to simulate, as a TOML file describes it.

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
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from pairbus.toml import read_toml

SCOPES = ("entity", "namespace", "both")
MOST_OUTAGES = 10_000
LONGEST_MINUTES = 1_000_000
MOST_CHOICES = 10_000


class FleetError(ValueError):
    """A fleet that cannot be simulated; the text names the field, the value and what was expected."""


@dataclass(frozen=True, slots=True)
class OutageKind:
    """Outages of one kind come independently of each other, and each lasts exponentially long."""

    scope: str
    per_30_days: float
    mean_minutes: float

    def __post_init__(self) -> None:
        if self.scope not in SCOPES:
            raise FleetError(f"An outage's scope is {self.scope!r}; it must be one of {', '.join(SCOPES)}.")
        if not 0 <= self.per_30_days <= MOST_OUTAGES or not 0 < self.mean_minutes <= LONGEST_MINUTES:
            raise FleetError(
                f"An outage of scope {self.scope} comes {self.per_30_days} times for {self.mean_minutes} minutes; "
                f"give per_30_days from 0 to {MOST_OUTAGES:,} and mean_minutes above 0, at most {LONGEST_MINUTES:,}."
            )


@dataclass(frozen=True, slots=True)
class PairingChoice:
    """The options that a sweep can vary."""

    failover_interval_seconds: float = 60.0
    ping_interval_seconds: float = 60.0
    recovery_pings: int = 1
    divert_during_interval: bool = False
    backlog_queue_count: int = 10
    syphons: int = 1
    syphon_messages_per_second: float = 2_000.0
    spool: bool = False

    def __post_init__(self) -> None:
        for name, least, most in (
            ("failover_interval_seconds", 0, 3600),
            ("ping_interval_seconds", 1, 1800),
            ("recovery_pings", 1, 1000),
            ("backlog_queue_count", 1, 10_000),
            ("syphons", 1, 10_000),
            ("syphon_messages_per_second", 0.001, 1e9),
        ):
            value = getattr(self, name)
            if not least <= value <= most:
                raise FleetError(f"The pairing's {name} is {value!r}; it must be from {least} to {most}.")


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """What is simulated: `runs` times `days` days for each choice of options."""

    clients: int = 1
    entities: int = 1
    messages_per_second: float = 1.0
    message_bytes: int = 1024
    days: float = 30.0
    runs: int = 200
    seed: int = 1
    clients_per_outage: int = 50
    """Clients that are played one by one in each outage; the others behave like them. They differ only in
    when they happen to send."""
    tariff: str = "azure-usd"
    plan: str = "standard"
    outages: tuple[OutageKind, ...] = (OutageKind("namespace", 0.5, 45.0),)
    choices: tuple[PairingChoice, ...] = field(default=(PairingChoice(),))

    def __post_init__(self) -> None:
        for name, least, most in (
            ("clients", 1, 1_000_000),
            ("entities", 1, 10_000),
            ("messages_per_second", 1e-6, 1e6),
            ("message_bytes", 0, 100 * 1024 * 1024),
            ("days", 0.01, 3660),
            ("runs", 1, 1_000_000),
            ("clients_per_outage", 1, 1_000_000),
        ):
            value = getattr(self, name)
            if not least <= value <= most:
                raise FleetError(f"The fleet's {name} is {value!r}; it must be from {least:g} to {most:,}.")


def parse_fleet(text: str, where: str) -> FleetPlan:
    """Read a fleet file's text; `where` names it in errors."""
    try:
        data = read_toml(text)
    except ValueError as error:
        raise FleetError(f"The fleet {where} is not TOML: {error}.") from error
    outages = data.pop("outages", None)
    pairing = data.pop("pairing", {})
    try:
        plan = FleetPlan(**_checked(data, FleetPlan, "fleet"))
        if outages is not None:
            plan = replace(plan, outages=tuple(_outages(outages)))
        return replace(plan, choices=tuple(_choices(pairing)))
    except FleetError as error:
        raise FleetError(f"In {where}: {error}") from None


def _outages(entries: Any) -> Iterator[OutageKind]:
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise FleetError(f"The fleet's outages are {_short(entries)}; write [[outages]] above each kind of them.")
    for entry in entries:
        values = _checked(entry, OutageKind, "outage")
        missing = [f.name for f in fields(OutageKind) if f.name not in values]
        if missing:
            raise FleetError(f"An outage lacks {missing[0]}; give scope, per_30_days and mean_minutes.")
        yield OutageKind(**values)


def _choices(pairing: Any) -> Iterator[PairingChoice]:
    """Every combination of the options that are lists."""
    if not isinstance(pairing, dict):
        raise FleetError(f"The fleet's pairing is {_short(pairing)}; write [pairing] above its options.")
    names = list(pairing)
    options = [value if isinstance(value, list) else [value] for value in pairing.values()]
    if any(not values for values in options):
        raise FleetError("A list of the pairing's options is empty; give at least one value.")
    if (count := math.prod(map(len, options))) > MOST_CHOICES:
        raise FleetError(
            f"The lists of the pairing's options make {count:,} choices; at most {MOST_CHOICES:,} are played."
        )
    for values in itertools.product(*options):
        yield PairingChoice(**_checked(dict(zip(names, values, strict=True)), PairingChoice, "pairing"))


def _checked(data: Mapping[str, Any], kind: type, what: str) -> dict[str, Any]:
    """Only known fields, each of the type its default (or annotation) has."""
    known = {f.name: str(f.type) for f in fields(kind) if f.name not in ("outages", "choices")}
    for name, value in data.items():
        if name not in known:
            raise FleetError(f"The {what} has {_short(name)}; known are {', '.join(sorted(known))}.")
        wanted = known[name]
        number = isinstance(value, int | float) and not isinstance(value, bool)
        fits = {
            "int": isinstance(value, int) and not isinstance(value, bool),
            "float": number,
            "bool": isinstance(value, bool),
            "str": isinstance(value, str),
        }[wanted]
        if not fits:
            raise FleetError(f"The {what}'s {name} is {_short(value)}; it must be of type {wanted}.")
    return dict(data)


def _short(value: Any) -> str:
    return repr(value)[:60]
