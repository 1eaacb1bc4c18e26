"""The syphon: one pump for each backlog queue, over one transport.

    report = Syphon(primary, secondary).run_blocking(once=True)

Rules:
- It may run anywhere, and many times at once: the queues are the state.
- Stopping finishes what is at hand. Dying loses nothing either: what was not completed comes again.
- With `include_extra`, backlog queues beyond those named are emptied first.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from azure.core.exceptions import ResourceNotFoundError

from pairbus.envelope import TimeToLivePolicy
from pairbus.ledger import LedgerWriter, Role
from pairbus.pairing.options import SendAvailabilityPairedNamespaceOptions, backlog_path, recorded_name
from pairbus.syphon.durable_records import DurableRecords
from pairbus.syphon.namespaces import CredentialRefusedError, Namespace, administering
from pairbus.syphon.outcomes import Counts, Logbook, OnCarried
from pairbus.syphon.pauses import Growth, RateLimit
from pairbus.syphon.publishing import PublishedSyphon, publish
from pairbus.syphon.pump import Pump, PumpOptions
from pairbus.syphon.refusals import REFUSALS_FOR_GOOD, Refusals, refusing
from pairbus.syphon.rules import PumpRules
from pairbus.syphon.transport import Transport

log = logging.getLogger(__name__)

TransportKind = Literal["amqp", "sdk"]
MakeTransport = Callable[[Namespace, Namespace], Transport]
LONGEST_DESTINATION_PAUSE_SECONDS = 120.0
LEAST_PART_PATIENCE_SECONDS = 60.0
"""Parts of one message are stored within the time that a sender has for it: take it for as patient as we are."""


@dataclass(frozen=True, slots=True)
class PausedDestination:
    """A destination that is left alone, for how many more seconds, after how many failures, and why."""

    destination: str
    seconds_left: float
    failures: int
    cause: str


@dataclass(frozen=True, slots=True)
class QueueState:
    """One pump, as it is now."""

    queue: str
    state: str
    in_hand: int
    held: int
    paused: tuple[PausedDestination, ...]
    last_error: str | None
    counts: Counts


@dataclass(frozen=True, slots=True)
class SyphonState:
    """All pumps, as they are now."""

    state: Literal["running", "paused", "stopping", "stopped"]
    queues: tuple[QueueState, ...]

    @property
    def restored(self) -> int:
        return sum(one.counts.restored for one in self.queues)

    @property
    def dead_lettered(self) -> int:
        return sum(one.counts.dead_lettered for one in self.queues)

    def as_dict(self) -> dict[str, Any]:
        return {"restored": self.restored, "dead_lettered": self.dead_lettered, **asdict(self)}


class Syphon:
    """Carries the backlog of one primary namespace home.

    `primary` and `secondary` are connection strings or `Namespace`s. `queues` are the numbers of the backlog queues.
    `rate` limits the messages a second of all pumps together. `on_carried` is told what became of each message.
    `on_namespace_lost` is told ("primary" or "secondary", and the cause) when one of them has refused our credential
    again and again wherever it was needed: that does not pass by itself.
    """

    def __init__(
        self,
        primary: Namespace | str,
        secondary: Namespace | str,
        *,
        primary_name: str | None = None,
        queues: Collection[int] = range(10),
        include_extra: bool = False,
        transport: TransportKind | MakeTransport = "amqp",
        backlog_time_to_live: TimeToLivePolicy = "restore",
        retry_interval: float = 1.0,
        send_timeout: float = 60.0,
        rate: float | None = None,
        ledger: LedgerWriter | Path | str | None = None,
        on_carried: OnCarried | None = None,
        on_namespace_lost: Callable[[str, str], None] | None = None,
        connection_verify: str | None = None,
        state_dir: Path | str | None = None,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        # The options of a pairing that a syphon shares with it have the same ranges.
        options: SendAvailabilityPairedNamespaceOptions[None, None] = SendAvailabilityPairedNamespaceOptions(
            None,
            None,
            primary_name=primary_name,
            backlog_time_to_live=backlog_time_to_live,
            syphon_retry_interval=retry_interval,
            send_timeout=send_timeout,
            state_dir=state_dir,
        )
        wrong = [number for number in queues if not isinstance(number, int) or number < 0]
        if wrong or not queues:
            raise ValueError(
                f"queues is {list(queues)!r}; allowed: numbers of backlog queues, 0 or more, at least one."
            )
        self._primary = _namespace(primary, connection_verify)
        self._secondary = _namespace(secondary, connection_verify)
        self.primary_name = options.name_of_primary(self._primary.host)
        self.numbers = sorted(set(queues))
        self._include_extra = include_extra
        self._make_transport = transport if callable(transport) else _transport_of(transport)
        self._rate = RateLimit(rate)
        self._owns_ledger = isinstance(ledger, str | Path)
        self._ledger = LedgerWriter(ledger, role=Role.SYPHON) if isinstance(ledger, str | Path) else ledger
        self._on_carried = on_carried
        self._state_dir = state_dir
        self._published: PublishedSyphon | None = None
        self._options = PumpOptions(
            PumpRules(
                policy=backlog_time_to_live,
                part_patience=max(LEAST_PART_PATIENCE_SECONDS, send_timeout),
                destination_pauses=Growth(retry_interval, LONGEST_DESTINATION_PAUSE_SECONDS),
            ),
            retry_interval=retry_interval,
            send_timeout=send_timeout,
            now_ms=now_ms,
            refusals=Refusals(self._primary.host, self._secondary.host),
            on_refused=self._refused,
        )
        self._on_namespace_lost = on_namespace_lost
        self._pumps: dict[str, Pump] = {}
        self._running = False
        self._stopping = False
        self._paused = False
        self._once = False
        self._given_up: CredentialRefusedError | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def __repr__(self) -> str:
        return f"<Syphon {self.primary_name} from {self._secondary.host} {self.state().state} queues={self.numbers}>"

    # --- running ------------------------------------------------------------------------------------------

    def run_blocking(self, *, once: bool = False) -> SyphonState:
        """`run` on an event loop of its own."""
        return asyncio.run(self.run(once=once))

    async def run(self, *, once: bool = False) -> SyphonState:
        """Carry until stopped; with `once`, until the backlog queues are empty.

        With `once`, raises `CredentialRefusedError` when all that is left waits for a namespace that has refused our
        credential again and again: nobody would come to mend it.
        """
        if self._running:
            raise RuntimeError("This syphon runs already: make another one to run it twice.")
        self._running, self._once, self._loop = True, once, asyncio.get_running_loop()
        transport = self._make_transport(self._primary, self._secondary)
        self._published = publish(
            self, self._state_dir, recorded_name(self._primary.host, self.primary_name), self._secondary.host
        )
        try:
            if self._include_extra:
                await self._pump_all(await self.extra_queues(), transport, once=True)
            await self._pump_all([backlog_path(self.primary_name, one) for one in self.numbers], transport, once=once)
        finally:
            await transport.close()
            self._running = False
            if self._published is not None:
                self._published.close()
            if self._owns_ledger and self._ledger is not None:
                self._ledger.close()
        if self._given_up is not None:
            raise self._given_up
        return self.state()

    async def _pump_all(self, queues: list[str], transport: Transport, *, once: bool) -> None:
        if not queues or self._stopping:
            return
        durable = DurableRecords(self._ledger) if self._ledger is not None else None
        async with asyncio.TaskGroup() as group:
            for queue in queues:
                logbook = Logbook(
                    queue,
                    recorded_name(self._primary.host, self.primary_name),
                    self._secondary.host,
                    self._ledger,
                    self._on_carried,
                    published=self._published,
                    durable=durable,
                )
                pump = self._pumps[queue] = Pump(queue, transport, self._options, logbook, self._rate)
                if self._paused:
                    pump.pause()
                group.create_task(self._keep_running(pump, once=once), name=f"pump {queue}")

    async def _keep_running(self, pump: Pump, *, once: bool) -> None:
        """A pump that fails in a way nobody thought of begins again; the others go on."""
        while not self._stopping:
            try:
                await pump.run(once=once)
            except Exception as error:  # the outermost loop of a pump
                log.exception("a pump failed and begins again", extra={"queue": pump.queue})
                pump.failed(f"{type(error).__name__}: {error}")
                await asyncio.sleep(self._options.retry_interval)
            else:
                return

    def _refused(self) -> None:
        pumps = list(self._pumps.values())
        if self._once:
            self._give_up([pump for pump in pumps if not pump.drained])
        cause: str | None
        if all(pump.refusals >= REFUSALS_FOR_GOOD for pump in pumps):
            lost, cause = "secondary", pumps[0].last_error
        elif (cause := self._why_primary_is_lost(pumps)) is not None:
            lost = "primary"
        else:
            return
        if self._on_namespace_lost is not None:
            self._on_namespace_lost(lost, cause or "it refused our credential")

    def _give_up(self, unfinished: list[Pump]) -> None:
        """End if each pump that is not done waits for nothing but a namespace that refuses our credential."""
        side = refusing(unfinished)
        if side is None or self._stopping:
            return
        host = (self._secondary if side == "secondary" else self._primary).host
        cause = next((pump.last_error for pump in unfinished if pump.last_error), "")
        self._given_up = CredentialRefusedError(
            f"The {side}, {host}, refuses our credential ({cause}). Check its connection string and the rights of "
            f"its key. {self.state().restored} messages are home; the others wait in the backlog."
        )
        self.stop()

    def _why_primary_is_lost(self, pumps: list[Pump]) -> str | None:
        """The primary is lost when it took messages before, and now refuses our credential wherever we come.

        A credential may be good for some entities only, and others' messages may wait in the same backlog. So a
        destination that never took anything from us proves nothing, and any that took something since disproves it.
        """
        lanes = [lane for pump in pumps for lane in pump.planner.lanes.values() if lane.waiting or lane.held]
        taken_at: dict[str, float] = {}
        for pump in pumps:
            for destination, at in pump.planner.taken_at.items():
                taken_at[destination] = max(at, taken_at.get(destination, at))
        known = [lane for lane in lanes if lane.destination in taken_at]
        if not known or any(lane.token_refusals < REFUSALS_FOR_GOOD for lane in lanes):
            return None
        if max(taken_at.values()) >= min(lane.refused_since for lane in known):
            return None
        return known[0].pause.cause if known[0].pause is not None else ""

    async def extra_queues(self) -> list[str]:
        """Backlog queues of this primary that exist in the secondary and were not named."""
        named = {backlog_path(self.primary_name, number).lower() for number in self.numbers}
        return [
            queue
            for queue in await list_backlog_queues(self._secondary, self.primary_name)
            if queue.lower() not in named
        ]

    async def depth(self) -> int:
        """How many messages wait in the named backlog queues."""
        waiting = 0
        async with administering(self._secondary, "Counting the backlog") as admin:
            for number in self.numbers:
                with contextlib.suppress(ResourceNotFoundError):
                    counts = await admin.get_queue_runtime_properties(backlog_path(self.primary_name, number))
                    waiting += counts.active_message_count or 0
        return waiting

    # --- told from outside; from any thread ----------------------------------------------------------------

    def stop(self) -> None:
        """Finish what is at hand and end."""
        self._stopping = True
        self._tell(lambda pump: pump.stop())

    def pause(self) -> None:
        """Finish what is at hand and take nothing more, until `resume`."""
        self._paused = True
        self._tell(lambda pump: pump.pause())

    def resume(self) -> None:
        self._paused = False
        self._tell(lambda pump: pump.resume())

    def _tell(self, what: Callable[[Pump], None]) -> None:
        def tell() -> None:
            for pump in self._pumps.values():
                what(pump)

        if self._loop is not None and self._running:
            with contextlib.suppress(RuntimeError):  # the loop ended meanwhile: there is nobody to tell
                self._loop.call_soon_threadsafe(tell)

    def state(self) -> SyphonState:
        now = self._loop.time() if self._loop is not None else 0.0
        if self._running:
            state: Any = "stopping" if self._stopping else "paused" if self._paused else "running"
        else:
            state = "stopped"
        return SyphonState(state, tuple(_queue_state(pump, now) for pump in list(self._pumps.values())))


def _queue_state(pump: Pump, now: float) -> QueueState:
    paused = tuple(
        PausedDestination(lane.destination, max(0.0, lane.pause.until - now), lane.pause.failures, lane.pause.cause)
        for lane in list(pump.planner.lanes.values())
        if lane.pause is not None
    )
    planner = pump.planner
    return QueueState(
        pump.queue, pump.state, planner.in_hand, planner.held, paused, pump.last_error, pump.logbook.counts
    )


def _namespace(given: Namespace | str, connection_verify: str | None) -> Namespace:
    return given if isinstance(given, Namespace) else Namespace.parse(given, connection_verify=connection_verify)


def _transport_of(kind: str) -> MakeTransport:
    if kind == "sdk":
        from pairbus.syphon.sdk_transport import SdkTransport

        return SdkTransport
    if kind == "amqp":
        from pairbus.syphon.amqp_transport import AmqpTransport

        return AmqpTransport
    raise ValueError(f"transport is {kind!r}; allowed: 'amqp' or 'sdk'.")


async def list_backlog_queues(secondary: Namespace, primary_name: str) -> list[str]:
    """The backlog queues of this primary that exist in the secondary, by number."""
    pattern = re.compile(re.escape(backlog_path(primary_name, 0)[:-1]) + r"(0|[1-9][0-9]*)", re.IGNORECASE)
    found: list[tuple[int, str]] = []
    async with administering(secondary, f"Listing the backlog queues of {primary_name!r}") as admin:
        async for queue in admin.list_queues():
            match = pattern.fullmatch(queue.name)
            if match is not None:
                found.append((int(match[1]), queue.name))
    return [name for _, name in sorted(found)]
