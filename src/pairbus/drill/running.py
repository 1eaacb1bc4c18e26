"""Runs a scenario: the steps in their order, then the census, then the expectations.

- A step that fails, or does not come to its end in its time, is a problem of the drill's result; the steps after it are
  not taken.
- Whatever happens on the way: senders are stopped, faults cleared, namespaces started, every message looked for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from azure.core.exceptions import AzureError
from azure.servicebus import ServiceBusReceiveMode

from pairbus.aio import SendAvailabilityPairedNamespaceOptions, pair_namespace
from pairbus.drill.census import sum_of, take_census
from pairbus.drill.expressions import Value, is_known
from pairbus.drill.result import Account, Change, Result, StepTaken, Verdict
from pairbus.drill.scenario import (
    Break,
    Carry,
    Clear,
    Kill,
    Pause,
    Purge,
    Restart,
    Scenario,
    Send,
    Step,
    Stop,
    Wait,
)
from pairbus.drill.sending import Senders
from pairbus.drill.stage import LeftBehindError, Stage, entities_on, set_sending
from pairbus.errors import PairbusError
from pairbus.failover import EntityState
from pairbus.pairing.options import backlog_path
from pairbus.syphon.backlog import count_waiting
from pairbus.syphon.service import Syphon

LOOK_AGAIN_SECONDS = 0.1
LOOK_SECONDS = 10.0
"""What one look into the backlog may take, also if the step's own time is over sooner."""
PURGE_WAIT_SECONDS = 5.0
_TROUBLES = (AzureError, PairbusError, OSError, RuntimeError)
"""What namespaces, the pairing and the syphon raise. A time-out is an OSError."""
_ABOUT_SENDS = ("accepted", "refused")
_SHARES = {"p50_send": 0.5, "p95_send": 0.95, "p99_send": 0.99, "max_send": 1.0}

Say = Callable[[str], None]
T = TypeVar("T", float, Value)


async def run_drill(scenario: Scenario, stage: Stage, say: Say = lambda _: None) -> Result:
    """Plays the scenario and says what came of it; `say` is told each step as it begins."""
    options = dict(scenario.pairing)
    spool = stage.folder / "spool" if options.pop("spool", False) else None
    queues = int(options.get("backlog_queue_count", 10))
    entities = list(scenario.entities.values())
    drill = _Drill(scenario, stage, queues, say)
    census = None
    left_behind: tuple[str, ...] = ()
    try:
        async with entities_on(stage, entities, queues):
            await drill.play(options, spool)
            await stage.mend()
            for entity in drill.disabled:
                await set_sending(stage, scenario.entities[entity], True)
            try:
                census = await take_census(stage, entities, queues, spool)
            except ExceptionGroup as errors:
                raise errors.exceptions[0] from errors
    except LeftBehindError as error:
        if census is None:
            raise
        left_behind = error.names
    accounts = {entity.name: census.account(entity, drill.senders.sent[entity.name]) for entity in entities}
    return replace(
        drill.judged({name: account for name, (account, _) in accounts.items()}, accounts), left_behind=left_behind
    )


class _Drill:
    def __init__(self, scenario: Scenario, stage: Stage, queues: int, say: Say) -> None:
        self._scenario = scenario
        self._stage = stage
        self._queues = queues
        self._say = say
        self._paired: Any = None
        self._began = time.monotonic()
        self._began_at = datetime.now(UTC)
        self._names = {stage.path(name).lower(): name for name in scenario.entities}
        self._changes: list[Change] = []
        self._taken: list[StepTaken] = []
        self.disabled: set[str] = set()
        self.senders: Senders

    # --- the steps ------------------------------------------------------------------------------------------

    async def play(self, options: dict[str, Any], spool: Path | None) -> None:
        primary, secondary = self._stage.namespace("primary"), self._stage.namespace("secondary")
        retries = self._scenario.sdk_retries
        paired = await pair_namespace(
            primary.client(retry_total=retries),
            SendAvailabilityPairedNamespaceOptions(
                secondary.administration(),
                secondary.client(retry_total=retries),
                primary_name=self._stage.primary_name,
                spool=spool,
                **options,
            ),
        )
        async with paired:
            self._paired = paired
            paired.on_transition(self._note)
            self.senders = Senders(paired, {name: self._stage.path(name) for name in self._scenario.entities})
            self._began, self._began_at = time.monotonic(), datetime.now(UTC)
            try:
                for step in self._scenario.steps:
                    if not await self._take(step):
                        break
            finally:
                await self._end_sending()

    async def _end_sending(self) -> None:
        began = self._elapsed()
        try:
            await self.senders.stop()
        except _TROUBLES as error:
            number = len(self._taken) + 1
            self._taken.append(StepTaken(number, "stop", began, self._elapsed() - began, _sentence(error)))

    async def _take(self, step: Step) -> bool:
        began = self._elapsed()
        self._say(f"{began:6.1f} s  {step.said}")
        problem = None
        try:
            await self._act(step)
        except _TROUBLES as error:
            problem = _sentence(error)
            self._say(f"{self._elapsed():6.1f} s  {problem}")
        self._taken.append(StepTaken(step.number, step.said, began, self._elapsed() - began, problem))
        return problem is None

    async def _act(self, step: Step) -> None:
        stage, scenario = self._stage, self._scenario
        match step.action:
            case Send(count=None) as send:
                self.senders.start(scenario.entities[send.entity], send)
            case Send() as send:
                await self.senders.send(scenario.entities[send.entity], send)
            case Stop(entity):
                await self.senders.stop(entity)
            case Break(mode="disable", entity=str(entity)):
                await set_sending(stage, scenario.entities[entity], False)
                self.disabled.add(entity)
            case Break() as fault:
                await stage.fault(fault)
            case Clear(role, entity):
                await self._clear(role, entity)
            case Kill(role):
                await stage.kill(role)
            case Restart(role):
                await stage.restart(role)
            case Pause(seconds):
                await asyncio.sleep(seconds)
            case Wait() as wait:
                await self._wait(wait)
            case Carry(within):
                await self._carry(within)
            case Purge(count):
                await self._purge(count)

    async def _clear(self, role: Any, entity: str | None) -> None:
        await self._stage.clear(role, entity)
        if role == "primary":
            for name in [name for name in self.disabled if entity in (None, name)]:
                await set_sending(self._stage, self._scenario.entities[name], True)
                self.disabled.discard(name)

    async def _wait(self, wait: Wait) -> None:
        deadline = time.monotonic() + wait.within
        asks_backlog = any(operand.metric == "waiting" for operand in wait.until.operands())
        while True:
            left = deadline - time.monotonic()
            waiting = await self._look_into_backlog(wait, max(left, LOOK_SECONDS)) if asks_backlog else 0

            def look(metric: str, entity: str | None, waiting: int = waiting) -> Value:
                return waiting if metric == "waiting" else self._live(metric, entity)

            holds, values = wait.until.holds(look)
            if holds:
                return
            if left <= 0:
                seen = ", ".join(
                    f"{name} is {value if is_known(value) else 'not known'}" for name, value in values.items()
                )
                raise TimeoutError(f"Waited {wait.within:g} s for {wait.until.text}: {seen}.")
            await asyncio.sleep(LOOK_AGAIN_SECONDS)

    async def _look_into_backlog(self, wait: Wait, most_seconds: float) -> int:
        try:
            async with asyncio.timeout(most_seconds):
                return await self._waiting()
        except TimeoutError:
            raise TimeoutError(
                f"Waited {wait.within:g} s for {wait.until.text}: the secondary does not say what waits in its backlog."
            ) from None

    async def _carry(self, within: float) -> None:
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
        """Takes messages out of the backlog queues, oldest first, and lets them fall."""
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

    def _note(self, event: Any) -> None:
        name = self._names.get(event.entity.lower(), event.entity)
        at = (event.at - self._began_at).total_seconds()
        self._changes.append(Change(at, name, event.before.value, event.after.value, event.cause))
        self._say(f"{self._elapsed():6.1f} s  '{name}' is {event.after.value}")

    async def _waiting(self) -> int:
        return await self._depth(*range(self._queues))

    async def _depth(self, *numbers: int) -> int:
        paths = [backlog_path(self._stage.primary_name, number) for number in numbers]
        depths = await count_waiting(self._stage.namespace("secondary"), paths)
        return sum(depth.waiting for depth in depths.values())

    def _live(self, metric: str, entity: str | None) -> Value:
        match metric:
            case "accepted" | "refused":
                return self.senders.count(metric, entity)
            case "failovers" | "recoveries":
                return self._count_changes(metric, entity)
            case "state":
                return self._paired_state(str(entity))
            case "spooled":
                return self._paired.spool.depth if self._paired.spool is not None else 0
            case "elapsed":
                return self._elapsed()
        return self.senders.latency(_SHARES[metric], entity)

    def _paired_state(self, entity: str) -> str:
        state: EntityState = self._paired.state(self._stage.path(entity))
        return state.name.lower()

    def _count_changes(self, metric: str, entity: str | None) -> int:
        failed, healthy = EntityState.FAILED_OVER.value, EntityState.HEALTHY.value
        return sum(
            1
            for change in self._changes
            if entity in (None, change.entity)
            and (
                change.after == failed if metric == "failovers" else (change.before, change.after) == (failed, healthy)
            )
        )

    def _asks_about_sends(self) -> bool:
        """Whether the scenario says itself how many sends succeed. If it does not, one of them must."""
        operands = (operand for expectation in self._scenario.expect for operand in expectation.operands())
        return any(operand.metric in _ABOUT_SENDS for operand in operands)

    # --- the result -----------------------------------------------------------------------------------------

    def judged(self, entities: dict[str, Account], accounts: dict[str, tuple[Account, list[str]]]) -> Result:
        seconds = self._elapsed()
        together = sum_of(entities.values())

        def look(metric: str, entity: str | None) -> Value:
            account = together if entity is None else entities[entity]
            if metric in Account.__dataclass_fields__:
                return int(getattr(account, metric))
            return seconds if metric == "elapsed" else self._live(metric, entity)

        verdicts = []
        for expectation in self._scenario.expect:
            holds, values = expectation.holds(look)
            verdicts.append(Verdict(expectation.text, holds, {name: _or_none(value) for name, value in values.items()}))
        if not together.accepted and not self._asks_about_sends():
            verdicts.append(Verdict("accepted > 0", False, {"accepted": 0}))
        return Result(
            name=self._scenario.name,
            seconds=seconds,
            steps=tuple(self._taken),
            account=together,
            entities=entities,
            latencies={name: _or_none(self.senders.latency(share, None)) for name, share in _SHARES.items()},
            changes=tuple(self._changes),
            errors=dict(self.senders.errors),
            lost=tuple(one for _, lost in accounts.values() for one in lost),
            verdicts=tuple(verdicts),
        )


def _sentence(error: BaseException) -> str:
    """What went wrong, in one line."""
    text = str(error).strip().partition("\n")[0].rstrip(".")
    return f"{text or f'It failed: {type(error).__name__}'}."


def _or_none(value: T) -> T | None:
    return value if is_known(value) else None
