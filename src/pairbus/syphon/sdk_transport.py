"""The plain transport: the SDK receives, sends and settles. It is the reference for the AMQP transport.

One thing is not plain: the encoded message is copied as it comes off the link, before the SDK decodes it, because the
SDK loses the difference between AMQP's number types. `envelope` restores these bytes, and they are sent on.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

from azure.core.exceptions import AzureError
from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus._pyamqp._decode import decode_payload
from azure.servicebus.aio import ServiceBusReceiver, ServiceBusSender
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import (
    MessageAlreadySettled,
    MessageLockLostError,
    MessageNotFoundError,
    MessageSizeExceededError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusCommunicationError,
    ServiceBusConnectionError,
    ServiceBusError,
)

from pairbus import envelope
from pairbus.amqp.conditions import UNAUTHORIZED
from pairbus.pairing.sdk import RawBatch, describe, open_link
from pairbus.syphon.deliveries import DeadLetter, Delivery, Peeked
from pairbus.syphon.namespaces import Namespace
from pairbus.syphon.send_errors import SendError, SendFailure, failure_of_link, failure_of_send
from pairbus.syphon.transport import ReceiverLostError, renew_after

_OPEN_SECONDS = 30.0
_MAX_BATCH_OF_ONE_BYTES = 255_000
_MAX_SENDERS = 200
_UNAUTHORIZED = (ServiceBusAuthenticationError, ServiceBusAuthorizationError)
_LOCK_GONE = (MessageLockLostError, MessageAlreadySettled, MessageNotFoundError)


class SdkTransport:
    overlapping = False
    held_messages = 300

    def __init__(self, primary: Namespace, secondary: Namespace) -> None:
        self._namespace = primary
        self._primary = primary.client(retry_total=0)
        self._secondary = secondary.client(retry_total=0)
        self._senders: dict[str, tuple[ServiceBusSender, asyncio.Lock]] = {}

    async def open_receiver(self, queue: str) -> SdkReceiver:
        receiver = self._secondary.get_queue_receiver(queue, prefetch_count=0)
        opened = SdkReceiver(receiver)
        try:
            async with asyncio.timeout(_OPEN_SECONDS):
                await opened.open()
        except (AzureError, TimeoutError, OSError) as error:
            await opened.close()
            raise _receiver_lost(error) from error
        except BaseException:
            await opened.close()
            raise
        return opened

    async def send(self, destination: str, raws: Sequence[bytes]) -> None:
        while True:
            sender, turn = self._sender(destination)
            async with turn:
                if self._senders.get(destination) == (sender, turn):  # not dropped while we waited
                    await self._send(destination, sender, raws)
                    return

    async def _send(self, destination: str, sender: ServiceBusSender, raws: Sequence[bytes]) -> None:
        in_doubt = False
        try:
            await open_link(sender, _OPEN_SECONDS)
            in_doubt = True
            await sender.send_messages(_outgoing(raws, sender))
        except ServiceBusError as error:
            await self._drop(destination)
            raise _send_error(error, in_doubt) from error
        except (AzureError, OSError, ValueError, TypeError) as error:
            # The cause is the credential or the SDK's own state. The message is already encoded.
            await self._drop(destination)
            failure = SendFailure.UNREACHABLE if isinstance(error, OSError) else SendFailure.UNAVAILABLE
            in_doubt = in_doubt and isinstance(error, OSError)
            raise SendError(failure, f"client:{type(error).__name__}", str(error), in_doubt=in_doubt) from error
        except asyncio.CancelledError:
            # Perhaps in the middle of a frame: the connection cannot be used again.
            await asyncio.shield(self._drop(destination))
            raise

    def _sender(self, destination: str) -> tuple[ServiceBusSender, asyncio.Lock]:
        entry = self._senders.get(destination)
        if entry is None:
            # The SDK's queue sender accepts any path, also that of a topic.
            entry = self._senders[destination] = (self._primary.get_queue_sender(destination), asyncio.Lock())
            if len(self._senders) > _MAX_SENDERS:
                self._close_idle_sender()
        return entry

    def _close_idle_sender(self) -> None:
        for destination, (sender, turn) in self._senders.items():
            if not turn.locked():
                del self._senders[destination]
                task = asyncio.ensure_future(sender.close())
                task.add_done_callback(lambda done: done.cancelled() or done.exception())
                return

    async def _drop(self, destination: str) -> None:
        entry = self._senders.pop(destination, None)
        if entry is not None:
            with contextlib.suppress(ServiceBusError, OSError, TimeoutError):
                async with asyncio.timeout(5.0):
                    await entry[0].close()

    async def reachable(self) -> bool:
        if not self._namespace.plain_amqp:
            return True  # a proxy or gateway may answer for a dead namespace, so an answer would prove nothing
        host, port = self._namespace.address
        try:
            async with asyncio.timeout(10.0):
                _, writer = await asyncio.open_connection(host, port)
        except (OSError, TimeoutError):
            return False
        writer.close()
        return True

    async def close(self) -> None:
        for destination in list(self._senders):
            await self._drop(destination)
        for client in (self._primary, self._secondary):
            with contextlib.suppress(ServiceBusError, OSError):
                await client.close()


class SdkReceiver:
    """The SDK's receiver does one thing at a time, so its users take turns."""

    def __init__(self, receiver: ServiceBusReceiver) -> None:
        self._receiver = receiver
        self._turn = asyncio.Lock()
        self._raws: dict[bytes, bytes] = {}
        self._tapped_link: Any = None

    async def open(self) -> None:
        await open_link(self._receiver, _OPEN_SECONDS)
        self._tap()

    def _tap(self) -> None:
        """Copy the bytes of every message as it comes off the link."""
        link = cast(Any, self._receiver)._handler._link
        if link is self._tapped_link:
            return
        self._tapped_link = link
        original: Callable[[Any], Awaitable[None]] = link._incoming_transfer
        pieces = bytearray()
        tag = b""

        async def tapped(frame: Any) -> None:
            nonlocal tag
            if frame[1] is not None:
                tag = bytes(frame[2])
                pieces.clear()
            pieces.extend(frame[11])
            if not frame[5]:
                self._raws[tag] = bytes(pieces)
                pieces.clear()
            await original(frame)

        link._incoming_transfer = tapped

    async def receive(self, limit: int, wait: float) -> list[Delivery]:
        async with self._turn:
            try:
                self._tap()
                received = await self._receiver.receive_messages(max_message_count=limit, max_wait_time=max(wait, 0.01))
            except (ServiceBusError, OSError, AttributeError) as error:
                raise _receiver_lost(error) from error
        now = asyncio.get_running_loop().time()
        return [self._delivery(message, now) for message in received]

    def _delivery(self, message: ServiceBusReceivedMessage, now: float) -> Delivery:
        tag = cast(Any, message)._delivery_tag
        raw = self._raws.pop(bytes(tag)) if tag is not None else b""
        until = message.locked_until_utc
        return Delivery(
            envelope.inspect(raw),
            message,
            renew_after(now, until.timestamp() if until is not None else None),
        )

    async def quiet(self) -> list[Delivery]:
        # Without prefetch nothing arrives unrequested, but a cancelled receive may have left messages.
        return await self.receive(100, 0.01) if self._raws else []

    async def complete(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        return await self._each(deliveries, lambda delivery: self._receiver.complete_message(delivery.handle))

    async def complete_together(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        # The SDK offers this for one message at a time, but the request it makes takes any number.
        receiver = cast(Any, self._receiver)
        tokens = [delivery.handle.lock_token for delivery in deliveries]
        if None in tokens:  # at least one is already settled
            return list(deliveries)
        async with self._turn:
            try:
                await receiver._settle_message_via_mgmt_link("completed", tokens)
            except (*_LOCK_GONE, ValueError):
                return list(deliveries)
            except (ServiceBusError, OSError) as error:
                raise _receiver_lost(error) from error
        for delivery in deliveries:
            delivery.handle._settled = True
        return []

    async def release(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        return await self._each(deliveries, lambda delivery: self._receiver.abandon_message(delivery.handle))

    async def dead_letter(self, letters: Sequence[DeadLetter]) -> list[Delivery]:
        by_number = {letter.delivery.sequence_number: letter for letter in letters}

        def dead_letter(delivery: Delivery) -> Awaitable[None]:
            letter = by_number[delivery.sequence_number]
            return self._receiver.dead_letter_message(
                delivery.handle, reason=letter.reason, error_description=letter.description
            )

        return await self._each([letter.delivery for letter in letters], dead_letter)

    async def renew(self, deliveries: Sequence[Delivery]) -> tuple[float, list[Delivery]]:
        locked_until: Any = None

        async def renew(delivery: Delivery) -> None:
            nonlocal locked_until
            locked_until = await self._receiver.renew_message_lock(delivery.handle)

        lost = await self._each(deliveries, renew)
        now = asyncio.get_running_loop().time()
        return renew_after(now, locked_until.timestamp() if locked_until is not None else None), lost

    async def _each(self, deliveries: Sequence[Delivery], act: Callable[[Delivery], Awaitable[Any]]) -> list[Delivery]:
        lost = []
        async with self._turn:
            for delivery in deliveries:
                try:
                    await act(delivery)
                except (*_LOCK_GONE, ValueError):
                    lost.append(delivery)
                except (ServiceBusError, OSError) as error:
                    raise _receiver_lost(error) from error
        return lost

    async def peek(self, from_number: int, count: int) -> list[Peeked]:
        async with self._turn:
            try:
                # For the SDK, 0 means: from where the last receive ended.
                messages = await self._receiver.peek_messages(count, sequence_number=max(from_number, 1))
            except (ServiceBusError, OSError) as error:
                raise _receiver_lost(error) from error
        return [_peeked(message) for message in messages]

    async def close(self) -> None:
        with contextlib.suppress(ServiceBusError, OSError, TimeoutError):
            async with asyncio.timeout(5.0):
                await self._receiver.close()


def _peeked(message: ServiceBusReceivedMessage) -> Peeked:
    properties: Any = message.application_properties or {}

    def text(name: str) -> str | None:
        value = properties.get(name.encode(), properties.get(name))
        if isinstance(value, bytes):
            return value.decode("utf-8", "replace")
        return value if isinstance(value, str) else None

    return Peeked(
        message.sequence_number or 0,
        text(envelope.PATH),
        text(envelope.PART_OF),
        _enqueued_ms(message),
        message.message_id,
    )


def _enqueued_ms(message: ServiceBusReceivedMessage) -> int:
    at = message.enqueued_time_utc
    return round(at.timestamp() * 1000) if at is not None else 0


def _outgoing(raws: Sequence[bytes], sender: ServiceBusSender) -> Any:
    if len(raws) == 1 and len(raws[0]) > _MAX_BATCH_OF_ONE_BYTES:
        # As a batch of one, the message would be a few bytes too large for its destination.
        return AmqpAnnotatedMessage(message=decode_payload(memoryview(raws[0])))
    return RawBatch(raws, sender)


def _receiver_lost(error: BaseException) -> ReceiverLostError:
    missing = isinstance(error, MessagingEntityNotFoundError) or _token_status(error) == 404
    unauthorized = isinstance(error, _UNAUTHORIZED) and not missing
    return ReceiverLostError(f"{type(error).__name__}: {error}", missing=missing, unauthorized=unauthorized)


def _token_status(error: BaseException) -> int | None:
    return getattr(getattr(error, "inner_exception", None), "status_code", None)


def _send_error(error: ServiceBusError, in_doubt: bool) -> SendError:
    condition = UNAUTHORIZED if isinstance(error, _UNAUTHORIZED) else describe(error).condition
    # The service refuses a token for an entity that does not exist, and the SDK reports that as a wrong token.
    if isinstance(error, MessagingEntityNotFoundError) or _token_status(error) == 404:
        failure = SendFailure.MISSING
    elif isinstance(error, MessageSizeExceededError):
        failure = SendFailure.REFUSED
    elif isinstance(error, ServiceBusConnectionError | ServiceBusCommunicationError | OperationTimeoutError):
        failure = SendFailure.UNREACHABLE
    else:
        failure = failure_of_send(condition) if in_doubt else failure_of_link(condition)
    unanswered = in_doubt and failure is SendFailure.UNREACHABLE
    refused = isinstance(error, ServiceBusAuthenticationError) and failure is not SendFailure.MISSING
    return SendError(failure, condition or type(error).__name__, str(error), in_doubt=unanswered, token_refused=refused)
