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

Home (`inspect`, then `restore`)
- The annotations, delivery count and delivery annotations of the backlog's broker are removed. The aliases become
  properties again.
- Aliases written by older clients are accepted in all their types: see `time_to_live_ms` and `scheduled_ms`.
- A message without a destination, or with an unreadable alias, raises an `EnvelopeError`. The syphon dead-letters it
  with that text.

Parts (`split`, `join`)
- A message that the aliases push over the size limit of the backlog's link, or over the limit of 64 KB for properties
  (`must_be_split`), travels in parts. Each part is a message
  whose body is one data section with a slice of the encoded backlog form. Its application properties are `x-ms-path`,
  `x-pairbus-part-of` (string: a fresh id for each attempt), `x-pairbus-part` (int, from 1), `x-pairbus-parts` (int).
- The parts of one attempt go in order to one backlog queue. If a part fails, the next attempt starts over with a fresh
  id. Incomplete sets of parts are never delivered.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
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
    Stamps,
    edited_map,
    first_field,
    id_text,
    in_standard_order,
    is_set,
    list_fields,
    list_section,
    map_items,
    map_pairs,
    map_section,
    message_key,
    read_stamps,
    with_pairs,
)
from pairbus.amqp.types import AmqpDecodeError, Described, Int, Symbol, Timestamp, UInt
from pairbus.errors import AliasError, DestinationMissingError, EnvelopeError, PartError

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

UNREADABLE = (EnvelopeError, ValueError, ArithmeticError, LookupError, TypeError)
"""All errors that the bytes of one message can cause while it is parsed."""

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
_MAX_PROPERTIES_BYTES = 63 * 1024
_NO_SECTIONS = Sections()
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
    """A message from a backlog queue, parsed once: everything needed to carry, restore and record it.

    `error` says why a message cannot be restored; then it has no destination. `sequence_number` and `enqueued_ms` are 0
    for a message that no queue has stamped. `message_id` is the id of the message to be restored: of the parts of a
    message, only the first one has it. `kept` are the sections in front of the body, without aliases and stamps.
    """

    raw: bytes
    size: int
    destination: str = ""
    message_id: str | None = None
    sequence_number: int = 0
    enqueued_ms: int = 0
    locked_until_ms: int | None = None
    session_id: str | None = None
    time_to_live_ms: int | None = None
    scheduled_ms: int | None = None
    trace_parent: str | None = None
    part: Part | None = None
    error: Exception | None = None
    kept: Sections = _NO_SECTIONS
    body_at: int = 0

    def without_content(self) -> BacklogMessage:
        """The same message without its bytes, for a message that is only kept locked."""
        return replace(self, raw=b"", part=None, kept=_NO_SECTIONS)


@dataclass(frozen=True, slots=True)
class Restored:
    """The original message, ready for its destination."""

    destination: str
    raw: bytes


@dataclass(frozen=True, slots=True)
class Expired:
    """The message's time to live ended `late_ms` before it could be restored."""

    destination: str
    late_ms: int


def reserved_names(names: Iterable[Any]) -> tuple[str, ...]:
    """The user's property names (text or UTF-8 bytes) that are reserved for the backlog form."""
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
    """The backlog form of a message that is already `by_ms` old: its time to live shrinks."""
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
    """An upper bound for how many bytes longer the backlog form is than the message."""
    total = 16 + len(encode(PATH)) + len(encode(destination))
    if session_id is not None:
        total += len(encode(SESSION_ID)) + len(encode(session_id))
    if timed:
        total += len(encode(TIME_TO_LIVE)) + 9
    if scheduled:
        total += len(encode(SCHEDULED_TIME)) + 9
    return total


def must_be_split(backlog_form: bytes) -> bool:
    """Whether a queue might refuse the form in one piece because its properties are too large."""
    if len(backlog_form) <= _MAX_PROPERTIES_BYTES:
        return False
    sections = Sections.split(backlog_form)
    return len(backlog_form) - len(sections.body) - len(sections.footer) > _MAX_PROPERTIES_BYTES


def split(backlog_form: bytes, destination: str, part_of: str, piece_limit: int) -> list[bytes]:
    """Cut a backlog form into parts of at most `piece_limit` bytes each."""
    room = piece_limit - len(_encoded_part(destination, part_of, 0x7FFFFFFF, 0x7FFFFFFF, b"")) - 3
    if room < 1:
        raise PartError(
            f"A part for {destination!r} does not fit into {piece_limit} bytes: even an empty part is larger."
        )
    count = -(-len(backlog_form) // room)
    return [
        _encoded_part(destination, part_of, number + 1, count, backlog_form[number * room : (number + 1) * room])
        for number in range(count)
    ]


def join(parts: Collection[Part]) -> bytes:
    """Put the parts of a backlog form together. They may come in any order, and more than once."""
    by_number = {part.number: part for part in parts}
    counts = {part.count for part in parts}
    if len({part.of for part in parts}) != 1 or len(counts) != 1:
        raise PartError("The parts belong to different messages.")
    count = counts.pop()
    missing = [number for number in range(1, count + 1) if number not in by_number]
    if missing or len(by_number) != count:
        raise PartError(f"Parts {missing} of {count} are missing.")
    return b"".join(by_number[number].content for number in range(1, count + 1))


def inspect(raw: bytes) -> BacklogMessage:
    """Parse a message from a backlog queue. An unreadable message has an `error`, and as much else as can be read."""
    try:
        return _parse(raw)
    except UNREADABLE as error:
        stamps, message_id = Stamps(0, 0), None
        with suppress(*UNREADABLE):
            stamps = read_stamps(raw)
        with suppress(*UNREADABLE):
            message_id = message_key(raw)
        return BacklogMessage(
            raw,
            len(raw),
            message_id=message_id,
            sequence_number=stamps.sequence_number,
            enqueued_ms=stamps.enqueued_ms,
            locked_until_ms=stamps.locked_until_ms,
            error=error,
        )


def _parse(raw: bytes) -> BacklogMessage:
    sections = Sections.split(raw)
    stamps, annotations = _taken_out(MESSAGE_ANNOTATIONS, sections.message_annotations, _BROKER_ANNOTATIONS)
    aliases, application = _taken_out(APPLICATION_PROPERTIES, sections.application_properties, RESERVED)
    destination = aliases.get(PATH)
    if destination is None:
        raise DestinationMissingError
    if not isinstance(destination, str) or not destination:
        raise AliasError(PATH, destination, "a string that is not empty")
    part = _read_part(aliases, sections.body) if PART_OF in aliases else None
    trace_parent = aliases.get(TRACE_PARENT)
    return BacklogMessage(
        raw,
        len(raw),
        str(destination),
        _message_id(sections.properties, part),
        int(stamps.get("x-opt-sequence-number") or 0),
        int(stamps.get("x-opt-enqueued-time") or 0),
        stamps.get("x-opt-locked-until"),
        _session_id(aliases.get(SESSION_ID)),
        time_to_live_ms(aliases.get(TIME_TO_LIVE)),
        scheduled_ms(aliases.get(SCHEDULED_TIME)),
        trace_parent if isinstance(trace_parent, str) else None,
        part,
        None,
        Sections(sections.header, b"", annotations, sections.properties, application),
        len(raw) - len(sections.body) - len(sections.footer),
    )


def _message_id(properties: bytes, part: Part | None) -> str | None:
    """The id of the message to be restored. The first part contains it; the other parts have none."""
    try:
        if part is None:
            return id_text(first_field(properties))
        return message_key(part.content) if part.number == 1 else None
    except (AmqpDecodeError, IndexError):
        return None


def _taken_out(code: int, section: bytes, names: Collection[str]) -> tuple[dict[str, Any], bytes]:
    """The values of these names in a map section, and the section without them."""
    values: dict[str, Any] = {}
    kept, count = b"", 0
    for key, start, value_at, end in map_pairs(section):
        if isinstance(key, str) and key in names:
            values[key] = decode(section, value_at)[0]
        else:
            kept += section[start:end]
            count += 2
    return values, map_section(code, kept, count) if values else section


def restore(
    message: BacklogMessage | bytes,
    *,
    now_ms: int,
    policy: TimeToLivePolicy = "restore",
    enqueued_ms: int | None = None,
) -> Restored | Expired:
    """Restore the original of a message from a backlog queue. Under the policy "deduct" it may have `Expired`.

    Raises `EnvelopeError` or `AmqpDecodeError` if it cannot be restored. `enqueued_ms` overrides the message's own: for
    a message joined from parts, the time its first part was stored.
    """
    if isinstance(message, bytes):
        message = inspect(message)
    if message.error is not None:
        raise message.error
    if message.part is not None:
        raise PartError("A part cannot be restored alone: join it with its siblings first.")
    time_to_live = message.time_to_live_ms
    if policy == "deduct" and time_to_live is not None:
        stored_ms = enqueued_ms if enqueued_ms is not None else message.enqueued_ms or now_ms
        # A scheduled message begins to age when it becomes visible, not when it was stored.
        time_to_live -= max(0, now_ms - max(stored_ms, message.scheduled_ms or 0))
        if time_to_live <= 0:
            return Expired(message.destination, -time_to_live)
    kept = message.kept
    header, annotations = _restored_header(kept.header, time_to_live), kept.message_annotations
    if message.scheduled_ms is not None:
        scheduled = [(Symbol(_SCHEDULED_ANNOTATION), Timestamp(message.scheduled_ms))]
        annotations = edited_map(MESSAGE_ANNOTATIONS, annotations, add=scheduled)
    properties = _restored_properties(kept.properties, message.session_id, time_to_live, now_ms)
    body = message.raw[message.body_at :]
    return Restored(message.destination, b"".join((header, annotations, properties, kept.application_properties, body)))


def unstamped(raw: bytes, drop: Collection[str] = ()) -> bytes:
    """A received message, ready to be sent again: without its broker's stamps, and without the application properties
    in `drop`.
    """
    parts = Sections.split(raw)
    return parts._replace(
        header=_restored_header(parts.header, list_fields(parts.header, HEADER_FIELDS)[TTL]),
        delivery_annotations=b"",
        message_annotations=edited_map(MESSAGE_ANNOTATIONS, parts.message_annotations, remove=_BROKER_ANNOTATIONS),
        application_properties=edited_map(APPLICATION_PROPERTIES, parts.application_properties, remove=drop),
    ).join()


def _split(raw: bytes) -> Sections:
    """Split a message as an SDK encodes it: the Python SDK writes delivery annotations last."""
    try:
        return Sections.split(raw)
    except SectionOrderError:
        return Sections.split(in_standard_order(raw))


@lru_cache(maxsize=1024)
def _path_pair(destination: str) -> bytes:
    return encode(PATH) + encode(destination)


@lru_cache(maxsize=1024)
def _restored_header(header: bytes, time_to_live_ms: int | None) -> bytes:
    fields = list_fields(header, HEADER_FIELDS)
    fields[DELIVERY_COUNT] = None
    fields[TTL] = None if time_to_live_ms is None else UInt(min(time_to_live_ms, _MAX_TTL_MS))
    return list_section(HEADER, fields)


def _restored_properties(properties: bytes, session_id: str | None, time_to_live_ms: int | None, now_ms: int) -> bytes:
    if session_id is None and time_to_live_ms is None:
        return properties
    fields = list_fields(properties, PROPERTY_FIELDS)
    if session_id is not None:
        fields[GROUP_ID] = session_id
    if time_to_live_ms is not None:
        fields[ABSOLUTE_EXPIRY] = Timestamp(now_ms + time_to_live_ms)
    return list_section(PROPERTIES, fields)


def _encoded_part(destination: str, part_of: str, number: int, count: int, content: bytes) -> bytes:
    aliases = [(PATH, destination), (PART_OF, part_of), (PART, Int(number)), (PARTS, Int(count))]
    properties = list_section(PROPERTIES, [f"{part_of}/{number}"])
    return properties + edited_map(APPLICATION_PROPERTIES, b"", add=aliases) + b"\x00\x53\x75" + encode(content)


def _read_part(aliases: dict[str, Any], body: bytes) -> Part:
    of, number, count = aliases[PART_OF], aliases.get(PART), aliases.get(PARTS)
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
    if value is not None and not isinstance(value, str):
        raise AliasError(SESSION_ID, value, "a string")
    return None if value is None else str(value)


# --- aliases that are times ---------------------------------------------------------------------------------

_TICKS_PER_MS = 10_000
_TICKS_AT_UNIX_EPOCH = 621_355_968_000_000_000
_SECONDS_BELOW = 100_000_000_000
_LARGEST_TIME_SPAN_MS = 922_337_203_685_477


def time_to_live_ms(value: Any) -> int | None:
    """The milliseconds of a time-to-live alias; None if there is no alias. Raises `AliasError`.

    pairbus writes a long: milliseconds. Older clients wrote a .NET time span (a described count of 100 ns ticks),
    another kind of number in seconds, or a duration as text (ISO 8601, or .NET's d.hh:mm:ss). Longer times are cut to
    .NET's largest time span, which means forever.
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
            milliseconds = _rounded(float(value) * 1000)
        case str():
            milliseconds = _duration_ms(value)
    if milliseconds is None or milliseconds < 0:
        raise AliasError(
            TIME_TO_LIVE, value, "milliseconds as a long, seconds as another number, a time span or ISO 8601"
        )
    return min(milliseconds, _LARGEST_TIME_SPAN_MS)


def scheduled_ms(value: Any) -> int | None:
    """The milliseconds since the Unix epoch of a scheduled-time alias; None if there is no alias. Raises `AliasError`.

    pairbus writes a timestamp. Older clients wrote a .NET date (a described count of 100 ns ticks since the year 1), a
    number of seconds since the epoch (milliseconds if too large for seconds), or ISO 8601.
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
            milliseconds = _rounded(float(value) * 1000 if abs(value) < _SECONDS_BELOW else float(value))
        case str():
            milliseconds = _instant_ms(value)
    if milliseconds is None:
        raise AliasError(SCHEDULED_TIME, value, "a timestamp, seconds since 1970 as a number, or ISO 8601")
    return milliseconds


def _rounded(milliseconds: float) -> int | None:
    return round(milliseconds) if abs(milliseconds) < 2**63 else None


_ISO_DURATION = re.compile(
    r"P(?:(?P<days>\d+(?:\.\d+)?)D)?"
    r"(?:T(?:(?P<hours>\d+(?:\.\d+)?)H)?(?:(?P<minutes>\d+(?:\.\d+)?)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?"
)
_NET_DURATION = re.compile(
    r"(?:(?P<days>\d+)\.)?(?P<hours>\d{1,2}):(?P<minutes>\d{2})(?::(?P<seconds>\d{2}(?:\.\d+)?))?"
)


def _duration_ms(text: str) -> int | None:
    match = _ISO_DURATION.fullmatch(text) or _NET_DURATION.fullmatch(text)
    if match is None or not any(match.groups()):
        return None
    weights = (("days", 86_400_000), ("hours", 3_600_000), ("minutes", 60_000), ("seconds", 1000))
    return _rounded(sum(float(match[unit]) * weight for unit, weight in weights if match[unit]))


def _instant_ms(text: str) -> int | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
