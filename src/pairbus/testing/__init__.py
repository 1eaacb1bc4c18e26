"""Tools for testing: embedded namespaces, a clock that the test controls, waiting without sleeping.

`EmbeddedNamespace` and `embedded_pair` run local namespaces in this process or as child processes. `ManualClock` stands
still until the test advances it. `wait_until` waits for a condition. The package also brings the pytest fixtures
`pairbus_pair`, `pairbus_process_pair` and `outage`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pairbus.testing.clock import ManualClock as ManualClock
    from pairbus.testing.namespace import EmbeddedNamespace as EmbeddedNamespace
    from pairbus.testing.namespace import EmbeddedPair as EmbeddedPair
    from pairbus.testing.namespace import embedded_pair as embedded_pair
    from pairbus.testing.outage import Outage as Outage
    from pairbus.testing.waiting import wait_until as wait_until

__all__ = ["EmbeddedNamespace", "EmbeddedPair", "ManualClock", "Outage", "embedded_pair", "wait_until"]

_HOMES = {
    "EmbeddedNamespace": "namespace",
    "EmbeddedPair": "namespace",
    "ManualClock": "clock",
    "Outage": "outage",
    "embedded_pair": "namespace",
    "wait_until": "waiting",
}


def __getattr__(name: str) -> object:
    # Lazy: a test that needs only a clock does not load a server.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
