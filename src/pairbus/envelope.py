"""A message's backlog form, and back.

Works on encoded messages, so that whatever is not named here travels as the bytes it is: bodies and
application properties are never decoded and encoded again.

On the way out (`to_backlog`)
- `session_id` (group-id), `time_to_live` (header ttl) and `scheduled_enqueue_time_utc` (the annotation
  `x-opt-scheduled-enqueue-time`) are cleared and kept as application properties, in exactly these types:

  | cleared | application property | AMQP type |
  |---|---|---|
  | session_id | `x-ms-sessionid` | string |
  | time_to_live | `x-ms-timetolive` | long, milliseconds |
  | scheduled_enqueue_time_utc | `x-ms-scheduledenqueuetimeutc` | timestamp |
  | (destination path) | `x-ms-path` | string |

- The SDK derives `absolute-expiry-time` from the time to live; with the time to live it is cleared, so that
  no broker expires the message in the backlog. `restore` derives it again.
- A message of the user's that already has one of these properties is refused (`reserved_names`).

On the way home (`read`, `restore`)
- What the backlog's broker added (its annotations, the delivery count, delivery annotations) is taken off,
  the aliases become properties again and disappear.
- Aliases of older clients are understood: see `alias_times`.
- A message that lacks its destination, or has an alias nobody can read, raises an `EnvelopeError`: the
  syphon dead-letters it with that text.

Parts A message that the added properties push over the limit of the backlog's link is carried in parts
(`split`, `join`): each part is a message whose body is one data section with a slice of the *encoded
backlog form*. Its application properties are `x-ms-path`, `x-pairbus-part-of` (string: one fresh id for all
parts of this attempt), `x-pairbus-part` (int, from 1) and `x-pairbus-parts` (int). The parts of one attempt
are sent in order to one backlog queue; if one of them fails, the next attempt begins again with a fresh id,
and parts without their siblings are never delivered.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

from pairbus.alias_times import SCHEDULED_TIME, TIME_TO_LIVE, scheduled_ms, time_to_live_ms
from pairbus.amqp.codec import decode, encode
from pairbus.amqp.sections import SectionOrderError, Sections, in_standard_order, split_sections
from pairbus.amqp.types import Int, Symbol, Timestamp, UInt
from pairbus.errors import AliasError, DestinationMissingError, PartError
from pairbus.section_edits import any_set, described, edited, is_set, list_fields, map_items, with_pairs

PATH = "x-ms-path"
SESSION_ID = "x-ms-sessionid"
PART_OF = "x-pairbus-part-of"
PART = "x-pairbus-part"
PARTS = "x-pairbus-parts"
TRACE_PARENT = "x-pairbus-traceparent"

RESERVED = frozenset({PATH, SESSION_ID, TIME_TO_LIVE, SCHEDULED_TIME, PART_OF, PART, PARTS, TRACE_PARENT})
"""Names a user's application property must not have."""

PING_CONTENT_TYPE = "application/vnd.ms-servicebus-ping"
PING_TIME_TO_LIVE_MS = 1000

BATCH_ENTRY_BYTES = 8
"""What one message costs in a batch beyond its own bytes: the descriptor and length of its data section."""

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
_MESSAGE_ID, _ABSOLUTE_EXPIRY, _GROUP_ID, _PROPERTY_COUNT = 0, 8, 10, 13
_TTL, _DELIVERY_COUNT, _HEADER_COUNT = 2, 4, 5
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


def with_message_id(raw: bytes, message_id: str) -> bytes:
    """The message with this id if it has none; unchanged if it has one."""
    parts = Sections.split(raw)
    fields = list_fields(parts.properties, _PROPERTY_COUNT)
    if fields[_MESSAGE_ID] is not None:
        return raw
    fields[_MESSAGE_ID] = message_id
    return replace(parts, properties=described("properties", encode(fields))).join()


def to_backlog(raw: bytes, destination: str, *, trace_parent: str | None = None) -> bytes:
    """The backlog form of an encoded message for the entity `destination`."""
    header, delivery_annotations, annotations, properties, application, body, footer = _split(raw)
    pairs, count = _path_pair(destination), 1

    time_to_live = None
    if header:
        fields = list_fields(header, _HEADER_COUNT)
        time_to_live = fields[_TTL]
        if time_to_live is not None:
            fields[_TTL] = None
            header = described("header", encode(fields)) if any_set(fields) else b""
            pairs += _TIME_TO_LIVE_KEY + encode(int(time_to_live))
            count += 1
    if properties and (time_to_live is not None or is_set(properties, _GROUP_ID)):
        fields = list_fields(properties, _PROPERTY_COUNT)
        session_id = fields[_GROUP_ID]
        if session_id is not None:
            fields[_GROUP_ID] = None
            pairs += _SESSION_ID_KEY + encode(str(session_id))
            count += 1
        if time_to_live is not None:
            fields[_ABSOLUTE_EXPIRY] = None
        properties = described("properties", encode(fields)) if any_set(fields) else b""
    if annotations and b"x-opt-scheduled" in annotations:
        scheduled = map_items(annotations).get(_SCHEDULED_ANNOTATION)
        if scheduled is not None:
            pairs += _SCHEDULED_TIME_KEY + encode(Timestamp(scheduled))
            count += 1
            annotations = edited("annotations", annotations, remove={_SCHEDULED_ANNOTATION})
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
    application = edited(
        "application",
        parts.application_properties,
        remove={TIME_TO_LIVE},
        add=[(TIME_TO_LIVE, max(0, time_to_live - by_ms))],
    )
    return replace(parts, application_properties=application).join()


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
                edited("application", parts.application_properties, remove=RESERVED),
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
    return replace(
        parts,
        header=_restored_header(parts.header, list_fields(parts.header, _HEADER_COUNT)[_TTL]),
        delivery_annotations=b"",
        message_annotations=edited("annotations", parts.message_annotations, remove=_BROKER_ANNOTATIONS),
        application_properties=edited("application", parts.application_properties, remove=drop),
    ).join()


def _split(raw: bytes) -> list[bytes]:
    """The sections of a message as an SDK encodes it; Python's writes delivery annotations last."""
    try:
        return split_sections(raw)
    except SectionOrderError:
        return split_sections(in_standard_order(raw))


@lru_cache(maxsize=1024)
def _path_pair(destination: str) -> bytes:
    return encode(PATH) + encode(destination)


def _restored_header(header: bytes, time_to_live_ms: int | None) -> bytes:
    fields = list_fields(header, _HEADER_COUNT) if header else [None] * _HEADER_COUNT
    fields[_DELIVERY_COUNT] = None
    fields[_TTL] = None if time_to_live_ms is None else UInt(min(time_to_live_ms, _MAX_TTL_MS))
    return described("header", encode(fields)) if any_set(fields) else b""


def _restored_annotations(annotations: bytes, scheduled_ms: int | None) -> bytes:
    add = [] if scheduled_ms is None else [(Symbol(_SCHEDULED_ANNOTATION), Timestamp(scheduled_ms))]
    if not annotations and not add:
        return b""
    return edited("annotations", annotations, remove=_BROKER_ANNOTATIONS, add=add)


def _restored_properties(properties: bytes, session_id: str | None, time_to_live_ms: int | None, now_ms: int) -> bytes:
    if session_id is None and time_to_live_ms is None:
        return properties
    fields = list_fields(properties, _PROPERTY_COUNT) if properties else [None] * _PROPERTY_COUNT
    if session_id is not None:
        fields[_GROUP_ID] = session_id
    if time_to_live_ms is not None:
        fields[_ABSOLUTE_EXPIRY] = Timestamp(now_ms + time_to_live_ms)
    return described("properties", encode(fields))


def _part(destination: str, part_of: str, number: int, count: int, content: bytes) -> bytes:
    names = [(PATH, destination), (PART_OF, part_of), (PART, Int(number)), (PARTS, Int(count))]
    properties = described("properties", encode([f"{part_of}/{number}"]))
    return properties + edited("application", b"", add=names) + b"\x00\x53\x75" + encode(content)


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
