"""PURE. The bytes of an AMQP 1.0 message: split into sections, read, edited, joined, and packed into batches.

Rules
- A message is stored and carried as the bytes it arrived in. The body is never decoded here. An edit rewrites only the
  section it concerns; all other bytes stay as they are.
- A section is its raw bytes, descriptor included; ``b""`` stands for a section that is absent.
- Sections come in the standard's order (header, delivery annotations, message annotations, properties, application
  properties, body, footer), each at most once, except for a body of several data or sequence sections. Anything else
  raises ``AmqpDecodeError``. ``in_standard_order`` sorts sections that are merely out of order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple
from uuid import UUID

from pairbus.amqp.codec import decode, encode, encode_into, skip
from pairbus.amqp.types import AmqpDecodeError, Symbol, UInt, ULong

HEADER = 0x70
DELIVERY_ANNOTATIONS = 0x71
MESSAGE_ANNOTATIONS = 0x72
PROPERTIES = 0x73
APPLICATION_PROPERTIES = 0x74
DATA = 0x75
SEQUENCE = 0x76
VALUE = 0x77
FOOTER = 0x78

SECTION_CODES = {
    "amqp:header:list": HEADER,
    "amqp:delivery-annotations:map": DELIVERY_ANNOTATIONS,
    "amqp:message-annotations:map": MESSAGE_ANNOTATIONS,
    "amqp:properties:list": PROPERTIES,
    "amqp:application-properties:map": APPLICATION_PROPERTIES,
    "amqp:data:binary": DATA,
    "amqp:amqp-sequence:list": SEQUENCE,
    "amqp:amqp-value:*": VALUE,
    "amqp:footer:map": FOOTER,
}
"""The section codes by descriptor name: a sender may write the name instead of the code."""

HEADER_FIELDS, PROPERTY_FIELDS = 5, 13
TTL, DELIVERY_COUNT = 2, 4
MESSAGE_ID, CORRELATION_ID, ABSOLUTE_EXPIRY, GROUP_ID = 0, 5, 8, 10
"""Positions of fields in the header and in the properties (AMQP 1.0, 3.2.1 and 3.2.4)."""

BATCH_FORMAT = 0x80013700
"""The message format of a transfer whose data sections are encoded messages."""
BATCH_ENTRY_BYTES = 8
"""The overhead of one message in a batch: the descriptor and length of its data section."""

STATES = ("active", "deferred", "scheduled")
"""The states of a message in a queue, by their number on the wire."""

_NULL, _LIST8, _LIST32, _MAP8, _MAP32 = 0x40, 0xC0, 0xD0, 0xC1, 0xD1
_SHORT_TEXTS = b"\xa1\xa3"
"""The format codes of a string and a symbol of less than 256 bytes."""
_LOCK_ANNOTATION = b"\x00\x53\x71\xc1\x24\x02\xa3\x10x-opt-lock-token\x98"
"""Delivery annotations with one pair, up to the bytes of the token."""
_NO_DELIVERY_ANNOTATIONS = b"\x00\x53\x71\xc1\x01\x00"
"""An empty map: the service sends it with a message that is not locked."""
_ID_TYPES = frozenset((str, UUID, ULong, bytes, type(None)))
_CACHED_KEY_BYTES = 64


class SectionOrderError(AmqpDecodeError):
    """The sections are not in the standard's order; ``in_standard_order`` may fix that."""


# --- sections ---------------------------------------------------------------------------------------------


class Sections(NamedTuple):
    """The raw bytes of each section, descriptor included; ``b""`` for an absent section."""

    header: bytes = b""
    delivery_annotations: bytes = b""
    message_annotations: bytes = b""
    properties: bytes = b""
    application_properties: bytes = b""
    body: bytes = b""
    footer: bytes = b""

    @classmethod
    def split(cls, raw: bytes) -> Sections:
        sections = [b""] * 7
        pos = previous = 0
        end = len(raw)
        body_at, body_end = -1, 0
        while pos < end:
            code, value_at = _section_at(raw, pos)
            if code <= previous or previous >= DATA:
                _check_order(previous, code, pos)
            after = skip(raw, value_at)
            if code < DATA:
                sections[code - HEADER] = raw[pos:after]
            elif code == FOOTER:
                sections[6] = raw[pos:after]
            else:
                if body_at < 0:
                    body_at = pos
                body_end = after
            previous, pos = code, after
        if body_at >= 0:
            sections[5] = raw[body_at:body_end]
        return cls._make(sections)

    def join(self) -> bytes:
        return b"".join(self)


def in_standard_order(raw: bytes) -> bytes:
    """The message with its sections sorted. The Python SDK, for example, writes delivery annotations last."""
    sections: dict[int, list[bytes]] = {}
    pos, previous, end = 0, 0, len(raw)
    while pos < end:
        code, value_at = _section_at(raw, pos)
        after = skip(raw, value_at)
        if code in sections and (code != previous or code not in (DATA, SEQUENCE)):
            raise AmqpDecodeError(f"the section at byte {pos} occurs twice")
        sections.setdefault(code, []).append(raw[pos:after])
        previous, pos = code, after
    return b"".join(part for code in sorted(sections) for part in sections[code])


def _section_at(raw: bytes, pos: int) -> tuple[int, int]:
    """The code of the section that starts at ``pos``, and the offset of its value."""
    try:
        if raw[pos] != 0:
            raise AmqpDecodeError(f"byte {pos} of the message does not start a section")
        if raw[pos + 1] == 0x53:
            code, value_at = raw[pos + 2], pos + 3
        else:
            descriptor, value_at = decode(raw, pos + 1)
            if type(descriptor) is Symbol:
                code = SECTION_CODES.get(descriptor, 0)
            else:
                code = int(descriptor) if type(descriptor) is ULong else 0
    except IndexError:
        raise AmqpDecodeError(f"the section at byte {pos} of the message is cut short") from None
    if not HEADER <= code <= FOOTER:
        raise AmqpDecodeError(f"byte {pos} of the message does not start a known section")
    return code, value_at


def _check_order(previous: int, code: int, pos: int) -> None:
    if code > previous:
        if code != FOOTER and previous >= DATA:
            raise AmqpDecodeError(f"the body changes its kind at byte {pos}")
    elif code != previous or code not in (DATA, SEQUENCE):
        raise SectionOrderError(f"the section at byte {pos} is out of order or occurs twice")


# --- one section ------------------------------------------------------------------------------------------


Pair = tuple[Any, int, int, int]
"""One pair of a map section: its key, and the offsets of the pair, of its value, and of its end."""


def map_pairs(section: bytes) -> list[Pair]:
    """The pairs of a map section. Only the keys are decoded."""
    if not section:
        return []
    pairs: list[Pair] = []
    try:
        count, pos = _map_content(section, _value_at(section))
        for _ in range(count // 2):
            # Most keys are short strings or symbols; skipping them here saves a call.
            value_at = pos + 2 + section[pos + 1] if section[pos] in _SHORT_TEXTS else skip(section, pos)
            end = skip(section, value_at)
            encoded = section[pos:value_at]
            key = _cached_key(encoded) if len(encoded) <= _CACHED_KEY_BYTES else decode(encoded)[0]
            pairs.append((key, pos, value_at, end))
            pos = end
    except IndexError:
        raise AmqpDecodeError("a map section of the message is cut short") from None
    return pairs


@lru_cache(maxsize=4096)
def _cached_key(encoded: bytes) -> Any:
    return decode(encoded)[0]


def map_items(section: bytes) -> dict[Any, Any]:
    """The decoded content of a map section."""
    if not section:
        return {}
    value, _ = decode(section, _value_at(section))
    if value is None:
        return {}
    if type(value) is not dict:
        raise AmqpDecodeError("annotations and application properties must be a map")
    return value


def list_fields(section: bytes, count: int) -> list[Any]:
    """The fields of a list section, padded with None to ``count``."""
    if not section:
        return [None] * count
    values, _ = decode(section, _value_at(section))
    if type(values) is not list or len(values) > count:
        raise AmqpDecodeError(f"a list section of the message must have at most {count} fields")
    return values + [None] * (count - len(values))


def is_set(section: bytes, index: int) -> bool:
    """Whether a field of a list section is present and not null; decodes nothing."""
    count, pos = _list_content(section, _value_at(section))
    if count <= index:
        return False
    for _ in range(index):
        pos = pos + 1 if section[pos] == _NULL else skip(section, pos)
    return section[pos] != _NULL


def list_section(code: int, fields: Iterable[Any]) -> bytes:
    """A list section with these fields; absent if all of them are None."""
    values = list(fields)
    return b"\x00\x53%c%b" % (code, encode(values)) if any(value is not None for value in values) else b""


def map_section(code: int, content: bytes, count: int) -> bytes:
    """A map section of encoded pairs; ``count`` counts keys and values. Absent if there are none."""
    if not count:
        return b""
    if len(content) < 255 and count < 256:
        return b"\x00\x53%c\xc1%c%c%b" % (code, len(content) + 1, count, content)
    return b"\x00\x53%c\xd1%b%b%b" % (code, (len(content) + 4).to_bytes(4), count.to_bytes(4), content)


def edited_map(
    code: int, section: bytes, *, remove: Collection[str] = (), add: Iterable[tuple[str, Any]] = ()
) -> bytes:
    """A map section with pairs removed and added; every other pair keeps its bytes."""
    content, count = bytearray(), 0
    for key, start, _, end in map_pairs(section):
        if not isinstance(key, str) or key not in remove:
            content += section[start:end]
            count += 2
    for key, value in add:
        encode_into(content, key)
        encode_into(content, value)
        count += 2
    return map_section(code, bytes(content), count)


def with_pairs(section: bytes, pairs: bytes, pair_count: int) -> bytes:
    """Application properties with encoded pairs appended."""
    count = 2 * pair_count
    if section:
        present, pos = _map_content(section, _value_at(section))
        count, pairs = count + present, section[pos:] + pairs
    return map_section(APPLICATION_PROPERTIES, pairs, count)


def _value_at(section: bytes) -> int:
    """The offset of a section's value."""
    return 3 if section[1] == 0x53 else skip(section, 1)


def _map_content(buf: bytes, pos: int) -> tuple[int, int]:
    """How many keys and values the map at ``pos`` has, and the offset of the first one."""
    code = buf[pos]
    if code == _MAP8 and len(buf) > pos + 2:
        return buf[pos + 2], pos + 3
    if code == _MAP32 and len(buf) > pos + 8:
        return int.from_bytes(buf[pos + 5 : pos + 9]), pos + 9
    if code == _NULL:
        return 0, pos + 1
    raise AmqpDecodeError("annotations and application properties must be a map")


def _list_content(buf: bytes, pos: int) -> tuple[int, int]:
    """How many fields the list at ``pos`` has, and the offset of the first one."""
    code = buf[pos]
    if code == _LIST8 and len(buf) > pos + 2:
        return buf[pos + 2], pos + 3
    if code == _LIST32 and len(buf) > pos + 8:
        return int.from_bytes(buf[pos + 5 : pos + 9]), pos + 9
    return 0, pos + 1


def value_message(properties: Sequence[Any], application_properties: Mapping[str, Any], body: Any) -> bytes:
    """A message whose body is one value: a request to a node, or a reply."""
    sections = encode(properties), encode(application_properties), encode(body)
    return b"\x00\x53\x73%b\x00\x53\x74%b\x00\x53\x77%b" % sections


# --- reading ----------------------------------------------------------------------------------------------


def id_text(value: str | UUID | int | bytes | None) -> str | None:
    """A message or correlation id as text, whatever its type. Equal ids have equal texts."""
    if value is None or type(value) is str:
        return value
    return value.hex() if isinstance(value, bytes) else str(value)


def first_field(section: bytes) -> Any:
    """The first field of a list section; of the properties, the message id. Later fields are not read."""
    return _first_item(section, _value_at(section)) if section else None


def _first_item(buf: bytes, list_at: int) -> Any:
    count, pos = _list_content(buf, list_at)
    return decode(buf, pos)[0] if count else None


def message_key(raw: bytes) -> str | None:
    """The message id as text. Reads nothing behind it, so the start of a message is enough."""
    pos = 0
    while pos + 3 < len(raw) and raw[pos] == 0 and raw[pos + 1] == 0x53:
        code = raw[pos + 2]
        if code == PROPERTIES:
            return id_text(_first_item(raw, pos + 3))
        if not HEADER <= code < PROPERTIES:
            return None
        pos = skip(raw, pos + 3)
    return None


class Stamps(NamedTuple):
    """The annotations a queue adds to each message. Times are milliseconds since the epoch."""

    sequence_number: int
    enqueued_ms: int
    locked_until_ms: int | None = None
    state: str = STATES[0]


def read_stamps(raw: bytes) -> Stamps:
    """The stamps of a received or peeked message; raises ``AmqpDecodeError`` if it has no sequence number."""
    pos = 0
    while raw[pos : pos + 2] == b"\x00\x53" and raw[pos + 2] < MESSAGE_ANNOTATIONS:
        pos = skip(raw, pos + 3)
    is_short = raw[pos : pos + 3] == b"\x00\x53\x72"  # descriptors may also be written in their long forms
    section = raw[pos : skip(raw, pos + 3)] if is_short else Sections.split(raw).message_annotations
    number: Any = None
    enqueued_ms: Any = 0
    locked_until_ms: Any = None
    state: Any = 0
    for key, _, value_at, _ in map_pairs(section):
        if key == "x-opt-sequence-number":
            number = decode(section, value_at)[0]
        elif key == "x-opt-enqueued-time":
            enqueued_ms = decode(section, value_at)[0]
        elif key == "x-opt-locked-until":
            locked_until_ms = decode(section, value_at)[0]
        elif key == "x-opt-message-state":
            state = decode(section, value_at)[0]
    if not isinstance(number, int):
        raise AmqpDecodeError("the message has no sequence number: it was neither received nor peeked")
    return Stamps(int(number), int(enqueued_ms or 0), locked_until_ms, STATES[int(state or 0)])


@dataclass(slots=True)
class Facts:
    """The properties of a message that a broker acts on; ``application_properties`` are decoded on first use.

    ``body_size`` is the encoded size of the body's sections.
    """

    message_id: str | UUID | ULong | bytes | None = None
    correlation_id: str | UUID | ULong | bytes | None = None
    session_id: str | None = None
    content_type: str | None = None
    subject: str | None = None
    to: str | None = None
    reply_to: str | None = None
    reply_to_session_id: str | None = None
    user_id: bytes | None = None
    ttl_ms: int | None = None
    scheduled_ms: int | None = None
    partition_key: str | None = None
    body_size: int = 0
    application_properties_size: int = 0
    _raw_application_properties: bytes = b""
    _application_properties: dict[str, Any] | None = field(default=None, compare=False, repr=False)

    @property
    def message_key(self) -> str | None:
        """The message id as text, whatever its type: the value that duplicate detection compares."""
        return id_text(self.message_id)

    @property
    def correlation_key(self) -> str | None:
        return id_text(self.correlation_id)

    @property
    def application_properties(self) -> dict[str, Any]:
        if self._application_properties is None:
            self._application_properties = map_items(self._raw_application_properties)
        return self._application_properties


def read_facts(raw: bytes) -> Facts:
    """Read a message in one pass. The body and the application properties are only measured."""
    facts = Facts()
    pos, previous, end = 0, 0, len(raw)
    while pos < end:
        if end - pos > 3 and raw[pos] == 0 and raw[pos + 1] == 0x53 and 0x70 <= raw[pos + 2] <= 0x78:
            code, value_at = raw[pos + 2], pos + 3
        else:
            code, value_at = _section_at(raw, pos)
        if code <= previous or previous >= DATA:
            _check_order(previous, code, pos)
        if code == HEADER:
            values, after = decode(raw, value_at)
            if type(values) is not list or len(values) > HEADER_FIELDS:
                raise AmqpDecodeError("the header must be a list of at most five fields")
            if len(values) > TTL and isinstance(values[TTL], int):
                facts.ttl_ms = int(values[TTL])
        elif code == PROPERTIES:
            values, after = decode(raw, value_at)
            if type(values) is not list:
                raise AmqpDecodeError("the properties must be a list")
            _read_properties(facts, values)
        elif code <= MESSAGE_ANNOTATIONS:
            # Annotations are added on the way to a receiver, so they must be readable.
            after = skip(raw, value_at)
            annotations = map_items(raw[pos:after])
            if code == MESSAGE_ANNOTATIONS:
                _read_annotations(facts, annotations)
        else:
            after = skip(raw, value_at)
            if code == APPLICATION_PROPERTIES:
                facts._raw_application_properties = raw[pos:after]
                facts.application_properties_size = after - pos
            elif DATA <= code <= VALUE:
                facts.body_size += after - pos
        previous, pos = code, after
    return facts


def _read_properties(facts: Facts, values: list[Any]) -> None:
    if len(values) < PROPERTY_FIELDS:
        values = values + [None] * (PROPERTY_FIELDS - len(values))
    message_id, correlation_id = values[MESSAGE_ID], values[CORRELATION_ID]
    if type(message_id) not in _ID_TYPES or type(correlation_id) not in _ID_TYPES:
        raise AmqpDecodeError("a message id or correlation id must be a string, uuid, ulong or binary")
    facts.message_id = message_id
    facts.correlation_id = correlation_id
    facts.user_id = values[1] if type(values[1]) is bytes else None
    facts.to = _text(values[2])
    facts.subject = _text(values[3])
    facts.reply_to = _text(values[4])
    facts.content_type = _text(values[6])
    facts.session_id = _text(values[GROUP_ID])
    facts.reply_to_session_id = _text(values[12])


def _read_annotations(facts: Facts, values: Mapping[Any, Any]) -> None:
    annotations = {_key_text(key): value for key, value in values.items()}
    scheduled = annotations.get("x-opt-scheduled-enqueue-time")
    if isinstance(scheduled, int):
        facts.scheduled_ms = int(scheduled)
    facts.partition_key = _text(annotations.get("x-opt-partition-key"))


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _key_text(key: Any) -> str:
    """A key as text: some clients write annotations with binary keys."""
    return key.decode("ascii", "replace") if isinstance(key, bytes) else str(key)


# --- editing ----------------------------------------------------------------------------------------------


def with_message_id(raw: bytes, message_id: str) -> bytes:
    """The message with this id if it has none; unchanged if it has one."""
    sections = Sections.split(raw)
    fields = list_fields(sections.properties, PROPERTY_FIELDS)
    if fields[MESSAGE_ID] is not None:
        return raw
    fields[MESSAGE_ID] = message_id
    return sections._replace(properties=list_section(PROPERTIES, fields)).join()


def with_application_properties(raw: bytes, updates: Mapping[str, Any], remove: Collection[str] = ()) -> bytes:
    """The message with application properties set and removed; everything else is unchanged."""
    sections = Sections.split(raw)
    properties = map_items(sections.application_properties)
    for name in remove:
        properties.pop(name, None)
    properties.update(updates)
    section = b"\x00\x53\x74" + encode(properties) if properties else b""
    return sections._replace(application_properties=section).join()


def for_delivery(
    raw: bytes, *, delivery_count: int, annotations: Mapping[str, Any], lock_token: bytes | None = None
) -> bytes:
    """The message as a receiver gets it: with its delivery count in the header, ``annotations`` merged into the message
    annotations (None removes one), and the lock token, which is the delivery tag, in the delivery annotations.
    """
    header = for_hop = for_message = b""
    pos, previous, end = 0, 0, len(raw)
    while pos < end:
        code, value_at = _section_at(raw, pos)
        if code > MESSAGE_ANNOTATIONS:
            break
        _check_order(previous, code, pos)
        after = skip(raw, value_at)
        if code == HEADER:
            header = raw[value_at:after]
        elif code == DELIVERY_ANNOTATIONS:
            for_hop = raw[value_at:after]
        else:
            for_message = raw[value_at:after]
        previous, pos = code, after
    return b"".join(
        (
            _counted_header(header, delivery_count),
            _delivery_annotations(for_hop, lock_token),
            _merged_annotations(MESSAGE_ANNOTATIONS, for_message, annotations),
            raw[pos:],
        )
    )


def _delivery_annotations(old: bytes, lock_token: bytes | None) -> bytes:
    # A lock token is a UUID in .NET's byte order; on the wire UUIDs are in network order.
    token = UUID(bytes_le=lock_token) if lock_token else None
    if old:
        return _merged_annotations(DELIVERY_ANNOTATIONS, old, {"x-opt-lock-token": token})
    return _LOCK_ANNOTATION + token.bytes if token else _NO_DELIVERY_ANNOTATIONS


@lru_cache(maxsize=1024)
def _counted_header(old: bytes, delivery_count: int) -> bytes:
    """A header section with this delivery count. Cached: senders use few different headers."""
    values = decode(old)[0] if old else []
    if type(values) is not list or len(values) > HEADER_FIELDS:
        raise AmqpDecodeError("the header must be a list of at most five fields")
    values = values + [None] * (HEADER_FIELDS - len(values))
    values[DELIVERY_COUNT] = UInt(delivery_count)
    return b"\x00\x53\x70" + encode(values)


@lru_cache(maxsize=1024)
def _symbol(name: str) -> bytes:
    return encode(Symbol(name))


def _merged_annotations(code: int, old: bytes, updates: Mapping[str, Any]) -> bytes:
    content, count = bytearray(), 0
    if old:
        present, pos = _map_content(old, 0)
        for _ in range(present // 2):
            value_at = skip(old, pos)
            after = skip(old, value_at)
            if _key_text(decode(old, pos)[0]) not in updates:
                content += old[pos:after]
                count += 2
            pos = after
    for name, value in updates.items():
        if value is not None:
            content += _symbol(name)
            encode_into(content, value)
            count += 2
    return map_section(code, bytes(content), count)


# --- batches ----------------------------------------------------------------------------------------------


def join_batch(raws: Sequence[bytes]) -> bytes:
    """The payload of a transfer of ``BATCH_FORMAT``: one data section per message.

    The envelope carries the id, session and partition key of the first message, like the SDK's batches: partitioned
    entities place the whole batch by them.
    """
    first = read_facts(raws[0])
    pieces: list[bytes] = []
    if first.partition_key is not None:
        pieces.append(b"\x00\x53\x72" + encode({Symbol("x-opt-partition-key"): first.partition_key}))
    if first.message_id is not None or first.session_id is not None:
        properties: list[Any] = [first.message_id]
        if first.session_id is not None:
            properties += [None] * (GROUP_ID - 1) + [first.session_id]
        pieces.append(b"\x00\x53\x73" + encode(properties))
    for raw in raws:
        size = len(raw)
        pieces.append(b"\x00\x53\x75\xa0%c" % size if size < 256 else b"\x00\x53\x75\xb0" + size.to_bytes(4))
        pieces.append(raw)
    return b"".join(pieces)


def split_batch(raw: bytes) -> list[bytes]:
    """The encoded messages in a transfer of ``BATCH_FORMAT``."""
    messages: list[bytes] = []
    pos, previous, end = 0, 0, len(raw)
    while pos < end:
        code, value_at = _section_at(raw, pos)
        _check_order(previous, code, pos)
        if code == DATA:
            value, pos = decode(raw, value_at)
            if type(value) is not bytes:
                raise AmqpDecodeError(f"the data section at byte {value_at} of the batch is not binary")
            messages.append(value)
        elif code in (SEQUENCE, VALUE):
            raise AmqpDecodeError("the body of a batch must consist of data sections")
        else:
            pos = skip(raw, value_at)
        previous = code
    return messages
