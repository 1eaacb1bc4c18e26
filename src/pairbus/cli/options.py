"""Options that several commands share, and how their values are read: namespaces, queues, durations, prices."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pairbus.cli import settings
from pairbus.cli.output import Refusal, remark

if TYPE_CHECKING:
    from pairbus.costs import Tariff
    from pairbus.embedded.running import RunningServer
    from pairbus.pipeline.gold import Pricing
    from pairbus.syphon import Namespace

NAMESPACE_HELP = (
    "Where its connection string is: env:VARIABLE, a file, or the name, data folder or ready file of an embedded "
    "namespace. Or HOST.servicebus.windows.net, to use this machine's Azure credential."
)
Primary = Annotated[
    str | None,
    typer.Option(metavar="NAMESPACE", help=f"The primary. {NAMESPACE_HELP} Default: env:PAIRBUS_PRIMARY."),
]
Secondary = Annotated[
    str | None,
    typer.Option(
        metavar="NAMESPACE", help="The secondary, named in the same ways as --primary. Default: env:PAIRBUS_SECONDARY."
    ),
]
PrimaryName = Annotated[
    str | None,
    typer.Option(
        help="The primary's name in the paths of the backlog queues. Default: the first label of its host name, or "
        "the name of the embedded namespace."
    ),
]
Ledger = Annotated[Path | None, typer.Option(metavar="DIR", help="Record every operation in this ledger folder.")]

TariffFile = Annotated[Path | None, typer.Option("--tariff-file", metavar="FILE", help="Your own tariff, a TOML file.")]
TariffName = Annotated[
    str | None, typer.Option("--tariff", help="Name of the tariff. Default: that of --tariff-file, else azure-usd.")
]
PlanName = Annotated[str, typer.Option("--plan", help="Plan of the namespaces: basic, standard or premium.")]
OptionalPlanName = Annotated[
    str | None,
    typer.Option("--plan", help="Plan of the namespaces: basic, standard or premium. Default: that of the tables."),
]
Connections = Annotated[
    list[str] | None,
    typer.Option(
        "--connections",
        metavar="NAMESPACE=COUNT",
        help="Brokered connections of a namespace in a month, for its bill. The ledger does not record them.",
    ),
]

MAX_DURATION_MS = 7 * 24 * 3_600_000
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)")
_MAX_DIGITS = 4
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,49}")


# --- namespaces ---------------------------------------------------------------------------------------------


class NotRunning(Refusal):
    """The value names an embedded namespace that is not running."""

    def __init__(self, sentence: str, *, value: str, start: str, name: str | None) -> None:
        super().__init__(sentence)
        self.value = value
        self.start = start
        """The command that starts it."""
        self.name = name
        """None if only its data folder is known: the folder does not store the name."""


def is_named(value: str | None, variable: str) -> bool:
    """Whether the option, the environment or the file of --config names this namespace."""
    return bool(value or os.environ.get(variable) or settings.shared(variable.removeprefix("PAIRBUS_").lower()))


def namespace(option: str, value: str | None, variable: str) -> Namespace:
    """Find the namespace that the option, else the environment variable, else the file of --config names."""
    from pairbus.syphon import Namespace

    if value is None:
        from_file = settings.shared(variable.removeprefix("PAIRBUS_").lower())
        value = f"env:{variable}" if variable in os.environ else from_file
        if value is None:
            raise Refusal(
                f"{option} is missing, and neither {variable} nor a --config names the namespace: use one of them, "
                f"such as {option} env:VARIABLE."
            )
    verify = settings.ca_file()
    try:
        if value.startswith("env:"):
            if not os.environ.get(value[4:]):
                raise Refusal(f"{option} names the environment variable '{value[4:]}', which is not set: set it.")
            return Namespace.parse(os.environ[value[4:]], connection_verify=verify)
        if looks_like_connection_string(value):
            remark(
                f"{option}: every user of this machine can read a connection string on the command line; use a file."
            )
            return Namespace.parse(value, connection_verify=verify)
        server = _embedded(value)
        if server is not None:
            return Namespace.parse(server.connection_string, connection_verify=server.ca_file, name=server.name)
        if Path(value).is_file():
            return Namespace.parse(Path(value).read_text(encoding="utf-8").strip(), connection_verify=verify)
    except ValueError as error:
        raise Refusal(f"{option}: {error}") from error
    except OSError as error:
        raise Refusal(f"Cannot read {option} '{value}': {error.strerror}.") from error
    if _is_stopped_folder(Path(value)):
        start = f"pairbus serve NAME --data {shlex.quote(value)}"
        sentence = f"{option} '{value}' is the data folder of a namespace that is not running: start it with `{start}`."
        raise NotRunning(sentence, value=value, start=start, name=None)
    if value.casefold().endswith(".json") and not Path(value).exists():
        raise Refusal(
            f"{option} '{value}' is a file that does not exist: start the embedded namespace that writes this ready "
            "file, or name another file."
        )
    if "." in value and "/" not in value:
        return Namespace.at(value, _azure_credential(option))
    sentence = f"{option} '{value}' is not a namespace: use env:VARIABLE, a file, a running namespace, or a host name."
    if _PLAIN_NAME.fullmatch(value) and not Path(value).exists():
        raise NotRunning(sentence, value=value, start=f"pairbus serve {value} --data FOLDER", name=value)
    raise Refusal(sentence)


def primary_and_secondary(primary: str | None, secondary: str | None) -> tuple[Namespace, Namespace]:
    return namespace("--primary", primary, "PAIRBUS_PRIMARY"), namespace_of_secondary(secondary)


def namespace_of_secondary(secondary: str | None) -> Namespace:
    return namespace("--secondary", secondary, "PAIRBUS_SECONDARY")


def find_primary_name(primary: Namespace, name: str | None) -> str:
    """The primary's name in the backlog paths: `name`, else from its host, else the name of the embedded namespace."""
    from pairbus.embedded.running import known_servers
    from pairbus.pairing.options import SendAvailabilityPairedNamespaceOptions
    from pairbus.syphon import Namespace

    options: SendAvailabilityPairedNamespaceOptions[None, None]
    try:
        options = SendAvailabilityPairedNamespaceOptions(None, None, primary_name=name or primary.name)
    except ValueError as error:
        raise Refusal(
            f"--primary-name '{name}' is not a namespace's name: use 1 to 50 letters, digits, '.', '-' or '_'."
        ) from error
    try:
        return options.name_of_primary(primary.host)
    except ValueError as error:
        for server in known_servers():
            if Namespace.parse(server.connection_string).address == primary.address:
                return server.name
        raise Refusal(
            f"The host of --primary, '{primary.host}', does not contain the primary's name: add --primary-name, with "
            "the primary_name of the paired clients."
        ) from error


def looks_like_connection_string(text: str) -> bool:
    """Whether the text is a connection string, perhaps misspelt. Then no message may show it."""
    folded = text.casefold()
    return "sharedaccess" in folded or "endpoint=" in folded or (";" in text and "=" in text)


def _embedded(value: str) -> RunningServer | None:
    """An embedded namespace by ready file, data folder or name. It may have been killed, and may come back."""
    from pairbus.embedded.running import RunningServer, known_servers

    try:
        described = RunningServer.find(Path(value))
    except ValueError:
        return None  # the file holds a connection string
    return described or next((server for server in known_servers() if server.name.casefold() == value.casefold()), None)


def _is_stopped_folder(folder: Path) -> bool:
    """Whether this is the data folder of an embedded namespace whose process is gone."""
    from pairbus.embedded.server import LOCK_FILE
    from pairbus.embedded.store import FILE_NAME

    if not (folder / FILE_NAME).is_file():
        return False
    try:
        # Read the lock, do not take it: a server that starts now must find the folder free.
        os.kill(int((folder / LOCK_FILE).read_text(encoding="ascii")), 0)
    except (ProcessLookupError, FileNotFoundError):
        return True
    except (OSError, ValueError, OverflowError):
        return False
    return False


def _azure_credential(option: str) -> object:
    try:
        from azure.identity.aio import DefaultAzureCredential
    except ImportError as error:
        raise Refusal(
            f"{option} is a host name, which needs azure-identity: pip install 'pairbus[identity]'."
        ) from error
    return DefaultAzureCredential()


# --- numbers, durations, ports, files -----------------------------------------------------------------------


def parse_queues(text: str) -> list[int]:
    """The numbers in `0-9` or `0,2,5-7`."""
    numbers: set[int] = set()
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        if not low.isascii() or not low.isdigit() or (dash and not (high.isascii() and high.isdigit())):
            raise Refusal(f"--queues '{text[:60]}' is not a list of numbers: write it as 0-9 or 0,2,5-7.")
        last = high if dash else low
        if max(len(low), len(last)) > _MAX_DIGITS or int(low) > int(last):
            raise Refusal(f"--queues '{text[:60]}' is out of range: use numbers from 0 to 9999, the lower one first.")
        numbers.update(range(int(low), int(last) + 1))
    return sorted(numbers)


def parse_duration_ms(option: str, text: str) -> int:
    """`30s`, `200ms`, `1.5m` or `1h` in milliseconds."""
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None:
        raise Refusal(f"{option} '{text}' is not a duration: use a number and a unit, such as 200ms, 30s, 5m or 1h.")
    value = float(found[1]) * _UNITS_MS[found[2]]
    if value > MAX_DURATION_MS:
        raise Refusal(f"{option} '{text}' is longer than 7 days: use less, such as 1h.")
    if round(value) == 0:
        raise Refusal(f"{option} '{text}' is too short: use at least 1ms.")
    return round(value)


def check_port(port: int) -> None:
    if not 0 <= port <= 65535:
        raise Refusal(f"--port {port} is not a port: use a number from 0 (any free port) to 65535.")


# --- prices -------------------------------------------------------------------------------------------------


def read_pricing(
    file: Path | None,
    name: str | None,
    plan: str | None,
    connections: Sequence[str] | None = None,
    before: Pricing | None = None,
) -> Pricing:
    """The prices of `before`, changed by the options; checked against today's tariffs."""
    from pairbus.pipeline.gold import Pricing

    prices = before or Pricing()
    own = _own_tariff(file)
    chosen = replace(
        prices,
        tariffs=prices.tariffs if own is None else (own,),
        tariff=name or (prices.tariff if own is None else own.name),
        plan=plan or prices.plan,
        connections={**prices.connections, **dict(_connections(entry) for entry in connections or ())},
    )
    chosen.of("", date.today())
    return chosen


def _connections(entry: str) -> tuple[str, Decimal]:
    name, _, text = entry.rpartition("=")
    try:
        count = Decimal(text)
    except InvalidOperation:
        count = Decimal(-1)
    if not name or not count.is_finite() or count < 0:
        raise Refusal(f"--connections '{entry}' is not a namespace and a count: write it as contoso=5000.")
    return name.lower(), count


def read_tariffs(file: Path | None, name: str | None) -> tuple[tuple[Tariff, ...], str]:
    """All known tariffs, and the name of the one to use."""
    from pairbus.costs import shipped_tariffs

    own = _own_tariff(file)
    return (shipped_tariffs(), name or "azure-usd") if own is None else ((*shipped_tariffs(), own), name or own.name)


def _own_tariff(file: Path | None) -> Tariff | None:
    from pairbus.costs import parse_tariff
    from pairbus.toml import read_small_file

    return None if file is None else parse_tariff(read_small_file(file, f"the tariff {file}"), str(file))
