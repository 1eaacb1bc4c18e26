"""The names of `pairbus` for asyncio, on top of `azure.servicebus.aio`."""

from pairbus.failover.states import EntityState
from pairbus.pairing._aio.client import PairedServiceBusClient, PairedServiceBusSender, pair_namespace
from pairbus.pairing.observers import TransitionEvent
from pairbus.pairing.options import BacklogQueues, SendAvailabilityPairedNamespaceOptions

__all__ = [
    "BacklogQueues",
    "EntityState",
    "PairedServiceBusClient",
    "PairedServiceBusSender",
    "SendAvailabilityPairedNamespaceOptions",
    "TransitionEvent",
    "pair_namespace",
]
