"""The states of an entity over the last hour, as all its paired clients together had them: at each moment the worst."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pairbus.publishing.records import TransitionReport

WORST_FIRST = ("failed over", "suspect", "healthy")
Stretch = tuple[float, float, str]
"""From, to, state."""


@dataclass(frozen=True, slots=True)
class Witness:
    """One paired client: from when to when it watched the entity, and the state it ended with."""

    begin: float
    end: float
    state: str
    transitions: Sequence[TransitionReport]


def worst(states: Iterable[str]) -> str:
    known = set(states)
    return next((state for state in WORST_FIRST if state in known), "healthy")


def ribbon(witnesses: Iterable[Witness], begin: float, end: float) -> list[Stretch]:
    """Stretches of one state between `begin` and `end`; times that nobody watched are left out."""
    changes: list[tuple[float, str, int]] = []
    for witness in witnesses:
        for start, stop, state in _stretches(witness):
            start, stop = max(start, begin), min(stop, end)
            if start < stop:
                changes += [(start, state, 1), (stop, state, -1)]
    changes.sort(key=lambda change: change[0])
    counts = dict.fromkeys(WORST_FIRST, 0)
    found: list[Stretch] = []
    since = begin
    for at, state, step in changes:
        present = [name for name, count in counts.items() if count]
        if present and at > since:
            now = worst(present)
            if found and found[-1][1] == since and found[-1][2] == now:
                found[-1] = (found[-1][0], at, now)
            else:
                found.append((since, at, now))
        counts[state] = counts.get(state, 0) + step
        since = at
    return found


def _stretches(witness: Witness) -> Iterable[Stretch]:
    since = witness.begin
    for change in witness.transitions:
        yield since, change.at, change.before
        since = max(since, change.at)
    yield since, witness.end, witness.state
