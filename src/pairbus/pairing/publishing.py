"""A paired client, sync or aio, as it is published: what it counts, what it says, what it can be asked to do."""

from __future__ import annotations

import asyncio
import inspect
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pairbus.errors import PairbusError
from pairbus.failover import EntityState
from pairbus.ledger import CompletedOperation

if TYPE_CHECKING:
    from pairbus.pairing.events import TransitionEvent
    from pairbus.publishing import Publisher
    from pairbus.publishing.records import Action, PairReport, Ping

_INSIDE_SECONDS = 5.0
MOST_ENTITIES = 200


def publish(client: Any) -> PublishedPair | None:
    """Begin to publish the client if a folder is named; nothing is loaded otherwise.

    To be called where the client lives: an aio client's calls are made on the loop that runs now.
    """
    folder = client.options.state_dir
    if folder is None and not os.environ.get("PAIRBUS_STATE_DIR"):
        return None
    from pairbus.publishing import join

    publisher = join(folder)
    if publisher is None:
        return None
    try:
        pair = PublishedPair(client, publisher)
    except BaseException:
        publisher.withdraw()
        raise
    publisher.add(pair)
    return pair


class PublishedPair:
    """What the publisher asks a paired client for. Counted and told from any thread."""

    def __init__(self, client: Any, publisher: Publisher) -> None:
        self.key = publisher.new_key("pair")
        self._client = client
        self._publisher = publisher
        self._call_inside = _on_the_loop() if inspect.iscoroutinefunction(client.close) else _at_once
        self._primary: str = client.observers.primary
        self._secondary: str = client.observers.secondary
        self._since: dict[str, tuple[float, str]] = {}
        self._pings: dict[str, Ping] = {}

    def count(self, completed: CompletedOperation) -> None:
        self._publisher.tally.count(self._primary, completed)

    def transition(self, event: TransitionEvent) -> None:
        from pairbus.publishing.records import TransitionReport

        at, cause = event.at.timestamp(), event.cause.partition(":")[0]
        self._since[event.entity] = (at, cause)
        self._publisher.transition(
            TransitionReport(
                at=at,
                primary=self._primary,
                entity=event.entity,
                before=event.before.value,
                after=event.after.value,
                reason=event.reason.name.lower(),
                cause=cause,
                episode=event.episode,
                source=self.key,
            )
        )

    def pinged(self, completed: CompletedOperation) -> None:
        from pairbus.publishing.records import Ping

        self._pings[completed.entity] = Ping(time.time(), completed.error is None, completed.error or "")

    def describe(self) -> PairReport:
        from pairbus.publishing.records import EntityReport, PairReport

        client = self._client
        now, instant = time.time(), time.monotonic()
        entities = []
        everyone = sorted(client.watched_entities, key=lambda one: one.machine.state is EntityState.HEALTHY)
        for watched in everyone[:MOST_ENTITIES]:
            since, cause = self._since.setdefault(watched.name, (now, ""))
            machine = watched.machine
            state, deadline = machine.state, machine.next_deadline
            entities.append(
                EntityReport(
                    name=watched.name,
                    state=state.value,
                    since=since,
                    cause=cause if state is not EntityState.HEALTHY else "",
                    deadline=None if deadline is None else now + deadline - instant,
                    ping=self._pings.get(watched.name),
                )
            )
        options = client.options
        return PairReport(
            key=self.key,
            primary=self._primary,
            secondary=self._secondary,
            primary_name=client.primary_name,
            entities=entities,
            backlog_queues=options.backlog_queue_count,
            in_rotation=len(client.backlog.in_rotation),
            failover_interval=options.failover_interval,
            ping_interval=options.ping_primary_interval,
            spooled=None if client.spool is None else client.spool.depth,
            faulted=client.is_faulted,
            more_entities=max(0, len(everyone) - MOST_ENTITIES),
        )

    def obey(self, action: Action, entity: str) -> str:
        from pairbus.publishing import RequestRefusedError
        from pairbus.publishing.records import Action

        override = {Action.FAIL_OVER: self._client.fail_over, Action.MARK_HEALTHY: self._client.mark_healthy}
        if action not in override:
            raise RequestRefusedError("A paired client can fail over or mark healthy, nothing else.")
        if entity.lower() not in {watched.name.lower() for watched in self._client.watched_entities}:
            raise RequestRefusedError(f"This client does not send to {entity[:100]!r}.")
        try:
            self._call_inside(lambda: override[action](entity))
        except TimeoutError:
            raise RequestRefusedError("The client's event loop did not answer; it may still follow.") from None
        except (PairbusError, RuntimeError, ValueError) as error:
            raise RequestRefusedError(f"The client can no longer be used ({type(error).__name__}).") from None
        return f"{entity} is {self._client.state(entity).value}."

    def close(self) -> None:
        self._publisher.leave(self)


def _at_once(call: Callable[[], None]) -> None:
    call()


def _on_the_loop() -> Callable[[Callable[[], None]], None]:
    """Makes a call on this loop, from any other thread; returns when it was made, or raises TimeoutError."""
    loop = asyncio.get_running_loop()

    def make(call: Callable[[], None]) -> None:
        async def inside() -> None:
            call()

        asyncio.run_coroutine_threadsafe(inside(), loop).result(_INSIDE_SECONDS)

    return make
