"""A message's bytes after the namespace changed some of its properties: by a rule's action, or on dead-lettering."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from pairbus.amqp.codec import decode, encode
from pairbus.amqp.sections import Sections, with_application_properties
from pairbus.amqp.types import Symbol, Timestamp, UInt
from pairbus.embedded.entities.filters.views import MessageProperties

DEAD_LETTER_REASON = "DeadLetterReason"
DEAD_LETTER_DESCRIPTION = "DeadLetterErrorDescription"

# Positions in the properties section (AMQP 1.0, 3.2.4) by the names that rules use.
_PROPERTY_FIELDS = {
    "MessageId": 0,
    "To": 2,
    "Label": 3,
    "ReplyTo": 4,
    "CorrelationId": 5,
    "ContentType": 6,
    "SessionId": 10,
    "ReplyToSessionId": 12,
}
_ANNOTATIONS = {
    "PartitionKey": "x-opt-partition-key",
    "ViaPartitionKey": "x-opt-via-partition-key",
    "ScheduledEnqueueTimeUtc": "x-opt-scheduled-enqueue-time",
}
_TIME_TO_LIVE_FIELD = 2


def with_dead_letter_properties(
    raw: bytes, reason: str | None, description: str | None, properties: Mapping[str, Any]
) -> bytes:
    updates = dict(properties)
    if reason is not None:
        updates[DEAD_LETTER_REASON] = reason
    if description is not None:
        updates[DEAD_LETTER_DESCRIPTION] = description
    return with_application_properties(raw, updates) if updates else raw


def with_action_applied(raw: bytes, changed: MessageProperties) -> bytes:
    """The copy of a message that a rule's action asked for."""
    if changed.updates or changed.removed:
        raw = with_application_properties(raw, changed.updates, changed.removed)
    fields: dict[int, Any] = {}
    annotations: dict[str, Any] = {}
    for name, value in changed.system_updates.items():
        if name in _PROPERTY_FIELDS:
            fields[_PROPERTY_FIELDS[name]] = value
        elif name in _ANNOTATIONS:
            annotations[_ANNOTATIONS[name]] = value
        elif name == "TimeToLive":
            raw = _with_time_to_live(raw, value)
    if fields:
        raw = _with_property_fields(raw, fields)
    if annotations:
        raw = _with_annotations(raw, annotations)
    return raw


def _with_property_fields(raw: bytes, fields: Mapping[int, Any]) -> bytes:
    parts = Sections.split(raw)
    values = _list_of(parts.properties)
    values += [None] * (max(fields) + 1 - len(values))
    for position, value in fields.items():
        values[position] = value
    return _replaced(parts, properties=b"\x00\x53\x73" + encode(values))


def _with_time_to_live(raw: bytes, value: object) -> bytes:
    parts = Sections.split(raw)
    values = _list_of(parts.header)
    values += [None] * (_TIME_TO_LIVE_FIELD + 1 - len(values))
    milliseconds = int(value / timedelta(milliseconds=1)) if isinstance(value, timedelta) else None
    values[_TIME_TO_LIVE_FIELD] = None if milliseconds is None else UInt(min(milliseconds, 0xFFFFFFFF))
    return _replaced(parts, header=b"\x00\x53\x70" + encode(values))


def _with_annotations(raw: bytes, updates: Mapping[str, Any]) -> bytes:
    parts = Sections.split(raw)
    annotations: dict[Any, Any] = {}
    if parts.message_annotations:
        annotations = decode(parts.message_annotations, 0)[0].value or {}
    for name, value in updates.items():
        if value is None:
            annotations.pop(Symbol(name), None)
        else:
            annotations[Symbol(name)] = Timestamp(int(value)) if name.endswith("time") else value
    return _replaced(parts, message_annotations=b"\x00\x53\x72" + encode(annotations))


def _list_of(section: bytes) -> list[Any]:
    return list(decode(section, 0)[0].value) if section else []


def _replaced(parts: Sections, **sections: bytes) -> bytes:
    values = {
        name: getattr(parts, name)
        for name in (
            "header",
            "delivery_annotations",
            "message_annotations",
            "properties",
            "application_properties",
            "body",
            "footer",
        )
    }
    return Sections(**{**values, **sections}).join()
