"""Drills: scripted outages, and what is expected of them.

    scenario (TOML, checked before anything starts) -> stage (two namespaces) -> steps -> census -> expectations

Every message has an id. A message whose send returned is *accepted*. At the end it must be delivered, dead-lettered, in
the backlog or in the spool. The census looks for each message itself; a message that is nowhere is lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pairbus.drill.running import DrillResult as DrillResult
    from pairbus.drill.running import run_drill as run_drill
    from pairbus.drill.scenario import Scenario as Scenario
    from pairbus.drill.scenario import ScenarioError as ScenarioError
    from pairbus.drill.scenario import read_scenario as read_scenario
    from pairbus.drill.stage import LeftBehindError as LeftBehindError
    from pairbus.drill.stage import embedded_stage as embedded_stage
    from pairbus.drill.stage import real_stage as real_stage

_MODULES = {
    "DrillResult": "running",
    "LeftBehindError": "stage",
    "Scenario": "scenario",
    "ScenarioError": "scenario",
    "embedded_stage": "stage",
    "read_scenario": "scenario",
    "real_stage": "stage",
    "run_drill": "running",
}


def __getattr__(name: str) -> object:
    # Each name loads only what it needs: reading a scenario needs no SDK and no server.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
