"""What a user may choose when pairing two namespaces: parsed once, here, into one frozen value."""

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
from pairbus.failover import FailoverRules

if TYPE_CHECKING:
    from pairbus.ledger import LedgerWriter

AdminT = TypeVar("AdminT")
ClientT = TypeVar("ClientT")

Duration = float | timedelta
"""Seconds, or a timedelta; the options keep seconds."""

_MINUTE = 60.0
DEFAULT_SPOOL_LIMIT_BYTES = 1024 * 1024 * 1024
_SEGMENT = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,48}[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True)
class SendAvailabilityPairedNamespaceOptions(Generic[AdminT, ClientT]):
    """The secondary namespace, and how sends to the primary are kept available.

    Durations are seconds or a timedelta and are kept as seconds. A value outside its range is a ValueError
    that names the option, the value and the range.
    """

    secondary_admin: AdminT
    secondary: ClientT
    _: KW_ONLY
    backlog_queue_count: int = 10
    failover_interval: Duration = _MINUTE
    ping_primary_interval: Duration = _MINUTE
    enable_syphon: bool = False
    syphon_retry_interval: Duration = 1.0
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
        """The options that steer the state of an entity."""
        return FailoverRules(
            failover_interval=cast(float, self.failover_interval),
            ping_interval=cast(float, self.ping_primary_interval),
            recovery_pings=self.recovery_pings,
            divert_during_interval=self.divert_during_interval,
        )

    def name_of_primary(self, host: str) -> str:
        """The name used in backlog paths, from the option or the primary's host name."""
        if self.primary_name is not None:
            return self.primary_name
        name = host.partition(":")[0] if not host.startswith("[") else host
        label = name.partition(".")[0]
        if _is_address(name) or name.lower() == "localhost" or not _SEGMENT.fullmatch(label):
            raise ValueError(
                f"primary_name is None and the primary's host {host!r} has no name to use instead; give "
                "primary_name, a path segment of letters, digits, '.', '-' and '_'."
            )
        return label


def check_two_namespaces(primary_host: str, secondary_host: str) -> None:
    """A namespace cannot stand in for itself."""
    if primary_host.strip().rstrip(".").lower() == secondary_host.strip().rstrip(".").lower():
        raise ValueError(
            f"The primary and the secondary are the same namespace, {primary_host!r}; give another namespace as the "
            "secondary, which works when the primary does not."
        )


OPTION_NAMES = frozenset(
    name for name in SendAvailabilityPairedNamespaceOptions.__dataclass_fields__ if name != "_"
) - {"secondary_admin", "secondary"}


def backlog_path(primary_name: str, index: int) -> str:
    """The path of backlog queue `index` in the secondary namespace."""
    return f"{primary_name}/x-servicebus-transfer/{index}"


def recorded_name(host: str, primary_name: str) -> str:
    """What the ledger calls the primary: its host, if that begins with the name in the backlog paths, else that name.

    The audit knows the records of one pairing by this first label: a host that is an address has none.
    """
    return host if host.partition(".")[0].lower() == primary_name.lower() else primary_name


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
