"""What came of a drill."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

MOST_LOST_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Account:
    """What became of the messages of one entity, or of all. `lost` is what is nowhere."""

    accepted: int
    refused: int
    delivered: int
    dead_lettered: int
    waiting: int
    spooled: int
    lost: int
    duplicates: int


@dataclass(frozen=True, slots=True)
class StepTaken:
    number: int
    said: str
    began: float
    seconds: float
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """One expectation: whether it holds, and the values that decided."""

    expectation: str
    holds: bool
    values: Mapping[str, float | str | None]
    """None: a time of sends, and none was accepted."""


@dataclass(frozen=True, slots=True)
class Change:
    """An entity changed its state, so many seconds after the first step."""

    at: float
    entity: str
    before: str
    after: str
    cause: str


@dataclass(frozen=True, slots=True)
class Result:
    name: str
    seconds: float
    steps: tuple[StepTaken, ...]
    account: Account
    entities: Mapping[str, Account]
    latencies: Mapping[str, float | None]
    changes: tuple[Change, ...]
    errors: Mapping[str, int]
    """Sends that raised, by the class of the error."""
    lost: tuple[str, ...]
    """The ids of messages that are nowhere, the first few."""
    verdicts: tuple[Verdict, ...]
    left_behind: tuple[str, ...] = ()
    """Entities of the drill that could not be removed, each with its namespace."""

    @property
    def passed(self) -> bool:
        """Every step came to its end, every expectation holds, and nothing is left behind."""
        played = all(step.problem is None for step in self.steps)
        return played and all(verdict.holds for verdict in self.verdicts) and not self.left_behind

    def as_dict(self) -> dict[str, Any]:
        return {"passed": self.passed, **asdict(self)}


def percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that so large a share does not exceed; of nothing, not a number."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.nan
