"""What the page shows: everything that was seen, put together. PURE: a function of the sighting and the time."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from pairbus.dashboard.money import Prices, outage_per_hour, today
from pairbus.dashboard.reading import SHOWN_DEAD_SECONDS, Process, Sighting
from pairbus.dashboard.ribbons import WORST_FIRST, Witness, ribbon, worst
from pairbus.ledger.records import Operation
from pairbus.publishing.flows import DAY_SECONDS, flows_of
from pairbus.publishing.history import BUCKET_SECONDS, KEPT_BUCKETS
from pairbus.publishing.records import Count, EntityReport, Flow, PairReport, SyphonReport

HISTORY_SECONDS = BUCKET_SECONDS * KEPT_BUCKETS
SHOWN_TRANSITIONS = 50
SAME_TIME_SECONDS = 5.0
SHOWN_FLOWS = ("primary", "backlog", "spool", "failed", "home")


@dataclass(frozen=True, slots=True)
class Depth:
    """How many messages wait in the backlog queues of one primary, as the secondary's administration counts them."""

    messages: int
    dead_letters: int
    at: float
    put_in: Mapping[str, int] | None = None
    """What each process had put in, less what it took out, at that time; None: nobody knows, and the count stands."""


@dataclass(frozen=True, slots=True)
class Known:
    """Everything a view is made of.

    A ledger, if one is read, replaces what the processes counted themselves: `recorded` is what clients and syphons
    did, `billed` what their namespaces bill.
    """

    sighting: Sighting
    prices: Prices
    depths: Mapping[str, Depth]
    """By the key of the pair."""
    depth_troubles: Mapping[str, str] = field(default_factory=dict)
    """Why a pair that should be counted is not, by its key."""
    recorded: Sequence[Count] | None = None
    billed: Sequence[Count] | None = None
    ledger_complete: bool = True
    """Whether all that the ledger holds of today is in these."""
    ledger_unreadable: int = 0
    ledger_refused: int = 0
    control: bool = False


def key(primary: str) -> str:
    """What tells one pair from another: what its processes call the primary, whole. Case does not matter."""
    return primary.lower()


def put_in(process: Process, this: str) -> int:
    """What a process has put into the backlog of a primary since it began, less what it took out."""
    return sum(one.flow.stored - one.flow.gone for one in process.state.totals if key(one.primary) == this)


def carried_forward(counted: Depth, this: str, processes: Sequence[Process]) -> int:
    """The depth now: what was counted, and what the processes say they put in since, less what they took out.

    A process that is not in the sighting any more has done nothing since; one that was not there then began with
    nothing. May be less than nothing for a moment: processes publish one after the other.
    """
    if counted.put_in is None:
        return counted.messages
    return counted.messages + sum(put_in(one, this) - counted.put_in.get(one.name, 0) for one in processes)


def view(known: Known, now: float) -> dict[str, Any]:
    processes = known.sighting.processes
    day = int(now) // DAY_SECONDS
    counts = known.recorded
    if counts is None:
        counts = [one for process in processes for one in process.state.counts if one.day == day]
    keys = sorted({found for process in processes for found in _keys(process)})
    names = _names(keys, processes)
    if known.recorded is not None:
        counts = _by_pair(counts, keys, processes)
    pairs = [_pair(one, names[one], known, counts, now) for one in keys]
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
        "syphons": [one for process in processes if process.alive for one in _syphons(process, now)],
        "processes": [_process(process, now) for process in processes if _is_shown(process, now)],
        "unread": known.sighting.unread,
        "more_sources": sum(process.state.more_sources for process in processes if process.alive),
        "transitions": _transitions(processes, names),
        "costs": costs,
    }


def _keys(process: Process) -> set[str]:
    reported = {key(one.primary) for one in _reports([process])}
    return reported | {key(one.primary) for one in process.state.totals}


def _reports(processes: Sequence[Process]) -> Iterator[PairReport | SyphonReport]:
    for process in processes:
        yield from process.state.pairs
        yield from process.state.syphons


def _names(keys: Sequence[str], processes: Sequence[Process]) -> dict[str, str]:
    """What the page calls each pair: the name in its backlog paths, or its key where that would mean several."""
    names = {one: one for one in keys}
    names |= {key(report.primary): report.primary_name.lower() for report in _reports(processes)}
    often = Counter(names.values())
    return {one: name if often[name] == 1 else one for one, name in names.items()}


def _by_pair(counts: Sequence[Count], keys: Sequence[str], processes: Sequence[Process]) -> list[Count]:
    """A ledger's counts with the key of their pair: its lines about a backlog queue have the name in the path only."""
    by_path = {(one.primary_name.lower(), one.secondary): key(one.primary) for one in _reports(processes)}
    by_label: dict[str, str] = {}
    for one in reversed(keys):
        by_label[one.partition(".")[0]] = one
    found = []
    for count in counts:
        primary = key(count.primary)
        if primary not in keys:
            primary = by_path.get((primary, count.namespace)) or by_label.get(primary, primary)
        found.append(msgspec.structs.replace(count, primary=primary))
    return found


def _pair(this: str, name: str, known: Known, counts: Sequence[Count], now: float) -> dict[str, Any]:
    processes = known.sighting.processes
    mine = [
        (process, report)
        for process in processes
        if process.alive
        for report in process.state.pairs
        if key(report.primary) == this
    ]
    syphons = [
        report
        for process in processes
        if process.alive
        for report in process.state.syphons
        if key(report.primary) == this
    ]
    reports = [report for _, report in mine]
    speeds = dict.fromkeys((*SHOWN_FLOWS, "gone"), 0.0)
    for process in processes:
        for speed in process.state.speeds if process.alive and not process.is_silent(now) else ():
            if key(speed.primary) == this and speed.flow in speeds:
                speeds[speed.flow] += speed.per_second
    entities = _entities(this, mine, processes, counts, now)
    counted = known.depths.get(this)
    moved = _moved(this, processes, now)
    reported = sum(put_in(process, this) for process in processes)
    present: int | None = reported
    if counted is not None:
        present = carried_forward(counted, this, processes)
    elif _is_others(reported, moved):
        present = None
    waiting = None if present is None else max(0, present)
    depth: dict[str, Any] = {
        "messages": waiting,
        "dead_letters": None if counted is None else counted.dead_letters,
        "counted_at": None if counted is None else counted.at,
        "trouble": known.depth_troubles.get(this),
    }
    depth["drain_seconds"] = waiting / speeds["gone"] if waiting and speeds["gone"] else None
    depth["waits_for"] = _waits_for(depth, [one.state for one in syphons], [one["state"] for one in entities])
    spools = [report.spooled for report in reports if report.spooled is not None]
    named = reports or syphons
    return {
        "key": this,
        "name": name,
        "primary": named[0].primary if named else name,
        "secondary": named[0].secondary if named else "",
        "clients": len(reports),
        "faulted": sum(report.faulted for report in reports),
        "state": worst(one["state"] for one in entities) if entities else "unknown",
        "entities": entities,
        "more_entities": max((report.more_entities for report in reports), default=0),
        "speeds": {flow: round(speed, 2) for flow, speed in speeds.items()},
        "today": _today(this, counts),
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
    """Why a backlog does not get smaller, as far as it can be seen from here."""
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
    counts: Sequence[Count],
    now: float,
) -> list[dict[str, Any]]:
    by_name: dict[str, list[tuple[Process, EntityReport]]] = defaultdict(list)
    for process, report in mine:
        for entity in report.entities:
            by_name[entity.name].append((process, entity))
    sent: dict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys(("primary", "backlog", "pings"), 0))
    for count in counts:
        if key(count.primary) == this:
            row = sent[count.target]
            for flow in flows_of(count.operation, count.route, count.outcome, count.on_backlog):
                if flow in row:
                    row[flow] += count.operations
            if count.operation is Operation.PING:
                row["pings"] += count.operations
    found = []
    for entity_name, seen in sorted(by_name.items()):
        state = worst(report.state for _, report in seen)
        those = [report for _, report in seen if report.state == state]
        pings = [report.ping for _, report in seen if report.ping is not None]
        last = max(pings, key=lambda ping: ping.at, default=None)
        deadlines = [report.deadline for report in those if report.deadline is not None]
        found.append(
            {
                "name": entity_name,
                "state": state,
                "since": min(report.since for report in those),
                "clients": {one: sum(report.state == one for _, report in seen) for one in WORST_FIRST},
                "cause": next((report.cause for report in those if report.cause), ""),
                "deadline": min(deadlines, default=None),
                "ping": None if last is None else {"at": last.at, "delivered": last.delivered, "error": last.error},
                "today": sent[entity_name],
                "ribbon": ribbon(_witnesses(this, entity_name, processes, now), begin=now - HISTORY_SECONDS, end=now),
            }
        )
    return found


def _witnesses(this: str, entity: str, processes: Sequence[Process], now: float) -> list[Witness]:
    found = []
    for process in processes:
        changes = [one for one in process.state.transitions if key(one.primary) == this and one.entity == entity]
        present = [
            report
            for pair in process.state.pairs
            if key(pair.primary) == this
            for report in pair.entities
            if report.name == entity
        ]
        if not changes and not present:
            continue
        state = worst(report.state for report in present) if present else changes[-1].after
        begin = process.state.started if changes else min(report.since for report in present)
        found.append(Witness(begin, now if process.alive else process.state.at, state, changes))
    return found


def _today(this: str, counts: Sequence[Count]) -> dict[str, int]:
    sums = dict.fromkeys((*SHOWN_FLOWS, "pings"), 0)
    for count in counts:
        if key(count.primary) == this:
            for flow in flows_of(count.operation, count.route, count.outcome, count.on_backlog):
                if flow in sums:
                    sums[flow] += count.operations
            if count.operation is Operation.PING:
                sums["pings"] += count.operations
    return sums


def _moved(this: str, processes: Sequence[Process], now: float) -> dict[str, list[int]]:
    """Messages in each bucket of the last hour, for each of the flows; the last bucket is the one of this moment."""
    last = int(now) // BUCKET_SECONDS
    first = last - KEPT_BUCKETS + 1
    columns = {flow: [0] * KEPT_BUCKETS for flow in Flow.__struct_fields__}
    ordered = list(columns.values())
    for process in processes:
        for moment in process.state.history:
            if key(moment.primary) == this and first <= moment.bucket <= last:
                for column, moved in zip(ordered, msgspec.structs.astuple(moment.flow), strict=True):
                    if moved:
                        column[moment.bucket - first] += moved
    return columns


def _depths(depth: int, moved: Mapping[str, Sequence[int]]) -> list[int]:
    """The depth at the end of each bucket: what it is now, less what came in and went since."""
    depths = [0] * KEPT_BUCKETS
    for position in reversed(range(KEPT_BUCKETS)):
        depths[position] = depth
        depth -= moved["stored"][position] - moved["gone"][position]
    return depths


def _is_others(reported: int, moved: Mapping[str, Sequence[int]]) -> bool:
    """Whether a syphon here took out more than anybody here put in: then nobody here knows how many wait.

    Processes publish one after the other, so that what was taken out just now may have been put in by one that has not
    said so yet: only what is missing after a bucket or two counts.
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
        "depth": None if depth is None else [max(0, one) for one in _depths(depth, moved)],
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


def _is_shown(process: Process, now: float) -> bool:
    return process.alive or now - process.state.at < SHOWN_DEAD_SECONDS


def _process(process: Process, now: float) -> dict[str, Any]:
    state = process.state
    if process.alive:
        condition = "silent" if process.is_silent(now) else "alive"
    else:
        condition = "died" if process.died else "ended"
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
    """The last changes, newest first: one for all clients that saw it at about the same time, once for each of them."""
    changes = [(one, process) for process in processes for one in process.state.transitions]
    changes.sort(key=lambda pair: pair[0].at, reverse=True)
    found: list[dict[str, Any]] = []
    groups: dict[tuple[str, ...], dict[str, Any]] = {}
    seen_by: dict[tuple[str, ...], set[tuple[str, str]]] = {}
    for one, process in changes:
        alike = (key(one.primary), one.entity, one.before, one.after, one.reason, one.cause)
        group = groups.get(alike)
        client = (process.name, one.source)
        if group is not None and group["at"] - one.at < SAME_TIME_SECONDS and client not in seen_by[alike]:
            seen_by[alike].add(client)
            group["clients"] += 1
            continue
        if len(found) == SHOWN_TRANSITIONS:
            break
        groups[alike] = {
            "at": one.at,
            "primary": names.get(alike[0], alike[0]),
            "entity": one.entity,
            "before": one.before,
            "after": one.after,
            "reason": one.reason,
            "cause": one.cause,
            "program": process.state.program,
            "pid": process.state.pid,
            "clients": 1,
        }
        seen_by[alike] = {client}
        found.append(groups[alike])
    return found
