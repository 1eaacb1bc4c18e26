"""The syphon: carries the messages that wait in backlog queues home to the primary.

The way of a message, and the files that show it:

    transport (receive) -> planner (order, batches, pauses, parts) -> envelope (restore) -> transport (send, complete)

`planner`, with `lanes`, `parts`, `sequences`, `pauses`, `verdicts` and `letters`, is PURE and decides; `pump` does what
it says, over `amqp_transport` (raw AMQP sections) or `sdk_transport` (the plain SDK); `service` runs a pump for each
backlog queue; `in_process` puts that into an application.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pairbus.syphon.in_process import InProcessSyphon as InProcessSyphon
    from pairbus.syphon.in_process import start_in_process as start_in_process
    from pairbus.syphon.namespaces import Namespace as Namespace
    from pairbus.syphon.outcomes import Carried as Carried
    from pairbus.syphon.service import Syphon as Syphon
    from pairbus.syphon.service import SyphonState as SyphonState

__all__ = ["Carried", "InProcessSyphon", "Namespace", "Syphon", "SyphonState", "start_in_process"]

_HOMES = {
    "Carried": "outcomes",
    "InProcessSyphon": "in_process",
    "Namespace": "namespaces",
    "Syphon": "service",
    "SyphonState": "service",
    "start_in_process": "in_process",
}


def __getattr__(name: str) -> object:
    # Loaded when asked for: the PURE parts must not load the SDK.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
