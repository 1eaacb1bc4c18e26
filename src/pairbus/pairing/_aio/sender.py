"""The paired sender: the SDK's sender while the entity is healthy, the way into the backlog while it is not.

`send_messages` prepares the message. `_deliver` routes it by the entity's state, sends it through the SDK's sender of
the primary, reports the result to the entity, and diverts the message if the entity says so.
"""

from __future__ import annotations

import datetime
import warnings
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from azure.core.exceptions import AzureError
from azure.servicebus import ServiceBusMessageBatch
from azure.servicebus.aio import ServiceBusSender

from pairbus import envelope, errors
from pairbus.failover import BUSY_PAUSE_SECONDS, NO_ERA, EntityState, Event, EventKind, Verdict, verdict
from pairbus.ledger import CompletedOperation, Operation, Route, error_name, outcome_of
from pairbus.pairing import observers, sdk
from pairbus.pairing._aio import runtime
from pairbus.pairing._aio.backlog import IN_DOUBT, BacklogRoute
from pairbus.pairing._aio.entity import NotWantedError, SharedSender, TurnTimeoutError, WatchedEntity

if TYPE_CHECKING:
    from pairbus.pairing._aio.client import PairedServiceBusClient

T = TypeVar("T")

_SHORTEST_TIMEOUT = 0.001


class PairedServiceBusSender(ServiceBusSender):
    """Sends to one queue or topic of the primary, or into the backlog while that entity is failed over.

    It has the surface of the SDK's sender. Many threads (sync) or tasks (aio) may use it at once: their sends take
    turns.
    """

    def __init__(
        self,
        client: PairedServiceBusClient,
        entity: WatchedEntity,
        make_sender: Callable[[], ServiceBusSender],
    ) -> None:
        # The SDK's __init__ is not called: this class has only its surface, the senders inside do the work.
        self._client = client
        self._entity = entity
        self._options = client.options
        self._send_timeout = client.send_timeout
        self._observers = client.observers
        self._tally = client.observers.tally(entity.name, Route.PRIMARY)
        self._primary = SharedSender(make_sender, client.guard)
        self._backlog = BacklogRoute(entity.name, client.backlog)
        self._closed = False
        rules = entity.machine.rules
        self._may_divert_at_once = rules.failover_interval == 0 or rules.divert_during_interval
        entity.adopt(self._primary)
        self.fully_qualified_namespace = client.fully_qualified_namespace
        self.entity_name = entity.name

    def __repr__(self) -> str:
        return f"<PairedServiceBusSender {self.entity_name} {self._entity.machine.state.value}>"

    def __str__(self) -> str:
        return f"Sender client id: {self.client_identifier}, entity: {self.entity_name}"

    @property
    def client_identifier(self) -> str:
        """The identifier of the SDK's sender for the primary."""
        return self._primary.sender.client_identifier

    @property
    def backlog_queue(self) -> str | None:
        """The backlog queue this sender stays with; None until it first needs one."""
        return self._backlog.queue

    async def __aenter__(self) -> Self:
        """Open the link to the primary, as the SDK's sender does.

        An error that counts is not raised: it changes the entity's state, and sends follow that.
        """
        self._check_usable()
        if self._entity.takes_sends():
            era = self._entity.machine.era
            try:
                await self._open_primary()
            except (AzureError, OSError) as error:
                judged = self._verdict(error)
                if judged is Verdict.DOES_NOT_COUNT:
                    raise
                if judged is Verdict.COUNTS:
                    self._entity.handle(Event(EventKind.SEND_FAILED, _cause(error), era))
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the links to the primary and the backlog. Closing twice does nothing."""
        self._closed = True
        await self._primary.close()
        await self._backlog.close()

    async def send_messages(
        self,
        message: sdk.Messages | ServiceBusMessageBatch,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - the SDK's name
        **kwargs: Any,
    ) -> None:
        """Send one message, several, or a batch; returns when they are accepted.

        The primary accepts them or, while the entity is failed over, a backlog queue or the spool does. `timeout`
        limits the whole send in seconds, in both namespaces.
        """
        if kwargs:
            warnings.warn(f"Unsupported keyword args: {kwargs}", stacklevel=2)
        self._check_usable(timeout)
        outgoing: Any = sdk.prepare(message)
        if sdk.count_of(outgoing) == 0:
            return

        async def send(sender: ServiceBusSender, seconds: float) -> None:
            if type(outgoing) is list and not sdk.batch_limit(sender):
                # For a list the SDK would open the link itself, without a timeout.
                deadline = runtime.now() + seconds
                await sdk.open_link(sender, seconds)
                seconds = max(deadline - runtime.now(), _SHORTEST_TIMEOUT)
            await sender.send_messages(outgoing, timeout=seconds)

        await self._deliver(Operation.SEND, outgoing, timeout, send, _nothing)

    async def schedule_messages(
        self,
        messages: sdk.Messages,
        schedule_time_utc: datetime.datetime,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - the SDK's name
        **kwargs: Any,
    ) -> list[int]:
        """Send messages that appear at a later time; returns their sequence numbers at the primary.

        While the entity is failed over, the time travels with the messages through the backlog. The numbers are then
        negative: they are not the primary's, and the messages cannot be cancelled.
        """
        if kwargs:
            warnings.warn(f"Unsupported keyword args: {kwargs}", stacklevel=2)
        self._check_usable(timeout)
        outgoing: Any = sdk.prepare(messages)
        if isinstance(outgoing, list) and not outgoing:
            return []
        count = len(outgoing) if isinstance(outgoing, list) else 1

        async def schedule(sender: ServiceBusSender, seconds: float) -> list[int]:
            return await sender.schedule_messages(outgoing, schedule_time_utc, timeout=seconds)

        def backlog_numbers() -> list[int]:
            return [self._client.next_backlog_number() for _ in range(count)]

        return await self._deliver(
            Operation.SCHEDULE, outgoing, timeout, schedule, backlog_numbers, scheduled=schedule_time_utc
        )

    async def cancel_scheduled_messages(
        self,
        sequence_numbers: int | list[int],
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - the SDK's name
        **kwargs: Any,
    ) -> None:
        """Cancel messages scheduled at the primary; raises ScheduledInBacklogError for numbers of the backlog."""
        if kwargs:
            warnings.warn(f"Unsupported keyword args: {kwargs}", stacklevel=2)
        self._check_usable(timeout)
        numbers = [sequence_numbers] if isinstance(sequence_numbers, int) else list(sequence_numbers)
        in_backlog = [number for number in numbers if number < 0]
        if in_backlog:
            raise sdk.ScheduledInBacklogError(in_backlog)

        async def cancel(sender: ServiceBusSender, seconds: float) -> None:
            await sender.cancel_scheduled_messages(sequence_numbers, timeout=seconds)

        started = runtime.now()
        deadline = started + (self._send_timeout if timeout is None else timeout)
        try:
            await self._primary.use(deadline, cancel)
        except (AzureError, OSError) as error:
            self._observe_cancel(started, error)
            raise
        self._observe_cancel(started, None)

    async def create_message_batch(self, max_size_in_bytes: int | None = None) -> ServiceBusMessageBatch:
        """Create a batch that leaves room for the properties its messages need in a backlog."""
        self._check_usable()
        limit = sdk.batch_limit(self._primary.sender) or self._entity.batch_limit_bytes
        if not limit and self._entity.takes_sends():
            era = self._entity.machine.era
            try:
                await self._open_primary()
            except (AzureError, OSError) as error:
                self._after_failure(error, self._verdict(error), era)
            limit = sdk.batch_limit(self._primary.sender)
        if not limit:
            limit = await self._backlog.limit_bytes(runtime.now() + self._send_timeout)
        if max_size_in_bytes is not None and max_size_in_bytes > limit:
            raise ValueError(
                f"max_size_in_bytes is {max_size_in_bytes}; allowed: at most {limit}, the limit of the link."
            )
        return sdk.PairedMessageBatch(self.entity_name, max_size_in_bytes or limit, limit, self._primary.sender)

    async def _open_primary(self) -> None:
        try:
            await self._primary.open(runtime.now() + self._send_timeout, self._entity.takes_sends)
        except NotWantedError:
            return
        self._entity.learn_limits(self._primary.sender)

    async def _deliver(
        self,
        operation: Operation,
        outgoing: sdk.Outgoing,
        timeout: float | None,  # noqa: ASYNC109 - the SDK's name
        call: Callable[[ServiceBusSender, float], Awaitable[T]],
        diverted: Callable[[], T],
        *,
        scheduled: datetime.datetime | None = None,
    ) -> T:
        """Return the result of the call on the primary, or `diverted()` once the messages are in a backlog."""
        entity, machine = self._entity, self._entity.machine
        started = runtime.now()
        deadline = started + (self._send_timeout if timeout is None else timeout)
        primary_error: BaseException | None = None
        while machine.route_to_primary:
            era = machine.era
            until = deadline if timeout is None else self._until(started, deadline)
            try:
                result = await self._primary.use(until, call, entity.takes_sends)
            except NotWantedError:
                break
            except runtime.CANCELLED as error:
                self._observe(operation, outgoing, started, error)
                raise
            except (AzureError, OSError, ValueError, TypeError) as error:
                self._observe(operation, outgoing, started, error)
                judged = self._verdict(error)
                if judged is Verdict.COUNTS and not sdk.can_be_encoded(outgoing, error, self._primary.sender):
                    judged = Verdict.DOES_NOT_COUNT
                if judged is Verdict.BUSY:
                    started = runtime.now() + BUSY_PAUSE_SECONDS
                    if started >= deadline:
                        raise
                    await runtime.Wake().wait(BUSY_PAUSE_SECONDS)
                    continue
                primary_error = error
                self._after_failure(error, judged, NO_ERA if isinstance(error, TurnTimeoutError) else era)
                break
            if machine.state is not EntityState.HEALTHY:
                entity.handle(Event(EventKind.SEND_SUCCEEDED, era=era))
            if not entity.message_limit_bytes:
                entity.learn_limits(self._primary.sender)
            if self._observers.in_detail:
                self._observe(operation, outgoing, started, None)
            elif self._tally is not None:
                self._tally.add(sdk.count_of(outgoing), runtime.now() - started)
            return result
        if timeout is None:
            deadline = runtime.now() + self._send_timeout
        elif primary_error is not None and runtime.now() >= deadline and self._client.spool is None:
            raise primary_error  # no time is left for a backlog queue
        if scheduled is not None:
            outgoing = sdk.schedule(outgoing, scheduled)
        await self._divert(outgoing, deadline, primary_error)
        return diverted()

    def _until(self, started: float, deadline: float) -> float:
        """When an attempt on the primary must end, so that enough of the caller's time is left for the backlog.

        The primary gets all of the time if the entity cannot fail over before the deadline.
        """
        until = deadline - min((deadline - started) / 2, self._send_timeout)
        if self._may_divert_at_once:
            return until
        machine = self._entity.machine
        fails_over_at = machine.next_deadline if machine.state is EntityState.SUSPECT else None
        if fails_over_at is None:
            fails_over_at = started + machine.rules.failover_interval
        if fails_over_at >= deadline:
            return deadline
        # An attempt that outlives the failover interval is diverted; one that ends before it raises.
        return max(until, min(fails_over_at, deadline - (deadline - started) / 4))

    def _after_failure(self, error: BaseException, judged: Verdict, era: int) -> None:
        """Report a failure to the entity; raise the error unless the message is to be diverted."""
        if judged is not Verdict.COUNTS or self._client.is_closed:
            raise error
        if not self._entity.handle(Event(EventKind.SEND_FAILED, _cause(error), era)).divert:
            raise error

    def _verdict(self, error: BaseException) -> Verdict:
        causes_failover = self._options.causes_failover
        judged = verdict(sdk.describe(error))
        if causes_failover is None:
            return judged
        if causes_failover(error):
            return Verdict.COUNTS
        return Verdict.DOES_NOT_COUNT if judged is Verdict.COUNTS else judged

    async def _divert(self, outgoing: sdk.Outgoing, deadline: float, primary_error: BaseException | None) -> None:
        entity = self._entity
        if not entity.message_limit_bytes:
            entity.learn_limits(self._primary.sender)
        limit = entity.message_limit_bytes if sdk.is_single(outgoing) else entity.batch_limit_bytes
        raws = sdk.encode(outgoing, limit or sdk.LARGEST_MESSAGE_BYTES, self._primary.sender)
        if not observers.is_tracing():
            await self._store(raws, deadline, primary_error, None)
            return
        with observers.diverted_send(self.entity_name, len(raws)) as trace_parent:
            await self._store(raws, deadline, primary_error, trace_parent)

    async def _store(
        self, raws: Sequence[bytes], deadline: float, primary_error: BaseException | None, trace_parent: str | None
    ) -> None:
        """Put encoded messages into a backlog queue, or into the spool."""
        name = self.entity_name
        forms = [envelope.to_backlog(raw, name, trace_parent=trace_parent) for raw in raws]
        spool = self._client.spool
        if spool is not None and self._client.backlog.is_down and spool.depth:
            await spool.store(name, forms)
            return
        try:
            await self._backlog.send(forms, deadline, primary_error=primary_error, episode=self._entity.episode)
        except errors.BacklogUnavailableError:
            if spool is None:
                raise
            await spool.store(name, forms)
        except errors.PartlyAcceptedError as error:
            if spool is None:
                raise
            try:
                await spool.store(name, [forms[position] for position in error.rest])
            except errors.SpoolError as full:
                raise sdk.PartlyAcceptedError(error.accepted, error.rest, full) from full

    def _observe(
        self, operation: Operation, outgoing: sdk.Outgoing, started: float, error: BaseException | None
    ) -> None:
        watchers = self._observers
        if not watchers.watching:
            return
        in_doubt = isinstance(error, IN_DOUBT) and not isinstance(error, TurnTimeoutError)
        watchers.sent(
            CompletedOperation(
                operation,
                watchers.primary,
                self.entity_name,
                sdk.message_ids(outgoing) if watchers.wants_ids else [None] * sdk.count_of(outgoing),
                sdk.sizes(outgoing, self._primary.sender) if watchers.in_detail else None,
                outcome=outcome_of(error, in_doubt=in_doubt),
                error=error_name(error),
                latency_us=int((runtime.now() - started) * 1_000_000),
                route=Route.PRIMARY,
                episode=self._entity.episode,
            )
        )

    def _observe_cancel(self, started: float, error: BaseException | None) -> None:
        self._observers.record(
            CompletedOperation(
                Operation.CANCEL,
                self._observers.primary,
                self.entity_name,
                outcome=outcome_of(error),
                error=error_name(error),
                latency_us=int((runtime.now() - started) * 1_000_000),
                route=Route.PRIMARY,
            )
        )

    def _check_usable(self, timeout: float | None = None) -> None:
        self._client.check_usable()
        if self._closed:
            raise ValueError(
                "The sender has been closed. Get a new one from the paired client with get_queue_sender or "
                "get_topic_sender."
            )
        if timeout is not None and timeout <= 0:
            raise ValueError(f"timeout is {timeout!r}; allowed: more than 0 seconds, or None.")


def _nothing() -> None:
    return None


def _cause(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
