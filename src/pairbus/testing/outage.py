"""An outage that a test begins and ends. It never outlives the test.

outage.begin()                                  the whole primary refuses connections
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
    """The faults that a test has switched on in a pair of embedded namespaces; the fixture `outage` provides it.

    Several entities may be broken at once. Beginning an outage of a broken entity replaces its fault.
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
        """Break one entity, or the whole namespace, of the primary or of the secondary.

        `mode` is a mode of `pairbus fault`. `condition`, `rate` and `delay` (seconds) belong to the modes error,
        throttle and slow.
        """
        namespace = self._pair.secondary if secondary else self._pair.primary
        namespace.fault(mode, entity=entity, condition=condition, rate=rate, delay=delay)
        if (namespace, entity) not in self._broken:
            self._broken.append((namespace, entity))
        return self

    def end(self) -> None:
        """End every fault that this object began. Ending twice is harmless."""
        broken, self._broken = self._broken, []
        for namespace, entity in broken:
            if namespace.running:  # a killed namespace has forgotten its faults
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
