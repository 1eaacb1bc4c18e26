"""Keeps applications sending when an Azure Service Bus namespace is down.

`pair_namespace` joins a primary namespace with a secondary one and returns a paired client, which is used like the
SDK's `ServiceBusClient`. `pairbus.aio` has the same names for asyncio.
"""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING, Any

from pairbus.errors import (
    BacklogUnavailableError,
    EnvelopeError,
    PairbusError,
    PairedNamespaceFaultedError,
    PairingError,
    PartlyAcceptedError,
    ReservedPropertyError,
    ScheduledInBacklogError,
    SpoolError,
    SpoolFullError,
    SpoolInUseError,
)
from pairbus.failover.states import EntityState

if TYPE_CHECKING:
    from pairbus.pairing._sync.client import PairedServiceBusClient, PairedServiceBusSender, pair_namespace
    from pairbus.pairing.observers import TransitionEvent
    from pairbus.pairing.options import BacklogQueues, SendAvailabilityPairedNamespaceOptions

__version__ = "0.1.0.dev0"

__all__ = [
    "BacklogQueues",
    "BacklogUnavailableError",
    "EntityState",
    "EnvelopeError",
    "PairbusError",
    "PairedNamespaceFaultedError",
    "PairedServiceBusClient",
    "PairedServiceBusSender",
    "PairingError",
    "PartlyAcceptedError",
    "ReservedPropertyError",
    "ScheduledInBacklogError",
    "SendAvailabilityPairedNamespaceOptions",
    "SpoolError",
    "SpoolFullError",
    "SpoolInUseError",
    "TransitionEvent",
    "__version__",
    "pair_namespace",
]

# The application decides where log lines go; without this Python prints warnings to stderr.
logging.getLogger("pairbus").addHandler(logging.NullHandler())

# Imported on first access, because these names import the SDK, which the server and the command line do not need.
_HOMES = {
    "BacklogQueues": "pairbus.pairing.options",
    "PairedServiceBusClient": "pairbus.pairing._sync.client",
    "PairedServiceBusSender": "pairbus.pairing._sync.client",
    "SendAvailabilityPairedNamespaceOptions": "pairbus.pairing.options",
    "TransitionEvent": "pairbus.pairing.observers",
    "pair_namespace": "pairbus.pairing._sync.client",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'pairbus' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(home), name)
    return value
