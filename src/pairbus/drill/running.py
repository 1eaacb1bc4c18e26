"""Runs a scenario: the steps in order, then the census, then the expectations.

- A step that fails or takes too long becomes a problem in the result, and the steps after it are skipped.
- Whatever happens, at the end senders are stopped, faults cleared, namespaces started, and every message is looked for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from azure.core.exceptions import AzureError
from azure.servicebus import ServiceBusReceiveMode

from pairbus.aio import SendAvailabilityPairedNamespaceOptions, pair_namespace
from pairbus.drill.census import FIELDS, Account, Census, Destination, take_census
from pairbus.drill.scenario import (
    ClearAction,
    DrillStep,
    FaultAction,
    KillAction,
    NamespaceRole,
    PauseAction,
    PurgeAction,
    RestartAction,
    Scenario,
    SendAction,
    StartAction,
    StopAction,
    SyphonAction,
    Value,
    WaitAction,
    is_known,
)
from pairbus.drill.senders import Senders
from pairbus.drill.stage import SUBSCRIPTION, LeftBehindError, Stage, entities_on, set_sending
from pairbus.errors import PairbusError
from pairbus.failover.states import EntityState
from pairbus.pairing.options import backlog_path
from pairbus.syphon.backlog import count_waiting
from pairbus.syphon.service import Syphon

POLL_SECONDS = 0.1
LOOK_SECONDS = 10.0
"""One look into the backlog may take this long, even if the step has less time left."""
PURGE_WAIT_SECONDS = 5.0
MAX_LOST_SHOWN = 20
_ERRORS = (AzureError, PairbusError, OSError, RuntimeError)
"""Errors of namespaces, of the pairing and of the syphon. A timeout is an OSError."""
_SHARES = {"p50_send": 0.5, "p95_send": 0.95, "p99_send": 0.99, "max_send": 1.0}

T = TypeVar("T", float, Value)


@dataclass(frozen=True, slots=True)
class StepResult:
    number: int
    text: str
    began: float
    seconds: float
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class ExpectationResult:
    expectation: str
    holds: bool
    values: Mapping[str, float | str | None]
    """The values that decided. None for a latency if no send was accepted."""


@dataclass(frozen=True, slots=True)
class StateChange:
    """An entity changed its state, `at` seconds after the first step."""

    at: float
    entity: str
    before: str
    after: str
    cause: str


@dataclass(frozen=True, slots=True)
class DrillResult:
    name: str
    seconds: float
    steps: tuple[StepResult, ...]
    account: Account
    entities: Mapping[str, Account]
    latencies: Mapping[str, float | None]
    changes: tuple[StateChange, ...]
    errors: Mapping[str, int]
    """How many sends raised, by class of the error."""
    lost: tuple[str, ...]
    """The ids of lost messages, at most MAX_LOST_SHOWN of each entity."""
    verdicts: tuple[ExpectationResult, ...]
    left_behind: tuple[str, ...] = ()
    """Entities that the drill could not delete, each with its namespace."""

    @property
    def passed(self) -> bool:
        """Every step succeeded, every expectation holds, and nothing is left behind."""
        return (
            all(step.problem is None for step in self.steps)
            and all(verdict.holds for verdict in self.verdicts)
            and not self.left_behind
        )

    def as_dict(self) -> dict[str, Any]:
        return {"passed": self.passed, **asdict(self)}


async def run_drill(scenario: Scenario, stage: Stage, report: Callable[[str], None] = lambda _: None) -> DrillResult:
    """Play the scenario; `report` gets a line for each step as it begins."""
    spool = stage.folder / "spool" if scenario.pairing.spool else None
    queues = int(scenario.pairing.options.get("backlog_queue_count", 10))
    entities = list(scenario.entities.values())
    drill = _Drill(scenario, stage, queues, report)
    census = None
    left_behind: tuple[str, ...] = ()
    try:
        async with entities_on(stage, entities, queues):
            await drill.play(spool)
            await stage.repair()
            for entity in drill.disabled:
                await set_sending(stage, scenario.entities[entity], True)
            destinations = [
                Destination(entity.name, stage.path(entity.name), entity.topic and SUBSCRIPTION, entity.sessions)
                for entity in entities
            ]
            try:
                census = await take_census(stage, destinations, queues, spool)
            except ExceptionGroup as errors:
                raise errors.exceptions[0] from errors
    except LeftBehindError as error:
        if census is None:
            raise
        left_behind = error.names
    return replace(drill.judge(census), left_behind=left_behind)


class _Drill:
    def __init__(self, scenario: Scenario, stage: Stage, queues: int, report: Callable[[str], None]) -> None:
        self._scenario = scenario
        self._stage = stage
        self._queues = queues
        self._report = report
        self._paired: Any = None
        self._began = time.monotonic()
        self._began_at = datetime.now(UTC)
        self._names = {stage.path(name).lower(): name for name in scenario.entities}
        self._changes: list[StateChange] = []
        self._steps: list[StepResult] = []
        self.disabled: set[str] = set()
        self._senders: Senders

    # --- the steps ------------------------------------------------------------------------------------------

    async def play(self, spool: Path | None) -> None:
        primary, secondary = self._stage.namespace("primary"), self._stage.namespace("secondary")
        retries = self._scenario.pairing.sdk_retries
        paired = await pair_namespace(
            primary.client(retry_total=retries),
            SendAvailabilityPairedNamespaceOptions(
                secondary.administration(),
                secondary.client(retry_total=retries),
                primary_name=self._stage.primary_name,
                spool=spool,
                **self._scenario.pairing.options,
            ),
        )
        async with paired:
            self._paired = paired
            paired.on_transition(self._note_change)
            self._senders = Senders(paired, {name: self._stage.path(name) for name in self._scenario.entities})
            self._began, self._began_at = time.monotonic(), datetime.now(UTC)
            try:
                for step in self._scenario.steps:
                    if not await self._play_step(step):
                        break
            finally:
                await self._stop_senders()

    async def _stop_senders(self) -> None:
        began = self._elapsed()
        try:
            await self._senders.stop()
        except _ERRORS as error:
            seconds = self._elapsed() - began
            self._steps.append(StepResult(len(self._steps) + 1, "stop", began, seconds, _first_line(error)))

    async def _play_step(self, step: DrillStep) -> bool:
        began = self._elapsed()
        self._report(f"{began:6.1f} s  {step.text}")
        problem = None
        try:
            await self._act(step)
        except _ERRORS as error:
            problem = _first_line(error)
            self._report(f"{self._elapsed():6.1f} s  {problem}")
        self._steps.append(StepResult(step.number, step.text, began, self._elapsed() - began, problem))
        return problem is None

    async def _act(self, step: DrillStep) -> None:
        stage, entities = self._stage, self._scenario.entities
        match step.action:
            case StartAction() as action:
                self._senders.start(entities[action.entity], action)
            case SendAction() as action:
                await self._senders.send(entities[action.entity], action)
            case StopAction() as action:
                await self._senders.stop(action.entity)
            case FaultAction(mode="disable", entity=str(entity)):
                await set_sending(stage, entities[entity], False)
                self.disabled.add(entity)
            case FaultAction() as fault:
                await stage.fault(fault)
            case ClearAction() as action:
                await self._clear(action.namespace, action.entity)
            case KillAction() as action:
                await stage.kill(action.namespace)
            case RestartAction() as action:
                await stage.restart(action.namespace)
            case PauseAction() as action:
                await asyncio.sleep(action.seconds)
            case WaitAction() as action:
                await self._wait(step, action.within)
            case SyphonAction() as action:
                await self._run_syphon(action.within)
            case PurgeAction() as action:
                await self._purge(action.count)

    async def _clear(self, role: NamespaceRole, entity: str | None) -> None:
        await self._stage.clear(role, entity)
        if role == "primary":
            for name in [name for name in self.disabled if entity in (None, name)]:
                await set_sending(self._stage, self._scenario.entities[name], True)
                self.disabled.discard(name)

    async def _wait(self, step: DrillStep, within: float) -> None:
        deadline = time.monotonic() + within
        what = f"Waited {within:g} s for {', '.join(condition.text for condition in step.until)}"
        needs_backlog = any("waiting" in condition.metrics for condition in step.until)
        while True:
            left = deadline - time.monotonic()
            waiting = await self._look_into_backlog(what, max(left, LOOK_SECONDS)) if needs_backlog else 0

            def look(metric: str, entity: str | None, waiting: int = waiting) -> Value:
                return waiting if metric == "waiting" else self._live(metric, entity)

            results = [condition.check(look) for condition in step.until]
            if all(holds for holds, _ in results):
                return
            if left <= 0:
                values = {name: value for _, seen in results for name, value in seen.items()}
                seen = ", ".join(
                    f"{name} is {value if is_known(value) else 'unknown'}" for name, value in values.items()
                )
                raise TimeoutError(f"{what}: {seen}.")
            await asyncio.sleep(POLL_SECONDS)

    async def _look_into_backlog(self, what: str, timeout_s: float) -> int:
        try:
            async with asyncio.timeout(timeout_s):
                return await self._waiting()
        except TimeoutError:
            raise TimeoutError(f"{what}: the secondary does not answer, so the backlog's depth is unknown.") from None

    async def _run_syphon(self, within: float) -> None:
        syphon = Syphon(
            self._stage.namespace("primary"),
            self._stage.namespace("secondary"),
            primary_name=self._stage.primary_name,
            queues=range(self._queues),
        )
        running = asyncio.ensure_future(syphon.run(once=True))
        done, _ = await asyncio.wait([running], timeout=within)
        if not done:
            syphon.stop()
        await running
        if not done:
            raise TimeoutError(f"The syphon did not empty the backlog within {within:g} s.")

    async def _purge(self, count: int | None) -> None:
        """Delete messages from the backlog queues, oldest first."""
        left = await self._waiting() if count is None else count
        async with self._stage.namespace("secondary").client() as client:
            for number in range(self._queues):
                receiver = client.get_queue_receiver(
                    backlog_path(self._stage.primary_name, number),
                    receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE,
                )
                async with receiver:
                    while left > 0 and await self._depth(number):
                        left -= len(await receiver.receive_messages(min(left, 100), max_wait_time=PURGE_WAIT_SECONDS))

    # --- what is known --------------------------------------------------------------------------------------

    def _elapsed(self) -> float:
        return time.monotonic() - self._began

    def _note_change(self, event: Any) -> None:
        name = self._names.get(event.entity.lower(), event.entity)
        at = (event.at - self._began_at).total_seconds()
        self._changes.append(StateChange(at, name, event.before.value, event.after.value, event.cause))
        self._report(f"{self._elapsed():6.1f} s  '{name}' is {event.after.value}")

    async def _waiting(self) -> int:
        return await self._depth(*range(self._queues))

    async def _depth(self, *numbers: int) -> int:
        paths = [backlog_path(self._stage.primary_name, number) for number in numbers]
        depths = await count_waiting(self._stage.namespace("secondary"), paths)
        return sum(depth.waiting for depth in depths.values())

    def _live(self, metric: str, entity: str | None) -> Value:
        match metric:
            case "accepted":
                return self._senders.accepted(entity)
            case "refused":
                return self._senders.refused(entity)
            case "failovers":
                return self._count_changes(entity, lambda change: change.after == EntityState.FAILED_OVER.value)
            case "recoveries":
                recovery = (EntityState.FAILED_OVER.value, EntityState.HEALTHY.value)
                return self._count_changes(entity, lambda change: (change.before, change.after) == recovery)
            case "state":
                state: EntityState = self._paired.state(self._stage.path(str(entity)))
                return state.name.lower()
            case "spooled":
                return self._paired.spool.depth if self._paired.spool is not None else 0
            case "elapsed":
                return self._elapsed()
        return self._senders.latency(_SHARES[metric], entity)

    def _count_changes(self, entity: str | None, matches: Callable[[StateChange], bool]) -> int:
        return sum(1 for change in self._changes if entity in (None, change.entity) and matches(change))

    # --- the result -----------------------------------------------------------------------------------------

    def judge(self, census: Census) -> DrillResult:
        seconds = self._elapsed()
        entities: dict[str, Account] = {}
        lost: list[str] = []
        for name, entity in self._scenario.entities.items():
            sent = self._senders.sent[name]
            entities[name], ids = census.account(
                name, sent.accepted, refused=sent.refused, detects_duplicates=entity.duplicate_detection
            )
            lost += ids[:MAX_LOST_SHOWN]
        total = Account.sum_of(entities.values())

        def look(metric: str, entity: str | None) -> Value:
            account = total if entity is None else entities[entity]
            if metric in FIELDS:
                return int(getattr(account, metric))
            return seconds if metric == "elapsed" else self._live(metric, entity)

        verdicts = []
        for expectation in self._scenario.expect:
            holds, values = expectation.check(look)
            known = {name: _or_none(value) for name, value in values.items()}
            verdicts.append(ExpectationResult(expectation.text, holds, known))
        # Unless the scenario says how many sends succeed, at least one must: a drill that sends nothing proves nothing.
        is_about_sends = any({"accepted", "refused"} & expectation.metrics for expectation in self._scenario.expect)
        if not total.accepted and not is_about_sends:
            verdicts.append(ExpectationResult("accepted > 0", False, {"accepted": 0}))
        return DrillResult(
            name=self._scenario.name,
            seconds=seconds,
            steps=tuple(self._steps),
            account=total,
            entities=entities,
            latencies={name: _or_none(self._senders.latency(share, None)) for name, share in _SHARES.items()},
            changes=tuple(self._changes),
            errors=dict(self._senders.errors),
            lost=tuple(lost),
            verdicts=tuple(verdicts),
        )


def _first_line(error: BaseException) -> str:
    text = str(error).strip().partition("\n")[0].rstrip(".")
    return f"{text or f'It failed: {type(error).__name__}'}."


def _or_none(value: T) -> T | None:
    return value if is_known(value) else None
