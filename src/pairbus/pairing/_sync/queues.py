# Generated from ../_aio/queues.py by scripts/generate_sync.py: change that file, not this one.
"""Backlog queues are looked up, and created where missing, all at once: two round trips each at most."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from typing import Any

from azure.core.exceptions import AzureError, ResourceExistsError, ResourceNotFoundError
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus.errors import PairingError
from pairbus.pairing._sync import runtime
from pairbus.pairing.queues import SETTINGS, differences

_log = logging.getLogger("pairbus.pairing")


def make_ready(
    admin: ServiceBusAdministrationClient, names: Sequence[str], seconds: float
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The queues that were found and those that were created.

    Raises PairingError for the first that failed.
    """
    outcomes = runtime.all_of([functools.partial(_one, admin, name, seconds) for name in names])
    created = []
    for name, outcome in zip(names, outcomes, strict=True):
        if isinstance(outcome, BaseException):
            if isinstance(outcome, AzureError | OSError | ValueError):
                raise PairingError(name, outcome) from outcome
            raise outcome
        if outcome:
            created.append(name)
    return tuple(name for name in names if name not in created), tuple(created)


def _one(admin: ServiceBusAdministrationClient, name: str, seconds: float) -> bool:
    """True if the queue had to be created."""
    limits: dict[str, Any] = {"connection_timeout": seconds, "read_timeout": seconds}
    try:
        properties = admin.get_queue(name, **limits)
    except ResourceNotFoundError:
        try:
            admin.create_queue(name, **SETTINGS, **limits)
        except ResourceExistsError:  # another client of the pair was faster
            return False
        return True
    other = differences(properties)
    if other:
        _log.warning(
            "Backlog queue %s exists with other settings and is used as it is: %s.",
            name,
            ", ".join(f"{setting} is {value!r}, usually {SETTINGS[setting]!r}" for setting, value in other.items()),
        )
    return False
