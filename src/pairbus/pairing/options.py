"""The options of a pairing, checked once into one frozen value, and the settings of its backlog queues."""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from pairbus.envelope import TimeToLivePolicy
from pairbus.failover.states import FailoverRules

if TYPE_CHECKING:
    from pairbus.ledger import LedgerWriter

AdminT = TypeVar("AdminT")
ClientT = TypeVar("ClientT")

Duration = float | timedelta
"""Seconds, or a timedelta; the options keep seconds."""

_MINUTE = 60.0
DEFAULT_SPOOL_LIMIT_BYTES = 1024 * 1024 * 1024
_SEGMENT = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,48}[A-Za-z0-9])?")

LARGEST_TIME_SPAN = "P10675199DT2H48M5.4775807S"
_LARGEST = timedelta(days=10675199, hours=2, minutes=48, seconds=5, microseconds=477580)

BACKLOG_QUEUE_SETTINGS: dict[str, Any] = {
    "max_size_in_megabytes": 5120,
    "max_delivery_count": 2147483647,
    "default_message_time_to_live": LARGEST_TIME_SPAN,
    "auto_delete_on_idle": LARGEST_TIME_SPAN,
    "lock_duration": timedelta(minutes=1),
    "dead_lettering_on_message_expiration": True,
    "enable_batched_operations": True,
}
"""A missing backlog queue is created with these settings; all others are the service's defaults."""


@dataclass(frozen=True, slots=True)
class SendAvailabilityPairedNamespaceOptions(Generic[AdminT, ClientT]):
    """The secondary namespace and the rules that keep sends available.

    Durations are seconds or a timedelta, and are kept as seconds. A value outside its range raises a ValueError that
    names the option, the value and the range.
    """

    secondary_admin: AdminT
    secondary: ClientT
    _: KW_ONLY
    backlog_queue_count: int = 10
    failover_interval: Duration = _MINUTE
    ping_primary_interval: Duration = _MINUTE
    enable_syphon: bool = False
    syphon_retry_interval: Duration = 1.0
    syphon_rate: float | None = None
    primary_name: str | None = None
    divert_during_interval: bool = False
    causes_failover: Callable[[BaseException], bool] | None = None
    backlog_time_to_live: TimeToLivePolicy = "restore"
    spool: Path | str | None = None
    spool_limit_bytes: int = DEFAULT_SPOOL_LIMIT_BYTES
    recovery_pings: int = 1
    send_timeout: Duration = _MINUTE
    ledger: Path | str | LedgerWriter | None = field(default=None, repr=False)
    state_dir: Path | str | None = None

    def __post_init__(self) -> None:
        _at_least_one("backlog_queue_count", self.backlog_queue_count)
        _at_least_one("recovery_pings", self.recovery_pings)
        _at_least_one("spool_limit_bytes", self.spool_limit_bytes)
        self._seconds("failover_interval", 0, 60 * _MINUTE, "0 to 60 minutes")
        self._seconds("ping_primary_interval", 1, 30 * _MINUTE, "1 second to 30 minutes")
        self._seconds("syphon_retry_interval", 1, 2 * _MINUTE, "1 second to 2 minutes")
        self._seconds("send_timeout", math.ulp(0.0), 24 * 60 * _MINUTE, "more than 0 seconds, at most 24 hours")
        rate = self.syphon_rate
        if rate is not None and (not isinstance(rate, int | float) or not 0 < rate < math.inf):
            raise ValueError(f"syphon_rate is {rate!r}; allowed: messages per second, above 0, or None for no limit.")
        for name in ("enable_syphon", "divert_during_interval"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} is {getattr(self, name)!r}; allowed: True or False.")
        if self.backlog_time_to_live not in ("restore", "deduct"):
            raise ValueError(f"backlog_time_to_live is {self.backlog_time_to_live!r}; allowed: 'restore' or 'deduct'.")
        if self.causes_failover is not None and not callable(self.causes_failover):
            raise ValueError(
                f"causes_failover is {self.causes_failover!r}; allowed: a callable that takes the error and "
                "returns True if it counts."
            )
        if self.primary_name is not None:
            _check_segment(self.primary_name)
        for name in ("spool", "state_dir"):
            if getattr(self, name) is not None and not isinstance(getattr(self, name), str | Path):
                raise ValueError(f"{name} is {getattr(self, name)!r}; allowed: the path of a folder, or None.")
        if self.ledger is not None and not isinstance(self.ledger, str | Path) and not hasattr(self.ledger, "record"):
            raise ValueError(f"ledger is {self.ledger!r}; allowed: the path of a folder, a LedgerWriter, or None.")

    def _seconds(self, name: str, low: float, high: float, allowed: str) -> None:
        value = getattr(self, name)
        seconds = value.total_seconds() if isinstance(value, timedelta) else value
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not low <= seconds <= high:
            raise ValueError(f"{name} is {value!r}; allowed: {allowed} (seconds, or a timedelta).")
        object.__setattr__(self, name, float(seconds))

    @property
    def rules(self) -> FailoverRules:
        """The options that decide about failover."""
        return FailoverRules(
            failover_interval=cast(float, self.failover_interval),
            ping_interval=cast(float, self.ping_primary_interval),
            recovery_pings=self.recovery_pings,
            divert_during_interval=self.divert_during_interval,
        )

    def name_of_primary(self, host: str) -> str:
        """The name in backlog paths: the option, or the first label of the primary's host."""
        if self.primary_name is not None:
            return self.primary_name
        name = host.partition(":")[0] if not host.startswith("[") else host
        label = name.partition(".")[0]
        if _is_address(name) or name.lower() == "localhost" or not _SEGMENT.fullmatch(label):
            raise ValueError(
                f"primary_name is None, and the primary's host {host!r} has no name to use instead. Set primary_name "
                "to a path segment of letters, digits, '.', '-' and '_'."
            )
        return label


def check_two_namespaces(primary_host: str, secondary_host: str) -> None:
    """Raise ValueError if both hosts are the same namespace."""
    if primary_host.strip().rstrip(".").lower() == secondary_host.strip().rstrip(".").lower():
        raise ValueError(
            f"The primary and the secondary are the same namespace, {primary_host!r}. Use another namespace as the "
            "secondary: it must work when the primary does not."
        )


OPTION_NAMES = frozenset(
    name for name in SendAvailabilityPairedNamespaceOptions.__dataclass_fields__ if name != "_"
) - {"secondary_admin", "secondary"}


def check_options(options: dict[str, Any]) -> None:
    """Raise TypeError for options that do not exist, and ValueError for values that are not allowed."""
    unknown = sorted(set(options) - OPTION_NAMES)
    if unknown:
        raise TypeError(f"Unknown options: {', '.join(unknown)}. Known options: {', '.join(sorted(OPTION_NAMES))}.")
    SendAvailabilityPairedNamespaceOptions(None, None, **options)


def backlog_path(primary_name: str, index: int) -> str:
    """The path of backlog queue `index` in the secondary namespace."""
    return f"{primary_name}/x-servicebus-transfer/{index}"


def recorded_name(host: str, primary_name: str) -> str:
    """The primary's name in the ledger: its host if that begins with the name in the backlog paths, else that name.

    The audit matches the records of one pairing by this first label; a host that is an address has none.
    """
    return host if host.partition(".")[0].lower() == primary_name.lower() else primary_name


@dataclass(frozen=True, slots=True)
class BacklogQueues:
    """The backlog queues of a pairing: existing ones, created ones, and those in rotation now."""

    found: tuple[str, ...]
    created: tuple[str, ...]
    in_rotation: tuple[str, ...]


def differences(properties: Any) -> dict[str, Any]:
    """The settings of an existing queue that differ from BACKLOG_QUEUE_SETTINGS, with the queue's values."""
    return {
        name: getattr(properties, name)
        for name, expected in BACKLOG_QUEUE_SETTINGS.items()
        if _comparable(getattr(properties, name)) != _comparable(expected)
    }


def _comparable(value: Any) -> Any:
    # The service prints the largest time span with seven digits; the SDK's timedelta keeps six of them.
    if value == LARGEST_TIME_SPAN or (isinstance(value, timedelta) and value >= timedelta(days=10675199)):
        return _LARGEST
    return value


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]").partition("]")[0])
    except ValueError:
        return False
    return True


def _at_least_one(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} is {value!r}; allowed: an integer, 1 or more.")


def _check_segment(name: Any) -> None:
    if not isinstance(name, str) or not _SEGMENT.fullmatch(name):
        raise ValueError(
            f"primary_name is {name!r}; allowed: a path segment of 1 to 50 letters, digits, '.', '-' and '_', "
            "beginning and ending with a letter or digit."
        )
