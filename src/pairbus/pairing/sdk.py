"""The one place that knows what the SDK does not say aloud.

Everything here touches names of `azure.servicebus` that begin with an underscore, each for a reason that its
public surface cannot serve (a test holds that they are still there):

- `transform_outbound_messages` and the transport's `encode_message`: a message in the SDK's own encoding.
  `ServiceBusMessageBatch._message[5]` is the list of encoded messages of a batch: what is in it is sent as
  those very bytes. So the backlog form is made of bytes and not of values that might change their type.
- `_max_batch_size_on_link`, `_max_message_size_on_link`: limits the service told when the link was opened.
- `_open` through `_do_retryable_operation`: opening a link with a timeout; the public ways have none.
- `_handler._connection._transport.sock`: the only way to end a connection attempt that a silent server
  holds; the sync SDK reads the first answer without any timeout.
- `_amqp_transport` of a sender: the transport a batch must be made for.
- `_condition`, `_retryable` of an error: what the service said.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus._common.tracing import is_tracing_enabled
from azure.servicebus._common.utils import transform_outbound_messages
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.amqp._amqp_message import AmqpMessageProperties
from azure.servicebus.exceptions import MessageSizeExceededError, ServiceBusConnectionError, ServiceBusError

from pairbus import envelope
from pairbus.amqp.message import BATCH_ENTRY_BYTES, id_text, with_message_id
from pairbus.errors import ReservedPropertyError
from pairbus.failover import ErrorDescription

STANDARD_LIMIT_BYTES = 256 * 1024
"""What a namespace of the Standard tier takes, for as long as no link has told better."""

LARGEST_MESSAGE_BYTES = 100 * 1024 * 1024
"""What a namespace of any tier takes at most: the limit for as long as the primary has not told its own."""

_NOT_ENCODABLE = (ValueError, TypeError, OverflowError, AttributeError, struct.error)
"""What the SDK's encoder raises for content that has no encoding."""

Messages = (
    ServiceBusMessage
    | AmqpAnnotatedMessage
    | Mapping[str, Any]
    | Iterable[ServiceBusMessage]
    | Iterable[AmqpAnnotatedMessage]
    | Iterable[Mapping[str, Any]]
)
"""What the SDK takes for a send: one message, or any iterable of them."""

SingleMessage = ServiceBusMessage | AmqpAnnotatedMessage | Mapping[str, Any]
Outgoing = SingleMessage | ServiceBusMessageBatch | Sequence[SingleMessage]
"""What a paired send works with: iterables have become lists, everything has its message id."""


class RawBatch(ServiceBusMessageBatch):
    """A batch of messages that are encoded already, for this sender.

    The SDK builds a batch anew, from messages that this one does not have, when it was made for another
    transport than the sender's: so it is made for the sender's. The SDK's own __init__ is not called: it encodes an
    empty batch to know its size, which nobody asks this one for.
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

    A message that is alone in the batch may grow beyond: it is carried in parts.
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
                "less the room that its messages need to be kept in a backlog."
            )
        self._grown += size


def prepare(message: Any) -> Outgoing:
    """Check and complete what is about to be sent, before its first attempt.

    Every message gets a message id if it has none, in place, so that a second attempt is recognised as the
    same message. Names reserved for the backlog are refused.
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
        return [_prepare_one(one) for one in message]
    return _prepare_one(message)


def _prepare_one(message: Any) -> SingleMessage:
    if isinstance(message, ServiceBusMessage):
        _prepare_annotated(message.raw_amqp_message)
    elif isinstance(message, AmqpAnnotatedMessage):
        _prepare_annotated(message)
    elif isinstance(message, Mapping):
        return _prepare_mapping(message)
    return cast(SingleMessage, message)  # what is none of these, the SDK says what is wrong with it


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
    """A batch made elsewhere holds encoded messages: give ids to those that lack one."""
    encoded = cast(Any, batch)._message[5]
    for position, message in enumerate(batch._messages):
        if message.application_properties:
            _refuse_reserved(message.application_properties)
        if not message.message_id:
            message_id = str(uuid.uuid4())
            encoded[position] = bytearray(with_message_id(bytes(encoded[position]), message_id))
            message.message_id = message_id


def _refuse_reserved(names: Iterable[Any]) -> None:
    found = envelope.reserved_names(names)
    if found:
        raise ReservedPropertyError(found)


def encode(message: Outgoing, limit_bytes: int, sender: Any) -> list[bytes]:
    """The messages as the SDK encodes them for the primary.

    Raises what the SDK or the primary would raise for content that cannot be sent, or is larger than
    `limit_bytes`, for a single message and for a list as a whole.
    """
    if isinstance(message, ServiceBusMessageBatch):
        return [bytes(raw) for raw in cast(Any, message)._message[5]]
    if isinstance(message, list):
        raws = [_encoded(one, sender) for one in message]
        size = sum(len(raw) + BATCH_ENTRY_BYTES for raw in raws)
        if size > limit_bytes:
            raise MessageSizeExceededError(message=f"ServiceBusMessageBatch has reached its size limit: {limit_bytes}")
        return raws
    raw = _encoded(cast(SingleMessage, message), sender)
    if len(raw) > limit_bytes:
        raise MessageSizeExceededError(
            message=f"The message has {len(raw)} bytes; the primary namespace takes {limit_bytes}."
        )
    return [raw]


def can_be_encoded(message: Outgoing, error: BaseException, sender: Any) -> bool:
    """Whether the message is not to blame for this error.

    What cannot be encoded is reported by the SDK as an error without a condition, like trouble with the connection.
    """
    if type(error) is not ServiceBusError or getattr(error, "_condition", None) is not None:
        return True
    try:
        encode(message, LARGEST_MESSAGE_BYTES, sender)
    except _NOT_ENCODABLE:
        return False
    return True


def sizes(message: Outgoing, sender: Any) -> list[int]:
    """How many bytes each prepared message has as it is sent, without a trace context; 0 if it cannot be encoded.

    What is in a batch is encoded already; anything else is encoded once more for this.
    """
    if isinstance(message, ServiceBusMessageBatch):
        return [len(raw) for raw in cast(Any, message)._message[5]]
    ones = message if isinstance(message, list) else [cast(SingleMessage, message)]
    return [_size(one, sender) for one in ones]


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
    """Whether a prepared send carries one message that is neither in a list nor in a batch."""
    return isinstance(message, ServiceBusMessage) or not isinstance(message, ServiceBusMessageBatch | list)


def count_of(message: Outgoing) -> int:
    """How many messages a prepared send carries."""
    if isinstance(message, ServiceBusMessage):
        return 1
    return len(message) if isinstance(message, ServiceBusMessageBatch | list) else 1


def message_ids(message: Outgoing) -> list[str | None]:
    """The ids of prepared messages, as text, in order."""
    if isinstance(message, ServiceBusMessageBatch):
        return [_id_of(one) for one in message._messages]
    if isinstance(message, Sequence):
        return [_id_of(one) for one in message]
    return [_id_of(message)]


def _id_of(message: SingleMessage) -> str | None:
    if isinstance(message, Mapping):
        found = message.get("message_id")
    else:
        raw = message.raw_amqp_message if isinstance(message, ServiceBusMessage) else message
        found = None if raw.properties is None else raw.properties.message_id
    return id_text(found)


def schedule(message: Outgoing, at: Any) -> Outgoing:
    """Set the time at which the messages are to appear, as the SDK's own `schedule_messages` does."""
    if isinstance(message, ServiceBusMessage):
        message.scheduled_enqueue_time_utc = at
        return message
    if isinstance(message, AmqpAnnotatedMessage):
        message.annotations = {**(message.annotations or {}), b"x-opt-scheduled-enqueue-time": at}
        return message
    if isinstance(message, Mapping):
        return {**message, "scheduled_enqueue_time_utc": at}
    if isinstance(message, Sequence):
        return [cast(SingleMessage, schedule(one, at)) for one in message]
    raise ValueError(f"Only messages can be scheduled, not a {type(message).__name__}.")


def describe(error: BaseException) -> ErrorDescription:
    """What the failover rules need to know about an error."""
    condition = getattr(error, "_condition", None)
    value = getattr(condition, "value", condition)
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    return ErrorDescription(
        class_names=frozenset(one.__name__ for one in type(error).__mro__),
        condition=str(value) if value else "",
        retryable=bool(getattr(error, "_retryable", False)),
    )


def check_connection_string(option: str, given: str) -> None:
    """Raise a ValueError that names the option and does not show what was given, if the SDK cannot read it."""
    try:
        ServiceBusClient.from_connection_string(given)
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ValueError(
            f"{option} is no connection string of a namespace (not shown, it may hold a key); expected "
            "'Endpoint=sb://HOST/;SharedAccessKeyName=NAME;SharedAccessKey=KEY', as the portal shows it."
        ) from None


def could_not_connect(error: BaseException) -> bool:
    """Whether no connection to the namespace came about: refused, reset at once, or its name is not known.

    A connection that broke later is something else: the server may have ended it because of one entity.
    """
    if not isinstance(error, ServiceBusConnectionError):
        return isinstance(error, OSError) and not isinstance(error, TimeoutError)
    cause: BaseException | None = error
    while isinstance(cause, Exception) and not isinstance(cause, OSError):
        # Only what was given as the cause: the context may be an error that the application is handling.
        cause = cause.__cause__ or getattr(cause, "inner_exception", None)
    return isinstance(cause, OSError) and not isinstance(cause, TimeoutError)


def _transport(sender: Any) -> Any:
    transport = sender._amqp_transport
    if transport.KIND != "pyamqp":
        raise ValueError(
            f"The client uses the SDK's transport {transport.KIND!r}; make it without uamqp_transport=True."
        )
    return transport


def batch_limit(sender: Any) -> int:
    """How many bytes one send may have on the sender's link; 0 while it was never open."""
    return int(getattr(sender, "_max_batch_size_on_link", 0) or 0)


def message_limit(sender: Any) -> int:
    """How many bytes one message may have on the sender's link; 0 while it was never open."""
    return int(getattr(sender, "_max_message_size_on_link", 0) or 0)


def open_link(sender: Any, timeout: float) -> Any:
    """Open the sender's link within `timeout`; for the aio SDK, the coroutine that does."""
    return sender._do_retryable_operation(
        sender._open, timeout=timeout, operation_requires_timeout=True, apply_try_timeout=True
    )


def break_connection(sender: Any) -> None:
    """End whatever the sync sender waits for on its socket; the waiting call then fails by itself."""
    connection = getattr(getattr(sender, "_handler", None), "_connection", None)
    sock = getattr(getattr(connection, "_transport", None), "sock", None)
    if sock is not None:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)


def ping() -> ServiceBusMessage:
    """A fresh ping: no receiver ever sees it."""
    return ServiceBusMessage(
        b"",
        content_type=envelope.PING_CONTENT_TYPE,
        time_to_live=cast(Any, envelope.PING_TIME_TO_LIVE_MS // 1000),
        session_id=str(uuid.uuid4()),
        message_id=str(uuid.uuid4()),
    )
