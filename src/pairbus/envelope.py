"""PURE. The backlog form of a message, and the way back.

Works on encoded messages: bodies and application properties are never decoded and encoded again, so everything not
named here travels byte for byte.

To the backlog (`to_backlog`)
- Three properties are cleared and kept as application properties ("aliases"), in exactly these types:

  | cleared | application property | AMQP type |
  |---|---|---|
  | session_id (group-id) | `x-ms-sessionid` | string |
  | time_to_live (header ttl) | `x-ms-timetolive` | long, milliseconds |
  | scheduled_enqueue_time_utc (annotation) | `x-ms-scheduledenqueuetimeutc` | timestamp |
  | (destination path) | `x-ms-path` | string |

- The SDK derives `absolute-expiry-time` from the time to live. It is cleared too, so that no broker expires the message
  in the backlog; `restore` derives it again.
- A user's message that already has one of these properties is refused (`reserved_names`).

Home (`inspect` or `read`, then `restore`)
- The annotations, delivery count and delivery annotations of the backlog's broker are removed. The aliases become
  properties again.
- Aliases written by older clients are accepted in all their types: see `time_to_live_ms` and `scheduled_ms`.
- A message without a destination, or with an unreadable alias, raises an `EnvelopeError`. The syphon dead-letters it
  with that text.

Parts (`split`, `join`)
- A message that the aliases push over the size limit of the backlog's link travels in parts. Each part is a message
  whose body is one data section with a slice of the encoded backlog form. Its application properties are `x-ms-path`,
  `x-pairbus-part-of` (string: a fresh id for each attempt), `x-pairbus-part` (int, from 1), `x-pairbus-parts` (int).
- The parts of one attempt go in order to one backlog queue. If a part fails, the next attempt starts over with a fresh
  id. Incomplete sets of parts are never delivered.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Literal

from pairbus.amqp.codec import decode, encode
from pairbus.amqp.message import (
    ABSOLUTE_EXPIRY,
    APPLICATION_PROPERTIES,
    DELIVERY_COUNT,
    GROUP_ID,
    HEADER,
    HEADER_FIELDS,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    PROPERTY_FIELDS,
    TTL,
    SectionOrderError,
    Sections,
    edited_map,
    in_standard_order,
    is_set,
    list_fields,
    list_section,
    map_items,
    with_pairs,
)
from pairbus.amqp.types import Described, Int, Symbol, Timestamp, UInt
from pairbus.errors import AliasError, DestinationMissingError, PartError

PATH = "x-ms-path"
SESSION_ID = "x-ms-sessionid"
TIME_TO_LIVE = "x-ms-timetolive"
SCHEDULED_TIME = "x-ms-scheduledenqueuetimeutc"
PART_OF = "x-pairbus-part-of"
PART = "x-pairbus-part"
PARTS = "x-pairbus-parts"
TRACE_PARENT = "x-pairbus-traceparent"

RESERVED = frozenset({PATH, SESSION_ID, TIME_TO_LIVE, SCHEDULED_TIME, PART_OF, PART, PARTS, TRACE_PARENT})
"""Names that a user's application properties must not have."""

PING_CONTENT_TYPE = "application/vnd.ms-servicebus-ping"
PING_TIME_TO_LIVE_MS = 1000

TimeToLivePolicy = Literal["restore", "deduct"]

_SCHEDULED_ANNOTATION = "x-opt-scheduled-enqueue-time"
_BROKER_ANNOTATIONS = frozenset(
    {
        "x-opt-sequence-number",
        "x-opt-enqueue-sequence-number",
        "x-opt-enqueued-time",
        "x-opt-locked-until",
        "x-opt-lock-token",
        "x-opt-message-state",
        "x-opt-deadletter-source",
        "x-opt-partition-id",
    }
)
_MAX_TTL_MS = 0xFFFFFFFF
_SESSION_ID_KEY, _TIME_TO_LIVE_KEY = encode(SESSION_ID), encode(TIME_TO_LIVE)
_SCHEDULED_TIME_KEY, _TRACE_PARENT_KEY = encode(SCHEDULED_TIME), encode(TRACE_PARENT)


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a message that was too large for the backlog in one piece."""

    of: str
    number: int
    count: int
    content: bytes


@dataclass(frozen=True, slots=True)
class BacklogMessage:
    """What a message in a backlog says about itself. For a part, only `destination` and `part` are known."""

    destination: str
    session_id: str | None = None
    time_to_live_ms: int | None = None
    scheduled_ms: int | None = None
    enqueued_ms: int | None = None
    trace_parent: str | None = None
    part: Part | None = None


@dataclass(frozen=True, slots=True)
class Restored:
    """The original message, ready for its destination."""

    destination: str
    raw: bytes


@dataclass(frozen=True, slots=True)
class Expired:
    """The message's own time was over before it could go home; `late_ms` says for how long."""

    destination: str
    late_ms: int


def reserved_names(names: Iterable[Any]) -> tuple[str, ...]:
    """Those of the user's property names (text or UTF-8 bytes) that the backlog form needs for itself."""
    texts = (name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name) for name in names)
    return tuple(sorted(text for text in texts if text in RESERVED))


def to_backlog(raw: bytes, destination: str, *, trace_parent: str | None = None) -> bytes:
    """The backlog form of an encoded message for the entity `destination`."""
    header, delivery_annotations, annotations, properties, application, body, footer = _split(raw)
    pairs, count = _path_pair(destination), 1

    time_to_live = None
    if header:
        fields = list_fields(header, HEADER_FIELDS)
        time_to_live = fields[TTL]
        if time_to_live is not None:
            fields[TTL] = None
            header = list_section(HEADER, fields)
            pairs += _TIME_TO_LIVE_KEY + encode(int(time_to_live))
            count += 1
    if properties and (time_to_live is not None or is_set(properties, GROUP_ID)):
        fields = list_fields(properties, PROPERTY_FIELDS)
        session_id = fields[GROUP_ID]
        if session_id is not None:
            fields[GROUP_ID] = None
            pairs += _SESSION_ID_KEY + encode(str(session_id))
            count += 1
        if time_to_live is not None:
            fields[ABSOLUTE_EXPIRY] = None
        properties = list_section(PROPERTIES, fields)
    if annotations and b"x-opt-scheduled" in annotations:
        scheduled = map_items(annotations).get(_SCHEDULED_ANNOTATION)
        if scheduled is not None:
            pairs += _SCHEDULED_TIME_KEY + encode(Timestamp(scheduled))
            count += 1
            annotations = edited_map(MESSAGE_ANNOTATIONS, annotations, remove={_SCHEDULED_ANNOTATION})
    if trace_parent is not None:
        pairs += _TRACE_PARENT_KEY + encode(trace_parent)
        count += 1
    application = with_pairs(application, pairs, count)
    return b"".join((header, delivery_annotations, annotations, properties, application, body, footer))


def aged(backlog_form: bytes, by_ms: int) -> bytes:
    """The backlog form of a message that has already lived for `by_ms`.

    Its alias of the time to live shrinks.
    """
    parts = Sections.split(backlog_form)
    time_to_live = time_to_live_ms(map_items(parts.application_properties).get(TIME_TO_LIVE))
    if time_to_live is None or by_ms <= 0:
        return backlog_form
    application = edited_map(
        APPLICATION_PROPERTIES,
        parts.application_properties,
        remove={TIME_TO_LIVE},
        add=[(TIME_TO_LIVE, max(0, time_to_live - by_ms))],
    )
    return parts._replace(application_properties=application).join()


def growth(destination: str, session_id: str | None, *, timed: bool, scheduled: bool) -> int:
    """At most how many bytes the backlog form is longer than the message."""
    total = 16 + len(encode(PATH)) + len(encode(destination))
    if session_id is not None:
        total += len(encode(SESSION_ID)) + len(encode(session_id))
    if timed:
        total += len(encode(TIME_TO_LIVE)) + 9
    if scheduled:
        total += len(encode(SCHEDULED_TIME)) + 9
    return total


def split(backlog_form: bytes, destination: str, part_of: str, piece_limit: int) -> list[bytes]:
    """The parts that carry a backlog form too large for one piece; each is at most `piece_limit` bytes."""
    room = piece_limit - len(_part(destination, part_of, 0x7FFFFFFF, 0x7FFFFFFF, b"")) - 3
    if room < 1:
        raise PartError(f"A part for {destination!r} does not fit into {piece_limit} bytes at all.")
    count = -(-len(backlog_form) // room)
    return [
        _part(destination, part_of, number + 1, count, backlog_form[number * room : (number + 1) * room])
        for number in range(count)
    ]


def join(parts: Collection[Part]) -> bytes:
    """The backlog form that these parts carry; they may come in any order, and twice."""
    by_number = {part.number: part for part in parts}
    counts = {part.count for part in parts}
    if len({part.of for part in parts}) != 1 or len(counts) != 1:
        raise PartError("The parts belong to different messages.")
    count = counts.pop()
    missing = [number for number in range(1, count + 1) if number not in by_number]
    if missing or len(by_number) != count:
        raise PartError(f"Of {count} parts of a message, the numbers {missing} are missing.")
    return b"".join(by_number[number].content for number in range(1, count + 1))


def read(raw: bytes) -> BacklogMessage:
    """What a message received from a backlog queue says about itself; raises an `EnvelopeError`."""
    parts = Sections.split(raw)
    found = map_items(parts.application_properties)
    destination = found.get(PATH)
    if destination is None:
        raise DestinationMissingError
    if not isinstance(destination, str) or not destination:
        raise AliasError(PATH, destination, "a string that is not empty")
    enqueued = map_items(parts.message_annotations).get("x-opt-enqueued-time") if parts.message_annotations else None
    if PART_OF in found:
        return BacklogMessage(destination, enqueued_ms=enqueued, part=_read_part(found, parts.body))
    trace_parent = found.get(TRACE_PARENT)
    return BacklogMessage(
        destination,
        session_id=_session_id(found.get(SESSION_ID)),
        time_to_live_ms=time_to_live_ms(found.get(TIME_TO_LIVE)),
        scheduled_ms=scheduled_ms(found.get(SCHEDULED_TIME)),
        enqueued_ms=int(enqueued) if isinstance(enqueued, int) else None,
        trace_parent=trace_parent if isinstance(trace_parent, str) else None,
    )


def restore(
    raw: bytes,
    *,
    now_ms: int,
    policy: TimeToLivePolicy = "restore",
    enqueued_ms: int | None = None,
) -> Restored | Expired:
    """The original of a message received from a backlog queue, or `Expired` under the policy "deduct".

    `enqueued_ms` is given for a message joined from parts: the time its first part was stored.
    """
    message = read(raw)
    if message.part is not None:
        raise PartError("A part cannot be restored alone; join it with its siblings first.")
    time_to_live = message.time_to_live_ms
    if policy == "deduct" and time_to_live is not None:
        stored = enqueued_ms if enqueued_ms is not None else message.enqueued_ms
        # A scheduled message begins to age when it becomes visible, not when it was stored.
        begin = max(stored if stored is not None else now_ms, message.scheduled_ms or 0)
        time_to_live -= max(0, now_ms - begin)
        if time_to_live <= 0:
            return Expired(message.destination, -time_to_live)
    parts = Sections.split(raw)
    return Restored(
        message.destination,
        b"".join(
            (
                _restored_header(parts.header, time_to_live),
                _restored_annotations(parts.message_annotations, message.scheduled_ms),
                _restored_properties(parts.properties, message.session_id, time_to_live, now_ms),
                edited_map(APPLICATION_PROPERTIES, parts.application_properties, remove=RESERVED),
                parts.body,
                parts.footer,
            )
        ),
    )


def unstamped(raw: bytes, drop: Collection[str] = ()) -> bytes:
    """A received message as a sender may send it again: without what its broker stamped on it, and without the
    application properties named in `drop`.
    """
    parts = Sections.split(raw)
    return parts._replace(
        header=_restored_header(parts.header, list_fields(parts.header, HEADER_FIELDS)[TTL]),
        delivery_annotations=b"",
        message_annotations=edited_map(MESSAGE_ANNOTATIONS, parts.message_annotations, remove=_BROKER_ANNOTATIONS),
        application_properties=edited_map(APPLICATION_PROPERTIES, parts.application_properties, remove=drop),
    ).join()


def _split(raw: bytes) -> Sections:
    """The sections of a message as an SDK encodes it; Python's writes delivery annotations last."""
    try:
        return Sections.split(raw)
    except SectionOrderError:
        return Sections.split(in_standard_order(raw))


@lru_cache(maxsize=1024)
def _path_pair(destination: str) -> bytes:
    return encode(PATH) + encode(destination)


def _restored_header(header: bytes, time_to_live_ms: int | None) -> bytes:
    fields = list_fields(header, HEADER_FIELDS) if header else [None] * HEADER_FIELDS
    fields[DELIVERY_COUNT] = None
    fields[TTL] = None if time_to_live_ms is None else UInt(min(time_to_live_ms, _MAX_TTL_MS))
    return list_section(HEADER, fields)


def _restored_annotations(annotations: bytes, scheduled_ms: int | None) -> bytes:
    add = [] if scheduled_ms is None else [(Symbol(_SCHEDULED_ANNOTATION), Timestamp(scheduled_ms))]
    if not annotations and not add:
        return b""
    return edited_map(MESSAGE_ANNOTATIONS, annotations, remove=_BROKER_ANNOTATIONS, add=add)


def _restored_properties(properties: bytes, session_id: str | None, time_to_live_ms: int | None, now_ms: int) -> bytes:
    if session_id is None and time_to_live_ms is None:
        return properties
    fields = list_fields(properties, PROPERTY_FIELDS) if properties else [None] * PROPERTY_FIELDS
    if session_id is not None:
        fields[GROUP_ID] = session_id
    if time_to_live_ms is not None:
        fields[ABSOLUTE_EXPIRY] = Timestamp(now_ms + time_to_live_ms)
    return list_section(PROPERTIES, fields)


def _part(destination: str, part_of: str, number: int, count: int, content: bytes) -> bytes:
    names = [(PATH, destination), (PART_OF, part_of), (PART, Int(number)), (PARTS, Int(count))]
    properties = list_section(PROPERTIES, [f"{part_of}/{number}"])
    return properties + edited_map(APPLICATION_PROPERTIES, b"", add=names) + b"\x00\x53\x75" + encode(content)


def _read_part(found: dict[Any, Any], body: bytes) -> Part:
    of, number, count = found[PART_OF], found.get(PART), found.get(PARTS)
    if not isinstance(of, str):
        raise AliasError(PART_OF, of, "a string")
    if not isinstance(count, int) or count < 1:
        raise AliasError(PARTS, count, "an int, 1 or more")
    if not isinstance(number, int) or not 1 <= number <= count:
        raise AliasError(PART, number, f"an int from 1 to {count}")
    if body[:3] != b"\x00\x53\x75":
        raise PartError(f"Part {number} of a message does not have a data body.")
    content, end = decode(body, 3)
    if not isinstance(content, bytes) or end != len(body):
        raise PartError(f"Part {number} of a message does not have exactly one data section.")
    return Part(of, int(number), int(count), content)


def _session_id(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return None if value is None else str(value)
    raise AliasError(SESSION_ID, value, "a string")


# --- aliases that are times ---------------------------------------------------------------------------------

_TICKS_PER_MS = 10_000
_TICKS_AT_UNIX_EPOCH = 621_355_968_000_000_000
_SECONDS_BELOW = 100_000_000_000
_LARGEST_TIME_SPAN_MS = 922_337_203_685_477


def time_to_live_ms(value: Any) -> int | None:
    """Milliseconds of a time to live alias.

    A long is ours: milliseconds. Older clients left a .NET time span (a described type whose value counts
    ticks of 100 ns), any other number in seconds, or a duration as text (ISO 8601, or .NET's d.hh:mm:ss).
    More than .NET's largest time span is that: for ever.
    """
    milliseconds: int | None = None
    match value:
        case None:
            return None
        case bool():
            pass
        case Described(descriptor="com.microsoft:timespan", value=int() as ticks):
            milliseconds = ticks // _TICKS_PER_MS
        case int() if type(value) is int:
            milliseconds = value
        case int() | float() if not isinstance(value, Timestamp) and value == value:
            milliseconds = _whole(float(value) * 1000)
        case str():
            milliseconds = _duration_ms(value)
    if milliseconds is None or milliseconds < 0:
        raise AliasError(
            TIME_TO_LIVE, value, "milliseconds as a long, seconds as another number, a time span or ISO 8601"
        )
    return min(milliseconds, _LARGEST_TIME_SPAN_MS)


def scheduled_ms(value: Any) -> int | None:
    """Milliseconds since the Unix epoch of a scheduled time alias.

    A timestamp is ours. Older clients left a .NET date (a described type that counts ticks of 100 ns from
    the year 1), a number of seconds since the epoch (milliseconds if it could not be seconds), or ISO 8601.
    """
    milliseconds: int | None = None
    match value:
        case None:
            return None
        case bool():
            pass
        case Timestamp():
            milliseconds = int(value)
        case Described(descriptor="com.microsoft:datetime-offset", value=int() as ticks):
            milliseconds = (ticks - _TICKS_AT_UNIX_EPOCH) // _TICKS_PER_MS
        case int() | float() if value == value:
            milliseconds = _whole(float(value) * 1000 if abs(value) < _SECONDS_BELOW else float(value))
        case str():
            milliseconds = _instant_ms(value)
    if milliseconds is None:
        raise AliasError(SCHEDULED_TIME, value, "a timestamp, seconds since 1970 as a number, or ISO 8601")
    return milliseconds


def _whole(milliseconds: float) -> int | None:
    return round(milliseconds) if abs(milliseconds) < 2**63 else None


_ISO_DURATION = re.compile(
    r"P(?:(?P<days>\d+(?:\.\d+)?)D)?"
    r"(?:T(?:(?P<hours>\d+(?:\.\d+)?)H)?(?:(?P<minutes>\d+(?:\.\d+)?)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?"
)
_NET_DURATION = re.compile(
    r"(?:(?P<days>\d+)\.)?(?P<hours>\d{1,2}):(?P<minutes>\d{2})(?::(?P<seconds>\d{2}(?:\.\d+)?))?"
)


def _duration_ms(text: str) -> int | None:
    found = _ISO_DURATION.fullmatch(text) or _NET_DURATION.fullmatch(text)
    if found is None or not any(found.groups()):
        return None
    weights = (("days", 86_400_000), ("hours", 3_600_000), ("minutes", 60_000), ("seconds", 1000))
    return _whole(sum(float(found[unit]) * weight for unit, weight in weights if found[unit]))


def _instant_ms(text: str) -> int | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
