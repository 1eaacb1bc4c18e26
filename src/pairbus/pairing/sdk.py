"""The edge to the SDK: its private names, the encoding of messages, and the translation of errors.

This module alone uses names of `azure.servicebus` that begin with an underscore. Each serves a purpose that the public
surface does not; a test checks that they still exist.

- `transform_outbound_messages` and the transport's `encode_message` encode a message as the SDK does.
  `ServiceBusMessageBatch._message[5]` is the list of encoded messages of a batch; the SDK sends exactly those bytes. So
  the backlog form is made from bytes, not from values that might change their type.
- `_max_batch_size_on_link` and `_max_message_size_on_link` are the limits that the service announced for the link.
- `_open`, through `_do_retryable_operation`, opens a link with a timeout; the public ways have none.
- `_handler._connection._transport.sock` is the only way to end a connection attempt to a silent server: the sync SDK
  reads the first answer without a timeout. During a TLS handshake the transport does not have the socket yet: there,
  `_handler._ssl_opts` and `SSLTransport._wrap_socket_sni` lead to it.
- `_inner_next`, `_inner_anext` and `_handler._shutdown` end the iteration over a receiver.
- `_amqp_transport` of a sender is the transport that a batch must be made for.
- `_condition` and `_retryable` of an error hold the service's answer; a `TokenAuthFailure` inside it, that to a token.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, cast

from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusMessageBatch, TransportType
from azure.servicebus._common.tracing import is_tracing_enabled
from azure.servicebus._common.utils import transform_outbound_messages
from azure.servicebus._pyamqp._transport import SSLTransport
from azure.servicebus._pyamqp.error import TokenAuthFailure
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.amqp._amqp_message import AmqpMessageProperties
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    OperationTimeoutError,
    ServiceBusConnectionError,
    ServiceBusError,
)

from pairbus import envelope, errors
from pairbus.amqp.message import BATCH_ENTRY_BYTES, id_text, with_message_id
from pairbus.failover.classification import ErrorDescription

STANDARD_LIMIT_BYTES = 256 * 1024
"""The limit of the Standard tier, assumed until a link announces its own."""

LARGEST_MESSAGE_BYTES = 100 * 1024 * 1024
"""The limit of the largest tier, assumed for the primary until its link announces its own."""

_MOST_WRAPPED = 20

_NOT_ENCODABLE = (ValueError, TypeError, OverflowError, AttributeError, struct.error)
"""Errors of the SDK's encoder for content that has no encoding."""

_IN_DOUBT = (OperationTimeoutError, ServiceBusConnectionError, asyncio.CancelledError, KeyboardInterrupt)

Messages = (
    ServiceBusMessage
    | AmqpAnnotatedMessage
    | Mapping[str, Any]
    | Iterable[ServiceBusMessage]
    | Iterable[AmqpAnnotatedMessage]
    | Iterable[Mapping[str, Any]]
)
"""One message or any iterable of messages, as the SDK's senders take it."""

SingleMessage = ServiceBusMessage | AmqpAnnotatedMessage | Mapping[str, Any]
Outgoing = SingleMessage | ServiceBusMessageBatch | Sequence[SingleMessage]
"""Prepared messages: iterables have become lists, and every message has an id."""

ErrorT = TypeVar("ErrorT", bound=errors.PairbusError)


def _sdk_error(error: type[ErrorT], base: type[Exception] = ServiceBusError) -> type[ErrorT]:
    """The same error, also as an error of the SDK, so that `except ServiceBusError` around a send still catches it."""
    return cast(type[ErrorT], type(error.__name__, (error, base), {"__doc__": error.__doc__, "__module__": __name__}))


BacklogUnavailableError = _sdk_error(errors.BacklogUnavailableError)
PartlyAcceptedError = _sdk_error(errors.PartlyAcceptedError)
ScheduledInBacklogError = _sdk_error(errors.ScheduledInBacklogError)
SpoolError = _sdk_error(errors.SpoolError)
SpoolFullError = _sdk_error(errors.SpoolFullError, SpoolError)
PairedNamespaceFaultedError = _sdk_error(errors.PairedNamespaceFaultedError)


class NotWantedError(Exception):
    """The entity failed over while the caller waited for its turn."""


class TurnTimeoutError(OperationTimeoutError):
    """The caller's time ran out before its turn came. The server was not called, so this says nothing about it."""

    def __init__(self) -> None:
        super().__init__(message="Timed out waiting for earlier sends of this sender.")


class RawBatch(ServiceBusMessageBatch):
    """A batch of encoded messages, for one sender.

    It is made for the sender's transport: for another one the SDK would rebuild the batch from messages that this batch
    does not have. The SDK's __init__ is not called, because it encodes an empty batch to measure it.
    """

    def __init__(self, raws: Sequence[bytes], sender: Any) -> None:
        self._amqp_transport = transport = _transport(sender)
        self._tracing_attributes = {}
        self._max_size_in_bytes = self._size = 2**31
        self._message = transport.build_batch_message(raws)
        self._count = len(raws)
        self._messages = []
        self._uamqp_message = None


class PairedMessageBatch(ServiceBusMessageBatch):
    """A batch that still fits into one send when its messages have grown into their backlog form.

    A message that is alone in the batch may outgrow the limit: it is split.
    """

    def __init__(self, destination: str, max_size_in_bytes: int, backlog_limit_bytes: int, sender: Any) -> None:
        super().__init__(max_size_in_bytes=max_size_in_bytes, amqp_transport=_transport(sender))
        self._destination = destination
        self._backlog_limit = backlog_limit_bytes
        self._grown = 0

    def _add(self, add_message: Any) -> None:
        prepared = _prepare_one(add_message)
        encoded = cast(Any, self)._message[5]
        before = self._size
        super()._add(prepared)
        message = self._messages[-1]
        growth = envelope.growth(
            self._destination,
            message.session_id,
            timed=message.time_to_live is not None,
            scheduled=message.scheduled_enqueue_time_utc is not None,
        )
        size = len(encoded[-1]) + growth + BATCH_ENTRY_BYTES
        if self._count > 1 and self._grown + size > self._backlog_limit:
            encoded.pop()
            self._messages.pop()
            self._count -= 1
            self._size = before
            raise MessageSizeExceededError(
                message=f"ServiceBusMessageBatch has reached its size limit: {self.max_size_in_bytes} bytes, "
                "less the room that its messages need in a backlog."
            )
        self._grown += size


def prepare(message: Any) -> Outgoing:
    """Check messages and give them ids, before the first attempt to send them.

    A message without an id gets one in place, so that a second attempt is recognised as the same message. Raises
    ReservedPropertyError for application properties with names that the backlog uses.
    """
    if isinstance(message, ServiceBusMessage):
        _prepare_annotated(message.raw_amqp_message)
        return message
    if isinstance(message, PairedMessageBatch):
        return message
    if isinstance(message, ServiceBusMessageBatch):
        _prepare_batch(message)
        return message
    if isinstance(message, Iterable) and not isinstance(message, Mapping | AmqpAnnotatedMessage | str | bytes):
        return [_prepare_one(item) for item in message]
    return _prepare_one(message)


def _prepare_one(message: Any) -> SingleMessage:
    if isinstance(message, ServiceBusMessage):
        _prepare_annotated(message.raw_amqp_message)
    elif isinstance(message, AmqpAnnotatedMessage):
        _prepare_annotated(message)
    elif isinstance(message, Mapping):
        return _prepare_mapping(message)
    return cast(SingleMessage, message)  # the SDK rejects anything else


def _prepare_annotated(raw: AmqpAnnotatedMessage) -> None:
    names = raw.application_properties
    if names:
        _refuse_reserved(names)
    properties = raw.properties
    if properties is None:
        raw.properties = AmqpMessageProperties(message_id=str(uuid.uuid4()))
    elif not properties.message_id:
        properties.message_id = str(uuid.uuid4())


def _prepare_mapping(message: Mapping[str, Any]) -> Mapping[str, Any]:
    names = message.get("application_properties")
    if isinstance(names, Mapping):
        _refuse_reserved(names)
    return message if message.get("message_id") else {**message, "message_id": str(uuid.uuid4())}


def _prepare_batch(batch: ServiceBusMessageBatch) -> None:
    """Give ids to the messages of a batch that the SDK has encoded."""
    encoded = cast(Any, batch)._message[5]
    for position, message in enumerate(batch._messages):
        if message.application_properties:
            _refuse_reserved(message.application_properties)
        if not message.message_id:
            message_id = str(uuid.uuid4())
            encoded[position] = bytearray(with_message_id(bytes(encoded[position]), message_id))
            message.message_id = message_id


def _refuse_reserved(names: Iterable[Any]) -> None:
    reserved = envelope.reserved_names(names)
    if reserved:
        raise errors.ReservedPropertyError(reserved)


def encode(message: Outgoing, limit_bytes: int, sender: Any) -> list[bytes]:
    """Encode messages as the SDK does for the primary.

    Raises the errors of the SDK for content that cannot be sent, and MessageSizeExceededError if a single message, or a
    list as a whole, is larger than `limit_bytes`.
    """
    if isinstance(message, ServiceBusMessageBatch):
        return [bytes(raw) for raw in cast(Any, message)._message[5]]
    if isinstance(message, list):
        raws = [_encoded(item, sender) for item in message]
        size = sum(len(raw) + (5 if len(raw) < 256 else BATCH_ENTRY_BYTES) for raw in raws)  # as the SDK counts
        if size > limit_bytes:
            raise MessageSizeExceededError(message=f"ServiceBusMessageBatch has reached its size limit: {limit_bytes}")
        return raws
    raw = _encoded(cast(SingleMessage, message), sender)
    if len(raw) > limit_bytes:
        raise MessageSizeExceededError(
            message=f"The message has {len(raw)} bytes; the primary namespace takes at most {limit_bytes}."
        )
    return [raw]


def can_be_encoded(message: Outgoing, error: BaseException, sender: Any) -> bool:
    """Whether the message is not to blame for this error.

    For a message that cannot be encoded the SDK raises an error without a condition, as for a broken connection.
    """
    if type(error) is not ServiceBusError or getattr(error, "_condition", None) is not None:
        return True
    try:
        encode(message, LARGEST_MESSAGE_BYTES, sender)
    except _NOT_ENCODABLE:
        return False
    return True


def sizes(message: Outgoing, sender: Any) -> list[int]:
    """The encoded size of each prepared message in bytes, without a trace context; 0 if it cannot be encoded.

    Messages in a batch are encoded already; others are encoded once more for this.
    """
    if isinstance(message, ServiceBusMessageBatch):
        return [len(raw) for raw in cast(Any, message)._message[5]]
    return [_size(item, sender) for item in _items(message)]


def _size(message: SingleMessage, sender: Any) -> int:
    try:
        return len(_encode(message, sender))
    except _NOT_ENCODABLE:
        return 0


def _encoded(message: SingleMessage, sender: Any) -> bytes:
    if is_tracing_enabled():  # type: ignore[no-untyped-call]
        # The SDK adds the trace context while it puts a message into a batch.
        batch = ServiceBusMessageBatch(max_size_in_bytes=2**31)
        batch.add_message(cast(Any, message))
        return bytes(cast(Any, batch)._message[5][0])
    return bytes(_encode(message, sender))


def _encode(message: SingleMessage, sender: Any) -> bytearray:
    transport = _transport(sender)
    ready = transform_outbound_messages(cast(Any, message), ServiceBusMessage, transport.to_outgoing_amqp_message)
    if isinstance(ready, list):
        raise TypeError(f"Only a ServiceBusMessage, an AmqpAnnotatedMessage or a mapping can be sent, not {message!r}.")
    return cast(bytearray, transport.encode_message(ready))


def is_single(message: Outgoing) -> bool:
    """Whether this is one message, not a list or a batch."""
    return isinstance(message, ServiceBusMessage) or not isinstance(message, ServiceBusMessageBatch | list)


def count_of(message: Outgoing) -> int:
    """The number of prepared messages."""
    if isinstance(message, ServiceBusMessage):
        return 1
    return len(message) if isinstance(message, ServiceBusMessageBatch | list) else 1


def message_ids(message: Outgoing) -> list[str | None]:
    """The ids of prepared messages, as text, in order."""
    return [_id_of(item) for item in _items(message)]


def _items(message: Outgoing) -> Sequence[SingleMessage]:
    if isinstance(message, ServiceBusMessageBatch):
        return message._messages
    return message if isinstance(message, list) else [cast(SingleMessage, message)]


def _id_of(message: SingleMessage) -> str | None:
    if isinstance(message, Mapping):
        message_id = message.get("message_id")
    else:
        raw = message.raw_amqp_message if isinstance(message, ServiceBusMessage) else message
        message_id = None if raw.properties is None else raw.properties.message_id
    return id_text(message_id)


def schedule(message: Outgoing, at: Any) -> Outgoing:
    """Set the time at which the messages appear, as the SDK's `schedule_messages` does."""
    if isinstance(message, ServiceBusMessage):
        message.scheduled_enqueue_time_utc = at
        return message
    if isinstance(message, AmqpAnnotatedMessage):
        message.annotations = {**(message.annotations or {}), b"x-opt-scheduled-enqueue-time": at}
        return message
    if isinstance(message, Mapping):
        return {**message, "scheduled_enqueue_time_utc": at}
    if isinstance(message, Sequence):
        return [cast(SingleMessage, schedule(item, at)) for item in message]
    raise ValueError(f"Only messages can be scheduled, not a {type(message).__name__}.")


def describe(error: BaseException) -> ErrorDescription:
    """Describe an error for the failover rules."""
    condition = getattr(error, "_condition", None)
    value = getattr(condition, "value", condition)
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    chain = list(_chain(error))
    statuses = [one.status_code for one in chain if isinstance(one, TokenAuthFailure)]
    return ErrorDescription(
        class_names=frozenset(base.__name__ for one in chain for base in type(one).__mro__),
        condition=str(value) if value else "",
        retryable=bool(getattr(error, "_retryable", False)),
        status=next((status for status in statuses if isinstance(status, int)), 0),
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error and those that it wraps. Only explicit causes: the context may be what the application is handling."""
    for _ in range(_MOST_WRAPPED):
        if error is None:
            return
        yield error
        error = error.__cause__ or getattr(error, "inner_exception", None)


def cause(error: BaseException) -> str:
    """The error as a transition names it."""
    return f"{type(error).__name__}: {error}"


def refuse_backlog_numbers(sequence_numbers: int | Sequence[int]) -> None:
    """Raise ScheduledInBacklogError for numbers of messages that were scheduled into a backlog."""
    numbers = [sequence_numbers] if isinstance(sequence_numbers, int) else sequence_numbers
    in_backlog = [number for number in numbers if number < 0]
    if in_backlog:
        raise ScheduledInBacklogError(in_backlog)


def is_in_doubt(error: BaseException | None) -> bool:
    """Whether the server may or may not have taken the messages of a send that ended with this error."""
    return isinstance(error, _IN_DOUBT) and not isinstance(error, TurnTimeoutError)


def check_connection_string(option: str, connection_string: str) -> None:
    """Raise a ValueError that names the option, but does not show the value, if the SDK cannot parse it."""
    try:
        ServiceBusClient.from_connection_string(connection_string)
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ValueError(
            f"{option} is not the connection string of a namespace (not shown: it may contain a key). Expected "
            "'Endpoint=sb://HOST/;SharedAccessKeyName=NAME;SharedAccessKey=KEY', as the portal shows it."
        ) from None


def could_not_connect(error: BaseException) -> bool:
    """Whether no connection to the namespace was established: refused, reset at once, or an unknown host.

    A connection that broke later is different: the server may have ended it because of one entity.
    """
    if not isinstance(error, ServiceBusConnectionError):
        return isinstance(error, OSError) and not isinstance(error, TimeoutError)
    cause = next((one for one in _chain(error) if isinstance(one, OSError) or not isinstance(one, Exception)), None)
    return isinstance(cause, OSError) and not isinstance(cause, TimeoutError)


def _transport(sender: Any) -> Any:
    transport = sender._amqp_transport
    if transport.KIND != "pyamqp":
        raise ValueError(
            f"The client uses the SDK's transport {transport.KIND!r}. Create it without uamqp_transport=True."
        )
    return transport


def batch_limit(sender: Any) -> int:
    """The size limit of one send on the sender's link in bytes; 0 before it is opened."""
    return int(getattr(sender, "_max_batch_size_on_link", 0) or 0)


def message_limit(sender: Any) -> int:
    """The size limit of one message on the sender's link in bytes; 0 before it is opened."""
    return int(getattr(sender, "_max_message_size_on_link", 0) or 0)


def open_link(sender: Any, timeout: float) -> Any:
    """Open the sender's link within `timeout`; returns a coroutine for an aio sender."""
    return sender._do_retryable_operation(
        sender._open, timeout=timeout, operation_requires_timeout=True, apply_try_timeout=True
    )


def grace(seconds: float) -> float:
    """The time beyond its timeout that a call of the SDK gets to end by itself."""
    return 1.0 if seconds > 4.0 else seconds / 4


class _Handshake:
    """Stands in for the SSL context of a sync sender, and makes it possible to end a TLS handshake.

    `ssl` takes the descriptor from the SDK's socket before the handshake, which has no timeout, and the SDK gets the
    new socket only afterwards. A duplicate of the descriptor reaches the connection meanwhile.
    """

    def __init__(self, context: Any) -> None:
        self._context = context
        self.connection: socket.socket | None = None

    def wrap_socket(self, sock: socket.socket, **options: Any) -> Any:
        with sock.dup() as self.connection:
            if self._context is not None:
                return self._context.wrap_socket(sock, **options)
            return cast(Any, SSLTransport)._wrap_socket_sni(None, sock, **options)


def watch_handshakes(sender: Any) -> None:
    """Let `break_connection` end the TLS handshakes of a sync sender, too."""
    create_handler = sender._create_handler

    def create_watched_handler(*args: Any, **kwargs: Any) -> None:
        create_handler(*args, **kwargs)
        if sender._handler._transport_type is TransportType.Amqp:  # the handshake of a web socket has a timeout
            options = sender._handler._ssl_opts
            options["context"] = sender._handler._handshake = _Handshake(options.get("context"))

    sender._create_handler = create_watched_handler


def break_connection(sender: Any) -> None:
    """Shut down the socket of a sync sender, so that a call that waits on it fails."""
    handler = getattr(sender, "_handler", None)
    connection = getattr(handler, "_connection", None)
    sock = getattr(getattr(connection, "_transport", None), "sock", None)
    handshake = getattr(handler, "_handshake", None)
    for one in (
        getattr(sock, "sock", sock),
        getattr(handshake, "connection", None),
    ):  # a web socket has a socket inside
        if one is not None:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


def unfinished_session(sender: Any) -> Any:
    """The HTTP session of an aio sender whose web socket is being opened, or None: if that is cancelled, the SDK
    forgets to close the session.
    """
    transport = getattr(getattr(getattr(sender, "_handler", None), "_connection", None), "_transport", None)
    return getattr(transport, "session", None) if getattr(transport, "sock", None) is None else None


def end_iteration(receiver: Any, refuse: Callable[..., Any]) -> None:
    """End a `for message in receiver` that waits for a message, and let another one fail; nothing for a sender."""
    handler = getattr(receiver, "_handler", None)
    for name in ("_inner_next", "_inner_anext"):
        if hasattr(receiver, name):
            setattr(receiver, name, refuse)
            if handler is not None:
                handler._shutdown = True


def ping() -> ServiceBusMessage:
    """A new ping. The server never delivers it to a receiver."""
    return ServiceBusMessage(
        b"",
        content_type=envelope.PING_CONTENT_TYPE,
        time_to_live=cast(Any, envelope.PING_TIME_TO_LIVE_MS // 1000),
        session_id=str(uuid.uuid4()),
        message_id=str(uuid.uuid4()),
    )
