"""Who refuses our credential now: each outage is said once, however often it is tried, and may be what all wait for."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pairbus.syphon.pump import Pump

log = logging.getLogger(__name__)

Side = Literal["primary", "secondary"]

REFUSALS_FOR_GOOD = 3
"""After so many in a row nobody expects that the next try is let in."""


class Refusals:
    """Both namespaces, and which of their entities do not let us in.

    An outage begins with the first entity that refuses and ends when each of those has let us in again.
    """

    def __init__(self, primary: str, secondary: str) -> None:
        self._hosts: dict[Side, str] = {"primary": primary, "secondary": secondary}
        self._refusing: dict[Side, set[str]] = {"primary": set(), "secondary": set()}

    def refused(self, side: Side, entity: str, cause: str) -> None:
        if not self._refusing[side]:
            log.warning(
                "the %s refuses our credential: check its connection string and the rights of its key",
                side,
                extra={"namespace": self._hosts[side], "entity": entity, "cause": cause},
            )
        self._refusing[side].add(entity)

    def accepted(self, side: Side, entity: str) -> None:
        self._refusing[side].discard(entity)


def refusing(unfinished: Sequence[Pump]) -> Side | None:
    """Who refuses our credential for good, if each of these pumps waits for nothing else."""
    side: Side = "primary"
    for pump in unfinished:
        lanes = [lane for lane in pump.planner.lanes.values() if not lane.empty]
        if pump.refusals >= REFUSALS_FOR_GOOD:
            side = "secondary"
        elif not lanes or any(lane.token_refusals < REFUSALS_FOR_GOOD for lane in lanes):
            return None
    return side if unfinished else None
