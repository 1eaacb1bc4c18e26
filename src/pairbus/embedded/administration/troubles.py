"""Faults as the administration endpoint shows them: it belongs to the namespace, so only the namespace's own
fault counts.

The control routes never take part, or nobody could end a fault.
"""

import asyncio

from aiohttp import web

from pairbus.embedded.errors import BrokerError
from pairbus.embedded.faults import SERVER_BUSY, Fault, FaultSwitchboard


class ServerBusyError(BrokerError):
    condition = SERVER_BUSY
    http_status = 503


def _known_errors() -> list[type[BrokerError]]:
    return BrokerError.__subclasses__()


_BY_CONDITION = {known.condition: known for known in _known_errors()}


class Troubles:
    def __init__(self, faults: FaultSwitchboard) -> None:
        self._faults = faults

    async def cause(self, request: web.BaseRequest) -> None:
        """Go on, or fail, or take time, as the namespace's fault says."""
        fault = self._faults.fault_of(None)
        if fault is None:
            return
        match fault.mode:
            case "refuse" | "drop":
                _cut(request)
            case "hang":
                await self._ended(fault)
            case "error":
                condition = fault.condition or BrokerError.condition
                raise _BY_CONDITION.get(condition, BrokerError)(f"A fault is switched on: {condition}.")
            case "slow":
                await asyncio.sleep((fault.delay_ms or 0) / 1000)
            case "throttle":
                if not self._faults.lets_through(fault):
                    raise ServerBusyError("A fault is switched on: the server is busy, try again in 10 seconds.")
            case "accept-then-fail":
                pass  # it is about messages

    async def _ended(self, fault: Fault) -> None:
        """Return when this fault is over."""
        changed = asyncio.Event()
        self._faults.listen(changed.set)
        try:
            while self._faults.fault_of(None) == fault:
                changed.clear()
                await changed.wait()
        finally:
            self._faults.unlisten(changed.set)


def _cut(request: web.BaseRequest) -> None:
    if request.transport is not None:
        request.transport.abort()
    raise ConnectionAbortedError("A fault is switched on: the connection is cut.")
