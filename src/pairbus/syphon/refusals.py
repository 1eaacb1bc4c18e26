"""Who refuses our credential now, so that each outage is said once, however often it is tried."""

from __future__ import annotations

import logging
from typing import Literal

log = logging.getLogger(__name__)

Side = Literal["primary", "secondary"]


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
