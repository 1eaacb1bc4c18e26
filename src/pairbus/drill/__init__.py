"""Rehearsals: a scripted outage, and what is expected of it.

    scenario (TOML, checked before anything starts) -> stage (two namespaces) -> steps -> census -> expectations

Every message has an id. One whose send returned is *accepted*, and at the end it must be delivered, dead-lettered, in
the backlog or in the spool: the census looks for each of them with its own eyes, and what is nowhere is lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pairbus.drill.result import Result as Result
    from pairbus.drill.running import run_drill as run_drill
    from pairbus.drill.scenario import Scenario as Scenario
    from pairbus.drill.scenario import ScenarioError as ScenarioError
    from pairbus.drill.scenario import read_scenario as read_scenario
    from pairbus.drill.stage import LeftBehindError as LeftBehindError
    from pairbus.drill.stage import embedded_stage as embedded_stage
    from pairbus.drill.stage import real_stage as real_stage

__all__ = [
    "LeftBehindError",
    "Result",
    "Scenario",
    "ScenarioError",
    "embedded_stage",
    "read_scenario",
    "real_stage",
    "run_drill",
]

_HOMES = {
    "LeftBehindError": "stage",
    "Result": "result",
    "Scenario": "scenario",
    "ScenarioError": "scenario",
    "embedded_stage": "stage",
    "read_scenario": "scenario",
    "real_stage": "stage",
    "run_drill": "running",
}


def __getattr__(name: str) -> object:
    # Each name loads only what it needs: reading a scenario needs no SDK and no server.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
