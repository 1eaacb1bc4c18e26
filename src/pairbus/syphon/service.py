"""The syphon: one pump for each backlog queue, over one transport.

    report = Syphon(primary, secondary).run_blocking(once=True)

Rules:
- It may run anywhere, and several may run at once: all state is in the queues.
- Stopping finishes the messages in hand. A crash loses nothing: messages that were not completed are delivered again.
- With `include_extra`, other backlog queues of this primary are drained first. One that cannot be, because a
  destination is in trouble, does not hold up ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pairbus.envelope import TimeToLivePolicy
from pairbus.ledger import LedgerWriter, Role
from pairbus.pairing.options import SendAvailabilityPairedNamespaceOptions, backlog_path, recorded_name
from pairbus.syphon.amqp_transport import AmqpTransport
from pairbus.syphon.backlog import count_waiting, extra_queues
from pairbus.syphon.control import PublishedSyphon, publish
from pairbus.syphon.namespaces import CredentialRefusedError, Namespace
from pairbus.syphon.outcomes import Counts, DurableRecords, Logbook, OnCarried
from pairbus.syphon.planner import Backoff, PumpRules, RateLimit
from pairbus.syphon.pump import REFUSALS_FOR_GOOD, Pump, PumpOptions, Refusals, Side
from pairbus.syphon.transport import Transport

log = logging.getLogger(__name__)

MakeTransport = Callable[[Namespace, Namespace], Transport]
LONGEST_DESTINATION_PAUSE_SECONDS = 120.0
EXTRA_LOOK_SECONDS = 0.2
LEAST_PART_PATIENCE_SECONDS = 60.0
"""A sender stores the parts of a message within its send timeout, which is assumed to be ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyphonOptions:
    """The options of a syphon. Times are seconds.

    `queues` are the numbers of the backlog queues. `rate` limits the messages per second of all pumps together.
    `on_carried` is called with what became of messages. `on_namespace_lost` is called with "primary" or "secondary" and
    the cause when that namespace has refused our credential repeatedly wherever it was used. Raises ValueError for a
    value out of its range.
    """

    primary_name: str | None = None
    queues: Collection[int] = range(10)
    include_extra: bool = False
    transport: MakeTransport = AmqpTransport
    backlog_time_to_live: TimeToLivePolicy = "restore"
    retry_interval: float = 1.0
    send_timeout: float = 60.0
    rate: float | None = None
    ledger: LedgerWriter | Path | str | None = None
    on_carried: OnCarried | None = None
    on_namespace_lost: Callable[[str, str], None] | None = None
    state_dir: Path | str | None = None
    now_ms: Callable[[], int] | None = None

    def __post_init__(self) -> None:
        self._pairing_options()
        RateLimit(self.rate)
        if not self.queues or any(not isinstance(number, int) or number < 0 for number in self.queues):
            raise ValueError(
                f"queues is {list(self.queues)!r}; allowed: numbers of backlog queues, 0 or more, at least one."
            )

    def _pairing_options(self) -> SendAvailabilityPairedNamespaceOptions[None, None]:
        """The options that a syphon shares with a pairing, checked against the same ranges."""
        return SendAvailabilityPairedNamespaceOptions(
            None,
            None,
            primary_name=self.primary_name,
            backlog_time_to_live=self.backlog_time_to_live,
            syphon_retry_interval=self.retry_interval,
            send_timeout=self.send_timeout,
            state_dir=self.state_dir,
        )

    def name_of_primary(self, host: str) -> str:
        """The name in the paths of the backlog queues."""
        return self._pairing_options().name_of_primary(host)


@dataclass(frozen=True, slots=True)
class Share:
    """A limited piece of work: drain these queues until they are empty or a limit is reached.

    `messages` limits each queue. `gives_up`: end when all that is left waits for a namespace that refuses our
    credential.
    """

    queues: tuple[str, ...]
    messages: int | None = None
    seconds: float | None = None
    gives_up: bool = True


@dataclass(frozen=True, slots=True)
class PausedDestination:
    """A destination that is not tried for a while, after this many failures."""

    destination: str
    seconds_left: float
    failures: int
    cause: str


@dataclass(frozen=True, slots=True)
class QueueState:
    """The current state of one pump."""

    queue: str
    state: str
    in_hand: int
    held: int
    paused: tuple[PausedDestination, ...]
    last_error: str | None
    counts: Counts


@dataclass(frozen=True, slots=True)
class SyphonState:
    """The current state of all pumps."""

    state: Literal["running", "paused", "stopping", "stopped"]
    queues: tuple[QueueState, ...]

    @property
    def restored(self) -> int:
        return sum(queue.counts.restored for queue in self.queues)

    @property
    def dead_lettered(self) -> int:
        return sum(queue.counts.dead_lettered for queue in self.queues)

    def as_dict(self) -> dict[str, Any]:
        return {"restored": self.restored, "dead_lettered": self.dead_lettered, **asdict(self)}


class Syphon:
    """Carries the backlog of one primary namespace home.

    `primary` and `secondary` are connection strings or `Namespace`s. The other keyword arguments are the fields of
    `SyphonOptions`; they may also be given together, as `options`.
    """

    def __init__(
        self,
        primary: Namespace | str,
        secondary: Namespace | str,
        *,
        options: SyphonOptions | None = None,
        connection_verify: str | None = None,
        **settings: Any,
    ) -> None:
        self.options = replace(options, **settings) if options is not None else SyphonOptions(**settings)
        self._primary = _namespace(primary, connection_verify)
        self._secondary = _namespace(secondary, connection_verify)
        self.primary_name = self.options.name_of_primary(self._primary.host)
        self.numbers = sorted(set(self.options.queues))
        self._rate = RateLimit(self.options.rate)
        ledger = self.options.ledger
        self._owns_ledger = isinstance(ledger, str | Path)
        self._ledger = LedgerWriter(ledger, role=Role.SYPHON) if isinstance(ledger, str | Path) else ledger
        self._published: PublishedSyphon | None = None
        self._pump_options = PumpOptions(
            PumpRules(
                policy=self.options.backlog_time_to_live,
                part_patience=max(LEAST_PART_PATIENCE_SECONDS, self.options.send_timeout),
                destination_backoff=Backoff(self.options.retry_interval, LONGEST_DESTINATION_PAUSE_SECONDS),
            ),
            retry_interval=self.options.retry_interval,
            send_timeout=self.options.send_timeout,
            now_ms=self.options.now_ms or (lambda: time.time_ns() // 1_000_000),
            refusals=Refusals(self._primary.host, self._secondary.host, self._check_refusals),
        )
        self._pumps: dict[str, Pump] = {}
        self._is_running = False
        self._is_stopping = False
        self._is_paused = False
        self._gives_up = False
        self.given_up: tuple[Side, str] | None = None
        """The namespace that refuses our credential for good, and what it answered."""
        self._loop: asyncio.AbstractEventLoop | None = None

    def __repr__(self) -> str:
        return f"<Syphon {self.primary_name} from {self._secondary.host} {self.state().state} queues={self.numbers}>"

    # --- running ----------------------------------------------------------------------------------------------

    def run_blocking(self, *, once: bool = False) -> SyphonState:
        """`run` on an event loop of its own."""
        return asyncio.run(self.run(once=once))

    async def run(self, *, once: bool = False) -> SyphonState:
        """Carry until stopped; with `once`, until the backlog queues are empty.

        With `once`, raises `CredentialRefusedError` if all that is left waits for a namespace that has refused our
        credential repeatedly.
        """
        self._gives_up = once
        async with self._running() as transport:
            recorded_primary = recorded_name(self._primary.host, self.primary_name)
            self._published = publish(self, self.options.state_dir, recorded_primary, self._secondary.host)
            try:
                extra = await self.extra_queues() if self.options.include_extra else []
                async with asyncio.TaskGroup() as group:
                    draining = group.create_task(self._pump_all(extra, transport, once=True))
                    while not draining.done() and not self._is_in_trouble(extra):
                        await asyncio.wait([draining], timeout=EXTRA_LOOK_SECONDS)
                    group.create_task(self._pump_all(self._paths(), transport, once=once))
            finally:
                if self._published is not None:
                    self._published.close()
        if self.given_up is not None:
            side, cause = self.given_up
            host = (self._secondary if side == "secondary" else self._primary).host
            raise CredentialRefusedError(
                f"The {side}, {host}, refuses our credential ({cause}). Check its "
                f"connection string and the rights of its key. {self.state().restored} messages are home; the others "
                "wait in the backlog."
            )
        return self.state()

    async def run_share(self, share: Share) -> SyphonState:
        """Carry a share of the backlog; `given_up` says whether it ended because of a refused credential."""
        self._gives_up = share.gives_up
        async with self._running() as transport:
            if share.seconds is not None:
                asyncio.get_running_loop().call_later(share.seconds, self.stop)
            await self._pump_all(share.queues, transport, once=True, message_limit=share.messages)
        return self.state()

    @contextlib.asynccontextmanager
    async def _running(self) -> AsyncIterator[Transport]:
        if self._is_running:
            raise RuntimeError("This syphon is already running. Create another one to run it twice.")
        self._is_running, self._loop = True, asyncio.get_running_loop()
        transport = self.options.transport(self._primary, self._secondary)
        try:
            yield transport
        finally:
            await transport.close()
            self._is_running = False
            if self._owns_ledger and self._ledger is not None:
                self._ledger.close()

    async def _pump_all(
        self, queues: Sequence[str], transport: Transport, *, once: bool, message_limit: int | None = None
    ) -> None:
        if not queues or self._is_stopping:
            return
        durable = DurableRecords(self._ledger) if self._ledger is not None else None
        async with asyncio.TaskGroup() as group:
            for queue in queues:
                logbook = Logbook(
                    queue,
                    recorded_name(self._primary.host, self.primary_name),
                    self._secondary.host,
                    self._ledger,
                    self.options.on_carried,
                    published=self._published,
                    durable=durable,
                )
                pump = Pump(queue, transport, self._pump_options, logbook, self._rate, message_limit)
                self._pumps[queue] = pump
                if self._is_paused:
                    pump.pause()
                group.create_task(self._keep_running(pump, once=once), name=f"pump {queue}")

    def _is_in_trouble(self, queues: Sequence[str]) -> bool:
        """Whether one of these queues waits for a namespace or a destination."""
        return any(one.paused or one.last_error for one in self.state().queues if one.queue in queues)

    async def _keep_running(self, pump: Pump, *, once: bool) -> None:
        """Restart a pump that fails unexpectedly; the others continue."""
        while not self._is_stopping:
            try:
                await pump.run(once=once)
            except Exception as error:  # the outermost loop of a pump
                log.exception("a pump failed and starts again", extra={"queue": pump.queue})
                pump.failed(f"{type(error).__name__}: {error}")
                await asyncio.sleep(self.options.retry_interval)
            else:
                return

    def _paths(self) -> list[str]:
        return [backlog_path(self.primary_name, number) for number in self.numbers]

    async def extra_queues(self) -> list[str]:
        """Backlog queues of this primary in the secondary other than those with our numbers."""
        return await extra_queues(self._secondary, self.primary_name, self.numbers)

    async def depth(self) -> int:
        """How many messages wait in the backlog queues with our numbers."""
        depths = await count_waiting(self._secondary, self._paths())
        return sum(depth.waiting for depth in depths.values())

    # --- refused credentials ----------------------------------------------------------------------------------

    def _check_refusals(self) -> None:
        """A namespace refused our credential: give up, or report that the namespace is lost, if it always does."""
        pumps = list(self._pumps.values())
        if self._gives_up:
            self._give_up([pump for pump in pumps if not pump.is_drained])
        cause: str | None
        if all(pump.refusals >= REFUSALS_FOR_GOOD for pump in pumps):
            lost, cause = "secondary", pumps[0].last_error
        elif (cause := _why_primary_is_lost(pumps)) is not None:
            lost = "primary"
        else:
            return
        if self.options.on_namespace_lost is not None:
            self.options.on_namespace_lost(lost, cause or "it refused our credential")

    def _give_up(self, unfinished: list[Pump]) -> None:
        """Stop if every unfinished pump waits for nothing but a namespace that refuses our credential."""
        side = _refusing_side(unfinished)
        if side is None or self._is_stopping:
            return
        cause = next((pump.last_error for pump in unfinished if pump.last_error), "the credential has no rights")
        self.given_up = (side, cause)
        self.stop()

    # --- control, from any thread -----------------------------------------------------------------------------

    def stop(self) -> None:
        """Finish the messages in hand and end."""
        self._is_stopping = True
        self._for_each_pump(Pump.stop)

    def pause(self) -> None:
        """Finish the messages in hand and receive nothing more, until `resume`."""
        self._is_paused = True
        self._for_each_pump(Pump.pause)

    def resume(self) -> None:
        self._is_paused = False
        self._for_each_pump(Pump.resume)

    def set_rate(self, per_second: float | None) -> None:
        """Change the limit of messages per second for all pumps together; None: no limit."""
        RateLimit(per_second)  # refuses what is not allowed

        def change(pump: Pump) -> None:
            self._rate.per_second = per_second
            pump.wake()

        self._rate.per_second = per_second
        self._for_each_pump(change)

    def _for_each_pump(self, act: Callable[[Pump], None]) -> None:
        def act_on_all() -> None:
            for pump in self._pumps.values():
                act(pump)

        if self._loop is not None and self._is_running:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(act_on_all)

    def state(self) -> SyphonState:
        now = self._loop.time() if self._loop is not None else 0.0
        if self._is_running:
            state: Any = "stopping" if self._is_stopping else "paused" if self._is_paused else "running"
        else:
            state = "stopped"
        return SyphonState(state, tuple(_queue_state(pump, now) for pump in list(self._pumps.values())))


def _refusing_side(unfinished: Sequence[Pump]) -> Side | None:
    """The namespace that refuses our credential for good, if all these pumps wait for nothing else."""
    side: Side = "primary"
    for pump in unfinished:
        lanes = [lane for lane in pump.planner.lanes.values() if not lane.is_empty]
        if pump.refusals >= REFUSALS_FOR_GOOD:
            side = "secondary"
        elif not lanes or any(lane.token_refusals < REFUSALS_FOR_GOOD for lane in lanes):
            return None
    return side if unfinished else None


def _why_primary_is_lost(pumps: list[Pump]) -> str | None:
    """The primary is lost if it took messages before and now refuses our credential for all destinations.

    A credential may be valid for some entities only, and messages for other entities may wait in the same backlog. So a
    destination that never took a message proves nothing, and one that took a message since disproves the loss.
    """
    lanes = [lane for pump in pumps for lane in pump.planner.lanes.values() if lane.waiting or lane.held]
    accepted_at: dict[str, float] = {}
    for pump in pumps:
        for destination, at in pump.planner.accepted_at.items():
            accepted_at[destination] = max(at, accepted_at.get(destination, at))
    known = [lane for lane in lanes if lane.destination in accepted_at]
    if not known or any(lane.token_refusals < REFUSALS_FOR_GOOD for lane in lanes):
        return None
    if max(accepted_at.values()) >= min(lane.refused_since for lane in known):
        return None
    return known[0].pause.cause if known[0].pause is not None else ""


def _queue_state(pump: Pump, now: float) -> QueueState:
    planner = pump.planner
    paused = tuple(
        PausedDestination(lane.destination, max(0.0, lane.pause.until - now), lane.pause.failures, lane.pause.cause)
        for lane in list(planner.lanes.values())
        if lane.pause is not None
    )
    return QueueState(
        pump.queue, pump.state, planner.in_hand, planner.held, paused, pump.last_error, pump.logbook.counts
    )


def _namespace(namespace: Namespace | str, connection_verify: str | None) -> Namespace:
    if isinstance(namespace, Namespace):
        return namespace
    return Namespace.parse(namespace, connection_verify=connection_verify)
