"""Published states of processes that never ran, for tests of their readers and for the pictures in the guides.

They show an hour at a shop: two applications, a service that carries the backlog home, and a process that died. The
primary was unreachable for twelve minutes, and one of its entities is unreachable again.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from pairbus.ledger import Operation, Outcome, Route
from pairbus.publishing.flows import BUCKET_SECONDS, DAY_SECONDS, KEPT_BUCKETS
from pairbus.publishing.folder import OwnFolder, open_state_folder
from pairbus.publishing.records import (
    STATE_VERSION,
    EntityReport,
    Flow,
    Moment,
    OperationCount,
    PairReport,
    Ping,
    ProcessState,
    PumpReport,
    Speed,
    SyphonReport,
    Totals,
    TransitionReport,
)

PRIMARY, SECONDARY = "contoso.servicebus.windows.net", "contoso-standby.servicebus.windows.net"
REFUSED = "ServiceBusConnectionError"
_MINUTE = 60
_HEARTBEAT_SECONDS = 0.5


def states_of_an_hour(now: float) -> list[ProcessState]:
    """The three live processes, and the dead one."""
    return [
        _application("shop-frontend", 4711, now, share=1.0),
        _application("shop-billing", 4720, now, share=0.35),
        _syphon(now),
        ProcessState(
            v=STATE_VERSION,
            process="shop-4600-cccccccc",
            program="nightly-import",
            host="shop",
            pid=4600,
            started=now - 50 * _MINUTE,
            at=now - 21 * _MINUTE,
        ),
    ]


@contextmanager
def published_hour(state_folder: Path) -> Iterator[list[ProcessState]]:
    """Publish the states in a state folder, and keep them fresh until the context ends."""
    states = states_of_an_hour(time.time())
    open_state_folder(state_folder)
    folders = [OwnFolder(state_folder, state.process) for state in states]
    for own, state in zip(folders, states, strict=True):
        own.write(state)
    folders.pop().close()
    over = threading.Event()

    def go_on() -> None:
        while not over.wait(_HEARTBEAT_SECONDS):
            for own, state in zip(folders, states, strict=False):
                own.write(msgspec.structs.replace(state, at=time.time()))

    heart = threading.Thread(target=go_on, name="published hour", daemon=True)
    heart.start()
    try:
        yield states
    finally:
        over.set()
        heart.join()
        for own in folders:
            own.close()


def _application(program: str, pid: int, now: float, share: float) -> ProcessState:
    last = int(now) // BUCKET_SECONDS
    history, sums = [], [0] * len(Flow.__struct_fields__)
    for age in reversed(range(KEPT_BUCKETS)):
        minutes = age * BUCKET_SECONDS / _MINUTE
        sends = round(share * BUCKET_SECONDS * (42 + 9 * math.sin(age / 17) + 4 * math.sin(age / 3)))
        away = round(sends * (1.0 if 26 < minutes <= 38 else 0.3 if minutes <= 4 else 0.0))
        failed = round(sends * 0.4) if 38 < minutes <= 39 or 4 < minutes <= 4.4 else 0
        flow = Flow(primary=sends - away - failed, backlog=away, failed=failed, stored=away)
        history.append(Moment(PRIMARY, last - age, flow))
        sums = [total + getattr(flow, name) for total, name in zip(sums, Flow.__struct_fields__, strict=True)]
    total = Flow(*sums)
    day = int(now) // DAY_SECONDS
    over_since = now - 4 * _MINUTE

    def change(minutes: float, entity: str, before: str, after: str, reason: str, cause: str) -> TransitionReport:
        return TransitionReport(now - minutes * _MINUTE, PRIMARY, entity, before, after, reason, cause, f"e{entity}")

    transitions = []
    for entity in ("invoices", "orders", "prices"):
        transitions += [
            change(39, entity, "healthy", "suspect", "send_failed", REFUSED),
            change(38, entity, "suspect", "failed over", "deadline", REFUSED),
            change(26, entity, "failed over", "healthy", "ping_succeeded", "ping"),
        ]
    transitions += [
        change(5, "orders", "healthy", "suspect", "send_failed", "OperationTimeoutError"),
        change(4, "orders", "suspect", "failed over", "deadline", "OperationTimeoutError"),
    ]
    entities = [
        EntityReport("invoices", "healthy", now - 26 * _MINUTE),
        EntityReport(
            "orders",
            "failed over",
            over_since,
            "OperationTimeoutError",
            deadline=now + 21,
            ping=Ping(now - 39, False, "OperationTimeoutError"),
        ),
        EntityReport("prices", "healthy", now - 26 * _MINUTE),
    ]

    def count(
        operation: Operation, operations: int, route: Route, target: str = "orders", *, secondary: bool = False
    ) -> OperationCount:
        return OperationCount(
            day=day,
            primary=PRIMARY,
            namespace=SECONDARY if secondary else PRIMARY,
            target=target,
            operation=operation,
            outcome=Outcome.OK,
            operations=operations,
            billed=operations,
            route=route,
            on_backlog=secondary,
        )

    rate = share * 44
    return ProcessState(
        v=STATE_VERSION,
        process=f"shop-{pid}-aaaaaaaa",
        program=program,
        host="shop",
        pid=pid,
        started=now - 5 * 3600,
        at=now,
        pairs=[PairReport("pair-1", PRIMARY, SECONDARY, "contoso", entities, 10, 9, 60.0, 60.0, 0)],
        counts=[
            count(Operation.SEND, total.primary // 2, Route.PRIMARY),
            count(Operation.SEND, total.primary // 3, Route.PRIMARY, "invoices"),
            count(Operation.SEND, total.primary - total.primary // 2 - total.primary // 3, Route.PRIMARY, "prices"),
            count(Operation.DIVERT, total.backlog, Route.BACKLOG, secondary=True),
            count(Operation.PING, 41, Route.PRIMARY),
        ],
        totals=[Totals(PRIMARY, total)],
        history=history,
        speeds=[Speed(PRIMARY, "primary", rate * 0.7), Speed(PRIMARY, "backlog", rate * 0.3)],
        transitions=sorted(transitions, key=lambda one: one.at),
    )


def _syphon(now: float) -> ProcessState:
    last = int(now) // BUCKET_SECONDS
    carried = 25_000
    history = [
        Moment(PRIMARY, last - age, Flow(home=each, gone=each))
        for age in range(KEPT_BUCKETS)
        if 20 < age * BUCKET_SECONDS / _MINUTE <= 26
        for each in (carried // 36,)
    ]
    home = sum(moment.flow.home for moment in history)

    def count(operation: Operation, namespace: str, on_backlog: bool) -> OperationCount:
        day = int(now) // DAY_SECONDS
        return OperationCount(
            day=day,
            primary=PRIMARY,
            namespace=namespace,
            target="orders",
            operation=operation,
            outcome=Outcome.OK,
            operations=home,
            billed=0 if operation is Operation.COMPLETE else home,
            route=Route.SYPHON,
            on_backlog=on_backlog,
        )

    pumps = [
        PumpReport(f"contoso/x-servicebus-transfer/{number}", "receiving", held=310 + number, restored=home // 10)
        for number in range(10)
    ]
    return ProcessState(
        v=STATE_VERSION,
        process="shop-4730-bbbbbbbb",
        program="pairbus.cli",
        host="shop",
        pid=4730,
        started=now - 9 * 3600,
        at=now,
        syphons=[SyphonReport("syphon-1", PRIMARY, SECONDARY, "contoso", "running", pumps)],
        counts=[
            count(Operation.RECEIVE, SECONDARY, True),
            count(Operation.RESTORE, PRIMARY, False),
            count(Operation.COMPLETE, SECONDARY, True),
        ],
        totals=[Totals(PRIMARY, Flow(home=home, gone=home))],
        history=history,
    )
