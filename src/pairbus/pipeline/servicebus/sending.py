"""PURE. Rows as messages: which columns are understood, and how a row becomes an encoded message.

| column | type | if it is null or not there |
|---|---|---|
| `body` | binary or string | an empty body |
| `entity` | string: queue or topic | an error, unless the option queue or topic is given: that one always wins |
| `message_id` | string | derived from the batch, the partition, the row and its content |
| `session_id`, `content_type`, `correlation_id`, `subject`, `to`, `reply_to`, `reply_to_session_id`, `partition_key` |
  string | not set |
| `time_to_live_ms` | long | the entity's own |
| `scheduled_enqueue_time` | timestamp | at once |
| `application_properties` | map of string to variant or to a simple type | none |

A column of another name is refused, so that a misspelled one is not silently lost; those that only a namespace can
fill (`sequence_number`, `enqueued_time`, `state` and so on) are passed over, so that what was read can be written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from hashlib import blake2b
from typing import Any

import pyarrow as pa

from pairbus.amqp.codec import encode
from pairbus.amqp.types import AmqpEncodeError, Byte, Float, Int, Short, Symbol, Timestamp, UInt, encode_decimal
from pairbus.pipeline.servicebus.variant import from_variant

TEXTS = (
    "message_id",
    "session_id",
    "content_type",
    "correlation_id",
    "subject",
    "to",
    "reply_to",
    "reply_to_session_id",
    "partition_key",
)
"""What a message says of itself in text, by the names of the columns."""
WRITTEN = (*TEXTS, "entity", "body", "time_to_live_ms", "scheduled_enqueue_time", "application_properties")
PASSED_OVER = (
    "body_type",
    "enqueued_time",
    "sequence_number",
    "delivery_count",
    "state",
    "dead_letter_reason",
    "dead_letter_error_description",
    "namespace",
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LONGEST_TTL_MS = (1 << 32) - 1
_WIDTHS: dict[pa.DataType, Callable[[Any], Any]] = {
    pa.int8(): Byte,
    pa.int16(): Short,
    pa.int32(): Int,
    pa.float32(): Float,
}


class RowError(ValueError):
    """A row that cannot be a message."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message on its way out, and the row (counted from 0 in its partition) it came from."""

    row: int
    entity: str
    message_id: str
    raw: bytes


def check_columns(types: Mapping[str, str], destination: str | None) -> None:
    """ValueError for a column that is not understood or has a wrong type. Types are Spark's simple names."""
    for name, kind in types.items():
        if name in PASSED_OVER:
            continue
        if name not in WRITTEN:
            raise ValueError(
                f"The column {name!r} cannot be written; columns that can: {', '.join(sorted(WRITTEN))}. Drop it, "
                "rename it, or put it into application_properties."
            )
        allowed: tuple[str, ...] = ("string",)
        if name == "body":
            allowed = ("binary", "string")
        elif name == "time_to_live_ms":
            allowed = ("bigint", "int")
        elif name == "scheduled_enqueue_time":
            allowed = ("timestamp", "timestamp_ntz")
        elif name == "application_properties":
            if not kind.startswith("map<string,"):
                raise ValueError(f"The column application_properties is {kind}; expected a map of string to variant.")
            continue
        if kind not in allowed:
            raise ValueError(f"The column {name!r} is {kind}; expected {' or '.join(allowed)}.")
    if "entity" not in types and not destination:
        raise ValueError("Nothing says where to send: give the option queue or topic, or a column 'entity'.")
    if "body" not in types:
        raise ValueError("There is no column 'body' (binary or string) to send.")


def messages(batch: pa.RecordBatch, first_row: int, prefix: str, destination: str | None) -> Iterator[Outgoing]:
    """The messages of a batch of rows; RowError names the row that cannot be one.

    `prefix` begins the message ids of rows without one. The same prefix, row and content give the same id again; other
    content never does, so that duplicate detection cannot take one row for another, however the rows are ordered.
    """
    columns = {name: batch.column(i).to_pylist() for i, name in enumerate(batch.schema.names) if name in WRITTEN}
    wrap = _wrapping(batch.schema)
    for index in range(batch.num_rows):
        row = {name: values[index] for name, values in columns.items()}
        number = first_row + index
        try:
            yield _message(row, number, prefix, destination, wrap)
        except (ValueError, AmqpEncodeError) as error:
            raise RowError(f"Row {number} of its partition cannot be a message: {error}") from None


def _wrapping(schema: pa.Schema) -> Callable[[Any], Any] | None:
    """How the plain numbers of a map keep their width."""
    at = schema.get_field_index("application_properties")
    return None if at < 0 else _WIDTHS.get(schema.types[at].item_type)


def _message(
    row: dict[str, Any], number: int, prefix: str, destination: str | None, wrap: Callable[[Any], Any] | None
) -> Outgoing:
    entity = destination or row.get("entity")
    if not entity:
        raise ValueError("its 'entity' is null and neither option queue nor topic is given.")
    body = row.get("body")
    annotations: dict[Any, Any] = {}
    if row.get("partition_key") is not None:
        annotations[Symbol("x-opt-partition-key")] = row["partition_key"]
    scheduled = row.get("scheduled_enqueue_time")
    if scheduled is not None:
        annotations[Symbol("x-opt-scheduled-enqueue-time")] = _timestamp(scheduled)
    properties = [
        None,
        row.get("to"),
        row.get("subject"),
        row.get("reply_to"),
        row.get("correlation_id"),
        _symbol(row.get("content_type")),
        None,
        None,
        None,
        row.get("session_id"),
        None,
        row.get("reply_to_session_id"),
    ]
    while properties and properties[-1] is None:
        properties.pop()
    before = _header(row.get("time_to_live_ms"))
    if annotations:
        before += b"\x00\x53\x72" + encode(annotations)
    application = _application_properties(row.get("application_properties"), wrap)
    after = b"\x00\x53\x74" + encode(application) if application else b""
    after += b"\x00\x53\x75" + encode(body.encode() if isinstance(body, str) else bytes(body or b""))
    message_id = row.get("message_id")
    if message_id is None:
        content = blake2b(before + encode(properties) + after, digest_size=8).hexdigest()
        message_id = f"{prefix}-{number}-{content}"
    elif not 0 < len(message_id) <= 128:
        raise ValueError(f"its message_id has {len(message_id)} characters; allowed: 1 to 128.")
    raw = before + b"\x00\x53\x73" + encode([message_id, *properties]) + after
    return Outgoing(number, entity, message_id, raw)


def _header(ttl_ms: int | None) -> bytes:
    if ttl_ms is None:
        return b"\x00\x53\x70" + encode([True])
    if ttl_ms < 1:
        raise ValueError(f"its time_to_live_ms is {ttl_ms}; allowed: 1 or more.")
    # A header holds 49 days; what lives longer says so by its times of creation and expiry, which nobody needs here.
    return b"\x00\x53\x70" + encode([True, None, UInt(min(ttl_ms, _LONGEST_TTL_MS))])


def _symbol(text: str | None) -> Symbol | None:
    return None if text is None else Symbol(text)


def _timestamp(value: datetime) -> Timestamp:
    aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    return Timestamp((aware - _EPOCH) // timedelta(milliseconds=1))


def _application_properties(given: Any, wrap: Callable[[Any], Any] | None) -> dict[str, Any]:
    return {str(key): _value(key, value, wrap) for key, value in given or ()}


def _value(key: str, value: Any, wrap: Callable[[Any], Any] | None) -> Any:
    if value is not None and wrap is not None:
        return wrap(value)
    if isinstance(value, dict) and set(value) == {"value", "metadata"}:
        return from_variant(value["value"])
    if isinstance(value, datetime):
        return _timestamp(value)
    if isinstance(value, date):
        return _timestamp(datetime(value.year, value.month, value.day, tzinfo=UTC))
    if isinstance(value, Decimal):
        return encode_decimal(value)
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    raise ValueError(f"the application property {key!r} is a {type(value).__name__}; write its text instead.")
