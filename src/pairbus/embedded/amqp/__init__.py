"""The AMQP side of the embedded namespace.

`amqp_protocol_factory` gives what a listener needs: a factory of protocols, one per connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pairbus.amqp.engine import EngineLimits
from pairbus.embedded.amqp.connection import ServerConnection, Services, TokenCheck
from pairbus.embedded.broker import Broker
from pairbus.embedded.errors import Limits
from pairbus.embedded.faults import FaultSwitchboard

__all__ = ["amqp_protocol_factory"]


def amqp_protocol_factory(
    broker: Broker,
    faults: FaultSwitchboard,
    authority: TokenCheck,
    limits: Limits,
    engine_limits: EngineLimits | None = None,
) -> Callable[[], asyncio.Protocol]:
    """Protocols for the connections of one namespace."""
    services = Services(broker, faults, authority, limits, engine_limits or _engine_limits(limits))

    def connect() -> asyncio.Protocol:
        fault = faults.fault_of(None)
        if fault is not None and fault.mode == "refuse":
            return _Refusing()
        return ServerConnection(services).protocol

    return connect


def _engine_limits(limits: Limits) -> EngineLimits:
    largest = max(limits.max_message_bytes, limits.max_batch_bytes)
    return EngineLimits(max_message=4 * largest + 65_536)


class _Refusing(asyncio.Protocol):
    """Cuts a connection as it comes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.abort()
