"""Messages as rows of a DataFrame, and rows as messages.

Reading: `COLUMNS` lists name, type and meaning of each column. A reader's schema may be a subset: only its columns are
built.

Writing: these columns make a message.

| column | type | if null or absent |
|---|---|---|
| `body` | binary or string | an empty body |
| `entity` | string: queue or topic | an error, unless the option queue or topic is set, which takes precedence |
| `message_id` | string | derived from the batch, the partition, the row and its content |
| `session_id`, `content_type`, `correlation_id`, `subject`, `to`, `reply_to`, `reply_to_session_id`, `partition_key` |
  string | not set |
| `time_to_live_ms` | long | the entity's default |
| `scheduled_enqueue_time` | timestamp | immediately |
| `application_properties` | map of string to variant or to a simple type | none |

Columns that only a namespace can fill (`sequence_number`, `enqueued_time`, `state`, ...) are ignored, so rows that were
read can be written. Any other column is refused, so a misspelled one is not silently lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from hashlib import blake2b
from operator import attrgetter
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VariantType,
)

from pairbus.amqp.codec import encode
from pairbus.amqp.types import AmqpEncodeError, Byte, Float, Int, Short, Symbol, Timestamp, UInt, encode_decimal
from pairbus.pipeline.servicebus.messages import METADATA, Message, from_variant, to_variant

COLUMNS: tuple[tuple[str, DataType, str], ...] = (
    ("body", BinaryType(), "the bytes of the body; a value body of text is UTF-8"),
    ("body_type", StringType(), "the kind of AMQP body: data, value or sequence"),
    ("message_id", StringType(), "as text, whatever its AMQP type"),
    ("session_id", StringType(), ""),
    ("content_type", StringType(), ""),
    ("correlation_id", StringType(), "as text, whatever its AMQP type"),
    ("subject", StringType(), ""),
    ("to", StringType(), ""),
    ("reply_to", StringType(), ""),
    ("reply_to_session_id", StringType(), ""),
    ("partition_key", StringType(), ""),
    ("time_to_live_ms", LongType(), "milliseconds, as the sender set them; null if not set"),
    ("scheduled_enqueue_time", TimestampType(), "when a scheduled message becomes or became active"),
    ("enqueued_time", TimestampType(), "when the namespace accepted the message"),
    ("sequence_number", LongType(), "unique within its entity"),
    ("delivery_count", IntegerType(), "the number of deliveries so far"),
    ("state", StringType(), "active, deferred or scheduled"),
    ("dead_letter_reason", StringType(), "the application property DeadLetterReason"),
    ("dead_letter_error_description", StringType(), "the application property DeadLetterErrorDescription"),
    ("application_properties", MapType(StringType(), VariantType()), "values keep their types, see below"),
    ("entity", StringType(), "the path of the queue, subscription or sub-queue"),
    ("namespace", StringType(), "the namespace's host, with the port if it is not the service's own"),
)

SCHEMA = StructType([StructField(name, kind, metadata={"comment": text}) for name, kind, text in COLUMNS])
_TYPES = {name: kind for name, kind, _ in COLUMNS}
_TEXTS = (
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
_WRITABLE = (*_TEXTS, "entity", "body", "time_to_live_ms", "scheduled_enqueue_time", "application_properties")
_ALLOWED_TYPES = {
    "body": ("binary", "string"),
    "time_to_live_ms": ("bigint", "int"),
    "scheduled_enqueue_time": ("timestamp", "timestamp_ntz"),
}
"""Spark's names of the types that a column may have when it is written; any other column is a string."""
_PROPERTY_COLUMNS = (
    *(None, "to", "subject", "reply_to", "correlation_id", "content_type", None),
    *(None, None, "session_id", None, "reply_to_session_id"),
)
"""The columns of the fields that follow the message id in an AMQP properties section."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_TTL_MS = (1 << 32) - 1
_WIDTHS: dict[pa.DataType, Callable[[Any], Any]] = {
    pa.int8(): Byte,
    pa.int16(): Short,
    pa.int32(): Int,
    pa.float32(): Float,
}


# --- messages to rows -----------------------------------------------------------------------------------------


def check_schema(schema: StructType) -> StructType:
    """Return the schema. Raises ValueError for a column that does not exist or has another type."""
    for column in schema.fields:
        kind = _TYPES.get(column.name)
        if kind is None:
            raise ValueError(f"There is no column {column.name!r}. Columns: {', '.join(_TYPES)}.")
        if kind != column.dataType:
            raise ValueError(
                f"The column {column.name!r} is {kind.simpleString()}, not {column.dataType.simpleString()}. Cast it "
                "after reading."
            )
    return schema


class RowBuilder:
    """Builds a task's Arrow batches."""

    def __init__(self, schema: StructType, entity: str, namespace: str) -> None:
        self._schema: pa.Schema = to_arrow_schema(check_schema(schema), timezone="UTC")
        self._constants = {"entity": entity, "namespace": namespace}

    def build(self, messages: Sequence[Message]) -> pa.RecordBatch:
        arrays = []
        for name, kind in zip(self._schema.names, self._schema.types, strict=True):
            if name in self._constants:
                arrays.append(pa.repeat(pa.scalar(self._constants[name], kind), len(messages)))
            elif name == "application_properties":
                arrays.append(_property_maps(messages, kind))
            else:
                arrays.append(pa.array(list(map(_VALUES[name], messages)), kind))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _property_maps(messages: Sequence[Message], kind: pa.MapType) -> pa.MapArray:
    offsets, keys, values = [0], [], []
    for message in messages:
        for key, value in message.application_properties.items():
            keys.append(str(key))
            values.append(to_variant(value))
        offsets.append(len(keys))
    variants = pa.StructArray.from_arrays(
        [pa.array(values, pa.binary()), pa.array([METADATA] * len(values), pa.binary())],
        fields=list(kind.item_type),
    )
    return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(keys, pa.string()), variants, type=kind)


def _microseconds(milliseconds: int | None) -> int | None:
    return None if milliseconds is None else milliseconds * 1000


def _property(name: str) -> Callable[[Message], str | None]:
    def text(message: Message) -> str | None:
        value: Any = message.application_properties.get(name)
        return None if value is None else str(value)

    return text


_VALUES: dict[str, Callable[[Message], Any]] = {
    **{name: attrgetter(name) for name in ("body", "body_type", *_TEXTS, "sequence_number", "delivery_count", "state")},
    "time_to_live_ms": attrgetter("ttl_ms"),
    "scheduled_enqueue_time": lambda message: _microseconds(message.scheduled_ms),
    "enqueued_time": lambda message: _microseconds(message.enqueued_ms),
    "dead_letter_reason": _property("DeadLetterReason"),
    "dead_letter_error_description": _property("DeadLetterErrorDescription"),
}


# --- rows to messages -----------------------------------------------------------------------------------------


class RowError(ValueError):
    """A row cannot become a message."""


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """An encoded message, and the number of its row, counted from 0 in its partition."""

    row: int
    entity: str
    message_id: str
    raw: bytes


def check_columns(types: Mapping[str, str], destination: str | None) -> None:
    """Raise ValueError for a column that cannot be written or has a wrong type. Types are Spark's simple names."""
    for name, kind in types.items():
        if name in _TYPES and name not in _WRITABLE:
            continue
        if name not in _WRITABLE:
            raise ValueError(
                f"The column {name!r} cannot be written. Drop it, rename it, or put it into application_properties. "
                f"Columns that can be written: {', '.join(sorted(_WRITABLE))}."
            )
        if name == "application_properties":
            if not kind.startswith("map<string,"):
                raise ValueError(f"The column application_properties is {kind}; expected a map of string to variant.")
        elif kind not in (allowed := _ALLOWED_TYPES.get(name, ("string",))):
            raise ValueError(f"The column {name!r} is {kind}; expected {' or '.join(allowed)}.")
    if "entity" not in types and not destination:
        raise ValueError("There is no destination. Set the option queue or topic, or add a column 'entity'.")
    if "body" not in types:
        raise ValueError("There is no column 'body'. Add it as binary or string.")


def encode_rows(
    batch: pa.RecordBatch, first_row: int, prefix: str, destination: str | None
) -> Iterator[OutgoingMessage]:
    """Encode a batch of rows. Raises RowError, which names the row.

    A row without a message id gets one that starts with `prefix`. The same prefix, row and content give the same id,
    and different content never does, so duplicate detection cannot take one row for another in any order of rows.
    """
    columns = {name: batch.column(i).to_pylist() for i, name in enumerate(batch.schema.names) if name in _WRITABLE}
    wrap = _property_type(batch.schema)
    for index in range(batch.num_rows):
        row = {name: values[index] for name, values in columns.items()}
        number = first_row + index
        try:
            yield _encode_row(row, number, prefix, destination, wrap)
        except (ValueError, AmqpEncodeError) as error:
            raise RowError(f"Row {number} of its partition cannot be a message: {error}") from None


def _property_type(schema: pa.Schema) -> Callable[[Any], Any] | None:
    """Return the AMQP type that keeps the width of a map's plain numbers."""
    at = schema.get_field_index("application_properties")
    return None if at < 0 else _WIDTHS.get(schema.types[at].item_type)


def _encode_row(
    row: dict[str, Any], number: int, prefix: str, destination: str | None, wrap: Callable[[Any], Any] | None
) -> OutgoingMessage:
    entity = destination or row.get("entity")
    if not entity:
        raise ValueError("its 'entity' is null and neither option queue nor topic is set.")
    body = row.get("body")
    annotations: dict[Any, Any] = {}
    if row.get("partition_key") is not None:
        annotations[Symbol("x-opt-partition-key")] = row["partition_key"]
    scheduled = row.get("scheduled_enqueue_time")
    if scheduled is not None:
        annotations[Symbol("x-opt-scheduled-enqueue-time")] = _timestamp(scheduled)
    properties = [None if name is None else row.get(name) for name in _PROPERTY_COLUMNS]
    if row.get("content_type") is not None:
        properties[_PROPERTY_COLUMNS.index("content_type")] = Symbol(row["content_type"])
    while properties and properties[-1] is None:
        properties.pop()
    before = _header(row.get("time_to_live_ms"))
    if annotations:
        before += b"\x00\x53\x72" + encode(annotations)
    application = {str(key): _value(key, value, wrap) for key, value in row.get("application_properties") or ()}
    after = b"\x00\x53\x74" + encode(application) if application else b""
    after += b"\x00\x53\x75" + encode(body.encode() if isinstance(body, str) else bytes(body or b""))
    message_id = row.get("message_id")
    if message_id is None:
        content = blake2b(before + encode(properties) + after, digest_size=8).hexdigest()
        message_id = f"{prefix}-{number}-{content}"
    elif not 0 < len(message_id) <= 128:
        raise ValueError(f"its message_id has {len(message_id)} characters; allowed: 1 to 128.")
    raw = before + b"\x00\x53\x73" + encode([message_id, *properties]) + after
    return OutgoingMessage(number, entity, message_id, raw)


def _header(ttl_ms: int | None) -> bytes:
    if ttl_ms is None:
        return b"\x00\x53\x70" + encode([True])
    if ttl_ms < 1:
        raise ValueError(f"its time_to_live_ms is {ttl_ms}; allowed: 1 or more.")
    # A header holds at most 49 days. Longer lives need creation and expiry times, which no namespace requires.
    return b"\x00\x53\x70" + encode([True, None, UInt(min(ttl_ms, _MAX_TTL_MS))])


def _timestamp(value: datetime) -> Timestamp:
    aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    return Timestamp((aware - _EPOCH) // timedelta(milliseconds=1))


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
    raise ValueError(f"the application property {key!r} is a {type(value).__name__}. Write its text instead.")
