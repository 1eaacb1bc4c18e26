"""An outage that a test begins and ends, and that never outlives it.

outage.begin()                                  the whole primary turns connections away
outage.end()

with outage.begin("orders", mode="hang"):       one queue does not answer, until the block ends
    ...
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from pairbus.testing.namespace import EmbeddedNamespace, EmbeddedPair


class Outage:
    """What is out of order on a pair of embedded namespaces; the fixture `outage` gives one.

    Several may be on at once, one for each entity; beginning another one for the same entity replaces it.
    """

    def __init__(self, pair: EmbeddedPair) -> None:
        self._pair = pair
        self._broken: list[tuple[EmbeddedNamespace, str | None]] = []

    def __repr__(self) -> str:
        broken = ", ".join(f"{namespace.name}:{entity or 'all of it'}" for namespace, entity in self._broken)
        return f"<Outage {broken or 'over'}>"

    @property
    def is_on(self) -> bool:
        return bool(self._broken)

    def begin(
        self,
        entity: str | None = None,
        mode: str = "refuse",
        *,
        secondary: bool = False,
        condition: str | None = None,
        rate: float | None = None,
        delay: float | None = None,
    ) -> Self:
        """Breaks an entity, or the whole namespace, of the primary or of the secondary.

        `mode` is one of the faults of `pairbus fault`; `condition`, `rate` and `delay` (seconds) belong to the modes
        error, throttle and slow.
        """
        namespace = self._pair.secondary if secondary else self._pair.primary
        namespace.fault(mode, entity=entity, condition=condition, rate=rate, delay=delay)
        if (namespace, entity) not in self._broken:
            self._broken.append((namespace, entity))
        return self

    def end(self) -> None:
        """Ends every fault of the entities and namespaces that this object broke. Ending twice is harmless."""
        broken, self._broken = self._broken, []
        for namespace, entity in broken:
            if namespace.running:  # a namespace that was killed has forgotten its faults
                namespace.clear_faults(entity)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.end()
