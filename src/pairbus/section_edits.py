"""Single sections of an encoded message, looked at and edited without touching a byte that need not change.

A section is its raw bytes, descriptor included; `b""` is one that is not there. See `pairbus.amqp.sections`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from pairbus.amqp.codec import decode, encode, skip
from pairbus.amqp.types import AmqpDecodeError

_CODES = {"header": 0x70, "annotations": 0x72, "properties": 0x73, "application": 0x74}


def is_set(section: bytes, index: int) -> bool:
    """Whether a field of a list section is there and not null; decodes nothing."""
    pos = _value_at(section)
    code = section[pos]
    if code == 0xC0:
        count, pos = section[pos + 2], pos + 3
    elif code == 0xD0:
        count, pos = int.from_bytes(section[pos + 5 : pos + 9]), pos + 9
    else:
        return False
    if count <= index:
        return False
    for _ in range(index):
        pos = pos + 1 if section[pos] == 0x40 else skip(section, pos)
    return section[pos] != 0x40


def with_pairs(section: bytes, pairs: bytes, pair_count: int) -> bytes:
    """Application properties with encoded pairs put behind those that are there."""
    count = 2 * pair_count
    if section:
        pos = _value_at(section)
        code = section[pos]
        if code == 0xC1:
            count, pairs = count + section[pos + 2], section[pos + 3 :] + pairs
        elif code == 0xD1:
            count, pairs = count + int.from_bytes(section[pos + 5 : pos + 9]), section[pos + 9 :] + pairs
        elif code != 0x40:
            raise AmqpDecodeError("annotations and application properties must be a map")
    return _map_section("application", pairs, count)


def any_set(fields: Iterable[Any]) -> bool:
    return any(value is not None for value in fields)


def list_fields(section: bytes, count: int) -> list[Any]:
    """The fields of a list section, padded with None to `count`."""
    if not section:
        return [None] * count
    values, _ = decode(section, _value_at(section))
    if type(values) is not list or len(values) > count:
        raise AmqpDecodeError(f"a section of an AMQP message must be a list of at most {count} fields")
    return values + [None] * (count - len(values))


def map_items(section: bytes) -> dict[Any, Any]:
    if not section:
        return {}
    value, _ = decode(section, _value_at(section))
    if value is None:
        return {}
    if type(value) is not dict:
        raise AmqpDecodeError("annotations and application properties must be a map")
    return value


def _value_at(section: bytes) -> int:
    """Where the value of a described section begins."""
    return 3 if section[1] == 0x53 else skip(section, 1)


def described(name: str, value: bytes) -> bytes:
    return b"\x00\x53" + bytes((_CODES[name],)) + value


def edited(
    name: str,
    section: bytes,
    *,
    remove: Collection[str] = (),
    add: Iterable[tuple[str, Any]] = (),
) -> bytes:
    """A map section with pairs removed and added; every other pair keeps its bytes."""
    content, count = bytearray(), 0
    if section:
        for pair, key in _pairs(section):
            if not isinstance(key, str) or key not in remove:
                content += pair
                count += 2
    for key, value in add:
        content += encode(key)
        content += encode(value)
        count += 2
    return _map_section(name, bytes(content), count) if count else b""


def _map_section(name: str, content: bytes, count: int) -> bytes:
    if len(content) < 255 and count < 256:
        return b"\x00\x53%c\xc1%c%c%b" % (_CODES[name], len(content) + 1, count, content)
    return b"\x00\x53%c\xd1%b%b%b" % (_CODES[name], (len(content) + 4).to_bytes(4), count.to_bytes(4), content)


def _pairs(section: bytes) -> Iterable[tuple[bytes, Any]]:
    pos = _value_at(section)
    code = section[pos]
    if code == 0x40:
        return
    if code == 0xC1:
        count, pos = section[pos + 2], pos + 3
    elif code == 0xD1:
        count, pos = int.from_bytes(section[pos + 5 : pos + 9]), pos + 9
    else:
        raise AmqpDecodeError("annotations and application properties must be a map")
    for _ in range(count // 2):
        key, value_at = decode(section, pos)
        after = skip(section, value_at)
        yield section[pos:after], key
        pos = after
