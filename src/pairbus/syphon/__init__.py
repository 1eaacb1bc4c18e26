"""The syphon: carries the messages in backlog queues home to the primary.

The way of a message through the files:

    transport (receive) -> planner (order, batches, pauses, parts) -> envelope (restore) -> transport (send, complete)

`planner`, with `deliveries`, `parts` and `sequences`, is PURE and decides. `pump` carries out its decisions over a
`transport`, which is `amqp_transport`. `service` runs one pump per backlog queue; `in_process` runs it inside an
application. `outcomes` records what became of messages, `control` and `web` show it to other processes. `backlog` and
`deadletters` look into the queues without a syphon.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pairbus.syphon.in_process import InProcessSyphon as InProcessSyphon
    from pairbus.syphon.in_process import start_in_process as start_in_process
    from pairbus.syphon.namespaces import Namespace as Namespace
    from pairbus.syphon.outcomes import Carried as Carried
    from pairbus.syphon.service import Syphon as Syphon
    from pairbus.syphon.service import SyphonOptions as SyphonOptions
    from pairbus.syphon.service import SyphonState as SyphonState

__all__ = ["Carried", "InProcessSyphon", "Namespace", "Syphon", "SyphonOptions", "SyphonState", "start_in_process"]

_MODULES = {
    "Carried": "outcomes",
    "InProcessSyphon": "in_process",
    "Namespace": "namespaces",
    "Syphon": "service",
    "SyphonOptions": "service",
    "SyphonState": "service",
    "start_in_process": "in_process",
}


def __getattr__(name: str) -> object:
    # Loaded on first use: the PURE modules must not load the SDK.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    try:
        module = import_module(f"{__name__}.{_MODULES[name]}")
    except ImportError as error:
        raise ImportError(
            f"The syphon needs packages that are not installed ({error}): pip install 'pairbus[syphon]'.",
            name=error.name,
        ) from error
    return getattr(module, name)
