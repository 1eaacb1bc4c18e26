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
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

SCOPES = ("entity", "namespace", "both")


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
        if self.per_30_days < 0 or self.mean_minutes <= 0:
            raise FleetError(
                f"An outage of scope {self.scope} comes {self.per_30_days} times for {self.mean_minutes} minutes; "
                "give per_30_days of 0 or more and mean_minutes above 0."
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
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise FleetError(f"The fleet {where} is not TOML: {error}.") from error
    outages = data.pop("outages", None)
    pairing = data.pop("pairing", {})
    try:
        plan = FleetPlan(**_checked(data, FleetPlan, "fleet"))
        if outages is not None:
            kinds = tuple(OutageKind(**_checked(entry, OutageKind, "outage")) for entry in outages)
            plan = replace(plan, outages=kinds)
        return replace(plan, choices=tuple(_choices(pairing)))
    except FleetError as error:
        raise FleetError(f"In {where}: {error}") from None


def _choices(pairing: Mapping[str, Any]) -> Iterator[PairingChoice]:
    """Every combination of the options that are lists."""
    names = list(pairing)
    options = [value if isinstance(value, list) else [value] for value in pairing.values()]
    if any(not values for values in options):
        raise FleetError("A list of the pairing's options is empty; give at least one value.")
    for values in itertools.product(*options):
        yield PairingChoice(**_checked(dict(zip(names, values, strict=True)), PairingChoice, "pairing"))


def _checked(data: Mapping[str, Any], kind: type, what: str) -> dict[str, Any]:
    """Only known fields, each of the type its default (or annotation) has."""
    known = {f.name: str(f.type) for f in fields(kind) if f.name not in ("outages", "choices")}
    for name, value in data.items():
        if name not in known:
            raise FleetError(f"The {what} has {name!r}; known are {', '.join(sorted(known))}.")
        wanted = known[name]
        number = isinstance(value, int | float) and not isinstance(value, bool)
        fits = {
            "int": isinstance(value, int) and not isinstance(value, bool),
            "float": number,
            "bool": isinstance(value, bool),
            "str": isinstance(value, str),
        }[wanted]
        if not fits:
            raise FleetError(f"The {what}'s {name} is {value!r}; it must be of type {wanted}.")
    return dict(data)
