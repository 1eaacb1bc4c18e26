"""Reads TOML that people write by hand, and explains mistakes. PURE.

A frozen `msgspec.Struct` with `forbid_unknown_fields=True` describes a file; `decode_toml` turns text into that struct.
Whatever is wrong becomes a `TomlError`: one sentence with the file, the key, its value and what was expected.

    fleet.toml: outages 2: per_30_days is -1: expected a number from 0 to 10,000.
    fleet.toml: 'clinets' is unknown: did you mean 'clients'?

A type that msgspec does not know needs two things: a `dec_hook` that raises ValueError("Expected ..."), and a class
attribute `expected` with the words for the sentence. For any other type `Meta(extra={"expected": "..."})` replaces the
words. A ValueError of a struct's `__post_init__` is quoted as it is.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import inspect

MAX_DEPTH = 50
MAX_INTEGER = 2**63 - 1  # TOML asks readers to support no more
MAX_SUGGESTED = 20
MAX_SHOWN = 60

_PATH = re.compile(r"(.*) - at `(\$.*)`", re.DOTALL)
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")
_FIELD = re.compile(r"Object (?:contains (unknown)|missing required) field `(.*)`", re.DOTALL)
_LENGTH = "Expected `array` of length"

T = TypeVar("T")


class TomlError(ValueError):
    """The file cannot be used; the text is one sentence for its author."""


def read_toml(raw: bytes | str) -> dict[str, Any]:
    """Parse TOML; raise ValueError if it is invalid, nested too deeply, or has an integer of more than 64 bits."""
    too_deep, too_large = "it is nested too deeply", "it has a whole number of more than 64 bits"
    try:
        content = tomllib.loads(raw if isinstance(raw, str) else raw.decode("utf-8"))
    except RecursionError:
        raise ValueError(too_deep) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        raise
    except ValueError:  # Python refuses to read integers of thousands of digits
        raise ValueError(too_large) from None

    def check(value: Any, depth: int) -> None:
        if isinstance(value, dict | list):
            if depth > MAX_DEPTH:
                raise ValueError(too_deep)
            for item in value.values() if isinstance(value, dict) else value:
                check(item, depth + 1)
        elif isinstance(value, int) and not -MAX_INTEGER - 1 <= value <= MAX_INTEGER:
            raise ValueError(too_large)

    check(content, 1)
    return content


def decode_toml(
    raw: bytes | str, kind: type[T], *, where: str, dec_hook: Callable[[type, Any], Any] | None = None
) -> T:
    """Parse TOML into the struct `kind`; `where` names the file in the TomlError."""
    try:
        content = read_toml(raw)
    except ValueError as error:
        raise TomlError(f"{where} is not TOML: {error}.") from error
    return convert_toml(content, kind, where=where, dec_hook=dec_hook)


def convert_toml(
    content: dict[str, Any], kind: type[T], *, where: str, dec_hook: Callable[[type, Any], Any] | None = None
) -> T:
    """Turn parsed TOML into the struct `kind`; `where` names the file in the TomlError."""
    try:
        return msgspec.convert(content, kind, dec_hook=dec_hook)
    except msgspec.ValidationError as error:
        raise TomlError(f"{where}: {_explain(str(error), content, inspect.type_info(kind))}") from error


def suggest(word: str, known: Iterable[str], *, otherwise: str = "known are") -> str:
    """End a sentence about an unknown word: the closest known word, or all of them if they are few."""
    words = sorted(known)
    close = get_close_matches(word.lower(), [candidate.lower() for candidate in words], n=1)
    if close:
        return f"did you mean '{next(candidate for candidate in words if candidate.lower() == close[0])}'?"
    if words and len(words) <= MAX_SUGGESTED:
        return f"{otherwise} {', '.join(words)}."
    return f"there are {len(words)} of them."


def _explain(message: str, value: Any, kind: Any) -> str:
    """Turn msgspec's message, which ends with the path of the value, into a sentence."""
    found = _PATH.fullmatch(message)
    text, path = (found[1], found[2]) if found else (message, "$")
    place, key = "", ""
    for name, index in _STEP.findall(path):
        kind = _without_none(kind, value)
        if name or index == "...":
            place, key = f"{place}{key}: " if key else place, name or _wrong_key(value, kind)
            kind, value = _child(kind, key), value.get(key)
        else:
            key = f"{key} {int(index) + 1}"
            kind, value = kind.item_type, value[int(index)]
    field = _FIELD.fullmatch(text)
    if field is not None:
        place = f"{place}{key}: " if key else ""
        kind = _without_none(kind, value)
        if field[1]:
            return f"{place}'{field[2][:MAX_SHOWN]}' is unknown: {suggest(field[2], _keys(kind))}"
        return f"{place}{field[2]} is missing: expected {_describe(_child(kind, field[2]), field[2])}."
    if text.startswith(_LENGTH):
        kind = _without_none(kind, value)
        expected = _range(kind.min_length, kind.max_length).removeprefix("from ").removeprefix("of ")
        return f"{place}{key} has {len(value)} entries: expected {expected}."
    if not text.startswith(("Expected", "Invalid")):  # the words of a __post_init__
        return f"{place}{key}: {text}" if key else text
    if isinstance(kind, _Choice) and isinstance(value, str):
        return f"{place}{key} '{value[:MAX_SHOWN]}' is unknown: {suggest(value, kind.words)}"
    return f"{place}{key} is {_show(value)}: expected {_describe(kind, key)}."


class _Choice(NamedTuple):
    """The words that a key may have: a Literal, or the tags of a union of structs."""

    words: tuple[str, ...]


def _without_none(kind: Any, value: Any) -> Any:
    """The type that `value` was meant for: without None, and of a tagged union the struct with its tag."""
    if isinstance(kind, inspect.Metadata):
        return _without_none(kind.type, value)
    if not isinstance(kind, inspect.UnionType):
        return kind
    kinds = [option for option in kind.types if not isinstance(option, inspect.NoneType)]
    if len(kinds) == 1:
        return _without_none(kinds[0], value)
    structs = [option for option in kinds if isinstance(option, inspect.StructType)]
    if structs and isinstance(value, dict):
        tag = value.get(structs[0].tag_field)
        return next((struct for struct in structs if struct.tag == tag), kind)
    if isinstance(value, list):
        return next((option for option in kinds if hasattr(option, "item_type")), kind)
    return kind


def _tags(kind: Any) -> tuple[str, _Choice] | None:
    structs = [
        option
        for option in getattr(kind, "types", (kind,))
        if isinstance(option, inspect.StructType) and option.tag_field
    ]
    return (str(structs[0].tag_field), _Choice(tuple(str(struct.tag) for struct in structs))) if structs else None


def _keys(kind: Any) -> list[str]:
    tags = _tags(kind)
    return [field.encode_name for field in getattr(kind, "fields", ())] + ([tags[0]] if tags else [])


def _child(kind: Any, key: str) -> Any:
    tags = _tags(kind)
    if tags is not None and tags[0] == key:
        return tags[1]
    if isinstance(kind, inspect.DictType):
        return kind.value_type
    kind = next((field.type for field in kind.fields if field.encode_name == key), None)
    inner = _without_none(kind, None)
    return _Choice(tuple(map(str, inner.values))) if isinstance(inner, inspect.LiteralType) else kind


def _wrong_key(value: dict[str, Any], kind: Any) -> str:
    """The entry of a dict that does not fit. msgspec does not name it."""
    for key, item in value.items():
        inner = _without_none(kind.value_type, item)
        try:
            msgspec.convert(item, inner.cls if isinstance(inner, inspect.StructType) else Any)
        except msgspec.ValidationError:
            return key
    return next(iter(value))


def _describe(kind: Any, key: str) -> str:
    """What a value should be, in words."""
    if isinstance(kind, inspect.Metadata):
        return str((kind.extra or {}).get("expected") or _describe(kind.type, key))
    match kind:
        case _Choice():
            return f"one of {', '.join(kind.words)}"
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType() | inspect.FloatType():
            noun = "a whole number" if isinstance(kind, inspect.IntType) else "a number"
            return f"{noun}{_bounds(kind)}"
        case inspect.StrType():
            return "a text in quotes"
        case inspect.DecimalType():
            return "a number in quotes"
        case inspect.DateType():
            return "a day, such as 2026-01-31"
        case inspect.CustomType():
            return str(getattr(kind.cls, "expected", kind.cls.__name__))
        case inspect.ListType() | inspect.VarTupleType():
            item = _without_none(kind.item_type, None)
            if _tags(item) or isinstance(item, inspect.StructType | inspect.DictType):
                return f"tables: write [[{key}]] above each of them"
            return 'a list of texts, such as ["one", "two"]' if isinstance(item, inspect.StrType) else "a list"
        case inspect.UnionType():
            kinds = [option for option in kind.types if not isinstance(option, inspect.NoneType)]
            return "a table" if _tags(kind) else " or ".join(_describe(option, key) for option in kinds)
    return f"a table, [{key}]"


def _bounds(kind: Any) -> str:
    if kind.gt is not None:
        return f" above {kind.gt:,}" + (f", at most {kind.le:,}" if kind.le is not None else "")
    return f" {_range(kind.ge, kind.le)}" if kind.ge is not None or kind.le is not None else ""


def _range(low: float | None, high: float | None) -> str:
    if low is not None and high is not None:
        return f"from {low:,} to {high:,}"
    return f"of {low:,} or more" if low is not None else f"of {high:,} or less"


def _show(value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"
