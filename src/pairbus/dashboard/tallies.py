"""What each process had put into a backlog, less what it took out, when the secondary counted it. PURE.

A count is some seconds old when it is shown. It is carried forward and backward by what the processes published, from
the moment it was made: the past of a backlog does not move while its count gets older.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pairbus.dashboard.reading import Sighting
from pairbus.dashboard.view import Depth, key, put_in

SETTLED_SECONDS = 3.0
"""By then every process has published once more, and what it had done at the count is as certain as it gets."""
KEPT_TALLIES = 20


@dataclass(frozen=True, slots=True)
class Tally:
    """What one process had put into the backlog of one primary, less what it took out, at a moment."""

    at: float
    put_in: int


class Tallies:
    """The last tallies of every process, and those at the count for every pair."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], list[Tally]] = {}
        self._settled: dict[str, Depth] = {}

    def see(self, sighting: Sighting) -> None:
        """Remember what the processes say now; those that are gone are forgotten."""
        kept: dict[tuple[str, str], list[Tally]] = {}
        for process in sighting.processes:
            state = process.state
            for primary in {key(one.primary) for one in state.totals}:
                # A process begins with nothing.
                seen = self._kept.get((primary, process.name), [Tally(state.started, 0)])
                if state.at > seen[-1].at:
                    seen = [*seen, Tally(state.at, put_in(process, primary))][-KEPT_TALLIES:]
                kept[primary, process.name] = seen
        self._kept = kept

    def anchored(self, depths: Mapping[str, Depth], now: float) -> dict[str, Depth]:
        """Counts with what the processes had put in at their time; once it is settled, it stays."""
        found = {}
        for primary, depth in depths.items():
            settled = self._settled.get(primary)
            if settled is not None and settled.at == depth.at:
                found[primary] = settled
                continue
            then = {
                process: put_in_at(seen, depth.at) for (each, process), seen in self._kept.items() if each == primary
            }
            found[primary] = replace(depth, put_in=then)
            if now - depth.at >= SETTLED_SECONDS:
                self._settled[primary] = found[primary]
        for gone in self._settled.keys() - depths.keys():
            del self._settled[gone]
        return found


def put_in_at(tallies: Sequence[Tally], at: float) -> int:
    """Between two tallies in proportion to the time; before the first and after the last, as these."""
    position = bisect_right(tallies, at, key=lambda one: one.at)
    if position in (0, len(tallies)):
        return tallies[max(0, position - 1)].put_in
    before, after = tallies[position - 1], tallies[position]
    share = (at - before.at) / (after.at - before.at)
    return before.put_in + round((after.put_in - before.put_in) * share)
