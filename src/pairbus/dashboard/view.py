"""PURE. The view that the page shows: a function of the published states, the counted depths and the time.

A counted depth is some seconds old when it is shown. It is carried forward and backward from the moment of the count by
what the processes published, so that the past of a backlog does not move while its count gets older.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

import msgspec

from pairbus.costs import rule_for
from pairbus.dashboard.money import Prices, outage_per_hour, today
from pairbus.ledger.records import Operation
from pairbus.publishing.flows import BUCKET_SECONDS, DAY_SECONDS, KEPT_BUCKETS
from pairbus.publishing.records import (
    EntityReport,
    Flow,
    OperationCount,
    PairReport,
    ProcessState,
    SyphonReport,
    TransitionReport,
)

SILENT_SECONDS = 5.0
SHOWN_DEAD_SECONDS = 3600.0
HISTORY_SECONDS = BUCKET_SECONDS * KEPT_BUCKETS
SHOWN_TRANSITIONS = 50
SAME_TIME_SECONDS = 5.0
SHOWN_FLOWS = ("primary", "backlog", "spool", "failed", "home")


@dataclass(frozen=True, slots=True)
class Process:
    """A process and its last state. `alive`: it holds its lock and has not written that it ended."""

    name: str
    state: ProcessState
    alive: bool

    def is_silent(self, now: float) -> bool:
        """It is alive but has not written lately: stopped, swapped out, or its disk fails."""
        return self.alive and now - self.state.at > SILENT_SECONDS


@dataclass(frozen=True, slots=True)
class Sighting:
    """All readable processes; `unread` is the number of the others, and of those beyond the limit."""

    processes: tuple[Process, ...]
    unread: int


@dataclass(frozen=True, slots=True)
class Depth:
    """The number of messages in the backlog queues of one primary, counted by the secondary's administration."""

    messages: int
    dead_letters: int
    at: float
    put_in: Mapping[str, int] | None = None
    """For each process, the messages it had put in minus those it had taken out by then; None if unknown."""


@dataclass(frozen=True, slots=True)
class ViewInput:
    """The data of a view.

    A ledger replaces the counts of the processes: `recorded` has the operations of clients and syphons, `billed` those
    that the namespaces bill.
    """

    sighting: Sighting
    prices: Prices
    depths: Mapping[str, Depth]
    """By the key of the pair."""
    depth_troubles: Mapping[str, str] = field(default_factory=dict)
    """Why a pair could not be counted, by its key."""
    recorded: Sequence[OperationCount] | None = None
    billed: Sequence[OperationCount] | None = None
    ledger_complete: bool = True
    """Whether all records of today have been read."""
    ledger_unreadable: int = 0
    ledger_refused: int = 0
    control: bool = False


class OfPrimary(Protocol):
    """A part of a state that belongs to one primary."""

    @property
    def primary(self) -> str: ...


T = TypeVar("T", bound=OfPrimary)


def pair_key(primary: str) -> str:
    """The identity of a pair: the full name of its primary, without regard to case."""
    return primary.lower()


def _of(this: str, items: Iterable[T]) -> Iterator[T]:
    """The reports, counts or changes that belong to this pair."""
    return (item for item in items if pair_key(item.primary) == this)


def put_in(process: Process, this: str) -> int:
    """The messages that a process has put into the backlog of a primary, minus those it has taken out."""
    return sum(total.flow.stored - total.flow.gone for total in _of(this, process.state.totals))


def carried_forward(counted: Depth, this: str, processes: Sequence[Process]) -> int:
    """The depth now: the count, plus the messages that processes put in since, minus those they took out.

    A process that is gone has done nothing since; a new one began with nothing. The result may be negative for a
    moment, because processes publish one after the other.
    """
    if counted.put_in is None:
        return counted.messages
    return counted.messages + sum(put_in(process, this) - counted.put_in.get(process.name, 0) for process in processes)


def view(known: ViewInput, now: float) -> dict[str, Any]:
    processes = known.sighting.processes
    day = int(now) // DAY_SECONDS
    counts = known.recorded
    if counts is None:
        counts = [count for process in processes for count in process.state.counts if count.day == day]
    keys = sorted({key for process in processes for key in _keys(process)})
    names = _names(keys, processes)
    if known.recorded is not None:
        counts = _by_pair(counts, keys, processes)
    pairs = [_pair(key, names[key], known, counts, now) for key in keys]
    living = [report for process in processes if process.alive for report in process.state.pairs]
    diverted = sum(pair["speeds"]["backlog"] for pair in pairs)
    costs = today(counts if known.billed is None else known.billed, known.prices, now % DAY_SECONDS)
    costs["outage"] = outage_per_hour(living, diverted, counts, known.prices)
    costs["counted_by"] = "processes" if known.recorded is None else "ledger"
    costs["complete"] = known.ledger_complete
    costs["unreadable_lines"] = known.ledger_unreadable
    costs["refused_files"] = known.ledger_refused
    return {
        "at": now,
        "control": known.control,
        "pairs": pairs,
        "syphons": [syphon for process in processes if process.alive for syphon in _syphons(process, now)],
        "processes": [
            _process(process, now)
            for process in processes
            if process.alive or now - process.state.at < SHOWN_DEAD_SECONDS
        ],
        "unread": known.sighting.unread,
        "more_sources": sum(process.state.more_sources for process in processes if process.alive),
        "transitions": _transitions(processes, names),
        "costs": costs,
    }


def _keys(process: Process) -> set[str]:
    reported = {pair_key(report.primary) for report in _reports([process])}
    return reported | {pair_key(total.primary) for total in process.state.totals}


def _reports(processes: Sequence[Process]) -> Iterator[PairReport | SyphonReport]:
    for process in processes:
        yield from process.state.pairs
        yield from process.state.syphons


def _names(keys: Sequence[str], processes: Sequence[Process]) -> dict[str, str]:
    """The name of each pair on the page: the name in its backlog paths, or its key if that name is not unique."""
    names = {key: key for key in keys}
    names |= {pair_key(report.primary): report.primary_name.lower() for report in _reports(processes)}
    uses = Counter(names.values())
    return {key: name if uses[name] == 1 else key for key, name in names.items()}


def _by_pair(
    counts: Sequence[OperationCount], keys: Sequence[str], processes: Sequence[Process]
) -> list[OperationCount]:
    """Counts of a ledger with the key of their pair: records of a backlog queue only have the name in its path."""
    by_path = {
        (report.primary_name.lower(), report.secondary): pair_key(report.primary) for report in _reports(processes)
    }
    by_label: dict[str, str] = {}
    for key in reversed(keys):
        by_label[key.partition(".")[0]] = key
    assigned = []
    for count in counts:
        primary = pair_key(count.primary)
        if primary not in keys:
            primary = by_path.get((primary, count.namespace)) or by_label.get(primary, primary)
        assigned.append(msgspec.structs.replace(count, primary=primary))
    return assigned


def _pair(this: str, name: str, known: ViewInput, counts: Sequence[OperationCount], now: float) -> dict[str, Any]:
    processes = known.sighting.processes
    living = [process for process in processes if process.alive]
    mine = [(process, report) for process in living for report in _of(this, process.state.pairs)]
    syphons = [report for process in living for report in _of(this, process.state.syphons)]
    reports = [report for _, report in mine]
    speeds = dict.fromkeys((*SHOWN_FLOWS, "gone"), 0.0)
    for process in living:
        for speed in () if process.is_silent(now) else _of(this, process.state.speeds):
            if speed.flow in speeds:
                speeds[speed.flow] += speed.per_second
    entities = _entities(this, mine, processes, counts, now)
    counted = known.depths.get(this)
    moved = _moved(this, processes, now)
    reported = sum(put_in(process, this) for process in processes)
    present: int | None = reported
    if counted is not None:
        present = carried_forward(counted, this, processes)
    elif _has_other_sources(reported, moved):
        present = None
    waiting = None if present is None else max(0, present)
    depth: dict[str, Any] = {
        "messages": waiting,
        "dead_letters": None if counted is None else counted.dead_letters,
        "counted_at": None if counted is None else counted.at,
        "trouble": known.depth_troubles.get(this),
    }
    depth["drain_seconds"] = waiting / speeds["gone"] if waiting and speeds["gone"] else None
    depth["waits_for"] = _waits_for(
        depth, [syphon.state for syphon in syphons], [entity["state"] for entity in entities]
    )
    sent = dict.fromkeys((*SHOWN_FLOWS, "pings"), 0)
    for count in _of(this, counts):
        _add_count(sent, count)
    spools = [report.spooled for report in reports if report.spooled is not None]
    named = reports or syphons
    return {
        "key": this,
        "name": name,
        "primary": named[0].primary if named else name,
        "secondary": named[0].secondary if named else "",
        "clients": len(reports),
        "faulted": sum(report.faulted for report in reports),
        "state": worst(entity["state"] for entity in entities) if entities else "unknown",
        "entities": entities,
        "more_entities": max((report.more_entities for report in reports), default=0),
        "speeds": {flow: round(speed, 2) for flow, speed in speeds.items()},
        "today": sent,
        "depth": depth,
        "rotation": {
            "in": min((report.in_rotation for report in reports), default=0),
            "of": max((report.backlog_queues for report in reports), default=0),
        },
        "spool": sum(spools) if spools else None,
        "syphons": len(syphons),
        "history": _history(moved, present if counted is not None else waiting, now),
    }


def _waits_for(depth: Mapping[str, Any], syphons: Sequence[str], entities: Sequence[str]) -> str | None:
    """Why a backlog does not drain, as far as the published states show."""
    if not depth["messages"] or depth["drain_seconds"] is not None:
        return None
    if not syphons:
        return "a syphon: none publishes here"
    if all(state == "paused" for state in syphons):
        return "its syphon, which is paused"
    return "the primary" if "failed over" in entities else "the syphon"


def _entities(
    this: str,
    mine: Sequence[tuple[Process, PairReport]],
    processes: Sequence[Process],
    counts: Sequence[OperationCount],
    now: float,
) -> list[dict[str, Any]]:
    by_name: dict[str, list[tuple[Process, EntityReport]]] = defaultdict(list)
    for process, report in mine:
        for entity in report.entities:
            by_name[entity.name].append((process, entity))
    sent: dict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys(("primary", "backlog", "pings"), 0))
    for count in _of(this, counts):
        _add_count(sent[count.target], count)
    entities = []
    for entity_name, seen in sorted(by_name.items()):
        state = worst(report.state for _, report in seen)
        worst_reports = [report for _, report in seen if report.state == state]
        pings = [report.ping for _, report in seen if report.ping is not None]
        last = max(pings, key=lambda ping: ping.at, default=None)
        deadlines = [report.deadline for report in worst_reports if report.deadline is not None]
        entities.append(
            {
                "name": entity_name,
                "state": state,
                "since": min(report.since for report in worst_reports),
                "clients": {name: sum(report.state == name for _, report in seen) for name in WORST_FIRST},
                "cause": next((report.cause for report in worst_reports if report.cause), ""),
                "deadline": min(deadlines, default=None),
                "ping": None if last is None else {"at": last.at, "delivered": last.delivered, "error": last.error},
                "today": sent[entity_name],
                "ribbon": ribbon(_witnesses(this, entity_name, processes, now), begin=now - HISTORY_SECONDS, end=now),
            }
        )
    return entities


def _witnesses(this: str, entity: str, processes: Sequence[Process], now: float) -> list[Witness]:
    witnesses = []
    for process in processes:
        changes = [change for change in _of(this, process.state.transitions) if change.entity == entity]
        pairs = _of(this, process.state.pairs)
        present = [report for pair in pairs for report in pair.entities if report.name == entity]
        if not changes and not present:
            continue
        state = worst(report.state for report in present) if present else changes[-1].after
        begin = process.state.started if changes else min(report.since for report in present)
        witnesses.append(Witness(begin, now if process.alive else process.state.at, state, changes))
    return witnesses


def _add_count(sums: dict[str, int], count: OperationCount) -> None:
    for flow in rule_for(count.operation, count.outcome, route=count.route, on_backlog=count.on_backlog).flows:
        if flow in sums:
            sums[flow] += count.operations
    if count.operation is Operation.PING:
        sums["pings"] += count.operations


def _moved(this: str, processes: Sequence[Process], now: float) -> dict[str, list[int]]:
    """The messages in each bucket of the last hour, for each flow; the last bucket is the current one."""
    last = int(now) // BUCKET_SECONDS
    first = last - KEPT_BUCKETS + 1
    columns = {flow: [0] * KEPT_BUCKETS for flow in Flow.__struct_fields__}
    ordered = list(columns.values())
    for process in processes:
        for moment in _of(this, process.state.history):
            if first <= moment.bucket <= last:
                for column, moved in zip(ordered, msgspec.structs.astuple(moment.flow), strict=True):
                    if moved:
                        column[moment.bucket - first] += moved
    return columns


def _depths(depth: int, moved: Mapping[str, Sequence[int]]) -> list[int]:
    """The depth at the end of each bucket: the depth now, minus what came in since, plus what left."""
    depths = [0] * KEPT_BUCKETS
    for position in reversed(range(KEPT_BUCKETS)):
        depths[position] = depth
        depth -= moved["stored"][position] - moved["gone"][position]
    return depths


def _has_other_sources(reported: int, moved: Mapping[str, Sequence[int]]) -> bool:
    """Whether a syphon here took out more than the processes here put in: then the depth is unknown.

    Processes publish one after the other, so a message that was just taken out may come from a process that has not
    published it yet. Only messages still missing after a bucket or two count.
    """
    gone = moved["gone"]
    return any(
        depth + gone[position] + (gone[position - 1] if position else 0) < 0
        for position, depth in enumerate(_depths(reported, moved))
    )


def _history(moved: Mapping[str, Sequence[int]], depth: int | None, now: float) -> dict[str, Any]:
    return {
        "begin": (int(now) // BUCKET_SECONDS - KEPT_BUCKETS + 1) * BUCKET_SECONDS,
        "seconds": BUCKET_SECONDS,
        **{flow: moved[flow] for flow in SHOWN_FLOWS},
        "depth": None if depth is None else [max(0, waiting) for waiting in _depths(depth, moved)],
    }


def _syphons(process: Process, now: float) -> list[dict[str, Any]]:
    return [
        {
            "process": process.name,
            "key": report.key,
            "program": process.state.program,
            "pid": process.state.pid,
            "host": process.state.host,
            "primary": report.primary_name,
            "state": "silent" if process.is_silent(now) else report.state,
            "pumps": len(report.pumps),
            "connected": sum(pump.state not in ("connecting", "missing") for pump in report.pumps),
            "in_hand": sum(pump.in_hand for pump in report.pumps),
            "held": sum(pump.held for pump in report.pumps),
            "restored": sum(pump.restored for pump in report.pumps),
            "dead_lettered": sum(pump.dead_lettered for pump in report.pumps),
            "left_alone": sorted({paused.destination for pump in report.pumps for paused in pump.paused}),
        }
        for report in process.state.syphons
    ]


def _process(process: Process, now: float) -> dict[str, Any]:
    state = process.state
    if process.alive:
        condition = "silent" if process.is_silent(now) else "alive"
    else:
        condition = "ended" if state.ended else "died"
    return {
        "name": process.name,
        "program": state.program,
        "pid": state.pid,
        "host": state.host,
        "condition": condition,
        "started": state.started,
        "heard": state.at,
        "clients": len(state.pairs),
        "syphons": len(state.syphons),
    }


def _transitions(processes: Sequence[Process], names: Mapping[str, str]) -> list[dict[str, Any]]:
    """The last transitions, newest first. Equal transitions of several clients at about the same time are one entry."""
    changes = [(change, process) for process in processes for change in process.state.transitions]
    changes.sort(key=lambda item: item[0].at, reverse=True)
    shown: list[dict[str, Any]] = []
    groups: dict[tuple[str, ...], dict[str, Any]] = {}
    seen_by: dict[tuple[str, ...], set[tuple[str, str]]] = {}
    for change, process in changes:
        alike = (pair_key(change.primary), change.entity, change.before, change.after, change.reason, change.cause)
        group = groups.get(alike)
        client = (process.name, change.source)
        if group is not None and group["at"] - change.at < SAME_TIME_SECONDS and client not in seen_by[alike]:
            seen_by[alike].add(client)
            group["clients"] += 1
            continue
        if len(shown) == SHOWN_TRANSITIONS:
            break
        groups[alike] = {
            "at": change.at,
            "primary": names.get(alike[0], alike[0]),
            "entity": change.entity,
            "before": change.before,
            "after": change.after,
            "reason": change.reason,
            "cause": change.cause,
            "program": process.state.program,
            "pid": process.state.pid,
            "clients": 1,
        }
        seen_by[alike] = {client}
        shown.append(groups[alike])
    return shown


# Ribbons: the states of an entity over the last hour, at each moment the worst of all its paired clients.

WORST_FIRST = ("failed over", "suspect", "healthy")
Stretch = tuple[float, float, str]
"""From, to, state."""


@dataclass(frozen=True, slots=True)
class Witness:
    """A process: from when to when it watched the entity, and the last state."""

    begin: float
    end: float
    state: str
    transitions: Sequence[TransitionReport]


def worst(states: Iterable[str]) -> str:
    known = set(states)
    return next((state for state in WORST_FIRST if state in known), "healthy")


def ribbon(witnesses: Iterable[Witness], begin: float, end: float) -> list[Stretch]:
    """Stretches of one state between `begin` and `end`; times without a witness are left out."""
    changes: list[tuple[float, str, int]] = []
    for witness in witnesses:
        for start, stop, state in _stretches(witness):
            start, stop = max(start, begin), min(stop, end)
            if start < stop:
                changes += [(start, state, 1), (stop, state, -1)]
    changes.sort(key=lambda change: change[0])
    counts = dict.fromkeys(WORST_FIRST, 0)
    stretches: list[Stretch] = []
    since = begin
    for at, state, step in changes:
        present = [name for name, count in counts.items() if count]
        if present and at > since:
            state_then = worst(present)
            if stretches and stretches[-1][1] == since and stretches[-1][2] == state_then:
                stretches[-1] = (stretches[-1][0], at, state_then)
            else:
                stretches.append((since, at, state_then))
        counts[state] = counts.get(state, 0) + step
        since = at
    return stretches


def _stretches(witness: Witness) -> Iterable[Stretch]:
    since = witness.begin
    for change in witness.transitions:
        yield since, change.at, change.before
        since = max(since, change.at)
    yield since, witness.end, witness.state


# Anchors: what each process had put into a backlog when the secondary counted it.

SETTLED_SECONDS = 3.0
"""By then every process has published again, so its state at the count is final."""
KEPT_MOMENTS = 20


@dataclass(frozen=True, slots=True)
class PutIn:
    """The messages that a process had put into a backlog, minus those it had taken out, at a moment."""

    at: float
    put_in: int


class DepthAnchors:
    """Remembers what the processes had put in, and fixes it at the time of each count."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], list[PutIn]] = {}
        self._settled: dict[str, Depth] = {}

    def see(self, sighting: Sighting) -> None:
        """Remember the states of the processes; processes that are gone are forgotten."""
        kept: dict[tuple[str, str], list[PutIn]] = {}
        for process in sighting.processes:
            state = process.state
            for primary in {pair_key(total.primary) for total in state.totals}:
                # A process begins with nothing.
                seen = self._kept.get((primary, process.name), [PutIn(state.started, 0)])
                if state.at > seen[-1].at:
                    seen = [*seen, PutIn(state.at, put_in(process, primary))][-KEPT_MOMENTS:]
                kept[primary, process.name] = seen
        self._kept = kept

    def anchored(self, depths: Mapping[str, Depth], now: float) -> dict[str, Depth]:
        """The counts, with the messages that each process had put in by then."""
        anchored = {}
        for primary, depth in depths.items():
            settled = self._settled.get(primary)
            if settled is not None and settled.at == depth.at:
                anchored[primary] = settled
                continue
            then = {
                process: put_in_at(seen, depth.at) for (pair, process), seen in self._kept.items() if pair == primary
            }
            anchored[primary] = replace(depth, put_in=then)
            if now - depth.at >= SETTLED_SECONDS:
                self._settled[primary] = anchored[primary]
        for gone in self._settled.keys() - depths.keys():
            del self._settled[gone]
        return anchored


def put_in_at(seen: Sequence[PutIn], at: float) -> int:
    """The value at a time, interpolated between two moments."""
    position = bisect_right(seen, at, key=lambda moment: moment.at)
    if position in (0, len(seen)):
        return seen[max(0, position - 1)].put_in
    before, after = seen[position - 1], seen[position]
    share = (at - before.at) / (after.at - before.at)
    return before.put_in + round((after.put_in - before.put_in) * share)
