"""The columns of a message, and how a peeked message becomes a row.

`SCHEMA` is the table of columns: name, type, meaning. A reader may be given a schema with fewer of them (and no
others): only those are built.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

from pairbus.pipeline.servicebus.messages import Message
from pairbus.pipeline.servicebus.sending import TEXTS
from pairbus.pipeline.servicebus.variant import METADATA, to_variant

COLUMNS: tuple[tuple[str, DataType, str], ...] = (
    ("body", BinaryType(), "the body: its bytes; of a value body that is text, the text in UTF-8"),
    ("body_type", StringType(), "data, value or sequence: the kind of AMQP body"),
    ("message_id", StringType(), "the message id as text, whatever its AMQP type"),
    ("session_id", StringType(), ""),
    ("content_type", StringType(), ""),
    ("correlation_id", StringType(), "as text, whatever its AMQP type"),
    ("subject", StringType(), ""),
    ("to", StringType(), ""),
    ("reply_to", StringType(), ""),
    ("reply_to_session_id", StringType(), ""),
    ("partition_key", StringType(), ""),
    ("time_to_live_ms", LongType(), "milliseconds as the sender gave them; null: none given"),
    ("scheduled_enqueue_time", TimestampType(), "when a scheduled message becomes (or became) active"),
    ("enqueued_time", TimestampType(), "when the namespace took the message"),
    ("sequence_number", LongType(), "unique within its entity"),
    ("delivery_count", IntegerType(), "how often it was delivered so far"),
    ("state", StringType(), "active, deferred or scheduled"),
    ("dead_letter_reason", StringType(), "the application property DeadLetterReason"),
    ("dead_letter_error_description", StringType(), "the application property DeadLetterErrorDescription"),
    ("application_properties", MapType(StringType(), VariantType()), "values with their types, see below"),
    ("entity", StringType(), "the path of the queue, subscription or sub-queue"),
    ("namespace", StringType(), "the namespace's host, with a port if it is not the service's own"),
)

SCHEMA = StructType([StructField(name, kind, metadata={"comment": text}) for name, kind, text in COLUMNS])
_TYPES = {name: kind for name, kind, _ in COLUMNS}


def chosen(schema: StructType) -> tuple[str, ...]:
    """The names in a schema asked for; ValueError for a column that is not there or has another type."""
    for wanted in schema.fields:
        kind = _TYPES.get(wanted.name)
        if kind is None:
            raise ValueError(f"There is no column {wanted.name!r}; there are: {', '.join(_TYPES)}.")
        if kind != wanted.dataType:
            raise ValueError(
                f"The column {wanted.name!r} is {kind.simpleString()}, not {wanted.dataType.simpleString()}; "
                "cast it after reading."
            )
    return tuple(schema.fieldNames())


class RowBuilder:
    """Makes Arrow batches of messages. One for each task."""

    def __init__(self, schema: StructType, entity: str, namespace: str) -> None:
        self._schema: pa.Schema = to_arrow_schema(schema, timezone="UTC")
        self._constants = {"entity": entity, "namespace": namespace}
        self._names = chosen(schema)

    def build(self, messages: Sequence[Message]) -> pa.RecordBatch:
        arrays = []
        for name, kind in zip(self._names, self._schema.types, strict=True):
            if name in self._constants:
                arrays.append(pa.repeat(pa.scalar(self._constants[name], kind), len(messages)))
            elif name == "application_properties":
                arrays.append(_properties(messages, kind))
            else:
                value = _VALUES[name]
                arrays.append(pa.array(list(map(value, messages)), kind))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _properties(messages: Sequence[Message], kind: pa.MapType) -> pa.MapArray:
    offsets, keys, values = [0], [], []
    for one in messages:
        for key, value in one.application_properties.items():
            keys.append(str(key))
            values.append(to_variant(value))
        offsets.append(len(keys))
    variants = pa.StructArray.from_arrays(
        [pa.array(values, pa.binary()), pa.array([METADATA] * len(values), pa.binary())],
        fields=list(kind.item_type),
    )
    return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(keys, pa.string()), variants, type=kind)


def _micros(milliseconds: int | None) -> int | None:
    return None if milliseconds is None else milliseconds * 1000


def _property(name: str) -> Callable[[Message], str | None]:
    def value(message: Message) -> str | None:
        found: Any = message.application_properties.get(name)
        return None if found is None else str(found)

    return value


_VALUES: dict[str, Callable[[Message], Any]] = {
    **{name: attrgetter(name) for name in ("body", "body_type", *TEXTS, "sequence_number", "delivery_count", "state")},
    "time_to_live_ms": attrgetter("ttl_ms"),
    "scheduled_enqueue_time": lambda one: _micros(one.scheduled_ms),
    "enqueued_time": lambda one: _micros(one.enqueued_ms),
    "dead_letter_reason": _property("DeadLetterReason"),
    "dead_letter_error_description": _property("DeadLetterErrorDescription"),
}
