"""The transport of both namespaces: encoded messages over raw AMQP. Bodies are never decoded.

- Each backlog queue and each destination has a session of its own, so a broken one leaves the others alone.
- The credit is the pump's limit, at most 100: that is the prefetch. Settlements travel in ranges and are confirmed by
  the service; none waits for the one before.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from pairbus import envelope
from pairbus.amqp.client import ClientConnection, Received, ReceiverLink
from pairbus.amqp.conditions import CONNECTION_FORCED, NOT_FOUND, UNAUTHORIZED
from pairbus.amqp.message import BATCH_FORMAT, join_batch
from pairbus.amqp.outcomes import (
    Accepted,
    AmqpClientError,
    AmqpError,
    LinkLostError,
    RefusedError,
    Rejected,
    Released,
    State,
    TokenRefusedError,
    TokenUnavailableError,
)
from pairbus.amqp.session import AmqpEndpoint, AmqpSession
from pairbus.amqp.types import Array, Int
from pairbus.syphon.deliveries import DeadLetter, Delivery, Peeked
from pairbus.syphon.namespaces import Namespace
from pairbus.syphon.transport import ReceiverLostError, SendError, SendFailure, failure_of_link, failure_of_send

_OPEN_TIMEOUT_S = 20.0
_MAX_SENDERS = 200
_MAX_LOCKS_PER_RENEWAL = 500
_UUID_ARRAY = 0x98
_MAX_DESCRIPTION = 4096
_ASSUMED_LOCK_SECONDS = 20.0
_LONGEST_LOCK_SECONDS = 310.0
_RELEASED = Released()
_ACCEPTED = Accepted()


class AmqpTransport:
    """Both namespaces over AMQP."""

    def __init__(self, primary: Namespace, secondary: Namespace) -> None:
        self._primary = primary.endpoint()
        self._secondary = secondary.endpoint()
        self._sessions: dict[str, AmqpSession] = {}

    async def open_receiver(self, queue: str) -> AmqpReceiver:
        session = _session(self._secondary)
        try:
            link = await session.open_receiver(queue)
            return AmqpReceiver(queue, session, await session.connection(), link)
        except (AmqpClientError, TokenUnavailableError, OSError, TimeoutError) as error:
            await _end(session, error)
            raise _receiver_lost(error) from error
        except BaseException:
            session.abort()
            raise

    async def send(self, destination: str, raws: Sequence[bytes]) -> None:
        session = self._sessions.get(destination)
        if session is None:
            if len(self._sessions) >= _MAX_SENDERS:
                await self._close_idle_session()
            session = self._sessions.setdefault(destination, _session(self._primary))
        link_is_open = False
        try:
            sender = await session.sender(destination)
            link_is_open = True
            if len(raws) == 1:
                await sender.send(raws[0])
            else:
                await sender.send(join_batch(raws), message_format=BATCH_FORMAT)
        except RefusedError as error:
            failure = failure_of_send(error.condition)
            raise SendError(failure, error.condition, error.error.description) from error
        except (AmqpClientError, TokenUnavailableError, OSError, TimeoutError) as error:
            self._forget(destination, session)
            await _end(session, error)
            raise _send_error(error, link_is_open) from error
        except asyncio.CancelledError:
            # No answer came. Nothing that is in flight on this link may arrive later.
            session.abort()
            self._forget(destination, session)
            raise

    async def _close_idle_session(self) -> None:
        for destination, session in self._sessions.items():
            if session.is_idle:
                self._forget(destination, session)
                await session.close()
                return

    def _forget(self, destination: str, session: AmqpSession) -> None:
        if self._sessions.get(destination) is session:
            del self._sessions[destination]

    async def reachable(self) -> bool:
        session = _session(self._primary)
        try:
            await session.connection()
        except (AmqpClientError, OSError, TimeoutError):
            return False
        await session.close()
        return True

    async def close(self) -> None:
        sessions, self._sessions = list(self._sessions.values()), {}
        for session in sessions:
            await session.close()


class AmqpReceiver:
    def __init__(self, queue: str, session: AmqpSession, connection: ClientConnection, link: ReceiverLink) -> None:
        self._queue = queue
        self._session = session
        self._connection = connection
        self._link = link

    async def receive(self, limit: int, wait: float) -> list[Delivery]:
        self._link.request(limit)
        try:
            async with asyncio.timeout(wait):
                received = await self._link.receive(limit)
        except TimeoutError:
            return []
        except LinkLostError as error:
            raise _receiver_lost(error) from error
        self._link.request(limit)  # the prefetch: more may arrive while these are carried
        return _deliveries(received)

    async def quiet(self) -> list[Delivery]:
        return _deliveries(await self._link.drain())

    async def complete(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        return await self._settle(deliveries, _ACCEPTED)

    async def complete_together(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        body = {"disposition-status": "completed", "lock-tokens": _lock_tokens(deliveries)}
        reply = await self._manage("update-disposition", body)
        if not reply.is_good:
            return list(deliveries)
        for delivery in deliveries:
            if self._is_ours(delivery):
                self._link.let_go(delivery.handle)  # the link still waits for its settlement
        return []

    async def release(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        return await self._settle(deliveries, _RELEASED)

    async def dead_letter(self, letters: Sequence[DeadLetter]) -> list[Delivery]:
        settling = [self._settle([letter.delivery], _dead_letter_state(letter)) for letter in letters]
        return [delivery for unsettled in await asyncio.gather(*settling) for delivery in unsettled]

    async def _settle(self, deliveries: Sequence[Delivery], state: State) -> list[Delivery]:
        """Settle them and return the deliveries that could not be settled."""
        # Deliveries of an earlier link cannot be settled: their locks expire and they come again.
        ours = [delivery for delivery in deliveries if self._is_ours(delivery)]
        others = [delivery for delivery in deliveries if delivery not in ours] if len(ours) < len(deliveries) else []
        try:
            reasons = await self._link.settle([delivery.handle for delivery in ours], state)
        except LinkLostError as error:
            raise _receiver_lost(error) from error
        return others + [delivery for delivery, reason in zip(ours, reasons, strict=True) if reason is not None]

    def _is_ours(self, delivery: Delivery) -> bool:
        return delivery.handle.delivery.link is self._link.link

    async def renew(self, deliveries: Sequence[Delivery]) -> tuple[float, list[Delivery]]:
        lost: list[Delivery] = []
        again_at = _renew_after(asyncio.get_running_loop().time(), None)
        for start in range(0, len(deliveries), _MAX_LOCKS_PER_RENEWAL):
            again_at = await self._renew(list(deliveries[start : start + _MAX_LOCKS_PER_RENEWAL]), lost, again_at)
        return again_at, lost

    async def _renew(self, deliveries: list[Delivery], lost: list[Delivery], again_at: float) -> float:
        """Renew all locks in one request. If it fails, halve the list until the lost locks are found."""
        reply = await self._manage("renew-lock", {"lock-tokens": _lock_tokens(deliveries)})
        if reply.is_good:
            expirations = reply.body.get("expirations") or []
            times = expirations.items if isinstance(expirations, Array) else expirations
            return _renew_after(asyncio.get_running_loop().time(), times[-1] / 1000 if times else None)
        if len(deliveries) == 1:
            lost.extend(deliveries)
            return again_at
        half = len(deliveries) // 2
        again_at = await self._renew(deliveries[:half], lost, again_at)
        return await self._renew(deliveries[half:], lost, again_at)

    async def peek(self, from_number: int, count: int) -> list[Peeked]:
        return [Peeked.of(envelope.inspect(raw)) for raw in await self.peek_raw(from_number, count)]

    async def peek_raw(self, from_number: int, count: int) -> list[bytes]:
        """Return encoded messages from this sequence number on."""
        reply = await self._manage("peek-message", {"from-sequence-number": from_number, "message-count": Int(count)})
        if not reply.is_good:
            raise ReceiverLostError(f"peeking failed: {reply.error()}")
        return [entry["message"] for entry in (reply.body or {}).get("messages", [])]

    async def _manage(self, operation: str, body: dict[str, Any]) -> Any:
        try:
            return await self._connection.manage(self._queue, operation, body)
        except (AmqpClientError, TimeoutError) as error:
            raise _receiver_lost(error) from error

    async def close(self) -> None:
        await self._session.close()


def _session(endpoint: AmqpEndpoint) -> AmqpSession:
    return AmqpSession(endpoint, open_timeout_s=_OPEN_TIMEOUT_S)


async def _end(session: AmqpSession, error: Exception) -> None:
    if isinstance(error, TimeoutError):
        session.abort()  # a peer that does not answer would not answer a close either
    else:
        await session.close()


def _lock_tokens(deliveries: Sequence[Delivery]) -> Array:
    return Array(_UUID_ARRAY, [delivery.handle.lock_token for delivery in deliveries])


def _deliveries(received: Sequence[Received]) -> list[Delivery]:
    now = asyncio.get_running_loop().time()
    deliveries = []
    for each in received:
        message = envelope.inspect(each.raw)
        until = message.locked_until_ms / 1000 if message.locked_until_ms is not None else None
        handle = Received(b"", each.tag, each.delivery)  # `Delivery.drop_content` must free the bytes
        deliveries.append(Delivery(message, handle, _renew_after(now, until)))
    return deliveries


def _renew_after(now: float, locked_until: float | None) -> float:
    """Return the time to renew a lock: half of its remaining life after `now`. `locked_until` is in epoch seconds.

    The service's clock may differ from ours. If the lock seems to be over, or longer than any lock can be, assume a
    short one.
    """
    left = locked_until - time.time() if locked_until is not None else -1.0
    return now + (left if 0 < left <= _LONGEST_LOCK_SECONDS else _ASSUMED_LOCK_SECONDS) / 2


def _dead_letter_state(letter: DeadLetter) -> Rejected:
    description = letter.description[:_MAX_DESCRIPTION]
    info = {"DeadLetterReason": letter.reason, "DeadLetterErrorDescription": description}
    return Rejected(AmqpError("com.microsoft:dead-letter", description, info))


def _send_error(error: Exception, link_was_open: bool) -> SendError:
    """Translate an error that ended a session. Without an open link nothing was sent, so nothing is in doubt."""
    if isinstance(error, TokenUnavailableError):
        return SendError(SendFailure.UNAVAILABLE, f"client:{type(error.__cause__).__name__}", str(error))
    if not isinstance(error, AmqpClientError):
        text = str(error) or "no answer"
        return SendError(SendFailure.UNREACHABLE, CONNECTION_FORCED, text, in_doubt=link_was_open)
    if isinstance(error, TokenRefusedError):
        failure, in_doubt, refused = failure_of_send(error.condition), False, error.status == 401
    else:
        failure, in_doubt, refused = failure_of_link(error.condition), link_was_open, False
    return SendError(failure, error.condition, error.error.description, in_doubt=in_doubt, token_refused=refused)


def _receiver_lost(error: Exception) -> ReceiverLostError:
    condition = error.condition if isinstance(error, AmqpClientError) else ""
    cause = error.__cause__ if isinstance(error, TokenUnavailableError) else error
    return ReceiverLostError(
        f"{type(cause).__name__}: {error}", missing=condition == NOT_FOUND, unauthorized=condition == UNAUTHORIZED
    )
